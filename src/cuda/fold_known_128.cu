// SPDX-License-Identifier: Apache-2.0
//
// Kernels that fold heads of 128 x 128 of formats that have some of their own; for any format:
// fold_128.cu, which launches both. Apart, so that they compile side by side.
#include "cuda/fold_known_128.cuh"

#include "cuda/fold_kernel_128.cuh"

namespace leapquant::cuda::folding_128 {
namespace {

template <bool kVector>
FoldKernel kernel_of(const Call128& call) {
  return with_kinds_of_one<kVector>(call, [](auto fits, auto known) -> FoldKernel {
    if constexpr (known() == Known128::kAny) {
      return nullptr;
    } else {
      return fold_kernel<kVector, true, fits(), known()>;
    }
  });
}

}  // namespace

FoldKernel known_fold_kernel(const Call128& call, bool vector) {
  if (call.plain == 0) return nullptr;
  return vector ? kernel_of<true>(call) : kernel_of<false>(call);
}

}  // namespace leapquant::cuda::folding_128
