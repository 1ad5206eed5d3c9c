// SPDX-License-Identifier: Apache-2.0
//
// From the public structs to a Call: strides resolved, tables of heads cut into launches.
#include "cuda/call.cuh"

#include <algorithm>

#include "core/packing.h"

namespace leapquant::cuda {
namespace {

HeadFormat head_format(const BoundaryLayout& b) {
  const auto at = [](int64_t offset) { return static_cast<int32_t>(offset); };
  HeadFormat f = {};
  f.bits = b.format.payload_bits;
  f.row_bytes = b.row_bytes;
  f.bytes = at(b.bytes);
  f.end = b.quantised() ? at(b.int4_values) + b.format.num_int4 * packed_bytes(b.v_dim, 4)
                        : b.k_dim * b.row_bytes;
  if (!b.quantised()) return f;
  f.half_levels = b.format.levels == LEAPQUANT_HALF_INTEGERS;
  f.fp16_scale = b.format.value_scale_type == LEAPQUANT_FP16;
  f.smoothing = b.format.smoothing;
  f.num_fp16 = b.format.num_fp16;
  f.num_int8 = b.format.num_int8;
  f.num_int4 = b.format.num_int4;
  f.rank = b.rank;
  f.value_scale = at(b.value_scale);
  f.smoothing_at = at(b.smoothing);
  f.fp16_keys = at(b.fp16_keys);
  f.fp16_values = at(b.fp16_values);
  f.key_scales = at(b.key_scales);
  f.value_scales = at(b.value_scales);
  f.int8_keys = at(b.int8_keys);
  f.int8_values = at(b.int8_values);
  f.int4_keys = at(b.int4_keys);
  f.int4_values = at(b.int4_values);
  f.fit_fixed = b.format.fit_start == LEAPQUANT_FIT_FIXED;
  f.fit_rounds = b.format.fit_rounds;
  f.q_max = static_cast<float>(b.q_max);
  f.scale_steps = b.scale_steps;
  return f;
}

int64_t type_bytes(int32_t type) { return type == LEAPQUANT_FP32 ? 4 : 2; }

// Strides of 0 stand for packed, from the inside out. heads_last: the last axis holds the heads.
Rows rows_of(const leapquant_tensor& tensor, int64_t tokens, int64_t sub_steps, int64_t heads,
             int64_t last, bool heads_last = false) {
  const auto given_or = [](int64_t given, int64_t packed) { return given != 0 ? given : packed; };
  Rows rows = {};
  rows.data = static_cast<char*>(const_cast<void*>(tensor.data));
  rows.type = tensor.type;
  const int64_t row = last * type_bytes(tensor.type);
  rows.head = heads_last ? row : given_or(tensor.head_stride_bytes, row);
  rows.sub_step = given_or(tensor.sub_step_stride_bytes, heads * rows.head);
  rows.token = given_or(tensor.token_stride_bytes, sub_steps * rows.sub_step);
  rows.sequence = given_or(tensor.sequence_stride_bytes, tokens * rows.token);
  return rows;
}

bool needs_tables(const Layout& layout) {
  return layout.classes.size() > 1 || layout.shape.decay == LEAPQUANT_DECAY_CONSTANT;
}

}  // namespace

void fill_layout(const Layout& layout, const leapquant_pool& pool, const leapquant_launch& launch,
                 Call* call) {
  const leapquant_shape& shape = layout.shape;
  Call& c = *call;
  c = {};
  c.num_classes = static_cast<int32_t>(layout.classes.size());
  for (size_t i = 0; i < layout.classes.size(); ++i) c.classes[i] = head_format(layout.classes[i]);
  c.num_heads = shape.num_v_heads;
  c.k_heads = shape.num_k_heads;
  c.v_heads = shape.num_v_heads;
  c.group = layout.group;
  c.k_dim = shape.head_k_dim;
  c.v_dim = shape.head_v_dim;
  c.decay = shape.decay;
  c.delta_rule = shape.delta_rule;
  c.sub_steps = shape.sub_steps;
  c.window = layout.window_tokens;
  c.stagger = layout.classes[0].format.stagger;
  c.first_k_head = shape.first_k_head;
  c.total_k_heads = shape.total_k_heads;
  c.per_step = layout.per_step ? 1 : 0;
  c.ring_tokens = layout.window.ring_tokens;
  c.decay_bytes = layout.window.decay_bytes;
  c.decay_count = layout.window.decay_count;
  c.corrections = layout.window.corrections;
  c.log_decays = layout.window.log_decays;
  c.key_head_stride = layout.window.key_head_stride;
  c.correction_head_stride = layout.window.correction_head_stride;
  c.decay_head_stride = layout.window.decay_head_stride;
  c.states = static_cast<char*>(pool.states);
  c.windows = static_cast<char*>(pool.windows);
  c.base = pool.base;
  c.health = pool.health;
  c.state_stride = pool.state_stride_bytes;
  c.window_stride = pool.window_stride_bytes;
  c.num_state_slots = pool.num_state_slots;
  c.num_window_slots = layout.window.bytes > 0 ? pool.num_window_slots : 0;
  c.writes_slots = 1;
  c.reads_records = 1;
  c.scratch = plan_scratch(layout);
  c.scratch.workspace = static_cast<char*>(launch.workspace);
}

void fill_tensors(const Layout& layout, const leapquant_inputs& in, const leapquant_output& output,
                  int64_t tokens, Call* call) {
  const leapquant_shape& shape = layout.shape;
  const int64_t n = shape.sub_steps;
  const int64_t k_heads = shape.num_k_heads;
  const int64_t v_heads = shape.num_v_heads;
  const auto given_or = [](float given, float other) { return given != 0.0f ? given : other; };
  Inputs& i = call->inputs;
  i.q = rows_of(in.q, tokens, 1, k_heads, shape.head_k_dim);
  i.k = rows_of(in.k, tokens, n, k_heads, shape.head_k_dim);
  i.v = rows_of(in.v, tokens, n, v_heads, shape.head_v_dim);
  i.read_key = rows_of(in.read_key, tokens, n, k_heads, shape.head_k_dim);
  if (shape.decay == LEAPQUANT_DECAY_SCALAR) {
    i.log_decay = rows_of(in.log_decay, tokens, 1, v_heads, 1, true);
  } else if (shape.decay == LEAPQUANT_DECAY_VECTOR) {
    i.log_decay = rows_of(in.log_decay, tokens, 1, v_heads, shape.head_k_dim);
  }
  i.beta = rows_of(in.beta, tokens, n, v_heads, 1, true);
  i.gate = in.gate;
  i.sigmoid_beta = in.beta_kind == LEAPQUANT_BETA_SIGMOID;
  i.l2norm = in.qk_l2norm;
  i.read_before_update = in.read_before_update;
  i.a_log = in.a_log;
  i.dt_bias = in.dt_bias;
  i.bonus = in.bonus;
  i.skip = in.skip;
  i.lower_bound = in.lower_bound;
  i.beta_scale = given_or(in.beta_scale, 1.0f);
  i.l2norm_eps = given_or(in.l2norm_eps, 1e-6f);
  i.q_scale = given_or(in.q_scale, 1.0f);
  leapquant_tensor out = {};
  out.data = output.data;
  out.type = output.type;
  out.sequence_stride_bytes = output.sequence_stride_bytes;
  out.token_stride_bytes = output.token_stride_bytes;
  out.head_stride_bytes = output.head_stride_bytes;
  call->output = rows_of(out, tokens, 1, v_heads, shape.head_v_dim);
}

int32_t fill_heads(const Layout& layout, int32_t first_head, Call* call) {
  const int32_t left = layout.shape.num_v_heads - first_head;
  call->first_head = first_head;
  call->num_heads = needs_tables(layout) ? std::min(left, kHeadsPerLaunch) : left;
  for (int32_t i = 0; needs_tables(layout) && i < call->num_heads; ++i) {
    const auto head = static_cast<size_t>(first_head + i);
    call->head_class[i] = layout.head_class[head];
    call->head_offset[i] = static_cast<int32_t>(layout.head_offset[head] / 16);
    if (!layout.decays.empty()) call->head_decay[i] = layout.decays[head];
  }
  return call->num_heads;
}

}  // namespace leapquant::cuda
