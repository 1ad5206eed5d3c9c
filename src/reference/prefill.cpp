// SPDX-License-Identifier: Apache-2.0
//
// A long window whose records are never rounded: the state lives in FP64 between the first token
// and the fold.
#include "reference/prefill.h"

#include <algorithm>
#include <vector>

#include "core/pool.h"
#include "reference/codec.h"
#include "reference/fold.h"
#include "reference/inputs.h"
#include "reference/recurrence.h"

namespace leapquant::reference {
namespace {

struct Sequence {
  int32_t index;
  int32_t state_slot;
  int32_t window_slot;
  int64_t first_token;
  int32_t num_tokens;
};

// Folds a running state into a slot as a first fold, whose base becomes `position`. A slot other
// than the sequence's own is filled anew, so its health starts anew.
void write_state(const Layout& layout, const leapquant_pool& pool, int32_t slot, int32_t v_head,
                 const std::vector<double>& state, int32_t position, bool fresh) {
  const BoundaryLayout& head = layout.head(v_head);
  std::byte* boundary = boundary_state(layout, pool, slot, v_head);
  leapquant_health* health = health_of(layout, pool, slot, v_head);
  if (fresh) {
    std::fill(boundary, boundary + head.bytes, std::byte{0});
    if (health != nullptr) *health = {};
  }
  encode_state(head, state.data(), true, boundary, health);
  base_of(layout, pool, slot, v_head) = position;
}

void prefill_head(const Layout& layout, const leapquant_pool& pool,
                  const leapquant_prefill_args& args, const Sequence& sequence, int32_t v_head,
                  double* outputs) {
  const int32_t start = args.positions[sequence.index];
  const int32_t end = start + sequence.num_tokens;
  const BoundaryLayout& head = layout.head(v_head);
  const TokenAxis axis = {0, args.token_offsets[args.batch]};
  std::vector<double> state =
      rebuild(layout, pool, sequence.state_slot, sequence.window_slot, v_head, start);
  int32_t continued = -1;  // slot of the checkpoint that is the running state, bit for bit
  for (int32_t t = 0; t < sequence.num_tokens; ++t) {
    const int64_t row = sequence.first_token + t;
    const Token token = load_token(layout, args.inputs, axis, row, v_head);
    const std::vector<double> o = advance(layout, args.inputs, token, v_head, state.data());
    std::copy(o.begin(), o.end(),
              outputs + (row * layout.shape.num_v_heads + v_head) * layout.shape.head_v_dim);
    continued = -1;
    for (int32_t c = 0; c < args.num_checkpoints; ++c) {
      const leapquant_checkpoint& checkpoint = args.checkpoints[c];
      if (checkpoint.sequence != sequence.index || checkpoint.position != start + t + 1) continue;
      write_state(layout, pool, checkpoint.state_slot, v_head, state, checkpoint.position, true);
      if (args.through == 0) continue;
      continued = checkpoint.state_slot;
      decode_boundary(head, boundary_state(layout, pool, continued, v_head), state.data());
    }
  }
  if (continued < 0) {
    write_state(layout, pool, sequence.state_slot, v_head, state, end, false);
    return;
  }
  // The end is a checkpoint: a hit would copy it, so the running state is that copy too.
  const std::byte* boundary = boundary_state(layout, pool, continued, v_head);
  std::copy(boundary, boundary + head.bytes,
            boundary_state(layout, pool, sequence.state_slot, v_head));
  if (leapquant_health* health = health_of(layout, pool, sequence.state_slot, v_head)) {
    const uint32_t flags = health->flags;
    *health = *health_of(layout, pool, continued, v_head);
    health->flags |= flags;
  }
  base_of(layout, pool, sequence.state_slot, v_head) = end;
}

}  // namespace

void prefill_fp64(const Layout& layout, const leapquant_pool& pool,
                  const leapquant_prefill_args& args, double* outputs) {
  const int64_t total = args.token_offsets[args.batch];
  std::fill(outputs, outputs + total * layout.shape.num_v_heads * layout.shape.head_v_dim, 0.0);
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    const int32_t slot = args.state_slots[i];
    const Sequence sequence = {i, slot, args.window_slots == nullptr ? slot : args.window_slots[i],
                               args.token_offsets[i],
                               args.token_offsets[i + 1] - args.token_offsets[i]};
    if (slot < 0 || sequence.num_tokens == 0) continue;
    args.status[i] = check_position(layout, pool, slot, sequence.window_slot, args.positions[i], 0);
    if (args.status[i] != LEAPQUANT_OK) continue;
    args.status[i] =
        check_inputs(layout, args.inputs, {0, total}, sequence.first_token, sequence.num_tokens);
    if (args.status[i] != LEAPQUANT_OK) continue;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      prefill_head(layout, pool, args, sequence, h, outputs);
    }
  }
}

Status prefill(const Layout& layout, const leapquant_pool& pool, const leapquant_prefill_args& args,
               const leapquant_launch&) {
  const int64_t total = args.token_offsets[args.batch];
  const int64_t row = layout.shape.head_v_dim;
  std::vector<double> outputs(static_cast<size_t>(total * layout.shape.num_v_heads * row));
  prefill_fp64(layout, pool, args, outputs.data());
  const double* o = outputs.data();
  for (int64_t t = 0; t < total; ++t) {
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h, o += row) {
      store_output(layout, args.output, {0, total}, t, h, o);
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::reference
