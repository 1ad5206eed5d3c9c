// SPDX-License-Identifier: Apache-2.0
//
// Number conversions of the format on the device: the arithmetic of core/numeric, bit for bit.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/sentence.h"

namespace leapquant::cuda {

__device__ __forceinline__ float bf16_value(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ uint16_t to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ float fp16_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
}

// exp(g) of a token's log decay, g <= 0. expf may be off by one in the last place, always to the
// same side for the same g; a state that hardly forgets takes that in at every token.
__device__ __forceinline__ float decay_factor(float g) {
  return g > -0.25f ? 1.0f + expm1f(g) : expf(g);
}

// Round half to even; overflow gives infinity.
__device__ __forceinline__ uint16_t to_fp16(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

// FP16 that saturates at +-65504; NaN becomes 0. Both are told.
__device__ __forceinline__ uint16_t to_fp16_saturated(float value, bool* saturated) {
  if (value != value) {
    *saturated = true;
    return 0;
  }
  const uint16_t half = to_fp16(value);
  if ((half & 0x7fffu) != 0x7c00u) return half;
  *saturated = true;
  return static_cast<uint16_t>((half & 0x8000u) | 0x7bffu);
}

// Smallest FP16 not below a value >= 0; saturates at 65504.
__device__ __forceinline__ uint16_t to_fp16_up(float value, bool* saturated) {
  const uint16_t half = to_fp16(value);
  if (half >= 0x7c00u) {
    *saturated = true;
    return 0x7bffu;
  }
  if (fp16_value(half) >= value) return half;
  if (half == 0x7bffu) {
    *saturated = true;
    return half;
  }
  return static_cast<uint16_t>(half + 1);
}

// Half to even for |x| < 2^22.
__device__ __forceinline__ float round_half_even(float x) {
  return __fadd_rn(__fadd_rn(x, 12582912.0f), -12582912.0f);
}

// 2^exponent for normal results.
__device__ __forceinline__ float power_of_two(int32_t exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

// One of eight constants times 2^(n / 8 - 16): exact scaling, so the table's own bits.
__device__ __forceinline__ float log8_scaled(const float (&eighth)[8], int32_t n) {
  float result = eighth[0];
#pragma unroll
  for (int32_t i = 1; i < 8; ++i) {
    if (n % 8 == i) result = eighth[i];
  }
  return __fmul_rn(result, power_of_two(n / 8 - 16));
}

// The factor that byte n stands for.
__device__ __forceinline__ float log8_value(int32_t n) {
  constexpr float kEighth[8] = {1.0f,
                                static_cast<float>(1.0905077326652577),
                                static_cast<float>(1.1892071150027210),
                                static_cast<float>(1.2968395546510096),
                                static_cast<float>(1.4142135623730951),
                                static_cast<float>(1.5422108254079408),
                                static_cast<float>(1.6817928305074290),
                                static_cast<float>(1.8340080864093424)};
  return log8_scaled(kEighth, n);
}

// Smallest factor that byte n >= 1 stands for: half a step below its value.
__device__ __forceinline__ float log8_threshold(int32_t n) {
  constexpr float kMidpoint[8] = {
      static_cast<float>(0.9576032806985737), static_cast<float>(1.0442737824274138),
      static_cast<float>(1.1387886347566916), static_cast<float>(1.2418578120734840),
      static_cast<float>(1.3542555469368927), static_cast<float>(1.4768261459394993),
      static_cast<float>(1.6104903319492543), static_cast<float>(1.7562521603732995)};
  return log8_scaled(kMidpoint, n);
}

// Byte of a factor >= 0: the number of thresholds at or below it.
__device__ __forceinline__ int32_t to_log8(float value) {
  int32_t low = 0;
  int32_t high = 255;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (log8_threshold(middle) <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Element `index` of a row of a leapquant_type.
__device__ __forceinline__ float load_number(const char* row, int32_t type, int32_t index) {
  if (type == LEAPQUANT_FP32) return reinterpret_cast<const float*>(row)[index];
  const uint16_t half = reinterpret_cast<const uint16_t*>(row)[index];
  return type == LEAPQUANT_FP16 ? fp16_value(half) : bf16_value(half);
}

__device__ __forceinline__ void store_number(char* row, int32_t type, int32_t index, float value) {
  if (type == LEAPQUANT_FP32) {
    reinterpret_cast<float*>(row)[index] = value;
    return;
  }
  bool ignored = false;
  reinterpret_cast<uint16_t*>(row)[index] =
      type == LEAPQUANT_FP16 ? to_fp16_saturated(value, &ignored) : to_bf16(value);
}

__device__ __forceinline__ int32_t number_bytes(int32_t type) {
  return type == LEAPQUANT_FP32 ? 4 : 2;
}

}  // namespace leapquant::cuda
