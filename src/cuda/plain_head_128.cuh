// SPDX-License-Identifier: Apache-2.0
//
// One head of 128 x 128 with a plain state in shared memory: reads of its columns, the update of a
// token, the fold of a window, and what rounding to BF16 takes away. By a block of kPlainThreads.
#pragma once

#include "cuda/block.cuh"
#include "cuda/plain_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {

// Sums of squares in units of 2^exponent, so that none of them overflows.
struct Loss {
  float energy = 0.0f;
  float lost = 0.0f;
  int32_t exponent = -126;
};

template <int kBits>
struct PlainState {
  static constexpr int kPer = 128 / kBits;  // entries of 16 bytes
  static constexpr int kEntry = kBits / 8;
  // Reads: a warp has 8 lanes side by side on 128 bytes of four rows.
  static constexpr int kColumnWarps = 128 / (8 * kPer);
  static constexpr int kParts = 4 / kColumnWarps;
  static constexpr int kPartRows = 128 / kParts;

  char* state;
  int32_t warp, lane;

  __device__ __forceinline__ int32_t read_column() const {
    return (warp % kColumnWarps) * (8 * kPer) + (lane & 7) * kPer;
  }
  __device__ __forceinline__ int32_t first_row() const {
    return (warp / kColumnWarps) * kPartRows + (lane >> 3);
  }
  __device__ __forceinline__ uint4* entries(int32_t row, int32_t column) const {
    return reinterpret_cast<uint4*>(state + (row * 128 + column) * kEntry);
  }

  static __device__ __forceinline__ void widen(const uint4& raw, float (&x)[kPer]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int32_t w = 0; w < 4; ++w) {
      if constexpr (kBits == 32) {
        x[w] = __uint_as_float(words[w]);
      } else {
        x[2 * w] = __uint_as_float(words[w] << 16);
        x[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
      }
    }
  }
  static __device__ __forceinline__ uint4 narrow(const float (&x)[kPer]) {
    uint32_t words[4];
#pragma unroll
    for (int32_t w = 0; w < 4; ++w) {
      if constexpr (kBits == 32) {
        words[w] = __float_as_uint(x[w]);
      } else {
        words[w] = pack_bf16(x[2 * w], x[2 * w + 1]);
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Sums over the rows of the state's columns with pairs of reads, in parts: sums
  // [part][read][128].
  __device__ __forceinline__ void read(const float2* reads, float* sums) const {
    float a[kPer] = {};
    float b[kPer] = {};
    const int32_t column = read_column();
    const int32_t first = first_row();
#pragma unroll 8
    for (int32_t i = 0; i < kPartRows / 4; ++i) {
      const int32_t row = first + 4 * i;
      float x[kPer];
      widen(*entries(row, column), x);
      const float2 r = reads[row];
#pragma unroll
      for (int32_t c = 0; c < kPer; ++c) {
        a[c] = fmaf(r.x, x[c], a[c]);
        b[c] = fmaf(r.y, x[c], b[c]);
      }
    }
    // Lanes 16 apart keep one read each, lanes 8 apart half of the columns.
    const bool query = (lane & 16) != 0;
    const bool upper = (lane & 8) != 0;
    float kept[kPer];
#pragma unroll
    for (int32_t c = 0; c < kPer; ++c) {
      const float given = select_float(query, a[c], b[c]);
      kept[c] = select_float(query, b[c], a[c]) + __shfl_xor_sync(kAllLanes, given, 16);
    }
    const int32_t part = warp / kColumnWarps;
    float* target = sums + (part * 2 + (query ? 1 : 0)) * 128 + column + (upper ? kPer / 2 : 0);
#pragma unroll
    for (int32_t c = 0; c < kPer / 2; ++c) {
      const float given = select_float(upper, kept[c], kept[c + kPer / 2]);
      target[c] =
          select_float(upper, kept[c + kPer / 2], kept[c]) + __shfl_xor_sync(kAllLanes, given, 8);
    }
  }

  // ---- New states: entries that are not finite become zero, `flags` says so ----

  // Rounds kRows x kPer new entries of this lane into shared memory.
  template <int kRows, typename Row>
  __device__ __forceinline__ void put(float (&x)[kRows][kPer], const Row& row_of_entry,
                                      int32_t column, bool counts, uint32_t* flags,
                                      Loss* loss) const {
    uint32_t largest = 0;
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) {
#pragma unroll
      for (int32_t c = 0; c < kPer; ++c) {
        largest = max(largest, __float_as_uint(x[r][c]) & 0x7fffffffu);
      }
    }
    if (largest >= 0x7f800000u) {
      *flags |= LEAPQUANT_HEALTH_NON_FINITE;
      largest = 0;
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
#pragma unroll
        for (int32_t c = 0; c < kPer; ++c) {
          x[r][c] = is_finite(x[r][c]) ? x[r][c] : 0.0f;
          largest = max(largest, __float_as_uint(x[r][c]) & 0x7fffffffu);
        }
      }
    }
    float energy = 0.0f;
    float lost = 0.0f;
    const int32_t exponent = min(max(static_cast<int32_t>(largest >> 23) - 127, -126), 126);
    const float unit = power_of_two(-exponent);
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) {
      const uint4 raw = narrow(x[r]);
      *entries(row_of_entry(r), column) = raw;
      if (kBits == 16 && counts) {
        float stored[kPer];
        widen(raw, stored);
#pragma unroll
        for (int32_t c = 0; c < kPer; ++c) {
          const float miss = (stored[c] - x[r][c]) * unit;
          const float whole = x[r][c] * unit;
          energy = fmaf(whole, whole, energy);
          lost = fmaf(miss, miss, lost);
        }
      }
    }
    if (kBits == 16 && counts) add(energy, lost, exponent, loss);
  }

  static __device__ __forceinline__ void add(float energy, float lost, int32_t exponent,
                                             Loss* loss) {
    const int32_t both = max(exponent, loss->exponent);
    // Units more than 2^60 apart do not meet in FP32.
    const float a = power_of_two(2 * max(loss->exponent - both, -60));
    const float b = power_of_two(2 * max(exponent - both, -60));
    loss->energy = loss->energy * a + energy * b;
    loss->lost = loss->lost * a + lost * b;
    loss->exponent = both;
  }

  // State := decay of the row x state + key of the row x u of the column. `update`: pairs of rows.
  __device__ __forceinline__ void advance(const float2* update, const float* u_of_column,
                                          bool counts, uint32_t* flags, Loss* loss) const {
    const int32_t column = read_column();
    const int32_t first = first_row();
    float u[kPer];
#pragma unroll
    for (int32_t c = 0; c < kPer; ++c) u[c] = u_of_column[column + c];
#pragma unroll 1
    for (int32_t i = 0; i < kPartRows / 4; i += 4) {
      float x[4][kPer];
#pragma unroll
      for (int32_t r = 0; r < 4; ++r) {
        const int32_t row = first + 4 * (i + r);
        widen(*entries(row, column), x[r]);
        const float2 f = update[row];
#pragma unroll
        for (int32_t c = 0; c < kPer; ++c) x[r][c] = fmaf(f.y, u[c], f.x * x[r][c]);
      }
      put<4>(x, [&](int32_t r) { return first + 4 * (i + r); }, column, counts, flags, loss);
    }
  }

  // Folds: a lane has four rows one behind the other at a time, and kPer columns. `left`(m, row)
  // gives four rows' keys of record m times the decay of the later ones, `u`(m, column) its
  // corrections, `decay`(row) what is left of the boundary state's row.
  template <typename Left, typename Corrections, typename Decay>
  __device__ __forceinline__ void fold(int32_t records, const Left& left, const Corrections& u,
                                       const Decay& decay, bool counts, uint32_t* flags,
                                       Loss* loss) const {
    constexpr int32_t kLanes = 128 / kPer;  // of a row
    const int32_t column = (lane % kLanes) * kPer;
    const int32_t rows = kLanes;  // of this lane
    const int32_t first = 32 * warp + (lane / kLanes) * rows;
#pragma unroll 1
    for (int32_t i = 0; i < rows; i += 4) {
      float x[4][kPer];
#pragma unroll
      for (int32_t r = 0; r < 4; ++r) {
        widen(*entries(first + i + r, column), x[r]);
        const float d = decay(first + i + r);
#pragma unroll
        for (int32_t c = 0; c < kPer; ++c) x[r][c] *= d;
      }
#pragma unroll 2
      for (int32_t m = 0; m < records; ++m) {
        float factors[4];
        float values[kPer];
        left(m, first + i, &factors);
        u(m, column, &values);
#pragma unroll
        for (int32_t r = 0; r < 4; ++r) {
#pragma unroll
          for (int32_t c = 0; c < kPer; ++c) x[r][c] = fmaf(factors[r], values[c], x[r][c]);
        }
      }
      put<4>(x, [&](int32_t r) { return first + i + r; }, column, counts, flags, loss);
    }
  }
};

}  // namespace leapquant::cuda
