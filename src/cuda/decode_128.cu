// SPDX-License-Identifier: Apache-2.0
//
// Decode of heads of 128 x 128 whose boundary states are up to date. One head is read by one warp
// (large batches) or shared by the warps of a block (small ones); nothing depends on which. Bulk
// copies bring the boundary state and the records into shared memory; the residual is read by the
// integer matrix units, both read vectors as fixed-point numbers of four signed bytes, exactly;
// records and compensators by dot products in FP32. Heads that are due are folded by fold_128.cu,
// which runs at the same time; this kernel takes them last.
#include <algorithm>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/decode_head_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

using namespace decoding_128;

// Blocks on a multiprocessor, which bound the registers: what spills nothing. A block of two warps
// gets 128 registers a thread at seven of them, 168 at six.
constexpr int32_t resident_blocks(bool vector, int32_t warps, bool plain) {
  if (warps == 1) return 7;
  if (warps == 2) return vector || !plain ? 6 : 7;
  return vector && !plain ? 2 : 3;
}

// Each block takes heads first .. last - 1 of batch x v_heads, in order.
template <bool kVector, int kWarps, bool kPlain>
__global__ void __launch_bounds__(32 * kWarps, resident_blocks(kVector, kWarps, kPlain))
    decode_kernel(const __grid_constant__ Call128 call) {
  extern __shared__ __align__(128) char shared[];
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0);
  const int32_t lane = threadIdx.x & 31;
  const int32_t warp = kWarps == 1 ? 0 : threadIdx.x >> 5;
  const Head<kVector, kWarps, kPlain> head = {{shared, plan, lane, warp}, call, 32 * warp + lane};
  const uint32_t barrier = shared_address(shared + plan.barrier);
  uint32_t* deferred = reinterpret_cast<uint32_t*>(shared + plan.deferred);
  if (threadIdx.x == 0) barrier_init(barrier, 1);
  for (int32_t i = threadIdx.x; i < kDeferredWords; i += 32 * kWarps) deferred[i] = 0;
  for (int32_t i = threadIdx.x; i < 64; i += 32 * kWarps) {
    reinterpret_cast<uint32_t*>(shared + plan.zeros)[i] = 0;
  }
  fence_async_proxy();
  block_sync<kWarps>();

  const int64_t total = int64_t{call.batch} * call.v_heads;
  const int64_t first = total * blockIdx.x / gridDim.x;
  const int32_t count = static_cast<int32_t>(total * (blockIdx.x + 1) / gridDim.x - first);
  uint32_t parity = 0;
  bool any_deferred = false;

  for (int32_t pass = 0; pass < 2; ++pass) {
    if (pass == 1) {
      wait_for_previous_grid();  // folds are done and visible
      if (!any_deferred) break;
      fence_async_proxy();
    }
    int32_t current = -1;
    int32_t block_of_heads = -1;
    Sequence128 s = {};
    typename Head<kVector, kWarps, kPlain>::Pointers inputs = {};
    uint32_t faults = 0;
    int32_t bases = 0;
    typename Head<kVector, kWarps, kPlain>::Raw raw = {};
    float decay = 0.0f;
    bool ahead = false;  // copies of the head at hand are under way, its inputs loaded
    int32_t sequence = static_cast<int32_t>(first / call.v_heads);
    int32_t v_head = static_cast<int32_t>(first - int64_t{sequence} * call.v_heads) - 1;
    for (int32_t index = 0; index < count; ++index) {
      if (++v_head == call.v_heads) {
        v_head = 0;
        ++sequence;
      }
      if (pass == 1 && (deferred[index >> 5] >> (index & 31) & 1u) == 0) continue;
      const bool fresh = sequence != current;
      if (fresh) {
        s = load_sequence(call, sequence);
        inputs = head.pointers_of(sequence, s);
        faults = 0;
        if (s.alive && (s.slot >= call.num_state_slots || s.window_slot >= call.num_window_slots)) {
          faults = 4u;
        }
      }
      if ((fresh || (v_head >> 5) != block_of_heads) && s.alive && faults == 0) {
        block_of_heads = v_head >> 5;
        const int32_t h = min((block_of_heads << 5) + lane, call.v_heads - 1);
        bases = *reinterpret_cast<const volatile int32_t*>(call.base +
                                                           int64_t{s.slot} * call.v_heads + h);
        if constexpr (kWarps > 1) {  // a fold may move a base between two warps' loads
          int32_t* common = reinterpret_cast<int32_t*>(shared + plan.bases);
          if (warp == 0) common[lane] = bases;
          __syncthreads();
          bases = common[lane];
          __syncthreads();
        }
        __threadfence();  // a base that a fold has just moved: what it wrote is seen
        fence_async_proxy();
      }
      current = sequence;
      const int32_t base = __shfl_sync(kAll, bases, v_head & 31);
      const int32_t n = s.position - base;
      const bool due = last_boundary_of<kPlain>(call, v_head, s.position) > base;
      const HeadFormat128& format = head.format_at(v_head);
      const bool copies =
          s.alive && faults == 0 && !due && n >= 0 && n <= call.capacity - (call.tokens - 1);
      if (copies && !ahead && threadIdx.x == 0) {
        head.start_copies(inputs, v_head, base, n, format, barrier);
      }
      if (pass == 0 && fresh && s.alive && faults == 0) {  // deferred heads have passed it
        uint32_t found = check_positions(call, s, threadIdx.x, 32 * kWarps);
        found |= check_inputs<kVector, (kWarps == 1 ? 8 : 4), kPlain>(call, sequence, s.tokens,
                                                                      threadIdx.x, 32 * kWarps);
        if constexpr (kWarps == 1) {
          faults = __reduce_or_sync(kAll, found);
        } else {
#pragma unroll
          for (uint32_t bit = 1; bit <= 32; bit <<= 1) {
            if (__syncthreads_or((found & bit) != 0)) faults |= bit;
          }
        }
      }
      if (pass == 0 && fresh && threadIdx.x == 0) {
        call.status[sequence] = status_of(faults | s.fault);
      }
      const bool computes = s.alive && faults == 0;
      if (computes && due) {
        if (pass == 0) {
          any_deferred = true;
          if (threadIdx.x == 0) deferred[index >> 5] |= 1u << (index & 31);
        }
        continue;
      }
      const int32_t tokens = kPlain ? 1 : s.tokens;
      const int32_t done = computes ? tokens : 0;
      if (computes) {
        if (!ahead) decay = head.load_decay(inputs, v_head, base, n);
        for (int32_t t = 0; t < tokens; ++t) {
          if (t > 0 || !ahead) head.load_inputs(inputs, v_head, t, &raw);
          ahead = false;
          const auto wait = [&] {
            if (t == 0) {
              barrier_wait(barrier, parity);
            } else {
              block_sync<kWarps>();
            }
          };
          const bool last_token = kPlain || t + 1 == tokens;
          const auto early = [&] {
            if (!last_token) return;
            if (!kPlain && tokens > 1)
              fence_async_proxy();  // appended records, before copies over them
            block_sync<kWarps>();
            // The next head, when it is one of the same sequence and its state is up to date.
            const int32_t next = v_head + 1;
            if (pass == 1 || index + 1 == count || next == call.v_heads || (next & 31) == 0) return;
            const int32_t next_base = __shfl_sync(kAll, bases, next & 31);
            const int32_t records = s.position - next_base;
            if (last_boundary_of<kPlain>(call, next, s.position) > next_base) return;
            if (records < 0 || records > call.capacity - (call.tokens - 1)) return;
            if (threadIdx.x == 0) {
              head.start_copies(inputs, next, next_base, records, head.format_at(next), barrier);
            }
            head.load_inputs(inputs, next, 0, &raw);
            decay = head.load_decay(inputs, next, next_base, records);
            ahead = true;
          };
          head.token(inputs, v_head, t, n + t, s, format, &decay, !last_token, &raw, wait, early);
        }
      } else if (copies) {
        barrier_wait(barrier, parity);
      }
      if (copies) parity ^= 1u;
      const float zeros[Head<kVector, kWarps, kPlain>::kCount] = {};
      for (int32_t t = done; t < call.tokens; ++t) {
        store_values(const_cast<char*>(row_of(call.output, sequence, t, v_head)),
                     head.type_of(call.output), head.place, zeros);
      }
      if (!computes) block_sync<kWarps>();  // shared memory may be overwritten
    }
    block_sync<kWarps>();
  }
}

template <bool kVector, int kWarps, bool kPlain>
cudaError_t launch(const Call128& call, int32_t blocks, bool overlaps, cudaStream_t stream) {
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0);
  const auto kernel = decode_kernel<kVector, kWarps, kPlain>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32 * kWarps);
  config.dynamicSmemBytes = static_cast<size_t>(plan.bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace

int32_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t warps) {
  return resident_blocks(vector, warps, call.plain != 0);
}

int32_t decode_128_shared_bytes(const Call128& call, bool vector) {
  return plan_of(call.boundary_bytes, call.capacity, vector ? call.decay_bytes : 0).bytes;
}

cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t warps, int32_t blocks,
                              bool overlaps, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  // The bitmap of deferred heads bounds a block's share.
  const int64_t least = (total + 32 * kDeferredWords - 1) / (32 * kDeferredWords);
  const int32_t grid = static_cast<int32_t>(std::max(std::min<int64_t>(blocks, total), least));
  const bool plain = call.plain != 0;
  const auto with = [&]<bool kVector, bool kPlain>() {
    if (warps == 1) return launch<kVector, 1, kPlain>(call, grid, overlaps, stream);
    if (warps == 2) return launch<kVector, 2, kPlain>(call, grid, overlaps, stream);
    return launch<kVector, 4, kPlain>(call, grid, overlaps, stream);
  };
  if (vector) {
    return plain ? with.template operator()<true, true>() : with.template operator()<true, false>();
  }
  return plain ? with.template operator()<false, true>() : with.template operator()<false, false>();
}

}  // namespace leapquant::cuda
