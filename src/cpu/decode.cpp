// SPDX-License-Identifier: Apache-2.0
//
// A decode call: first every sequence is checked, then its heads are folded where due and decoded.
// Work is cut by sequence and head, never inside a sum, so results do not depend on the cut.
#include "cpu/decode.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/position.h"
#include "cpu/backend_faults.h"
#include "cpu/fold.h"
#include "cpu/inputs.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/decode_head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// True where a key passes the FP16 range.
bool round_keys_target(const Layout& layout, const DecodeScratch& scratch, int32_t tokens) {
  return round_keys(layout, scratch, tokens);
}

void decode_head_target(HeadCall& call, const DecodeScratch& scratch, Ahead* ahead,
                        const leapquant_decode_args& args, int32_t sequence) {
  const HeadContext c(call, scratch);
  prepare_head(c, ahead);
  RankRows rows;
  rank_rows(c, Side::kValue, &rows);
  for (int32_t t = 0; t < call.tokens; ++t) {
    in_threes(c.reads, [&](int32_t s, auto size) {
      add_rows<decltype(size)::value>(c, rows, t, s, c.records_at(t), ahead);
    });
    make_corrections(c, t);
    make_output(c, t);
    append_records(c, t);
    store_output(call.layout, args.output, args.tokens, sequence, t, call.v_head, scratch.output);
  }
  ahead->fetch(kAllLines);
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(round_keys_target);
HWY_EXPORT(decode_head_target);

int32_t tokens_of(const leapquant_decode_args& args, int32_t sequence) {
  return args.num_tokens == nullptr ? args.tokens : args.num_tokens[sequence];
}

// A call cut into units: a key head of a sequence with `unit_heads` of its value heads.
struct DecodeCall {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_decode_args& args;
  const leapquant_launch& launch;
  size_t worker_bytes;
  int32_t unit_heads;
  int32_t units_per_sequence;
  int32_t units_per_task;
  int32_t num_units;

  bool idle(int32_t sequence) const {
    return args.state_slots[sequence] < 0 || args.status[sequence] != LEAPQUANT_OK ||
           tokens_of(args, sequence) == 0;
  }

  void check(int32_t sequence) const {
    args.status[sequence] = LEAPQUANT_OK;
    const int32_t count = tokens_of(args, sequence);
    if (args.state_slots[sequence] >= 0 && count > 0) {
      args.status[sequence] = decode_fault(layout, pool, args, sequence, count);
    }
    zero_output_rows(layout, args, sequence, idle(sequence) ? 0 : count);
  }

  WindowView window(int32_t sequence, int32_t v_head) const {
    return window_view(layout, pool,
                       window_slot_of(pool, args.state_slots, args.window_slots, sequence), v_head);
  }

  // Marks what a head of a sequence will read.
  void look_ahead(int32_t sequence, int32_t v_head, bool with_keys, Ahead* ahead) const {
    if (idle(sequence)) return;
    const int32_t slot = args.state_slots[sequence];
    const WindowView view = window(sequence, v_head);
    const int32_t base = base_of(layout, pool, slot, v_head);
    const int32_t ring = layout.window.ring_tokens;
    const int32_t first = base % ring;
    const int32_t count = args.positions[sequence] - base;
    const int32_t straight = std::min(count, ring - first);
    const int64_t u_row = int64_t{2} * layout.shape.head_v_dim * layout.shape.sub_steps;
    const int64_t k_row = int64_t{2} * layout.shape.head_k_dim * layout.shape.sub_steps;
    const auto rows = [&](const void* start, int64_t row) {
      const auto* bytes = static_cast<const std::byte*>(start);
      ahead->add(bytes + first * row, straight * row);
      ahead->add(bytes, (count - straight) * row);
    };
    rows(view.corrections, u_row);
    if (with_keys) rows(view.keys, k_row);
    if (layout.window.decay_count > 0) {
      rows(view.log_decays,
           static_cast<int64_t>(layout.window.decay_bytes) * layout.window.decay_count);
    }
    ahead->add(boundary_state(layout, pool, slot, v_head), layout.head(v_head).bytes);
  }

  void run_unit(int32_t unit, bool more, const DecodeScratch& scratch) const {
    const int32_t sequence = unit / units_per_sequence;
    if (idle(sequence)) return;
    const int32_t first = unit % units_per_sequence * unit_heads;
    const int32_t k_head = first / layout.group;
    const int32_t count = tokens_of(args, sequence);
    const int32_t slot = args.state_slots[sequence];
    const int32_t position = args.positions[sequence];
    const InputSpan span{&args.inputs, args.tokens, sequence, 0, count};
    prepare_key_head(layout, span, k_head, 0, count, scratch.q, scratch.k, scratch.read_key);
    const bool saturated = LEAPQUANT_CPU_DISPATCH(round_keys_target)(layout, scratch, count);
    for (int32_t v_head = first; v_head < first + unit_heads; ++v_head) {
      const WindowView view = window(sequence, v_head);
      std::byte* boundary = boundary_state(layout, pool, slot, v_head);
      int32_t& base = base_of(layout, pool, slot, v_head);
      leapquant_health* health = health_of(layout, pool, slot, v_head);
      const int32_t due = last_boundary(position, layout.head_boundary[static_cast<size_t>(v_head)],
                                        layout.window_tokens);
      if (due > base) {
        fold_head(layout, v_head, boundary, view, base, due, boundary, health, scratch.fold);
        base = due;
      }
      Ahead ahead;
      if (v_head + 1 < first + unit_heads) {
        look_ahead(sequence, v_head + 1, false, &ahead);
      } else if (more) {
        look_ahead((unit + 1) / units_per_sequence, (unit + 1) % units_per_sequence * unit_heads,
                   true, &ahead);
      }
      HeadCall call{layout,
                    args.inputs,
                    v_head,
                    base,
                    position,
                    count,
                    boundary,
                    view,
                    v_head % layout.group == 0,
                    saturated ? static_cast<uint32_t>(LEAPQUANT_HEALTH_RECORD_SATURATED) : 0u};
      prepare_value_head(layout, span, v_head, 0, count, scratch.v, scratch.log_decay,
                         scratch.beta);
      LEAPQUANT_CPU_DISPATCH(decode_head_target)(call, scratch, &ahead, args, sequence);
      if (health != nullptr && call.flags != 0) health->flags |= call.flags;
    }
  }

  void run_task(int32_t task, int32_t worker) const {
    const DecodeScratch scratch(layout, worker_scratch(launch, worker_bytes, worker));
    const int32_t first = task * units_per_task;
    const int32_t last = std::min(first + units_per_task, num_units);
    for (int32_t unit = first; unit < last; ++unit) run_unit(unit, unit + 1 < last, scratch);
  }
};

}  // namespace

size_t decode_worker_bytes(const Layout& layout) {
  return DecodeScratch(layout, nullptr).bytes + fold_scratch_bytes(layout);
}

Status decode_fault(const Layout& layout, const leapquant_pool& pool,
                    const leapquant_decode_args& args, int32_t sequence, int32_t num_tokens) {
  const Status fault =
      position_fault(layout, pool, args.state_slots[sequence],
                     window_slot_of(pool, args.state_slots, args.window_slots, sequence),
                     args.positions[sequence], num_tokens);
  if (fault != LEAPQUANT_OK) return fault;
  return check_inputs(layout, InputSpan{&args.inputs, args.tokens, sequence, 0, num_tokens});
}

void zero_output_rows(const Layout& layout, const leapquant_decode_args& args, int32_t sequence,
                      int32_t first_token) {
  for (int32_t t = first_token; t < args.tokens; ++t) {
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      store_output(layout, args.output, args.tokens, sequence, t, h, nullptr);
    }
  }
}

Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch& launch) {
  const int32_t workers = launch.runner == nullptr ? 1 : launch.runner->num_workers;
  // Value heads of a key head stay together (their keys are prepared once) unless that leaves
  // workers without work.
  const int32_t key_units = args.batch * layout.shape.num_k_heads;
  const int32_t unit_heads = key_units >= 4 * workers ? layout.group : 1;
  const int32_t units_per_sequence = layout.shape.num_v_heads / unit_heads;
  const int32_t num_units = args.batch * units_per_sequence;
  // Long tasks, since only inside of one does the next head's memory come early; several a worker,
  // so that a late one does not keep the others waiting.
  const int32_t tasks = workers == 1 ? 1 : 6 * workers;
  const int32_t units_per_task = std::max(1, (num_units + tasks - 1) / tasks);
  const DecodeCall call{layout,
                        pool,
                        args,
                        launch,
                        decode_worker_bytes(layout),
                        unit_heads,
                        units_per_sequence,
                        units_per_task,
                        num_units};
  run_tasks(
      launch, args.batch,
      [](void* argument, int32_t task, int32_t) {
        static_cast<const DecodeCall*>(argument)->check(task);
      },
      const_cast<DecodeCall*>(&call));
  run_tasks(
      launch, (num_units + units_per_task - 1) / units_per_task,
      [](void* argument, int32_t task, int32_t worker) {
        static_cast<const DecodeCall*>(argument)->run_task(task, worker);
      },
      const_cast<DecodeCall*>(&call));
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
