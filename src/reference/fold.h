// SPDX-License-Identifier: Apache-2.0
//
// Fold: rebuild S from boundary state and records in FP64, refit the compensators, requantise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout.h"
#include "core/pool.h"

namespace leapquant::reference {

// Writes `state` [K, V] as a boundary state (fit, then codec). `boundary` holds the old one, whose
// value sides may start the fit; cold forbids that. *health receives the fold's figures, its flags
// are added to those already set. Non-finite entries (also those beyond FP32) are encoded as 0.
void encode_state(const BoundaryLayout& layout, const double* state, bool cold, std::byte* boundary,
                  leapquant_health* health);

// S [K, V] of one head after `position` tokens: its boundary state plus records base..position-1.
std::vector<double> rebuild(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                            int32_t window_slot, int32_t v_head, int32_t position);

// Log decay of record token `token`, channel `channel`, as the window stores it. Constant decays
// come from the layout.
double record_log_decay(const Layout& layout, const WindowView& window, int32_t v_head,
                        int32_t token, int32_t channel);

// OK, POSITION_BELOW_BASE or POSITION_PAST_WINDOW for a call that reads `position` and appends
// `new_tokens` records. A head that shares its key records may still fold the oldest ones while
// another head of the group writes the newest, so both must fit; otherwise the fold comes first.
Status check_position(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                      int32_t window_slot, int32_t position, int32_t new_tokens);

// Folds records base..position-1 of one head into `destination_slot` (may equal state_slot); base
// of the destination becomes position. A head with nothing to fold is copied as it is.
void fold_head(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
               int32_t window_slot, int32_t destination_slot, int32_t v_head, int32_t position);

Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_fold_args& args,
            const leapquant_launch& launch);

}  // namespace leapquant::reference
