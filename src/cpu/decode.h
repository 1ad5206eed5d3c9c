// SPDX-License-Identifier: Apache-2.0
//
// The operation `decode` for windowed layouts: fold what is due, read boundary state and records,
// append the records. Per-step layouts are per_step.h's.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant::cpu {

// Bytes of scratch per worker (64-byte aligned; see worker_scratch).
size_t decode_worker_bytes(const Layout& layout);

// The operation (core/operations.h); layout.per_step must be false. Faults of single sequences go
// to args.status and zero their output rows; the call itself returns OK.
Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch& launch);

// Fault of one sequence of a decode call, found before anything changes: positions, then inputs.
// Windowed and per step. num_tokens is the sequence's own.
Status decode_fault(const Layout& layout, const leapquant_pool& pool,
                    const leapquant_decode_args& args, int32_t sequence, int32_t num_tokens);

// Zeroes the output rows first_token..tokens-1 of a sequence.
void zero_output_rows(const Layout& layout, const leapquant_decode_args& args, int32_t sequence,
                      int32_t first_token);

}  // namespace leapquant::cpu
