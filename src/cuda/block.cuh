// SPDX-License-Identifier: Apache-2.0
//
// A block of threads at work on one value head: its place in the block, its working arrays, sums
// and maxima with one order of operations whatever the batch, and the place of a head in the pool.
#pragma once

#include "cuda/call.cuh"
#include "cuda/numbers.cuh"

namespace leapquant::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ __forceinline__ float max_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}

// Thread t of a block holds column `column` of the rows row_begin .. row_end - 1 of a [K, V]
// matrix; idle threads (column < 0) hold none. `parts` threads share a column.
struct Block {
  int32_t k_dim, v_dim;
  int32_t thread, lane, warp;
  int32_t parts, part, column, row_begin, row_end;
  float* reductions;  // [kBlockWarps]
  int32_t* word;      // one integer of the block
  // Working arrays, see scratch.cuh.
  float* tokens;
  float* state;
  float* left;
  float* keys;
  float* values;
  float* spare;
  float* weights;
  float* smoothing;   // [K]
  float* steps;       // [V]
  float* inverses;    // [V]
  float* column_max;  // [V]
  float* gram;        // [rank][rank], [rank]

  __device__ Block(const Call& call, char* shared)
      : k_dim(call.k_dim),
        v_dim(call.v_dim),
        thread(static_cast<int32_t>(threadIdx.x)),
        lane(thread & 31),
        warp(thread >> 5) {
    const int32_t width = (v_dim + 31) / 32;  // warps across the columns
    parts = kBlockWarps / width;
    part = warp / width;
    column = (warp - part * width) * 32 + lane;
    const int32_t rows = (k_dim + parts - 1) / parts;
    row_begin = min(part * rows, k_dim);
    row_end = min(row_begin + rows, k_dim);
    if (part >= parts || column >= v_dim) {
      column = -1;
      row_begin = row_end = 0;
    }
    reductions = reinterpret_cast<float*>(shared);
    word = reinterpret_cast<int32_t*>(shared) + kBlockWarps;
    char* workspace =
        call.scratch.workspace + int64_t{blockIdx.x} * int64_t{call.scratch.block_bytes};
    const auto place = [&](const ScratchPart& part_of) {
      return reinterpret_cast<float*>((part_of.in_workspace != 0 ? workspace : shared) +
                                      part_of.at);
    };
    tokens = place(call.scratch.tokens);
    state = place(call.scratch.state);
    left = place(call.scratch.left);
    keys = place(call.scratch.keys);
    values = place(call.scratch.values);
    spare = place(call.scratch.spare);
    weights = place(call.scratch.weights);
    smoothing = place(call.scratch.columns);
    steps = smoothing + k_dim;
    inverses = steps + v_dim;
    column_max = inverses + v_dim;
    gram = column_max + v_dim;
  }

  // Sum over the block, the same in all threads.
  __device__ float sum(float x) const {
    x = sum_of_warp(x);
    __syncthreads();
    if (lane == 0) reductions[warp] = x;
    __syncthreads();
    float total = reductions[0];
#pragma unroll
    for (int32_t w = 1; w < kBlockWarps; ++w) total += reductions[w];
    return total;
  }
  __device__ float max(float x) const {
    x = max_of_warp(x);
    __syncthreads();
    if (lane == 0) reductions[warp] = x;
    __syncthreads();
    float largest = reductions[0];
#pragma unroll
    for (int32_t w = 1; w < kBlockWarps; ++w) largest = fmaxf(largest, reductions[w]);
    return largest;
  }
  __device__ uint32_t any_bits(uint32_t bits) const {
    bits = __reduce_or_sync(kAllLanes, bits);  // sm_80
    __syncthreads();
    if (thread == 0) *word = 0;
    __syncthreads();
    if (lane == 0 && bits != 0) atomicOr(word, static_cast<int32_t>(bits));
    __syncthreads();
    return static_cast<uint32_t>(*word);
  }
};

// ---- Where a head lies ----

__device__ __forceinline__ const HeadFormat& format_of(const Call& call, int32_t v_head) {
  return call.classes[call.num_classes == 1 ? 0 : call.head_class[v_head - call.first_head]];
}

__device__ __forceinline__ char* boundary_of(const Call& call, int32_t slot, int32_t v_head) {
  const int64_t offset = call.num_classes == 1
                             ? int64_t{v_head} * call.classes[0].bytes
                             : int64_t{call.head_offset[v_head - call.first_head]} * 16;
  return call.states + int64_t{slot} * call.state_stride + offset;
}

__device__ __forceinline__ int64_t head_index(const Call& call, int32_t slot, int32_t v_head) {
  return int64_t{slot} * call.v_heads + v_head;
}

__device__ __forceinline__ int32_t last_boundary_of(const Call& call, int32_t v_head,
                                                    int32_t position) {
  const int64_t k_head = call.first_k_head + v_head / call.group;
  const int32_t offset =
      call.stagger != 0 ? static_cast<int32_t>(k_head * call.window / call.total_k_heads) : 0;
  const int32_t remainder = (position - offset) % call.window;
  return position - (remainder < 0 ? remainder + call.window : remainder);
}

// The window slot of a sequence; negative: none.
__device__ __forceinline__ int32_t window_slot_of(const Call& call, int32_t sequence) {
  if (call.per_step != 0) return -1;
  return (call.window_slots != nullptr ? call.window_slots : call.state_slots)[sequence];
}

// A head's records in a window.
struct Window {
  uint16_t* keys;         // [ring][n][K]
  uint16_t* corrections;  // [ring][n][V]
  char* log_decays;
};

__device__ __forceinline__ Window window_of(const Call& call, int32_t window_slot, int32_t v_head) {
  char* start = call.windows + int64_t{window_slot} * call.window_stride;
  return {
      reinterpret_cast<uint16_t*>(start + v_head / call.group * call.key_head_stride),
      reinterpret_cast<uint16_t*>(start + call.corrections + v_head * call.correction_head_stride),
      start + call.log_decays + v_head * call.decay_head_stride};
}

}  // namespace leapquant::cuda
