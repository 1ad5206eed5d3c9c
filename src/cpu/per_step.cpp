// SPDX-License-Identifier: Apache-2.0
//
// Per-step decode. Every sequence is checked first; then pairs of sequence and value head are
// shared out in runs of neighbours, so that a worker can touch the next head's state while it
// computes.
#include "cpu/per_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/numeric.h"
#include "core/pool.h"
#include "cpu/backend_hooks.h"
#include "cpu/codec.h"
#include "cpu/decode.h"
#include "cpu/inputs.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#ifndef LEAPQUANT_CPU_PER_STEP_ONCE_
#define LEAPQUANT_CPU_PER_STEP_ONCE_
namespace leapquant::cpu {
namespace {

// A worker's scratch. n sub-steps, T tokens of the call; rows of K' = padded(K), V' = padded(V).
struct StepScratch {
  float* q;              // [T][K']
  float* keys;           // [T][n][K']
  float* read_keys;      // [T][n][K']
  float* values;         // [T][n][V']
  float* log_decays;     // [T] or [T][K']
  float* betas;          // [T][n]
  float* decay;          // [K'] factors of the token at hand
  float* ones;           // [K' or V'] of the sub-steps after the first
  float* decayed_key;    // [K']
  float* decayed_query;  // [K']
  float* correction;     // [V']
  float* read;           // [V']
  float* output;         // [V'], zero past V
  float* ordered[3];     // [V'] each, in column order: correction and two sums
  float* state;          // [K, V] of formats that are not advanced in place
  float* encode;
};

// One value head of one sequence.
struct StepHead {
  const Layout* layout;
  const leapquant_inputs* inputs;
  int32_t v_head;
  int32_t num_tokens;
  std::byte* boundary;
  leapquant_health* health;  // may be null
  const std::byte* next;     // FP32 or BF16 state that this worker will need next, or null
  int64_t next_bytes;
};

// What the caller does with an output row.
struct OutputRow {
  const Layout* layout;
  const leapquant_decode_args* args;
  int32_t sequence;
  int32_t v_head;
  void store(int32_t token, const float* value) const {
    store_output(*layout, args->output, args->tokens, sequence, token, v_head, value);
  }
};

}  // namespace
}  // namespace leapquant::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/per_step.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "hwy/contrib/math/math-inl.h"

#include "cpu/gemm-inl.h"
#include "cpu/per_step_passes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {
namespace {

// scratch.decay, .decayed_key and .decayed_query of token t.
void prepare_decay(const StepHead& head, int32_t t, const StepScratch& scratch) {
  const FloatTag d;
  const leapquant_shape& shape = head.layout->shape;
  const int32_t stride = padded(shape.head_k_dim);
  const bool vector = shape.decay == LEAPQUANT_DECAY_VECTOR;
  const float* logs = scratch.log_decays + (vector ? int64_t{t} * stride : t);
  const float* q = scratch.q + int64_t{t} * stride;
  const float* key = scratch.keys + int64_t{t} * shape.sub_steps * stride;
  FloatVec factor = hn::Exp(d, hn::Set(d, logs[0]));
  for (int32_t i = 0; i < stride; i += kLanes) {
    if (vector) factor = hn::Exp(d, hn::LoadU(d, logs + i));
    hn::StoreU(factor, d, scratch.decay + i);
    hn::StoreU(hn::Mul(factor, hn::LoadU(d, key + i)), d, scratch.decayed_key + i);
    hn::StoreU(hn::Mul(factor, hn::LoadU(d, q + i)), d, scratch.decayed_query + i);
  }
}

// correction = beta (value - read), or beta value where read is null.
void correct(const float* value, const float* read, float beta, int32_t v_dim, float* correction) {
  for (int32_t c = 0; c < v_dim; ++c) {
    correction[c] = beta * (read == nullptr ? value[c] : value[c] - read[c]);
  }
}

// Advances `state` [K, V] by token t; scratch.output becomes its output. What is known of the state
// afterwards is added to `sums`, which the last pass alone may touch: it sees every entry.
template <class T>
void advance_token(const StepHead& head, int32_t t, T* state, const StepScratch& scratch,
                   Ahead& ahead, UpdateSums& sums) {
  const leapquant_shape& shape = head.layout->shape;
  const int32_t k_dim = shape.head_k_dim;
  const int32_t v_dim = shape.head_v_dim;
  const int32_t n = shape.sub_steps;
  const int64_t key_stride = padded(k_dim);
  const int64_t value_stride = padded(v_dim);
  const float* q = scratch.q + t * key_stride;
  const float* keys = scratch.keys + t * n * key_stride;
  const bool given = head.inputs->read_key.data != nullptr;
  const float* read_keys = given ? scratch.read_keys + t * n * key_stride : keys;
  const float* values = scratch.values + t * n * value_stride;
  const float* betas = scratch.betas + int64_t{t} * n;
  const bool before_update = head.inputs->read_before_update != 0;
  const bool delta = shape.delta_rule != 0;
  prepare_decay(head, t, scratch);

  // Reads of the state before the token: the first sub-step's, and the output's where it needs no
  // later state or where its only later part is <k, q> u.
  constexpr bool kOrdered = sizeof(T) == 2;  // column order differs from the plain one
  float* correction = kOrdered ? scratch.ordered[0] : scratch.correction;
  float* read = kOrdered ? scratch.ordered[1] : scratch.read;
  float* output = kOrdered ? scratch.ordered[2] : scratch.output;
  const float* first = given ? read_keys : scratch.decayed_key;
  const float* query = before_update ? q : scratch.decayed_query;
  const bool output_first = before_update || (delta && n == 1);
  if (delta && output_first) {
    const float* x[2] = {first, query};
    float* reads[2] = {read, output};
    read_pass<2>(state, k_dim, v_dim, x, reads);
  } else if (delta) {
    read_pass<1>(state, k_dim, v_dim, &first, &read);
  } else if (output_first) {
    read_pass<1>(state, k_dim, v_dim, &query, &output);
  }

  for (int32_t j = 0; j < n; ++j) {
    const float* key = keys + j * key_stride;
    const float* decay = j == 0 ? scratch.decay : scratch.ones;
    if (kOrdered && delta) from_column_order(read, v_dim, scratch.read);
    correct(values + j * value_stride, delta ? scratch.read : nullptr, betas[j], v_dim,
            scratch.correction);
    if (kOrdered) to_column_order(scratch.correction, v_dim, correction);
    UpdateSums not_last;
    UpdateSums& figures = j + 1 == n ? sums : not_last;
    Ahead nothing;
    Ahead& touched = j + 1 == n ? ahead : nothing;
    if (j + 1 < n && delta) {
      update_pass<true>(state, k_dim, v_dim, decay, key, correction,
                        read_keys + (j + 1) * key_stride, read, figures, touched);
    } else if (j + 1 == n && !output_first) {
      update_pass<true>(state, k_dim, v_dim, decay, key, correction, q, output, figures, touched);
    } else {
      update_pass<false>(state, k_dim, v_dim, decay, key, correction, nullptr, nullptr, figures,
                         touched);
    }
  }
  if (kOrdered) from_column_order(output, v_dim, scratch.output);

  if (output_first && !before_update) {  // one sub-step: o = S^T (a . q) + <k, q> u
    const float product = dot_product(keys, q, padded(k_dim));
    for (int32_t c = 0; c < v_dim; ++c) scratch.output[c] += product * scratch.correction[c];
  }
  if (has_value_hooks(*head.inputs)) {
    const float weight = hook_weight(*head.inputs, head.v_head, k_dim, q, keys);
    for (int32_t c = 0; c < v_dim; ++c) scratch.output[c] += weight * values[c];
  }
}

// Entries that are not finite become zero; true when there was one.
template <class T>
bool clear_non_finite(T* state, int64_t count) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) {
    float value;
    if constexpr (sizeof(T) == 2) {
      value = bf16_to_float(state[i]);
    } else {
      value = state[i];
    }
    if (std::isfinite(value)) continue;
    state[i] = 0;
    found = true;
  }
  return found;
}

template <class T>
void advance_in_place(const StepHead& head, const StepScratch& scratch, const OutputRow& output) {
  const FloatTag d;
  const leapquant_shape& shape = head.layout->shape;
  const int64_t count = int64_t{shape.head_k_dim} * shape.head_v_dim;
  T* state = reinterpret_cast<T*>(head.boundary);
  Ahead next = ahead_of_state(head.next, head.next_bytes);
  for (int32_t t = 0; t < head.num_tokens; ++t) {
    Ahead none;
    UpdateSums sums;
    advance_token(head, t, state, scratch, t + 1 == head.num_tokens ? next : none, sums);
    output.store(t, scratch.output);
    // An entry that is not finite shows in the output of a pass that reads what it leaves, and in
    // the total of one that does not.
    const float energy = sum_of_lanes(hn::Load(d, sums.energy));
    float total = energy + sum_of_lanes(hn::Load(d, sums.total));
    total += dot_product(scratch.output, scratch.ones, padded(shape.head_v_dim));
    const bool bad = !std::isfinite(total) && clear_non_finite(state, count);
    if (head.health == nullptr) continue;
    head.health->residual_max = 0.0f;
    head.health->compensator_energy = 0.0f;
    head.health->fold_error = 0.0f;
    if (sizeof(T) == 2 && energy > 0.0f && std::isfinite(energy)) {
      head.health->fold_error = std::sqrt(sum_of_lanes(hn::Load(d, sums.error)) / energy);
    }
    if (bad) head.health->flags |= LEAPQUANT_HEALTH_NON_FINITE;
  }
}

// Any format: decode, advance in FP32, encode, token by token.
void advance_encoded(const StepHead& head, const StepScratch& scratch, const OutputRow& output) {
  const BoundaryLayout& boundary = head.layout->head(head.v_head);
  for (int32_t t = 0; t < head.num_tokens; ++t) {
    Ahead none;
    UpdateSums unused;
    decode_boundary(boundary, head.boundary, scratch.state);
    advance_token(head, t, scratch.state, scratch, none, unused);
    output.store(t, scratch.output);
    encode_boundary(boundary, FitKind::kFormat, head.boundary, scratch.state, head.boundary,
                    head.health, scratch.encode);
  }
}

void advance_head(const StepHead& head, const StepScratch& scratch, const OutputRow& output) {
  const int32_t bits = head.layout->head(head.v_head).format.payload_bits;
  if (bits == 32) {
    advance_in_place<float>(head, scratch, output);
  } else if (bits == 16 && head.layout->shape.sub_steps == 1) {
    advance_in_place<uint16_t>(head, scratch, output);
  } else {
    advance_encoded(head, scratch, output);
  }
}

}  // namespace
}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(advance_head);

size_t carve(const Layout& layout, std::byte* start, StepScratch* scratch) {
  const leapquant_shape& shape = layout.shape;
  const int32_t tokens = shape.max_tokens;
  const int32_t rows = tokens * shape.sub_steps;
  const int32_t k = padded(shape.head_k_dim);
  const int32_t v = padded(shape.head_v_dim);
  const bool vector = shape.decay == LEAPQUANT_DECAY_VECTOR;
  size_t bytes = 0;
  const auto take = [&](size_t count) {
    float* array = start == nullptr ? nullptr : reinterpret_cast<float*>(start + bytes);
    bytes += (count * sizeof(float) + 63) / 64 * 64;
    return array;
  };
  const auto rows_of = [](int32_t count, int32_t stride) {
    return static_cast<size_t>(count) * static_cast<size_t>(stride);
  };
  scratch->q = take(rows_of(tokens, k));
  scratch->keys = take(rows_of(rows, k));
  scratch->read_keys = take(rows_of(rows, k));
  scratch->values = take(rows_of(rows, v));
  scratch->log_decays = take(rows_of(tokens, vector ? k : 1));
  scratch->betas = take(rows_of(rows, 1));
  scratch->decay = take(rows_of(1, k));
  scratch->ones = take(rows_of(1, std::max(k, v)));
  scratch->decayed_key = take(rows_of(1, k));
  scratch->decayed_query = take(rows_of(1, k));
  scratch->correction = take(rows_of(1, v));
  scratch->read = take(rows_of(1, v));
  scratch->output = take(rows_of(1, v));
  for (float*& ordered : scratch->ordered) ordered = take(rows_of(1, v));
  size_t encode = 0;
  bool encoded = false;
  for (const BoundaryLayout& head : layout.classes) {
    if (head.format.payload_bits == 32) continue;
    encoded = true;
    encode = std::max(encode, encode_scratch_bytes(head));
  }
  scratch->state = take(encoded ? rows_of(shape.head_k_dim, shape.head_v_dim) : 0);
  scratch->encode = take((encode + sizeof(float) - 1) / sizeof(float));
  return bytes;
}

struct Call {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_decode_args& args;
  const leapquant_launch& launch;
  size_t worker_bytes;
  int32_t runs;  // tasks that share the heads of all sequences
};

int32_t num_tokens_of(const leapquant_decode_args& args, int32_t sequence) {
  return args.num_tokens == nullptr ? args.tokens : args.num_tokens[sequence];
}

bool is_active(const leapquant_decode_args& args, int32_t sequence) {
  return args.state_slots[sequence] >= 0 && args.status[sequence] == LEAPQUANT_OK &&
         num_tokens_of(args, sequence) > 0;
}

// Task: the check of one sequence, and the output rows that it leaves zero.
void check_sequence(void* argument, int32_t sequence, int32_t) {
  const Call& call = *static_cast<const Call*>(argument);
  const leapquant_decode_args& args = call.args;
  const int32_t num_tokens = num_tokens_of(args, sequence);
  args.status[sequence] = LEAPQUANT_OK;
  if (args.state_slots[sequence] >= 0 && num_tokens > 0) {
    args.status[sequence] = decode_fault(call.layout, call.pool, args, sequence, num_tokens);
  }
  zero_output_rows(call.layout, args, sequence, is_active(args, sequence) ? num_tokens : 0);
}

// Asks the caches for one row of a head in a call's tensor or output, where the next head will look
// first. Strides as in leapquant_tensor.
void touch_row(const void* data, int64_t row_bytes, int64_t sequence_offset, int64_t head_offset) {
  const char* row = static_cast<const char*>(data) + sequence_offset + head_offset;
  for (int64_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(row + byte, 1, 3);
}

void touch_value_rows(const Layout& layout, const leapquant_decode_args& args, int32_t sequence,
                      int32_t v_head) {
  const leapquant_shape& shape = layout.shape;
  const leapquant_tensor& v = args.inputs.v;
  const auto given_or = [](int64_t stride, int64_t packed) {
    return stride != 0 ? stride : packed;
  };
  const int64_t v_row = int64_t{shape.head_v_dim} * (v.type == LEAPQUANT_FP32 ? 4 : 2);
  const int64_t v_stride = given_or(v.head_stride_bytes, v_row);
  const int64_t sub_step = given_or(v.sub_step_stride_bytes, shape.num_v_heads * v_stride);
  const int64_t token = given_or(v.token_stride_bytes, shape.sub_steps * sub_step);
  touch_row(v.data, v_row, sequence * given_or(v.sequence_stride_bytes, args.tokens * token),
            v_head * v_stride);
  const leapquant_output& o = args.output;
  const int64_t o_row = int64_t{shape.head_v_dim} * (o.type == LEAPQUANT_FP32 ? 4 : 2);
  const int64_t o_stride = given_or(o.head_stride_bytes, o_row);
  const int64_t o_token = given_or(o.token_stride_bytes, shape.num_v_heads * o_stride);
  touch_row(o.data, o_row, sequence * given_or(o.sequence_stride_bytes, args.tokens * o_token),
            v_head * o_stride);
}

// Prepares the inputs of one head and advances it. key_of: the pair whose keys the scratch holds.
void run_head(const Call& call, int64_t item, int64_t end, const StepScratch& scratch,
              int64_t* key_of) {
  const Layout& layout = call.layout;
  const leapquant_decode_args& args = call.args;
  const int32_t heads = layout.shape.num_v_heads;
  const int32_t sequence = static_cast<int32_t>(item / heads);
  const int32_t v_head = static_cast<int32_t>(item % heads);
  if (!is_active(args, sequence)) return;
  const int32_t slot = args.state_slots[sequence];

  InputSpan span;
  span.inputs = &args.inputs;
  span.tokens_axis = args.tokens;
  span.sequence = sequence;
  span.num_tokens = num_tokens_of(args, sequence);
  const int32_t k_head = v_head / layout.group;
  const int64_t key = int64_t{sequence} * layout.shape.num_k_heads + k_head;
  if (*key_of != key) {
    prepare_key_head(layout, span, k_head, 0, span.num_tokens, scratch.q, scratch.keys,
                     args.inputs.read_key.data == nullptr ? nullptr : scratch.read_keys);
    *key_of = key;
  }
  prepare_value_head(layout, span, v_head, 0, span.num_tokens, scratch.values, scratch.log_decays,
                     scratch.betas);

  StepHead head = {&layout,
                   &args.inputs,
                   v_head,
                   span.num_tokens,
                   boundary_state(layout, call.pool, slot, v_head),
                   health_of(layout, call.pool, slot, v_head),
                   nullptr,
                   0};
  const int64_t next = item + 1;
  const int32_t next_sequence = static_cast<int32_t>(next / heads);
  if (next < end && is_active(args, next_sequence)) {
    const int32_t next_head = static_cast<int32_t>(next % heads);
    touch_value_rows(layout, args, next_sequence, next_head);
    if (!layout.head(next_head).quantised()) {
      head.next = boundary_state(layout, call.pool, args.state_slots[next_sequence], next_head);
      head.next_bytes = layout.head(next_head).bytes;
    }
  }
  LEAPQUANT_CPU_DISPATCH(advance_head)(head, scratch, {&layout, &args, sequence, v_head});
  base_of(layout, call.pool, slot, v_head) = args.positions[sequence] + span.num_tokens;
}

// Task: a run of neighbouring heads.
void run_heads(void* argument, int32_t task, int32_t worker) {
  const Call& call = *static_cast<const Call*>(argument);
  StepScratch scratch;
  carve(call.layout, worker_scratch(call.launch, call.worker_bytes, worker), &scratch);
  const int32_t k_stride = padded(call.layout.shape.head_k_dim);
  const int32_t v_stride = padded(call.layout.shape.head_v_dim);
  std::fill(scratch.ones, scratch.ones + std::max(k_stride, v_stride), 1.0f);
  std::fill(scratch.output, scratch.output + v_stride, 0.0f);
  const int64_t items = int64_t{call.args.batch} * call.layout.shape.num_v_heads;
  const int64_t end = items * (task + 1) / call.runs;
  int64_t key_of = -1;
  for (int64_t item = items * task / call.runs; item < end; ++item) {
    run_head(call, item, end, scratch, &key_of);
  }
}

}  // namespace

size_t per_step_worker_bytes(const Layout& layout) {
  StepScratch unused;
  return carve(layout, nullptr, &unused);
}

Status decode_per_step(const Layout& layout, const leapquant_pool& pool,
                       const leapquant_decode_args& args, const leapquant_launch& launch) {
  const int64_t items = int64_t{args.batch} * layout.shape.num_v_heads;
  const int32_t workers = launch.runner == nullptr ? 1 : launch.runner->num_workers;
  // A few runs per worker even out their speeds; long runs keep the prefetching going.
  const int64_t runs = std::min<int64_t>(items, workers == 1 ? 1 : 4 * workers);
  Call call = {
      layout, pool, args, launch, per_step_worker_bytes(layout), static_cast<int32_t>(runs)};
  run_tasks(launch, args.batch, check_sequence, &call);
  run_tasks(launch, call.runs, run_heads, &call);
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
