// SPDX-License-Identifier: Apache-2.0
//
// The residual codec in a block, bit for bit the arithmetic of the format. The state is scaled by a
// power of two: the key's factors are worked out in true size and scaled, quotients need no care.
#pragma once

#include "core/numeric.h"
#include "cuda/fold_fit_128.cuh"

namespace leapquant::cuda::folding_128 {

struct Fold : FoldFit {
  // x / c rounded to nearest: a quotient from the reciprocal and its error, right to little more
  // than half a unit, then one corrected step.
  struct Reciprocal {
    float c, y, rest;
    __device__ __forceinline__ explicit Reciprocal(float divisor) : c(divisor) {
      y = __frcp_rn(c);
      rest = fmaf(-c, y, 1.0f) * y;
    }
    __device__ __forceinline__ float quotient_of(float x) const {
      const float q = fmaf(x, y, x * rest);
      return fmaf(fmaf(-c, q, x), y, q);
    }
  };

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
  __device__ __forceinline__ float store_quotients(const State& s, const float (&c)[2]) const {
    const float shift = format.half_levels ? 0.5f : 0.0f;
    const float low = -format.q_max;
    const float high = format.half_levels ? format.q_max - 1.0f : format.q_max;
    float lost[2] = {0.0f, 0.0f};
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t half[4];
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const float2 f = at<float2>(kInversesAt)[32 * vb + 8 * p + g()];
        uint32_t byte[2];
#pragma unroll
        for (int32_t e = 0; e < 2; ++e) {
          const float x = s.at[2 * vb + p / 2][2 * (p % 2) + e];
          float y = x * f.x;
          if (!kPlain) y = fminf(fmaxf(y - shift, low), high);
          const float sum = y + 12582912.0f;
          byte[e] = __float_as_uint(sum);
          float code = sum - 12582912.0f;
          if (!kPlain) code += shift;
          const float miss = fmaf(-code, f.y, x);
          lost[e] = fmaf(miss, miss, lost[e]);
        }
        half[p] = __byte_perm(byte[0], byte[1], 0x3340);
      }
      store_codes(vb, half);
    }
    return fmaf(c[0] * c[0], lost[0], c[1] * c[1] * lost[1]);
  }

  // The residual codec, every operation rounded to FP32. *error: sum of squares of what is lost.
  __device__ __forceinline__ uint32_t encode(State* s, float* error) const {
    uint32_t flags = 0;
    const float scale = at<float>(kScalesAt)[0];
    const float unscale = at<float>(kScalesAt)[1];
    float c[2] = {scale, scale};
    if (thread() < 128) at<uint32_t>(kMaximaAt)[thread()] = 0;
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) {
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        float lower = fabsf(s->at[0][e]);
        float upper = fabsf(s->at[0][2 + e]);
#pragma unroll
        for (int32_t m = 1; m < 8; ++m) {
          lower = lower + fabsf(s->at[m][e]);
          upper = upper + fabsf(s->at[m][2 + e]);
        }
        float sum = lower + upper;
        sum += __shfl_xor_sync(kAll, sum, 16);
        sum += __shfl_xor_sync(kAll, sum, 8);
        sum += __shfl_xor_sync(kAll, sum, 4);
        // A sum past the largest number counts as that; a NaN stays one.
        const float whole = sum * unscale;
        c[e] = __fsqrt_rn((whole > kLargestFloat ? kLargestFloat : whole) * 0.0078125f);
      }
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        const float most = __uint_as_float(block_max(__float_as_uint(fmaxf(c[0], c[1])), 1));
        const float least = fmaxf(1e-6f * most, 1e-12f);
        c[0] = fmaxf(c[0], least);
        c[1] = fmaxf(c[1], least);
        if (g() == 0) {
          *reinterpret_cast<float2*>(boundary() + format.smoothing_at + 4 * first_key()) =
              make_float2(c[0], c[1]);
        }
      } else {
        uint32_t word = 0;
#pragma unroll
        for (int32_t e = 0; e < 2; ++e) {
          const int32_t n = to_log8(c[e]);
          if (n == 255 && c[e] > log8_value(255) * 1.05f) {
            flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
          }
          word |= static_cast<uint32_t>(n) << (8 * e);
          c[e] = log8_value(static_cast<uint32_t>(n));
        }
        if (g() == 0) {
          *reinterpret_cast<unsigned short*>(boundary() + format.smoothing_at + first_key()) =
              static_cast<unsigned short>(word);
        }
        __syncthreads();
      }
      c[0] *= scale;
      c[1] *= scale;
    } else {
      __syncthreads();
    }
    {
      const Reciprocal reciprocal[2] = {Reciprocal(c[0]), Reciprocal(c[1])};
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          s->at[m][i] = reciprocal[i & 1].quotient_of(s->at[m][i]);
        }
      }
    }
    // Largest magnitude of every value column: over the four lanes of a value, then the block.
    float p[16];
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      p[i] = fmaxf(fabsf(s->at[i / 2][2 * (i % 2)]), fabsf(s->at[i / 2][2 * (i % 2) + 1]));
    }
    exchange_maxima<8, 1>(p);
    exchange_maxima<4, 2>(p);
    const int32_t first = (t() & 1) * 8 + (t() >> 1) * 4;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      atomicMax(&at<uint32_t>(kMaximaAt)[8 * (first + i) + g()], __float_as_uint(p[i]));
    }
    __syncthreads();
    // Scales at which a code can pass the ends of its range: clamped.
    bool clamps = format.half_levels != 0 || format.scale_steps > format.q_max;
    if (thread() < 128) {
      const float amax = __uint_as_float(at<uint32_t>(kMaximaAt)[thread()]);
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
      at<float2>(kInversesAt)[thread()] =
          make_float2(b == 0.0f ? 0.0f : __fdiv_rn(format.q_max, b), b * format.inverse_q);
    }
    if (__syncthreads_or(clamps) != 0) {
      *error = store_quotients<false>(*s, c);
    } else {
      *error = store_quotients<true>(*s, c);
    }
    return flags;
  }
};

}  // namespace leapquant::cuda::folding_128
