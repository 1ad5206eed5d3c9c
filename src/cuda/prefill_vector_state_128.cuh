// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill with vector decays, the groups of four warps that carry the state: as in
// prefill_state_128.cuh, with both factors of every product in two parts.
#pragma once

#include "cuda/prefill_state_128.cuh"
#include "cuda/prefill_vector_stage_128.cuh"

namespace leapquant::cuda::chunks_128 {

// out[., 16] (+)= a[., 16] B^T for B in blocks. Starts only.
__device__ __forceinline__ void start_small(const OperandParts& a, const SmallBlocks (&blocks)[2],
                                            bool add, Tiles<2>& out) {
  const uint32_t place = operand_place(shared_address(blocks), kSmallLeading);
  const uint64_t high = plain_operand(place, kBlockStride);
  const uint64_t low = plain_operand(place + (sizeof(SmallBlocks) >> 4), kBlockStride);
  group_mma_bf16_16<false>(out, a.high, high, add);
  group_mma_bf16_16<false>(out, a.high, low, true);
  group_mma_bf16_16<false>(out, a.low, high, true);
}

// Largest magnitude, not of NaN.
__device__ __forceinline__ float largest_of_warp(const Tiles<2>& x) {
  float largest = 0.0f;
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(x[n][i]));
  }
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(largest)));
}

// Takes the warp's columns, from `column` of the chunk on, through it. *faults, in shared memory:
// faults of values.
template <int32_t kColumns>
__device__ __forceinline__ void advance_vector_chunk(const Call& call, const ChunkPlace& at,
                                                     int32_t first, int32_t count, int32_t column,
                                                     VectorChunk<kColumns>* chunk,
                                                     Tiles<kDim / 8>& s, uint32_t* faults) {
  const int32_t lane = at.lane;
  const int32_t t = lane & 3;
  // K S and Q S: tiles 0, 1 and 2, 3.
  Tiles<4> both;
  OperandParts parts[kDim / 16];
  const uint32_t rows = operand_place(shared_address(chunk->rows), kRowLeading);
#pragma unroll
  for (uint32_t step = 0; step < kDim / 16; ++step) {
    float x[2][4];
#pragma unroll
    for (uint32_t e = 0; e < 2; ++e) {
      const float2 factor =
          *reinterpret_cast<const float2*>(&chunk->read[8 * (2 * step + e) + 2 * t]);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        x[e][i] = s[2 * step + e][i] * ((i & 1) != 0 ? factor.y : factor.x);
      }
    }
    parts[step] = operand_of(x[0], x[1]);
    if (step % 4 != 3) continue;
    group_fence();
#pragma unroll
    for (uint32_t n = step - 3; n <= step; ++n) {
      const uint32_t place = rows + n * (2 * kRowLeading >> 4);
      const uint64_t high = plain_operand(place, kBlockStride);
      group_mma_bf16_32<false>(both, parts[n].high, high, n > 0);
      group_mma_bf16_32<false>(both, parts[n].high,
                               plain_operand(place + (sizeof(RowBlocks) >> 4), kBlockStride), true);
      group_mma_bf16_32<false>(both, parts[n].low, high, true);
    }
    group_commit();
  }
  group_wait<0>();
  hold_registers(both);
#pragma unroll
  for (int32_t step = 0; step < kDim / 16; ++step) hold_parts(parts[step]);
  // v less what is found, then the corrections.
  Tiles<2> x;
  {
    uint32_t v[4];
    load_matrices_transposed(v, shared_address(chunk->values) +
                                    static_cast<uint32_t>(((lane & 7) + 8 * (lane >> 4)) *
                                                              VectorChunk<kColumns>::kValuePitch +
                                                          2 * column + 16 * ((lane >> 3) & 1)));
    if (seen_in_values(v) != 0) *faults = kNotFinite;
#pragma unroll
    for (uint32_t e = 0; e < 2; ++e) {
      const float2 factor = *reinterpret_cast<const float2*>(&chunk->key_factor[8 * e + 2 * t]);
      x[e][0] = fmaf(-factor.x, both[e][0], __uint_as_float(v[2 * e] << 16));
      x[e][1] = fmaf(-factor.y, both[e][1], __uint_as_float(v[2 * e] & 0xffff0000u));
      x[e][2] = fmaf(-factor.x, both[e][2], __uint_as_float(v[2 * e + 1] << 16));
      x[e][3] = fmaf(-factor.y, both[e][3], __uint_as_float(v[2 * e + 1] & 0xffff0000u));
    }
  }
  OperandParts operand = operand_of(x[0], x[1]);
  Tiles<2> u;
  group_fence();
  start_small(operand, chunk->solve, false, u);
  group_commit();
  Tiles<2> read;
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) read[n][i] = both[2 + n][i];
  }
  scale_columns(read, chunk->query_factor, t);
  group_wait<0>();
  hold_registers(u);
  hold_parts(operand);
  // Outputs and the state's update.
  OperandParts weighted = operand_of(u[0], u[1]);
  scale_columns(u, chunk->write_factor, t);
  const float* add_from = chunk->add[0];
  if (largest_of_warp(u) > kLarge) {
    add_from = chunk->add[1];
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) u[n][i] *= 1.0f / kLargeUnit;
    }
  }
  OperandParts written = operand_of(u[0], u[1]);
  group_fence();
  start_small(weighted, chunk->weights, true, read);
  group_commit();
  const uint32_t columns = operand_place(shared_address(chunk->columns), 16);
  constexpr uint32_t kHalf = sizeof(chunk->columns[0][0]) >> 4;
  // Both halves of the channels at once where registers are left.
  constexpr bool kAtOnce = kColumns == kGroupColumns;
  Tiles<8> sums[kAtOnce ? 2 : 1];
  const auto start_half = [&](uint32_t half, Tiles<8>& sum) {
    const uint64_t high = swizzled_operand(columns + half * kHalf);
    const uint64_t low = swizzled_operand(columns + (2 + half) * kHalf);
    group_fence();
    group_mma_bf16_64<true>(sum, written.high, high, false);
    group_mma_bf16_64<true>(sum, written.high, low, true);
    group_mma_bf16_64<true>(sum, written.low, high, true);
    group_commit();
  };
  start_half(0, sums[0]);
  if constexpr (kAtOnce) start_half(1, sums[1]);
  group_wait<kAtOnce ? 2 : 1>();
  hold_registers(read);
  hold_parts(weighted);
  store_chunk<2>(call, at, first, count, at.first_column + column, read);
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    Tiles<8>& sum = sums[kAtOnce ? half : 0];
    if (kAtOnce && half == 0) {
      group_wait<1>();
    } else {
      if (half == 1 && !kAtOnce) start_half(1, sum);
      group_wait<0>();
    }
    hold_registers(sum);
    if (half == 1) hold_parts(written);
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      const uint32_t channel = 8 * (8 * half + n) + 2 * static_cast<uint32_t>(t);
      const float2 keep = *reinterpret_cast<const float2*>(&chunk->keep[channel]);
      const float2 add = *reinterpret_cast<const float2*>(&add_from[channel]);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& entry = s[8 * half + n][i];
        const bool odd = (i & 1) != 0;
        entry = fmaf(odd ? keep.y : keep.x, entry, (odd ? add.y : add.x) * sum[n][i]);
      }
    }
  }
}

}  // namespace leapquant::cuda::chunks_128
