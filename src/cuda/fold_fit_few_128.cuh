// SPDX-License-Identifier: Apache-2.0
//
// The fit of up to four FP16 compensators. The products are the block's; between them one warp
// holds all columns in registers, four values a lane, and makes them orthonormal there.
#pragma once

#include "cuda/fold_fit_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitFew : FoldFit {
  // The warp's columns, made orthonormal in order by the Cholesky factor of their Gram matrix.
  // Returns whether that is exact enough as it is: where each living column has at least 1/16 of
  // its square outside the span of those before it.
  __device__ __forceinline__ bool orthonormalise(float4 (&x)[4], bool again) const {
    float p[8] = {dot(x[0], x[0]), dot(x[1], x[0]), dot(x[1], x[1]), dot(x[2], x[0]),
                  dot(x[2], x[1]), dot(x[2], x[2]), dot(x[3], x[0]), dot(x[3], x[1])};
    const float sums = eight_sums(p);
    const float g32 = sum_of_warp(dot(x[3], x[2]));
    const float g33 = sum_of_warp(dot(x[3], x[3]));
    float gram[8];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) gram[i] = __shfl_sync(kAll, sums, 4 * i);
    float s0, s1, s2, s3;
    const float i0 = inverse_of(again, gram[0], gram[0], &s0);
    const float l10 = gram[1] * s0;
    const float l20 = gram[3] * s0;
    const float l30 = gram[6] * s0;
    const float p1 = fmaf(-l10, l10, gram[2]);
    const float i1 = inverse_of(again, p1, gram[2], &s1);
    const float l21 = fmaf(-l20, l10, gram[4]) * s1;
    const float l31 = fmaf(-l30, l10, gram[7]) * s1;
    const float p2 = fmaf(-l21, l21, fmaf(-l20, l20, gram[5]));
    const float i2 = inverse_of(again, p2, gram[5], &s2);
    const float l32 = fmaf(-l31, l21, fmaf(-l30, l20, g32)) * s2;
    const float p3 = fmaf(-l32, l32, fmaf(-l31, l31, fmaf(-l30, l30, g33)));
    const float i3 = inverse_of(again, p3, g33, &s3);
    x[0] = scaled(x[0], i0);
    x[1] = scaled(less(x[1], x[0], l10), i1);
    x[2] = scaled(less(less(x[2], x[0], l20), x[1], l21), i2);
    x[3] = scaled(less(less(less(x[3], x[0], l30), x[1], l31), x[2], l32), i3);
    return 16.0f * p1 >= gram[2] && 16.0f * p2 >= gram[5] && 16.0f * p3 >= g33;
  }

  // The columns in `sides` become operands: high parts and, for another round, low ones; with
  // `last` the high parts are what is stored. One after another: code costs more than time here.
  __device__ __forceinline__ void put_columns(bool last) const {
#pragma unroll 1
    for (int32_t c = 0; c < rank(); ++c) {
      const float4 x = reinterpret_cast<const float4*>(sides() + c * kStride)[lane()];
      uint2 high, low;
      split(x.x, x.y, &high.x, &low.x);
      split(x.z, x.w, &high.y, &low.y);
      reinterpret_cast<uint2*>(column(c, 0))[lane()] = high;
      reinterpret_cast<uint2*>(column(c, kLowAt))[lane()] = low;
      if (last) {
        reinterpret_cast<uint2*>(boundary() + format.fp16_values + c * 256)[lane()] = high;
      }
    }
  }

  // The fit that suits the format. `meanwhile()` runs once, where it keeps nobody waiting if there
  // is such a place.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_any(State* s, bool zero,
                                              const Meanwhile& meanwhile) const {
    if (rank() > 0 && few()) return fit_few(s, zero, meanwhile);
    meanwhile();
    return rank() > 0 ? fit(s, zero) : 0u;
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_few(State* s, bool zero,
                                              const Meanwhile& meanwhile) const {
    const bool cold = start_columns();
    const int32_t rounds = cold ? 3 : format.fit_rounds;
    // Four columns' high parts and their low parts are the operand's eight; at last the high parts.
    const uint32_t parts = shared_address(shared + kColumnsAt) + (lane() & 3) * kColumnBytes +
                           kLowAt * ((lane() >> 2) & 1) + 16 * (lane() >> 3);
    float d[4];
#pragma unroll 1
    for (int32_t left = rounds;; --left) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
      times<false>(left > 0 ? parts : columns_from(0), d);
      if (left == 0) break;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) d[i] += __shfl_xor_sync(kAll, d[i], 2);
      put_projection(0, d);
      sync_team();
      power(0, rank());
      sync_team();
      if (warp() == 0) {
        float4 x[4];
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
          x[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (c < rank() && !zero) {
            x[c] = reinterpret_cast<const float4*>(sides() + c * kStride)[lane()];
          }
        }
        const int32_t passes = cold || left == 1 ? 2 : 1;
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
          if (orthonormalise(x, pass == 1)) break;
        }
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
          if (c < rank()) reinterpret_cast<float4*>(sides() + c * kStride)[lane()] = x[c];
        }
        put_columns(left == 1);
      } else if (left == rounds) {
        meanwhile();
      }
      sync_team();
    }
    return subtract_few(s, d) ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }

  // Key sides of the rounded columns, given S V, rounded and stored; what they decode to is the
  // operand as it lies. Returns whether one saturates.
  __device__ __forceinline__ bool subtract_few(State* s, const float (&d)[4]) const {
    bool saturated = false;
    const float scale = at<float>(kScalesAt)[0];
    const float unscale = at<float>(kScalesAt)[1];
    uint32_t b[2];
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      float decoded[2];
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        const int32_t c = 2 * t() + e;
        const unsigned short half = to_half_saturated(d[2 * n + e] * unscale, &saturated);
        if (c < rank()) {
          reinterpret_cast<unsigned short*>(boundary() + format.fp16_keys +
                                            c * 256)[operand_key(n)] = half;
        }
        decoded[e] = __half2float(__ushort_as_half(half)) * -scale;
      }
      b[n] = pack_fp16(decoded[0], decoded[1]);
    }
    const uint32_t row = columns_from(0);
#pragma unroll
    for (int32_t m = 0; m < 8; m += 2) {
      uint32_t a[4];
      load_matrices_transposed(a, row + 32 * m);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        mma_fp16_short(s->at[0][m + i], a[2 * i], a[2 * i + 1], b[0]);
        mma_fp16_short(s->at[1][m + i], a[2 * i], a[2 * i + 1], b[1]);
      }
    }
    return saturated;
  }
};

}  // namespace leapquant::cuda::folding_128
