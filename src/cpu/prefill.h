// SPDX-License-Identifier: Apache-2.0
//
// The operation `prefill`: sequences of any length in the chunked parallel form, one fold per head
// at the end and at every checkpoint. What a chunk computes is in prefill_chunk-inl.h.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant::cpu {

// Bytes of scratch per worker (64-byte aligned; see worker_scratch).
size_t prefill_worker_bytes(const Layout& layout);

// The operation (core/operations.h). Chunks are counted from the sequence's first token of the call
// and anew from each checkpoint. Faults of single sequences go to args.status, zero their output
// rows and change nothing; the call itself returns OK.
Status prefill(const Layout& layout, const leapquant_pool& pool, const leapquant_prefill_args& args,
               const leapquant_launch& launch);

}  // namespace leapquant::cpu
