// SPDX-License-Identifier: Apache-2.0
//
// The fit of the compensators in a block: block subspace iteration on the matrix units, Cholesky
// factors in place of Gram-Schmidt, rounding to the compensators' types, the residual. The state
// is scaled so that its norm lies between 2^7 and 2^8.
#pragma once

#include "core/start_vectors.h"
#include "cuda/fold_state_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFit : FoldState {
  // S times columns first .. first + 15: d[0], d[1] of column first + g, d[2], d[3] of column first
  // + 8 + g, each for the lane's two keys. With `lows` the columns, with kExact S in high and low
  // parts; up to rank 8 the low parts take the place of columns 8 .. 15, always.
  template <bool kExact>
  __device__ __forceinline__ void times(const State& s, int32_t first, bool lows,
                                        float (&d)[4]) const {
    const bool narrow = rank() <= 8;
    const int32_t tile_row = lane() & 15;
    const uint32_t row = shared_address(shared + kSidesAt) + 16 * (lane() >> 4) +
                         (narrow ? (tile_row & 7) * kRowBytes + (tile_row >> 3) * kLowAt
                                 : (first + tile_row) * kRowBytes);
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
      uint32_t a[4], high[2], low[2];
      load_matrices(a, row + 32 * m);
#pragma unroll
      for (int32_t hh = 0; hh < 2; ++hh) {
        split(s.at[m][2 * hh], s.at[m][2 * hh + 1], &high[hh], &low[hh]);
        high[hh] = transpose_matrix(high[hh]);
        if (kExact) low[hh] = transpose_matrix(low[hh]);
      }
      mma_fp16(d, a[0], a[1], a[2], a[3], high[0], high[1]);
      if (kExact) mma_fp16(d, a[0], a[1], a[2], a[3], low[0], low[1]);
      if (lows && !narrow) {
        load_matrices(a, row + 32 * m + kLowAt);
        mma_fp16(d, a[0], a[1], a[2], a[3], high[0], high[1]);
      }
    }
    if (narrow) {
      d[0] += d[2];
      d[1] += d[3];
    }
  }

  // sides [rank][128] = S^T (S columns), or with `given` S^T of what sides holds for the keys. The
  // second product is as precise as TF32: it only turns the columns, what is stored is rounded to
  // FP16 or less.
  __device__ __forceinline__ void power_step(const State& s, bool lows, bool given) const {
    float* partial = at<float>(plan.boundary);
#pragma unroll 1
    for (int32_t first = 0; first < rank(); first += 16) {
      float p[4] = {};
      if (!given) times<false>(s, first, lows, p);
#pragma unroll 1
      for (int32_t c = first; c < min(rank(), first + 16); c += 8) {
        if (given) {  // rows past the rank only meet columns that are not kept
          const float2 keys =
              *reinterpret_cast<const float2*>(sides() + (c + g()) * kStride + first_key());
          p[0] = keys.x, p[1] = keys.y;
        }
        const int32_t shift = rank() - c > 4 ? 3 : 2;  // 4 or 8 columns in a pass
        const uint32_t b0 = __float_as_uint(p[0]);
        const uint32_t b1 = __float_as_uint(p[1]);
        p[0] = p[2], p[1] = p[3];
        const uint32_t stores = 2 * t() < 1 << shift;
        uint32_t to = shared_address(partial + 512 * warp() + (g() << shift) + 2 * t());
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
          for (int32_t m = 4 * half; m < 4 * half + 4; ++m) {
            float d[4] = {};
            mma_tf32(d, __float_as_uint(s.at[m][0]), __float_as_uint(s.at[m][2]),
                     __float_as_uint(s.at[m][1]), __float_as_uint(s.at[m][3]), b0, b1);
            store_pair_if(stores, to, d[0], d[1]);
            to += 32u << shift;
            store_pair_if(stores, to, d[2], d[3]);
            to += 32u << shift;
          }
          if (half == 1 || shift == 3) {
            to -= 2048;  // the next pass over the same place
            __syncthreads();
            float sum = 0.0f;
#pragma unroll
            for (int32_t w = 0; w < kWarps; ++w) sum += partial[512 * w + thread()];
            const int32_t column = c + (thread() & ((1 << shift) - 1));
            const int32_t value = (thread() >> shift) + (shift == 3 ? 64 * half : 0);
            if (column < rank()) sides()[column * kStride + value] = sum;
            __syncthreads();
          }
        }
      }
    }
  }

  // gram [i][j], j <= i, of `sides`, in FP32: three TF32 products were not enough (see KERNELS).
  __device__ __forceinline__ void make_gram(float ridge) const {
    float* gram = at<float>(kGramAt);
    if (rank() <= 8) {
      const float* from = sides() + 4 * lane();
      const int32_t pairs = rank() * (rank() + 1) / 2;
#pragma unroll 1
      for (int32_t pair = warp(); pair < pairs; pair += kWarps) {
        const int32_t i =
            static_cast<int32_t>((sqrt_fast(8.0f * static_cast<float>(pair) + 1.5f) - 1.0f) * 0.5f);
        const int32_t j = pair - i * (i + 1) / 2;
        const float4 a = *reinterpret_cast<const float4*>(from + i * kStride);
        const float4 b = *reinterpret_cast<const float4*>(from + j * kStride);
        float sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
        sum = sum_of_warp(sum);
        if (lane() == 0) gram[i * 33 + j] = i == j ? sum + ridge : sum;
      }
    } else {
#pragma unroll 1
      for (int32_t i = warp(); i < rank(); i += kWarps) {
#pragma unroll 1
        for (int32_t first = 0; first <= i; first += 8) gram_entries(i, first, ridge);
      }
    }
    __syncthreads();
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
    exchange_sums<4, 16>(p);
    exchange_sums<2, 8>(p);
    exchange_sums<1, 4>(p);
    p[0] += __shfl_xor_sync(kAll, p[0], 2);
    p[0] += __shfl_xor_sync(kAll, p[0], 1);
    const int32_t j = first + (lane() >> 2);
    if ((lane() & 3) == 0 && j <= i) {
      at<float>(kGramAt)[i * 33 + j] = i == j ? p[0] + ridge : p[0];
    }
  }
  template <int kHalf, int kLanes>
  __device__ __forceinline__ static void exchange_sums(float (&p)[8]) {
    const bool upper = (lane() & kLanes) != 0;
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) {
      const float send = select_float(upper, p[i], p[i + kHalf]);
      const float keep = select_float(upper, p[i + kHalf], p[i]);
      p[i] = keep + __shfl_xor_sync(kAll, send, kLanes);
    }
  }

  // Cholesky factor of gram in place by warp 0, diagonal entries inverted; dead columns (pivot
  // below `least` of the diagonal, or zero) get an inverse of 0. Lane i holds row i.
  template <int kMost>
  __device__ __forceinline__ void factor_rows(float least) const {
    float* gram = at<float>(kGramAt);
    float row[kMost];
    const bool mine = lane() < rank();
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) row[j] = mine && j <= lane() ? gram[lane() * 33 + j] : 0.0f;
    float before = 0.0f;
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) before = lane() == j ? row[j] : before;
#pragma unroll
    for (int32_t j = 0; j < kMost; ++j) {
      const float pivot = __shfl_sync(kAll, row[j], j);
      const float diagonal = __shfl_sync(kAll, before, j);
      const float inverse = pivot > least * diagonal && pivot > 0.0f ? rsqrtf(pivot) : 0.0f;
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
    __syncthreads();
  }
  // The same for any rank, column by column from what lies to the left.
  __device__ __forceinline__ void factor_many(float least) const {
    float* gram = at<float>(kGramAt);
    float* row = gram + lane() * 33;
    const bool mine = lane() < rank();
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
      if (mine && lane() >= j) row[j] = lane() == j ? inverse : left * inverse;
      __syncwarp();
    }
  }

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
        const float* gram = at<float>(kGramAt);
#pragma unroll 1
        for (int32_t j = 0; j < rank(); ++j) {
          float sum = column[j * kStride];
#pragma unroll 4
          for (int32_t i = 0; i < j; ++i) sum = fmaf(-gram[j * 33 + i], column[i * kStride], sum);
          put_column(j, sum * gram[j * 33 + j], columns);
        }
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ void put_column(int32_t j, float x, bool columns) const {
    sides()[j * kStride + thread()] = x;
    if (!columns) return;
    const __half high = __float2half_rn(x);
    half_row(kSidesAt, j)[thread()] = high;
    half_row(kSidesAt + kLowAt, j)[thread()] = __float2half_rn(x - __half2float(high));
  }
  template <int kMost>
  __device__ __forceinline__ void solve_few(bool columns) const {
    const float* column = sides() + thread();
    const float* gram = at<float>(kGramAt);
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
    const float* gram = at<float>(kGramAt);
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
    __syncthreads();
  }

  // sides [rank][128] = S the FP16 rows, per key, times the columns' value scales.
  __device__ __forceinline__ void key_sides(const State& s, bool scaled) const {
    float* to = sides() + first_key();
#pragma unroll 1
    for (int32_t first = 0; first < rank(); first += 16) {
      float d[4] = {};
      times<true>(s, first, !scaled, d);
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t c = first + 8 * half + g();
        if (c < rank() && (half == 0 || rank() > 8)) {
          const float scale = scaled ? at<float>(kValueScalesAt)[c] : 1.0f;
          *reinterpret_cast<float2*>(to + c * kStride) =
              make_float2(d[2 * half] * scale, d[2 * half + 1] * scale);
        }
      }
    }
    __syncthreads();
  }

  // Rounds `sides` to the compensators' types into the boundary state. Value sides: sides
  // becomes what is decoded, the FP16 rows its codes. Key sides: sides becomes what is decoded
  // times the value scale, in the state's scaling. A warp takes a vector.
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
        const __half2 low = __floats2half2_rn(in[0], in[1]);
        const __half2 high = __floats2half2_rn(in[2], in[3]);
        reinterpret_cast<uint2*>(half_row(kSidesAt, c))[lane()] = make_uint2(
            *reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
        reinterpret_cast<uint2*>(half_row(kSidesAt + kLowAt, c))[lane()] = make_uint2(0, 0);
      }
      *place = make_float4(in[0] * step, in[1] * step, in[2] * step, in[3] * step);
    }
    __syncthreads();
    return saturated ? LEAPQUANT_HEALTH_COMPENSATOR_SATURATED : 0u;
  }

  // sides = the FP16 rows by falling |S column|, equal ones in their old order. sides holds S
  // columns on entry.
  __device__ __forceinline__ void sort_columns() const {
    float* strength = at<float>(kValueScalesAt);
    for (int32_t c = warp(); c < rank(); c += kWarps) {
      const float4 x = *reinterpret_cast<const float4*>(sides() + c * kStride + 4 * lane());
      const float sum = sum_of_warp(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
      if (lane() == 0) strength[c] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
      const int32_t c = i / 128;
      int32_t place = 0;
      for (int32_t o = 0; o < rank(); ++o) {
        place += strength[o] > strength[c] || (strength[o] == strength[c] && o < c) ? 1 : 0;
      }
      sides()[place * kStride + (i & 127)] = __half2float(half_row(kSidesAt, c)[i & 127]);
    }
    __syncthreads();
  }

  // Dead or, for a cold fit, all start columns from the table. Returns whether the fit is cold.
  __device__ __forceinline__ bool start_columns() const {
    const bool living = lane() < rank() && at<uint32_t>(kAliveAt)[lane()] != 0;
    const bool cold = !__any_sync(kAll, living);
    const uint32_t keep = cold || format.fit_fixed != 0 ? 0u : __ballot_sync(kAll, living);
    if (keep != (rank() == 32 ? kAll : (1u << rank()) - 1u)) {
#pragma unroll 1
      for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
        const int32_t c = i / 128;
        if ((keep >> c & 1u) != 0) continue;
        half_row(kSidesAt, c)[i & 127] = __float2half_rn(start_vector(c, i & 127));
        half_row(kSidesAt + kLowAt, c)[i & 127] = __half(0.0f);
      }
      __syncthreads();
    }
    return cold;
  }

  // Fits and stores the compensators of S; their codes stay in the columns' FP16 rows, the key
  // sides to take off in sides. Written so that every piece of code appears once: the kernel has to
  // fit the instruction cache.
  __device__ __forceinline__ uint32_t fit(const State& s, bool zero) const {
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    bool cold = false;
    if (zero) {
      __syncthreads();
      for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
        sides()[i / 128 * kStride + (i & 127)] = 0.0f;
      }
      __syncthreads();
    } else {
      cold = start_columns();
      const int32_t rounds = cold ? 3 : format.fit_rounds;
#pragma unroll 1
      for (int32_t round = 0; round < rounds; ++round) {
        // Many weak columns: S^T (S V) would square their distance to the strong ones. So S V is
        // made orthonormal first, which keeps the span of S^T (S V) of every first few columns.
        if (mixed) {
          key_sides(s, false);
          make_gram(0.0f);
          factor(1e-10f);
          forward_solve(false);
        }
        power_step(s, round > 0, mixed);
        const int32_t passes = cold || round + 1 == rounds ? 2 : 1;
#pragma unroll 1
        for (int32_t pass = 0; pass < passes; ++pass) {
          make_gram(0.0f);
          factor(1e-10f);
          forward_solve(true);
        }
      }
    }
    // What the partial sums have covered and no part of the state covers again: the padding.
    if (thread() < 4) reinterpret_cast<uint32_t*>(boundary() + format.bytes - 16)[thread()] = 0;
    // Rows past the rank, for the products.
    for (int32_t i = rank() * 128 + thread(); i < side_count() * 128; i += kThreads) {
      sides()[i / 128 * kStride + (i & 127)] = 0.0f;
    }
    __syncthreads();
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
        key_sides(s, stage != 0);
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
    return flags;
  }

  // S becomes the residual.
  __device__ __forceinline__ void subtract(State* s) const {
    add_rows(s, kSidesAt, side_count(), -1.0f);
  }
};

}  // namespace leapquant::cuda::folding_128
