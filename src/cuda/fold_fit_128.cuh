// SPDX-License-Identifier: Apache-2.0
//
// The fit of the compensators in a block: block subspace iteration, Cholesky factors in place of
// Gram-Schmidt, rounding to the compensators' types, the residual.
#pragma once

#include "core/start_vectors.h"
#include "cuda/fold_state_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFit : FoldState {
  // The lane's sixteen values of a column, index 2 m + hh.
  __device__ __forceinline__ void load_column(int32_t c, float (&v)[16]) const {
    const float4* at =
        reinterpret_cast<const float4*>(floats(plan.columns) + c * kColumnStride + g * 20);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float4 x = at[i];
      v[4 * i] = x.x, v[4 * i + 1] = x.y, v[4 * i + 2] = x.z, v[4 * i + 3] = x.w;
    }
  }

  // (S column c) of the lane's four keys, whole sums in every lane of the key.
  __device__ __forceinline__ void times(const State& s, int32_t c, float (&p)[4]) const {
    float v[16];
    load_column(c, v);
#pragma unroll
    for (int32_t b = 0; b < 4; ++b) {
      float even = 0.0f;
      float odd = 0.0f;
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        even = fmaf(s.at[m][b / 2][b % 2], v[2 * m], even);
        odd = fmaf(s.at[m][b / 2][2 + b % 2], v[2 * m + 1], odd);
      }
      p[b] = even + odd;
    }
#pragma unroll
    for (int32_t step = 4; step <= 16; step <<= 1) {
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) p[b] += __shfl_xor_sync(kAll, p[b], step);
    }
  }

  // sides [rank][128] = S^T (S columns), scaled by `scale` twice. The second product runs on the
  // matrix units in TF32: it only turns the columns, what is stored is rounded to FP16 or less.
  __device__ __forceinline__ void power_step(const State& s, float scale) const {
    float* partial = floats(plan.partial);
    float* sides = floats(plan.sides);
    const int32_t width = partial_width(rank);
#pragma unroll 1
    for (int32_t first = 0; first < rank; first += width) {
      const int32_t count = min(width, rank - first);
      float mine[4] = {};  // (S column g) of the lane's keys: the second operand as it is needed
#pragma unroll 1
      for (int32_t c = 0; c < count; ++c) {
        float p[4];
        times(s, first + c, p);
        if (g == c) {
#pragma unroll
          for (int32_t b = 0; b < 4; ++b) mine[b] = p[b] * scale;
        }
      }
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        float d[4] = {};
#pragma unroll
        for (int32_t n = 0; n < 2; ++n) {
          mma_tf32(d, __float_as_uint(s.at[m][n][0]), __float_as_uint(s.at[m][n][2]),
                   __float_as_uint(s.at[m][n][1]), __float_as_uint(s.at[m][n][3]),
                   __float_as_uint(mine[2 * n]), __float_as_uint(mine[2 * n + 1]));
        }
        if (2 * t < width) {
          float* to = partial + (warp * 128 + 16 * m + g) * width + 2 * t;
          *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
          *reinterpret_cast<float2*>(to + 8 * width) = make_float2(d[2], d[3]);
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int32_t i = thread; i < width * 128; i += kThreads) {
        float sum = partial[i];
#pragma unroll
        for (int32_t w = 1; w < 8; ++w) sum += partial[w * 128 * width + i];
        const int32_t c = i & (width - 1);
        if (c < count) sides[(first + c) * 128 + i / width] = sum * scale;
      }
      __syncthreads();
    }
  }

  // gram [i][j], j <= i, of `sides` columns (stride 128).
  __device__ void make_gram(float ridge) const {
    const float* sides = floats(plan.sides);
    float* gram = floats(plan.gram);
    int32_t pair = 0;
    for (int32_t i = 0; i < rank; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(sides + i * 128 + 4 * lane);
      for (int32_t j = 0; j <= i; ++j, ++pair) {
        if ((pair & 7) != warp) continue;
        const float4 b = *reinterpret_cast<const float4*>(sides + j * 128 + 4 * lane);
        float sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
        sum = sum_of_warp(sum);
        if (lane == 0) gram[i * 33 + j] = i == j ? sum + ridge : sum;
      }
    }
    __syncthreads();
  }

  // Cholesky factor of gram in place by warp 0, diagonal entries inverted; dead columns (pivot
  // below `least` of the diagonal, or zero) get an inverse of 0.
  __device__ void factor(float least) const {
    float* gram = floats(plan.gram);
    if (warp == 0) {
      const float before = lane < rank ? gram[lane * 33 + lane] : 0.0f;
      for (int32_t j = 0; j < rank; ++j) {
        const float pivot = gram[j * 33 + j];
        const float diagonal = __shfl_sync(kAll, before, j);
        const float inverse = pivot > least * diagonal && pivot > 0.0f ? rsqrtf(pivot) : 0.0f;
        __syncwarp();
        float mine = 0.0f;
        if (lane > j && lane < rank) {
          mine = gram[lane * 33 + j] * inverse;
          gram[lane * 33 + j] = mine;
        }
        if (lane == j) gram[j * 33 + j] = inverse;
        __syncwarp();
        for (int32_t k = j + 1; k < rank; ++k) {
          if (lane >= k && lane < rank) {
            gram[lane * 33 + k] = fmaf(-mine, gram[k * 33 + j], gram[lane * 33 + k]);
          }
        }
        __syncwarp();
      }
    }
    __syncthreads();
  }

  // Rows of `sides` times the inverse of the factor's transpose: orthonormal columns. In place.
  __device__ void forward_solve() const {
    float* sides = floats(plan.sides);
    const float* gram = floats(plan.gram);
    if (thread < 128) {
      for (int32_t j = 0; j < rank; ++j) {
        float sum = sides[j * 128 + thread];
        for (int32_t i = 0; i < j; ++i) {
          sum = fmaf(-gram[j * 33 + i], sides[i * 128 + thread], sum);
        }
        sides[j * 128 + thread] = sum * gram[j * 33 + j];
      }
    }
    __syncthreads();
  }
  __device__ void backward_solve() const {
    float* sides = floats(plan.sides);
    const float* gram = floats(plan.gram);
    if (thread < 128) {
      for (int32_t j = rank - 1; j >= 0; --j) {
        float sum = sides[j * 128 + thread];
        for (int32_t i = j + 1; i < rank; ++i) {
          sum = fmaf(-gram[i * 33 + j], sides[i * 128 + thread], sum);
        }
        sides[j * 128 + thread] = sum * gram[j * 33 + j];
      }
    }
    __syncthreads();
  }

  // columns = sides.
  __device__ void to_columns() const {
    const float* sides = floats(plan.sides);
    float* columns = floats(plan.columns);
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      columns[(i / 128) * kColumnStride + column_place(i & 127)] = sides[i];
    }
    __syncthreads();
  }

  // sides [rank][128] = S columns, per key.
  __device__ void key_sides(const State& s) const {
    float* sides = floats(plan.sides);
    for (int32_t c = 0; c < rank; ++c) {
      float p[4];
      times(s, c, p);
      if (g == 0) {
        *reinterpret_cast<float4*>(sides + c * 128 + 16 * warp + 4 * t) =
            make_float4(p[0], p[1], p[2], p[3]);
      }
    }
    __syncthreads();
  }

  // Rounds `sides` to the compensators' types into the boundary state, and replaces them by what
  // is decoded. A warp takes a vector.
  __device__ uint32_t round_sides(bool key) const {
    float* sides = floats(plan.sides);
    bool saturated = false;
    for (int32_t c = warp; c < rank; c += 8) {
      float4* at = reinterpret_cast<float4*>(sides + c * 128 + 4 * lane);
      const float4 x = *at;
      float in[4] = {x.x, x.y, x.z, x.w};
      if (c < format.num_fp16) {
        unsigned short* to = reinterpret_cast<unsigned short*>(
            shared + (key ? format.fp16_keys : format.fp16_values) + c * 256 + 8 * lane);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          to[i] = to_half_saturated(in[i], &saturated);
          in[i] = __half2float(__ushort_as_half(to[i]));
        }
      } else {
        const int32_t quantised = c - format.num_fp16;
        const bool wide = quantised < format.num_int8;
        const float magnitude =
            fmaxf(fmaxf(fabsf(in[0]), fabsf(in[1])), fmaxf(fabsf(in[2]), fabsf(in[3])));
        const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(magnitude)));
        const float steps_of = wide ? 127.0f : 8.0f;
        const unsigned short half =
            largest == 0.0f ? 0 : to_half_up(__fdiv_rn(largest, steps_of), &saturated);
        const float scale = __half2float(__ushort_as_half(half));
        if (lane == 0) {
          *reinterpret_cast<unsigned short*>(
              shared + (key ? format.key_scales : format.value_scales) + 2 * quantised) = half;
        }
        int32_t code[4] = {0, 0, 0, 0};
        if (scale != 0.0f) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const float y = __fdiv_rn(in[i], scale);
            const float bounded = fminf(fmaxf(y, -steps_of - 1.0f), steps_of + 1.0f);
            code[i] = __float2int_rn(wide ? bounded : bounded - 0.5f);
            code[i] = min(max(code[i], wide ? -127 : -8), wide ? 127 : 7);
          }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          in[i] =
              scale == 0.0f ? 0.0f : (static_cast<float>(code[i]) + (wide ? 0.0f : 0.5f)) * scale;
        }
        if (wide) {
          *reinterpret_cast<uint32_t*>(shared + (key ? format.int8_keys : format.int8_values) +
                                       quantised * 128 + 4 * lane) =
              (code[0] & 255u) | (code[1] & 255u) << 8 | (code[2] & 255u) << 16 |
              (code[3] & 255u) << 24;
        } else {
          *reinterpret_cast<unsigned short*>(shared +
                                             (key ? format.int4_keys : format.int4_values) +
                                             (quantised - format.num_int8) * 64 + 2 * lane) =
              static_cast<unsigned short>((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                          (code[3] + 8) << 12);
        }
      }
      *at = make_float4(in[0], in[1], in[2], in[3]);
    }
    __syncthreads();
    return saturated ? LEAPQUANT_HEALTH_COMPENSATOR_SATURATED : 0u;
  }

  // sides and columns, which are equal but for their order, by falling |S column|, equal ones in
  // their old order. sides holds S columns on entry.
  __device__ __forceinline__ void sort_columns() const {
    float* strength = reductions() + 16;
    const float* columns = floats(plan.columns);
    float* sides = floats(plan.sides);
    for (int32_t c = warp; c < rank; c += 8) {
      const float4 x = *reinterpret_cast<const float4*>(sides + c * 128 + 4 * lane);
      const float sum = sum_of_warp(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
      if (lane == 0) strength[c] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      int32_t place = 0;
      for (int32_t o = 0; o < rank; ++o) {
        place += strength[o] > strength[c] || (strength[o] == strength[c] && o < c) ? 1 : 0;
      }
      sides[place * 128 + (i & 127)] = columns[c * kColumnStride + column_place(i & 127)];
    }
    __syncthreads();
  }

  // Start block into columns. Returns whether the fit is cold.
  __device__ __forceinline__ bool start_columns() const {
    float* columns = floats(plan.columns);
    uint32_t* alive = reinterpret_cast<uint32_t*>(reductions()) + 16;
    if (thread < 32) alive[thread] = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      const float x = scale_of(false, c) == 0.0f ? 0.0f : raw_entry(false, c, i & 127);
      columns[c * kColumnStride + column_place(i & 127)] = x;
      if (x != 0.0f) alive[c] = 1;
    }
    __syncthreads();
    bool cold = true;
#pragma unroll 1
    for (int32_t c = 0; c < rank; ++c) cold = cold && alive[c] == 0;
    const bool warm = !cold && format.fit_fixed == 0;
#pragma unroll 1
    for (int32_t i = thread; i < rank * 128; i += kThreads) {
      const int32_t c = i / 128;
      if (!warm || alive[c] == 0) {
        columns[c * kColumnStride + column_place(i & 127)] = start_vector(c, i & 127);
      }
    }
    __syncthreads();
    return cold;
  }

  // Fits and stores the compensators of S; decoded value sides stay in columns, key sides in sides.
  // Written so that every piece of code appears once: the kernel has to fit the instruction cache.
  __device__ __forceinline__ uint32_t fit(const State& s, uint32_t largest) const {
    if (rank == 0) return 0;
    float* sides = floats(plan.sides);
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    const bool zero = largest == 0;
    bool cold = false;
    if (zero) {
      for (int32_t i = thread; i < rank * 128; i += kThreads) sides[i] = 0.0f;
      __syncthreads();
    } else {
      cold = start_columns();
      // S scaled by a power of two so that its largest magnitude lies in [1, 2).
      const uint32_t exponent = min(max(largest >> 23, 1u), 253u);
      const float scale = __uint_as_float((254u - exponent) << 23);
      const int32_t rounds = cold ? 3 : format.fit_rounds;
#pragma unroll 1
      for (int32_t round = 0; round < rounds; ++round) {
        power_step(s, scale);
        const int32_t passes = cold || round + 1 == rounds ? 2 : 1;
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
          make_gram(0.0f);
          factor(1e-10f);
          forward_solve();
        }
        if (round + 1 < rounds) to_columns();
      }
    }
    uint32_t flags = 0;
    const bool sorts = mixed && cold;
#pragma unroll 1
    for (int32_t stage = sorts ? 0 : 1; stage < 4; ++stage) {
      // 0: order of the columns. 1: value sides. 2: key sides by least squares. 3: key sides.
      if (stage == 2) {
        if (!mixed) continue;
        make_gram(1e-7f);
        factor(0.0f);
        continue;
      }
      if (stage != 1) {
        if (stage == 0) to_columns();
        key_sides(s);
        if (stage == 0) {
          sort_columns();
          continue;
        }
        if (mixed) {
          forward_solve();
          backward_solve();
        }
      }
      flags |= round_sides(stage == 3);
      if (stage == 1) to_columns();
    }
    return flags;
  }

  // S becomes the residual.
  __device__ void subtract(State* s) const {
    const float* sides = floats(plan.sides);
    for (int32_t c = 0; c < rank; ++c) {
      float v[16];
      load_column(c, v);
      const float4 k = *reinterpret_cast<const float4*>(sides + c * 128 + 16 * warp + 4 * t);
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
        for (int32_t hh = 0; hh < 2; ++hh) {
          const float x = v[2 * m + hh];
          s->at[m][0][2 * hh] = fmaf(-k.x, x, s->at[m][0][2 * hh]);
          s->at[m][0][2 * hh + 1] = fmaf(-k.y, x, s->at[m][0][2 * hh + 1]);
          s->at[m][1][2 * hh] = fmaf(-k.z, x, s->at[m][1][2 * hh]);
          s->at[m][1][2 * hh + 1] = fmaf(-k.w, x, s->at[m][1][2 * hh + 1]);
        }
      }
    }
  }
};

}  // namespace leapquant::cuda::folding_128
