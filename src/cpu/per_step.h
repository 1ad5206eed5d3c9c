// SPDX-License-Identifier: Apache-2.0
//
// The operation `decode` for layouts of policy PER_STEP: the boundary state is read, advanced and
// encoded anew with every token; there are no records. Windowed layouts are decode.h's.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant::cpu {

// Bytes of scratch per worker (64-byte aligned; see worker_scratch).
size_t per_step_worker_bytes(const Layout& layout);

// The operation (core/operations.h); layout.per_step must be true. Needs position == base, leaves
// base = position + tokens. FP32 states, and BF16 ones of one sub-step, are advanced in place.
Status decode_per_step(const Layout& layout, const leapquant_pool& pool,
                       const leapquant_decode_args& args, const leapquant_launch& launch);

}  // namespace leapquant::cpu
