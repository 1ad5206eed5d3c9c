// SPDX-License-Identifier: Apache-2.0
//
// The residual codec in a block, bit for bit the arithmetic of the format. The state is scaled by a
// power of two: the key's factors are worked out in true size and scaled, quotients need no care.
#pragma once

#include "core/numeric.h"
#include "cuda/fold_fit_many_128.cuh"

namespace leapquant::cuda::folding_128 {

struct Fold : FoldFitMany {
  // x / c rounded to nearest, from y = 1 / c rounded: the quotient x y is within 1.5 units, the
  // step that corrects it errs by 1.75 2^-47 at most (of x, c in 1 .. 2), and of all quotients that
  // near to the middle of two numbers, 70 million, none comes out wrong (tried one by one).
  __device__ __forceinline__ static float quotient_of(float x, float c, float y) {
    const float q = x * y;
    return fmaf(fmaf(-c, q, x), y, q);
  }

  // One step of the maxima below: lanes kLanes apart exchange halves of 2 kHalf values.
  template <int kHalf, int kLanes>
  __device__ __forceinline__ void exchange_maxima(float (&p)[16]) const {
    const bool upper = (lane() & kLanes) != 0;
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) {
      const float send = select_float(upper, p[i], p[i + kHalf]);
      const float keep = select_float(upper, p[i + kHalf], p[i]);
      p[i] = fmaxf(keep, __shfl_xor_sync(kAll, send, kLanes));
    }
  }

  // Codes of a state of quotients, and the sum of the squares of what is lost. kPlain: integers
  // whose scale cannot be exceeded. Clamped before the rounding, which gives the same, then rounded
  // half to even by adding 1.5 2^23; the low byte of the sum is the code.
  template <bool kPlain>
  __device__ __forceinline__ float round_quotients(const State& s, const float (&c)[4],
                                                   uint32_t (&words)[4][4]) const {
    const float shift = format.half_levels ? 0.5f : 0.0f;
    const float low = -format.q_max;
    const float high = format.half_levels ? format.q_max - 1.0f : format.q_max;
    const float2* inverses = at<float2>(kInversesAt) + kInverseRow * g();
    float lost[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const float2 f = inverses[4 * vb + p];
        uint32_t byte[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float x = s.at[i / 2][2 * vb + p / 2][2 * (p % 2) + i % 2];
          float y = x * f.x;
          if (!kPlain) y = fminf(fmaxf(y - shift, low), high);
          const float sum = y + 12582912.0f;
          byte[i] = __float_as_uint(sum);
          float code = sum - 12582912.0f;
          if (!kPlain) code += shift;
          const float miss = fmaf(-code, f.y, x);
          lost[i] = fmaf(miss, miss, lost[i]);
        }
        words[vb][p] = __byte_perm(__byte_perm(byte[0], byte[1], 0x0040),
                                   __byte_perm(byte[2], byte[3], 0x0040), 0x5410);
      }
    }
    float sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) sum = fmaf(c[i] * c[i], lost[i], sum);
    return sum;
  }

  // The residual codec, every operation rounded to FP32. *error: sum of squares of what is lost.
  // `meanwhile` runs where some warps wait for others; kShort: in warps 4 .. 7, while they do, and
  // the FP16 copy of the state is no longer read when this begins.
  template <bool kShort, typename Meanwhile>
  __device__ __forceinline__ uint32_t encode(State* s, float* error,
                                             const Meanwhile& meanwhile) const {
    uint32_t flags = 0;
    const float scale = at<float>(kScalesAt)[0];
    const float unscale = at<float>(kScalesAt)[1];
    // Sums of the lane's four keys over the eight lanes that have their values; a lane is left with
    // one key's, then works out that key's factor for all.
    const int32_t own = 2 * (lane() >> 4) + ((lane() >> 3) & 1);
    float factor = scale;
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) {
      float sums[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t e = i % 2;
        float lower = fabsf(s->at[i / 2][0][e]);
        float upper = fabsf(s->at[i / 2][0][2 + e]);
#pragma unroll
        for (int32_t m = 1; m < 8; ++m) {
          lower = lower + fabsf(s->at[i / 2][m][e]);
          upper = upper + fabsf(s->at[i / 2][m][2 + e]);
        }
        sums[i] = lower + upper;
      }
      const bool second = (lane() & 16) != 0;
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const float send = select_float(second, sums[i], sums[2 + i]);
        sums[i] = select_float(second, sums[2 + i], sums[i]) + __shfl_xor_sync(kAll, send, 16);
      }
      const bool odd = (lane() & 8) != 0;
      const float send = select_float(odd, sums[0], sums[1]);
      float sum = select_float(odd, sums[1], sums[0]) + __shfl_xor_sync(kAll, send, 8);
      sum += __shfl_xor_sync(kAll, sum, 4);
      // A sum past the largest number counts as that; a NaN stays one.
      const float whole = sum * unscale;
      float m = __fsqrt_rn((whole > kLargestFloat ? kLargestFloat : whole) * 0.0078125f);
      const int32_t key = first_key() + own;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        const float most = __uint_as_float(block_max(__float_as_uint(m), 2));
        m = fmaxf(m, fmaxf(1e-6f * most, 1e-12f));
        if ((lane() & 4) == 0) {
          reinterpret_cast<float*>(boundary() + format.smoothing_at)[key] = m;
        }
      } else {
        const int32_t n = to_log8(m);
        if (n == 255 && m > log8_value(255) * 1.05f) {
          flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
        }
        m = log8_value(static_cast<uint32_t>(n));
        if ((lane() & 4) == 0) boundary()[format.smoothing_at + key] = static_cast<char>(n);
        if (!kShort) sync_team();
      }
      factor = m * scale;
    } else if (!kShort) {
      sync_team();
    }
    const float inverse = __frcp_rn(factor);
    float c[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t from = t() + 16 * (i / 2) + 8 * (i % 2);
      c[i] = __shfl_sync(kAll, factor, from);
      const float y = __shfl_sync(kAll, inverse, from);
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        float& lower = s->at[i / 2][m][i % 2];
        float& upper = s->at[i / 2][m][2 + i % 2];
        lower = quotient_of(lower, c[i], y);
        upper = quotient_of(upper, c[i], y);
      }
    }
    // Largest magnitude of every value column: over the four lanes of a value, then the block.
    float p[16];
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      const float (&x)[4] = s->at[0][i / 2];
      const float (&y)[4] = s->at[1][i / 2];
      const int32_t h = 2 * (i % 2);
      p[i] = fmaxf(fmaxf(fabsf(x[h]), fabsf(x[h + 1])), fmaxf(fabsf(y[h]), fabsf(y[h + 1])));
    }
    exchange_maxima<8, 1>(p);
    exchange_maxima<4, 2>(p);
    // [warp][value], before the codes are. kGap words between 32 values keep lanes in different
    // banks.
    constexpr int32_t kGap = kShort ? 8 : 0;
    constexpr int32_t kMaximaRow = 4 * (32 + kGap);
    float* maxima = reinterpret_cast<float*>(codes());
    const int32_t quarter = 2 * (t() & 1) + (t() >> 1);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      maxima[kMaximaRow * warp() + (32 + kGap) * quarter + 8 * i + g()] = p[i];
    }
    sync_team();
    // Scales at which a code can pass the ends of its range: clamped.
    bool clamps = format.half_levels != 0 || format.scale_steps > format.q_max;
    if (thread() < 128) {
      const float* from = maxima + thread() + kGap * warp();
      float amax = from[0];
#pragma unroll
      for (int32_t w = 1; w < kWarps; ++w) amax = fmaxf(amax, from[kMaximaRow * w]);
      float b = 0.0f;
      if (amax >= 1e-30f) {
        b = format.scale_steps == format.q_max ? amax
                                               : amax * __fdiv_rn(format.q_max, format.scale_steps);
      }
      if (format.fp16_scale) {
        bool saturated = false;
        const unsigned short half = b == 0.0f ? 0 : to_half_up(b, &saturated);
        if (saturated) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
        clamps = clamps || saturated;
        *reinterpret_cast<unsigned short*>(boundary() + format.value_scale + 2 * thread()) = half;
        b = __half2float(__ushort_as_half(half));
      } else {
        if (b > kLargestFloat) {
          flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
          b = kLargestFloat;
        }
        reinterpret_cast<float*>(boundary() + format.value_scale)[thread()] = b;
      }
      at<float2>(kInversesAt)[kInverseRow * (thread() & 7) + (thread() >> 3)] =
          make_float2(b == 0.0f ? 0.0f : __fdiv_rn(format.q_max, b), b * format.inverse_q);
    } else if (kShort) {
      meanwhile();
    }
    const bool clamped = sync_team_or(clamps) != 0;
    if (!kShort) meanwhile();
    uint32_t words[4][4];
    if (clamped) {
      *error = round_quotients<false>(*s, c, words);
    } else {
      *error = round_quotients<true>(*s, c, words);
    }
    store_codes(words);
    return flags;
  }
};

}  // namespace leapquant::cuda::folding_128
