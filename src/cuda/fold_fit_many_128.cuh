// SPDX-License-Identifier: Apache-2.0
//
// The warm fit of 25 to 32 compensators of which some have 8 or 4 bits, as FoldFitMixed fits up to
// sixteen: in four blocks of eight columns. It needs more registers, so that only kernels of many
// compensators have it. And the choice of the fit.
#pragma once

#include "cuda/fold_fit_mixed_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitMany : FoldFitMixed {
  static constexpr int32_t kBlocks = 4;

  // Key sides of the rounded value sides by least squares, by the series in their normalised Gram
  // matrix. Returns whether that is near enough to 1 for it. All warps come to the same answer.
  __device__ __forceinline__ bool solve_keys(const State& s) const {
    const float measure = products(Products::kStored);
    if (measure > 0.36f) return false;
    int32_t terms = 0;
    for (float left = measure; left > 1e-6f; left *= measure) ++terms;
    key_sides(s, true, true);
    settle_keys(terms);
    return true;
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory, warm columns too. Returns whether it is done: else the value sides are rounded, `sides`
  // is what they are, and key sides need the factor of their Gram matrix. `meanwhile()` runs once,
  // where a warp would wait for another.
  template <typename Meanwhile>
  __device__ __forceinline__ bool fit_many(State* s, const Meanwhile& meanwhile,
                                           uint32_t* flags) const {
    turn_once<kBlocks>(meanwhile);
    bool saturated = false;
    bool done = true;
#pragma unroll 1
    for (int32_t key = 0; key < 2 && done; ++key) {
      const FoldFitMany here = fresh(*this);
      if (key != 0) {
        done = here.solve_keys(*s);
        if (!done) break;
        sync_team();
      }
      saturated = here.round_columns<kBlocks>(key != 0) || saturated;
      sync_team();
    }
    if (saturated) *flags |= LEAPQUANT_HEALTH_COMPENSATOR_SATURATED;
    if (done) {
      add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
      return true;
    }
#pragma unroll 1
    for (int32_t i = thread(); i < side_count() * 128; i += kThreads) {
      const int32_t c = i / 128;  // past the last zeros: their low parts are multiplied by zeros
      const float step = c < rank() ? at<float>(kValueScalesAt)[c] : 0.0f;
      sides()[c * kStride + (i & 127)] =
          step != 0.0f ? __half2float(column(c, 0)[i & 127]) * step : 0.0f;
    }
    sync_team();
    return false;
  }

  // The fit that suits the format, of those that the kernel has. `meanwhile()` runs once, where it
  // keeps nobody waiting if there is such a place.
  template <Fits kFits, typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_any(State* s, bool zero,
                                              const Meanwhile& meanwhile) const {
    if constexpr (kFits != Fits::kFew) {
      return fresh(*this).template fit_as<kFits>(s, zero, meanwhile);
    } else {  // has the registers, and would lose 1 %
      return this->template fit_as<kFits>(s, zero, meanwhile);
    }
  }
  template <Fits kFits, typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_as(State* s, bool zero,
                                             const Meanwhile& meanwhile) const {
    constexpr bool kHasFew = kFits == Fits::kFew || kFits == Fits::kAny;
    constexpr bool kHasSome = kFits == Fits::kSome || kFits == Fits::kAny;
    const bool warm = format.num_int8 + format.num_int4 > 0 && format.fit_rounds == 1 && !zero;
    if constexpr (kHasFew) {
      const bool few = kFits == Fits::kFew || fits_of(format) == Fits::kFew;
      if (few && rank() > 0) return fit_few(s, meanwhile);
    }
    if constexpr (kHasSome) {
      if (rank() == format.num_fp16 && rank() > 0 && rank() <= 8) return fit_eight(s, meanwhile);
      if (warm && rank() > 8 && rank() <= 16 && !start_columns()) return fit_mixed(s, meanwhile);
    }
    uint32_t flags = 0;
    bool rounded = false;
    if constexpr (kFits == Fits::kMany) {
      if (warm && rank() > 24 && !start_columns()) {
        if (fit_many(s, meanwhile, &flags)) return flags;
        rounded = true;
      }
    }
    if (!rounded) meanwhile();
    if constexpr (kFits == Fits::kFew) return 0;
    return rank() > 0 ? fit(s, zero, rounded) | flags : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
