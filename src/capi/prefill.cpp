// SPDX-License-Identifier: Apache-2.0
//
// C API: leapquant_prefill.
#include <climits>

#include "capi/call.h"
#include "capi/slot_marks.h"
#include "capi/tensors.h"

namespace leapquant::capi {
namespace {

Status check_token_offsets(const leapquant_prefill_args& args, bool on_device) {
  if (args.token_offsets == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER, "args.token_offsets is null");
  }
  if (on_device) return LEAPQUANT_OK;
  if (args.token_offsets[0] != 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "args.token_offsets[0] is %d, expected 0",
                args.token_offsets[0]);
  }
  for (int32_t i = 0; i < args.batch; ++i) {
    if (args.token_offsets[i + 1] < args.token_offsets[i]) {
      return fail(LEAPQUANT_INVALID_ARGUMENT,
                  "args.token_offsets[%d] is %d, expected at least args.token_offsets[%d], %d",
                  i + 1, args.token_offsets[i + 1], i, args.token_offsets[i]);
    }
  }
  return LEAPQUANT_OK;
}

Status check_checkpoint(const leapquant_prefill_args& args, int32_t c, int32_t num_state_slots) {
  const leapquant_checkpoint& at = args.checkpoints[c];
  if (at.sequence < 0 || at.sequence >= args.batch || args.state_slots[at.sequence] < 0) {
    return fail(
        LEAPQUANT_INVALID_ARGUMENT,
        "args.checkpoints[%d].sequence is %d, expected a sequence of the batch (%d) that is no "
        "padding row",
        c, at.sequence, args.batch);
  }
  const int64_t start = args.positions[at.sequence];
  const int64_t end = start + args.token_offsets[at.sequence + 1] - args.token_offsets[at.sequence];
  if (at.position <= start || at.position > end) {
    return fail(
        LEAPQUANT_INVALID_ARGUMENT,
        "args.checkpoints[%d].position is %d, expected %lld to %lld: after the start and at "
        "most the end of sequence %d",
        c, at.position, static_cast<long long>(start + 1), static_cast<long long>(end),
        at.sequence);
  }
  if (at.state_slot < 0 || at.state_slot >= num_state_slots) {
    return fail(LEAPQUANT_SLOT_OUT_OF_RANGE,
                "args.checkpoints[%d].state_slot is %d, expected 0 to %d", c, at.state_slot,
                num_state_slots - 1);
  }
  if (c == 0) return LEAPQUANT_OK;
  const leapquant_checkpoint& before = args.checkpoints[c - 1];
  if (at.sequence < before.sequence ||
      (at.sequence == before.sequence && at.position <= before.position)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "args.checkpoints[%d] (sequence %d, position %d) does not come after "
                "args.checkpoints[%d] (%d, %d): expected them sorted by sequence, then position",
                c, at.sequence, at.position, c - 1, before.sequence, before.position);
  }
  return LEAPQUANT_OK;
}

// A checkpoint's slot is neither another checkpoint's nor a sequence's of the same call.
Status check_checkpoint_slots(const leapquant_prefill_args& args, int32_t num_state_slots) {
  SlotMarks marks;
  for (int64_t first = 0; first < num_state_slots; first += SlotMarks::kSlots) {
    marks.clear(static_cast<int32_t>(first));
    for (int32_t i = 0; i < args.batch; ++i) {
      const int32_t slot = args.state_slots[i];
      if (slot >= 0 && marks.covers(slot)) marks.mark(slot);
    }
    for (int32_t c = 0; c < args.num_checkpoints; ++c) {
      const int32_t slot = args.checkpoints[c].state_slot;
      if (!marks.covers(slot)) continue;
      if (marks.marked(slot)) {
        return fail(LEAPQUANT_SLOT_REPEATED,
                    "args.checkpoints[%d].state_slot is %d, which this call already writes for a "
                    "sequence or an earlier checkpoint",
                    c, slot);
      }
      marks.mark(slot);
    }
  }
  return LEAPQUANT_OK;
}

Status check_checkpoints(const leapquant_prefill_args& args, int32_t num_state_slots,
                         bool on_device) {
  if (args.num_checkpoints < 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "args.num_checkpoints is %d, expected at least 0",
                args.num_checkpoints);
  }
  if (args.through != 0 && args.through != 1) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "args.through is %d, expected 0 or 1", args.through);
  }
  if (args.num_checkpoints == 0) return LEAPQUANT_OK;
  if (args.checkpoints == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER, "args.checkpoints is null, but args.num_checkpoints is %d",
                args.num_checkpoints);
  }
  if (args.state_slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slots is null");
  if (args.positions == nullptr) return fail(LEAPQUANT_NULL_POINTER, "positions is null");
  if (on_device) return LEAPQUANT_OK;
  for (int32_t c = 0; c < args.num_checkpoints; ++c) {
    if (Status s = check_checkpoint(args, c, num_state_slots)) return s;
  }
  return check_checkpoint_slots(args, num_state_slots);
}

struct Described {
  const Layout* layout;
  const leapquant_prefill_args* args;
};

void describe(const void* context, int32_t sequence, Status fault, Sentence* text) {
  const Described& d = *static_cast<const Described*>(context);
  const int32_t first = d.args->token_offsets[sequence];
  describe_numeric_fault(*d.layout, d.args->inputs, sequence, 0, first,
                         d.args->token_offsets[sequence + 1] - first, fault, text);
}

Status prefill(const leapquant_layout* layout, const leapquant_pool* pool,
               const leapquant_prefill_args* given, const leapquant_launch* launch) {
  Call call;
  leapquant_prefill_args args;
  if (Status s = open_operation(layout, pool, given, launch, &call, &args)) return s;
  if (args.batch == 0) return LEAPQUANT_OK;
  if (Status s = check_token_offsets(args, call.on_device())) return s;
  // How many tokens a device's call has stands where the host may not look; strides are checked
  // for as many as there may be.
  const int32_t all_tokens = call.on_device() ? INT32_MAX : args.token_offsets[args.batch];
  const Leading leading = {.sequences = 1, .tokens = all_tokens, .has_sequences = false};
  if (leading.tokens > 0) {
    if (Status s = check_tensors(call, leading, &args.inputs, &args.output)) return s;
  }
  Sequences sequences = sequences_of(args);
  sequences.token_offsets = args.token_offsets;
  sequences.skips_empty = true;
  if (Status s = check_checkpoints(args, call.pool.num_state_slots, call.on_device())) return s;
  if (Status s = check_sequences(call, sequences, &args.state_slots)) return s;
  const Status done = call.backend().prefill(call.layout(), call.pool, args, call.launch);
  const Described described = {&call.layout(), &args};
  return close_call(call, sequences, args.state_slots, "prefill", done, args.status, describe,
                    &described);
}

}  // namespace
}  // namespace leapquant::capi

extern "C" leapquant_status leapquant_prefill(const leapquant_layout* layout,
                                              const leapquant_pool* pool,
                                              const leapquant_prefill_args* args,
                                              const leapquant_launch* launch) {
  return leapquant::capi::prefill(layout, pool, args, launch);
}
