// SPDX-License-Identifier: Apache-2.0
//
// The fit of five to eight FP16 compensators. A warp keeps its values of the columns in registers
// from one product to the next; to make them orthonormal the warps exchange shares of their Gram
// matrix, of which a warp for each eight columns makes the inverse factor that all apply.
#pragma once

#include "cuda/fold_fit_few_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitEight : FoldFitFew {
  // The same; addresses are worked out again: registers are short.
  template <typename Fit>
  __device__ __forceinline__ static Fit fresh(const Fit& fit) {
    Fit copy = fit;
    copy.index = fresh_copy(fit.index);
    return copy;
  }

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

  // A block of 8 x 8 numbers likewise: lane 4 g + t has columns 2 t and 2 t + 1 of row g.
  struct Block {
    uint32_t high, middle, low;
  };
  __device__ __forceinline__ static Block block_of(float2 x) {
    const uint32_t high = take_part(&x.x, &x.y);
    const uint32_t middle = take_part(&x.x, &x.y);
    return {high, middle, pack_bf16(x.x, x.y)};
  }
  __device__ __forceinline__ static Block turned(const Block& x) {
    return {transpose_matrix(x.high), transpose_matrix(x.middle), transpose_matrix(x.low)};
  }
  // x y^T.
  __device__ __forceinline__ static float2 product(const Block& x, const Block& y) {
    float small[4] = {}, d[4] = {};
    mma_bf16(small, x.low, 0u, x.high, 0u, y.high, y.low);
    mma_bf16(d, x.high, x.middle, x.high, x.middle, y.high, y.middle);
    return make_float2(d[0] + (d[2] + small[0]), d[1] + (d[3] + small[1]));
  }

  // Place of a block in the lower part of a matrix of blocks.
  __device__ __forceinline__ static int32_t place(int32_t row, int32_t column) {
    return row * (row + 1) / 2 + column;
  }
  // Where a warp's share of such a block of the Gram matrix lies: where other fits have columns in
  // FP32; what has no room there, in place of low parts.
  template <int kBlocks>
  __device__ __forceinline__ char* shares(int32_t part, int32_t* stride) const {
    const bool beside = part < 2 * kBlocks;
    *stride = (beside ? kBlocks : 2) * kColumnBytes;
    return shared + 8 * lane() +
           (beside ? kColumnsAt + part / 2 * kColumnBytes + kFloatsAt + 256 * (part & 1)
                   : kColumnsAt + (part - 2 * kBlocks) * kColumnBytes + kLowAt);
  }
  template <int kBlocks>
  __device__ __forceinline__ void put_share(int32_t part, float x, float y) const {
    int32_t stride;
    char* to = shares<kBlocks>(part, &stride);
    *reinterpret_cast<float2*>(to + warp() * stride) = make_float2(x, y);
  }
  template <int kBlocks>
  __device__ __forceinline__ float2 sum_of_shares(int32_t row, int32_t column) const {
    int32_t stride;
    const char* from = shares<kBlocks>(place(row, column), &stride);
    float2 sum[2] = {};
#pragma unroll
    for (int32_t w = 0; w < kWarps; ++w) {
      const float2 x = *reinterpret_cast<const float2*>(from + w * stride);
      sum[w & 1].x += x.x, sum[w & 1].y += x.y;
    }
    return make_float2(sum[0].x + sum[1].x, sum[0].y + sum[1].y);
  }
  // The warp's values' share of the columns' Gram matrix.
  template <int kBlocks>
  __device__ __forceinline__ void put_shares(const float (&x)[kBlocks][4]) const {
    uint32_t h[kBlocks][2], m[kBlocks][2], l[kBlocks][2];  // by half of the values
#pragma unroll
    for (int32_t n = 0; n < kBlocks; ++n) {
      float one[4] = {x[n][0], x[n][1], x[n][2], x[n][3]};
      const Parts parts = parts_of(one);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        h[n][i] = transpose_matrix(parts.high[i]);
        m[n][i] = transpose_matrix(parts.middle[i]);
        l[n][i] = transpose_matrix(parts.low[i]);
      }
    }
    if constexpr (kBlocks == 1) {
      float d[4] = {};
      mma_bf16(d, l[0][0], 0u, l[0][1], 0u, h[0][0], h[0][1]);
      mma_bf16(d, h[0][0], m[0][0], h[0][1], m[0][1], l[0][0], l[0][1]);
      mma_bf16(d, h[0][0], m[0][0], h[0][1], m[0][1], m[0][0], m[0][1]);
      mma_bf16(d, h[0][0], m[0][0], h[0][1], m[0][1], h[0][0], h[0][1]);
      put_share<1>(0, d[0] + d[2], d[1] + d[3]);
    } else {
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
          if (n <= i) put_share<kBlocks>(place(i, n), d[0], d[1]);
          put_share<kBlocks>(place(i + 1, n), d[2], d[3]);
        }
      }
    }
  }

  // In lane 4 g + t the entry (g, g) of a block.
  __device__ __forceinline__ float diagonal_of(const float2& x) const {
    return __shfl_sync(kAll, select_float((g() & 1) != 0, x.y, x.x), (lane() & ~3) + (g() >> 1));
  }
  // Entry g of what a lane 4 g + t has, for the lane's columns 2 t and 2 t + 1.
  __device__ __forceinline__ float2 of_columns(float x) const {
    return make_float2(__shfl_sync(kAll, x, 8 * t()), __shfl_sync(kAll, x, 8 * t() + 4));
  }
  __device__ __forceinline__ static void take_off(float2* x, float share, const float2& row) {
    x->x = fmaf(-share, row.x, x->x);
    x->y = fmaf(-share, row.y, x->y);
  }

  // What makes up to eight columns orthonormal in order, x: their Gram matrix becomes the inverse
  // of its Cholesky factor, by elimination in place, two columns a step: left of the diagonal
  // stands what was done to the rows. norm: what makes column g's length one before columns of
  // other blocks were taken off it. *sound: bits of the columns that may be taken off later ones.
  // Returns whether it is exact enough: where each living column has at least 1/16 of its square
  // outside the span of those before it.
  __device__ __forceinline__ bool factor(bool again, float norm, int32_t count, float2* x,
                                         uint32_t* sound) const {
    const float2 norms = of_columns(norm);
    x->x *= norm * norms.x, x->y *= norm * norms.y;
    const float floor = again ? 0.0f : rsqrt_fast(kLeastPivot);
    float own = 0.0f;  // of this row: its pivot and what that makes of it
    float by = 0.0f;
    *sound = 0;
#pragma unroll 1
    for (int32_t k = 0; k < count; k += 2) {
      const int32_t half = k >> 1;
      const int32_t from = 4 * k;  // row k's first lane
      const float pivot = __shfl_sync(kAll, x->x, from + half);
      const float beside = __shfl_sync(kAll, x->x, from + 4 + half);
      const float next = __shfl_sync(kAll, x->y, from + 4 + half);
      const float mine[2] = {__shfl_sync(kAll, x->x, (lane() & ~3) + half),
                             __shfl_sync(kAll, x->y, (lane() & ~3) + half)};
      float2 row =
          make_float2(__shfl_sync(kAll, x->x, from + t()), __shfl_sync(kAll, x->y, from + t()));
      float2 after = make_float2(__shfl_sync(kAll, x->x, from + 4 + t()),
                                 __shfl_sync(kAll, x->y, from + 4 + t()));
      const bool first = pivot > kLeastPivot;
      const float root = rsqrt_fast(pivot);
      const float inverse = first ? root * root : 0.0f;
      const float share = beside * inverse;
      const float pivot_after = fmaf(-share, beside, next);
      const bool second = pivot_after > kLeastPivot;
      const float root_after = rsqrt_fast(pivot_after);
      const float inverse_after = second ? root_after * root_after : 0.0f;
      if (t() == half) {
        *x = make_float2(g() == k ? 1.0f : 0.0f, g() == k + 1 ? 1.0f : 0.0f);
        row = make_float2(1.0f, 0.0f);
        after = make_float2(0.0f, 1.0f);
      }
      take_off(&after, share, row);
      const float taken = g() > k ? mine[0] * inverse : 0.0f;
      const float taken_after = g() > k + 1 ? fmaf(-taken, beside, mine[1]) * inverse_after : 0.0f;
      take_off(x, taken, row);
      take_off(x, taken_after, after);
      if (g() == k) own = pivot, by = first ? root : floor;
      if (g() == k + 1) own = pivot_after, by = second ? root_after : floor;
      *sound |= (first ? 1u : 0u) << k | (second ? 2u : 0u) << k;
    }
    x->x = 2 * t() <= g() ? x->x * by * norms.x : 0.0f;
    x->y = 2 * t() < g() ? x->y * by * norms.y : 0.0f;
    return !__any_sync(kAll, 16.0f * own < 0.999f && norm != 0.0f);
  }

  // What all apply: of blocks of columns the inverse factors, each by itself; of a block and one
  // before it, what the latter is multiplied by and added to the former. Where other fits have the
  // Gram matrix.
  __device__ __forceinline__ uint32_t* inverse_words(int32_t place) const {
    return at<uint32_t>(plan.gram + 384 * place) + lane();
  }
  // Blocks below the diagonal of the factor itself, in place of low parts and key sides.
  template <int kBlocks>
  __device__ __forceinline__ uint32_t* factor_words(int32_t row, int32_t column) const {
    return at<uint32_t>(kColumnsAt + (4 * kBlocks + place(row, column) - row) * kColumnBytes +
                        kLowAt) +
           lane();
  }
  __device__ __forceinline__ static void put_block(uint32_t* to, const Block& x) {
    to[0] = x.high, to[32] = x.middle, to[64] = x.low;
  }
  __device__ __forceinline__ static Block block_at(const uint32_t* from) {
    return {from[0], from[32], from[64]};
  }

  // Of columns whose Gram matrix is `gram(row, column)`, by blocks, what makes them orthonormal in
  // order. A warp has a row of blocks; others work out what these need not wait for. All may use it
  // after the next barrier; scale 3 says whether it is exact enough.
  template <int kBlocks, typename Gram>
  __device__ __forceinline__ void factor_blocks(bool again, const Gram& gram) const {
    const int32_t row = warp();
    const bool works = row < kBlocks;
    if (kBlocks == 1 && row > 0) return;
    auto* sound = at<uint32_t>(kNearPartsAt);
    auto* exact = at<uint32_t>(kScalesAt) + 3;
    float2 x = make_float2(0.0f, 0.0f);
    float norm = 0.0f;
    if (works) {
      x = gram(row, row);
      const float square = diagonal_of(x);
      norm = square > 1e-30f ? rsqrt_fast(square) : 0.0f;
    }
#pragma unroll 1
    for (int32_t b = 0;; ++b) {
      float2 rest = make_float2(0.0f, 0.0f);
      if (row == b) {
        uint32_t taken;
        const bool good = factor(again, norm, min(rank() - 8 * b, 8), &x, &taken);
        put_block(inverse_words(place(b, b)), block_of(x));
        if (lane() == 0) {
          sound[b] = taken;
          *exact = good && (b == 0 || *exact != 0) ? 1u : 0u;
        }
      } else if (works && row > b) {
        rest = gram(row, b);
#pragma unroll 1
        for (int32_t j = 0; j < b; ++j) {
          const float2 done = product(block_at(factor_words<kBlocks>(row, j)),
                                      block_at(factor_words<kBlocks>(b, j)));
          rest.x -= done.x, rest.y -= done.y;
        }
      }
      if (b == kBlocks - 1) break;
      sync_team();
      if (works && row > b) {
        rest = product(block_of(rest), block_at(inverse_words(place(b, b))));
        const uint32_t taken = sound[b] >> (2 * t());
        if ((taken & 1u) == 0) rest.x = 0.0f;
        if ((taken & 2u) == 0) rest.y = 0.0f;
        const Block own = block_of(rest);
        put_block(factor_words<kBlocks>(row, b), own);
        const float2 done = product(own, own);
        x.x -= done.x, x.y -= done.y;
      }
      sync_team();
      const int32_t other = row + 1 - kBlocks;
      if (other > b && other < kBlocks) {
        const float2 share = product(block_at(factor_words<kBlocks>(other, b)),
                                     turned(block_at(inverse_words(place(b, b)))));
        put_block(inverse_words(place(other, b)), block_of(make_float2(-share.x, -share.y)));
      }
    }
  }
  // The warp's values of columns become orthonormal by that.
  template <int kBlocks>
  __device__ __forceinline__ void apply_blocks(float (&x)[kBlocks][4]) const {
#pragma unroll
    for (int32_t b = 0; b < kBlocks; ++b) {
      const Parts parts = parts_of(x[b]);
#pragma unroll
      for (int32_t i = b + 1; i < kBlocks; ++i) {
        add_product(parts, block_at(inverse_words(place(i, b))), x[i]);
      }
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) x[b][i] = 0.0f;
      add_product(parts, block_at(inverse_words(place(b, b))), x[b]);
    }
  }
  // d += x y^T.
  __device__ __forceinline__ static void add_product(const Parts& x, const Block& y,
                                                     float (&d)[4]) {
    mma_bf16(d, x.low[0], x.low[1], x.high[0], x.high[1], y.high, y.low);
    mma_bf16(d, x.high[0], x.high[1], x.middle[0], x.middle[1], y.middle, y.middle);
    mma_bf16(d, x.high[0], x.high[1], x.middle[0], x.middle[1], y.high, y.high);
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
    float x[1][4];
    float (&d)[4] = x[0];
    int32_t left = rounds;
#pragma unroll 1
    do {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
      times<true>(columns_from(0), d, left > 0);
      if (left > 0) {
        put_projection(0, d);
        sync_team();
        turn(0, d);
#pragma unroll 1
        for (int32_t pass = 0;; ++pass) {
          put_shares(x);
          sync_team();
          if (warp() == kWarps - 1 && pass == 0 && left == rounds) meanwhile();
          factor_blocks<1>(pass != 0, [&](int32_t i, int32_t j) { return sum_of_shares<1>(i, j); });
          sync_team();
          apply_blocks(x);
          if (pass != 0 || !(cold || left == 1) || at<uint32_t>(kScalesAt)[3] != 0) break;
        }
        put_columns(d, left == 1);
        sync_team();
      }
    } while (--left >= 0);
    return subtract_columns(s, d) ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
