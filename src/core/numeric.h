// SPDX-License-Identifier: Apache-2.0
//
// Scalar number conversions with one rounding rule, round half to even, and the codec's arithmetic
// that every backend must reproduce bit for bit. Backends vectorise these; they never redefine
// them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace leapquant {

inline constexpr float kFp16Max = 65504.0f;
inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round half to even; NaN stays NaN (quiet), infinity stays infinity.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in FP32.
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// IEEE conversion, round half to even; overflow gives infinity.
inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// FP16 that saturates at +-65504 (NaN becomes 0: callers flag non-finite values before storing).
// *saturated is set, never cleared.
inline uint16_t float_to_fp16_saturated(float value, bool* saturated) {
  if (std::isnan(value)) {
    *saturated = true;
    return 0;
  }
  const uint16_t half = float_to_fp16(value);
  if ((half & 0x7fffu) != 0x7c00u) return half;
  *saturated = true;
  return static_cast<uint16_t>((half & 0x8000u) | 0x7bffu);
}

// Smallest FP16 not below a value >= 0; saturates at 65504. A value below 2^-24 but above zero
// gives 2^-24. A scale rounded up never clips what it scales.
inline uint16_t float_to_fp16_up(float value, bool* saturated) {
  const uint16_t half = float_to_fp16(value);
  if (half >= 0x7c00u) {
    *saturated = true;
    return 0x7bffu;
  }
  if (fp16_to_float(half) >= value) return half;
  if (half == 0x7bffu) {
    *saturated = true;
    return half;
  }
  return static_cast<uint16_t>(half + 1);
}

// Round half to even without the rounding mode's help; exact for |x| < 2^22, where codes lie.
inline float round_half_even(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  volatile float sum = x + magic;   // volatile: the pair must not be folded away
  return sum - magic;
}

// log8: byte n stands for 2^((n - 128) / 8), n = 0 for a zero row. kLog8Values[n] is that value
// rounded to FP32; built from exact powers of two and eight constants.
struct Log8Table {
  float value[256];      // factor of byte n; value[0] = 2^-16
  float threshold[256];  // smallest input encoded as n (n >= 1): geometric mean of the neighbours
};
const Log8Table& log8_table();

// Byte of a smoothing factor >= 0: the number of thresholds at or below it. Zero gives 0.
uint8_t float_to_log8(float value);

}  // namespace leapquant
