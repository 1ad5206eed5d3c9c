// SPDX-License-Identifier: Apache-2.0
//
// Columns made orthonormal in a block: Gram matrix and Cholesky factor in FP32, triangular solves,
// and, for columns that are nearly orthonormal already, corrections of first order by the matrix
// units. What the products between them are, and what becomes of the columns, FoldFit says.
#pragma once

#include "cuda/fold_products_128.cuh"

namespace leapquant::cuda::folding_128 {

// What a solved row becomes.
enum class Solved {
  kKeySides,  // the FP16 key sides of the columns
  kColumns,   // FP16 high and low parts of the columns, and `sides`
  kSides      // `sides`
};

struct FoldOrthonormal : FoldProducts {
  // The Gram matrix of `sides`, lower part, in panels of four columns: [panel][row][4]. Then its
  // factor L, the diagonal inverted. Rows above a panel mean nothing.
  __device__ __forceinline__ float4* panel(int32_t first) const {
    return at<float4>(plan.gram) + 8 * first;
  }

  // In FP32: three TF32 products were not enough (see KERNELS). A warp takes 2 x 8 sums at a time,
  // a lane four of them over the entries of one in eight.
  __device__ __forceinline__ void make_gram(float ridge) const {
    if (thread() == 0) at<uint32_t>(kScalesAt)[3] = 1;
    const int32_t part = lane() & 7;
    int32_t rows = 0;
    int32_t columns = warp();
#pragma unroll 1
    while (true) {
      while (columns > rows >> 2) columns -= (rows >> 2) + 1, ++rows;
      if (2 * rows >= rank()) break;
      const int32_t i = 2 * rows + ((lane() >> 3) & 1);
      const int32_t j = 8 * columns + 4 * (lane() >> 4);
      const float* row = sides() + min(i, rank() - 1) * kStride + 4 * part;
      const float* column = sides() + min(j, rank() - 1) * kStride + 4 * part;
      const int32_t last = rank() - 1 - min(j, rank() - 1);
      float p[8] = {};
#pragma unroll 2
      for (int32_t entry = 0; entry < 128; entry += 32) {
        const float4 a = *reinterpret_cast<const float4*>(row + entry);
#pragma unroll
        for (int32_t k = 0; k < 4; ++k) {
          const float4 b =
              *reinterpret_cast<const float4*>(column + min(k, last) * kStride + entry);
          p[k] += fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
        }
      }
      exchange_sums<2, 4>(p);
      exchange_sums<1, 2>(p);
      p[0] += __shfl_xor_sync(kAll, p[0], 1);
      const int32_t k = j + (part >> 1);
      if ((part & 1) == 0 && i < rank() && k <= i) {
        at<float>(plan.gram)[128 * (k >> 2) + 4 * i + (k & 3)] = i == k ? p[0] + ridge : p[0];
      }
      columns += kWarps;
    }
    sync_team();
  }

  // What happens to the Gram matrix and to `sides`.
  enum class Solve {
    kFirst,   // factor; rows of `sides` times the inverse of its transpose. Columns that seem to
              // depend on others live: it may be rounding
    kAgain,   // the same, but such columns die
    kFactor,  // factor alone
    kRows     // rows alone, by the factor that is there
  };
  // A warp has a panel of four columns. Panel after panel is finished and taken off what comes
  // after it: of the Gram matrix a row a lane, of `sides` four rows a lane.
  __device__ __forceinline__ void solve(Solve what, Solved solved) const {
    const bool factors = what != Solve::kRows;
    const int32_t own = 4 * warp();
    float4* mine = panel(own);
    float4* columns = reinterpret_cast<float4*>(sides() + own * kStride) + lane();
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (factors && own < rank()) a = mine[lane()];
#pragma unroll 1
    for (int32_t first = 0; first < rank(); first += 4) {
      if (own == first) {
        if (factors) factor_panel(what, a);
        if (what != Solve::kFactor) {
          const float4 b0 = mine[own];
          const float4 b1 = mine[own + 1];
          const float4 b2 = mine[own + 2];
          const float4 b3 = mine[own + 3];
          float4 x[4];
#pragma unroll
          for (int32_t k = 0; k < 4; ++k) x[k] = columns[k * (kStride / 4)];
          x[0] = scaled(x[0], b0.x);
          x[1] = scaled(less(x[1], x[0], b1.x), b1.y);
          x[2] = scaled(less(less(x[2], x[0], b2.x), x[1], b2.y), b2.z);
          x[3] = scaled(less(less(less(x[3], x[0], b3.x), x[1], b3.y), x[2], b3.z), b3.w);
#pragma unroll
          for (int32_t k = 0; k < 4; ++k) {
            if (own + k < rank()) put_solved(solved, own + k, x[k]);
          }
        }
      }
      if (first + 4 >= rank()) break;
      sync_team();
      if (own > first && own < rank()) {
        const float4* done = panel(first);
        if (factors) {
          const float4 l = done[lane()];
          a.x -= dot(l, done[own]), a.y -= dot(l, done[own + 1]);
          a.z -= dot(l, done[own + 2]), a.w -= dot(l, done[own + 3]);
        }
        if (what != Solve::kFactor) {
          const float4* y = reinterpret_cast<const float4*>(sides() + first * kStride) + lane();
          const float4 y0 = y[0];
          const float4 y1 = y[kStride / 4];
          const float4 y2 = y[2 * (kStride / 4)];
          const float4 y3 = y[3 * (kStride / 4)];
#pragma unroll
          for (int32_t k = 0; k < 4; ++k) {
            if (own + k >= rank()) break;
            float4& x = columns[k * (kStride / 4)];
            const float4 b = done[own + k];
            x = less(less(less(less(x, y0, b.x), y1, b.y), y2, b.z), y3, b.w);
          }
        }
      }
    }
    sync_team();
  }
  __device__ __forceinline__ void put_solved(Solved solved, int32_t c, const float4& x) const {
    uint2 high, low;
    split(x.x, x.y, &high.x, &low.x);
    split(x.z, x.w, &high.y, &low.y);
    if (solved == Solved::kKeySides) {
      uint32_t* words = reinterpret_cast<uint32_t*>(column(c, kKeysAt)) + operand_word();
      words[0] = high.x, words[4] = high.y;
    } else if (solved == Solved::kColumns) {
      reinterpret_cast<uint2*>(column(c, 0))[lane()] = high;
      reinterpret_cast<uint2*>(column(c, kLowAt))[lane()] = low;
    }
    reinterpret_cast<float4*>(sides() + c * kStride)[lane()] = x;
  }
  __device__ __forceinline__ static float dot(const float4& a, const float4& b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
  }
  __device__ __forceinline__ static float4 scaled(const float4& a, float by) {
    return make_float4(a.x * by, a.y * by, a.z * by, a.w * by);
  }
  __device__ __forceinline__ static float4 less(const float4& a, const float4& b, float by) {
    return make_float4(fmaf(-by, b.x, a.x), fmaf(-by, b.y, a.y), fmaf(-by, b.z, a.z),
                       fmaf(-by, b.w, a.w));
  }
  // What a column is multiplied by, 1 / sqrt(pivot), and in `*share` what its share in later ones
  // is. A pivot that rounding may have made counts for its least, and nothing is taken off for it.
  static constexpr float kLeastPivot = 3e-7f;
  __device__ __forceinline__ static float inverse_of(bool again, float pivot, float diagonal,
                                                     float* share) {
    const float least = fmaxf(kLeastPivot * diagonal, 1e-30f);
    const bool sound = pivot > least;
    const float inverse = rsqrt_fast(sound ? pivot : least);
    *share = sound ? inverse : 0.0f;
    return sound || !(again || diagonal == 0.0f) ? inverse : 0.0f;
  }

  // Cholesky factor of the warp's panel: its four rows of the diagonal by all lanes alike, then the
  // lane's row a.
  __device__ __forceinline__ void factor_panel(Solve what, float4 a) const {
    const bool again = what != Solve::kFirst;
    const int32_t own = 4 * warp();
    float4* mine = panel(own);
    float diagonal[4];
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) diagonal[k] = reinterpret_cast<const float*>(mine + own + k)[k];
    __syncwarp();
    mine[lane()] = a;
    __syncwarp();
    float4 b0 = mine[own];
    float4 b1 = mine[own + 1];
    float4 b2 = mine[own + 2];
    float4 b3 = mine[own + 3];
    float s0, s1, s2, s3;
    const float p0 = b0.x;
    b0.x = inverse_of(again, p0, diagonal[0], &s0);
    b1.x *= s0, b2.x *= s0, b3.x *= s0;
    const float p1 = fmaf(-b1.x, b1.x, b1.y);
    b1.y = inverse_of(again, p1, diagonal[1], &s1);
    b2.y = fmaf(-b2.x, b1.x, b2.y) * s1;
    b3.y = fmaf(-b3.x, b1.x, b3.y) * s1;
    const float p2 = fmaf(-b2.y, b2.y, fmaf(-b2.x, b2.x, b2.z));
    b2.z = inverse_of(again, p2, diagonal[2], &s2);
    b3.z = fmaf(-b3.y, b2.y, fmaf(-b3.x, b2.x, b3.z)) * s2;
    const float p3 = fmaf(-b3.z, b3.z, fmaf(-b3.y, b3.y, fmaf(-b3.x, b3.x, b3.w)));
    b3.w = inverse_of(again, p3, diagonal[3], &s3);
    a.x *= s0;
    a.y = fmaf(-a.x, b1.x, a.y) * s1;
    a.z = fmaf(-a.y, b2.y, fmaf(-a.x, b2.x, a.z)) * s2;
    a.w = fmaf(-a.z, b3.z, fmaf(-a.y, b3.y, fmaf(-a.x, b3.x, a.w))) * s3;
    const int32_t row = lane() - own;
    a.x = row == 0 ? b0.x : a.x, a.y = row == 1 ? b1.y : a.y;
    a.z = row == 2 ? b2.z : a.z, a.w = row == 3 ? b3.w : a.w;
    __syncwarp();
    mine[lane()] = a;
    __syncwarp();
    const int32_t count = rank() - own;
    const bool exact = 16.0f * p0 >= diagonal[0] && (count < 2 || 16.0f * p1 >= diagonal[1]) &&
                       (count < 3 || 16.0f * p2 >= diagonal[2]) &&
                       (count < 4 || 16.0f * p3 >= diagonal[3]);
    if (lane() == 0 && !exact) at<uint32_t>(kScalesAt)[3] = 0;
  }
  // Whether the last factor makes columns orthonormal as exactly as two would: each has at least
  // 1/16 of its square outside the span of those before it.
  __device__ __forceinline__ bool exact_factor() const { return at<uint32_t>(kScalesAt)[3] != 0; }

  // Rows of `sides` times the inverse of the factor, in place.
  __device__ __forceinline__ void backward_solve() const {
    if (thread() < 128) {
      const float* factor = at<float>(plan.gram);  // [panel][32][4]
      float* column = sides() + thread();
#pragma unroll 1
      for (int32_t j = rank() - 1; j >= 0; --j) {
        const float* below = factor + 128 * (j / 4) + j % 4;
        float sum = column[j * kStride];
#pragma unroll 1
        for (int32_t i = j + 1; i < rank(); ++i) {
          sum = fmaf(-below[4 * i], column[i * kStride], sum);
        }
        column[j * kStride] = sum * below[4 * j];
      }
    }
    sync_team();
  }

  // What becomes of products of the FP16 columns.
  enum class Products {
    kNear,   // of both parts: minus what makes nearly orthonormal columns orthonormal in order, to
             // first order. Returns the largest magnitude
    kStored  // of the high parts: columns by their inverse norms, less the diagonal. Returns the
             // sum of squares
  };
  // Both are FP16 matrices where the Gram matrix was, rows of kNearRow bytes.
  static constexpr int32_t kNearRow = 80;
  __device__ __forceinline__ float products(Products kind) const {
    const int32_t first_row = 16 * (warp() & 1);
    const int32_t first_column = 8 * (warp() >> 1);
    float measure = 0.0f;
    if (first_row < rank() && first_column < rank()) {
      const uint32_t start = shared_address(shared + kColumnsAt);
      int32_t source = first_row + (lane() & 15);
      if (source >= side_count()) source -= 8;  // past the last: any finite one
      const uint32_t rows = start + source * kColumnBytes + 16 * (lane() >> 4);
      const uint32_t columns = columns_from(first_column);
      float d[4] = {}, e[4] = {}, f[4] = {};
#pragma unroll 1
      for (int32_t k = 0; k < 256; k += 64) {
        uint32_t a[4], c[4], b[4];
        load_matrices(b, columns + k);
        load_matrices(a, rows + k);
        load_matrices(c, rows + k + 32);
        mma_fp16(d, a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_fp16(d, c[0], c[1], c[2], c[3], b[2], b[3]);
        if (kind == Products::kStored) continue;
        uint32_t l[4];
        load_matrices(l, columns + k + kLowAt);
        mma_fp16(e, a[0], a[1], a[2], a[3], l[0], l[1]);
        mma_fp16(e, c[0], c[1], c[2], c[3], l[2], l[3]);
        load_matrices(a, rows + k + kLowAt);
        load_matrices(c, rows + k + kLowAt + 32);
        mma_fp16(f, a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_fp16(f, c[0], c[1], c[2], c[3], b[2], b[3]);
      }
      const float* inverse = at<float>(kInverseNormsAt);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t row = first_row + g() + 8 * (i / 2);
        const int32_t column = first_column + 2 * t() + i % 2;
        const bool inside = row < rank() && column < rank();
        float x = d[i] + (e[i] + f[i]);
        if (kind == Products::kStored) {
          x = inside && row != column ? x * (inverse[row] * inverse[column]) : 0.0f;
          measure = fmaf(x, x, measure);
        } else {
          if (row == column) x = x == 0.0f ? 0.0f : 0.5f * x - 0.5f;  // a dead column stays
          x = inside && row <= column ? -x : 0.0f;
          measure = fmaxf(measure, fabsf(x));
        }
        d[i] = x;
      }
      uint32_t* to =
          at<uint32_t>(plan.gram + (first_row + g()) * kNearRow + 2 * first_column) + t();
      to[0] = pack_fp16(d[0], d[1]);
      to[2 * kNearRow] = pack_fp16(d[2], d[3]);
    }
    float* parts = at<float>(kNearPartsAt);
    if (kind == Products::kStored) {
      measure = sum_of_warp(measure);
    } else {
      measure = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(measure)));
    }
    if (lane() == 0) parts[warp()] = measure;
    sync_team();
    if (kind == Products::kStored) return sum_of_eight(parts);
    return __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(parts[lane() & 7])));
  }
  // Two tiles of 8 columns of that matrix, 16 rows each, as second operands.
  __device__ __forceinline__ void load_near(uint32_t (&b)[4], int32_t row, int32_t column) const {
    load_matrices_transposed(b, shared_address(shared + plan.gram) +
                                    (row + (lane() & 15)) * kNearRow +
                                    2 * (column + 8 * (lane() >> 4)));
  }

  // The columns times 1 + that matrix; a warp takes its 16 values.
  __device__ __forceinline__ void correct_columns() const {
    const uint32_t one = t() == g() >> 1 ? 0x3c00u << (16 * (g() & 1)) : 0u;
    float d[4][4] = {};
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      if (16 * k >= rank()) break;
      const int32_t row = 16 * k + (lane() & 7) + 8 * (lane() >> 4);
      const uint32_t from = shared_address(shared + kColumnsAt) +
                            (row < side_count() ? row : row - 8) * kColumnBytes + 32 * warp() +
                            16 * ((lane() >> 3) & 1);
      uint32_t a[4], low[4];
      load_matrices_transposed(a, from);
      load_matrices_transposed(low, from + kLowAt);
#pragma unroll
      for (int32_t n = 2 * k; n < 4; n += 2) {
        if (8 * n >= rank()) break;
        uint32_t b[4];
        load_near(b, 16 * k, 8 * n);
        mma_fp16(d[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_fp16(d[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
      mma_fp16_short(d[2 * k], low[0], low[1], one);
      mma_fp16_short(d[2 * k + 1], low[2], low[3], one);
      mma_fp16_short(d[2 * k], a[0], a[1], one);
      mma_fp16_short(d[2 * k + 1], a[2], a[3], one);
    }
#pragma unroll
    for (int32_t n = 0; n < 4; ++n) {
      if (8 * n >= rank()) break;
      const uint32_t to = shared_address(shared + kColumnsAt) +
                          (8 * n + (lane() & 7)) * kColumnBytes + 32 * warp() +
                          16 * ((lane() >> 3) & 1);
      uint32_t high[2], low[2];
      split(d[n][0], d[n][1], &high[0], &low[0]);
      split(d[n][2], d[n][3], &high[1], &low[1]);
      store_matrices_transposed(to, high[0], high[1]);
      store_matrices_transposed(to + kLowAt, low[0], low[1]);
      float* side = sides() + (8 * n + 2 * t()) * kStride + 16 * warp() + g();
      side[0] = d[n][0], side[kStride] = d[n][1];
      side[8] = d[n][2], side[kStride + 8] = d[n][3];
    }
    sync_team();
  }

  // The warp's keys in `sides`, rows b, become b (1 + that matrix)^-1 by `terms` more terms of the
  // series, each column times its last factor.
  __device__ __forceinline__ void settle_keys(int32_t terms) const {
    float y[4][4];
#pragma unroll
    for (int32_t n = 0; n < 4; ++n) load_keys(n, y[n]);
#pragma unroll 1
    for (int32_t term = 0; term < terms; ++term) {
      uint32_t a[2][4];
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        const float (&x)[4] = y[i / 2];
        a[i / 4][i % 4] = pack_fp16(-x[2 * (i % 2)], -x[2 * (i % 2) + 1]);
      }
#pragma unroll
      for (int32_t n = 0; n < 4; n += 2) {
        if (8 * n >= rank()) break;
        load_keys(n, y[n]);
        load_keys(n + 1, y[n + 1]);
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) {
          if (16 * k >= rank()) break;
          uint32_t b[4];
          load_near(b, 16 * k, 8 * n);
          mma_fp16(y[n], a[k][0], a[k][1], a[k][2], a[k][3], b[0], b[1]);
          if (8 * n + 8 >= rank()) continue;  // that tile of the matrix is not there
          mma_fp16(y[n + 1], a[k][0], a[k][1], a[k][2], a[k][3], b[2], b[3]);
        }
      }
    }
    const float* last = at<float>(kLastFactorsAt);
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      const int32_t c = 8 * (i / 4) + 2 * t() + i % 2;
      if (c < rank()) sides()[c * kStride + operand_key(i % 4 / 2)] = y[i / 4][i % 4] * last[c];
    }
  }
  __device__ __forceinline__ void load_keys(int32_t n, float (&x)[4]) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t c = 8 * n + 2 * t() + i % 2;
      x[i] = c < rank() ? sides()[c * kStride + operand_key(i / 2)] : 0.0f;
    }
  }
};

}  // namespace leapquant::cuda::folding_128
