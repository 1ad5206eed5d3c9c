// SPDX-License-Identifier: Apache-2.0
//
// The fit of up to four FP16 compensators. The products are the block's, and so are the columns'
// products with one another, which a warp takes from the same operands: every warp factors their
// Gram matrix for itself, and makes its own rows of columns and key sides orthonormal in registers.
#pragma once

#include "cuda/fold_fit_128.cuh"

namespace leapquant::cuda::folding_128 {

// Low parts of columns, where other fits have floats: in other banks than the high ones.
constexpr int32_t kFewLowsAt = kFloatsAt + 64;

struct FoldFitFew : FoldFit {
  // A lane has a row of four columns, that of the warp's value or key (of operands) g or g + 8; its
  // neighbour has the same one. Each of the two stores two columns.
  __device__ __forceinline__ int32_t pair() const { return 2 * (t() & 1); }
  __device__ __forceinline__ int32_t row() const {
    return 16 * warp() + g() + 8 * ((lane() >> 1) & 1);
  }
  // From what products give where columns 4 .. 7 are the first four again.
  __device__ __forceinline__ void take_row(const float (&d)[4], float (&x)[4]) const {
    const bool upper = (lane() & 2) != 0;
    const bool odd = (lane() & 1) != 0;
    const float a = select_float(upper, d[2], d[0]);
    const float b = select_float(upper, d[3], d[1]);
    const float c = __shfl_xor_sync(kAll, a, 1);
    const float e = __shfl_xor_sync(kAll, b, 1);
    x[0] = select_float(odd, c, a), x[1] = select_float(odd, e, b);
    x[2] = select_float(odd, a, c), x[3] = select_float(odd, b, e);
  }
  __device__ __forceinline__ float2 own_pair(const float (&x)[4]) const {
    const bool odd = (lane() & 1) != 0;
    return make_float2(select_float(odd, x[2], x[0]), select_float(odd, x[3], x[1]));
  }
  __device__ __forceinline__ void put_pair(int32_t part, uint32_t halves) const {
    auto* to = reinterpret_cast<unsigned short*>(column(pair(), part)) + row();
    to[0] = static_cast<unsigned short>(halves);
    to[kColumnBytes / 2] = static_cast<unsigned short>(halves >> 16);
  }
  __device__ __forceinline__ void put_values(const float (&x)[4]) const {
    const float2 own = own_pair(x);
    uint32_t high, low;
    split(own.x, own.y, &high, &low);
    put_pair(0, high);
    put_pair(kFewLowsAt, low);
  }

  // The Cholesky factor of the columns' Gram matrix, and what makes a row orthonormal by it.
  struct Factor {
    float i0, i1, i2, i3, l10, l20, l30, l21, l31, l32;
    __device__ __forceinline__ void apply(float (&x)[4]) const {
      x[0] *= i0;
      x[1] = fmaf(-l10, x[0], x[1]) * i1;
      x[2] = fmaf(-l21, x[1], fmaf(-l20, x[0], x[2])) * i2;
      x[3] = fmaf(-l32, x[2], fmaf(-l31, x[1], fmaf(-l30, x[0], x[3]))) * i3;
    }
  };
  // Within FP16: of columns that are all rounding nothing bounds the length, and what is not finite
  // would stay so in all products.
  __device__ __forceinline__ static float bounded(float x) {
    return fminf(fmaxf(x, -32768.0f), 32768.0f);
  }
  // What a column is multiplied by once those before are taken off it, from its square then
  // (`pivot`) and before (`diagonal`), and what later columns take it off by. A pivot below 1e-5 of
  // the diagonal is not exact: `floors`: the column lives, scaled by that least, and nothing is
  // taken off later ones for it, so that no error of a pivot grows; else one below 3e-7, which may
  // be rounding, dies. *inexact, *rough: set where a pivot is below 0.004 and 1e-5 of its diagonal.
  __device__ __forceinline__ static float inverse_few(bool floors, float pivot, float diagonal,
                                                      bool* inexact, bool* rough, float* later) {
    const float least = (floors ? 1e-5f : 3e-7f) * diagonal;
    const bool rounding = pivot < least;
    *inexact = *inexact || pivot < 0.004f * diagonal;
    *rough = *rough || pivot < 1e-5f * diagonal;
    const float square = rounding ? floors ? least : 0.0f : pivot;
    const float inverse = square > 0.0f ? rsqrt_fast(square) : 0.0f;
    *later = rounding ? 0.0f : inverse;
    return inverse;
  }
  // From products of high parts (columns 0 .. 3) and low ones (4 .. 7) as `times` gives them.
  // Returns whether the factor is not exact enough: in the end (`last`), or at all.
  __device__ __forceinline__ bool factor_few(const float (&gram)[2], bool floors, bool last,
                                             Factor* f) const {
    float m[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      m[i] = gram[i] + __shfl_xor_sync(kAll, gram[i], 2);
      m[i] += __shfl_xor_sync(kAll, m[i], 16);
    }
    const auto of = [&](int32_t row, int32_t c) {
      return __shfl_sync(kAll, m[c & 1], 4 * row + c / 2);
    };
    const float g11 = of(1, 1), g22 = of(2, 2), g33 = of(3, 3);
    const float g00 = of(0, 0);
    bool inexact = false;
    bool rough = false;
    float s0, s1, s2, s3;
    f->i0 = inverse_few(floors, g00, g00, &inexact, &rough, &s0);
    f->l10 = of(1, 0) * s0;
    f->l20 = of(2, 0) * s0;
    f->l30 = of(3, 0) * s0;
    f->i1 = inverse_few(floors, fmaf(-f->l10, f->l10, g11), g11, &inexact, &rough, &s1);
    f->l21 = fmaf(-f->l20, f->l10, of(2, 1)) * s1;
    f->l31 = fmaf(-f->l30, f->l10, of(3, 1)) * s1;
    f->i2 = inverse_few(floors, fmaf(-f->l21, f->l21, fmaf(-f->l20, f->l20, g22)), g22, &inexact,
                        &rough, &s2);
    f->l32 = fmaf(-f->l31, f->l21, fmaf(-f->l30, f->l20, of(3, 2))) * s2;
    f->i3 = inverse_few(floors,
                        fmaf(-f->l32, f->l32, fmaf(-f->l31, f->l31, fmaf(-f->l30, f->l30, g33))),
                        g33, &inexact, &rough, &s3);
    return rough || (last && inexact);
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory. In turn the block multiplies columns by S, and key sides by S^T. The latter become
  // columns as they are, but for a power of two: made orthonormal are, with the columns' factor,
  // the key sides of the next product, and at last both.
  // `meanwhile()` runs once.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_few(State* s, const Meanwhile& meanwhile) const {
    // Columns no longer than 1.
    const int32_t rounds = start_columns(0.00390625f) ? 3 : format.fit_rounds;
    const uint32_t start =
        shared_address(shared + kColumnsAt) + (lane() & 3) * kColumnBytes + 16 * (lane() >> 3);
    float x[4];  // of columns
    float d[4];
    int32_t passes = 0;  // that have made these columns more nearly orthonormal
    int32_t left = 2 * rounds;
#pragma unroll 1
    for (;;) {
      if ((left & 1) != 0) {
        turn_keys(start + kKeysAt, d);
        take_row(d, x);
        // To at most 2^14, since no column is longer than the square of the norm.
        const auto energy = static_cast<int32_t>(at<uint32_t>(kScalesAt)[2] >> 23);
        const float shrink = power_of_two(min(140 - energy, 127));
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) x[i] = bounded(x[i] * shrink);
        put_values(x);
        passes = 0;
      } else {
        const bool turned = left < 2 * rounds;
        float gram[2];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
        // Four columns' high parts and their low ones are the operand's eight; at first no low
        // ones.
        times<false>(turned ? start + kFewLowsAt * ((lane() >> 2) & 1) : columns_from(0), d, true,
                     &gram);
        float k[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) d[i] += __shfl_xor_sync(kAll, d[i], 2);
        take_row(d, k);
        if (turned) {
          Factor factor;
          const bool again = factor_few(gram, passes == 0, left == 0, &factor);
          if (again && passes < 2) {
            factor.apply(x);
            ++passes;
            // To lengths of some 2^6, of which low parts lose nothing.
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) x[i] = bounded(64.0f * x[i]);
            sync_team();  // the columns have been read
            put_values(x);
            sync_team();
            continue;
          }
          factor.apply(k);
          if (left == 0) {
            factor.apply(x);
            return subtract_few(s, x, k);
          }
        }
        const float2 own = own_pair(k);
        put_pair(kKeysAt, pack_fp16(bounded(own.x), bounded(own.y)));
      }
      if (left == 2 * rounds) meanwhile();
      sync_team();
      --left;
    }
  }

  // Rounds and stores value and key sides; what they decode to are the operands that are
  // subtracted.
  __device__ __forceinline__ uint32_t subtract_few(State* s, const float (&x)[4],
                                                   const float (&k)[4]) const {
    bool saturated = false;
    const float scale = at<float>(kScalesAt)[0];
    const float unscale = at<float>(kScalesAt)[1];
    const float2 value = own_pair(x);
    const float2 key = own_pair(k);
    const uint32_t halves = pack_fp16(value.x, value.y);
    put_pair(kKeysAt, halves);
    float decoded[2];
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) {
      const unsigned short half = to_half_saturated((e == 0 ? key.x : key.y) * unscale, &saturated);
      decoded[e] = __half2float(__ushort_as_half(half)) * -scale;
      const int32_t c = pair() + e;
      if (c < rank()) {
        reinterpret_cast<unsigned short*>(boundary() + format.fp16_values + c * 256)[row()] =
            static_cast<unsigned short>(halves >> (16 * e));
        reinterpret_cast<unsigned short*>(boundary() + format.fp16_keys +
                                          c * 256)[operand_key((lane() >> 1) & 1)] = half;
      }
    }
    // The operand has its columns' rows in the lanes t = 0 and 1, and none in the others.
    const bool upper = (lane() & 2) != 0;
    const uint32_t own = pack_fp16(decoded[0], decoded[1]);
    const uint32_t other = __shfl_xor_sync(kAll, own, 2);
    const uint32_t lower_keys = upper ? 0u : own;
    const uint32_t upper_keys = upper ? 0u : other;
    sync_team();
    const uint32_t from = columns_from(0) + kKeysAt;
#pragma unroll
    for (int32_t m = 0; m < 8; m += 2) {
      uint32_t a[4];
      load_matrices_transposed(a, from + 32 * m);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        mma_fp16_short(s->at[0][m + i], a[2 * i], a[2 * i + 1], lower_keys);
        mma_fp16_short(s->at[1][m + i], a[2 * i], a[2 * i + 1], upper_keys);
      }
    }
    return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
