// SPDX-License-Identifier: Apache-2.0
//
// The residual codec: the same bytes on every target. Nothing here may contract a product and a sum,
// divide by multiplying, or add in another order.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_RESIDUAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_RESIDUAL_INL_H_
#undef LEAPQUANT_CPU_RESIDUAL_INL_H_
#else
#define LEAPQUANT_CPU_RESIDUAL_INL_H_
#endif

#include <cmath>
#include <cstring>

#include "core/layout.h"
#include "core/numeric.h"
#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"
#include "cpu/packing-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// Sums of a residual that telemetry wants; weights are the squares of the smoothing factors.
struct ResidualError {
  double squared = 0.0;  // |R - decoded R|^2 times scale^2
};

// Lanes 0..15 hold sums over j mod 16; combines them pairwise: 8, 4, 2, 1.
inline float combine_sixteen(float* lane) {
  for (int32_t step = 8; step >= 1; step /= 2) {
    for (int32_t l = 0; l < step; ++l) lane[l] += lane[l + step];
  }
  return lane[0];
}

// sqrt of the mean magnitude of a row [stride].
inline float row_magnitude(const float* row, int32_t v_dim, int32_t stride) {
  const FloatTag d;
  constexpr int32_t kParts = 16 / kLanes;
  FloatVec sum[kParts];
  for (int32_t p = 0; p < kParts; ++p) sum[p] = hn::Zero(d);
  for (int32_t j = 0; j < stride; j += 16) {
    for (int32_t p = 0; p < kParts; ++p) {
      sum[p] = hn::Add(sum[p], hn::Abs(hn::Load(d, row + j + p * kLanes)));
    }
  }
  alignas(64) float lane[16];
  for (int32_t p = 0; p < kParts; ++p) hn::Store(sum[p], d, lane + p * kLanes);
  return std::sqrt(combine_sixteen(lane) / static_cast<float>(v_dim));
}

// Smoothing factors from row magnitudes c [K], in place, written as the format stores them.
inline uint32_t encode_smoothing(const BoundaryLayout& layout, float* c, std::byte* boundary) {
  const int32_t k_dim = layout.k_dim;
  if (layout.format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
    float largest = 0.0f;
    for (int32_t i = 0; i < k_dim; ++i) largest = largest < c[i] ? c[i] : largest;
    const float least = 1e-6f * largest > 1e-12f ? 1e-6f * largest : 1e-12f;
    for (int32_t i = 0; i < k_dim; ++i) c[i] = c[i] < least ? least : c[i];
    std::memcpy(boundary + layout.smoothing, c, static_cast<size_t>(k_dim) * sizeof(float));
    return 0;
  }
  uint32_t flags = 0;
  const Log8Table& table = log8_table();
  for (int32_t i = 0; i < k_dim; ++i) {
    const uint8_t byte = float_to_log8(c[i]);
    if (byte == 255 && c[i] > table.value[255] * 1.05f) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
    boundary[layout.smoothing + i] = std::byte{byte};
    c[i] = table.value[byte];
  }
  return flags;
}

// From column magnitudes `largest` [stride] the stored value scales; inverse [stride] gets Q / B and
// step [stride] B / Q, both 0 for a zero column.
inline uint32_t encode_value_scales(const BoundaryLayout& layout, const float* largest,
                                    float* inverse, float* step, std::byte* boundary) {
  const FloatTag d;
  const int32_t v_dim = layout.v_dim;
  const int32_t stride = padded(v_dim);
  const auto q = static_cast<float>(layout.q_max);
  const bool plain = layout.scale_steps == q;
  const float ratio = plain ? 1.0f : q / layout.scale_steps;
  const bool fp16 = layout.format.value_scale_type == LEAPQUANT_FP16;
  uint32_t flags = 0;
  alignas(64) float scale[256];
  for (int32_t j = 0; j < stride; j += kLanes) {
    const auto x = hn::Load(d, largest + j);
    const auto b = plain ? x : hn::Mul(x, hn::Set(d, ratio));
    hn::Store(hn::IfThenElseZero(hn::Ge(x, hn::Set(d, 1e-30f)), b), d, scale + j);
  }
  if (fp16) {
    bool saturated = false;
    alignas(64) uint16_t half[256];
    for (int32_t j = 0; j < v_dim; ++j) {
      half[j] = scale[j] == 0.0f ? uint16_t{0} : float_to_fp16_up(scale[j], &saturated);
      scale[j] = fp16_to_float(half[j]);
    }
    if (saturated) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
    std::memcpy(boundary + layout.value_scale, half, static_cast<size_t>(v_dim) * 2);
  } else {
    std::memcpy(boundary + layout.value_scale, scale, static_cast<size_t>(v_dim) * 4);
  }
  for (int32_t j = 0; j < stride; j += kLanes) {
    const auto b = hn::Load(d, scale + j);
    const auto alive = hn::Ne(b, hn::Zero(d));
    hn::Store(hn::IfThenElseZero(alive, hn::Div(hn::Set(d, q), b)), d, inverse + j);
    hn::Store(hn::Div(b, hn::Set(d, q)), d, step + j);
  }
  return flags;
}

// Encodes residual [K][stride] (consumed). c [padded(K)] holds the rows' magnitudes when the format
// smooths. columns [4][padded(V)] is scratch. error may be null; `scale` keeps its squares in range.
inline uint32_t encode_residual_rows(const BoundaryLayout& layout, float* c, float* residual,
                                     float* columns, float scale, std::byte* boundary,
                                     ResidualError* error) {
  const FloatTag d;
  const int32_t k_dim = layout.k_dim;
  const int32_t v_dim = layout.v_dim;
  const int32_t stride = padded(v_dim);
  const bool smooth = layout.format.smoothing != LEAPQUANT_SMOOTHING_NONE;
  uint32_t flags = smooth ? encode_smoothing(layout, c, boundary) : 0u;

  float* largest = columns;
  float* inverse = columns + stride;
  float* step = columns + 2 * stride;
  for (int32_t j = 0; j < stride; j += kLanes) hn::Store(hn::Zero(d), d, largest + j);
  for (int32_t i = 0; i < k_dim; ++i) {
    float* row = residual + static_cast<int64_t>(i) * stride;
    const auto factor = hn::Set(d, smooth ? c[i] : 1.0f);
    for (int32_t j = 0; j < stride; j += kLanes) {
      auto x = hn::Load(d, row + j);
      if (smooth) {
        x = hn::Div(x, factor);
        hn::Store(x, d, row + j);
      }
      const auto magnitude = hn::Abs(x);
      const auto old = hn::Load(d, largest + j);
      // A comparison with NaN is false: a NaN never becomes a scale.
      hn::Store(hn::IfThenElse(hn::Gt(magnitude, old), magnitude, old), d, largest + j);
    }
  }
  flags |= encode_value_scales(layout, largest, inverse, step, boundary);

  const bool half = layout.format.levels == LEAPQUANT_HALF_INTEGERS;
  const auto q = static_cast<float>(layout.q_max);
  const auto offset = hn::Set(d, half ? 0.5f : 0.0f);
  const auto outer = hn::Set(d, q + 1.0f);
  const auto low = hn::Set(d, -q);
  const auto high = hn::Set(d, half ? q - 1.0f : q);
  auto is_number = all_lanes();
  alignas(64) int8_t codes[256];
  double squared = 0.0;
  auto* payload = reinterpret_cast<uint8_t*>(boundary + layout.payload);
  for (int32_t i = 0; i < k_dim; ++i) {
    const float* row = residual + static_cast<int64_t>(i) * stride;
    auto sum = hn::Zero(d);
    const float weight = (smooth ? c[i] : 1.0f) * scale;
    for (int32_t j = 0; j < stride; j += kLanes) {
      const auto x = hn::Load(d, row + j);
      auto y = hn::Mul(x, hn::Load(d, inverse + j));
      const auto number = hn::Eq(y, y);
      is_number = hn::And(is_number, number);
      y = hn::IfThenElseZero(number, y);
      y = hn::Min(hn::Max(y, hn::Neg(outer)), outer);
      if (half) y = hn::Sub(y, offset);
      // The bounds are integers, so bounding before rounding gives what bounding after it would.
      const auto code = hn::NearestInt(hn::Min(hn::Max(y, low), high));
      hn::StoreU(hn::DemoteTo(ByteTag(), code), ByteTag(), codes + j);
      if (error != nullptr) {
        const auto level = hn::Add(hn::ConvertTo(d, code), offset);
        const auto miss = hn::Mul(hn::NegMulAdd(level, hn::Load(d, step + j), x),
                                  hn::Set(d, weight));
        sum = hn::MulAdd(miss, miss, sum);
      }
    }
    squared += static_cast<double>(sum_of_lanes(sum));
    pack_row(codes, v_dim, layout.format.payload_bits,
             payload + static_cast<int64_t>(i) * layout.row_bytes);
  }
  if (error != nullptr) error->squared = squared;
  if (!hn::AllTrue(d, is_number)) flags |= LEAPQUANT_HEALTH_NON_FINITE;
  return flags;
}

// step [stride] = B / Q and c [padded(K)], as decoding uses them. Zeros past V, ones past K.
inline void decode_scales(const BoundaryLayout& layout, const std::byte* boundary, float* step,
                          float* c) {
  const FloatTag d;
  const int32_t v_dim = layout.v_dim;
  const int32_t stride = padded(v_dim);
  const auto q = hn::Set(d, static_cast<float>(layout.q_max));
  alignas(64) uint16_t half[256] = {0};
  if (layout.format.value_scale_type == LEAPQUANT_FP16) {
    std::memcpy(half, boundary + layout.value_scale, static_cast<size_t>(v_dim) * 2);
    for (int32_t j = 0; j < stride; j += kLanes) {
      hn::Store(hn::Div(load_fp16(half + j), q), d, step + j);
    }
  } else {
    std::memcpy(step, boundary + layout.value_scale, static_cast<size_t>(v_dim) * 4);
    for (int32_t j = v_dim; j < stride; ++j) step[j] = 0.0f;
    for (int32_t j = 0; j < stride; j += kLanes) {
      hn::Store(hn::Div(hn::Load(d, step + j), q), d, step + j);
    }
  }
  const int32_t k_dim = layout.k_dim;
  for (int32_t i = k_dim; i < padded(k_dim); ++i) c[i] = 1.0f;
  switch (layout.format.smoothing) {
    case LEAPQUANT_SMOOTHING_FP32:
      std::memcpy(c, boundary + layout.smoothing, static_cast<size_t>(k_dim) * 4);
      return;
    case LEAPQUANT_SMOOTHING_LOG8: {
      const Log8Table& table = log8_table();
      for (int32_t i = 0; i < k_dim; ++i) {
        c[i] = table.value[std::to_integer<uint8_t>(boundary[layout.smoothing + i])];
      }
      return;
    }
    default:
      for (int32_t i = 0; i < k_dim; ++i) c[i] = 1.0f;
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
