// SPDX-License-Identifier: Apache-2.0
//
// The residual codec: the same bytes on every target. Nothing here may contract a product and a
// sum, divide by multiplying, or add in another order.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_RESIDUAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_RESIDUAL_INL_H_
#undef LEAPQUANT_CPU_RESIDUAL_INL_H_
#else
#define LEAPQUANT_CPU_RESIDUAL_INL_H_
#endif

#include <bit>
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

// What is collected while a residual is walked through: per lane.
struct ResidualSums {
  static constexpr int32_t kParts = 16 / kLanes;  // independent sums: one would be all latency
  FloatVec largest[kParts];
  FloatVec squared[kParts];

  ResidualSums() {
    for (int32_t p = 0; p < kParts; ++p) largest[p] = squared[p] = hn::Zero(FloatTag());
  }
  float most() const {
    auto most_of_all = largest[0];
    for (int32_t p = 1; p < kParts; ++p) most_of_all = hn::Max(most_of_all, largest[p]);
    return max_of_lanes(most_of_all);
  }
  // |row|^2 of the rows since the last call.
  double take_squared() {
    auto sum = squared[0];
    for (int32_t p = 1; p < kParts; ++p) sum = hn::Add(sum, squared[p]);
    for (int32_t p = 0; p < kParts; ++p) squared[p] = hn::Zero(FloatTag());
    return static_cast<double>(sum_of_lanes(sum));
  }
};

// Sums of |x| over j mod 16 of a row [stride], added pairwise down to four lanes: 8 apart, then 4
// apart. Adds the row to the sums.
inline hn::Vec<hn::FixedTag<float, 4>> row_lanes(const float* row, int32_t stride,
                                                 ResidualSums* sums) {
  const FloatTag d;
  constexpr int32_t kParts = ResidualSums::kParts;
  FloatVec sum[kParts];
  for (int32_t p = 0; p < kParts; ++p) sum[p] = hn::Zero(d);
  ResidualSums all = *sums;
  for (int32_t j = 0; j < stride; j += 16) {
    HWY_UNROLL(4)
    for (int32_t p = 0; p < kParts; ++p) {
      const auto x = hn::Load(d, row + j + p * kLanes);
      const auto magnitude = hn::Abs(x);
      sum[p] = hn::Add(sum[p], magnitude);
      all.largest[p] = hn::Max(all.largest[p], magnitude);
      all.squared[p] = hn::MulAdd(x, x, all.squared[p]);
    }
  }
  *sums = all;
  for (int32_t half = kParts / 2; half >= 1; half /= 2) {
    for (int32_t p = 0; p < half; ++p) sum[p] = hn::Add(sum[p], sum[p + half]);
  }
  return sum_to_block(d, sum[0]);
}

// magnitudes[0..3] = sqrt of the mean magnitude of four rows; the last two steps add lanes 2 apart
// and 1 apart, all four rows at once.
inline void row_magnitudes(const float* rows, int32_t v_dim, int32_t stride, ResidualSums* sums,
                           float* magnitudes) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> wide;
  const auto a = row_lanes(rows, stride, sums);
  const auto b = row_lanes(rows + stride, stride, sums);
  const auto c = row_lanes(rows + 2 * stride, stride, sums);
  const auto e = row_lanes(rows + 3 * stride, stride, sums);
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(wide, hn::BitCast(wide, ab), hn::BitCast(wide, ce));
  const auto high = hn::InterleaveUpper(wide, hn::BitCast(wide, ab), hn::BitCast(wide, ce));
  const auto sum = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  // A sum past the largest number counts as that; a NaN stays one.
  const auto most = hn::Set(d, kLargestFloat);
  const auto bounded = hn::IfThenElse(hn::Gt(sum, most), most, sum);
  hn::StoreU(hn::Sqrt(hn::Div(bounded, hn::Set(d, static_cast<float>(v_dim)))), d, magnitudes);
}

// float_to_log8 without its search: the exponent gives the octave, and thresholds of an octave are
// those of another one scaled exactly.
inline uint8_t encode_log8(const Log8Table& table, float value) {
  if (!(value >= table.threshold[1])) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int32_t octave = static_cast<int32_t>(bits >> 23) - 127 + 16;
  if (octave >= 32) return 255;
  const auto mantissa = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u);
  int32_t steps = 0;
  // Octave 16 is that of mantissas; its last threshold belongs to the next octave's first step.
  for (int32_t i = 1; i <= 8; ++i) steps += table.threshold[128 + i] <= mantissa ? 1 : 0;
  const int32_t byte = 8 * octave + steps;
  return static_cast<uint8_t>(byte < 0 ? 0 : byte > 255 ? 255 : byte);
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
    const uint8_t byte = encode_log8(table, c[i]);
    if (byte == 255 && c[i] > table.value[255] * 1.05f) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
    boundary[layout.smoothing + i] = std::byte{byte};
    c[i] = table.value[byte];
  }
  return flags;
}

// From column magnitudes `largest` [stride] the stored value scales; inverse [stride] gets Q / B
// and step [stride] B / Q, both 0 for a zero column.
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
    alignas(64) uint16_t half[256];
    const auto limit = hn::Set(d, kFp16Max);
    const HalfTag dh;
    auto inside = all_lanes();
    for (int32_t j = 0; j < stride; j += kLanes) {  // float_to_fp16_up, a vector at a time
      const auto b = hn::Load(d, scale + j);
      inside = hn::And(inside, hn::Le(b, limit));
      const auto bounded = hn::Min(b, limit);
      store_fp16(bounded, half + j);
      // One step up where rounding went down: masks are -1 as integers.
      const auto below = hn::VecFromMask(
          Int32Tag(), hn::RebindMask(Int32Tag(), hn::Lt(load_fp16(half + j), bounded)));
      const auto stored = hn::PromoteTo(Int32Tag(), hn::LoadU(dh, half + j));
      hn::StoreU(hn::DemoteTo(dh, hn::Sub(stored, below)), dh, half + j);
      hn::Store(load_fp16(half + j), d, scale + j);
    }
    if (!hn::AllTrue(d, inside)) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
    std::memcpy(boundary + layout.value_scale, half, static_cast<size_t>(v_dim) * 2);
  } else {
    const auto most = hn::Set(d, kLargestFloat);
    auto inside = all_lanes();
    for (int32_t j = 0; j < stride; j += kLanes) {
      const auto b = hn::Load(d, scale + j);
      inside = hn::And(inside, hn::Le(b, most));
      hn::Store(hn::Min(b, most), d, scale + j);
    }
    if (!hn::AllTrue(d, inside)) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
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

// The larger of a magnitude and the largest so far; a NaN never becomes the largest.
HWY_INLINE FloatVec larger(FloatVec magnitude, FloatVec largest) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  return hn::Max(magnitude, largest);  // the second operand where one of them is NaN
#else
  return hn::IfThenElse(hn::Gt(magnitude, largest), magnitude, largest);
#endif
}

// residual <- residual / c row by row, and the columns' largest magnitudes [stride].
template <bool kSmooth>
HWY_INLINE void smooth_rows(const float* c, int32_t k_dim, int32_t stride, float* residual,
                            float* largest) {
  const FloatTag d;
  constexpr int32_t kVectors = kLanes >= 16 ? 1 : 2;
  for (int32_t j = 0; j < stride; j += kVectors * kLanes) {
    FloatVec most[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) most[v] = hn::Zero(d);
    float* at = residual + j;
    for (int32_t i = 0; i < k_dim; ++i) {
      for (int32_t v = 0; v < kVectors; ++v) {
        auto x = hn::Load(d, at + v * kLanes);
        if constexpr (kSmooth) {
          x = hn::Div(x, hn::Set(d, c[i]));
          hn::Store(x, d, at + v * kLanes);
        }
        most[v] = larger(hn::Abs(x), most[v]);
      }
      at += stride;
    }
    for (int32_t v = 0; v < kVectors; ++v) hn::Store(most[v], d, largest + j + v * kLanes);
  }
}

// Sixteen codes to int8, in order.
HWY_INLINE void store_codes(const hn::Vec<Int32Tag>* code, int8_t* to) {
#if HWY_TARGET == HWY_AVX2
  const auto words = _mm256_packs_epi32(code[0].raw, code[1].raw);  // 0-3 8-11 | 4-7 12-15
  const auto bytes = _mm_packs_epi16(_mm256_castsi256_si128(words),
                                     _mm256_extracti128_si256(words, 1));  // by fours: 0 2 1 3
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_shuffle_epi32(bytes, _MM_SHUFFLE(3, 1, 2, 0)));
#else
  for (int32_t v = 0; v < 16 / kLanes; ++v) {
    hn::StoreU(hn::DemoteTo(ByteTag(), code[v]), ByteTag(), to + v * kLanes);
  }
#endif
}

// Codes of one row x [stride] of the smoothed residual; returns the sum of squared misses.
// kCareful: NaN gives code 0 and clears *is_number.
template <bool kHalf, bool kCareful>
HWY_INLINE float quantise_row(const float* row, int32_t stride, const float* inverse,
                              const float* step, float q, int8_t* codes, FloatMask* is_number) {
  const FloatTag d;
  const auto low = hn::Set(d, -q);
  const auto high = hn::Set(d, kHalf ? q - 1.0f : q);
  const auto offset = hn::Set(d, 0.5f);
  constexpr int32_t kParts = 16 / kLanes;
  FloatVec sum[kParts];
  for (int32_t p = 0; p < kParts; ++p) sum[p] = hn::Zero(d);
  for (int32_t j = 0; j < stride; j += 16) {
    hn::Vec<Int32Tag> code[kParts];
    HWY_UNROLL(4)
    for (int32_t p = 0; p < kParts; ++p) {
      const int32_t at = j + p * kLanes;
      const auto x = hn::Load(d, row + at);
      auto y = hn::Mul(x, hn::Load(d, inverse + at));
      if constexpr (kCareful) {
        const auto number = hn::Eq(y, y);
        *is_number = hn::And(*is_number, number);
        y = hn::IfThenElseZero(number, y);
        const auto outer = hn::Set(d, q + 1.0f);  // an infinity must not meet the 0.5
        y = hn::Min(hn::Max(y, hn::Neg(outer)), outer);
      }
      if constexpr (kHalf) y = hn::Sub(y, offset);
      // The bounds are integers, so bounding before rounding gives what bounding after it would.
      code[p] = nearest_int(hn::Min(hn::Max(y, low), high));
      auto level = hn::ConvertTo(d, code[p]);
      if constexpr (kHalf) level = hn::Add(level, offset);
      const auto miss = hn::NegMulAdd(level, hn::Load(d, step + at), x);
      sum[p] = hn::MulAdd(miss, miss, sum[p]);
    }
    store_codes(code, codes + j);
  }
  for (int32_t p = 1; p < kParts; ++p) sum[0] = hn::Add(sum[0], sum[p]);
  return sum_of_lanes(sum[0]);
}

// Encodes residual [K][stride] (consumed). c [padded(K)] holds the rows' magnitudes when the format
// smooths. columns [4][padded(V)] is scratch. error may be null; `scale` keeps its squares in
// range.
inline uint32_t encode_residual_rows(const BoundaryLayout& layout, float* c, float* residual,
                                     float* columns, float scale, std::byte* boundary,
                                     ResidualError* error) {
  const FloatTag d;
  const int32_t k_dim = layout.k_dim;
  const int32_t v_dim = layout.v_dim;
  const int32_t stride = padded(v_dim);
  const bool smooth = layout.format.smoothing != LEAPQUANT_SMOOTHING_NONE;
  // Magnitudes that are finite have finite entries under them: then no code can be NaN.
  bool careful = !smooth;
  for (int32_t i = 0; i < k_dim && smooth; ++i) careful = careful || !std::isfinite(c[i]);
  uint32_t flags = smooth ? encode_smoothing(layout, c, boundary) : 0u;

  float* largest = columns;
  float* inverse = columns + stride;
  float* step = columns + 2 * stride;
  if (smooth) {
    smooth_rows<true>(c, k_dim, stride, residual, largest);
  } else {
    smooth_rows<false>(c, k_dim, stride, residual, largest);
  }
  for (int32_t j = 0; j < v_dim; ++j) careful = careful || !std::isfinite(largest[j]);
  flags |= encode_value_scales(layout, largest, inverse, step, boundary);

  const bool half = layout.format.levels == LEAPQUANT_HALF_INTEGERS;
  const auto q = static_cast<float>(layout.q_max);
  auto is_number = all_lanes();
  alignas(64) int8_t codes[256];
  double squared = 0.0;
  auto* payload = reinterpret_cast<uint8_t*>(boundary + layout.payload);
  for (int32_t i = 0; i < k_dim; ++i) {
    const float* row = residual + static_cast<int64_t>(i) * stride;
    float sum;
    if (careful) {
      sum = half ? quantise_row<true, true>(row, stride, inverse, step, q, codes, &is_number)
                 : quantise_row<false, true>(row, stride, inverse, step, q, codes, &is_number);
    } else {
      sum = half ? quantise_row<true, false>(row, stride, inverse, step, q, codes, &is_number)
                 : quantise_row<false, false>(row, stride, inverse, step, q, codes, &is_number);
    }
    const double weight = static_cast<double>(smooth ? c[i] : 1.0f) * scale;
    // A square past the FP32 range comes from a scale that saturated: the row is lost.
    const double missed = std::isfinite(sum) ? static_cast<double>(sum) : 3.4e38;
    squared += missed * weight * weight;
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
  if (layout.format.value_scale_type == LEAPQUANT_FP16) {
    alignas(64) uint16_t spare[256];
    const uint16_t* half =
        padded_row(reinterpret_cast<const uint16_t*>(boundary + layout.value_scale), v_dim, spare);
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
