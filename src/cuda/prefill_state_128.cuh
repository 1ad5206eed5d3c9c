// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels, the groups of four warps that carry the state: a warp
// has 16 value columns of a head in FP32 accumulators, transposed (rows are values, columns keys),
// so that the result of each product is the next one's operand as it lies in registers.
#pragma once

#include "cuda/finite.cuh"
#include "cuda/prefill_chunk_state.cuh"
#include "cuda/prefill_stage_128.cuh"

namespace leapquant::cuda::chunks_128 {

template <int32_t kTiles>
__device__ __forceinline__ void scale_columns(Tiles<kTiles>& x, const float* factors, int32_t t) {
#pragma unroll
  for (int32_t n = 0; n < kTiles; ++n) {
    const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * n + 2 * t]);
    x[n][0] *= factor.x;
    x[n][1] *= factor.y;
    x[n][2] *= factor.x;
    x[n][3] *= factor.y;
  }
}

// out[., 32] (+)= a[., 32] B^T for a lower triangular B in blocks. Starts only.
__device__ __forceinline__ void start_triangle(const OperandParts (&a)[2],
                                               const Blocks (&blocks)[2], bool add, Tiles<4>& out) {
  const uint32_t place = operand_place(shared_address(blocks), kBlockLeading);
  constexpr uint32_t kLow = sizeof(Blocks) >> 4;
  constexpr uint32_t kSecond = 2 * kBlockLeading >> 4;
#pragma unroll
  for (uint32_t n = 0; n < 2; ++n) {
    const uint64_t high = plain_operand(place + n * kSecond, kBlockStride);
    const uint64_t low = plain_operand(place + n * kSecond + kLow, kBlockStride);
    group_mma_bf16_32<false>(out, a[n].high, high, add || n > 0);
    group_mma_bf16_32<false>(out, a[n].high, low, true);
    group_mma_bf16_32<false>(out, a[n].low, high, true);
  }
}

__device__ __forceinline__ void hold_parts(OperandParts& parts) {
  hold_registers(parts.high);
  hold_registers(parts.low);
}

// Not zero where one of the pairs of values is not finite.
__device__ __forceinline__ uint32_t seen_in_values(const uint32_t (&v)[4]) {
  return seen_in(finite_test(LEAPQUANT_BF16), make_uint4(v[0], v[1], v[2], v[3]));
}

// Takes the warp's columns, from `column` of the stage on, through a chunk. *faults, in shared
// memory: faults of values.
template <int32_t kColumns>
__device__ __forceinline__ void advance_chunk(const Call& call, const ChunkPlace& at, int32_t first,
                                              int32_t count, int32_t column,
                                              PreparedChunk<kColumns>* stage, Tiles<kDim / 8>& s,
                                              uint32_t* faults) {
  const int32_t lane = at.lane;
  const int32_t t = lane & 3;
  const uint32_t rows = operand_place(shared_address(stage->rows), 16);
  constexpr uint32_t kHalf = sizeof(stage->rows[0]) >> 4;
  // K S and Q S: tiles 0 .. 3 and 4 .. 7.
  Tiles<8> both;
  OperandParts parts[kDim / 16];
#pragma unroll
  for (uint32_t step = 0; step < kDim / 16; ++step) {
    parts[step] = operand_of(s[2 * step], s[2 * step + 1]);
    if (step % 4 != 3) continue;
    group_fence();
#pragma unroll
    for (uint32_t n = step - 3; n <= step; ++n) {
      const uint64_t b = swizzled_operand(rows + (n >> 2) * kHalf + 2 * (n & 3));
      group_mma_bf16_64<false>(both, parts[n].high, b, n > 0);
      group_mma_bf16_64<false>(both, parts[n].low, b, true);
    }
    group_commit();
  }
  group_wait<0>();
  hold_registers(both);
#pragma unroll
  for (int32_t step = 0; step < kDim / 16; ++step) hold_parts(parts[step]);
  // v less what is found, then the corrections.
  Tiles<4> x;
  {
    const uint32_t values = shared_address(stage->values) +
                            static_cast<uint32_t>(((lane & 7) + 8 * (lane >> 4)) *
                                                      PreparedChunk<kColumns>::kValuePitch +
                                                  2 * column + 16 * ((lane >> 3) & 1));
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t v[4];
      load_matrices_transposed(v, values + half * 16 * PreparedChunk<kColumns>::kValuePitch);
      if (seen_in_values(v) != 0) *faults = kNotFinite;
#pragma unroll
      for (uint32_t e = 0; e < 2; ++e) {
        const float (&found)[4] = both[2 * half + e];
        float (&to)[4] = x[2 * half + e];
        const float2 factor =
            *reinterpret_cast<const float2*>(&stage->key_factor[8 * (2 * half + e) + 2 * t]);
        to[0] = fmaf(-factor.x, found[0], __uint_as_float(v[2 * e] << 16));
        to[1] = fmaf(-factor.y, found[1], __uint_as_float(v[2 * e] & 0xffff0000u));
        to[2] = fmaf(-factor.x, found[2], __uint_as_float(v[2 * e + 1] << 16));
        to[3] = fmaf(-factor.y, found[3], __uint_as_float(v[2 * e + 1] & 0xffff0000u));
      }
    }
  }
  OperandParts operands[2] = {operand_of(x[0], x[1]), operand_of(x[2], x[3])};
  Tiles<4> u;
  group_fence();
  start_triangle(operands, stage->solve, false, u);
  group_commit();
  Tiles<4> read;
#pragma unroll
  for (int32_t n = 0; n < 4; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) read[n][i] = both[4 + n][i];
  }
  scale_columns(read, stage->query_factor, t);
  group_wait<0>();
  hold_registers(u);
  hold_parts(operands[0]);
  hold_parts(operands[1]);
  // Outputs and the state's update. Products are summed apart from the state: the units cut off
  // where they add, and the state stays.
  OperandParts weighted[2] = {operand_of(u[0], u[1]), operand_of(u[2], u[3])};
  scale_columns(u, stage->write_factor, t);
  OperandParts written[2] = {operand_of(u[0], u[1]), operand_of(u[2], u[3])};
  group_fence();
  start_triangle(weighted, stage->weights, true, read);
  group_commit();
  const float decay = stage->decay[0];
  // Both halves of the channels at once where registers are left.
  constexpr bool kAtOnce = kColumns == kGroupColumns;
  Tiles<8> sums[kAtOnce ? 2 : 1];
  const auto start_half = [&](uint32_t half, Tiles<8>& sum) {
    const uint64_t early = swizzled_operand(rows + half * kHalf);
    const uint64_t late = swizzled_operand(rows + half * kHalf + (16 * 128 >> 4));
    group_fence();
    group_mma_bf16_64<true>(sum, written[0].high, early, false);
    group_mma_bf16_64<true>(sum, written[0].low, early, true);
    group_mma_bf16_64<true>(sum, written[1].high, late, true);
    group_mma_bf16_64<true>(sum, written[1].low, late, true);
    group_commit();
  };
  start_half(0, sums[0]);
  if constexpr (kAtOnce) start_half(1, sums[1]);
  group_wait<kAtOnce ? 2 : 1>();
  hold_registers(read);
  hold_parts(weighted[0]);
  hold_parts(weighted[1]);
  store_chunk(call, at, first, count, at.first_column + column, read);
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
    if (half == 1) {
      hold_parts(written[0]);
      hold_parts(written[1]);
    }
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& entry = s[8 * half + n][i];
        entry = fmaf(decay, entry, sum[n][i]);
      }
    }
  }
}

}  // namespace leapquant::cuda::chunks_128
