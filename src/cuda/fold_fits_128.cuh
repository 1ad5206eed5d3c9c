// SPDX-License-Identifier: Apache-2.0
//
// Which fits a kernel that folds has. Fits need different numbers of registers, and the code of one
// pushes out that of others: so such kernels are compiled by what a call's formats need, which the
// host knows. A format is fitted by the same arithmetic in all kernels that fold it alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/known_format_128.cuh"

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

// Numbers of compensators.
struct Ranks {
  int32_t fp16, int8, int4;
};

// Those of the formats that have kernels of their own which fold: presets, and `int8` with eight.
// Nought: there is none.
template <bool kVector>
constexpr Ranks ranks_of(Fits fits, Known128 known) {
  constexpr Ranks kNone = {0, 0, 0};
  if (kVector && (known != Known128::kInt8 || fits != Fits::kFew)) return kNone;
  switch (known) {
    case Known128::kInt8:
      return fits == Fits::kFew ? Ranks{4, 0, 0} : fits == Fits::kSome ? Ranks{8, 0, 0} : kNone;
    case Known128::kInt6:
      return fits == Fits::kFew ? Ranks{4, 0, 0} : kNone;
    case Known128::kInt4:
      return fits == Fits::kSome ? Ranks{8, 0, 0} : kNone;
    case Known128::kInt8Plus:
      return fits == Fits::kSome ? Ranks{0, 4, 7} : kNone;
    case Known128::kInt6Plus:
      return fits == Fits::kSome ? Ranks{0, 4, 8} : kNone;
    case Known128::kInt4Plus:
      return fits == Fits::kSome ? Ranks{0, 4, 11} : fits == Fits::kMany ? Ranks{0, 8, 18} : kNone;
    case Known128::kAny:
      break;
  }
  return kNone;
}

// What `use` returns for the fits of a call of one format, and what is known of that, as constants.
template <bool kVector, typename Use>
auto with_kinds_of_one(const Call128& call, const Use& use) {
  const HeadFormat128& format = call.classes[0];
  return with_fits_of_one(fits_of(call), [&](auto fits) {
    return with_known(known_128(format), [&](auto known) {
      constexpr Ranks kRanks = ranks_of<kVector>(fits(), known());
      if constexpr (kRanks.fp16 + kRanks.int8 + kRanks.int4 > 0) {
        if (format.num_fp16 == kRanks.fp16 && format.num_int8 == kRanks.int8 &&
            format.num_int4 == kRanks.int4) {
          return use(fits, known);
        }
      }
      return use(fits, KnownConstant<Known128::kAny>());
    });
  });
}

// format_as, and the numbers of compensators.
template <bool kVector, Fits kFits, Known128 kKnown>
__device__ __forceinline__ decltype(auto) format_with(const HeadFormat128& format) {
  if constexpr (kKnown == Known128::kAny) {
    return (format);
  } else {
    constexpr Ranks kRanks = ranks_of<kVector>(kFits, kKnown);
    HeadFormat128 known = format_as<kKnown>(format);
    known.num_fp16 = kRanks.fp16;
    known.num_int8 = kRanks.int8;
    known.num_int4 = kRanks.int4;
    return known;
  }
}

}  // namespace leapquant::cuda::folding_128
