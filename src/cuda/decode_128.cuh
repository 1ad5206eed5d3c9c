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

// *blocks: of 1 or 2 pairs of warps, that a multiprocessor of the current device holds at once. One
// token of the common call with one pair: pairs, which are one block there.
cudaError_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t pairs,
                                       int32_t* blocks);
// Decodes all heads; those that are due after the grid before it in the stream (the folds) is done.
// overlaps: that grid triggers its dependents and may run at the same time. blocks: of pairs, as
// above. shares: blocks of two pairs that have equal parts of a sequence check its inputs together,
// as a cluster.
cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t pairs, int32_t blocks,
                              bool overlaps, bool shares, cudaStream_t stream);

// First launch of a call that is decoded with one pair of warps a head: checks all sequences and
// writes their status, which folds and decode heed; sets call->checked. Decode with two pairs
// checks itself. Triggers dependents at once.
cudaError_t launch_check_128(Call128* call, bool vector, cudaStream_t stream);

// Blocks that fold together where decode runs at the same time: whole pairs of multiprocessors,
// which share an instruction cache, and as many in each group, whose crossbar decode needs.
inline constexpr int32_t kFoldGroup128 = 4;
// *groups: how many of these the current device holds at once; 0 where it has no such clusters.
cudaError_t groups_that_fold_128(const Call128& call, bool vector, int32_t* groups);
// Folds every head that is due. A block takes a whole multiprocessor and folds two heads at a time.
// groups: `blocks` is a multiple of kFoldGroup128, and these lie together. Triggers dependents at
// once, or, where call.checked is set, as soon as the grid before it in the stream, the check, is
// done.
cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, bool groups,
                            cudaStream_t stream);

// All launches, shaped for the current device.
cudaError_t decode_128(const Layout& layout, const Call128& call, cudaStream_t stream);

}  // namespace leapquant::cuda
