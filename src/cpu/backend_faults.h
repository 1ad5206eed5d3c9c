// SPDX-License-Identifier: Apache-2.0
//
// Faults of one sequence that its positions show, for every operation that reads a state at a
// position.
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/pool.h"

namespace leapquant::cpu {

// The window slot of a sequence, -1 for none: a state slot past the windows (a checkpoint) has
// none.
inline int32_t window_slot_of(const leapquant_pool& pool, const int32_t* state_slots,
                              const int32_t* window_slots, int32_t sequence) {
  const int32_t slot = (window_slots == nullptr ? state_slots : window_slots)[sequence];
  return slot < pool.num_window_slots ? slot : -1;
}

// OK, POSITION_BELOW_BASE or POSITION_PAST_WINDOW of a sequence that is about to append new_tokens:
// records between a head's base and `position` have left the ring, or would while other heads still
// need them. Per step and without a window there are none, so position must be base.
inline Status position_fault(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                             int32_t window_slot, int32_t position, int32_t new_tokens) {
  // Heads of a group share their key records: the oldest ones must outlive the writing of new ones.
  const int64_t appended = layout.group > 1 ? new_tokens : 0;
  const bool windowless = layout.per_step || window_slot < 0;
  Status fault = LEAPQUANT_OK;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int64_t distance = int64_t{position} - base_of(layout, pool, state_slot, h);
    if (distance < 0) return LEAPQUANT_POSITION_BELOW_BASE;
    if (windowless ? distance > 0 : distance + appended > layout.window.ring_tokens) {
      fault = LEAPQUANT_POSITION_PAST_WINDOW;
    }
  }
  return fault;
}

}  // namespace leapquant::cpu
