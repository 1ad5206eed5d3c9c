// SPDX-License-Identifier: Apache-2.0
//
// A call as the general kernels see it: shape, formats of the heads, pool, sequences and tensors in
// one struct by value in the kernel's parameters. Filled on the host, which reads no memory of the
// device. No kernel here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/layout.h"
#include "cuda/scratch.cuh"

namespace leapquant::cuda {

// Heads whose class, offset and decay fit the parameters. Layers with more heads that need these
// tables are served by several launches.
inline constexpr int32_t kHeadsPerLaunch = 256;

// What kernels need of a BoundaryLayout; offsets in bytes from the head's start.
struct HeadFormat {
  int32_t bits;  // 32, 16 (plain states), 8, 6, 4, 3
  int32_t half_levels, fp16_scale, smoothing;
  int32_t num_fp16, num_int8, num_int4, rank;
  int32_t row_bytes, bytes, end;  // end: of the parts, where the padding begins
  int32_t value_scale, smoothing_at, fp16_keys, fp16_values;
  int32_t key_scales, value_scales, int8_keys, int8_values, int4_keys, int4_values;
  int32_t fit_fixed, fit_rounds;
  float q_max, scale_steps;
};

// Rows of a tensor with every stride resolved. head_stride is one element where the heads
// themselves are the last axis.
struct Rows {
  char* data;
  int32_t type;
  int64_t sequence, token, sub_step, head;
};

struct Inputs {
  Rows q, k, v, read_key, log_decay, beta;  // data null where the caller gave none
  int32_t gate, sigmoid_beta, l2norm, read_before_update;
  const float* a_log;
  const float* dt_bias;
  const float* bonus;
  const float* skip;
  float lower_bound, beta_scale, l2norm_eps, q_scale;
};

struct Call {
  HeadFormat classes[8];
  int32_t head_offset[kHeadsPerLaunch];  // in 16 bytes
  float head_decay[kHeadsPerLaunch];     // constant log decays
  uint8_t head_class[kHeadsPerLaunch];
  int32_t num_classes;            // 1: class 0 for all, offsets are multiples of its bytes
  int32_t first_head, num_heads;  // value heads of this launch
  // Shape.
  int32_t k_heads, v_heads, group, k_dim, v_dim, decay, delta_rule, sub_steps;
  int32_t window, stagger, first_k_head, total_k_heads, per_step;
  int32_t ring_tokens, decay_bytes, decay_count;
  int64_t corrections, log_decays, key_head_stride, correction_head_stride, decay_head_stride;
  // Pool.
  char* states;
  char* windows;
  int32_t* base;
  leapquant_health* health;  // may be null
  int64_t state_stride, window_stride;
  int32_t num_state_slots, num_window_slots;
  // Sequences; all arrays lie in device memory.
  int32_t batch, tokens, needs_window, writes_slots, reads_records;
  const int32_t* state_slots;
  const int32_t* window_slots;
  const int32_t* positions;
  const int32_t* num_tokens;         // decode, may be null
  const int32_t* token_offsets;      // prefill
  const int32_t* destination_slots;  // fold, may be null
  const leapquant_checkpoint* checkpoints;
  int32_t num_checkpoints, through;
  int32_t* status;
  Inputs inputs;
  Rows output;
  // Plain matrices of export and import.
  char* matrices;
  int32_t matrix_type, transposed;
  int64_t matrix_sequence, matrix_head;
  ScratchPlan scratch;
};

// Shape, formats, pool and scratch of a layout; one sequence array is the caller's to fill.
void fill_layout(const Layout& layout, const leapquant_pool& pool, const leapquant_launch& launch,
                 Call* call);
// Tensors of decode (tokens > 0, with a sequence axis) and prefill (tokens = 0).
void fill_tensors(const Layout& layout, const leapquant_inputs& inputs,
                  const leapquant_output& output, int64_t tokens, Call* call);
// Tables of the heads `first_head` to at most kHeadsPerLaunch further, or all where the tables are
// not needed. Returns the number of heads.
int32_t fill_heads(const Layout& layout, int32_t first_head, Call* call);

// Calls launch(call) once per range of heads; stops at an error.
template <typename Launch>
cudaError_t for_head_ranges(const Layout& layout, Call* call, const Launch& launch) {
  for (int32_t first = 0; first < layout.shape.num_v_heads; first += call->num_heads) {
    fill_heads(layout, first, call);
    if (const cudaError_t error = launch(*call)) return error;
  }
  return cudaSuccess;
}

// Kernels take items = batch x heads in strides of the grid.
inline unsigned grid_of(const Call& call) {
  const int64_t items = int64_t{call.batch} * call.num_heads;
  const int64_t most = call.scratch.block_bytes > 0 ? kScratchBlocks : (int64_t{1} << 30);
  return static_cast<unsigned>(items < most ? items : most);
}

}  // namespace leapquant::cuda
