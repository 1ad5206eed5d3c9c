// SPDX-License-Identifier: Apache-2.0
//
// A block's view of a head that is folded: the plan of shared memory, number conversions of the
// format, the state in registers and its rebuild from codes, compensators and records.
#pragma once

#include <cuda_fp16.h>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

using namespace device_128;

constexpr uint32_t kAll = 0xffffffffu;
constexpr int32_t kThreads = 256;
constexpr int32_t kRowBytes = 272;      // an FP16 row of 128 values, padded
constexpr int32_t kWeightStride = 132;  // floats of a weight row, padded
constexpr int32_t kColumnStride = 160;  // floats of a value-side column: [g][20], 16 of them used

// Shared memory of a block, in bytes from its start.
struct Plan {
  int32_t keys, decays, rows, weights, partial, columns, sides, gram, small, list;
  int32_t row_count;  // rows of the rebuild: records, then compensators, a multiple of 16
};

__host__ __device__ constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// Compensators that one pass over the state takes.
__host__ __device__ constexpr int32_t partial_width(int32_t rank) { return rank > 4 ? 8 : 4; }

__host__ __device__ constexpr Plan plan_of(int32_t boundary_bytes, int32_t records, int32_t rank,
                                           int32_t decay_row) {
  Plan p{};
  p.row_count = (records + rank + 15) / 16 * 16;
  int32_t at = boundary_bytes;
  p.keys = at;
  at += records * 256;
  p.decays = at;
  at += records * decay_row;
  p.rows = at;
  at += p.row_count * kRowBytes;
  p.weights = at;  // the weights are dead when the partial sums are written
  p.partial = at;
  at += larger(p.row_count * kWeightStride * 4, 8 * 128 * partial_width(rank) * 4);
  p.columns = at;
  at += larger(rank, 4) * kColumnStride * 4;
  p.sides = at;  // T [rank][128] (values), then key sides
  at += larger(rank, 4) * 128 * 4;
  p.gram = at;
  at += 32 * 33 * 4;
  p.small = at;  // key factors, column exponents, maxima, scales, reductions
  at += 6 * 128 * 4 + 64 * 4;
  p.list = (at + 15) / 16 * 16;
  return p;
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

__device__ __forceinline__ float half_at(const char* at, int32_t index) {
  return __half2float(*reinterpret_cast<const __half*>(at + 2 * index));
}

// Value of a log8 byte: 2^((n - 128) / 8), bitwise the table of core/numeric.
__device__ __forceinline__ float log8_value(uint32_t n) {
  float eighth = 1.0f;
  constexpr float kEighth[8] = {1.0f,
                                static_cast<float>(1.0905077326652577),
                                static_cast<float>(1.1892071150027210),
                                static_cast<float>(1.2968395546510096),
                                static_cast<float>(1.4142135623730951),
                                static_cast<float>(1.5422108254079408),
                                static_cast<float>(1.6817928305074290),
                                static_cast<float>(1.8340080864093424)};
#pragma unroll
  for (uint32_t i = 1; i < 8; ++i) eighth = (n & 7u) == i ? kEighth[i] : eighth;
  return eighth * __uint_as_float((n / 8 + 111u) << 23);
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

// Place of value v in a value-side column.
__device__ __forceinline__ int32_t column_place(int32_t v) { return (v & 7) * 20 + (v >> 3); }

// State entries of a lane: at[m][n][2 hh + e] is key 16 warp + 4 t + 2 n + e, value 16 m + 8 hh +
// g.
struct State {
  float at[8][2][4];
};

// A state being folded: where its parts lie, and its rebuild. Fit and codec are added by what
// derives from it.
struct FoldState {
  const Call128& call;
  const HeadFormat128& format;
  char* shared;
  const Plan& plan;
  int32_t thread, lane, warp, g, t;
  int32_t rank;

  __device__ __forceinline__ float* floats(int32_t at) const {
    return reinterpret_cast<float*>(shared + at);
  }
  __device__ __forceinline__ float* key_factors() const { return floats(plan.small); }
  __device__ __forceinline__ float* column_scales() const { return floats(plan.small) + 128; }
  __device__ __forceinline__ uint32_t* maxima() const {
    return reinterpret_cast<uint32_t*>(floats(plan.small) + 256);
  }
  __device__ __forceinline__ float* inverses() const { return floats(plan.small) + 384; }
  __device__ __forceinline__ float* steps() const { return floats(plan.small) + 512; }
  __device__ __forceinline__ float* reductions() const { return floats(plan.small) + 768; }

  // Decoded entry of a compensator without its scale; dead INT4 vectors have scale 0.
  __device__ __forceinline__ float raw_entry(bool key, int32_t c, int32_t i) const {
    if (c < format.num_fp16) {
      return half_at(shared + (key ? format.fp16_keys : format.fp16_values), c * 128 + i);
    }
    c -= format.num_fp16;
    if (c < format.num_int8) {
      const char* at = shared + (key ? format.int8_keys : format.int8_values);
      return static_cast<float>(*reinterpret_cast<const signed char*>(at + c * 128 + i));
    }
    c -= format.num_int8;
    const char* at = shared + (key ? format.int4_keys : format.int4_values);
    const uint32_t byte = *reinterpret_cast<const unsigned char*>(at + c * 64 + i / 2);
    return static_cast<float>(static_cast<int32_t>((byte >> (4 * (i & 1))) & 15u)) - 7.5f;
  }
  __device__ __forceinline__ float scale_of(bool key, int32_t c) const {
    if (c < format.num_fp16) return 1.0f;
    return half_at(shared + (key ? format.key_scales : format.value_scales), c - format.num_fp16);
  }

  // Weights of the rebuild [row][key] with their decays, the keys' factors on the residual, and
  // FP16 rows of the compensators' value sides. `records` rows are filled already.
  template <bool kVector>
  __device__ void prepare(int32_t records, const float* scalar_decays) const {
    float* weights = floats(plan.weights);
    const int32_t key = thread & 127;
    const char* keys = shared + plan.keys;
    float sum = 0.0f;
    uint32_t largest = 0;
    const bool first_half = thread < 128;
    for (int32_t r = records - 1; r >= 0; --r) {
      if (first_half) {
        const float w = half_at(keys, r * 128 + key) * exp_fast(sum);
        weights[r * kWeightStride + key] = w;
        largest = max(largest, __float_as_uint(fabsf(w)));
      }
      if constexpr (kVector) {
        const char* row = shared + plan.decays + r * 128 * call.decay_bytes;
        sum += call.decay_bytes == 4 ? reinterpret_cast<const float*>(row)[key] : half_at(row, key);
      } else {
        sum += scalar_decays[r];
      }
    }
    if (!first_half) {
      const float decay = exp_fast(sum);
      for (int32_t c = 0; c < rank; ++c) {
        const float w = raw_entry(true, c, key) * (scale_of(true, c) * scale_of(false, c)) * decay;
        weights[(records + c) * kWeightStride + key] = w;
        largest = max(largest, __float_as_uint(fabsf(w)));
      }
      float c = 1.0f;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        c = floats(format.smoothing_at)[key];
      } else if (format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
        c = log8_value(*reinterpret_cast<const unsigned char*>(shared + format.smoothing_at + key));
      }
      key_factors()[key] = c * decay;
      const float scale = format.fp16_scale ? half_at(shared + format.value_scale, key)
                                            : floats(format.value_scale)[key];
      steps()[key] = scale * format.inverse_q;
    }
    // Largest weight of a key: both halves' shares meet in shared memory.
    maxima()[key] = 0;
    __syncthreads();
    atomicMax(&maxima()[key], largest);
    const int32_t used = records + rank;
    for (int32_t i = thread; i < (plan.row_count - used) * 128; i += kThreads) {
      weights[(used + i / 128) * kWeightStride + i % 128] = 0.0f;
      *reinterpret_cast<unsigned short*>(shared + plan.rows + (used + i / 128) * kRowBytes +
                                         2 * (i % 128)) = 0;
    }
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      *reinterpret_cast<__half*>(shared + plan.rows + (records + i / 128) * kRowBytes +
                                 2 * (i % 128)) =
          __float2half_rn(raw_entry(false, i / 128, i % 128));
    }
    __syncthreads();
    if (thread < 128) {  // power of two that brings the key's largest weight to 2^14 .. 2^15
      const uint32_t exponent = min(max(maxima()[thread] >> 23, 20u), 240u);
      column_scales()[thread] = __uint_as_float((268u - exponent) << 23);
    }
    __syncthreads();
  }

  // S of the lane: residual codes, compensators and records.
  __device__ void rebuild(State* s) const {
    const float* weights = floats(plan.weights);
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) s->at[m][0][i] = s->at[m][1][i] = 0.0f;
    }
    const int32_t column = 16 * warp + 4 * (g >> 1) + (g & 1);
    const float scale[2] = {column_scales()[column], column_scales()[column + 2]};
    const uint32_t row_start = shared_address(shared + plan.rows);
    for (int32_t k = 0; k < plan.row_count; k += 16) {
      uint32_t high[2][2], low[2][2];
#pragma unroll
      for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
        for (int32_t part = 0; part < 2; ++part) {
          const float* w = weights + (k + 8 * part + 2 * t) * kWeightStride + column + 2 * n;
          const float x = w[0] * scale[n];
          const float y = w[kWeightStride] * scale[n];
          const __half2 h = __floats2half2_rn(x, y);
          const __half2 l = __floats2half2_rn(x - __low2float(h), y - __high2float(h));
          high[n][part] = *reinterpret_cast<const uint32_t*>(&h);
          low[n][part] = *reinterpret_cast<const uint32_t*>(&l);
        }
      }
      // Matrices: rows (records) 0-7 and 8-15 of the step, values 0-7 and 8-15 of the tile.
      const uint32_t mine =
          row_start + (k + (lane & 7) + 8 * (lane >> 4)) * kRowBytes + 16 * ((lane >> 3) & 1);
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        uint32_t a[4];
        load_matrices_transposed(a, mine + 32 * m);
#pragma unroll
        for (int32_t n = 0; n < 2; ++n) {
          mma_fp16(s->at[m][n], a[0], a[1], a[2], a[3], high[n][0], high[n][1]);
          mma_fp16(s->at[m][n], a[0], a[1], a[2], a[3], low[n][0], low[n][1]);
        }
      }
    }
    float factor[4], unscale[4];
#pragma unroll
    for (int32_t b = 0; b < 4; ++b) {
      const int32_t key = 16 * warp + 4 * t + b;
      factor[b] = key_factors()[key];
      unscale[b] = __uint_as_float((254u << 23) - __float_as_uint(column_scales()[key]));
    }
    const float shift = format.half_levels ? 0.5f : 0.0f;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t word[4];
      load_codes(vb, word);
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const float step = steps()[32 * vb + 8 * p + g];
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          // Bytes are code + 128: exact through the mantissa.
          const float code =
              __uint_as_float(__byte_perm(word[p], 0x4b000000u, 0x7650 + b)) - 8388736.0f + shift;
          float& entry = s->at[2 * vb + p / 2][b / 2][2 * (p % 2) + b % 2];
          entry = fmaf(code * step, factor[b], entry * unscale[b]);
        }
      }
    }
  }

  // word[p] byte b: code of key 4 t + b, value 32 vb + 8 p + g, plus 128.
  __device__ __forceinline__ void load_codes(int32_t vb, uint32_t (&word)[4]) const {
    if (format.bits == 8) {
      const uint4 w = reinterpret_cast<const uint4*>(shared)[(vb * 8 + warp) * 32 + lane];
      word[0] = w.x ^ 0x80808080u, word[1] = w.y ^ 0x80808080u;
      word[2] = w.z ^ 0x80808080u, word[3] = w.w ^ 0x80808080u;
      return;
    }
    const uint2 w = reinterpret_cast<const uint2*>(
        shared)[((vb * 4 + (warp >> 1)) * 32 + lane) * 2 + (warp & 1)];
    word[0] = w.x & 0x0f0f0f0fu, word[1] = (w.x >> 4) & 0x0f0f0f0fu;
    word[2] = w.y & 0x0f0f0f0fu, word[3] = (w.y >> 4) & 0x0f0f0f0fu;
    uint32_t offset = 0x78787878u;  // 128 - 8
    if (format.bits == 6) {
      const uint32_t h = reinterpret_cast<const uint32_t*>(
          shared + 8192)[((vb * 2 + (warp >> 2)) * 32 + lane) * 4 + (warp & 3)];
      word[0] |= (h << 4) & 0x30303030u, word[1] |= (h << 2) & 0x30303030u;
      word[2] |= h & 0x30303030u, word[3] |= (h >> 2) & 0x30303030u;
      offset = 0x60606060u;  // 128 - 32
    }
#pragma unroll
    for (int32_t p = 0; p < 4; ++p) word[p] += offset;  // no byte carries
  }

  // word[p] as load_codes gives it, into the payload.
  __device__ __forceinline__ void store_codes(int32_t vb, const uint32_t (&word)[4]) const {
    if (format.bits == 8) {
      reinterpret_cast<uint4*>(shared)[(vb * 8 + warp) * 32 + lane] =
          make_uint4(word[0] ^ 0x80808080u, word[1] ^ 0x80808080u, word[2] ^ 0x80808080u,
                     word[3] ^ 0x80808080u);
      return;
    }
    const uint32_t offset = format.bits == 6 ? 0x60606060u : 0x78787878u;
    uint32_t code[4];
#pragma unroll
    for (int32_t p = 0; p < 4; ++p) code[p] = word[p] - offset;
    reinterpret_cast<uint2*>(shared)[((vb * 4 + (warp >> 1)) * 32 + lane) * 2 + (warp & 1)] =
        make_uint2((code[0] & 0x0f0f0f0fu) | (code[1] & 0x0f0f0f0fu) << 4,
                   (code[2] & 0x0f0f0f0fu) | (code[3] & 0x0f0f0f0fu) << 4);
    if (format.bits == 6) {
      constexpr uint32_t kHigh = 0x30303030u;
      reinterpret_cast<uint32_t*>(shared +
                                  8192)[((vb * 2 + (warp >> 2)) * 32 + lane) * 4 + (warp & 3)] =
          (code[0] & kHigh) >> 4 | (code[1] & kHigh) >> 2 | (code[2] & kHigh) |
          (code[3] & kHigh) << 2;
    }
  }

  // Largest magnitude of the block as bits; all threads get it.
  __device__ uint32_t block_max(uint32_t bits) const {
    uint32_t* slots = reinterpret_cast<uint32_t*>(reductions());
    bits = __reduce_max_sync(kAll, bits);
    __syncthreads();
    if (lane == 0) slots[warp] = bits;
    __syncthreads();
    uint32_t result = slots[0];
#pragma unroll
    for (int32_t w = 1; w < 8; ++w) result = max(result, slots[w]);
    return result;
  }
  __device__ float block_sum(float x) const {
    x = sum_of_warp(x);
    __syncthreads();
    if (lane == 0) reductions()[warp] = x;
    __syncthreads();
    float result = reductions()[0];
#pragma unroll
    for (int32_t w = 1; w < 8; ++w) result += reductions()[w];
    return result;
  }
};

__device__ __forceinline__ float squares(const State& s) {
  float sum = 0.0f;
#pragma unroll
  for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sum = fmaf(s.at[m][0][i], s.at[m][0][i], sum);
      sum = fmaf(s.at[m][1][i], s.at[m][1][i], sum);
    }
  }
  return sum;
}

__device__ __forceinline__ uint32_t largest_bits(const State& s) {
  uint32_t bits = 0;
#pragma unroll
  for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      bits = max(bits, __float_as_uint(s.at[m][0][i]) & 0x7fffffffu);
      bits = max(bits, __float_as_uint(s.at[m][1][i]) & 0x7fffffffu);
    }
  }
  return bits;
}

}  // namespace leapquant::cuda::folding_128
