// SPDX-License-Identifier: Apache-2.0
//
// Vectors of numbers: FP16 and BF16 to FP32 and back with the bits of core/numeric.h, and sums over
// lanes in a fixed order. Rows are padded to 16 elements, so no loop here has a tail.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_NUMBERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_NUMBERS_INL_H_
#undef LEAPQUANT_CPU_NUMBERS_INL_H_
#else
#define LEAPQUANT_CPU_NUMBERS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: what rows are padded to.
using FloatTag = hn::CappedTag<float, 16>;
using Int32Tag = hn::RebindToSigned<FloatTag>;
using Uint32Tag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using ByteTag = hn::Rebind<int8_t, FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(FloatTag()));

// F16C and its kin convert in one instruction, with round half to even.
#undef LEAPQUANT_CPU_HAS_FP16
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define LEAPQUANT_CPU_HAS_FP16 1
#else
#define LEAPQUANT_CPU_HAS_FP16 0
#endif

using FloatMask = hn::Mask<FloatTag>;
HWY_INLINE FloatMask no_lanes() { return hn::Ne(hn::Zero(FloatTag()), hn::Zero(FloatTag())); }
HWY_INLINE FloatMask all_lanes() { return hn::Eq(hn::Zero(FloatTag()), hn::Zero(FloatTag())); }

// Keeps a loaded vector in its register: GCC would rather load it again for every use, and loads
// are what the product loops run out of.
HWY_INLINE FloatVec in_register(FloatVec v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// kLanes FP16 at `p`. Infinity becomes infinity, as fp16_to_float does.
HWY_INLINE FloatVec load_fp16(const uint16_t* p) {
  const FloatTag d;
#if LEAPQUANT_CPU_HAS_FP16
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(HalfTag(), p)));
#else
  const Uint32Tag du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(HalfTag(), p));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  // The exponent's bias differs by 112; the product is exact, for subnormal numbers too.
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)),
                              hn::Set(d, 5192296858534827628530496329220096.0f));  // 2^112
  const auto special =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(du, 0x7bffu)), hn::Set(du, 0x7f800000u));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, scaled), special), sign));
#endif
}

HWY_INLINE FloatVec load_bf16(const uint16_t* p) {
  const Uint32Tag du;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(HalfTag(), p))));
}

HWY_INLINE FloatVec load_int8(const int8_t* p) {
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(Int32Tag(), hn::LoadU(ByteTag(), p)));
}

// float_to_fp16 of |value| <= 65504 (callers clamp).
HWY_INLINE void store_fp16(FloatVec value, uint16_t* p) {
#if LEAPQUANT_CPU_HAS_FP16
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  hn::StoreU(hn::BitCast(HalfTag(), hn::DemoteTo(half, value)), HalfTag(), p);
#else
  const FloatTag d;
  const Uint32Tag du;
  const Int32Tag di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffu)), odd), hn::Set(du, 0x38000000u)));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000u));
  const auto small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x38800000));
  const auto half = hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, small), subnormal, normal));
  hn::StoreU(hn::DemoteTo(HalfTag(), hn::BitCast(di, half)), HalfTag(), p);
#endif
}

// float_to_fp16_saturated; *saturated collects, lane by lane, where it saturated.
HWY_INLINE void store_fp16_saturated(FloatVec value, uint16_t* p, FloatMask* saturated) {
  const FloatTag d;
  const auto limit = hn::Set(d, 65504.0f);
  // 65520 is the first value that rounds past 65504. A NaN fails the comparison.
  const auto inside = hn::Lt(hn::Abs(value), hn::Set(d, 65520.0f));
  *saturated = hn::Or(*saturated, hn::Not(inside));
  const auto number = hn::IfThenElseZero(hn::Eq(value, value), value);
  store_fp16(hn::Min(hn::Max(number, hn::Neg(limit)), limit), p);
}

// float_to_bf16.
HWY_INLINE void store_bf16(FloatVec value, uint16_t* p) {
  const Uint32Tag du;
  const Int32Tag di;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_number = hn::RebindMask(du, hn::Eq(value, value));
  const auto half = hn::IfThenElse(is_number, rounded, quiet);
  hn::StoreU(hn::DemoteTo(HalfTag(), hn::BitCast(di, half)), HalfTag(), p);
}

// Round half to even of |v| < 2^31; Highway's own also mends what lies beyond.
HWY_INLINE hn::Vec<Int32Tag> nearest_int(FloatVec v) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<Int32Tag>{_mm256_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

// Sums over lanes of four vectors, as lanes 0..3 of a 128-bit vector. One order whoever calls it.
template <class D>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sum_to_block([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return sum_to_block(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sum_four(FloatVec a, FloatVec b, FloatVec c,
                                                    FloatVec e) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> wide;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(wide, hn::BitCast(wide, ab), hn::BitCast(wide, ce));
  const auto high = hn::InterleaveUpper(wide, hn::BitCast(wide, ab), hn::BitCast(wide, ce));
  return sum_to_block(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)));
}

HWY_INLINE float sum_of_lanes(FloatVec v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
HWY_INLINE float max_of_lanes(FloatVec v) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), v)); }

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
