// SPDX-License-Identifier: Apache-2.0
//
// Folds of heads of 128 x 128 that are due in a decode call. A block of eight warps holds one state
// in registers: warp w has keys 16 w .. 16 w + 15, a lane four keys and sixteen values of them, in
// the order in which the matrix units accumulate and in which the payload is stored. Rebuild by the
// matrix units (weights as FP16 high and low parts, scaled per key), fit and codec in FP32. Reads
// base, writes boundary states, health and, last, base.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/start_vectors.h"
#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

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

struct Fold {
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

  // The lane's sixteen values of a column, index 2 m + hh.
  __device__ __forceinline__ void load_column(int32_t c, float (&v)[16]) const {
    const float4* at =
        reinterpret_cast<const float4*>(floats(plan.columns) + c * kColumnStride + g * 20);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float4 x = at[i];
      v[4 * i] = x.x, v[4 * i + 1] = x.y, v[4 * i + 2] = x.z, v[4 * i + 3] = x.w;
    }
  }

  // (S column c) of the lane's four keys, whole sums in every lane of the key.
  __device__ __forceinline__ void times(const State& s, int32_t c, float (&p)[4]) const {
    float v[16];
    load_column(c, v);
#pragma unroll
    for (int32_t b = 0; b < 4; ++b) {
      float even = 0.0f;
      float odd = 0.0f;
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        even = fmaf(s.at[m][b / 2][b % 2], v[2 * m], even);
        odd = fmaf(s.at[m][b / 2][2 + b % 2], v[2 * m + 1], odd);
      }
      p[b] = even + odd;
    }
#pragma unroll
    for (int32_t step = 4; step <= 16; step <<= 1) {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) p[b] += __shfl_xor_sync(kAll, p[b], step);
    }
  }

  // sides [rank][128] = S^T (S columns), scaled by `scale` twice. The second product runs on the
  // matrix units in TF32: it only turns the columns, what is stored is rounded to FP16 or less.
  __device__ __forceinline__ void power_step(const State& s, float scale) const {
    float* partial = floats(plan.partial);
    float* sides = floats(plan.sides);
    const int32_t width = partial_width(rank);
#pragma unroll 1
    for (int32_t first = 0; first < rank; first += width) {
      const int32_t count = min(width, rank - first);
      float mine[4] = {};  // (S column g) of the lane's keys: the second operand as it is needed
#pragma unroll 1
      for (int32_t c = 0; c < count; ++c) {
        float p[4];
        times(s, first + c, p);
        if (g == c) {
#pragma unroll
          for (int32_t b = 0; b < 4; ++b) mine[b] = p[b] * scale;
        }
      }
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        float d[4] = {};
#pragma unroll
        for (int32_t n = 0; n < 2; ++n) {
          mma_tf32(d, __float_as_uint(s.at[m][n][0]), __float_as_uint(s.at[m][n][2]),
                   __float_as_uint(s.at[m][n][1]), __float_as_uint(s.at[m][n][3]),
                   __float_as_uint(mine[2 * n]), __float_as_uint(mine[2 * n + 1]));
        }
        if (2 * t < width) {
          float* to = partial + (warp * 128 + 16 * m + g) * width + 2 * t;
          *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
          *reinterpret_cast<float2*>(to + 8 * width) = make_float2(d[2], d[3]);
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int32_t i = thread; i < width * 128; i += kThreads) {
        float sum = partial[i];
#pragma unroll
        for (int32_t w = 1; w < 8; ++w) sum += partial[w * 128 * width + i];
        const int32_t c = i & (width - 1);
        if (c < count) sides[(first + c) * 128 + i / width] = sum * scale;
      }
      __syncthreads();
    }
  }

  // gram [i][j], j <= i, of `sides` columns (stride 128).
  __device__ void make_gram(float ridge) const {
    const float* sides = floats(plan.sides);
    float* gram = floats(plan.gram);
    int32_t pair = 0;
    for (int32_t i = 0; i < rank; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(sides + i * 128 + 4 * lane);
      for (int32_t j = 0; j <= i; ++j, ++pair) {
        if ((pair & 7) != warp) continue;
        const float4 b = *reinterpret_cast<const float4*>(sides + j * 128 + 4 * lane);
        float sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
        sum = sum_of_warp(sum);
        if (lane == 0) gram[i * 33 + j] = i == j ? sum + ridge : sum;
      }
    }
    __syncthreads();
  }

  // Cholesky factor of gram in place by warp 0, diagonal entries inverted; dead columns (pivot
  // below `least` of the diagonal, or zero) get an inverse of 0.
  __device__ void factor(float least) const {
    float* gram = floats(plan.gram);
    if (warp == 0) {
      const float before = lane < rank ? gram[lane * 33 + lane] : 0.0f;
      for (int32_t j = 0; j < rank; ++j) {
        const float pivot = gram[j * 33 + j];
        const float diagonal = __shfl_sync(kAll, before, j);
        const float inverse = pivot > least * diagonal && pivot > 0.0f ? rsqrtf(pivot) : 0.0f;
        __syncwarp();
        float mine = 0.0f;
        if (lane > j && lane < rank) {
          mine = gram[lane * 33 + j] * inverse;
          gram[lane * 33 + j] = mine;
        }
        if (lane == j) gram[j * 33 + j] = inverse;
        __syncwarp();
        for (int32_t k = j + 1; k < rank; ++k) {
          if (lane >= k && lane < rank) {
            gram[lane * 33 + k] = fmaf(-mine, gram[k * 33 + j], gram[lane * 33 + k]);
          }
        }
        __syncwarp();
      }
    }
    __syncthreads();
  }

  // Rows of `sides` times the inverse of the factor's transpose: orthonormal columns. In place.
  __device__ void forward_solve() const {
    float* sides = floats(plan.sides);
    const float* gram = floats(plan.gram);
    if (thread < 128) {
      for (int32_t j = 0; j < rank; ++j) {
        float sum = sides[j * 128 + thread];
        for (int32_t i = 0; i < j; ++i) {
          sum = fmaf(-gram[j * 33 + i], sides[i * 128 + thread], sum);
        }
        sides[j * 128 + thread] = sum * gram[j * 33 + j];
      }
    }
    __syncthreads();
  }
  __device__ void backward_solve() const {
    float* sides = floats(plan.sides);
    const float* gram = floats(plan.gram);
    if (thread < 128) {
      for (int32_t j = rank - 1; j >= 0; --j) {
        float sum = sides[j * 128 + thread];
        for (int32_t i = j + 1; i < rank; ++i) {
          sum = fmaf(-gram[i * 33 + j], sides[i * 128 + thread], sum);
        }
        sides[j * 128 + thread] = sum * gram[j * 33 + j];
      }
    }
    __syncthreads();
  }

  // columns = sides.
  __device__ void to_columns() const {
    const float* sides = floats(plan.sides);
    float* columns = floats(plan.columns);
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      columns[(i / 128) * kColumnStride + column_place(i & 127)] = sides[i];
    }
    __syncthreads();
  }

  // sides [rank][128] = S columns, per key.
  __device__ void key_sides(const State& s) const {
    float* sides = floats(plan.sides);
    for (int32_t c = 0; c < rank; ++c) {
      float p[4];
      times(s, c, p);
      if (g == 0) {
        *reinterpret_cast<float4*>(sides + c * 128 + 16 * warp + 4 * t) =
            make_float4(p[0], p[1], p[2], p[3]);
      }
    }
    __syncthreads();
  }

  // Rounds `sides` to the compensators' types into the boundary state, and replaces them by what
  // is decoded. A warp takes a vector.
  __device__ uint32_t round_sides(bool key) const {
    float* sides = floats(plan.sides);
    bool saturated = false;
    for (int32_t c = warp; c < rank; c += 8) {
      float4* at = reinterpret_cast<float4*>(sides + c * 128 + 4 * lane);
      const float4 x = *at;
      float in[4] = {x.x, x.y, x.z, x.w};
      if (c < format.num_fp16) {
        unsigned short* to = reinterpret_cast<unsigned short*>(
            shared + (key ? format.fp16_keys : format.fp16_values) + c * 256 + 8 * lane);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          to[i] = to_half_saturated(in[i], &saturated);
          in[i] = __half2float(__ushort_as_half(to[i]));
        }
      } else {
        const int32_t quantised = c - format.num_fp16;
        const bool wide = quantised < format.num_int8;
        const float magnitude =
            fmaxf(fmaxf(fabsf(in[0]), fabsf(in[1])), fmaxf(fabsf(in[2]), fabsf(in[3])));
        const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(magnitude)));
        const float steps_of = wide ? 127.0f : 8.0f;
        const unsigned short half =
            largest == 0.0f ? 0 : to_half_up(__fdiv_rn(largest, steps_of), &saturated);
        const float scale = __half2float(__ushort_as_half(half));
        if (lane == 0) {
          *reinterpret_cast<unsigned short*>(
              shared + (key ? format.key_scales : format.value_scales) + 2 * quantised) = half;
        }
        int32_t code[4] = {0, 0, 0, 0};
        if (scale != 0.0f) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const float y = __fdiv_rn(in[i], scale);
            const float bounded = fminf(fmaxf(y, -steps_of - 1.0f), steps_of + 1.0f);
            code[i] = __float2int_rn(wide ? bounded : bounded - 0.5f);
            code[i] = min(max(code[i], wide ? -127 : -8), wide ? 127 : 7);
          }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          in[i] =
              scale == 0.0f ? 0.0f : (static_cast<float>(code[i]) + (wide ? 0.0f : 0.5f)) * scale;
        }
        if (wide) {
          *reinterpret_cast<uint32_t*>(shared + (key ? format.int8_keys : format.int8_values) +
                                       quantised * 128 + 4 * lane) =
              (code[0] & 255u) | (code[1] & 255u) << 8 | (code[2] & 255u) << 16 |
              (code[3] & 255u) << 24;
        } else {
          *reinterpret_cast<unsigned short*>(shared +
                                             (key ? format.int4_keys : format.int4_values) +
                                             (quantised - format.num_int8) * 64 + 2 * lane) =
              static_cast<unsigned short>((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                          (code[3] + 8) << 12);
        }
      }
      *at = make_float4(in[0], in[1], in[2], in[3]);
    }
    __syncthreads();
    return saturated ? LEAPQUANT_HEALTH_COMPENSATOR_SATURATED : 0u;
  }

  // sides and columns, which are equal but for their order, by falling |S column|, equal ones in
  // their old order. sides holds S columns on entry.
  __device__ __forceinline__ void sort_columns() const {
    float* strength = reductions() + 16;
    const float* columns = floats(plan.columns);
    float* sides = floats(plan.sides);
    for (int32_t c = warp; c < rank; c += 8) {
      const float4 x = *reinterpret_cast<const float4*>(sides + c * 128 + 4 * lane);
      const float sum = sum_of_warp(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
      if (lane == 0) strength[c] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      int32_t place = 0;
      for (int32_t o = 0; o < rank; ++o) {
        place += strength[o] > strength[c] || (strength[o] == strength[c] && o < c) ? 1 : 0;
      }
      sides[place * 128 + (i & 127)] = columns[c * kColumnStride + column_place(i & 127)];
    }
    __syncthreads();
  }

  // Start block into columns. Returns whether the fit is cold.
  __device__ __forceinline__ bool start_columns() const {
    float* columns = floats(plan.columns);
    uint32_t* alive = reinterpret_cast<uint32_t*>(reductions()) + 16;
    if (thread < 32) alive[thread] = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      const float x = scale_of(false, c) == 0.0f ? 0.0f : raw_entry(false, c, i & 127);
      columns[c * kColumnStride + column_place(i & 127)] = x;
      if (x != 0.0f) alive[c] = 1;
    }
    __syncthreads();
    bool cold = true;
#pragma unroll 1
    for (int32_t c = 0; c < rank; ++c) cold = cold && alive[c] == 0;
    const bool warm = !cold && format.fit_fixed == 0;
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      if (!warm || alive[c] == 0) {
        columns[c * kColumnStride + column_place(i & 127)] = start_vector(c, i & 127);
      }
    }
    __syncthreads();
    return cold;
  }

  // Fits and stores the compensators of S; decoded value sides stay in columns, key sides in sides.
  // Written so that every piece of code appears once: the kernel has to fit the instruction cache.
  __device__ __forceinline__ uint32_t fit(const State& s, uint32_t largest) const {
    if (rank == 0) return 0;
    float* sides = floats(plan.sides);
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    const bool zero = largest == 0;
    bool cold = false;
    if (zero) {
      for (int32_t i = thread; i < rank * 128; i += kThreads) sides[i] = 0.0f;
      __syncthreads();
    } else {
      cold = start_columns();
      // S scaled by a power of two so that its largest magnitude lies in [1, 2).
      const uint32_t exponent = min(max(largest >> 23, 1u), 253u);
      const float scale = __uint_as_float((254u - exponent) << 23);
      const int32_t rounds = cold ? 3 : format.fit_rounds;
#pragma unroll 1
      for (int32_t round = 0; round < rounds; ++round) {
        power_step(s, scale);
        const int32_t passes = cold || round + 1 == rounds ? 2 : 1;
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
          make_gram(0.0f);
          factor(1e-10f);
          forward_solve();
        }
        if (round + 1 < rounds) to_columns();
      }
    }
    uint32_t flags = 0;
    const bool sorts = mixed && cold;
#pragma unroll 1
    for (int32_t stage = sorts ? 0 : 1; stage < 4; ++stage) {
      // 0: order of the columns. 1: value sides. 2: key sides by least squares. 3: key sides.
      if (stage == 2) {
        if (!mixed) continue;
        make_gram(1e-7f);
        factor(0.0f);
        continue;
      }
      if (stage != 1) {
        if (stage == 0) to_columns();
        key_sides(s);
        if (stage == 0) {
          sort_columns();
          continue;
        }
        if (mixed) {
          forward_solve();
          backward_solve();
        }
      }
      flags |= round_sides(stage == 3);
      if (stage == 1) to_columns();
    }
    return flags;
  }

  // S becomes the residual.
  __device__ void subtract(State* s) const {
    const float* sides = floats(plan.sides);
    for (int32_t c = 0; c < rank; ++c) {
      float v[16];
      load_column(c, v);
      const float4 k = *reinterpret_cast<const float4*>(sides + c * 128 + 16 * warp + 4 * t);
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
        for (int32_t hh = 0; hh < 2; ++hh) {
          const float x = v[2 * m + hh];
          s->at[m][0][2 * hh] = fmaf(-k.x, x, s->at[m][0][2 * hh]);
          s->at[m][0][2 * hh + 1] = fmaf(-k.y, x, s->at[m][0][2 * hh + 1]);
          s->at[m][1][2 * hh] = fmaf(-k.z, x, s->at[m][1][2 * hh]);
          s->at[m][1][2 * hh + 1] = fmaf(-k.w, x, s->at[m][1][2 * hh + 1]);
        }
      }
    }
  }

  // The residual codec, every operation rounded to FP32. *error: sum of squares of what is lost.
  __device__ uint32_t encode(State* s, uint32_t largest, bool wants_error, float* error) const {
    uint32_t flags = 0;
    float c[4];
    if (format.smoothing == LEAPQUANT_SMOOTHING_NONE) {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) c[b] = 1.0f;
      if (thread < 128) maxima()[thread] = 0;
      __syncthreads();
    } else {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        float lower = fabsf(s->at[0][b / 2][b % 2]);
        float upper = fabsf(s->at[0][b / 2][2 + b % 2]);
#pragma unroll
        for (int32_t m = 1; m < 8; ++m) {
          lower = lower + fabsf(s->at[m][b / 2][b % 2]);
          upper = upper + fabsf(s->at[m][b / 2][2 + b % 2]);
        }
        float sum = lower + upper;
        sum += __shfl_xor_sync(kAll, sum, 16);
        sum += __shfl_xor_sync(kAll, sum, 8);
        sum += __shfl_xor_sync(kAll, sum, 4);
        c[b] = __fsqrt_rn(__fdiv_rn(sum, 128.0f));
      }
      if (thread < 128) maxima()[thread] = 0;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        const float most = fmaxf(fmaxf(c[0], c[1]), fmaxf(c[2], c[3]));
        const float least =
            fmaxf(1e-6f * __uint_as_float(block_max(__float_as_uint(most))), 1e-12f);
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) c[b] = fmaxf(c[b], least);
        if (g == 0) {
          *reinterpret_cast<float4*>(shared + format.smoothing_at + 4 * (16 * warp + 4 * t)) =
              make_float4(c[0], c[1], c[2], c[3]);
        }
      } else {
        uint32_t word = 0;
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          const int32_t n = to_log8(c[b]);
          if (n == 255 && c[b] > log8_value(255) * 1.05f) {
            flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
          }
          word |= static_cast<uint32_t>(n) << (8 * b);
          c[b] = log8_value(static_cast<uint32_t>(n));
        }
        if (g == 0) {
          *reinterpret_cast<uint32_t*>(shared + format.smoothing_at + 16 * warp + 4 * t) = word;
        }
        __syncthreads();
      }
      // Division: two corrected steps with the rounded reciprocal give the rounded quotient as long
      // as nothing underflows, so tiny residuals are scaled up first, by a power of two.
      const bool tiny = largest <= 0x21800000u;  // 2^-60
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        const float y = __frcp_rn(c[b]);
#pragma unroll
        for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
          for (int32_t hh = 0; hh < 2; ++hh) {
            float& x = s->at[m][b / 2][2 * hh + b % 2];
            if (tiny) x *= 18446744073709551616.0f;
            float q = x * y;
            q = fmaf(fmaf(-c[b], q, x), y, q);
            x = fmaf(fmaf(-c[b], q, x), y, q);
            if (tiny) x *= 5.421010862427522e-20f;
          }
        }
      }
    }
    // Largest magnitude of every value column.
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t hh = 0; hh < 2; ++hh) {
        float x = fmaxf(fmaxf(fabsf(s->at[m][0][2 * hh]), fabsf(s->at[m][0][2 * hh + 1])),
                        fmaxf(fabsf(s->at[m][1][2 * hh]), fabsf(s->at[m][1][2 * hh + 1])));
        x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAll, x, 2));
        if (((2 * m + hh) & 3) == t) atomicMax(&maxima()[16 * m + 8 * hh + g], __float_as_uint(x));
      }
    }
    __syncthreads();
    if (thread < 128) {
      const float amax = __uint_as_float(maxima()[thread]);
      float scale = 0.0f;
      if (amax >= 1e-30f) {
        scale = format.scale_steps == format.q_max
                    ? amax
                    : amax * __fdiv_rn(format.q_max, format.scale_steps);
      }
      if (format.fp16_scale) {
        bool saturated = false;
        const unsigned short half = scale == 0.0f ? 0 : to_half_up(scale, &saturated);
        if (saturated) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
        *reinterpret_cast<unsigned short*>(shared + format.value_scale + 2 * thread) = half;
        scale = __half2float(__ushort_as_half(half));
      } else {
        floats(format.value_scale)[thread] = scale;
      }
      inverses()[thread] = scale == 0.0f ? 0.0f : __fdiv_rn(format.q_max, scale);
      steps()[thread] = scale * format.inverse_q;
    }
    __syncthreads();
    // Codes: clamped before the rounding, which gives the same, then rounded half to even by adding
    // 1.5 2^23; the low byte of the sum is the code, that of the constant 128 more the stored one.
    const float shift = format.half_levels ? 0.5f : 0.0f;
    const float low = -format.q_max;
    const float high = format.half_levels ? format.q_max - 1.0f : format.q_max;
    float lost = 0.0f;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t word[4];
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const int32_t value = 32 * vb + 8 * p + g;
        const float inverse = inverses()[value];
        const float step = steps()[value];
        uint32_t byte[4];
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          const float x = s->at[2 * vb + p / 2][b / 2][2 * (p % 2) + b % 2];
          const float y = fminf(fmaxf(x * inverse - shift, low), high);
          const float sum = y + 12582912.0f;
          byte[b] = __float_as_uint(sum);
          if (wants_error) {
            const float miss = c[b] * fmaf(-(sum - 12582912.0f + shift), step, x);
            lost = fmaf(miss, miss, lost);
          }
        }
        word[p] = __byte_perm(__byte_perm(byte[0], byte[1], 0x0040),
                              __byte_perm(byte[2], byte[3], 0x0040), 0x5410) ^
                  0x80808080u;
      }
      store_codes(vb, word);
    }
    *error = lost;
    return flags;
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

template <bool kVector>
__device__ void fold_one(const Call128& call, char* shared, int32_t sequence, int32_t v_head,
                         uint32_t barrier, uint32_t* parity) {
  const int32_t thread = threadIdx.x;
  const int32_t lane = thread & 31;
  const HeadFormat128& format = format_of(call, v_head);
  const int32_t rank = format.num_fp16 + format.num_int8 + format.num_int4;
  const Sequence128 s = load_sequence(call, sequence);
  int32_t* base_at = call.base + int64_t{s.slot} * call.v_heads + v_head;
  const int32_t base = *reinterpret_cast<const volatile int32_t*>(base_at);
  const int32_t boundary = last_boundary_of(call, v_head, s.position);
  const int32_t records = boundary - base;
  const int32_t decay_row = kVector ? 128 * call.decay_bytes : 0;
  const bool fits = records > 0 && records <= call.ring_tokens;
  const Plan plan = plan_of(call.boundary_bytes, fits ? records : 1, rank, decay_row);
  const Fold fold = {call, format,      shared,    plan,     thread,
                     lane, thread >> 5, lane >> 2, lane & 3, rank};
  char* state = boundary_of(call, s.slot, v_head);
  const char* window = call.windows + s.window_slot * call.window_stride;

  if (fits && thread < 32) {
    if (lane == 0) {
      barrier_expect(barrier, static_cast<uint32_t>(format.bytes) +
                                  static_cast<uint32_t>(records) * (512u + decay_row));
      bulk_copy(shared_address(shared), state, static_cast<uint32_t>(format.bytes), barrier);
    }
    __syncwarp();
    if (lane < records) {
      const int32_t ring = (base + lane) % call.ring_tokens;
      bulk_copy(shared_address(shared + plan.keys + lane * 256),
                window + (quotient(v_head, call.group)) * call.key_head_stride + ring * 256, 256,
                barrier);
      bulk_copy(shared_address(shared + plan.rows + lane * kRowBytes),
                window + call.corrections + v_head * call.correction_head_stride + ring * 256, 256,
                barrier);
      if (kVector) {
        bulk_copy(
            shared_address(shared + plan.decays + lane * decay_row),
            window + call.log_decays + v_head * call.decay_head_stride + int64_t{ring} * decay_row,
            static_cast<uint32_t>(decay_row), barrier);
      }
    }
  }
  float* scalar_decays = fold.reductions() + 16;
  if (!kVector && thread < 32) {
    float x = 0.0f;
    if (fits && lane < records && call.stored_decay != 0) {
      x = reinterpret_cast<const float*>(
          window + call.log_decays +
          v_head * call.decay_head_stride)[(base + lane) % call.ring_tokens];
    }
    scalar_decays[lane] = x;
  }
  const uint32_t found = check_positions(call, s, thread, kThreads) |
                         check_inputs<kVector, 2>(call, sequence, s.tokens, thread, kThreads);
  const bool faulty = __syncthreads_or(found != 0) != 0;
  if (fits) {
    barrier_wait(barrier, *parity);
    *parity ^= 1u;
  }
  if (faulty || !fits) return;

  fold.prepare<kVector>(records, scalar_decays);
  State x;
  fold.rebuild(&x);
  uint32_t flags = 0;
  uint32_t largest = fold.block_max(largest_bits(x));
  if (largest >= 0x7f800000u) {
    flags |= LEAPQUANT_HEALTH_NON_FINITE;
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        float& entry = x.at[m][i / 4][i % 4];
        if (!(fabsf(entry) <= 3.402823466e38f)) entry = 0.0f;
      }
    }
    largest = fold.block_max(largest_bits(x));
  }
  const bool health = call.health != nullptr;
  const float energy = health ? fold.block_sum(squares(x)) : 0.0f;
  flags |= fold.fit(x, largest);
  fold.subtract(&x);
  const uint32_t residual = fold.block_max(largest_bits(x));
  const float left = health ? fold.block_sum(squares(x)) : 0.0f;
  float error = 0.0f;
  flags |= fold.encode(&x, residual, health, &error);
  if (health) {
    error = fold.block_sum(error);
    flags = __reduce_or_sync(kAll, flags);
    leapquant_health* to = call.health + int64_t{s.slot} * call.v_heads + v_head;
    if (lane == 0 && flags != 0) atomicOr(&to->flags, flags);
    if (thread == 0) {
      to->residual_max = __uint_as_float(residual);
      to->compensator_energy =
          energy > 0.0f ? fminf(fmaxf(1.0f - left / energy, 0.0f), 1.0f) : 0.0f;
      to->fold_error = energy > 0.0f ? sqrtf(error / energy) : 0.0f;
    }
  }
  __syncthreads();
  for (int32_t i = thread; i < format.bytes / 16; i += kThreads) {
    reinterpret_cast<uint4*>(state)[i] = reinterpret_cast<const uint4*>(shared)[i];
  }
  fence_async_proxy();
  __threadfence();
  __syncthreads();
  if (thread == 0) store_release(base_at, boundary);
}

// Heads of the call, head by head over the sequences, are dealt round robin to the blocks, and a
// block folds those of its own that are due: whether another block has folded one of its heads
// already decides nothing here. Staggered boundaries make equal shares of it.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, kFoldBlocks128)
    fold_kernel(const __grid_constant__ Call128 call, int32_t list_at) {
  extern __shared__ __align__(128) char shared[];
  launch_dependents();
  const int32_t thread = threadIdx.x;
  int64_t* list = reinterpret_cast<int64_t*>(shared + list_at);
  int32_t* items = reinterpret_cast<int32_t*>(list + kThreads);
  const uint32_t barrier = shared_address(items + 2);
  if (thread == 0) barrier_init(barrier, 1);
  fence_async_proxy();
  __syncthreads();
  uint32_t parity = 0;

  const int64_t total = int64_t{call.batch} * call.v_heads;
  for (int64_t start = blockIdx.x; start < total; start += int64_t{gridDim.x} * kThreads) {
    if (thread == 0) *items = 0;
    __syncthreads();
    const int64_t item = start + int64_t{thread} * gridDim.x;
    if (item < total) {
      const int32_t v_head = static_cast<int32_t>(item / call.batch);
      const int32_t sequence = static_cast<int32_t>(item - int64_t{v_head} * call.batch);
      const Sequence128 s = load_sequence(call, sequence);
      if (s.alive && s.slot < call.num_state_slots && s.window_slot < call.num_window_slots) {
        const int32_t base = *reinterpret_cast<const volatile int32_t*>(
            call.base + int64_t{s.slot} * call.v_heads + v_head);
        if (last_boundary_of(call, v_head, s.position) > base) list[atomicAdd(items, 1)] = item;
      }
    }
    __syncthreads();
    const int32_t count = *items;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t v_head = static_cast<int32_t>(list[i] / call.batch);
      const int32_t sequence = static_cast<int32_t>(list[i] - int64_t{v_head} * call.batch);
      fold_one<kVector>(call, shared, sequence, v_head, barrier, &parity);
      __syncthreads();
    }
    __syncthreads();
  }
}

// Where the list lies: behind the largest plan of the call's classes.
int32_t list_of(const Call128& call, bool vector) {
  int32_t at = 0;
  for (int32_t c = 0; c < call.num_classes; ++c) {
    const HeadFormat128& f = call.classes[c];
    const Plan plan =
        plan_of(call.boundary_bytes, call.ring_tokens, f.num_fp16 + f.num_int8 + f.num_int4,
                vector ? 128 * call.decay_bytes : 0);
    at = std::max(at, plan.list);
  }
  return at;
}

}  // namespace

int32_t fold_128_shared_bytes(const Call128& call, bool vector) {
  return list_of(call, vector) + kThreads * 8 + 32;
}

cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  const auto kernel = vector ? fold_kernel<true> : fold_kernel<false>;
  const int32_t bytes = fold_128_shared_bytes(call, vector);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int32_t grid = static_cast<int32_t>(std::min<int64_t>(blocks, total));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(call, list_of(call, vector));
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
