// SPDX-License-Identifier: Apache-2.0
//
// Faults of single sequences: slots, positions against bases, repeated slots, numbers that are not
// finite, decays that grow. The first launch writes every status; the second lowers it where inputs
// are at fault, to the smallest fault found, in whatever order the blocks come.
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/finite.cuh"
#include "cuda/input_faults.cuh"
#include "cuda/operations.cuh"
#include "cuda/ptx.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

// Blocks that share a sequence of a decode; in a prefill 16 times as many, of few sequences 32.
constexpr int32_t kSlices = 8;
constexpr int32_t kFewSequences = 8;

__global__ void __launch_bounds__(kBlockThreads)
    check_sequences_kernel(const __grid_constant__ Call call, int32_t call_tokens) {
  __shared__ int32_t seen;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t fault = sequence_fault(call, i, call_tokens, &seen);
    if (threadIdx.x == 0) call.status[i] = fault;
  }
}

// The rows of one tensor that a block tests: of `count` tokens from `first` on, `heads` rows of
// `length` numbers for each sub-step.
struct Part {
  int64_t sequence, first, count;
  int32_t sub_steps, heads, length;
};

// Shows the block's threads every number of a part once or more often, in 16 bytes at a time where
// the rows lie so, else one by one; many loads at once.
template <typename Test>
__device__ void visit_rows(const Rows& rows, const Part& part, Test* test) {
  if (rows.data == nullptr || part.count <= 0) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t row_bytes = int64_t{part.length} * (rows.type == LEAPQUANT_FP32 ? 4 : 2);
  // Strides that no row takes do not count.
  const int64_t head = part.heads > 1 ? rows.head : row_bytes;
  const int64_t sub_step = part.sub_steps > 1 ? rows.sub_step : part.heads * row_bytes;
  const char* start = row_of(rows, part.sequence, part.first, 0, 0);
  const bool by_token = head == row_bytes && sub_step == part.heads * row_bytes;
  const int64_t token_bytes = part.sub_steps * part.heads * row_bytes;
  const bool whole = by_token && (rows.token == token_bytes || part.count == 1);
  const int64_t rows_of_token = int64_t{part.sub_steps} * part.heads;
  const int64_t run_bytes = whole ? part.count * token_bytes : by_token ? token_bytes : row_bytes;
  const int64_t runs = whole ? 1 : by_token ? part.count : part.count * rows_of_token;
  const uint64_t aligned = reinterpret_cast<uintptr_t>(start) | static_cast<uint64_t>(run_bytes) |
                           static_cast<uint64_t>(runs > 1 ? rows.token : 0) |
                           static_cast<uint64_t>(by_token ? 0 : head | sub_step);
  if ((aligned & 15) == 0) {
    const auto pieces = static_cast<uint32_t>(run_bytes / 16);
    const auto total = static_cast<uint32_t>(runs) * pieces;  // 2^32 of them exceed any memory
    const auto address = [&](uint32_t piece) {
      if (runs == 1) return start + int64_t{piece} * 16;
      const uint32_t run = piece / pieces;
      const char* at = start + int64_t{piece - run * pieces} * 16;
      if (by_token) return at + run * rows.token;
      const uint32_t token = run / static_cast<uint32_t>(rows_of_token);
      const uint32_t rest = run - token * static_cast<uint32_t>(rows_of_token);
      const uint32_t step = rest / static_cast<uint32_t>(part.heads);
      return at + token * rows.token + step * sub_step +
             (rest - step * static_cast<uint32_t>(part.heads)) * head;
    };
    constexpr uint32_t kAtOnce = 8;
    for (uint32_t e = static_cast<uint32_t>(thread); e < total; e += kAtOnce * kBlockThreads) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce; ++n) {
        // Past the end the last piece comes again.
        raw[n] =
            __ldg(reinterpret_cast<const uint4*>(address(min(e + n * kBlockThreads, total - 1))));
      }
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce; ++n) test->pieces(raw[n]);
    }
    return;
  }
  for (int64_t r = thread >> 5; r < part.count * rows_of_token; r += kBlockWarps) {
    const int64_t t = r / rows_of_token;
    const auto rest = static_cast<int32_t>(r - t * rows_of_token);
    const char* row =
        row_of(rows, part.sequence, part.first + t, rest / part.heads, rest % part.heads);
    for (int32_t i = thread & 31; i < part.length; i += 32) {
      test->number(load_number(row, rows.type, i));
    }
  }
}

// Numbers that must be finite.
struct FiniteNumbers {
  FiniteTest test;
  uint32_t seen;
  __device__ void pieces(const uint4& raw) { seen |= seen_in(test, raw); }
  __device__ void number(float x) { seen |= is_finite(x) ? 0u : 1u; }
  __device__ uint32_t found() const { return seen != 0 ? kNotFinite : 0u; }
};
__device__ __noinline__ uint32_t finite_faults(const Rows& rows, const Part& part) {
  FiniteNumbers test = {finite_test(rows.type), 0};
  visit_rows(rows, part, &test);
  return test.found();
}

// Log decays as they are used: at most 0, -inf allowed.
struct LogDecays {
  int32_t type;
  uint32_t found;
  __device__ void number(float g) { found |= log_decay_faults(g); }
  __device__ void word(uint32_t bits) {
    if (type == LEAPQUANT_FP32) return number(__uint_as_float(bits));
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits >> 16);
    number(type == LEAPQUANT_BF16 ? bf16_value(low) : fp16_value(low));
    number(type == LEAPQUANT_BF16 ? bf16_value(high) : fp16_value(high));
  }
  __device__ void pieces(const uint4& raw) {
    word(raw.x);
    word(raw.y);
    word(raw.z);
    word(raw.w);
  }
};

// Raw gates of finite inputs and parameters never give NaN or a positive log decay (gate_of). Of
// the parameters, NaN is found here, once for all tokens: by the last slice, which is never empty.
__device__ uint32_t gate_faults(const Call& call, Part part, bool last_slice) {
  const Rows& rows = call.inputs.log_decay;
  if (rows.data == nullptr || part.count <= 0) return 0;
  const bool vector = call.decay == LEAPQUANT_DECAY_VECTOR;
  part.sub_steps = 1;
  part.heads = vector ? call.v_heads : 1;
  part.length = vector ? call.k_dim : call.v_heads;
  if (call.inputs.gate == LEAPQUANT_GATE_READY) {
    LogDecays test = {rows.type, 0};
    visit_rows(rows, part, &test);
    return test.found;
  }
  uint32_t found = finite_faults(rows, part);
  const int32_t width = vector ? call.k_dim : 1;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t e = thread; last_slice && e < call.v_heads * width; e += kBlockThreads) {
    const float g = gate_of(call.inputs, 0.0f, e / width, e);
    if (g != g) found |= kNotFinite;
  }
  return found;
}

__global__ void __launch_bounds__(kBlockThreads)
    check_inputs_kernel(const __grid_constant__ Call call, int32_t call_tokens, int32_t slices,
                        bool beside) {
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
    Part part = {};
    part.sequence = call_tokens < 0 ? 0 : i;
    part.first = tokens * slice / slices;
    part.count = tokens * (slice + 1) / slices - part.first;
    if (call_tokens < 0) part.first += call.token_offsets[i];
    const Inputs& in = call.inputs;
    part.sub_steps = 1;
    part.heads = call.k_heads;
    part.length = call.k_dim;
    uint32_t found = finite_faults(in.q, part);
    part.sub_steps = call.sub_steps;
    found |= finite_faults(in.k, part) | finite_faults(in.read_key, part);
    part.heads = call.v_heads;
    part.length = call.v_dim;
    found |= finite_faults(in.v, part);
    part.heads = 1;
    part.length = call.v_heads;
    found |= finite_faults(in.beta, part) | gate_faults(call, part, slice == slices - 1);
    const bool not_finite = __syncthreads_or((found & kNotFinite) != 0) != 0;
    const bool positive = __syncthreads_or((found & kPositive) != 0) != 0;
    if (threadIdx.x == 0) {
      tell_faults(call, i, (not_finite ? kNotFinite : 0u) | (positive ? kPositive : 0u));
    }
  }
  if (beside) wait_for_previous_grid();
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

cudaError_t launch_sequence_checks(const Call& call, int32_t tokens, cudaStream_t stream) {
  check_sequences_kernel<<<blocks_for(call.batch), kBlockThreads, 0, stream>>>(call, tokens);
  return cudaGetLastError();
}

cudaError_t launch_prefill_input_checks(const Call& call, bool beside, cudaStream_t stream) {
  if (beside) {
    // Kernels of unlike divisions of a multiprocessor's memory do not share it.
    const cudaError_t error =
        cudaFuncSetAttribute(check_inputs_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const int32_t slices = (call.batch <= kFewSequences ? 32 : 16) * kSlices;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks_for(int64_t{call.batch} * slices));
  config.blockDim = dim3(kBlockThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = beside ? 1 : 0;
  return cudaLaunchKernelEx(&config, check_inputs_kernel, call, -1, slices, beside);
}

cudaError_t launch_checks(const Call& call, int32_t tokens, cudaStream_t stream) {
  if (const cudaError_t error = launch_sequence_checks(call, tokens, stream)) return error;
  if (tokens == 0) return cudaSuccess;
  if (tokens < 0) return launch_prefill_input_checks(call, false, stream);
  check_inputs_kernel<<<blocks_for(int64_t{call.batch} * kSlices), kBlockThreads, 0, stream>>>(
      call, tokens, kSlices, false);
  return cudaGetLastError();
}

cudaError_t launch_matrix_check(const Call& call, cudaStream_t stream) {
  check_matrices_kernel<<<blocks_for(int64_t{call.batch} * call.v_heads), kBlockThreads, 0,
                          stream>>>(call);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
