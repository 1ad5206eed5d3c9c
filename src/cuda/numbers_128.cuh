// SPDX-License-Identifier: Apache-2.0
//
// Numbers as the fold and the decode of 128 x 128 heads both read and write them. A namespace of
// its own: the general kernels have names like these.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx.cuh"

namespace leapquant::cuda::numbers_128 {

constexpr uint32_t kAll = 0xffffffffu;  // lanes

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

__device__ __forceinline__ float half_at(const char* at, int32_t index) {
  return __half2float(*reinterpret_cast<const __half*>(at + 2 * index));
}

// x and y as pairs of FP16: high parts, and what they leave.
__device__ __forceinline__ void split(float x, float y, uint32_t* high, uint32_t* low) {
  const __half2 h = __floats2half2_rn(x, y);
  const __half2 l = __floats2half2_rn(x - __low2float(h), y - __high2float(h));
  *high = *reinterpret_cast<const uint32_t*>(&h);
  *low = *reinterpret_cast<const uint32_t*>(&l);
}

// Value of a log8 byte: 2^((n - 128) / 8), bitwise the table of core/numeric.
__device__ __forceinline__ float log8_value(uint32_t n) {
  const bool one = (n & 1u) != 0;
  const bool two = (n & 2u) != 0;
  const float low = select_float(two, select_float(one, 1.2968395546510096f, 1.1892071150027210f),
                                 select_float(one, 1.0905077326652577f, 1.0f));
  const float high = select_float(two, select_float(one, 1.8340080864093424f, 1.6817928305074290f),
                                  select_float(one, 1.5422108254079408f, 1.4142135623730951f));
  const float eighth = select_float((n & 4u) != 0, high, low);
  return eighth * __uint_as_float((n / 8 + 111u) << 23);
}

}  // namespace leapquant::cuda::numbers_128
