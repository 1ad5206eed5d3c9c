// SPDX-License-Identifier: Apache-2.0
//
// Straight-line code of a chosen size that warps can enter at eight places: what fetching
// instructions costs. FMAs only.
#pragma once

namespace leapquant::bench {

constexpr int kCodeParts = 8;

// Chains that do not wait for each other: one multiply-add of each in turn.
template <int kCount, int kChains>
__device__ __forceinline__ void multiply_adds(float (&x)[kChains], float y) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[i % kChains]) : "f"(y));
  }
}

// `rounds` times through kKilobytes of code, 16 bytes an instruction; the first time from part
// `start` on, which is the same in all lanes of a warp.
template <int kKilobytes, int kChains>
__device__ __forceinline__ void run_through(float (&x)[kChains], int start, int rounds) {
  constexpr int kCount = kKilobytes * 1024 / 16 / kCodeParts;
  switch (start) {
    do {
      case 0:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 1:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 2:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 3:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 4:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 5:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 6:
        multiply_adds<kCount>(x, 0.5f);
        [[fallthrough]];
      case 7:
        multiply_adds<kCount>(x, 0.5f);
    } while (--rounds > 0);
  }
}

}  // namespace leapquant::bench
