// SPDX-License-Identifier: Apache-2.0
//
// The residual codec in a block, bit for bit the arithmetic of the format.
#pragma once

#include "cuda/fold_fit_128.cuh"

namespace leapquant::cuda::folding_128 {

struct Fold : FoldFit {
  // The residual codec, every operation rounded to FP32. *error: sum of squares of what is lost.
  __device__ uint32_t encode(State* s, uint32_t largest, bool wants_error, float* error) const {
    uint32_t flags = 0;
    float c[4];
    if (format.smoothing == LEAPQUANT_SMOOTHING_NONE) {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) c[b] = 1.0f;
      if (thread < 128) maxima()[thread] = 0;
      __syncthreads();
    } else {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        float lower = fabsf(s->at[0][b / 2][b % 2]);
        float upper = fabsf(s->at[0][b / 2][2 + b % 2]);
#pragma unroll
        for (int32_t m = 1; m < 8; ++m) {
          lower = lower + fabsf(s->at[m][b / 2][b % 2]);
          upper = upper + fabsf(s->at[m][b / 2][2 + b % 2]);
        }
        float sum = lower + upper;
        sum += __shfl_xor_sync(kAll, sum, 16);
        sum += __shfl_xor_sync(kAll, sum, 8);
        sum += __shfl_xor_sync(kAll, sum, 4);
        c[b] = __fsqrt_rn(__fdiv_rn(sum, 128.0f));
      }
      if (thread < 128) maxima()[thread] = 0;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        const float most = fmaxf(fmaxf(c[0], c[1]), fmaxf(c[2], c[3]));
        const float least =
            fmaxf(1e-6f * __uint_as_float(block_max(__float_as_uint(most))), 1e-12f);
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) c[b] = fmaxf(c[b], least);
        if (g == 0) {
          *reinterpret_cast<float4*>(shared + format.smoothing_at + 4 * (16 * warp + 4 * t)) =
              make_float4(c[0], c[1], c[2], c[3]);
        }
      } else {
        uint32_t word = 0;
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          const int32_t n = to_log8(c[b]);
          if (n == 255 && c[b] > log8_value(255) * 1.05f) {
            flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
          }
          word |= static_cast<uint32_t>(n) << (8 * b);
          c[b] = log8_value(static_cast<uint32_t>(n));
        }
        if (g == 0) {
          *reinterpret_cast<uint32_t*>(shared + format.smoothing_at + 16 * warp + 4 * t) = word;
        }
        __syncthreads();
      }
      // Division: two corrected steps with the rounded reciprocal give the rounded quotient as long
      // as nothing underflows, so tiny residuals are scaled up first, by a power of two.
      const bool tiny = largest <= 0x21800000u;  // 2^-60
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        const float y = __frcp_rn(c[b]);
#pragma unroll
        for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
          for (int32_t hh = 0; hh < 2; ++hh) {
            float& x = s->at[m][b / 2][2 * hh + b % 2];
            if (tiny) x *= 18446744073709551616.0f;
            float q = x * y;
            q = fmaf(fmaf(-c[b], q, x), y, q);
            x = fmaf(fmaf(-c[b], q, x), y, q);
            if (tiny) x *= 5.421010862427522e-20f;
          }
        }
      }
    }
    // Largest magnitude of every value column.
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t hh = 0; hh < 2; ++hh) {
        float x = fmaxf(fmaxf(fabsf(s->at[m][0][2 * hh]), fabsf(s->at[m][0][2 * hh + 1])),
                        fmaxf(fabsf(s->at[m][1][2 * hh]), fabsf(s->at[m][1][2 * hh + 1])));
        x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAll, x, 2));
        if (((2 * m + hh) & 3) == t) atomicMax(&maxima()[16 * m + 8 * hh + g], __float_as_uint(x));
      }
    }
    __syncthreads();
    if (thread < 128) {
      const float amax = __uint_as_float(maxima()[thread]);
      float scale = 0.0f;
      if (amax >= 1e-30f) {
        scale = format.scale_steps == format.q_max
                    ? amax
                    : amax * __fdiv_rn(format.q_max, format.scale_steps);
      }
      if (format.fp16_scale) {
        bool saturated = false;
        const unsigned short half = scale == 0.0f ? 0 : to_half_up(scale, &saturated);
        if (saturated) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
        *reinterpret_cast<unsigned short*>(shared + format.value_scale + 2 * thread) = half;
        scale = __half2float(__ushort_as_half(half));
      } else {
        floats(format.value_scale)[thread] = scale;
      }
      inverses()[thread] = scale == 0.0f ? 0.0f : __fdiv_rn(format.q_max, scale);
      steps()[thread] = scale * format.inverse_q;
    }
    __syncthreads();
    // Codes: clamped before the rounding, which gives the same, then rounded half to even by adding
    // 1.5 2^23; the low byte of the sum is the code, that of the constant 128 more the stored one.
    const float shift = format.half_levels ? 0.5f : 0.0f;
    const float low = -format.q_max;
    const float high = format.half_levels ? format.q_max - 1.0f : format.q_max;
    float lost = 0.0f;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t word[4];
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const int32_t value = 32 * vb + 8 * p + g;
        const float inverse = inverses()[value];
        const float step = steps()[value];
        uint32_t byte[4];
#pragma unroll
        for (int32_t b = 0; b < 4; ++b) {
          const float x = s->at[2 * vb + p / 2][b / 2][2 * (p % 2) + b % 2];
          const float y = fminf(fmaxf(x * inverse - shift, low), high);
          const float sum = y + 12582912.0f;
          byte[b] = __float_as_uint(sum);
          if (wants_error) {
            const float miss = c[b] * fmaf(-(sum - 12582912.0f + shift), step, x);
            lost = fmaf(miss, miss, lost);
          }
        }
        word[p] = __byte_perm(__byte_perm(byte[0], byte[1], 0x0040),
                              __byte_perm(byte[2], byte[3], 0x0040), 0x5410) ^
                  0x80808080u;
      }
      store_codes(vb, word);
    }
    *error = lost;
    return flags;
  }
};

}  // namespace leapquant::cuda::folding_128
