// SPDX-License-Identifier: Apache-2.0
//
// Products of a head's rows, records and compensators, with both read vectors, by one warp and the
// matrix units: key sides to weights, value sides times weights. Where the rows lie is the
// caller's business.
#pragma once

#include "cuda/decode_reads_128.cuh"

namespace leapquant::cuda::decoding_128 {

// Rows past the last are read as the last, with weights of zero: what lies there is finite.
template <int kPairs, bool kLow>
struct RowProducts {
  char* scratch;  // of the pair: places of the plan from `limbs` on
  const Plan& plan;
  int32_t lane, pair;

  __device__ __forceinline__ char* limbs() const { return scratch; }
  __device__ __forceinline__ float* row_sums() const { return reinterpret_cast<float*>(scratch); }
  __device__ __forceinline__ float* weights() const {
    return reinterpret_cast<float*>(scratch + plan.weights - plan.limbs);
  }
  __device__ __forceinline__ float* factors() const { return weights() + 2 * plan.rows; }
  __device__ __forceinline__ float* units() const {
    return reinterpret_cast<float*>(scratch + plan.units - plan.limbs);
  }

  // The limbs as columns of an operand: column g is part g mod 4, without low parts g mod 2.
  __device__ __forceinline__ void load_limbs(uint4 (&limbs)[4]) const {
    const uint32_t at =
        shared_address(this->limbs()) + 64 * ((lane >> 2) & (kLow ? 3 : 1)) + 16 * (lane & 3);
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) limbs[j] = load_shared_four(at + 256 * j);
  }

  // Dot products of rows first .. first + 15 with both read vectors, times their factors (rows from
  // `to` on; kUnits: and `unit`), to the weights from `to` on. row_at(i): address of row i < count.
  // Weights are stored for rows below `stored`. Returns the largest magnitude, as bits.
  template <RowKind kKind, bool kUnits, typename RowAt>
  __device__ __forceinline__ uint32_t key_dots(RowAt row_at, const uint4 (&limbs)[4], int32_t first,
                                               int32_t count, int32_t stored, int32_t to,
                                               float2 unit) const {
    const int32_t g = lane >> 2;
    const int32_t t = lane & 3;
    float d[4] = {};
    float e[4] = {};
    const bool wide = count - first > 8;
    const auto lower = row_at(min(first + g, count - 1));
    const auto upper = row_at(min(first + g + 8, count - 1));
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      uint32_t x[4];
      uint32_t y[4] = {};
      load_group<kKind, 8>(lower, t + 4 * j, x);
      if (wide) load_group<kKind, 8>(upper, t + 4 * j, y);
      mma_fp16(d, x[0], y[0], x[1], y[1], limbs[j].x, limbs[j].y);
      mma_fp16(e, x[2], y[2], x[3], y[3], limbs[j].z, limbs[j].w);
    }
    // Columns 2t and 2t + 1: both vectors' high parts (t even) or low parts; all the same without.
    const float* factor = factors() + to + g;
    const float f0 = factor[0];
    const float f1 = factor[8];
    float s[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      s[i] = d[i] + e[i];
      if (kLow) s[i] += __shfl_xor_sync(kAll, s[i], 1);
      s[i] *= i < 2 ? f0 : f1;
      if (kUnits) s[i] *= i % 2 == 0 ? unit.x : unit.y;
    }
    const int32_t row = g + 8 * (t >> 1);
    const float mine = (t & 1) != 0 ? select_float((t & 2) != 0, s[3], s[1])
                                    : select_float((t & 2) != 0, s[2], s[0]);
    if (first + row < stored) weights()[(t & 1) * plan.rows + to + row] = mine;
    return __float_as_uint(fmaxf(fmaxf(fabsf(s[0]), fabsf(s[1])), fmaxf(fabsf(s[2]), fabsf(s[3]))));
  }

  // Weights of `rows` rows (a multiple of 16) as operands, over the weights themselves: words 4t ..
  // of each sixteen are rows 2t, 2t + 1 and 2t + 8, 2t + 9 as high parts, then as low parts.
  __device__ __forceinline__ void pack_weights(int32_t rows, float scale) const {
    const int32_t half = rows / 4;  // fours of words of one vector
#pragma unroll 1
    for (int32_t from = 0; from < 2 * half; from += 32) {
      const int32_t i = from + lane;
      const int32_t place = i < half ? i : i - half;
      float* tile = weights() + (i < half ? 0 : plan.rows) + 16 * (place >> 2);
      uint4 packed = {};
      if (i < 2 * half) packed = packed_tile(tile, place & 3, scale);
      __syncwarp();
      if (i < 2 * half) reinterpret_cast<uint4*>(tile)[place & 3] = packed;
    }
  }
  __device__ __forceinline__ static uint4 packed_tile(const float* tile, int32_t t, float scale) {
    const float2 lower = *reinterpret_cast<const float2*>(tile + 2 * t);
    const float2 upper = *reinterpret_cast<const float2*>(tile + 2 * t + 8);
    uint4 packed;
    split(lower.x * scale, lower.y * scale, &packed.x, &packed.z);
    split(upper.x * scale, upper.y * scale, &packed.y, &packed.w);
    return packed;
  }

  // Adds what the value sides of rows first .. first + 15 give times the weights from `from` on, to
  // values 8 chunk .. + 7: acc[j][0], [1] both vectors' sums of value j, [2], [3] of value j + 4.
  // column: weights that are this lane's column of the operand, packed.
  template <RowKind kKind, typename RowAt>
  __device__ __forceinline__ void value_sums(RowAt row_at, int32_t first, int32_t count,
                                             int32_t from, int32_t chunk, float (&acc)[4][4],
                                             const uint32_t* column) const {
    const int32_t t = lane & 3;
    const uint4 w = *reinterpret_cast<const uint4*>(column + from + 4 * t);
    const auto load = [&](int32_t i, uint32_t (&x)[4]) {
      load_group<kKind, 8>(row_at(min(first + i, count - 1)), chunk, x);
    };
    uint32_t x0[4], x1[4];
    uint32_t x2[4] = {};
    uint32_t x3[4] = {};
    load(2 * t, x0);
    load(2 * t + 1, x1);
    if (count - first > 8) {
      load(2 * t + 8, x2);
      load(2 * t + 9, x3);
    }
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      const uint32_t pick = j % 2 == 0 ? 0x5410 : 0x7632;
      const int32_t k = j / 2;
      const uint32_t a0 = __byte_perm(x0[k], x1[k], pick);
      const uint32_t a1 = __byte_perm(x0[2 + k], x1[2 + k], pick);
      const uint32_t a2 = __byte_perm(x2[k], x3[k], pick);
      const uint32_t a3 = __byte_perm(x2[2 + k], x3[2 + k], pick);
      mma_fp16(acc[j], a0, a1, a2, a3, w.x, w.y);
      mma_fp16(acc[j], a0, a1, a2, a3, w.z, w.w);
    }
  }

  __device__ __forceinline__ const uint32_t* column_of_weights() const {
    return reinterpret_cast<const uint32_t*>(weights()) + ((lane >> 2) & 1) * plan.rows;
  }

  // Values 8 c + j and 8 c + j + 4 (j < 4), each both vectors' sums, lie at row_sums + 16 c + 4 j.
  __device__ __forceinline__ float2 sums_of(int32_t value) const {
    return *reinterpret_cast<const float2*>(row_sums() + 16 * (value >> 3) + 4 * (value & 3) +
                                            ((value >> 1) & 2));
  }
  __device__ __forceinline__ void store_sums(const float (&acc)[4][4], int32_t chunk) const {
    if ((lane & 3) != 0) return;
    float4* to = reinterpret_cast<float4*>(row_sums()) + 4 * chunk;
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      to[j] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
