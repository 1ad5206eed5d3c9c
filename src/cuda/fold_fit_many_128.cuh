// SPDX-License-Identifier: Apache-2.0
//
// The warm fit of 25 to 32 compensators of which some have 8 or 4 bits, as FoldFitMixed fits up to
// sixteen: in four blocks of eight columns. It needs more registers, so that only kernels of many
// compensators have it. And the choice of the fit.
#pragma once

#include "cuda/fold_fit_mixed_128.cuh"

namespace leapquant::cuda::folding_128 {

// Lower part of a matrix in four by four blocks of 8 x 8: lane 4 g + t has columns 2 t and 2 t + 1
// of row g of each.
struct LowerMany {
  static constexpr int32_t kParts = 10;
  float2 part[kParts];
  __host__ __device__ static constexpr int32_t place(int32_t row, int32_t column) {
    return row * (row + 1) / 2 + column;
  }
  __device__ __forceinline__ float2& at(int32_t row, int32_t column) {
    return part[place(row, column)];
  }
};

struct FoldFitMany : FoldFitMixed {
  static constexpr int32_t kBlocks = 4;

  // Where a part of a warp's share of the Gram matrix lies: in columns, where key sides (before
  // value sides are worked out) or value sides (after) are not in use, and where FoldFit has the
  // matrix.
  __device__ __forceinline__ float2* share_part(int32_t from, int32_t part, bool values) const {
    int32_t place = plan.gram + 512 * from + 256 * (part - 8);
    if (part < 8) {
      place = kColumnsAt + (4 * from + part / 2) * kColumnBytes + 256 * (part & 1) +
              (values ? 0 : kLowAt);
    }
    return at<float2>(place) + lane();
  }
  __device__ __forceinline__ void put_shares(const Parts (&x)[kBlocks], bool values) const {
    uint32_t h[kBlocks][2], m[kBlocks][2], l[kBlocks][2];  // by half of the values
#pragma unroll
    for (int32_t i = 0; i < 2 * kBlocks; ++i) {
      h[i / 2][i % 2] = transpose_matrix(x[i / 2].high[i % 2]);
      m[i / 2][i % 2] = transpose_matrix(x[i / 2].middle[i % 2]);
      l[i / 2][i % 2] = transpose_matrix(x[i / 2].low[i % 2]);
    }
#pragma unroll
    for (int32_t i = 0; i < kBlocks; i += 2) {  // two blocks of rows
#pragma unroll
      for (int32_t n = 0; n < i + 2; ++n) {
        float d[4] = {};
        mma_bf16(d, h[i][0], h[i + 1][0], h[i][1], h[i + 1][1], l[n][0], l[n][1]);
        mma_bf16(d, l[i][0], l[i + 1][0], l[i][1], l[i + 1][1], h[n][0], h[n][1]);
        mma_bf16(d, m[i][0], m[i + 1][0], m[i][1], m[i + 1][1], m[n][0], m[n][1]);
        mma_bf16(d, h[i][0], h[i + 1][0], h[i][1], h[i + 1][1], m[n][0], m[n][1]);
        mma_bf16(d, m[i][0], m[i + 1][0], m[i][1], m[i + 1][1], h[n][0], h[n][1]);
        mma_bf16(d, h[i][0], h[i + 1][0], h[i][1], h[i + 1][1], h[n][0], h[n][1]);
        if (n <= i) {
          *share_part(warp(), LowerMany::place(i, n), values) = make_float2(d[0], d[1]);
        }
        *share_part(warp(), LowerMany::place(i + 1, n), values) = make_float2(d[2], d[3]);
      }
    }
  }
  __device__ __forceinline__ void sum_shares(bool values, LowerMany* sum) const {
#pragma unroll
    for (int32_t i = 0; i < LowerMany::kParts; ++i) sum->part[i] = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int32_t w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int32_t i = 0; i < LowerMany::kParts; ++i) {
        const float2 x = *share_part(w, i, values);
        sum->part[i].x += x.x, sum->part[i].y += x.y;
      }
    }
  }

  // Rows and columns of a lower part by their factors.
  __device__ __forceinline__ void scale(LowerMany* x, const float (&rows)[kBlocks],
                                        const float (&columns)[kBlocks]) const {
#pragma unroll
    for (int32_t j = 0; j < kBlocks; ++j) {
      const float2 column = of_columns(columns[j]);
#pragma unroll
      for (int32_t i = j; i < kBlocks; ++i) {
        x->at(i, j).x *= rows[i] * column.x;
        x->at(i, j).y *= rows[i] * column.y;
      }
    }
  }

  // The Gram matrix of columns becomes what makes them orthonormal in order: the inverse of its
  // Cholesky factor. As `factor` of FoldFitEight, for more. Returns whether it is exact enough.
  __device__ __forceinline__ bool invert(bool again, LowerMany* x) const {
    float norm[kBlocks], factor[kBlocks];
#pragma unroll
    for (int32_t i = 0; i < kBlocks; ++i) {
      const float square = diagonal_of(x->at(i, i));
      norm[i] = square > 1e-30f ? rsqrt_fast(square) : 0.0f;
      factor[i] = 0.0f;
    }
    scale(x, norm, norm);
    bool inexact = false;
    const int32_t row_start = lane() & ~3;
#pragma unroll
    for (int32_t b = 0; b < kBlocks; ++b) {
      const int32_t count = min(rank() - 8 * b, 8);
#pragma unroll 1
      for (int32_t k = 0; k < count; ++k) {
        const int32_t half = k >> 1;
        const bool odd = (k & 1) != 0;
        float column[kBlocks];
        float2 row[kBlocks];
#pragma unroll
        for (int32_t i = b; i < kBlocks; ++i) {
          column[i] = select_float(odd, x->at(i, b).y, x->at(i, b).x);
        }
        const float pivot = __shfl_sync(kAll, column[b], 4 * k + half);
#pragma unroll
        for (int32_t j = 0; j < kBlocks; ++j) {  // of row k, past this block as its column has it
          const float left = j <= b ? x->at(b, j <= b ? j : b).x : column[j];
          const float right = j <= b ? x->at(b, j <= b ? j : b).y : column[j];
          row[j].x = __shfl_sync(kAll, left, j <= b ? 4 * k + t() : 8 * t() + half);
          row[j].y = __shfl_sync(kAll, right, j <= b ? 4 * k + t() : 8 * t() + 4 + half);
        }
        const bool sound = pivot > kLeastPivot;
        const float root = rsqrt_fast(pivot);
        if (g() == k) {
          inexact = inexact || (16.0f * pivot < 0.999f && norm[b] != 0.0f);
          factor[b] = sound ? root : again ? 0.0f : rsqrt_fast(kLeastPivot);
        }
#pragma unroll
        for (int32_t i = b; i < kBlocks; ++i) {
          float share = __shfl_sync(kAll, column[i], row_start + half) * root * root;
          if (!sound || (i == b && g() <= k)) share = 0.0f;
#pragma unroll
          for (int32_t j = 0; j <= i; ++j) {
            x->at(i, j).x = fmaf(-share, row[j].x, x->at(i, j).x);
            x->at(i, j).y = fmaf(-share, row[j].y, x->at(i, j).y);
          }
          if (t() == half) {
            const float done = i == b && g() == k ? 1.0f : -share;
            x->at(i, b).x = odd ? x->at(i, b).x : done;
            x->at(i, b).y = odd ? done : x->at(i, b).y;
          }
        }
      }
    }
    scale(x, factor, norm);
#pragma unroll
    for (int32_t i = 0; i < kBlocks; ++i) {
      if (2 * t() > g()) x->at(i, i).x = 0.0f;
      if (2 * t() >= g()) x->at(i, i).y = 0.0f;
    }
    return !__any_sync(kAll, inexact);
  }

  // Columns times what one warp made of their Gram matrix.
  __device__ __forceinline__ void apply_blocks(const Parts (&x)[kBlocks],
                                               float (&d)[kBlocks][4]) const {
#pragma unroll
    for (int32_t i = 0; i < kBlocks; ++i) {
      d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.0f;
#pragma unroll
      for (int32_t j = 0; j <= i; ++j) {
        add_applied(x[j], inverses()[32 * LowerMany::place(i, j) + lane()], d[i]);
      }
    }
  }

  // Rounds columns to their types: value sides from high and low parts to what these hold; key
  // sides from FP32 to operands, what is taken off, in the state's scaling. Two columns a warp.
  __device__ __forceinline__ bool round_columns(bool key) const {
    bool saturated = false;
#pragma unroll 1
    for (int32_t c = warp() + kWarps * (lane() >> 4); c < 8 * kBlocks; c += 2 * kWarps) {
      uint4* place = reinterpret_cast<uint4*>(column(c, 0) + pair_entry());
      uint4* low_place = reinterpret_cast<uint4*>(column(c, kLowAt) + pair_entry());
      float x[8];
      if (key) {
        const float unscale = at<float>(kScalesAt)[1];
        const float* from = sides() + c * kStride + pair_entry();
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) x[i] = from[i] * unscale;
      } else {
        const uint4 high = *place;
        const uint4 low = *low_place;
        const uint32_t parts[2][4] = {{high.x, high.y, high.z, high.w},
                                      {low.x, low.y, low.z, low.w}};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float2 a = widen_halves(parts[0][i]);
          const float2 b = widen_halves(parts[1][i]);
          x[2 * i] = a.x + b.x, x[2 * i + 1] = a.y + b.y;
        }
      }
      const float largest = largest_of_column(x);  // of those that are only zeros too
      __syncwarp();                                // low parts go where a key side's floats were
      float step = 0.0f;
      if (c < rank()) step = round_eight(key, c, largest, x, &saturated);
      float& value_step = at<float>(kValueScalesAt)[c];
      if (key) {
        float by = -at<float>(kScalesAt)[0] * value_step * step;
        if (c >= rank()) {  // zeros meet these, which must be finite
          by = 0.0f;
#pragma unroll
          for (int32_t i = 0; i < 8; ++i) x[i] = 0.0f;
        }
        uint32_t* words = reinterpret_cast<uint32_t*>(column(c, kKeysAt)) + 8 * (lane() >> 1 & 7) +
                          2 * (lane() & 1);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {  // entries 2 i, 2 i + 1 in operand order: operand_word
          uint32_t high, low;
          split(x[2 * i] * by, x[2 * i + 1] * by, &high, &low);
          words[4 * (i & 1) + (i >> 1)] = high;
          words[4 * (i & 1) + (i >> 1) + 64] = low;
        }
        continue;
      }
      float square = 0.0f;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) square = fmaf(x[i], x[i], square);
#pragma unroll
      for (int32_t by = 8; by >= 1; by >>= 1) square += __shfl_xor_sync(kAll, square, by);
      if (c >= rank()) continue;
      *place = make_uint4(pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]), pack_fp16(x[4], x[5]),
                          pack_fp16(x[6], x[7]));
      *low_place = make_uint4(0, 0, 0, 0);
      if ((lane() & 15) != 0) continue;
      value_step = step;
      const float inverse = square > 0.0f ? rsqrtf(square) : 0.0f;
      at<float>(kInverseNormsAt)[c] = inverse;
      at<float>(kLastFactorsAt)[c] = step > 0.0f ? __fdividef(inverse, step) : 0.0f;
    }
    return saturated;
  }

  // Key sides of the rounded value sides by least squares, by the series in their normalised Gram
  // matrix. Returns whether that is near enough to 1 for it. All warps come to the same answer.
  __device__ __forceinline__ bool solve_keys(const State& s) const {
    const float measure = products(Products::kStored);
    if (measure > 0.36f) return false;
    int32_t terms = 0;
    for (float left = measure; left > 1e-6f; left *= measure) ++terms;
    key_sides(s, true, true);
    settle_keys(terms);
    return true;
  }

  // Registers are short: columns wait in shared memory where one warp has the Gram matrix.
  __device__ __forceinline__ float4& waiting(int32_t n) const {
    return at<float4>(kColumnsAt + (4 * warp() + n) * kColumnBytes + kFloatsAt)[lane()];
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory, warm columns too. Returns whether it is done: else the value sides are rounded, `sides`
  // is what they are, and key sides need the factor of their Gram matrix. `meanwhile()` runs once,
  // where a warp would wait for another.
  template <typename Meanwhile>
  __device__ __forceinline__ bool fit_many(State* s, const Meanwhile& meanwhile,
                                           uint32_t* flags) const {
    float x[kBlocks][4] = {};
    times_blocks(x);
    bool values = false;
    bool again = false;
#pragma unroll 1
    while (true) {  // key sides, then value sides; these twice where once is not exact
      Parts parts[kBlocks];
#pragma unroll
      for (int32_t n = 0; n < kBlocks; ++n) {
        waiting(n) = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
        parts[n] = parts_of(x[n]);
      }
      put_shares(parts, values);
      sync_team();
      if (warp() == 0) {
        LowerMany inverse;
        sum_shares(values, &inverse);
        const bool exact = invert(again, &inverse);
        __syncwarp();
#pragma unroll
        for (int32_t i = 0; i < LowerMany::kParts; ++i) {
          inverses()[32 * i + lane()] = inverse.part[i];
        }
        if (lane() == 0) at<uint32_t>(kScalesAt)[3] = exact || again ? 1u : 0u;
      } else if (!values) {
        meanwhile();
      }
      sync_team();
#pragma unroll
      for (int32_t n = 0; n < kBlocks; ++n) {
        const float4 back = waiting(n);
        float one[4] = {back.x, back.y, back.z, back.w};
        parts[n] = parts_of(one);
      }
      apply_blocks(parts, x);
      if (values) {
        if (at<uint32_t>(kScalesAt)[3] != 0) break;
        again = true;
        sync_team();  // shares go where the inverse is
        continue;
      }
#pragma unroll
      for (int32_t n = 0; n < kBlocks; ++n) put_projection(8 * n, x[n]);
      sync_team();
#pragma unroll
      for (int32_t i = 0; i < 4 * kBlocks; ++i) x[i / 4][i % 4] = 0.0f;
      turn_blocks(x);
      values = true;
    }
#pragma unroll
    for (int32_t n = 0; n < kBlocks; ++n) {
      uint32_t high[2], low[2];
      split(x[n][0], x[n][1], &high[0], &low[0]);
      split(x[n][2], x[n][3], &high[1], &low[1]);
      put_parts(8 * n, 0, high[0], high[1]);
      put_parts(8 * n, kLowAt, low[0], low[1]);
    }
    sync_team();
    bool saturated = false;
    bool done = true;
#pragma unroll 1
    for (int32_t key = 0; key < 2 && done; ++key) {
      if (key != 0) {
        done = solve_keys(*s);
        if (!done) break;
        sync_team();
      }
      saturated = round_columns(key != 0) || saturated;
      sync_team();
    }
    if (saturated) *flags |= LEAPQUANT_HEALTH_COMPENSATOR_SATURATED;
    if (done) {
      add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
      return true;
    }
#pragma unroll 1
    for (int32_t i = thread(); i < side_count() * 128; i += kThreads) {
      const int32_t c = i / 128;  // past the last zeros: their low parts are multiplied by zeros
      const float step = c < rank() ? at<float>(kValueScalesAt)[c] : 0.0f;
      sides()[c * kStride + (i & 127)] =
          step != 0.0f ? __half2float(column(c, 0)[i & 127]) * step : 0.0f;
    }
    sync_team();
    return false;
  }

  // The fit that suits the format, of those that the kernel has. `meanwhile()` runs once, where it
  // keeps nobody waiting if there is such a place.
  template <Fits kFits, typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_any(State* s, bool zero,
                                              const Meanwhile& meanwhile) const {
    constexpr bool kHasFew = kFits == Fits::kFew || kFits == Fits::kAny;
    constexpr bool kHasSome = kFits == Fits::kSome || kFits == Fits::kAny;
    const bool warm = format.num_int8 + format.num_int4 > 0 && format.fit_rounds == 1 && !zero;
    if constexpr (kHasFew) {
      const bool few = kFits == Fits::kFew || fits_of(format) == Fits::kFew;
      if (few && rank() > 0) return fit_few(s, meanwhile);
    }
    if constexpr (kHasSome) {
      if (rank() == format.num_fp16 && rank() > 0 && rank() <= 8) return fit_eight(s, meanwhile);
      if (warm && rank() > 8 && rank() <= 16 && !start_columns()) return fit_mixed(s, meanwhile);
    }
    uint32_t flags = 0;
    bool rounded = false;
    if constexpr (kFits == Fits::kMany) {
      if (warm && rank() > 24 && !start_columns()) {
        if (fit_many(s, meanwhile, &flags)) return flags;
        rounded = true;
      }
    }
    if (!rounded) meanwhile();
    if constexpr (kFits == Fits::kFew) return 0;
    return rank() > 0 ? fit(s, zero, rounded) | flags : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
