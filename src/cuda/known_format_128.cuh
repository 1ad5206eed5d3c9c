// SPDX-License-Identifier: Apache-2.0
//
// Formats of heads of 128 x 128 whose kernels are compiled by themselves: widths, levels, types of
// scales and kinds of compensators are constants there. Arithmetic and bits are those of the
// kernels for any format; what they have no use for takes no place in the instruction caches, which
// kernels that run at the same time share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/call_128.cuh"

namespace leapquant::cuda {

enum class Known128 : int32_t {
  kAny,  // nothing is known
  // Integers with FP32 scales and smoothing, four or more FP16 compensators and no others.
  kInt8,
  kInt6,
  kInt4,
  // FP16 scales and 8-bit smoothing, INT8 and INT4 compensators only. 4 bits: half-integers.
  kInt8Plus,
  kInt6Plus,
  kInt4Plus
};

constexpr bool is_plus(Known128 known) { return known >= Known128::kInt8Plus; }

constexpr int32_t bits_of(Known128 known) {
  if (known == Known128::kInt8 || known == Known128::kInt8Plus) return 8;
  return known == Known128::kInt6 || known == Known128::kInt6Plus ? 6 : 4;
}

constexpr Known128 known_128(const HeadFormat128& f) {
  const bool integers = f.half_levels == 0 && f.scale_steps == f.q_max;
  const auto of = [&](Known128 eight, Known128 six, Known128 four) {
    return f.bits == 8 ? eight : f.bits == 6 ? six : four;
  };
  if (f.fp16_scale == 0 && f.smoothing == LEAPQUANT_SMOOTHING_FP32 && integers && f.num_int8 == 0 &&
      f.num_int4 == 0) {
    return of(Known128::kInt8, Known128::kInt6, Known128::kInt4);
  }
  if (f.fp16_scale != 0 && f.smoothing == LEAPQUANT_SMOOTHING_LOG8 && f.num_fp16 == 0 &&
      (f.bits == 4 ? f.half_levels != 0 : integers)) {
    return of(Known128::kInt8Plus, Known128::kInt6Plus, Known128::kInt4Plus);
  }
  return Known128::kAny;
}

// A format of which known_128 gives kKnown, with what that says as constants; the format itself
// where it says nothing.
template <Known128 kKnown>
__device__ __forceinline__ decltype(auto) format_as(const HeadFormat128& format) {
  if constexpr (kKnown == Known128::kAny) {
    return (format);
  } else {
    constexpr int32_t kBits = bits_of(kKnown);
    constexpr bool kPlus = is_plus(kKnown);
    constexpr bool kHalves = kPlus && kBits == 4;
    HeadFormat128 known = format;
    known.bits = kBits;
    known.half_levels = kHalves ? 1 : 0;
    known.fp16_scale = kPlus ? 1 : 0;
    known.smoothing = kPlus ? LEAPQUANT_SMOOTHING_LOG8 : LEAPQUANT_SMOOTHING_FP32;
    if constexpr (kPlus) {
      known.num_fp16 = 0;
    } else {
      known.num_int8 = 0;
      known.num_int4 = 0;
    }
    if constexpr (!kHalves) {
      constexpr float kLargest = (1 << (kBits - 1)) - 1;
      known.q_max = kLargest;
      known.inverse_q = 1.0f / kLargest;
      known.scale_steps = kLargest;
    }
    return known;
  }
}

template <Known128 kKnown>
using KnownConstant = std::integral_constant<Known128, kKnown>;

// What `use` returns for what is known, as a constant.
template <typename Use>
auto with_known(Known128 known, const Use& use) {
  switch (known) {
    case Known128::kInt8:
      return use(KnownConstant<Known128::kInt8>());
    case Known128::kInt6:
      return use(KnownConstant<Known128::kInt6>());
    case Known128::kInt4:
      return use(KnownConstant<Known128::kInt4>());
    case Known128::kInt8Plus:
      return use(KnownConstant<Known128::kInt8Plus>());
    case Known128::kInt6Plus:
      return use(KnownConstant<Known128::kInt6Plus>());
    case Known128::kInt4Plus:
      return use(KnownConstant<Known128::kInt4Plus>());
    case Known128::kAny:
      break;
  }
  return use(KnownConstant<Known128::kAny>());
}

}  // namespace leapquant::cuda
