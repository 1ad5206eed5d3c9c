// SPDX-License-Identifier: Apache-2.0
//
// Faults of the sequences of a decode call of heads of 128 x 128, in one launch: a block has a
// sequence, its loads are as wide as the tensors' alignment allows and in flight together.
#include "cuda/check.cuh"
#include "cuda/finite.cuh"
#include "cuda/input_faults.cuh"
#include "cuda/plain_128.cuh"
#include "cuda/ptx.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

// Not zero when this thread's share of a token's rows of 128 holds a number that is not finite.
__device__ uint32_t not_finite(const Rows& rows, int64_t sequence, int64_t token, int32_t heads,
                               int32_t thread) {
  const FiniteTest test = finite_test(rows.type);
  const char* first = row_of(rows, sequence, token, 0, 0);
  const int32_t bytes = number_bytes(rows.type);
  uint32_t seen = 0;
  if (((reinterpret_cast<uintptr_t>(first) | static_cast<uint64_t>(rows.head)) & 15) == 0) {
    const int32_t shift = bytes == 4 ? 5 : 4;  // pieces of 16 bytes in a row
#pragma unroll 4
    for (int32_t i = thread; i < heads << shift; i += kBlockThreads) {
      const int32_t piece = i & ((1 << shift) - 1);
      const uint4 x =
          __ldg(reinterpret_cast<const uint4*>(first + (i >> shift) * rows.head) + piece);
      seen |= seen_in(test, x);
    }
    return seen;
  }
#pragma unroll 4
  for (int32_t i = thread; i < heads * 128; i += kBlockThreads) {
    const char* row = first + (i >> 7) * rows.head;
    seen |= is_finite(load_number(row, rows.type, i & 127)) ? 0u : 1u;
  }
  return seen;
}

__device__ uint32_t gate_faults(const Call& call, int64_t sequence, int64_t token, int32_t thread) {
  const Rows& rows = call.inputs.log_decay;
  if (rows.data == nullptr) return 0;
  uint32_t found = 0;
  const bool ready = call.inputs.gate == LEAPQUANT_GATE_READY;
  const int32_t shift = call.decay == LEAPQUANT_DECAY_VECTOR ? 7 : 0;
#pragma unroll 4
  for (int32_t e = thread; e < call.v_heads << shift; e += kBlockThreads) {
    const int32_t v_head = e >> shift;
    const int32_t i = e - (v_head << shift);
    const float x = load_number(row_of(rows, sequence, token, 0, v_head), rows.type, i);
    const float g = gate_of(call.inputs, x, v_head, e);
    if (g != g || (!ready && !is_finite(x))) found |= kNotFinite;
    if (g > 0.0f) found |= kPositive;
  }
  return found;
}

__global__ void __launch_bounds__(kBlockThreads)
    plain_check_kernel(const __grid_constant__ Call call) {
  launch_dependents();
  __shared__ int32_t seen;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t fault = sequence_fault(call, i, call.tokens, &seen);
    int32_t tokens = 0;
    if (fault == LEAPQUANT_OK && call.state_slots[i] >= 0) tokens = tokens_of(call, call.tokens, i);
    uint32_t found = 0;
    for (int32_t t = 0; t < tokens; ++t) {
      const Inputs& in = call.inputs;
      uint32_t bad = not_finite(in.q, i, t, call.k_heads, thread);
      bad |= not_finite(in.k, i, t, call.k_heads, thread);
      bad |= not_finite(in.v, i, t, call.v_heads, thread);
      for (int32_t h = thread; h < call.v_heads && in.beta.data != nullptr; h += kBlockThreads) {
        const float beta = load_number(row_of(in.beta, i, t, 0, h), in.beta.type, 0);
        bad |= is_finite(beta) ? 0u : 1u;
      }
      found |= gate_faults(call, i, t, thread) | (bad != 0 ? kNotFinite : 0u);
    }
    const bool bad = __syncthreads_or((found & kNotFinite) != 0) != 0;
    const bool positive = __syncthreads_or((found & kPositive) != 0) != 0;
    if (thread == 0) {
      call.status[i] = fault != LEAPQUANT_OK ? fault
                       : bad                 ? LEAPQUANT_NON_FINITE_INPUT
                       : positive            ? LEAPQUANT_POSITIVE_LOG_DECAY
                                             : LEAPQUANT_OK;
    }
  }
}

}  // namespace

cudaError_t launch_plain_checks_128(const Call& call, cudaStream_t stream) {
  plain_check_kernel<<<static_cast<unsigned>(call.batch), kBlockThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
