// SPDX-License-Identifier: Apache-2.0
//
// Decode: fold what is due, read boundary state and records, append records; or, per step, update
// and requantise after every token.
#pragma once

#include "core/operations.h"

namespace leapquant::reference {

Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch& launch);

// The same, with outputs in FP64 before their rounding, packed [batch, tokens, HV, V]. args.output
// is not used. For tests that compare against this oracle.
void decode_fp64(const Layout& layout, const leapquant_pool& pool,
                 const leapquant_decode_args& args, double* outputs);

}  // namespace leapquant::reference
