// SPDX-License-Identifier: Apache-2.0
//
// Products of a head's rows, records and compensators, with both read vectors: key sides to
// weights, value sides times weights, by the matrix units. Where the rows lie is the caller's
// business.
#pragma once

#include "cuda/decode_reads_128.cuh"

namespace leapquant::cuda::decoding_128 {

template <int kWarps>
struct RowProducts {
  static constexpr int32_t kValues = 128 / kWarps;  // of a warp
  static constexpr int32_t kTiles = kValues / 16;
  char* shared;
  const Plan& plan;
  int32_t lane, warp;

  __device__ __forceinline__ float2* weights() const {
    return reinterpret_cast<float2*>(shared + plan.weights);
  }
  __device__ __forceinline__ float* units() const {
    return reinterpret_cast<float*>(shared + plan.units);
  }

  // Weights of 8 records from `row` (vector decays): sums over the lanes.
  __device__ __forceinline__ void put_weights(float (&p)[16], int32_t last, int32_t rows) const {
    const float sum = sums_of_sixteen(p, lane);
    const int32_t mine = lane >> 2;
    if ((lane & 1) == 0 && mine < rows) {
      reinterpret_cast<float*>(weights() + last - mine)[(lane >> 1) & 1] = sum;
    }
  }

  // Dot products of up to 8 rows with both read vectors, times scale(row), to weights from `to`.
  // The limbs as operands: rows g high, g + 8 low parts of vector g mod 2; loaded anew for every
  // tile, as 32 registers across tiles were spilled.
  template <RowKind kKind, typename Scale>
  __device__ __forceinline__ void key_dots(const char* rows, int32_t count, int32_t to,
                                           Scale scale) const {
    const int32_t g = lane >> 2;
    const int32_t t = lane & 3;
    const char* row = g < count ? rows + g * row_bytes_of(kKind) : shared + plan.zeros;
    const uint4* limbs =
        reinterpret_cast<const uint4*>(shared + plan.limbs + (g & 1) * kLimbBytes) + 2 * t;
    float d[4] = {};
    float e[4] = {};
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      uint32_t x[4];
      load_group<kKind, 8>(row, t + 4 * j, x);
      const uint4 a = limbs[8 * j];
      const uint4 b = limbs[8 * j + 1];
      mma_fp16(d, a.x, a.y, a.z, a.w, x[0], x[1]);
      mma_fp16(e, b.x, b.y, b.z, b.w, x[2], x[3]);
    }
    if (g < 2) {
      const float unit = units()[g];
      float* out = reinterpret_cast<float*>(weights() + to + 2 * t) + g;
      if (2 * t < count) out[0] = ((d[0] + e[0]) + (d[2] + e[2])) * unit * scale(2 * t);
      if (2 * t + 1 < count) out[2] = ((d[1] + e[1]) + (d[3] + e[3])) * unit * scale(2 * t + 1);
    }
  }

  // What the value sides of up to 16 rows add to both reads of the warp's values: acc[j][0], [1] of
  // value g kValues / 8 + j, columns as the limbs (lane t = 0: first vector, t = 1: second), [2],
  // [3] of the value kTiles further. scale: of the lane's vector.
  template <RowKind kKind>
  __device__ __forceinline__ void value_sums(const char* rows, int32_t count, int32_t from,
                                             float scale, float (&acc)[kTiles][4]) const {
    const int32_t g = lane >> 2;
    const int32_t t = lane & 3;
    const float* w = reinterpret_cast<const float*>(weights() + from + 2 * t) + ((g >> 1) & 1);
    const bool low = (g & 1) != 0;
    uint32_t b[2] = {};
    {
      uint32_t high, rest;
      split(w[0] * scale, w[2] * scale, &high, &rest);
      b[0] = low ? rest : high;
      if (count > 8) {
        split(w[16] * scale, w[18] * scale, &high, &rest);
        b[1] = low ? rest : high;
      }
    }
    constexpr int32_t kLoad = kValues / 8 > 8 ? 8 : kValues / 8;  // values of one load
    constexpr int32_t kLoads = kValues / 8 / kLoad;
    uint32_t pairs[4][kLoads * kLoad / 2] = {};
#pragma unroll
    for (int32_t r = 0; r < 4; ++r) {
      const int32_t index = 2 * t + (r & 1) + 8 * (r >> 1);
      if (r >= 2 && count <= 8) continue;
      const char* row = index < count ? rows + index * row_bytes_of(kKind) : shared + plan.zeros;
#pragma unroll
      for (int32_t i = 0; i < kLoads; ++i) {
        uint32_t x[kLoad / 2];
        load_group<kKind, kLoad>(row, (8 * warp + g) * kLoads + i, x);
#pragma unroll
        for (int32_t k = 0; k < kLoad / 2; ++k) pairs[r][kLoad / 2 * i + k] = x[k];
      }
    }
#pragma unroll
    for (int32_t j = 0; j < kTiles; ++j) {
      const uint32_t pick = j % 2 == 0 ? 0x5410 : 0x7632;
      const int32_t first = j / 2;
      const int32_t second = (j + kTiles) / 2;
      mma_fp16(acc[j], __byte_perm(pairs[0][first], pairs[1][first], pick),
               __byte_perm(pairs[0][second], pairs[1][second], pick),
               __byte_perm(pairs[2][first], pairs[3][first], pick),
               __byte_perm(pairs[2][second], pairs[3][second], pick), b[0], b[1]);
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
