// SPDX-License-Identifier: Apache-2.0
//
// Prefill: token by token from the slot's state at `position`, one fold at the end, checkpoints on
// the way.
#pragma once

#include "core/operations.h"

namespace leapquant::reference {

Status prefill(const Layout& layout, const leapquant_pool& pool, const leapquant_prefill_args& args,
               const leapquant_launch& launch);

// The same, with outputs in FP64 before their rounding, packed [total tokens, HV, V]. args.output
// is not used.
void prefill_fp64(const Layout& layout, const leapquant_pool& pool,
                  const leapquant_prefill_args& args, double* outputs);

}  // namespace leapquant::reference
