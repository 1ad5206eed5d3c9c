// SPDX-License-Identifier: Apache-2.0
//
// The recurrence of prefill by chunks of 32 tokens as products of matrices (WY form of the delta
// rule, arXiv 2406.06484 and 2412.06464; the algebra is told in prefill_chunk_shared.cuh). For
// activations of 16 bits; what it does not serve goes by columns or token by token.
#pragma once

#include "cuda/prefill_columns.cuh"

namespace leapquant::cuda {

// Whether chunks serve this call. Depends on the shape and the types alone: a sequence's bits must
// not hang on the batch it comes in.
bool chunks_serve(const Call& call);
cudaError_t launch_chunks(const Call& call, const StretchRange& range, cudaStream_t stream);

}  // namespace leapquant::cuda
