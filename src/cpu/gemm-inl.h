// SPDX-License-Identifier: Apache-2.0
//
// Small register-blocked FP32 matrix products over column strips, the inner loops of prefill. Not a
// general GEMM: depths and heights are those of one head (at most 256), everything lies in L1 or
// L2.
//
// A strip is a row-major block [rows][kStrip]; a matrix of W columns is ceil(W / kStrip) strips one
// after another, so that the rows of a strip are neighbours in memory whatever W is.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_GEMM_INL_H_
#undef LEAPQUANT_CPU_GEMM_INL_H_
#else
#define LEAPQUANT_CPU_GEMM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

inline constexpr int32_t kStrip = 16;

// Vectors of one register block: two where a vector holds half a strip or less.
inline constexpr int32_t kBlockVectors = kLanes >= kStrip ? 1 : 2;
inline constexpr int32_t kBlockColumns = kLanes * kBlockVectors;
// Rows of the full register block: with one vector a row, more rows hide the latency of the sums.
inline constexpr int32_t kBlockRows = kBlockVectors == 1 ? 12 : 6;

// The left operand: element (r, i) at data[r * row_stride + i * depth_stride].
struct LeftMatrix {
  const float* data;
  size_t row_stride;
  size_t depth_stride;
};

enum class Accumulate {
  kSet,          // C = A B
  kSubtract,     // C = C - A B
  kAdd,          // C = C + A B
  kScaleAndAdd,  // C = diag(scale) C + A B
};

// One block of kRows rows and kBlockColumns columns of C over the whole depth.
template <Accumulate kMode, int32_t kRows>
HWY_INLINE void block_product(const LeftMatrix& left, int32_t depth,
                              const float* HWY_RESTRICT right, const float* scale,
                              float* HWY_RESTRICT result) {
  const FloatTag d;
  FloatVec sum[kRows][kBlockVectors];
  HWY_UNROLL(12)
  for (int32_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int32_t c = 0; c < kBlockVectors; ++c) {
      if constexpr (kMode == Accumulate::kSet) {
        sum[r][c] = hn::Zero(d);
      } else {
        sum[r][c] = hn::LoadU(d, result + r * kStrip + c * kLanes);
        if constexpr (kMode == Accumulate::kScaleAndAdd) {
          sum[r][c] = hn::Mul(sum[r][c], hn::Set(d, scale[r]));
        }
      }
    }
  }
  const float* a = left.data;
  for (int32_t i = 0; i < depth; ++i, a += left.depth_stride, right += kStrip) {
    FloatVec b[kBlockVectors];
    HWY_UNROLL(2)
    for (int32_t c = 0; c < kBlockVectors; ++c) b[c] = hn::LoadU(d, right + c * kLanes);
    HWY_UNROLL(12)
    for (int32_t r = 0; r < kRows; ++r) {
      const FloatVec factor = hn::Set(d, a[static_cast<size_t>(r) * left.row_stride]);
      HWY_UNROLL(2)
      for (int32_t c = 0; c < kBlockVectors; ++c) {
        if constexpr (kMode == Accumulate::kSubtract) {
          sum[r][c] = hn::NegMulAdd(factor, b[c], sum[r][c]);
        } else {
          sum[r][c] = hn::MulAdd(factor, b[c], sum[r][c]);
        }
      }
    }
  }
  HWY_UNROLL(12)
  for (int32_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int32_t c = 0; c < kBlockVectors; ++c) {
      hn::StoreU(sum[r][c], d, result + r * kStrip + c * kLanes);
    }
  }
}

// result [rows][kStrip] (see Accumulate) left [rows, depth] times right [depth][kStrip].
// scale [rows]: kScaleAndAdd only, otherwise null.
template <Accumulate kMode>
HWY_INLINE void strip_product(LeftMatrix left, int32_t rows, int32_t depth, const float* right,
                              const float* scale, float* result) {
  int32_t r = 0;
  const auto block = [&]<int32_t kRows>() {
    const LeftMatrix part = {left.data + static_cast<size_t>(r) * left.row_stride, left.row_stride,
                             left.depth_stride};
    for (int32_t c = 0; c < kStrip; c += kBlockColumns) {
      block_product<kMode, kRows>(part, depth, right + c, scale == nullptr ? nullptr : scale + r,
                                  result + r * kStrip + c);
    }
    r += kRows;
  };
  while (rows - r >= kBlockRows) block.template operator()<kBlockRows>();
  while (rows - r >= 4) block.template operator()<4>();
  if (rows - r >= 2) block.template operator()<2>();
  if (rows - r >= 1) block.template operator()<1>();
}

// Row r of result -= (kSubtract) or += (kAdd) lower [r][0 .. limit_r) times right, where limit_r =
// limit(r) never decreases. right may be result itself when limit_r <= r: then this is the forward
// substitution (I + lower)^-1 result. Entries at and past the limit are not read as factors, so a
// later row that overflowed cannot reach an earlier one.
template <Accumulate kMode, class Limit>
HWY_INLINE void strip_lower_product(const float* lower, size_t lower_stride, int32_t rows,
                                    const Limit& limit, const float* right, float* result) {
  constexpr int32_t kRows = 4;
  for (int32_t r = 0; r < rows; r += kRows) {
    const int32_t block = rows - r < kRows ? rows - r : kRows;
    // The part that all rows of the block share, then each row's own rest.
    const int32_t shared = limit(r);
    const LeftMatrix left = {lower + static_cast<size_t>(r) * lower_stride, lower_stride, 1};
    strip_product<kMode>(left, block, shared, right, nullptr, result + r * kStrip);
    for (int32_t row = r; row < r + block; ++row) {
      const int32_t rest = limit(row) - shared;
      if (rest <= 0) continue;
      const LeftMatrix own = {lower + static_cast<size_t>(row) * lower_stride + shared,
                              lower_stride, 1};
      strip_product<kMode>(own, 1, rest, right + shared * kStrip, nullptr, result + row * kStrip);
    }
  }
}

// <x, y> of rows of `count` floats, a multiple of 16.
HWY_INLINE float dot_product(const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                             int32_t count) {
  const FloatTag d;
  FloatVec even = hn::Zero(d);
  FloatVec odd = hn::Zero(d);
  int32_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), even);
    odd = hn::MulAdd(hn::LoadU(d, x + i + kLanes), hn::LoadU(d, y + i + kLanes), odd);
  }
  if (i < count) even = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), even);
  return sum_of_lanes(hn::Add(even, odd));
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LEAPQUANT_CPU_GEMM_INL_H_
