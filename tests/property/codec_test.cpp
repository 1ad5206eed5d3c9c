// SPDX-License-Identifier: Apache-2.0
//
// Laws of the codec that hold for any residual, with RapidCheck choosing the residuals, dims and
// formats.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/layout.h"
#include "core/numeric.h"
#include "core/packing.h"
#include "reference/codec.h"

namespace leapquant {
namespace {

// A residual and the layout that encodes it. Magnitudes spread over sixty binary orders at most, so
// that no FP16 scale saturates unless asked.
struct Encoded {
  BoundaryLayout layout;
  std::vector<float> residual;
  std::vector<std::byte> bytes;
  std::vector<double> decoded;
  uint32_t flags = 0;
};

leapquant_format any_format(bool half_integers_too = true) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  format.payload_bits = *rc::gen::element(8, 6, 4, 3);
  format.levels = half_integers_too ? *rc::gen::element(0, 1) : 0;
  format.value_scale_type = *rc::gen::element<int32_t>(LEAPQUANT_FP32, LEAPQUANT_FP16);
  format.smoothing = *rc::gen::inRange(0, 3);
  return format;
}

BoundaryLayout layout_of(const leapquant_format& format, int32_t k_dim, int32_t v_dim) {
  leapquant_format normalised;
  Sentence sentence;
  RC_ASSERT(normalise_format(format, &normalised, &sentence) == LEAPQUANT_OK);
  return make_boundary_layout(normalised, k_dim, v_dim);
}

std::vector<float> any_residual(int32_t k_dim, int32_t v_dim) {
  const int spread = *rc::gen::inRange(0, 12);
  std::vector<float> residual;
  for (int32_t i = 0; i < k_dim * v_dim; ++i) {
    const int mantissa = *rc::gen::inRange(-1000, 1001);
    const int exponent = *rc::gen::inRange(-spread, spread + 1);
    residual.push_back(std::ldexp(static_cast<float>(mantissa) / 1000.0f, exponent));
  }
  return residual;
}

Encoded encode(const leapquant_format& format, int32_t k_dim, int32_t v_dim,
               std::vector<float> residual) {
  Encoded e;
  e.layout = layout_of(format, k_dim, v_dim);
  e.residual = std::move(residual);
  e.bytes.assign(static_cast<size_t>(e.layout.bytes), std::byte{0});
  e.flags = reference::encode_residual(e.layout, e.residual.data(), e.bytes.data());
  e.decoded.resize(e.residual.size());
  reference::decode_residual(e.layout, e.bytes.data(), e.decoded.data());
  return e;
}

Encoded any_encoded() {
  const int32_t k_dim = 4 * *rc::gen::inRange(1, 6);
  const int32_t v_dim = 4 * *rc::gen::inRange(1, 9);
  return encode(any_format(), k_dim, v_dim, any_residual(k_dim, v_dim));
}

double value_scale(const Encoded& e, int32_t column) {
  if (e.layout.format.value_scale_type == LEAPQUANT_FP16) {
    uint16_t half;
    std::memcpy(&half, e.bytes.data() + e.layout.value_scale + 2 * column, 2);
    return fp16_to_float(half);
  }
  float scale;
  std::memcpy(&scale, e.bytes.data() + e.layout.value_scale + 4 * column, 4);
  return scale;
}

double smoothing(const Encoded& e, int32_t row) {
  if (e.layout.format.smoothing == LEAPQUANT_SMOOTHING_NONE) return 1.0;
  if (e.layout.format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
    return log8_table()
        .value[static_cast<uint8_t>(e.bytes[static_cast<size_t>(e.layout.smoothing + row)])];
  }
  float c;
  std::memcpy(&c, e.bytes.data() + e.layout.smoothing + 4 * row, 4);
  return c;
}

// Half a step, c B / (2 Q), is the largest error of an entry: 4-bit half-integers clip their
// largest magnitudes at half a step beyond the last level, within a quarter of a step by the
// default ratio (7.75 of 8), so they keep the bound too. FP32 divisions and products round four
// times: 2^-22 of the entry. Half-integers' half level is taken off in FP32: an entry within 2^-25
// of a step of zero is lost in that, and may get the level on zero's other side.
RC_GTEST_PROP(CodecProperty, ErrorsAreAtMostHalfAStep, ()) {
  const Encoded e = any_encoded();
  RC_ASSERT(e.flags == 0u);
  for (int32_t i = 0; i < e.layout.k_dim; ++i) {
    for (int32_t j = 0; j < e.layout.v_dim; ++j) {
      const auto entry = static_cast<size_t>(i * e.layout.v_dim + j);
      const double step = smoothing(e, i) * value_scale(e, j) / e.layout.q_max;
      const double x = static_cast<double>(e.residual[entry]);
      const double lost = e.layout.format.levels == LEAPQUANT_HALF_INTEGERS ? 0x1p-25 : 0.0;
      RC_ASSERT(std::fabs(e.decoded[entry] - x) <=
                (0.5 + lost) * step + std::fabs(x) * 0x1p-22 + 1e-36);
    }
  }
}

// The entries that are lost beside half a level, on either side of zero: a level of zero's own side
// or the other, never further.
TEST(CodecProperty, EntriesNextToZeroTakeOneOfTheTwoLevelsThere) {
  for (const int32_t bits : {8, 6, 4, 3}) {
    SCOPED_TRACE(bits);
    leapquant_format format = LEAPQUANT_INIT(leapquant_format);
    format.payload_bits = bits;
    format.levels = LEAPQUANT_HALF_INTEGERS;
    format.value_scale_type = LEAPQUANT_FP32;
    format.smoothing = LEAPQUANT_SMOOTHING_NONE;
    std::vector<float> residual(4 * 4, 1.0f);
    for (int32_t j = 0; j < 4; ++j) {
      residual[static_cast<size_t>(4 + j)] = std::ldexp(-1.0f, -24 - 2 * j - bits);
      residual[static_cast<size_t>(8 + j)] = std::ldexp(1.0f, -24 - 2 * j - bits);
    }
    const Encoded e = encode(format, 4, 4, residual);
    for (size_t entry = 4; entry < 12; ++entry) {
      const double step = value_scale(e, static_cast<int32_t>(entry % 4)) / e.layout.q_max;
      EXPECT_NEAR(std::fabs(e.decoded[entry]), 0.5 * step, 1e-6 * step);
      EXPECT_LE(std::fabs(e.decoded[entry] - static_cast<double>(residual[entry])),
                (0.5 + 0x1p-25) * step);
    }
  }
}

// For given scales, what was decoded is encoded to the same codes: with integers and no smoothing a
// second pass finds the same scales, so the bytes are the same.
RC_GTEST_PROP(CodecProperty, DecodedIntegersEncodeToTheSameBytes, ()) {
  leapquant_format format = any_format(false);
  format.smoothing = LEAPQUANT_SMOOTHING_NONE;
  // An FP32 scale: an FP16 one, rounded up, leaves the largest entry below it, and the second pass
  // would see a smaller scale.
  format.value_scale_type = LEAPQUANT_FP32;
  const int32_t k_dim = 4 * *rc::gen::inRange(1, 6);
  const int32_t v_dim = 4 * *rc::gen::inRange(1, 9);
  const Encoded first = encode(format, k_dim, v_dim, any_residual(k_dim, v_dim));
  const std::vector<float> again(first.decoded.begin(), first.decoded.end());
  const Encoded second = encode(format, k_dim, v_dim, again);
  RC_ASSERT(std::equal(first.bytes.begin(), first.bytes.begin() + first.layout.value_scale,
                       second.bytes.begin()));
}

// A power of two on the whole residual changes scales only, never a code (FP32 scales, no floor in
// reach).
RC_GTEST_PROP(CodecProperty, PowersOfFourMoveNoCode, ()) {
  leapquant_format format = any_format();
  format.value_scale_type = LEAPQUANT_FP32;
  if (format.smoothing == LEAPQUANT_SMOOTHING_LOG8) format.smoothing = LEAPQUANT_SMOOTHING_FP32;
  const int32_t k_dim = 4 * *rc::gen::inRange(1, 6);
  const int32_t v_dim = 4 * *rc::gen::inRange(1, 9);
  const std::vector<float> residual = any_residual(k_dim, v_dim);
  // Smoothing takes a square root: a power of four becomes an exact power of two in c.
  const int exponent = 2 * *rc::gen::inRange(-5, 6);
  std::vector<float> scaled = residual;
  for (float& x : scaled) x = std::ldexp(x, exponent);
  const Encoded a = encode(format, k_dim, v_dim, residual);
  const Encoded b = encode(format, k_dim, v_dim, scaled);
  RC_ASSERT(std::equal(a.bytes.begin(), a.bytes.begin() + a.layout.value_scale, b.bytes.begin()));
}

// Columns are independent without smoothing: changing one leaves the others' codes and scales.
RC_GTEST_PROP(CodecProperty, ColumnsAreIndependentWithoutSmoothing, ()) {
  leapquant_format format = any_format();
  format.smoothing = LEAPQUANT_SMOOTHING_NONE;
  const int32_t k_dim = 4 * *rc::gen::inRange(1, 6);
  const int32_t v_dim = 4 * *rc::gen::inRange(2, 9);
  const std::vector<float> residual = any_residual(k_dim, v_dim);
  const int32_t column = *rc::gen::inRange(0, v_dim);
  std::vector<float> changed = residual;
  for (int32_t i = 0; i < k_dim; ++i) changed[static_cast<size_t>(i * v_dim + column)] *= 13.0f;
  const Encoded a = encode(format, k_dim, v_dim, residual);
  const Encoded b = encode(format, k_dim, v_dim, changed);
  for (size_t entry = 0; entry < residual.size(); ++entry) {
    if (static_cast<int32_t>(entry) % v_dim == column) continue;
    RC_ASSERT(a.decoded[entry] == b.decoded[entry]);
  }
}

RC_GTEST_PROP(CodecProperty, PackedCodesRoundTrip, ()) {
  const int32_t bits = *rc::gen::element(8, 6, 4, 3);
  const int32_t half_range = 1 << (bits - 1);
  const auto codes = *rc::gen::container<std::vector<int8_t>>(
      rc::gen::cast<int8_t>(rc::gen::inRange(-half_range, half_range)));
  const auto count = static_cast<int32_t>(codes.size());
  std::vector<uint8_t> packed(static_cast<size_t>(packed_bytes(count, bits)) + 1);
  pack_codes(codes.data(), count, bits, packed.data());
  std::vector<int8_t> back(codes.size());
  unpack_codes(packed.data(), count, bits, back.data());
  RC_ASSERT(back == codes);
}

RC_GTEST_PROP(CodecProperty, NarrowFloatsAreOrdered, (float a, float b)) {
  const float low = std::min(a, b);
  const float high = std::max(a, b);
  bool saturated = false;
  RC_ASSERT(fp16_to_float(float_to_fp16_saturated(low, &saturated)) <=
            fp16_to_float(float_to_fp16_saturated(high, &saturated)));
  RC_ASSERT(bf16_to_float(float_to_bf16(low)) <= bf16_to_float(float_to_bf16(high)));
  RC_ASSERT(float_to_log8(std::fabs(low)) <= float_to_log8(std::fabs(low) + std::fabs(high)));
}

}  // namespace
}  // namespace leapquant
