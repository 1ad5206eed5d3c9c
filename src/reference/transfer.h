// SPDX-License-Identifier: Apache-2.0
//
// Plain matrices in and out, raw copies, cleared slots.
#pragma once

#include "core/operations.h"

namespace leapquant::reference {

Status export_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch);
Status import_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch);
Status copy(const Layout& layout, const leapquant_pool& pool, int32_t batch,
            const int32_t* source_states, const int32_t* source_windows,
            const int32_t* destination_states, const int32_t* destination_windows,
            const leapquant_launch& launch);
Status reset(const Layout& layout, const leapquant_pool& pool, int32_t batch, const int32_t* states,
             const int32_t* windows, const int32_t* positions, const leapquant_launch& launch);

}  // namespace leapquant::reference
