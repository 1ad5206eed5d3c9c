// SPDX-License-Identifier: Apache-2.0
//
// Number conversions of the fold, bit for bit those of core/numeric, and sums of neighbours.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/numbers_128.cuh"

namespace leapquant::cuda::folding_128 {

using numbers_128::half_at;
using numbers_128::kAll;
using numbers_128::log8_value;
using numbers_128::split;
using numbers_128::sum_of_warp;

// Sum of eight neighbouring floats, 16-byte aligned.
__device__ __forceinline__ float sum_of_eight(const float* at) {
  const float4 x = reinterpret_cast<const float4*>(at)[0];
  const float4 y = reinterpret_cast<const float4*>(at)[1];
  return ((x.x + x.y) + (x.z + x.w)) + ((y.x + y.y) + (y.z + y.w));
}

// 2^exponent, -126 .. 127.
__device__ __forceinline__ float power_of_two(int32_t exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

// Byte of a factor >= 0: the number of thresholds at or below it (core/numeric).
__device__ __forceinline__ int32_t to_log8(float m) {
  constexpr float kMidpoint[8] = {
      static_cast<float>(2 * 0.9576032806985737), static_cast<float>(1.0442737824274138),
      static_cast<float>(1.1387886347566916),     static_cast<float>(1.2418578120734840),
      static_cast<float>(1.3542555469368927),     static_cast<float>(1.4768261459394993),
      static_cast<float>(1.6104903319492543),     static_cast<float>(1.7562521603732995)};
  const uint32_t bits = __float_as_uint(m);
  const float f = __uint_as_float((bits & 0x007fffffu) | 0x3f800000u);
  int32_t n = 8 * (static_cast<int32_t>(bits >> 23) - 127 + 16);
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) n += f >= kMidpoint[i] ? 1 : 0;
  return min(max(n, 0), 255);
}

// Smallest FP16 not below x >= 0, saturating (core/numeric).
__device__ __forceinline__ unsigned short to_half_up(float x, bool* saturated) {
  const unsigned short half = __half_as_ushort(__float2half_rn(x));
  if (half >= 0x7c00u) {
    *saturated = true;
    return 0x7bffu;
  }
  if (__half2float(__ushort_as_half(half)) >= x) return half;
  if (half == 0x7bffu) {
    *saturated = true;
    return half;
  }
  return static_cast<unsigned short>(half + 1);
}

__device__ __forceinline__ unsigned short to_half_saturated(float x, bool* saturated) {
  if (!(fabsf(x) < 65520.0f)) *saturated = true;
  return __half_as_ushort(__float2half_rn(x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

}  // namespace leapquant::cuda::folding_128
