// SPDX-License-Identifier: Apache-2.0
//
// Faults of one sequence that its positions show, for the operations that read a state at a
// position without appending to it (prefill, export). Decode's are decode.h's, since it also
// appends.
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

// OK, POSITION_BELOW_BASE, or POSITION_PAST_WINDOW: the ring cannot hold the records between a
// head's base and `position`. Per step and without a window there are none, so position must be
// base.
inline Status position_fault(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                             int32_t window_slot, int32_t position) {
  const int32_t room = layout.per_step || window_slot < 0 ? 0 : layout.window.ring_tokens;
  Status fault = LEAPQUANT_OK;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int32_t base = base_of(layout, pool, state_slot, h);
    if (position < base) return LEAPQUANT_POSITION_BELOW_BASE;
    if (int64_t{position} - base > room) fault = LEAPQUANT_POSITION_PAST_WINDOW;
  }
  return fault;
}

}  // namespace leapquant::cpu
