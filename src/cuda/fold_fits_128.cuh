// SPDX-License-Identifier: Apache-2.0
//
// Which fits a kernel that folds has. Fits need different numbers of registers, and the code of one
// pushes out that of others: so such kernels are compiled by what a call's formats need, which the
// host knows. A format is fitted by the same arithmetic in all kernels that fold it alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/call_128.cuh"

namespace leapquant::cuda::folding_128 {

enum class Fits : int32_t {
  kFew,   // up to four compensators, all FP16
  kSome,  // others, up to sixteen
  kMany,  // more
  kAny    // heads of several formats that need different ones
};

constexpr int32_t rank_of(const HeadFormat128& format) {
  return format.num_fp16 + format.num_int8 + format.num_int4;
}
constexpr Fits fits_of(const HeadFormat128& format) {
  const int32_t rank = rank_of(format);
  if (rank <= 4 && rank == format.num_fp16) return Fits::kFew;
  return rank <= 16 ? Fits::kSome : Fits::kMany;
}
inline Fits fits_of(const Call128& call) {
  const Fits first = fits_of(call.classes[0]);
  for (int32_t c = 1; c < call.num_classes; ++c) {
    if (fits_of(call.classes[c]) != first) return Fits::kAny;
  }
  return first;
}

// The fit of few compensators leaves registers for loads a turn ahead, and no warp waits in it for
// another that has its chain of columns: copies start elsewhere.
constexpr bool is_short(Fits fits) { return fits == Fits::kFew; }

template <Fits kFits>
using FitsConstant = std::integral_constant<Fits, kFits>;

// What `use` returns for the fits as a constant.
template <typename Use>
auto with_fits_of_one(Fits fits, const Use& use) {
  if (fits == Fits::kFew) return use(FitsConstant<Fits::kFew>());
  return fits == Fits::kSome ? use(FitsConstant<Fits::kSome>()) : use(FitsConstant<Fits::kMany>());
}
template <typename Use>
auto with_fits(Fits fits, const Use& use) {
  return fits == Fits::kAny ? use(FitsConstant<Fits::kAny>()) : with_fits_of_one(fits, use);
}

}  // namespace leapquant::cuda::folding_128
