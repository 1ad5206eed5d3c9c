// SPDX-License-Identifier: Apache-2.0
//
// products.h through Highway. The micro-kernel keeps `kRows` x `kOutputs` vector accumulators in
// registers; a tile of weights stays in the second-level cache while all rows pass over it.
#include "runtime/kernels/products.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/products.cpp"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace leapquant::runtime::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using HalfWordTag = hn::Rebind<std::uint16_t, FloatTag>;
using Vector = hn::Vec<FloatTag>;

struct Bf16Weights {
  using Element = std::uint16_t;
  static HWY_INLINE Vector load(const Element* from) {
    const hn::Rebind<std::uint32_t, FloatTag> words;
    const auto wide = hn::PromoteTo(words, hn::LoadU(HalfWordTag(), from));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
  }
};

struct F16Weights {
  using Element = std::uint16_t;
  static HWY_INLINE Vector load(const Element* from) {
    const hn::Rebind<hwy::float16_t, FloatTag> halves;
    return hn::PromoteTo(FloatTag(), hn::BitCast(halves, hn::LoadU(HalfWordTag(), from)));
  }
};

struct F32Weights {
  using Element = float;
  static HWY_INLINE Vector load(const Element* from) { return hn::LoadU(FloatTag(), from); }
};

// Weights or activations past the last whole vector, filled up with zeros, so that the tail is one
// more step of the same vector arithmetic.
template <typename Element>
struct Tail {
  HWY_ALIGN Element values[hn::MaxLanes(FloatTag())];
  HWY_INLINE const Element* fill(const Element* from, std::size_t count) {
    std::memset(values, 0, sizeof(values));
    std::memcpy(values, from, count * sizeof(Element));
    return values;
  }
};

constexpr int kBlockRows = 4;
constexpr std::int64_t kPrefetchBlocks = 2;
constexpr std::int64_t kLineBytes = 64;

template <class Weights, int kRows, int kOutputs>
HWY_INLINE void multiply_block(const float* HWY_RESTRICT x, std::int64_t x_stride,
                               const typename Weights::Element* HWY_RESTRICT w, std::int64_t inner,
                               float* HWY_RESTRICT y, std::int64_t y_stride) {
  const FloatTag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  Vector sums[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kOutputs; ++n) sums[r][n] = hn::Zero(tag);
  }
  // Few rows run at the speed of memory. Short weight rows keep the hardware from seeing one long
  // stream, so the weights some blocks on are asked for, as much per step as a step reads.
  constexpr bool kPrefetch = kRows < kBlockRows;
  const char* ahead = reinterpret_cast<const char*>(w + kPrefetchBlocks * kOutputs * inner);
  const std::int64_t step_bytes =
      kOutputs * lanes * static_cast<std::int64_t>(sizeof(typename Weights::Element));
  std::int64_t k = 0;
  for (; k + lanes <= inner; k += lanes) {
    if constexpr (kPrefetch) {
      for (std::int64_t at = 0; at < step_bytes; at += kLineBytes) hwy::Prefetch(ahead + at);
      ahead += step_bytes;
    }
    Vector rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = hn::LoadU(tag, x + r * x_stride + k);
    for (int n = 0; n < kOutputs; ++n) {
      const Vector weight = Weights::load(w + n * inner + k);
      for (int r = 0; r < kRows; ++r) sums[r][n] = hn::MulAdd(rows[r], weight, sums[r][n]);
    }
  }
  if (k < inner) {
    const std::size_t rest = static_cast<std::size_t>(inner - k);
    Tail<float> x_tail;
    Tail<typename Weights::Element> w_tail;
    for (int r = 0; r < kRows; ++r) {
      const Vector row = hn::LoadU(tag, x_tail.fill(x + r * x_stride + k, rest));
      for (int n = 0; n < kOutputs; ++n) {
        const Vector weight = Weights::load(w_tail.fill(w + n * inner + k, rest));
        sums[r][n] = hn::MulAdd(row, weight, sums[r][n]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kOutputs; ++n) {
      y[r * y_stride + n] = hn::GetLane(hn::SumOfLanes(tag, sums[r][n]));
    }
  }
}

// All rows against outputs 0..kOutputs-1 of w.
template <class Weights, int kRows, int kOutputs>
HWY_INLINE void multiply_outputs(const float* x, std::int64_t x_stride,
                                 const typename Weights::Element* w, std::int64_t inner,
                                 std::int64_t outputs, float* y, std::int64_t y_stride) {
  std::int64_t n = 0;
  for (; n + kOutputs <= outputs; n += kOutputs) {
    multiply_block<Weights, kRows, kOutputs>(x, x_stride, w + n * inner, inner, y + n, y_stride);
  }
  for (; n < outputs; ++n) {
    multiply_block<Weights, kRows, 1>(x, x_stride, w + n * inner, inner, y + n, y_stride);
  }
}

// Sixteen vector registers hold 12 accumulators and their operands, thirty-two hold 24.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3;
constexpr int kOutputs1 = 8;
constexpr int kOutputs2 = kManyRegisters ? 8 : 6;
constexpr int kOutputs3 = kManyRegisters ? 8 : 4;
constexpr int kOutputs4 = kManyRegisters ? 6 : 3;
constexpr std::int64_t kTileBytes = 96 * 1024;

template <class Weights>
void multiply_typed(const float* x, std::int64_t x_stride, std::int64_t rows,
                    const typename Weights::Element* weights, std::int64_t inner,
                    std::int64_t first, std::int64_t last, float* y, std::int64_t y_stride) {
  // A multiple of all the numbers of outputs above.
  const std::int64_t row_bytes = inner * static_cast<std::int64_t>(sizeof(*weights));
  const std::int64_t tile =
      std::max<std::int64_t>(kTileBytes / std::max<std::int64_t>(row_bytes, 1) / 24, 1) * 24;
  for (std::int64_t begin = first; begin < last; begin += tile) {
    const std::int64_t outputs = std::min(tile, last - begin);
    const typename Weights::Element* w = weights + begin * inner;
    std::int64_t r = 0;
    for (; r + kBlockRows <= rows; r += kBlockRows) {
      multiply_outputs<Weights, kBlockRows, kOutputs4>(x + r * x_stride, x_stride, w, inner,
                                                       outputs, y + r * y_stride + begin, y_stride);
    }
    const float* x_rest = x + r * x_stride;
    float* y_rest = y + r * y_stride + begin;
    if (rows - r == 3) {
      multiply_outputs<Weights, 3, kOutputs3>(x_rest, x_stride, w, inner, outputs, y_rest,
                                              y_stride);
    } else if (rows - r == 2) {
      multiply_outputs<Weights, 2, kOutputs2>(x_rest, x_stride, w, inner, outputs, y_rest,
                                              y_stride);
    } else if (rows - r == 1) {
      multiply_outputs<Weights, 1, kOutputs1>(x_rest, x_stride, w, inner, outputs, y_rest,
                                              y_stride);
    }
  }
}

void multiply_rows(const float* x, std::int64_t x_stride, std::int64_t rows, const void* weights,
                   WeightType type, std::int64_t inner, std::int64_t first, std::int64_t last,
                   float* y, std::int64_t y_stride) {
  switch (type) {
    case WeightType::kBf16:
      multiply_typed<Bf16Weights>(x, x_stride, rows, static_cast<const std::uint16_t*>(weights),
                                  inner, first, last, y, y_stride);
      break;
    case WeightType::kF16:
      multiply_typed<F16Weights>(x, x_stride, rows, static_cast<const std::uint16_t*>(weights),
                                 inner, first, last, y, y_stride);
      break;
    case WeightType::kF32:
      multiply_typed<F32Weights>(x, x_stride, rows, static_cast<const float*>(weights), inner,
                                 first, last, y, y_stride);
      break;
  }
}

template <class Weights>
void widen_typed(const typename Weights::Element* from, std::int64_t count, float* values) {
  const FloatTag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  std::int64_t k = 0;
  for (; k + lanes <= count; k += lanes) hn::StoreU(Weights::load(from + k), tag, values + k);
  if (k < count) {
    Tail<typename Weights::Element> tail;
    HWY_ALIGN float wide[hn::MaxLanes(tag)];
    const std::size_t rest = static_cast<std::size_t>(count - k);
    hn::StoreU(Weights::load(tail.fill(from + k, rest)), tag, wide);
    std::memcpy(values + k, wide, rest * sizeof(float));
  }
}

void widen_row(const void* weights, WeightType type, std::int64_t row, std::int64_t inner,
               float* values) {
  switch (type) {
    case WeightType::kBf16:
      widen_typed<Bf16Weights>(static_cast<const std::uint16_t*>(weights) + row * inner, inner,
                               values);
      break;
    case WeightType::kF16:
      widen_typed<F16Weights>(static_cast<const std::uint16_t*>(weights) + row * inner, inner,
                              values);
      break;
    case WeightType::kF32:
      std::memcpy(values, static_cast<const float*>(weights) + row * inner,
                  static_cast<std::size_t>(inner) * sizeof(float));
      break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace leapquant::runtime::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::runtime::kernels {

HWY_EXPORT(multiply_rows);
HWY_EXPORT(widen_row);

void multiply_rows(const float* x, std::int64_t x_stride, std::int64_t rows, const void* weights,
                   WeightType type, std::int64_t inner, std::int64_t first, std::int64_t last,
                   float* y, std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)
  (x, x_stride, rows, weights, type, inner, first, last, y, y_stride);
}

void widen_row(const void* weights, WeightType type, std::int64_t row, std::int64_t inner,
               float* values) {
  HWY_DYNAMIC_DISPATCH(widen_row)(weights, type, row, inner, values);
}

}  // namespace leapquant::runtime::kernels
#endif
