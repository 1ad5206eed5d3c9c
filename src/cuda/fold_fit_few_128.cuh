// SPDX-License-Identifier: Apache-2.0
//
// The fit of up to four FP16 compensators. The products are the block's; between them one warp
// holds all columns in registers, four values a lane, and makes them orthonormal there.
#pragma once

#include "cuda/fold_fit_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitFew : FoldFit {
  // By one warp, from the columns in `sides`: what makes them orthonormal in order, the inverse of
  // the Cholesky factor of their Gram matrix, into `turns`. Returns whether that is exact enough as
  // it is: where each living column has at least 1/16 of its square outside the span of those
  // before it.
  __device__ __forceinline__ bool factor_few(bool again) const {
    float4 x[4];
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      x[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (c < rank()) x[c] = reinterpret_cast<const float4*>(sides() + c * kStride)[lane()];
    }
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
    const float n10 = -i1 * (l10 * i0);
    const float n20 = -i2 * fmaf(l21, n10, l20 * i0);
    const float n21 = -i2 * (l21 * i1);
    if (lane() == 0) {
      turns()[0] = make_float4(0.0f, 0.0f, i0, 0.0f);
      turns()[1] = make_float4(0.0f, 0.0f, n10, i1);
      turns()[2] = make_float4(n20, n21, i2, 0.0f);
      turns()[3] = make_float4(-i3 * fmaf(l32, n20, fmaf(l31, n10, l30 * i0)),
                               -i3 * fmaf(l32, n21, l31 * i1), -i3 * (l32 * i2), i3);
    }
    return 16.0f * p1 >= gram[2] && 16.0f * p2 >= gram[5] && 16.0f * p3 >= g33;
  }

  // Per column 2 t or 2 t + 1, where the Gram matrix of other fits is: factors of columns 0 and 1
  // (for t = 0 none), 2 t, 2 t + 1. Zeros for columns 4 .. 7.
  __device__ __forceinline__ float4* turns() const { return at<float4>(plan.gram); }
  // The warp's values of the columns, as `turn` lays them out, times that.
  __device__ __forceinline__ void apply_turns(float (&d)[4]) const {
    const float4 a = turns()[2 * t()];
    const float4 b = turns()[2 * t() + 1];
#pragma unroll
    for (int32_t i = 0; i < 4; i += 2) {
      const float x0 = __shfl_sync(kAll, d[i], lane() & ~3);
      const float x1 = __shfl_sync(kAll, d[i + 1], lane() & ~3);
      const float lower = fmaf(a.z, d[i], fmaf(a.y, x1, a.x * x0));
      d[i + 1] = fmaf(b.w, d[i + 1], fmaf(b.z, d[i], fmaf(b.y, x1, b.x * x0)));
      d[i] = lower;
    }
  }
  // They become operands: high parts and, for another round, low ones; with `last` the high parts
  // are what is stored.
  __device__ __forceinline__ void put_columns(const float (&d)[4], bool last) const {
    uint32_t high[2], low[2];
    split(d[0], d[1], &high[0], &low[0]);
    split(d[2], d[3], &high[1], &low[1]);
    put_parts(0, 0, high[0], high[1]);
    put_parts(0, kLowAt, low[0], low[1]);
    if (!last) return;
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) {
      if (2 * t() + e >= rank()) continue;
      auto* to = reinterpret_cast<unsigned short*>(boundary() + format.fp16_values +
                                                   (2 * t() + e) * 256 + 32 * warp() + 2 * g());
      to[0] = static_cast<unsigned short>(high[0] >> (16 * e));
      to[8] = static_cast<unsigned short>(high[1] >> (16 * e));
    }
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_few(State* s, const Meanwhile& meanwhile) const {
    const bool cold = start_columns();
    const int32_t rounds = cold ? 3 : format.fit_rounds;
    // Four columns' high parts and their low parts are the operand's eight; at last the high parts.
    const uint32_t parts = shared_address(shared + kColumnsAt) + (lane() & 3) * kColumnBytes +
                           kLowAt * ((lane() >> 2) & 1) + 16 * (lane() >> 3);
    if (warp() == 1 && lane() < 4) turns()[4 + lane()] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float d[4];
    int32_t left = rounds;
#pragma unroll 1
    do {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
      times<false>(left > 0 ? parts : columns_from(0), d);
      if (left > 0) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) d[i] += __shfl_xor_sync(kAll, d[i], 2);
        put_projection(0, d);
        sync_team();
        float x[4];
        turn(0, x);
#pragma unroll 1
        for (int32_t pass = 0;; ++pass) {
          put_sides(0, rank(), x);
          sync_team();
          if (warp() == 0) {
            const bool exact = factor_few(pass != 0);
            if (lane() == 0) {
              at<uint32_t>(kScalesAt)[3] = exact || pass != 0 || !(cold || left == 1) ? 1u : 0u;
            }
          } else if (pass == 0 && left == rounds) {
            meanwhile();
          }
          sync_team();
          apply_turns(x);
          if (at<uint32_t>(kScalesAt)[3] != 0) break;
        }
        put_columns(x, left == 1);
        sync_team();
      }
    } while (--left >= 0);
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
