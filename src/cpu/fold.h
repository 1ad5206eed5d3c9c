// SPDX-License-Identifier: Apache-2.0
//
// From boundary state and records to the state at a position, and back into a boundary state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"
#include "core/operations.h"
#include "core/pool.h"
#include "cpu/codec.h"

namespace leapquant::cpu {

// Bytes of scratch, 64-byte aligned, of rebuild_state and of fold_head for any head of the layout.
size_t fold_scratch_bytes(const Layout& layout);

// state [K, V] FP32 (row-major, packed, 64-byte aligned) of value head v_head after `position`
// tokens: boundary (the state at base) decayed, plus the records of tokens base..position-1 of the
// window. position == base: the decoded boundary state; the window is then not read.
void rebuild_state(const Layout& layout, int32_t v_head, const std::byte* boundary,
                   const WindowView& window, int32_t base, int32_t position, float* state,
                   std::byte* scratch);

// rebuild_state at `position`, then encode_boundary into destination (may equal boundary). A
// rebuilt state with non-finite entries has these encoded as 0 and NON_FINITE set. Neither base nor
// window is changed. health as encode_boundary.
void fold_head(const Layout& layout, int32_t v_head, const std::byte* boundary,
               const WindowView& window, int32_t base, int32_t position, std::byte* destination,
               leapquant_health* health, std::byte* scratch);

// The operation (core/operations.h): forced folds, windowed and per step (there base == position
// and a fold is a copy). Per worker: fold_scratch_bytes.
Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_fold_args& args,
            const leapquant_launch& launch);

}  // namespace leapquant::cpu
