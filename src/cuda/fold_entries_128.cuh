// SPDX-License-Identifier: Apache-2.0
//
// The entries of a state that is folded, as the lanes of a block hold them, and what is taken over
// all of a lane's.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/fold_numbers_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

// State entries of a lane: at[n][m][2 hh + e] is value 16 m + 8 hh + g of key 16 warp + 4 t + 2 n +
// e. A warp has 16 keys and all values; its four neighbouring keys share a word of the payload.
struct State {
  float at[2][8][4];
};

__device__ __forceinline__ float squares(const State& s) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int32_t m = 0; m < 16; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float x = s.at[m / 8][m % 8][i];
      sum[i] = fmaf(x, x, sum[i]);
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__device__ __forceinline__ float largest_of(const State& s) {
  float most[2] = {0.0f, 0.0f};
#pragma unroll
  for (int32_t m = 0; m < 16; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) most[i & 1] = fmaxf(most[i & 1], fabsf(s.at[m / 8][m % 8][i]));
  }
  return fmaxf(most[0], most[1]);
}

__device__ __forceinline__ void multiply(State* s, float factor) {
#pragma unroll
  for (int32_t m = 0; m < 16; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) s->at[m / 8][m % 8][i] *= factor;
  }
}

}  // namespace leapquant::cuda::folding_128
