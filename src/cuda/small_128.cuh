// SPDX-License-Identifier: Apache-2.0
//
// Small batches of heads of 128 x 128: one launch, a block for each head, which folds it where it
// is due and decodes it. For calls of few heads; others go through the grids of fold_128.cu and
// decode_128.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/call_128.cuh"

namespace leapquant::cuda {

// Whether one launch serves the call on a device of so many multiprocessors with `shared` bytes of
// shared memory, of which a block may have `room`: the common call of one token with scalar decays,
// of few heads.
bool small_128_serves(const Call128& call, bool vector, int32_t processors, int32_t shared,
                      int32_t room);
cudaError_t launch_small_128(const Call128& call, cudaStream_t stream);

}  // namespace leapquant::cuda
