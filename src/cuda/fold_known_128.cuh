// SPDX-License-Identifier: Apache-2.0
//
// The kernels of formats that have some of their own which fold (fold_known_128.cu).
#pragma once

#include "cuda/call_128.cuh"

namespace leapquant::cuda::folding_128 {

struct Plan;
using FoldKernel = void (*)(Call128, Plan);

// The kernel that folds a common call's heads; null where its format has none of its own, or the
// call is not a common one.
FoldKernel known_fold_kernel(const Call128& call, bool vector);

}  // namespace leapquant::cuda::folding_128
