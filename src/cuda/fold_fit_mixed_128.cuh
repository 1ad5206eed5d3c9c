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

  // S columns and then S^T of those, made orthonormal, become the columns; the latter twice where
  // once is not exact. `meanwhile()` runs once, where a warp would wait for another.
  template <int kCount, typename Meanwhile>
  __device__ __forceinline__ void turn_once(const Meanwhile& meanwhile) const {
    float x[kCount][4] = {};
    times_blocks(x);
    bool values = false;
    bool again = false;
#pragma unroll 1
    while (true) {
      const FoldFitMixed here = fresh(*this);
      here.put_shares(x);
      sync_team();
      here.factor_blocks<kCount>(
          again, [&](int32_t i, int32_t j) { return here.sum_of_shares<kCount>(i, j); });
      if (here.warp() == kWarps - 1 && !values) meanwhile();
      sync_team();
      here.apply_blocks(x);
      if (values) {
        if (again || at<uint32_t>(kScalesAt)[3] != 0) break;
        again = true;
        continue;
      }
#pragma unroll
      for (int32_t n = 0; n < kCount; ++n) here.put_projection(8 * n, x[n]);
      sync_team();
#pragma unroll
      for (int32_t i = 0; i < 4 * kCount; ++i) x[i / 4][i % 4] = 0.0f;
      here.turn_blocks(x);
      values = true;
    }
#pragma unroll
    for (int32_t n = 0; n < kCount; ++n) {
      uint32_t high[2], low[2];
      split(x[n][0], x[n][1], &high[0], &low[0]);
      split(x[n][2], x[n][3], &high[1], &low[1]);
      put_parts(8 * n, 0, high[0], high[1]);
      put_parts(8 * n, kLowAt, low[0], low[1]);
    }
    sync_team();
  }

  // What eight entries of a column are made of: two columns a warp, sixteen lanes each. Neighbours,
  // which are of one type mostly.
  __device__ __forceinline__ int32_t pair_column() const { return 2 * warp() + (lane() >> 4); }
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
    if (static_cast<uint32_t>(c) < static_cast<uint32_t>(format.num_fp16)) {  // c is not below 0
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
    const bool some = half != 0;
    const float inverse = some ? __fdividef(1.0f, step) : 0.0f;
    const float middle = some && !wide ? 0.5f : 0.0f;
    const float least = !some ? 0.0f : wide ? -127.0f : -8.0f;
    const float most = !some ? 0.0f : wide ? 127.0f : 7.0f;
    // Where a float's unit is 1, so that adding rounds: its last bits are the code, or that and 8.
    const float integers = wide ? 12582912.0f : 12582920.0f;
    uint32_t code[8];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const float y = fminf(fmaxf(fmaf(x[i], inverse, -middle), least), most) + integers;
      code[i] = __float_as_uint(y);
      x[i] = (y - integers) + middle;
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
      uint32_t word = 0u - 0x4b400000u * 0x11111111u;  // what is left of the floats' first bits
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) word += code[i] << (4 * i);
      *reinterpret_cast<uint32_t*>(boundary() + (key ? format.int4_keys : format.int4_values) +
                                   c * 64 + pair_entry() / 2) = word;
    }
    return step;
  }

  // Rounds columns to their types: value sides from high and low parts to what these hold; key
  // sides from FP32 to operands, what is taken off, in the state's scaling. Two columns a warp at a
  // time. Of more than sixteen, value sides' norms are noted too.
  template <int kCount>
  __device__ __forceinline__ bool round_columns(bool key) const {
    bool saturated = false;
#pragma unroll 1
    for (int32_t c = pair_column(); c < 8 * kCount; c += 2 * kWarps) {
      uint4* place = reinterpret_cast<uint4*>(column(c, 0) + pair_entry());
      uint4* low_place = reinterpret_cast<uint4*>(column(c, kLowAt) + pair_entry());
      float x[8];
      if (key) {
        const float unscale = at<float>(kScalesAt)[1];
        const float4* from = reinterpret_cast<const float4*>(sides() + c * kStride + pair_entry());
        const float4 a = from[0];
        const float4 b = from[1];
        x[0] = a.x * unscale, x[1] = a.y * unscale, x[2] = a.z * unscale, x[3] = a.w * unscale;
        x[4] = b.x * unscale, x[5] = b.y * unscale, x[6] = b.z * unscale, x[7] = b.w * unscale;
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
        uint32_t high[4], low[4];  // entries 2 i, 2 i + 1, to be in operand order: operand_word
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) split(x[2 * i] * by, x[2 * i + 1] * by, &high[i], &low[i]);
        uint2* words =
            reinterpret_cast<uint2*>(column(c, kKeysAt)) + 4 * (lane() >> 1 & 7) + (lane() & 1);
        words[0] = make_uint2(high[0], high[2]), words[2] = make_uint2(high[1], high[3]);
        words[32] = make_uint2(low[0], low[2]), words[34] = make_uint2(low[1], low[3]);
        continue;
      }
      float square = 0.0f;
      if constexpr (kCount > 2) {
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) square = fmaf(x[i], x[i], square);
#pragma unroll
        for (int32_t by = 8; by >= 1; by >>= 1) square += __shfl_xor_sync(kAll, square, by);
      }
      if (c >= rank()) continue;
      *place = make_uint4(pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]), pack_fp16(x[4], x[5]),
                          pack_fp16(x[6], x[7]));
      if constexpr (kCount > 2) *low_place = make_uint4(0, 0, 0, 0);
      if ((lane() & 15) != 0) continue;
      value_step = step;
      if constexpr (kCount > 2) {
        const float inverse = square > 0.0f ? rsqrtf(square) : 0.0f;
        at<float>(kInverseNormsAt)[c] = inverse;
        at<float>(kLastFactorsAt)[c] = step > 0.0f ? __fdividef(inverse, step) : 0.0f;
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
      if (t() == g() >> 1) {  // the ridge
        ((g() & 1) == 0 ? e[0][0] : e[0][1]) += 1e-7f;
        ((g() & 1) == 0 ? e[1][2] : e[1][3]) += 1e-7f;
      }
      factor_blocks<kBlocks>(true, [&](int32_t i, int32_t j) {
        return make_float2(select_float(j != 0, e[1][2], select_float(i != 0, e[0][2], e[0][0])),
                           select_float(j != 0, e[1][3], select_float(i != 0, e[0][3], e[0][1])));
      });
      sync_team();
      apply_blocks(b);
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) y[i / 4][i % 4] = 0.0f;
      add_turned_back(b[1], 1, 1, y[1]);
      add_turned_back(y[1], 1, 0, y[0]);
      add_turned_back(b[0], 0, 0, y[0]);
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
  // d += x times a block as it stands, where `apply_blocks` takes its transpose.
  __device__ __forceinline__ void add_turned_back(const float (&x)[4], int32_t row, int32_t column,
                                                  float (&d)[4]) const {
    float one[4] = {x[0], x[1], x[2], x[3]};
    add_product(parts_of(one), turned(block_at(inverse_words(place(row, column)))), d);
  }

  // Fits and stores the compensators; S becomes the residual. The FP16 copy of S lies in shared
  // memory, warm columns too. `meanwhile()` runs once, where a warp would wait for another.
  template <typename Meanwhile>
  __device__ __forceinline__ uint32_t fit_mixed(State* s, const Meanwhile& meanwhile) const {
    turn_once<kBlocks>(meanwhile);
    bool saturated = false;
#pragma unroll 1
    for (int32_t key = 0; key < 2; ++key) {
      const FoldFitMixed here = fresh(*this);
      if (key != 0) {
        here.solve_keys();
        sync_team();
      }
      saturated = here.round_columns<kBlocks>(key != 0) || saturated;
      sync_team();
    }
    add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
    return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
};

}  // namespace leapquant::cuda::folding_128
