// SPDX-License-Identifier: Apache-2.0
//
// Faults of single sequences: slots, positions against bases, repeated slots, numbers that are not
// finite, decays that grow. The first launch writes every status; the second lowers it where inputs
// are at fault, to the smallest fault found, in whatever order the blocks come.
#include "cuda/check.cuh"
#include "cuda/operations.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

constexpr int32_t kSlices = 8;  // blocks that share the inputs of a sequence

__global__ void __launch_bounds__(kBlockThreads)
    check_sequences_kernel(const __grid_constant__ Call call, int32_t call_tokens) {
  __shared__ int32_t seen;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t fault = sequence_fault(call, i, call_tokens, &seen);
    if (threadIdx.x == 0) call.status[i] = fault;
  }
}

// True when one of this warp's rows holds a number that is not finite. Rows: tokens of a slice,
// sub-steps, heads.
__device__ bool rows_not_finite(const Rows& rows, int64_t sequence, int64_t first, int64_t count,
                                int32_t sub_steps, int32_t heads, int32_t last, int32_t warp,
                                int32_t lane) {
  if (rows.data == nullptr) return false;
  bool bad = false;
  const int64_t all = count * sub_steps * heads;
  for (int64_t r = warp; r < all; r += kBlockWarps) {
    const int64_t t = r / (sub_steps * heads);
    const int32_t rest = static_cast<int32_t>(r - t * (sub_steps * heads));
    const char* row = row_of(rows, sequence, first + t, rest / heads, rest % heads);
    for (int32_t i = lane; i < last; i += 32)
      bad = bad || !is_finite(load_number(row, rows.type, i));
  }
  return bad;
}

constexpr uint32_t kNotFinite = 1;
constexpr uint32_t kPositive = 2;

__device__ uint32_t gate_faults(const Call& call, int64_t sequence, int64_t first, int64_t count,
                                int32_t thread) {
  const Rows& rows = call.inputs.log_decay;
  if (rows.data == nullptr) return 0;
  uint32_t found = 0;
  const bool ready = call.inputs.gate == LEAPQUANT_GATE_READY;
  const int32_t width = call.decay == LEAPQUANT_DECAY_VECTOR ? call.k_dim : 1;
  const int64_t all = count * call.v_heads * width;
  for (int64_t e = thread; e < all; e += kBlockThreads) {
    const int64_t r = e / width;
    const int32_t i = static_cast<int32_t>(e - r * width);
    const int64_t t = r / call.v_heads;
    const int32_t v_head = static_cast<int32_t>(r - t * call.v_heads);
    const float x = load_number(row_of(rows, sequence, first + t, 0, v_head), rows.type, i);
    const int64_t bias = width > 1 ? int64_t{v_head} * width + i : int64_t{v_head};
    const float g = gate_of(call.inputs, x, v_head, bias);
    if (g != g || (!ready && !is_finite(x))) found |= kNotFinite;
    if (g > 0.0f) found |= kPositive;
  }
  return found;
}

__device__ void lower_status(int32_t* status, int32_t fault) {
  int32_t seen = *reinterpret_cast<volatile int32_t*>(status);
  while (seen == LEAPQUANT_OK || fault < seen) {
    const int32_t before = atomicCAS(status, seen, fault);
    if (before == seen) return;
    seen = before;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    check_inputs_kernel(const __grid_constant__ Call call, int32_t call_tokens, int32_t slices) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread >> 5;
  const int32_t lane = thread & 31;
  const int64_t items = int64_t{call.batch} * slices;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int32_t i = static_cast<int32_t>(item / slices);
    const int32_t slice = static_cast<int32_t>(item - int64_t{i} * slices);
    // A status that this launch writes is a fault of inputs, which may still get smaller; all
    // others are settled.
    const int32_t status = *reinterpret_cast<volatile int32_t*>(call.status + i);
    const bool settled = status != LEAPQUANT_OK && status < LEAPQUANT_NON_FINITE_INPUT;
    if (call.state_slots[i] < 0 || settled) continue;
    const int64_t tokens = tokens_of(call, call_tokens, i);
    int64_t first = tokens * slice / slices;
    const int64_t count = tokens * (slice + 1) / slices - first;
    const int64_t sequence = call_tokens < 0 ? 0 : i;
    if (call_tokens < 0) first += call.token_offsets[i];
    const Inputs& in = call.inputs;
    const int32_t n = call.sub_steps;
    bool bad =
        rows_not_finite(in.q, sequence, first, count, 1, call.k_heads, call.k_dim, warp, lane);
    bad = bad ||
          rows_not_finite(in.k, sequence, first, count, n, call.k_heads, call.k_dim, warp, lane);
    bad = bad ||
          rows_not_finite(in.v, sequence, first, count, n, call.v_heads, call.v_dim, warp, lane);
    bad = bad || rows_not_finite(in.read_key, sequence, first, count, n, call.k_heads, call.k_dim,
                                 warp, lane);
    bad = bad || rows_not_finite(in.beta, sequence, first, count, n, 1, call.v_heads, warp, lane);
    uint32_t found = bad ? kNotFinite : 0u;
    found |= gate_faults(call, sequence, first, count, thread);
    const bool not_finite = __syncthreads_or((found & kNotFinite) != 0) != 0;
    const bool positive = __syncthreads_or((found & kPositive) != 0) != 0;
    if (thread == 0 && (not_finite || positive)) {
      lower_status(call.status + i,
                   not_finite ? LEAPQUANT_NON_FINITE_INPUT : LEAPQUANT_POSITIVE_LOG_DECAY);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    check_matrices_kernel(const __grid_constant__ Call call) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t items = int64_t{call.batch} * call.v_heads;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int32_t i = static_cast<int32_t>(item / call.v_heads);
    const int32_t v_head = static_cast<int32_t>(item - int64_t{i} * call.v_heads);
    if (call.state_slots[i] < 0) continue;
    const char* matrix = call.matrices + i * call.matrix_sequence + v_head * call.matrix_head;
    bool bad = false;
    for (int32_t e = thread; e < call.k_dim * call.v_dim; e += kBlockThreads) {
      bad = bad || !is_finite(load_number(matrix, call.matrix_type, e));
    }
    if (__syncthreads_or(bad) != 0 && thread == 0) {
      atomicCAS(call.status + i, LEAPQUANT_OK, LEAPQUANT_NON_FINITE_INPUT);
    }
  }
}

unsigned blocks_for(int64_t items) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return static_cast<unsigned>(items < kMost ? items : kMost);
}

}  // namespace

cudaError_t launch_checks(const Call& call, int32_t tokens, cudaStream_t stream) {
  check_sequences_kernel<<<blocks_for(call.batch), kBlockThreads, 0, stream>>>(call, tokens);
  if (tokens == 0) return cudaGetLastError();
  if (const cudaError_t error = cudaGetLastError()) return error;
  const int32_t slices = tokens < 0 ? 16 * kSlices : kSlices;
  check_inputs_kernel<<<blocks_for(int64_t{call.batch} * slices), kBlockThreads, 0, stream>>>(
      call, tokens, slices);
  return cudaGetLastError();
}

cudaError_t launch_matrix_check(const Call& call, cudaStream_t stream) {
  check_matrices_kernel<<<blocks_for(int64_t{call.batch} * call.v_heads), kBlockThreads, 0,
                          stream>>>(call);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
