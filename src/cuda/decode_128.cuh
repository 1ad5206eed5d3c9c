// SPDX-License-Identifier: Apache-2.0
//
// The specialised kernels for heads of 128 x 128: filling a Call128 from the public structs, and
// the launches. What a call needs beyond this goes to the general kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "core/layout.h"
#include "core/sentence.h"
#include "cuda/call_128.cuh"

namespace leapquant::cuda {

// OK when the specialised decode serves this layout; else UNSUPPORTED with the reason.
Status accepts_decode_128(const Layout& layout, Sentence* why_not);
// Fills *call and returns true when the specialised decode serves this call of an accepted layout:
// no read keys, no output hooks, tensors aligned to 16 bytes.
bool make_call_128(const Layout& layout, const leapquant_pool& pool,
                   const leapquant_decode_args& args, Call128* call);

inline constexpr int32_t kFoldBlocks128 = 2;  // of the fold, resident on a multiprocessor
// Registers that these take of a multiprocessor's 65,536; all of them: decode follows the folds.
inline constexpr int32_t kFoldRegisters128 = 65536;

int32_t decode_128_shared_bytes(const Call128& call, bool vector, int32_t pairs);
// Blocks of 1 or 2 pairs of warps that `registers` allow on a multiprocessor.
int32_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t pairs,
                                   int32_t registers);
// Decodes all heads; those that are due after the grid before it in the stream (the folds) is done.
// overlaps: that grid triggers its dependents and may run at the same time.
cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t pairs, int32_t blocks,
                              bool overlaps, cudaStream_t stream);
// Folds every head that is due. Triggers dependents at once.
cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, cudaStream_t stream);
int32_t fold_128_shared_bytes(const Call128& call, bool vector);

// Both launches, shaped for the current device.
cudaError_t decode_128(const Layout& layout, const Call128& call, cudaStream_t stream);

}  // namespace leapquant::cuda
