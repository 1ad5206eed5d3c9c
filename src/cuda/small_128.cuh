// SPDX-License-Identifier: Apache-2.0
//
// Small batches of heads of 128 x 128: one launch, a block for each head, which folds it where it
// is due and decodes it. For calls whose heads fit the device at once; larger batches go through
// the grids of fold_128.cu and decode_128.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/call_128.cuh"

namespace leapquant::cuda {

// Whether one launch serves the call: the common call of one token with scalar decays, at most two
// heads a multiprocessor, in `room` bytes of shared memory a block.
bool small_128_serves(const Call128& call, bool vector, int32_t processors, int32_t room);
cudaError_t launch_small_128(const Call128& call, cudaStream_t stream);

}  // namespace leapquant::cuda
