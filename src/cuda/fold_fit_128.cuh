// SPDX-License-Identifier: Apache-2.0
//
// The fit of any compensators in a block: block subspace iteration on the matrix units, Cholesky
// factors in place of Gram-Schmidt, rounding to the compensators' types, the residual. The state
// is scaled so that its norm lies between 2^3 and 2^13.
#pragma once

#include "cuda/fold_products_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFit : FoldProducts {
  // gram [i][j], j <= i, of `sides`, in FP32: three TF32 products were not enough (see KERNELS).
  __device__ __forceinline__ void make_gram(float ridge) const {
#pragma unroll 1
    for (int32_t i = warp(); i < rank(); i += kWarps) {
#pragma unroll 1
      for (int32_t first = 0; first <= i; first += 8) gram_entries(i, first, ridge);
    }
    sync_team();
  }
  // gram [i][first .. first + 7]: eight sums over the lanes by exchanging halves.
  __device__ __forceinline__ void gram_entries(int32_t i, int32_t first, float ridge) const {
    const float* from = sides() + 4 * lane();
    const float4 a = *reinterpret_cast<const float4*>(from + i * kStride);
    float p[8];
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) {
      const float4 b = *reinterpret_cast<const float4*>(from + min(first + k, i) * kStride);
      p[k] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
    }
    const float sum = eight_sums(p);
    const int32_t j = first + (lane() >> 2);
    if ((lane() & 3) == 0 && j <= i) {
      at<float>(plan.gram)[i * 33 + j] = i == j ? sum + ridge : sum;
    }
  }

  // Cholesky factor of gram in place by warp 0, diagonal entries inverted; dead columns (pivot
  // below `least` of the diagonal, or zero) get an inverse of 0. Lane i holds row i.
  template <int kMost>
  __device__ __forceinline__ void factor_rows(float least) const {
    float* gram = at<float>(plan.gram);
    float row[kMost];
    const bool mine = lane() < rank();
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) row[j] = mine && j <= lane() ? gram[lane() * 33 + j] : 0.0f;
    float before = 0.0f;
    bool exact = true;
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) before = lane() == j ? row[j] : before;
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) {
      const float pivot = __shfl_sync(kAll, row[j], j);
      const float diagonal = __shfl_sync(kAll, before, j);
      const float inverse = pivot > least * diagonal && pivot > 0.0f ? rsqrtf(pivot) : 0.0f;
      exact = exact && (16.0f * pivot >= diagonal || inverse == 0.0f);
      row[j] = lane() == j ? inverse : row[j] * inverse;
#pragma unroll
      for (int32_t k = j + 1; k < kMost; ++k) {
        row[k] = fmaf(-row[j], __shfl_sync(kAll, row[j], k), row[k]);
      }
    }
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) {
      if (mine && j <= lane()) gram[lane() * 33 + j] = row[j];
    }
    if (lane() == 0) at<uint32_t>(kScalesAt)[3] = exact ? 1u : 0u;
  }
  __device__ __forceinline__ void factor(float least) const {
    if (warp() == 0) {
      if (rank() <= 4) {
        factor_rows<4>(least);
      } else if (rank() <= 8) {
        factor_rows<8>(least);
      } else {
        factor_many(least);
      }
    }
    sync_team();
  }
  // The same for any rank, column by column from what lies to the left.
  __device__ __forceinline__ void factor_many(float least) const {
    float* gram = at<float>(plan.gram);
    float* row = gram + lane() * 33;
    const bool mine = lane() < rank();
    bool exact = true;
#pragma unroll 1
    for (int32_t j = 0; j < rank(); ++j) {
      const float* other = gram + j * 33;
      const float before = mine && lane() >= j ? row[j] : 0.0f;
      float even = before;
      float odd = 0.0f;
      int32_t k = 0;
#pragma unroll 2
      for (; k + 1 < j; k += 2) {
        even = fmaf(-row[k], other[k], even);
        odd = fmaf(-row[k + 1], other[k + 1], odd);
      }
      if (k < j) even = fmaf(-row[k], other[k], even);
      const float left = even + odd;
      const float pivot = __shfl_sync(kAll, left, j);
      const float diagonal = __shfl_sync(kAll, before, j);
      const float inverse = pivot > least * diagonal && pivot > 0.0f ? rsqrtf(pivot) : 0.0f;
      exact = exact && (16.0f * pivot >= diagonal || inverse == 0.0f);
      if (mine && lane() >= j) row[j] = lane() == j ? inverse : left * inverse;
      __syncwarp();
    }
    if (lane() == 0) at<uint32_t>(kScalesAt)[3] = exact ? 1u : 0u;
  }
  // Whether the last factor makes columns orthonormal as exactly as two would: each living one has
  // at least 1/16 of its square outside the span of those before it.
  __device__ __forceinline__ bool exact_factor() const { return at<uint32_t>(kScalesAt)[3] != 0; }

  // Rows of `sides` times the inverse of the factor's transpose, in place. With `columns` they are
  // the fit's: FP16 high and low parts as well.
  __device__ __forceinline__ void forward_solve(bool columns) const {
    if (thread() < 128) {
      if (rank() <= 4) {
        solve_few<4>(columns);
      } else if (rank() <= 8) {
        solve_few<8>(columns);
      } else {
        float* column = sides() + thread();
        const float* gram = at<float>(plan.gram);
#pragma unroll 1
        for (int32_t j = 0; j < rank(); ++j) {
          float sum = column[j * kStride];
#pragma unroll 4
          for (int32_t i = 0; i < j; ++i) sum = fmaf(-gram[j * 33 + i], column[i * kStride], sum);
          put_column(j, sum * gram[j * 33 + j], columns);
        }
      }
    }
    sync_team();
  }
  __device__ __forceinline__ void put_column(int32_t j, float x, bool columns) const {
    sides()[j * kStride + thread()] = x;
    if (!columns) return;
    const __half high = __float2half_rn(x);
    column(j, 0)[thread()] = high;
    column(j, kLowAt)[thread()] = __float2half_rn(x - __half2float(high));
  }
  template <int kMost>
  __device__ __forceinline__ void solve_few(bool columns) const {
    const float* column = sides() + thread();
    const float* gram = at<float>(plan.gram);
    float x[kMost];
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) {
      if (j < rank()) {
        float sum = column[j * kStride];
#pragma unroll
        for (int32_t i = 0; i < j; ++i) sum = fmaf(-gram[j * 33 + i], x[i], sum);
        x[j] = sum * gram[j * 33 + j];
        put_column(j, x[j], columns);
      }
    }
  }
  __device__ __forceinline__ void backward_solve() const {
    float* column = sides() + thread();
    const float* gram = at<float>(plan.gram);
    if (thread() < 128) {
#pragma unroll 1
      for (int32_t j = rank() - 1; j >= 0; --j) {
        float sum = column[j * kStride];
#pragma unroll 4
        for (int32_t i = j + 1; i < rank(); ++i) {
          sum = fmaf(-gram[i * 33 + j], column[i * kStride], sum);
        }
        column[j * kStride] = sum * gram[j * 33 + j];
      }
    }
    sync_team();
  }

  // sides [rank][128] = S columns per key: of high and low parts, or of what is stored times its
  // scales.
  __device__ __forceinline__ void key_sides(const State& s, bool stored) const {
#pragma unroll 1
    for (int32_t part = 0; part <= (stored ? 1 : 0); ++part) {
      if (part == 1) {  // with what the FP16 state lacks, which only its own keys still need
        store_matrix_lows(s);
        __syncwarp();
      }
#pragma unroll 1
      for (int32_t first = 0; first < rank(); first += 8) {
        float d[4] = {};
        times<true>(columns_from(first), d);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t c = first + 2 * t() + i % 2;
          if (c < rank()) {
            float* to = sides() + c * kStride + operand_key(i / 2);
            const float scale = stored ? at<float>(kValueScalesAt)[c] : 1.0f;
            *to = part == 0 ? d[i] * scale : fmaf(d[i], scale, *to);
          }
        }
      }
    }
    sync_team();
  }
  // The FP16 key sides from `sides`, for `power`; or S columns.
  __device__ __forceinline__ void project(bool given) const {
    if (given) {
#pragma unroll 1
      for (int32_t c = warp(); c < side_count(); c += kWarps) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (c < rank()) x = reinterpret_cast<const float4*>(sides() + c * kStride)[lane()];
        uint32_t* words = reinterpret_cast<uint32_t*>(column(c, kKeysAt)) + operand_word();
        words[0] = pack_fp16(x.x, x.y), words[4] = pack_fp16(x.z, x.w);
      }
    } else {
#pragma unroll 1
      for (int32_t first = 0; first < rank(); first += 8) {
        float d[4] = {};
        times<true>(columns_from(first), d);
        put_projection(first, d);
      }
    }
    sync_team();
  }

  // Rounds `sides` to the compensators' types into the boundary state. Value sides: sides
  // becomes what is decoded, the FP16 columns its codes. Key sides: the FP16 key sides become what
  // is decoded times the value scale, in the state's scaling, negative. A warp takes a vector.
  __device__ __forceinline__ uint32_t round_sides(bool key) const {
    bool saturated = false;
    const float into = key ? at<float>(kScalesAt)[1] : 1.0f;
#pragma unroll 1
    for (int32_t c = warp(); c < rank(); c += kWarps) {
      float4* place = reinterpret_cast<float4*>(sides() + c * kStride) + lane();
      const float4 x = *place;
      float in[4] = {x.x * into, x.y * into, x.z * into, x.w * into};
      float step = 1.0f;
      if (c < format.num_fp16) {
        unsigned short half[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          half[i] = to_half_saturated(in[i], &saturated);
          in[i] = __half2float(__ushort_as_half(half[i]));
        }
        *reinterpret_cast<uint2*>(boundary() + (key ? format.fp16_keys : format.fp16_values) +
                                  c * 256 + 8 * lane()) =
            make_uint2(half[0] | static_cast<uint32_t>(half[1]) << 16,
                       half[2] | static_cast<uint32_t>(half[3]) << 16);
      } else {
        const int32_t quantised = c - format.num_fp16;
        const bool wide = quantised < format.num_int8;
        const float magnitude =
            fmaxf(fmaxf(fabsf(in[0]), fabsf(in[1])), fmaxf(fabsf(in[2]), fabsf(in[3])));
        const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(magnitude)));
        const float most = wide ? 127.0f : 8.0f;
        const unsigned short half =
            largest == 0.0f ? 0 : to_half_up(__fdividef(largest, most), &saturated);
        step = __half2float(__ushort_as_half(half));
        if (lane() == 0) {
          *reinterpret_cast<unsigned short*>(
              boundary() + (key ? format.key_scales : format.value_scales) + 2 * quantised) = half;
        }
        int32_t code[4];
        const float inverse = step != 0.0f ? __fdividef(1.0f, step) : 0.0f;
        const float middle = wide ? 0.0f : 0.5f;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float y = in[i] * inverse - middle;
          code[i] = min(max(__float2int_rn(y), wide ? -127 : -8), wide ? 127 : 7);
          if (step == 0.0f) code[i] = 0;
          in[i] = step == 0.0f ? 0.0f : static_cast<float>(code[i]) + middle;
        }
        if (wide) {
          *reinterpret_cast<uint32_t*>(boundary() + (key ? format.int8_keys : format.int8_values) +
                                       quantised * 128 + 4 * lane()) =
              (code[0] & 255u) | (code[1] & 255u) << 8 | (code[2] & 255u) << 16 |
              (code[3] & 255u) << 24;
        } else {
          *reinterpret_cast<unsigned short*>(boundary() +
                                             (key ? format.int4_keys : format.int4_values) +
                                             (quantised - format.num_int8) * 64 + 2 * lane()) =
              static_cast<unsigned short>((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                          (code[3] + 8) << 12);
        }
      }
      if (key) {
        step *= at<float>(kScalesAt)[0] * at<float>(kValueScalesAt)[c];
      } else {
        if (lane() == 0) at<float>(kValueScalesAt)[c] = step;
        reinterpret_cast<uint2*>(column(c, 0))[lane()] =
            make_uint2(pack_fp16(in[0], in[1]), pack_fp16(in[2], in[3]));
        reinterpret_cast<uint2*>(column(c, kLowAt))[lane()] = make_uint2(0, 0);
      }
      const float4 decoded = make_float4(in[0] * step, in[1] * step, in[2] * step, in[3] * step);
      if (key) {  // to take off; the low parts lie where this row's floats were
        __syncwarp();
        put_keys(reinterpret_cast<char*>(column(c, kKeysAt)),
                 make_float4(-decoded.x, -decoded.y, -decoded.z, -decoded.w));
      } else {
        *place = decoded;
      }
    }
    sync_team();
    return saturated ? LEAPQUANT_HEALTH_COMPENSATOR_SATURATED : 0u;
  }

  // sides = the FP16 columns by falling |S column|, equal ones in their old order. sides holds S
  // columns on entry.
  __device__ __forceinline__ void sort_columns() const {
    float* strength = at<float>(kValueScalesAt);
    for (int32_t c = warp(); c < rank(); c += kWarps) {
      const float4 x = *reinterpret_cast<const float4*>(sides() + c * kStride + 4 * lane());
      const float sum = sum_of_warp(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
      if (lane() == 0) strength[c] = sum;
    }
    sync_team();
#pragma unroll 1
    for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
      const int32_t c = i / 128;
      int32_t place = 0;
      for (int32_t o = 0; o < rank(); ++o) {
        place += strength[o] > strength[c] || (strength[o] == strength[c] && o < c) ? 1 : 0;
      }
      sides()[place * kStride + (i & 127)] = __half2float(column(c, 0)[i & 127]);
    }
    sync_team();
  }

  // Fits and stores the compensators; S becomes the residual. Written so that every piece of code
  // appears once: the kernel has to fit the instruction cache. The FP16 copy of S lies in shared
  // memory.
  __device__ __forceinline__ uint32_t fit(State* s, bool zero) const {
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    bool cold = false;
    if (zero) {
      for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
        sides()[i / 128 * kStride + (i & 127)] = 0.0f;
      }
      sync_team();
    } else {
      cold = start_columns();
      const int32_t rounds = cold ? 3 : format.fit_rounds;
#pragma unroll 1
      for (int32_t round = 0; round < rounds; ++round) {
        // Many weak columns: S^T (S V) would square their distance to the strong ones. So S V is
        // made orthonormal first, which keeps the span of S^T (S V) of every first few columns.
        if (mixed) {
          key_sides(*s, false);
          make_gram(0.0f);
          factor(1e-10f);
          forward_solve(false);
        }
        project(mixed);
#pragma unroll 1
        for (int32_t first = 0; first < rank(); first += 8) power(first, rank());
        sync_team();
        const int32_t passes = cold || round + 1 == rounds ? 2 : 1;
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
          make_gram(0.0f);
          factor(1e-10f);
          const bool enough = exact_factor();
          forward_solve(true);
          if (enough) break;
        }
      }
    }
    uint32_t flags = 0;
#pragma unroll 1
    for (int32_t stage = mixed && cold ? 0 : 1; stage < 4; ++stage) {
      // 0: order of the columns. 1: value sides. 2: key sides by least squares. 3: key sides.
      if (stage == 2) {
        if (!mixed) continue;
        make_gram(1e-7f);
        factor(0.0f);
        continue;
      }
      if (stage != 1) {
        key_sides(*s, stage != 0);
        if (stage == 0) {
          sort_columns();
          continue;
        }
        if (mixed) {
          forward_solve(false);
          backward_solve();
        }
      }
      flags |= round_sides(stage == 3);
    }
    add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
    return flags;
  }
};

}  // namespace leapquant::cuda::folding_128
