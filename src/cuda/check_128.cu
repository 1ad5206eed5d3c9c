// SPDX-License-Identifier: Apache-2.0
//
// The check of a decode call of heads of 128 x 128 before its folds: a block has a sequence and
// writes its status. Large calls have it, so that neither folds nor the blocks that share a
// sequence read its inputs once more for their own verdict; decode_128.cu checks small ones itself.
#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/launch_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

using namespace device_128;

constexpr int32_t kReaders = 256;  // threads that read inputs
constexpr int32_t kThreads = kReaders + 64;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kInFlight = 2;  // loads of q, k and v each: a token of 32 heads in one go

// Inputs by the first warps, bases and slots by one each, so that none waits for another's loads.
template <bool kVector, bool kPlain>
__global__ void __launch_bounds__(kThreads, 4) check_kernel(const __grid_constant__ Call128 call) {
  launch_dependents();
  stamp(call, Stamp::kCheckBegins);
  const auto sequence = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & 31;
  const Sequence128 s = load_sequence(call, sequence);
  uint32_t faults = s.fault;
  if (s.alive) {  // the same for all threads
    if (s.slot >= call.num_state_slots || s.window_slot >= call.num_window_slots) {
      faults = 4u;
    } else if (thread < kReaders) {
      faults = check_inputs<kVector, kInFlight, kPlain>(call, sequence, s.tokens, thread, kReaders);
    } else if (thread < kReaders + 32) {
      const int32_t* bases = call.base + int64_t{s.slot} * call.v_heads;
#pragma unroll 1
      for (int32_t h = lane; h < call.v_heads; h += 32) {
        faults |= check_position(call, s, bases[h]);
      }
    } else {
      faults = check_slots(call, s, lane, 32);
    }
  }
  __shared__ uint32_t found[kWarps];
  faults = __reduce_or_sync(~0u, faults);
  if (lane == 0) found[thread / 32] = faults;
  __syncthreads();
  if (thread < 32) {
    faults = __reduce_or_sync(~0u, lane < kWarps ? found[lane] : 0u);
    if (lane == 0) call.status[sequence] = status_of(faults);
  }
  stamp(call, Stamp::kCheckEnds);
}

}  // namespace

cudaError_t launch_check_128(Call128* checked, bool vector, cudaStream_t stream) {
  checked->checked = 1;
  const Call128& call = *checked;
  if (call.batch == 0) return cudaSuccess;
  const auto kernel =
      vector ? (call.plain != 0 ? check_kernel<true, true> : check_kernel<true, false>)
             : (call.plain != 0 ? check_kernel<false, true> : check_kernel<false, false>);
  if (const cudaError_t error = share_memory_128(kernel, 0)) return error;
  kernel<<<static_cast<unsigned>(call.batch), kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
