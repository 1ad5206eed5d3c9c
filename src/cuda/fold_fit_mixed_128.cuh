// SPDX-License-Identifier: Apache-2.0
//
// The warm fit of nine to sixteen compensators of which some have 8 or 4 bits. A warp keeps its
// sixteen keys or values of all columns in registers, in two blocks of eight columns, from one
// product to the next, as in FoldFitEight. Cold fits and other numbers go by FoldFit.
#pragma once

#include "cuda/fold_fit_eight_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFitMixed : FoldFitEight {
  static constexpr int32_t kBlocks = 2;

  // Lower part of a matrix of 16 x 16: lane 4 g + t has columns 2 t and 2 t + 1 of row g of the
  // upper block, of row 8 + g of the lower two.
  struct Lower {
    float2 upper, left, right;
  };

  // Adds 16 x 32 numbers of the state, two operands, times 32 rows of all blocks at `columns`.
  template <int kCount>
  __device__ __forceinline__ static void add_products(float (&d)[kCount][4], const uint32_t (&a)[4],
                                                      const uint32_t (&c)[4], uint32_t columns) {
#pragma unroll
    for (int32_t n = 0; n < kCount; ++n) {
      uint32_t b[4];
      load_matrices(b, columns + 8 * n * kColumnBytes);
      mma_fp16(d[n], a[0], a[1], a[2], a[3], b[0], b[1]);
      mma_fp16(d[n], c[0], c[1], c[2], c[3], b[2], b[3]);
    }
  }
  // S columns for the warp's keys, from the columns' high parts; as `times`, for all blocks.
  template <int kCount>
  __device__ __forceinline__ void times_blocks(float (&d)[kCount][4]) const {
    const uint32_t state = matrix() + ((lane() & 7) + 8 * (lane() >> 4)) * kMatrixRow +
                           32 * warp() + 16 * ((lane() >> 3) & 1);
    const uint32_t row = columns_from(0);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t a[4], c[4];
      load_matrices_transposed(a, state + 32 * i * kMatrixRow);
      load_matrices_transposed(c, state + (32 * i + 16) * kMatrixRow);
      add_products(d, a, c, row + 64 * i);
    }
  }
  // S^T (the FP16 key sides) for the warp's values; as `turn`, for all blocks.
  template <int kCount>
  __device__ __forceinline__ void turn_blocks(float (&d)[kCount][4]) const {
    const uint32_t state =
        matrix() + (16 * warp() + (lane() & 15)) * kMatrixRow + 16 * (lane() >> 4);
    const uint32_t keys = columns_from(0) + kKeysAt;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t a[4], c[4];
      load_matrices(a, state + 64 * i);
      load_matrices(c, state + 64 * i + 32);
      add_products(d, a, c, keys + 64 * i);
    }
  }

  // A warp's share of the Gram matrix of sixteen columns, where FoldFit has two columns in FP32.
  __device__ __forceinline__ float2* share_of(int32_t from, int32_t part) const {
    return at<float2>(kColumnsAt + (2 * from + part / 2) * kColumnBytes + kFloatsAt +
                      256 * (part & 1)) +
           lane();
  }
  __device__ __forceinline__ void put_shares(const Parts (&x)[kBlocks]) const {
    uint32_t h[2][2], m[2][2], l[2][2];  // by block, by half of the values
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      h[i / 2][i % 2] = transpose_matrix(x[i / 2].high[i % 2]);
      m[i / 2][i % 2] = transpose_matrix(x[i / 2].middle[i % 2]);
      l[i / 2][i % 2] = transpose_matrix(x[i / 2].low[i % 2]);
    }
#pragma unroll
    for (int32_t n = 0; n < kBlocks; ++n) {
      float d[4] = {};
      mma_bf16(d, h[0][0], h[1][0], h[0][1], h[1][1], l[n][0], l[n][1]);
      mma_bf16(d, l[0][0], l[1][0], l[0][1], l[1][1], h[n][0], h[n][1]);
      mma_bf16(d, m[0][0], m[1][0], m[0][1], m[1][1], m[n][0], m[n][1]);
      mma_bf16(d, h[0][0], h[1][0], h[0][1], h[1][1], m[n][0], m[n][1]);
      mma_bf16(d, m[0][0], m[1][0], m[0][1], m[1][1], h[n][0], h[n][1]);
      mma_bf16(d, h[0][0], h[1][0], h[0][1], h[1][1], h[n][0], h[n][1]);
      if (n == 0) *share_of(warp(), 0) = make_float2(d[0], d[1]);
      *share_of(warp(), 1 + n) = make_float2(d[2], d[3]);
    }
  }
  __device__ __forceinline__ Lower sum_of_shares() const {
    Lower sum = {};
#pragma unroll
    for (int32_t w = 0; w < kWarps; ++w) {
      const float2 a = *share_of(w, 0);
      const float2 b = *share_of(w, 1);
      const float2 c = *share_of(w, 2);
      sum.upper.x += a.x, sum.upper.y += a.y;
      sum.left.x += b.x, sum.left.y += b.y;
      sum.right.x += c.x, sum.right.y += c.y;
    }
    return sum;
  }

  // In lane 4 g + t the entry (g, g) of a block.
  __device__ __forceinline__ float diagonal_of(const float2& x) const {
    return __shfl_sync(kAll, select_float((g() & 1) != 0, x.y, x.x), (lane() & ~3) + (g() >> 1));
  }
  // Entry g of what a lane 4 g + t has, for the lane's columns 2 t and 2 t + 1.
  __device__ __forceinline__ float2 of_columns(float x) const {
    return make_float2(__shfl_sync(kAll, x, 8 * t()), __shfl_sync(kAll, x, 8 * t() + 4));
  }
  __device__ __forceinline__ static float2 scaled_pair(const float2& x, float row,
                                                       const float2& columns) {
    return make_float2(x.x * (row * columns.x), x.y * (row * columns.y));
  }
  __device__ __forceinline__ static void take_off(float2* x, float share, const float2& row) {
    x->x = fmaf(-share, row.x, x->x);
    x->y = fmaf(-share, row.y, x->y);
  }

  // The Gram matrix of columns becomes what makes them orthonormal in order: the inverse of its
  // Cholesky factor. As `factor` of FoldFitEight, for sixteen. Returns whether it is exact enough.
  __device__ __forceinline__ bool invert(bool again, Lower* x) const {
    const float squares[2] = {diagonal_of(x->upper), diagonal_of(x->right)};
    float norm[2], own[2] = {0.0f, 0.0f}, factor[2] = {0.0f, 0.0f};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) norm[i] = squares[i] > 1e-30f ? rsqrt_fast(squares[i]) : 0.0f;
    const float2 first = of_columns(norm[0]);
    const float2 second = of_columns(norm[1]);
    x->upper = scaled_pair(x->upper, norm[0], first);
    x->left = scaled_pair(x->left, norm[1], first);
    x->right = scaled_pair(x->right, norm[1], second);
    const int32_t row_start = lane() & ~3;
#pragma unroll 1
    for (int32_t k = 0; k < 8; ++k) {
      const int32_t half = k >> 1;
      const float upper = select_float((k & 1) != 0, x->upper.y, x->upper.x);
      const float left = select_float((k & 1) != 0, x->left.y, x->left.x);
      const float pivot = __shfl_sync(kAll, upper, 4 * k + half);
      const float2 row = make_float2(__shfl_sync(kAll, x->upper.x, 4 * k + t()),
                                     __shfl_sync(kAll, x->upper.y, 4 * k + t()));
      const float2 rest = make_float2(__shfl_sync(kAll, left, 8 * t() + half),
                                      __shfl_sync(kAll, left, 8 * t() + 4 + half));
      float share[2] = {__shfl_sync(kAll, upper, row_start + half),
                        __shfl_sync(kAll, left, row_start + half)};
      const bool sound = pivot > kLeastPivot;
      const float root = rsqrt_fast(pivot);
      share[0] = sound && g() > k ? share[0] * root * root : 0.0f;
      share[1] = sound ? share[1] * root * root : 0.0f;
      if (g() == k) {
        own[0] = pivot;
        factor[0] = sound ? root : again ? 0.0f : rsqrt_fast(kLeastPivot);
      }
      take_off(&x->upper, share[0], row);
      take_off(&x->left, share[1], row);
      take_off(&x->right, share[1], rest);
      if (t() == half) {
        const float done = g() == k ? 1.0f : -share[0];
        if ((k & 1) == 0) x->upper.x = done, x->left.x = -share[1];
        if ((k & 1) != 0) x->upper.y = done, x->left.y = -share[1];
      }
    }
#pragma unroll 1
    for (int32_t k = 0; k < rank() - 8; ++k) {
      const int32_t half = k >> 1;
      const float right = select_float((k & 1) != 0, x->right.y, x->right.x);
      const float pivot = __shfl_sync(kAll, right, 4 * k + half);
      const float2 row = make_float2(__shfl_sync(kAll, x->right.x, 4 * k + t()),
                                     __shfl_sync(kAll, x->right.y, 4 * k + t()));
      const float2 before = make_float2(__shfl_sync(kAll, x->left.x, 4 * k + t()),
                                        __shfl_sync(kAll, x->left.y, 4 * k + t()));
      float share = __shfl_sync(kAll, right, row_start + half);
      const bool sound = pivot > kLeastPivot;
      const float root = rsqrt_fast(pivot);
      share = sound && g() > k ? share * root * root : 0.0f;
      if (g() == k) {
        own[1] = pivot;
        factor[1] = sound ? root : again ? 0.0f : rsqrt_fast(kLeastPivot);
      }
      take_off(&x->left, share, before);
      take_off(&x->right, share, row);
      if (t() == half) {
        const float done = g() == k ? 1.0f : -share;
        if ((k & 1) == 0) x->right.x = done;
        if ((k & 1) != 0) x->right.y = done;
      }
    }
    x->upper = scaled_pair(x->upper, factor[0], first);
    x->left = scaled_pair(x->left, factor[1], first);
    x->right = scaled_pair(x->right, factor[1], second);
    if (2 * t() > g()) x->upper.x = x->right.x = 0.0f;
    if (2 * t() >= g()) x->upper.y = x->right.y = 0.0f;
    const bool inexact = (16.0f * own[0] < 0.999f && norm[0] != 0.0f) ||
                         (16.0f * own[1] < 0.999f && norm[1] != 0.0f);
    return !__any_sync(kAll, inexact);
  }

  // Columns times what one warp made of their Gram matrix.
  __device__ __forceinline__ void apply_both(const Parts (&x)[kBlocks],
                                             float (&d)[kBlocks][4]) const {
    apply(x[0], inverses()[lane()], d[0]);
    apply(x[0], inverses()[32 + lane()], d[1]);
    add_applied(x[1], inverses()[64 + lane()], d[1]);
  }

  // What eight entries of a column are made of: two columns a warp, sixteen lanes each.
  __device__ __forceinline__ int32_t pair_column() const { return warp() + 8 * (lane() >> 4); }
  __device__ __forceinline__ int32_t pair_entry() const { return 8 * (lane() & 15); }

  __device__ __forceinline__ static float largest_of_column(const float (&x)[8]) {
    float largest = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
    for (int32_t by = 8; by >= 1; by >>= 1) {
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, by));
    }
    return largest;
  }
  // Rounds a column to its type into the boundary state; x becomes what is stored without its
  // scale, which it returns. Sixteen lanes have a column; `largest`: of its magnitudes.
  __device__ __forceinline__ float round_eight(bool key, int32_t c, float largest, float (&x)[8],
                                               bool* saturated) const {
    if (c < format.num_fp16) {
      uint32_t pair[4];
#pragma unroll
      for (int32_t i = 0; i < 8; i += 2) {
        const uint32_t low = to_half_saturated(x[i], saturated);
        pair[i / 2] = low | static_cast<uint32_t>(to_half_saturated(x[i + 1], saturated)) << 16;
        const float2 back = widen_halves(pair[i / 2]);
        x[i] = back.x, x[i + 1] = back.y;
      }
      *reinterpret_cast<uint4*>(boundary() + (key ? format.fp16_keys : format.fp16_values) +
                                c * 256 + 2 * pair_entry()) =
          make_uint4(pair[0], pair[1], pair[2], pair[3]);
      return 1.0f;
    }
    c -= format.num_fp16;
    const bool wide = c < format.num_int8;
    const unsigned short half =
        largest == 0.0f ? 0 : to_half_up(__fdividef(largest, wide ? 127.0f : 8.0f), saturated);
    const float step = __half2float(__ushort_as_half(half));
    if ((lane() & 15) == 0) {
      *reinterpret_cast<unsigned short*>(
          boundary() + (key ? format.key_scales : format.value_scales) + 2 * c) = half;
    }
    const float inverse = half != 0 ? __fdividef(1.0f, step) : 0.0f;
    const float middle = wide ? 0.0f : 0.5f;
    int32_t code[8];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      code[i] =
          min(max(__float2int_rn(fmaf(x[i], inverse, -middle)), wide ? -127 : -8), wide ? 127 : 7);
      x[i] = static_cast<float>(code[i]) + middle;
      if (half == 0) code[i] = 0, x[i] = 0.0f;
    }
    if (wide) {
      char* to = boundary() + (key ? format.int8_keys : format.int8_values) + c * 128;
      uint32_t word[2];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        word[i] = __byte_perm(__byte_perm(code[4 * i], code[4 * i + 1], 0x0040),
                              __byte_perm(code[4 * i + 2], code[4 * i + 3], 0x0040), 0x5410);
      }
      reinterpret_cast<uint32_t*>(to + pair_entry())[0] = word[0];
      reinterpret_cast<uint32_t*>(to + pair_entry())[1] = word[1];
    } else {
      c -= format.num_int8;
      uint32_t word = 0;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) word |= static_cast<uint32_t>(code[i] + 8) << (4 * i);
      *reinterpret_cast<uint32_t*>(boundary() + (key ? format.int4_keys : format.int4_values) +
                                   c * 64 + pair_entry() / 2) = word;
    }
    return step;
  }

  // Rounds columns to their types: value sides from high and low parts to what these hold; key
  // sides from FP32 to operands, what is taken off, in the state's scaling.
  __device__ __forceinline__ bool round_columns(bool key) const {
    bool saturated = false;
    const int32_t c = pair_column();  // of those that are only zeros too
    uint4* place = reinterpret_cast<uint4*>(column(c, 0) + pair_entry());
    float x[8];
    if (key) {
      const float unscale = at<float>(kScalesAt)[1];
      const float* from = sides() + c * kStride + pair_entry();
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) x[i] = from[i] * unscale;
    } else {
      const uint4 high = *place;
      const uint4 low = *reinterpret_cast<const uint4*>(column(c, kLowAt) + pair_entry());
      const uint32_t parts[2][4] = {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 a = widen_halves(parts[0][i]);
        const float2 b = widen_halves(parts[1][i]);
        x[2 * i] = a.x + b.x, x[2 * i + 1] = a.y + b.y;
      }
    }
    const float largest = largest_of_column(x);
    __syncwarp();  // low parts go where a key side's floats were
    if (c < rank()) {
      const float step = round_eight(key, c, largest, x, &saturated);
      float& value_step = at<float>(kValueScalesAt)[c];
      if (key) {
        const float by = -at<float>(kScalesAt)[0] * value_step * step;
        uint32_t* words = reinterpret_cast<uint32_t*>(column(c, kKeysAt)) + 8 * (lane() >> 1 & 7) +
                          2 * (lane() & 1);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {  // entries 2 i, 2 i + 1 in operand order: operand_word
          uint32_t high, low;
          split(x[2 * i] * by, x[2 * i + 1] * by, &high, &low);
          words[4 * (i & 1) + (i >> 1)] = high;
          words[4 * (i & 1) + (i >> 1) + 64] = low;
        }
      } else {
        *place = make_uint4(pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]), pack_fp16(x[4], x[5]),
                            pack_fp16(x[6], x[7]));
        if ((lane() & 15) == 0) value_step = step;
      }
    }
    return saturated;
  }

  // Key sides of the rounded value sides by least squares, for the warp's keys: S U (U^T U)^-1. The
  // series in the normalised Gram matrix where its squares sum to 0.36 or less, else by its factor.
  __device__ __forceinline__ void solve_keys() const {
    float b[kBlocks][4] = {};
    times_blocks(b);
    float e[kBlocks][4] = {};  // the Gram matrix: rows g, 8 + g, columns of a block
    const uint32_t row =
        shared_address(shared + kColumnsAt) + (lane() & 15) * kColumnBytes + 16 * (lane() >> 4);
#pragma unroll 2
    for (int32_t k = 0; k < 256; k += 32) {
      uint32_t a[4];
      load_matrices(a, row + k);
      mma_fp16(e[0], a[0], a[1], a[2], a[3], a[0], a[2]);
      mma_fp16(e[1], a[0], a[1], a[2], a[3], a[1], a[3]);
    }
    float norm[2] = {diagonal_of(make_float2(e[0][0], e[0][1])),
                     diagonal_of(make_float2(e[1][2], e[1][3]))};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) norm[i] = norm[i] > 0.0f ? rsqrtf(norm[i]) : 0.0f;
    const float2 columns[2] = {of_columns(norm[0]), of_columns(norm[1])};
    float measure = 0.0f;
#pragma unroll
    for (int32_t n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float column = i % 2 == 0 ? columns[n].x : columns[n].y;
        e[n][i] *= norm[i / 2] * column;
        b[n][i] *= column;
        if (n == i / 2 && 2 * t() + i % 2 == g()) continue;
        measure = fmaf(e[n][i], e[n][i], measure);
      }
    }
    measure = sum_of_warp(measure);
    float y[kBlocks][4];
    if (measure <= 0.36f) {
      uint32_t near[kBlocks][2];  // less its diagonal, as second operand
#pragma unroll
      for (int32_t n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) {
          const bool first = n == k && 2 * t() == g();
          const bool second = n == k && 2 * t() + 1 == g();
          near[n][k] = pack_fp16(first ? 0.0f : e[k][2 * n], second ? 0.0f : e[k][2 * n + 1]);
        }
      }
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) y[i / 4][i % 4] = b[i / 4][i % 4];
#pragma unroll 1
      for (float left = measure; left > 1e-6f; left *= measure) {
        uint32_t a[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          a[i] = pack_fp16(-y[i / 2][2 * (i % 2)], -y[i / 2][2 * (i % 2) + 1]);
        }
#pragma unroll
        for (int32_t n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) y[n][i] = b[n][i];
          mma_fp16(y[n], a[0], a[1], a[2], a[3], near[n][0], near[n][1]);
        }
      }
    } else {
      Lower inverse = {make_float2(e[0][0], e[0][1]), make_float2(e[0][2], e[0][3]),
                       make_float2(e[1][2], e[1][3])};
      if (t() == g() >> 1) {  // the ridge
        ((g() & 1) == 0 ? inverse.upper.x : inverse.upper.y) += 1e-7f;
        ((g() & 1) == 0 ? inverse.right.x : inverse.right.y) += 1e-7f;
      }
      invert(true, &inverse);
      Parts parts[kBlocks] = {parts_of(b[0]), parts_of(b[1])};
      apply(parts[0], inverse.upper, b[0]);
      apply(parts[0], inverse.left, b[1]);
      add_applied(parts[1], inverse.right, b[1]);
      parts[0] = parts_of(b[0]), parts[1] = parts_of(b[1]);
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) y[i / 4][i % 4] = 0.0f;
      add_turned_back(parts[0], inverse.upper, y[0]);
      add_turned_back(parts[1], inverse.left, y[0]);
      add_turned_back(parts[1], inverse.right, y[1]);
    }
    const float* steps = at<float>(kValueScalesAt);
#pragma unroll
    for (int32_t n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t c = 8 * n + 2 * t() + i % 2;
        const float step = c < rank() ? steps[c] : 0.0f;
        const float column = i % 2 == 0 ? columns[n].x : columns[n].y;
        sides()[c * kStride + operand_key(i / 2)] =
            step > 0.0f ? y[n][i] * __fdividef(column, step) : 0.0f;
      }
    }
  }
  // d += x times a block as it stands, where `apply` takes its transpose.
  __device__ __forceinline__ void add_turned_back(const Parts& x, float2 block,
                                                  float (&d)[4]) const {
    uint32_t part[3];
    part[0] = take_part(&block.x, &block.y);
    part[1] = take_part(&block.x, &block.y);
    part[2] = pack_bf16(block.x, block.y);
#pragma unroll
    for (int32_t i = 0; i < 3; ++i) part[i] = transpose_matrix(part[i]);
    add_parts(x, part[0], part[1], part[2], d);
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory, warm columns too. `meanwhile()` runs once, where a warp would wait for another.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_mixed(State* s, const Meanwhile& meanwhile) const {
    float x[kBlocks][4] = {};
    times_blocks(x);
    bool values = false;
    bool again = false;
#pragma unroll 1
    while (true) {  // key sides, then value sides; these twice where once is not exact
      Parts parts[kBlocks];
#pragma unroll
      for (int32_t n = 0; n < kBlocks; ++n) parts[n] = parts_of(x[n]);
      put_shares(parts);
      sync_team();
      if (warp() == 0) {
        Lower inverse = sum_of_shares();
        const bool exact = invert(again, &inverse);
        inverses()[lane()] = inverse.upper;
        inverses()[32 + lane()] = inverse.left;
        inverses()[64 + lane()] = inverse.right;
        if (lane() == 0) at<uint32_t>(kScalesAt)[3] = exact || again ? 1u : 0u;
      } else if (!values) {
        meanwhile();
      }
      sync_team();
      apply_both(parts, x);
      if (values) {
        if (at<uint32_t>(kScalesAt)[3] != 0) break;
        again = true;
        continue;
      }
      put_projection(0, x[0]);
      put_projection(8, x[1]);
      sync_team();
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) x[i / 4][i % 4] = 0.0f;
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
#pragma unroll 1
    for (int32_t key = 0; key < 2; ++key) {
      if (key != 0) {
        solve_keys();
        sync_team();
      }
      saturated = round_columns(key != 0) || saturated;
      sync_team();
    }
    add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
    return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
