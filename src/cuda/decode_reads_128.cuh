// SPDX-License-Identifier: Apache-2.0
//
// Parts of the decode of heads of 128 x 128 that know no head: the plan of shared memory, sums over
// lanes, codes and vectors as floats, the residual read by the integer matrix units.
#pragma once

#include <cuda_fp16.h>

#include "cuda/call_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::decoding_128 {

using namespace device_128;

constexpr int32_t kPlaneWords = 36;  // 32 words of one byte plane, padded against bank conflicts
constexpr int32_t kLimbBytes = 528;  // 128 values as FP16 pairs, high and low in turn, padded
constexpr int32_t kDeferredWords = 64;
constexpr uint32_t kAll = 0xffffffffu;

// Shared memory of one block, in bytes from its start.
struct Plan {
  int32_t keys, corrections, decays, planes, reads, sums, limbs, weights, zeros, deferred, bases,
      units, barrier, bytes;
  int32_t record_rows;  // weights of records, then of compensators: tiles of 16 rows
};

__host__ __device__ constexpr Plan plan_of(int32_t boundary_bytes, int32_t capacity,
                                           int32_t decay_bytes) {
  Plan p{};
  p.record_rows = (capacity + 15) / 16 * 16;
  int32_t at = boundary_bytes;
  p.keys = at;
  at += capacity * 256;
  p.corrections = at;
  at += capacity * 256;
  p.decays = at;
  at += capacity * 128 * decay_bytes;
  p.planes = at;
  at += 8 * kPlaneWords * 4;
  p.reads = at;
  p.limbs = at;  // dead when the reads are written
  at += 2 * 128 * 4;
  p.sums = at;
  at += 2 * 128 * 4;
  p.weights = at;
  at += (p.record_rows + 64) * 8;
  p.zeros = at;
  at += 256;
  p.deferred = at;
  at += kDeferredWords * 4;
  p.bases = at;
  at += 32 * 4;
  p.units = at;
  at += 4 * 4;
  p.barrier = (at + 7) / 8 * 8;
  p.bytes = p.barrier + 8;
  return p;
}

template <int kWarps>
__device__ __forceinline__ void block_sync() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

__device__ __forceinline__ float dot_four(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// One step of the sums below: lanes 2 kHalf apart exchange halves of 2 kHalf values.
template <int kHalf>
__device__ __forceinline__ void exchange_halves(float (&p)[16], int32_t lane) {
  const bool upper = (lane & (2 * kHalf)) != 0;
#pragma unroll
  for (int32_t i = 0; i < kHalf; ++i) {
    const float send = select_float(upper, p[i], p[i + kHalf]);
    const float keep = select_float(upper, p[i + kHalf], p[i]);
    p[i] = keep + __shfl_xor_sync(kAll, send, 2 * kHalf);
  }
}

// Sums of 16 values over the lanes; lane l receives that of value l / 2.
__device__ __forceinline__ float sums_of_sixteen(float (&p)[16], int32_t lane) {
  exchange_halves<8>(p, lane);
  exchange_halves<4>(p, lane);
  exchange_halves<2>(p, lane);
  exchange_halves<1>(p, lane);
  return p[0] + __shfl_xor_sync(kAll, p[0], 1);
}

// Four bytes (two's complement) as two pairs of FP16, exact.
__device__ __forceinline__ void bytes_to_halves(uint32_t word, uint32_t* low, uint32_t* high) {
  const uint32_t shifted = word ^ 0x80808080u;  // 1024 + code + 128
  *low = subtract_halves(__byte_perm(shifted, 0x64646464u, 0x4140), 0x64806480u);
  *high = subtract_halves(__byte_perm(shifted, 0x64646464u, 0x4342), 0x64806480u);
}

// Eight nibbles (code + 8 of half-integers) as four pairs of FP16, code + 1/2, exact; of a word
// with four nibbles the first two pairs.
__device__ __forceinline__ void nibbles_to_halves(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMask = 0x03c003c0u;
  constexpr uint32_t kSixteen = 0x4c004c00u;                                       // 16 + nibble
  constexpr uint32_t kOffset = 0x4de04de0u;                                        // 23.5
  const uint32_t z0 = subtract_halves(((word << 6) & kMask) | kSixteen, kOffset);  // 0 and 4
  const uint32_t z1 = subtract_halves(((word << 2) & kMask) | kSixteen, kOffset);  // 1 and 5
  const uint32_t z2 = subtract_halves(((word >> 2) & kMask) | kSixteen, kOffset);  // 2 and 6
  const uint32_t z3 = subtract_halves(((word >> 6) & kMask) | kSixteen, kOffset);  // 3 and 7
  pairs[0] = __byte_perm(z0, z1, 0x5410);
  pairs[1] = __byte_perm(z2, z3, 0x5410);
  pairs[2] = __byte_perm(z0, z1, 0x7632);
  pairs[3] = __byte_perm(z2, z3, 0x7632);
}

enum class RowKind { kFp16, kInt8, kInt4 };

__host__ __device__ constexpr int32_t row_bytes_of(RowKind kind) {
  return kind == RowKind::kFp16 ? 256 : kind == RowKind::kInt8 ? 128 : 64;
}

// Values kCount index .. kCount index + kCount - 1 of a row (without its scale) as pairs of FP16.
template <RowKind kKind, int kCount>
__device__ __forceinline__ void load_group(const char* row, int32_t index,
                                           uint32_t (&pairs)[kCount / 2]) {
  static_assert(kCount == 8 || kCount == 4);
  if constexpr (kKind == RowKind::kFp16) {
    if constexpr (kCount == 8) {
      const uint4 x = reinterpret_cast<const uint4*>(row)[index];
      pairs[0] = x.x, pairs[1] = x.y, pairs[2] = x.z, pairs[3] = x.w;
    } else {
      const uint2 x = reinterpret_cast<const uint2*>(row)[index];
      pairs[0] = x.x, pairs[1] = x.y;
    }
  } else if constexpr (kKind == RowKind::kInt8) {
    if constexpr (kCount == 8) {
      const uint32_t* x = reinterpret_cast<const uint32_t*>(row) + 2 * index;  // 4-byte aligned
      bytes_to_halves(x[0], &pairs[0], &pairs[1]);
      bytes_to_halves(x[1], &pairs[2], &pairs[3]);
    } else {
      bytes_to_halves(reinterpret_cast<const uint32_t*>(row)[index], &pairs[0], &pairs[1]);
    }
  } else {
    uint32_t all[4];
    nibbles_to_halves(kCount == 8 ? reinterpret_cast<const uint32_t*>(row)[index]
                                  : reinterpret_cast<const unsigned short*>(row)[index],
                      all);
#pragma unroll
    for (int32_t i = 0; i < kCount / 2; ++i) pairs[i] = all[i];
  }
}

// Power of two that brings `bits` (a float's, not negative) to 2^14 .. 2^15, and its inverse.
__device__ __forceinline__ float to_top(uint32_t bits, float* back) {
  const uint32_t exponent = min(max(bits >> 23, 20u), 240u);
  *back = __uint_as_float((exponent - 14u) << 23);
  return __uint_as_float((268u - exponent) << 23);
}

// x and y as pairs of FP16: high parts, and what they leave.
__device__ __forceinline__ void split(float x, float y, uint32_t* high, uint32_t* low) {
  const __half2 h = __floats2half2_rn(x, y);
  const __half2 l = __floats2half2_rn(x - __low2float(h), y - __high2float(h));
  *high = *reinterpret_cast<const uint32_t*>(&h);
  *low = *reinterpret_cast<const uint32_t*>(&l);
}

// Writes the high and low parts of one read vector (0 or 1) as FP16 and returns what one unit of
// them stands for.
__device__ __forceinline__ float write_limbs(float4 x, int32_t vector, char* limbs, int32_t lane) {
  const float largest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  float unit;
  const float scale = to_top(__reduce_max_sync(kAll, __float_as_uint(largest)), &unit);
  uint2 high, low;
  split(x.x * scale, x.y * scale, &high.x, &low.x);
  split(x.z * scale, x.w * scale, &high.y, &low.y);
  reinterpret_cast<uint4*>(limbs + vector * kLimbBytes)[lane] =
      make_uint4(high.x, low.x, high.y, low.y);
  return unit;
}

__device__ __forceinline__ float half_at(const char* at, int32_t index) {
  return __half2float(*reinterpret_cast<const __half*>(at + 2 * index));
}

// Writes the byte planes of one read vector (vector 0 or 1) and returns what one unit stands for.
__device__ __forceinline__ float write_planes(float4 x, int32_t vector, uint32_t* planes,
                                              int32_t lane) {
  const float largest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(largest));
  const uint32_t exponent = max(bits >> 23, 30u);
  const float scale = __uint_as_float((283u - exponent) << 23);  // 2^29 over the power of two
  const float unit = __uint_as_float((exponent - 29u) << 23);
  const float in[4] = {x.x, x.y, x.z, x.w};
  uint32_t fixed[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    // Balanced digits: the lower three bytes carry where they pass 127.
    fixed[i] = static_cast<uint32_t>(__float2int_rn(in[i] * scale) + 0x00808080) ^ 0x00808080u;
  }
  const uint32_t low01 = __byte_perm(fixed[0], fixed[1], 0x5140);
  const uint32_t low23 = __byte_perm(fixed[2], fixed[3], 0x5140);
  const uint32_t high01 = __byte_perm(fixed[0], fixed[1], 0x7362);
  const uint32_t high23 = __byte_perm(fixed[2], fixed[3], 0x7362);
  const int32_t word = (lane & 3) * 8 + (lane >> 2);
  uint32_t* plane = planes + 4 * vector * kPlaneWords + word;
  plane[0 * kPlaneWords] = __byte_perm(low01, low23, 0x5410);
  plane[1 * kPlaneWords] = __byte_perm(low01, low23, 0x7632);
  plane[2 * kPlaneWords] = __byte_perm(high01, high23, 0x5410);
  plane[3 * kPlaneWords] = __byte_perm(high01, high23, 0x7632);
  return unit;
}

// Sums of code x fixed-point vector of 32 values, to reads [2][128] (in units; the value scale and
// the unit are the caller's).
template <int kBits>
__device__ __forceinline__ void read_codes(const char* payload, int32_t value_block,
                                           const uint32_t (&b)[8], const int32_t (&ones)[4],
                                           bool half_levels, float* reads, int32_t lane) {
  int32_t d[2][4] = {};
  if constexpr (kBits == 8) {
    // Loads of half a lane's words: an operand takes halves of two, and registers need not move.
    const uint32_t blocks = shared_address(payload) + value_block * 4096 + 16 * lane;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
        const uint2 w0 = load_shared_pair(blocks + 1024 * s + 8 * m);
        const uint2 w1 = load_shared_pair(blocks + 1024 * s + 512 + 8 * m);
        mma_int8<true>(d[m], w0.x, w0.y, w1.x, w1.y, b[2 * s], b[2 * s + 1]);
      }
    }
  } else {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    constexpr uint32_t kHigh = 0x30303030u;
    const uint4* blocks = reinterpret_cast<const uint4*>(payload) + value_block * 128 + lane;
    const uint4* highs = reinterpret_cast<const uint4*>(payload + 8192) + value_block * 64 + lane;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      const uint4 w = blocks[32 * s];
      uint32_t a[2][4] = {{w.x & kLow, (w.x >> 4) & kLow, w.z & kLow, (w.z >> 4) & kLow},
                          {w.y & kLow, (w.y >> 4) & kLow, w.w & kLow, (w.w >> 4) & kLow}};
      if constexpr (kBits == 6) {
        const uint4 h = highs[32 * (s / 2)];
        const uint32_t even = s % 2 == 0 ? h.x : h.z;
        const uint32_t odd = s % 2 == 0 ? h.y : h.w;
        a[0][0] |= (even << 4) & kHigh;
        a[0][1] |= (even << 2) & kHigh;
        a[1][0] |= even & kHigh;
        a[1][1] |= (even >> 2) & kHigh;
        a[0][2] |= (odd << 4) & kHigh;
        a[0][3] |= (odd << 2) & kHigh;
        a[1][2] |= odd & kHigh;
        a[1][3] |= (odd >> 2) & kHigh;
      }
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
        mma_int8<false>(d[m], a[m][0], a[m][1], a[m][2], a[m][3], b[2 * s], b[2 * s + 1]);
      }
    }
  }
  // Columns 2t and 2t + 1 are neighbouring digits of one vector. Half-integers: twice the sum.
  const int32_t offset = kBits == 8 ? 0 : kBits == 6 ? -32 : -8;
  const int32_t times = half_levels ? 2 : 1;
  const int32_t shift = (times * offset + (half_levels ? 1 : 0)) * (ones[1] * 256 + ones[0]);
  const float weight = (lane & 1 ? 65536.0f : 1.0f) * (half_levels ? 0.5f : 1.0f);
  const int32_t g = lane >> 2;
#pragma unroll
  for (int32_t m = 0; m < 2; ++m) {
    float upper = static_cast<float>(times * (d[m][1] * 256 + d[m][0]) + shift) * weight;
    float lower = static_cast<float>(times * (d[m][3] * 256 + d[m][2]) + shift) * weight;
    upper += __shfl_xor_sync(kAll, upper, 1);
    lower += __shfl_xor_sync(kAll, lower, 1);
    const int32_t value = 32 * value_block + 16 * m + 8 * (lane & 1) + g;
    reads[128 * ((lane >> 1) & 1) + value] = lane & 1 ? lower : upper;
  }
}

__device__ __forceinline__ __half to_half_saturated(float x, bool* saturated) {
  if (!(fabsf(x) < 65520.0f)) *saturated = true;
  return __float2half_rn(x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

template <int kCount>
__device__ __forceinline__ void to_halves_saturated(const float (&x)[kCount], __half (&to)[kCount],
                                                    bool* saturated) {
  bool fits = true;
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) fits = fits && fabsf(x[i]) < 65520.0f;
  if (fits) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) to[i] = __float2half_rn(x[i]);
  } else {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) to[i] = to_half_saturated(x[i], saturated);
  }
}

// A log decay as the window keeps it in FP16: -inf stays, finite ones stay finite.
__device__ __forceinline__ __half decay_to_half(float g) {
  return __float2half_rn(g == -INFINITY ? g : fmaxf(g, -65504.0f));
}

template <int kCount>
__device__ __forceinline__ void store_values(char* row, int32_t type, int32_t place,
                                             const float (&x)[kCount]) {
  if (type == LEAPQUANT_FP32) {
    float* at = reinterpret_cast<float*>(row) + kCount * place;
    if constexpr (kCount == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) at[i] = x[i];
    }
    return;
  }
  unsigned short half[kCount];
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) {
    if (type == LEAPQUANT_BF16) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half[i]) : "f"(x[i]));
    } else {
      half[i] = __half_as_ushort(__float2half_rn(fminf(fmaxf(x[i], -65504.0f), 65504.0f)));
    }
  }
  unsigned short* at = reinterpret_cast<unsigned short*>(row) + kCount * place;
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(at) = make_uint2(half[0] | static_cast<uint32_t>(half[1]) << 16,
                                               half[2] | static_cast<uint32_t>(half[3]) << 16);
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<uint32_t*>(at) = half[0] | static_cast<uint32_t>(half[1]) << 16;
  } else {
    at[0] = half[0];
  }
}

}  // namespace leapquant::cuda::decoding_128
