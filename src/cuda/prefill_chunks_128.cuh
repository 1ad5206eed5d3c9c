// SPDX-License-Identifier: Apache-2.0
//
// Prefill by chunks for keys of 128 channels on sm_90a: the algebra of prefill_chunks, the large
// products by groups of four warps.
#pragma once

#include "cuda/prefill_columns.cuh"

namespace leapquant::cuda {

// Whether these kernels serve a call; shape, types and device decide, never the batch.
bool chunks_128_serve(const Call& call);
cudaError_t launch_chunks_128(const Call& call, const StretchRange& range, cudaStream_t stream);
// The same for few heads, each spread over several multiprocessors, where these hold them all at
// once. The bits are the same.
bool spread_128_fits(const Call& call, const StretchRange& range);
cudaError_t launch_spread_128(const Call& call, const StretchRange& range, cudaStream_t stream);

}  // namespace leapquant::cuda
