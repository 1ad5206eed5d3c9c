// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill, the warps that carry the state: a warp has 16 value columns of a head in FP32
// accumulators, transposed (rows are values, columns keys), so that the result of each product is
// the next one's operand as it lies in registers. Warps need nothing of one another.
#pragma once

#include "cuda/prefill_chunk_shared.cuh"

namespace leapquant::cuda {

// Entries (g, 8 n + 2 t), (g, .. + 1), (g + 8, ..), (g + 8, .. + 1) of tile n in lane 4 g + t.
template <int32_t kTiles>
using Tiles = float[kTiles][4];

// Operand of 16 columns from two neighbouring tiles, in two parts.
struct OperandParts {
  uint32_t high[4], low[4];
};
__device__ __forceinline__ OperandParts operand_of(const float (&a)[4], const float (&b)[4]) {
  OperandParts o;
  const float (*tile[2])[4] = {&a, &b};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const float (&x)[4] = *tile[i >> 1];
    const Parts parts = parts_of(x[2 * (i & 1)], x[2 * (i & 1) + 1]);
    o.high[i] = parts.high;
    o.low[i] = parts.low;
  }
  return o;
}
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  mma_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

// out[16, 32] += a[16, 32] B^T for a lower triangular B in blocks.
__device__ __forceinline__ void multiply_triangle(const Tiles<4>& a,
                                                  const uint4 (&blocks)[kTriangleBlocks][32],
                                                  int32_t lane, Tiles<4>& out) {
#pragma unroll
  for (int32_t step = 0; step < 2; ++step) {
    const OperandParts o = operand_of(a[2 * step], a[2 * step + 1]);
    uint4 b[4];
#pragma unroll
    for (int32_t n = 2 * step; n < 4; ++n) b[n] = blocks[n + 2 * step][lane];
#pragma unroll
    for (int32_t n = 2 * step; n < 4; ++n) multiply(out[n], o.high, b[n].x, b[n].y);
#pragma unroll
    for (int32_t n = 2 * step; n < 4; ++n) multiply(out[n], o.high, b[n].z, b[n].w);
#pragma unroll
    for (int32_t n = 2 * step; n < 4; ++n) multiply(out[n], o.low, b[n].x, b[n].y);
  }
}

// Writes the outputs of `count` tokens number by number.
template <int32_t kTiles>
__device__ __noinline__ void store_numbers(const Call& call, const ChunkPlace& at, int32_t first,
                                           int32_t count, int32_t column, const Tiles<kTiles> out) {
  char* start =
      call.output.data + (at.token + first) * call.output.token + at.v_head * call.output.head;
#pragma unroll 1
  for (int32_t e = 0; e < 4 * kTiles; ++e) {
    const int32_t token = 2 * (e & ~3) + 2 * (at.lane & 3) + (e & 1);
    if (token < count) {
      store_number(start + token * call.output.token, call.output.type,
                   column + (at.lane >> 2) + 8 * ((e >> 1) & 1), out[e >> 2][e & 3]);
    }
  }
}

// Writes the outputs of `count` tokens: transposed back to pairs of columns where these are words.
template <int32_t kTiles>
__device__ __forceinline__ void store_chunk(const Call& call, const ChunkPlace& at, int32_t first,
                                            int32_t count, int32_t column,
                                            const Tiles<kTiles>& out) {
  const int32_t g = at.lane >> 2;
  const int32_t t = at.lane & 3;
  const Rows& rows = call.output;
  char* start = rows.data + (at.token + first) * rows.token + at.v_head * rows.head;
  const bool words =
      ((reinterpret_cast<uintptr_t>(start) | static_cast<uint64_t>(rows.token)) & 3) == 0;
  if (rows.type == LEAPQUANT_BF16 && words) {
#pragma unroll
    for (int32_t n = 0; n < kTiles; ++n) {
      const uint32_t low = transpose_matrix(pack_bf16(out[n][0], out[n][1]));
      const uint32_t high = transpose_matrix(pack_bf16(out[n][2], out[n][3]));
      const int32_t token = 8 * n + g;
      if (token >= count) continue;
      auto* row = reinterpret_cast<uint32_t*>(start + token * rows.token + 2 * column) + t;
      row[0] = low;
      row[4] = high;
    }
    return;
  }
  float copy[kTiles][4];
#pragma unroll
  for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int32_t e = 0; e < 4; ++e) copy[n][e] = out[n][e];
  }
  store_numbers<kTiles>(call, at, first, count, column, copy);
}

// Takes the warp's columns, from `column` of the stage on, through a chunk.
template <int32_t kDim, int32_t kColumns>
__device__ __forceinline__ void advance_chunk(const Call& call, const ChunkPlace& at, int32_t first,
                                              int32_t count, int32_t column,
                                              const Stage<kDim, kColumns>* stage,
                                              Tiles<kDim / 8>& s) {
  using Layout = Stage<kDim, kColumns>;
  const int32_t lane = at.lane;
  const int32_t t = lane & 3;
  // K S and Q S.
  Tiles<4> found = {};
  Tiles<4> read = {};
  {
    const uint32_t row = static_cast<uint32_t>(((lane & 7) + 8 * (lane >> 4)) * Layout::kKeyPitch +
                                               16 * ((lane >> 3) & 1));
    const uint32_t keys = shared_address(stage->keys) + row;
    const uint32_t queries = shared_address(stage->queries) + row;
    constexpr uint32_t kSixteenRows = 16 * Layout::kKeyPitch;
#pragma unroll
    for (uint32_t step = 0; step < kDim / 16; ++step) {
      const OperandParts o = operand_of(s[2 * step], s[2 * step + 1]);
      uint32_t k[2][4], q[2][4];
      load_matrices(k[0], keys + 32 * step);
      load_matrices(k[1], keys + kSixteenRows + 32 * step);
      load_matrices(q[0], queries + 32 * step);
      load_matrices(q[1], queries + kSixteenRows + 32 * step);
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        multiply(found[n], o.high, k[n >> 1][2 * (n & 1)], k[n >> 1][2 * (n & 1) + 1]);
      }
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        multiply(read[n], o.high, q[n >> 1][2 * (n & 1)], q[n >> 1][2 * (n & 1) + 1]);
      }
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        multiply(found[n], o.low, k[n >> 1][2 * (n & 1)], k[n >> 1][2 * (n & 1) + 1]);
      }
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        multiply(read[n], o.low, q[n >> 1][2 * (n & 1)], q[n >> 1][2 * (n & 1) + 1]);
      }
    }
  }
  // v less what is found, then the corrections.
  {
    const uint32_t values =
        shared_address(stage->values) +
        static_cast<uint32_t>(((lane & 7) + 8 * (lane >> 4)) * Layout::kValuePitch + 2 * column +
                              16 * ((lane >> 3) & 1));
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t v[4];
      load_matrices_transposed(v, values + half * 16 * Layout::kValuePitch);
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        float (&x)[4] = found[2 * half + e];
        const float2 factor = *reinterpret_cast<const float2*>(
            &stage->key_factor[8 * (2 * half + static_cast<uint32_t>(e)) + 2 * t]);
        x[0] = fmaf(-factor.x, x[0], __uint_as_float(v[2 * e] << 16));
        x[1] = fmaf(-factor.y, x[1], __uint_as_float(v[2 * e] & 0xffff0000u));
        x[2] = fmaf(-factor.x, x[2], __uint_as_float(v[2 * e + 1] << 16));
        x[3] = fmaf(-factor.y, x[3], __uint_as_float(v[2 * e + 1] & 0xffff0000u));
      }
    }
  }
  Tiles<4> u = {};
  multiply_triangle(found, stage->solve, lane, u);
  // Outputs.
#pragma unroll
  for (int32_t n = 0; n < 4; ++n) {
    const float2 factor = *reinterpret_cast<const float2*>(&stage->query_factor[8 * n + 2 * t]);
    read[n][0] *= factor.x;
    read[n][1] *= factor.y;
    read[n][2] *= factor.x;
    read[n][3] *= factor.y;
  }
  multiply_triangle(u, stage->weights, lane, read);
  store_chunk(call, at, first, count, at.first_column + column, read);
  // The state. Products are summed apart from it: the units cut off where they add, and the state
  // stays.
#pragma unroll
  for (int32_t n = 0; n < 4; ++n) {
    const float2 factor = *reinterpret_cast<const float2*>(&stage->write_factor[8 * n + 2 * t]);
    u[n][0] *= factor.x;
    u[n][1] *= factor.y;
    u[n][2] *= factor.x;
    u[n][3] *= factor.y;
  }
  const OperandParts early = operand_of(u[0], u[1]);
  const OperandParts late = operand_of(u[2], u[3]);
  const float decay = stage->decay[0];
  const uint32_t keys =
      shared_address(stage->keys) +
      static_cast<uint32_t>(((lane & 7) + 8 * ((lane >> 3) & 1)) * Layout::kKeyPitch +
                            16 * (lane >> 4));
#pragma unroll
  for (uint32_t pair = 0; pair < kDim / 16; ++pair) {
    uint32_t k[2][4];
    load_matrices_transposed(k[0], keys + 32 * pair);
    load_matrices_transposed(k[1], keys + 16 * Layout::kKeyPitch + 32 * pair);
    Tiles<2> sum = {};
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) multiply(sum[e], early.high, k[0][2 * e], k[0][2 * e + 1]);
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) multiply(sum[e], early.low, k[0][2 * e], k[0][2 * e + 1]);
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) multiply(sum[e], late.high, k[1][2 * e], k[1][2 * e + 1]);
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) multiply(sum[e], late.low, k[1][2 * e], k[1][2 * e + 1]);
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& entry = s[2 * pair + static_cast<uint32_t>(e)][i];
        entry = fmaf(decay, entry, sum[e][i]);
      }
    }
  }
}

// The warp's columns from or to a head's [K][V] in the workspace.
template <int32_t kDim, bool kStore>
__device__ __forceinline__ void move_state(float* state, int32_t v_dim, int32_t lane,
                                           Tiles<kDim / 8>& s) {
  const int32_t g = lane >> 2;
  const int32_t t = lane & 3;
#pragma unroll
  for (int32_t n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int32_t e = 0; e < 4; ++e) {
      float& entry = state[(8 * n + 2 * t + (e & 1)) * v_dim + g + 8 * (e >> 1)];
      if constexpr (kStore) {
        entry = s[n][e];
      } else {
        s[n][e] = entry;
      }
    }
  }
}

}  // namespace leapquant::cuda
