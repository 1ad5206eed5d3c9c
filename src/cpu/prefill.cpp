// SPDX-License-Identifier: Apache-2.0
//
// Prefill: first every sequence's positions and inputs are checked, in slices of its tokens; then
// each pair of sequence and value head runs on its own, from the state at its position through its
// chunks and checkpoints to one cold fold. The only per-target code is the run of one stretch.
#include "cpu/prefill.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/pool.h"
#include "cpu/backend_faults.h"
#include "cpu/backend_hooks.h"
#include "cpu/codec.h"
#include "cpu/fold.h"
#include "cpu/inputs.h"
#include "cpu/prefill_chunk.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/prefill.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "hwy/contrib/math/math-inl.h"

#include "cpu/prefill_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {
namespace {

static_assert(kStrip == kStripColumns);

// Log decays to factors, in place; -inf gives 0. The array has room for whole vectors.
void exponentiate(float* values, int32_t count) {
  const FloatTag d;
  for (int32_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::Exp(d, hn::LoadU(d, values + i)), d, values + i);
  }
}

// Runs the tokens first .. end - 1 of a span (relative to it) over `state` [K, V].
void run_stretch(const Layout& layout, const InputSpan& span, const leapquant_output& output,
                 int32_t v_head, int32_t first, int32_t end, float* state, std::byte* worker) {
  const leapquant_inputs& inputs = *span.inputs;
  const ChunkScratch scratch = chunk_scratch(layout, worker);
  ChunkShape shape = chunk_shape(layout);
  shape.read_keys_given = inputs.read_key.data != nullptr;
  shape.read_before_update = inputs.read_before_update != 0;
  shape.value_hooks = has_value_hooks(inputs);
  float* read_keys = shape.read_keys_given ? scratch.read_keys : nullptr;
  state_to_strips(state, shape.k_dim, shape.v_dim, scratch.state);
  for (int32_t t = first; t < end; t += shape.chunk_tokens) {
    const int32_t tokens = std::min(shape.chunk_tokens, end - t);
    prepare_key_head(layout, span, v_head / layout.group, t, tokens, scratch.queries, scratch.keys,
                     read_keys);
    prepare_value_head(layout, span, v_head, t, tokens, scratch.values, scratch.decays,
                       scratch.betas);
    exponentiate(scratch.decays, shape.vector_decay ? tokens * shape.key_stride : tokens);
    for (int32_t i = 0; shape.value_hooks && i < tokens; ++i) {
      const float* q = scratch.queries + static_cast<int64_t>(i) * shape.key_stride;
      const float* k = scratch.keys + static_cast<int64_t>(i) * shape.sub_steps * shape.key_stride;
      scratch.value_weights[i] = hook_weight(inputs, v_head, shape.k_dim, q, k);
    }
    run_chunk(shape, tokens, scratch);
    for (int32_t i = 0; i < tokens; ++i) {
      store_output(layout, output, span.tokens_axis, 0, span.first_token + t + i, v_head,
                   scratch.outputs + static_cast<int64_t>(i) * shape.value_stride);
    }
  }
  strips_to_state(scratch.state, shape.k_dim, shape.v_dim, state);
}

}  // namespace
}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(run_stretch);

struct Call {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_prefill_args& args;
  const leapquant_launch& launch;
  size_t worker_bytes;
  int32_t slices;  // of a sequence's tokens, for the check of the inputs
};

InputSpan span_of(const leapquant_prefill_args& args, int32_t sequence) {
  InputSpan span;
  span.inputs = &args.inputs;
  span.tokens_axis = args.token_offsets[args.batch];
  span.first_token = args.token_offsets[sequence];
  span.num_tokens = args.token_offsets[sequence + 1] - args.token_offsets[sequence];
  return span;
}

// Task: one slice of one sequence's tokens. Of several faults the smallest status stays, whatever
// the order in which the slices end.
void check_slice(void* argument, int32_t task, int32_t) {
  const Call& call = *static_cast<const Call*>(argument);
  const int32_t sequence = task / call.slices;
  const int32_t slice = task % call.slices;
  if (call.args.state_slots[sequence] < 0) return;
  InputSpan span = span_of(call.args, sequence);
  const int64_t begin = int64_t{span.num_tokens} * slice / call.slices;
  const int64_t end = int64_t{span.num_tokens} * (slice + 1) / call.slices;
  if (begin == end) return;
  span.first_token += begin;
  span.num_tokens = static_cast<int32_t>(end - begin);
  const int32_t fault = check_inputs(call.layout, span);
  if (fault == LEAPQUANT_OK) return;
  std::atomic_ref<int32_t> status(call.args.status[sequence]);
  int32_t seen = status.load(std::memory_order_relaxed);
  while ((seen == LEAPQUANT_OK || fault < seen) &&
         !status.compare_exchange_weak(seen, fault, std::memory_order_relaxed)) {
  }
}

// A worker's scratch: the chunk's, the state as a plain matrix, the fold's.
struct HeadScratch {
  std::byte* chunk;
  float* state;
  float* consumed;  // a second matrix, which the encoder may destroy
  std::byte* fold;
};

size_t matrix_bytes(const Layout& layout) {
  const size_t count =
      static_cast<size_t>(layout.shape.head_k_dim) * static_cast<size_t>(layout.shape.head_v_dim);
  return (count * sizeof(float) + 63) / 64 * 64;
}

HeadScratch head_scratch(const Layout& layout, std::byte* start) {
  HeadScratch scratch;
  scratch.chunk = start;
  start += chunk_scratch_bytes(layout);
  scratch.state = reinterpret_cast<float*>(start);
  start += matrix_bytes(layout);
  scratch.consumed = reinterpret_cast<float*>(start);
  scratch.fold = start + matrix_bytes(layout);
  return scratch;
}

// Encodes the state into a checkpoint's slot, which is filled anew, its health too; with `through`
// the state becomes what the slot holds.
void take_checkpoint(const Call& call, int32_t v_head, const leapquant_checkpoint& checkpoint,
                     const HeadScratch& scratch) {
  const Layout& layout = call.layout;
  const leapquant_pool& pool = call.pool;
  const BoundaryLayout& head = layout.head(v_head);
  const int32_t slot = checkpoint.state_slot;
  leapquant_health* health = health_of(layout, pool, slot, v_head);
  if (health != nullptr) *health = {};
  std::byte* boundary = boundary_state(layout, pool, slot, v_head);
  std::memcpy(scratch.consumed, scratch.state, matrix_bytes(layout));
  encode_boundary(head, FitKind::kCold, nullptr, scratch.consumed, boundary, health,
                  reinterpret_cast<float*>(scratch.fold));
  base_of(layout, pool, slot, v_head) = checkpoint.position;
  if (call.args.through != 0) decode_boundary(head, boundary, scratch.state);
}

// Makes the state of the last checkpoint, taken at the sequence's end, the sequence's own.
void adopt_checkpoint(const Call& call, int32_t sequence, int32_t v_head,
                      const leapquant_checkpoint& checkpoint) {
  const Layout& layout = call.layout;
  const leapquant_pool& pool = call.pool;
  const int32_t slot = call.args.state_slots[sequence];
  std::memcpy(boundary_state(layout, pool, slot, v_head),
              boundary_state(layout, pool, checkpoint.state_slot, v_head),
              static_cast<size_t>(layout.head(v_head).bytes));
  leapquant_health* health = health_of(layout, pool, slot, v_head);
  if (health == nullptr) return;
  const uint32_t flags = health->flags;
  *health = *health_of(layout, pool, checkpoint.state_slot, v_head);
  health->flags |= flags;
}

// The checkpoints of one sequence: a range of the sorted array.
struct Checkpoints {
  const leapquant_checkpoint* begin;
  const leapquant_checkpoint* end;
};

Checkpoints checkpoints_of(const leapquant_prefill_args& args, int32_t sequence) {
  if (args.num_checkpoints == 0) return {nullptr, nullptr};
  const auto before = [](const leapquant_checkpoint& checkpoint, int32_t index) {
    return checkpoint.sequence < index;
  };
  const leapquant_checkpoint* end = args.checkpoints + args.num_checkpoints;
  return {std::lower_bound(args.checkpoints, end, sequence, before),
          std::lower_bound(args.checkpoints, end, sequence + 1, before)};
}

void zero_outputs(const Call& call, const InputSpan& span, int32_t v_head) {
  for (int32_t t = 0; t < span.num_tokens; ++t) {
    store_output(call.layout, call.args.output, span.tokens_axis, 0, span.first_token + t, v_head,
                 nullptr);
  }
}

// Task: one value head of one sequence, whose status is settled.
void run_head(void* argument, int32_t task, int32_t worker) {
  const Call& call = *static_cast<const Call*>(argument);
  const Layout& layout = call.layout;
  const leapquant_pool& pool = call.pool;
  const leapquant_prefill_args& args = call.args;
  const int32_t sequence = task / layout.shape.num_v_heads;
  const int32_t v_head = task % layout.shape.num_v_heads;
  const InputSpan span = span_of(args, sequence);
  const int32_t slot = args.state_slots[sequence];
  if (slot < 0 || args.status[sequence] != LEAPQUANT_OK) {
    zero_outputs(call, span, v_head);
    return;
  }
  if (span.num_tokens == 0) return;

  const HeadScratch scratch =
      head_scratch(layout, worker_scratch(call.launch, call.worker_bytes, worker));
  const int32_t start = args.positions[sequence];
  const int32_t end = start + span.num_tokens;
  std::byte* boundary = boundary_state(layout, pool, slot, v_head);
  const int32_t window_slot = window_slot_of(pool, args.state_slots, args.window_slots, sequence);
  const WindowView window =
      window_slot < 0 ? WindowView{} : window_view(layout, pool, window_slot, v_head);
  rebuild_state(layout, v_head, boundary, window, base_of(layout, pool, slot, v_head), start,
                scratch.state, scratch.fold);

  const auto run = [&](int32_t from, int32_t to) {
    LEAPQUANT_CPU_DISPATCH(run_stretch)
    (layout, span, args.output, v_head, from - start, to - start, scratch.state, scratch.chunk);
  };
  int32_t position = start;
  const Checkpoints checkpoints = checkpoints_of(args, sequence);
  for (const leapquant_checkpoint* c = checkpoints.begin; c != checkpoints.end; ++c) {
    run(position, c->position);
    position = c->position;
    take_checkpoint(call, v_head, *c, scratch);
  }
  if (position == end && checkpoints.begin != checkpoints.end) {
    adopt_checkpoint(call, sequence, v_head, checkpoints.end[-1]);
  } else {
    run(position, end);
    encode_boundary(layout.head(v_head), FitKind::kCold, nullptr, scratch.state, boundary,
                    health_of(layout, pool, slot, v_head), reinterpret_cast<float*>(scratch.fold));
  }
  base_of(layout, pool, slot, v_head) = end;
}

}  // namespace

size_t prefill_worker_bytes(const Layout& layout) {
  size_t fold = fold_scratch_bytes(layout);
  for (const BoundaryLayout& head : layout.classes)
    fold = std::max(fold, encode_scratch_bytes(head));
  return chunk_scratch_bytes(layout) + 2 * matrix_bytes(layout) + (fold + 63) / 64 * 64;
}

Status prefill(const Layout& layout, const leapquant_pool& pool, const leapquant_prefill_args& args,
               const leapquant_launch& launch) {
  const int32_t workers = launch.runner == nullptr ? 1 : launch.runner->num_workers;
  // A few slices per worker, so that one long sequence is checked by all of them.
  const int32_t slices = workers == 1 ? 1 : 4 * workers;
  Call call = {layout, pool, args, launch, prefill_worker_bytes(layout), slices};
  for (int32_t i = 0; i < args.batch; ++i) {
    const bool idle = args.state_slots[i] < 0 || span_of(args, i).num_tokens == 0;
    args.status[i] =
        idle ? LEAPQUANT_OK
             : position_fault(layout, pool, args.state_slots[i],
                              window_slot_of(pool, args.state_slots, args.window_slots, i),
                              args.positions[i], 0);
  }
  run_tasks(launch, args.batch * slices, check_slice, &call);
  run_tasks(launch, args.batch * layout.shape.num_v_heads, run_head, &call);
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
