// SPDX-License-Identifier: Apache-2.0
//
// The operations that move whole states: export and import of plain matrices, raw copies, reset.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant::cpu {

// Bytes of scratch per worker (64-byte aligned; see worker_scratch) of export, import and reset.
size_t transfer_worker_bytes(const Layout& layout);

// The operations (core/operations.h). Export writes zero matrices for padding and faulty sequences;
// import checks all heads of a sequence before it changes one.
Status export_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch);
Status import_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch);
Status copy_slots(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                  const int32_t* source_states, const int32_t* source_windows,
                  const int32_t* destination_states, const int32_t* destination_windows,
                  const leapquant_launch& launch);
Status reset_slots(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                   const int32_t* states, const int32_t* windows, const int32_t* positions,
                   const leapquant_launch& launch);

}  // namespace leapquant::cpu
