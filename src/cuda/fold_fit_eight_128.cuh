// SPDX-License-Identifier: Apache-2.0
//
// The fit of five to eight FP16 compensators. A warp keeps its values of the columns in registers
// from one product to the next; to make them orthonormal the warps exchange shares of their Gram
// matrix, of which one warp makes the inverse factor that all apply.
#pragma once

#include "cuda/fold_fit_few_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitEight : FoldFitFew {
  // Numbers of the warp's values as `turn` lays them out, in three BF16 parts: operands of 16
  // values each. Their sum is the number, to FP32.
  struct Parts {
    uint32_t high[2], middle[2], low[2];
  };
  // A pair's first part, which is taken off.
  __device__ __forceinline__ static uint32_t take_part(float* x, float* y) {
    const uint32_t pair = pack_bf16(*x, *y);
    *x -= __uint_as_float(pair << 16);
    *y -= __uint_as_float(pair & 0xffff0000u);
    return pair;
  }
  __device__ __forceinline__ static Parts parts_of(float (&x)[4]) {
    Parts parts;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      parts.high[i] = take_part(&x[2 * i], &x[2 * i + 1]);
      parts.middle[i] = take_part(&x[2 * i], &x[2 * i + 1]);
      parts.low[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    }
    return parts;
  }

  // Where the warps' shares of a Gram matrix lie: where other fits have the columns in FP32.
  __device__ __forceinline__ float2* share(int32_t from) const {
    return at<float2>(kColumnsAt + from * kColumnBytes + kFloatsAt) + lane();
  }
  // Where one warp leaves what all apply: where other fits have the Gram matrix.
  __device__ __forceinline__ float2* inverses() const { return at<float2>(plan.gram); }
  // The warp's values' share of the columns' Gram matrix: lane 4 g + t has (g, 2 t), (g, 2 t + 1).
  __device__ __forceinline__ void put_share(const Parts& x) const {
    uint32_t h[2], m[2], l[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      h[i] = transpose_matrix(x.high[i]);
      m[i] = transpose_matrix(x.middle[i]);
      l[i] = transpose_matrix(x.low[i]);
    }
    float d[4] = {};
    mma_bf16(d, l[0], 0u, l[1], 0u, h[0], h[1]);
    mma_bf16(d, h[0], m[0], h[1], m[1], l[0], l[1]);
    mma_bf16(d, h[0], m[0], h[1], m[1], m[0], m[1]);
    mma_bf16(d, h[0], m[0], h[1], m[1], h[0], h[1]);
    *share(warp()) = make_float2(d[0] + d[2], d[1] + d[3]);
  }

  // What makes the columns orthonormal in order: the inverse of the Cholesky factor of their Gram
  // matrix. By one warp, by elimination in place: left of the diagonal stands what was done to the
  // rows. For lane 4 g + t entries (g, 2 t), (g, 2 t + 1), the operand of `apply`. Returns whether
  // that is exact enough as it is: where each living column has at least 1/16 of its square outside
  // the span of those before it.
  __device__ __forceinline__ bool factor(bool again) const {
    float a[2] = {0.0f, 0.0f};
#pragma unroll
    for (int32_t w = 0; w < kWarps; ++w) {
      const float2 x = *share(w);
      a[0] += x.x, a[1] += x.y;
    }
    // Columns of length one.
    const float diagonal =
        __shfl_sync(kAll, select_float((g() & 1) != 0, a[1], a[0]), (lane() & ~3) + (g() >> 1));
    const float norm = diagonal > 1e-30f ? rsqrt_fast(diagonal) : 0.0f;
    const float norms[2] = {__shfl_sync(kAll, norm, 8 * t()), __shfl_sync(kAll, norm, 8 * t() + 4)};
    a[0] *= norm * norms[0], a[1] *= norm * norms[1];
    float own = 0.0f;  // of this row: its pivot and what that makes of it
    float factor = 0.0f;
#pragma unroll 1
    for (int32_t k = 0; k < rank(); ++k) {
      const float column = select_float((k & 1) != 0, a[1], a[0]);
      const float pivot = __shfl_sync(kAll, column, 4 * k + (k >> 1));
      const float mine = __shfl_sync(kAll, column, (lane() & ~3) + (k >> 1));
      const float row[2] = {__shfl_sync(kAll, a[0], 4 * k + t()),
                            __shfl_sync(kAll, a[1], 4 * k + t())};
      const bool sound = pivot > kLeastPivot;
      const float root = rsqrt_fast(pivot);
      const float taken = sound && g() > k ? mine * root * root : 0.0f;
      if (g() == k) {
        own = pivot;
        factor = sound ? root : again ? 0.0f : rsqrt_fast(kLeastPivot);
      }
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        a[e] = fmaf(-taken, row[e], a[e]);
        if (2 * t() + e == k) a[e] = g() == k ? 1.0f : -taken;
      }
    }
    inverses()[lane()] = make_float2(2 * t() <= g() ? a[0] * factor * norms[0] : 0.0f,
                                     2 * t() < g() ? a[1] * factor * norms[1] : 0.0f);
    return !__any_sync(kAll, 16.0f * own < 0.999f && norm != 0.0f);
  }
  // The warp's values of the columns times that.
  __device__ __forceinline__ static void apply(const Parts& x, float2 inverse, float (&d)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
    add_applied(x, inverse, d);
  }
  __device__ __forceinline__ static void add_applied(const Parts& x, float2 inverse,
                                                     float (&d)[4]) {
    const uint32_t high = take_part(&inverse.x, &inverse.y);
    const uint32_t middle = take_part(&inverse.x, &inverse.y);
    add_parts(x, high, middle, pack_bf16(inverse.x, inverse.y), d);
  }
  __device__ __forceinline__ static void add_parts(const Parts& x, uint32_t high, uint32_t middle,
                                                   uint32_t low, float (&d)[4]) {
    mma_bf16(d, x.low[0], x.low[1], x.high[0], x.high[1], high, low);
    mma_bf16(d, x.high[0], x.high[1], x.middle[0], x.middle[1], middle, middle);
    mma_bf16(d, x.high[0], x.high[1], x.middle[0], x.middle[1], high, high);
  }

  // Columns, as `turn` lays them out, become operands: high parts and, for another round, low ones;
  // with `last` the high parts are what is stored.
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

  // Key sides of the rounded columns, given S V, rounded and stored; what they decode to is the
  // operand as it lies. Returns whether one saturates.
  __device__ __forceinline__ bool subtract_columns(State* s, const float (&d)[4]) const {
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

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory. `meanwhile()` runs once, where a warp would wait for another.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_eight(State* s, const Meanwhile& meanwhile) const {
    const bool cold = start_columns();
    const int32_t rounds = cold ? 3 : format.fit_rounds;
    float d[4];
    int32_t left = rounds;
#pragma unroll 1
    do {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
      times<true>(columns_from(0), d, left > 0);
      if (left > 0) {
        put_projection(0, d);
        sync_team();
        float x[4];
        turn(0, x);
#pragma unroll 1
        for (int32_t pass = 0;; ++pass) {
          const Parts parts = parts_of(x);
          put_share(parts);
          sync_team();
          if (warp() == 0) {
            const bool exact = factor(pass != 0);
            if (lane() == 0) {
              at<uint32_t>(kScalesAt)[3] = exact || pass != 0 || !(cold || left == 1) ? 1u : 0u;
            }
          } else if (pass == 0 && left == rounds) {
            meanwhile();
          }
          sync_team();
          apply(parts, inverses()[lane()], x);
          if (at<uint32_t>(kScalesAt)[3] != 0) break;
        }
        put_columns(x, left == 1);
        sync_team();
      }
    } while (--left >= 0);
    return subtract_columns(s, d) ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
