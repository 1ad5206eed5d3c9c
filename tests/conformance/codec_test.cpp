// SPDX-License-Identifier: Apache-2.0
//
// The residual codec is the same bits everywhere. A format without compensators makes the imported
// matrix itself the residual, so import shows every backend's codec; the reference's is the
// measure, and pinned hashes keep the reference where it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/session.h"
#include "core/pool.h"
#include "reference/codec.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Codec);

struct Dims {
  int32_t k, v;
};

// Every payload, level, scale, smoothing and some scale ratios.
std::vector<leapquant_format> codec_formats() {
  std::vector<leapquant_format> list;
  for (int32_t bits : {8, 6, 4, 3}) {
    for (int32_t levels : {LEAPQUANT_INTEGERS, LEAPQUANT_HALF_INTEGERS}) {
      for (int32_t scale : {LEAPQUANT_FP32, LEAPQUANT_FP16}) {
        for (int32_t smoothing :
             {LEAPQUANT_SMOOTHING_NONE, LEAPQUANT_SMOOTHING_FP32, LEAPQUANT_SMOOTHING_LOG8}) {
          leapquant_format format = LEAPQUANT_INIT(leapquant_format);
          format.payload_bits = bits;
          format.levels = levels;
          format.value_scale_type = scale;
          format.smoothing = smoothing;
          list.push_back(format);
        }
      }
    }
  }
  leapquant_format clipped = list[0];
  clipped.scale_steps = 140.0f;  // the largest magnitude beyond the last code: it is clipped
  list.push_back(clipped);
  clipped.payload_bits = 4;
  clipped.levels = LEAPQUANT_HALF_INTEGERS;
  clipped.scale_steps = 7.1f;
  list.push_back(clipped);
  return list;
}

constexpr const char* kKinds[] = {"normal",  "zero",      "zero_lines", "tiny_rows",
                                  "large",   "subnormal", "very_large", "greatest",
                                  "hot_row", "ties",      "one_row"};

std::vector<float> matrix(const std::string& kind, int32_t k_dim, int32_t v_dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> m(static_cast<size_t>(k_dim * v_dim));
  for (float& x : m) x = normal(random);
  const auto at = [&](int32_t i, int32_t j) -> float& {
    return m[static_cast<size_t>(i * v_dim + j)];
  };
  const auto scale = [&](float factor) {
    for (float& x : m) x *= factor;
  };
  if (kind == "zero") scale(0.0f);
  if (kind == "large") scale(1e30f);
  if (kind == "very_large") scale(3e35f);
  if (kind == "greatest") scale(6e37f);  // entries to 3e38, whose sums over a row overflow
  if (kind == "subnormal") scale(1e-40f);
  for (int32_t j = 0; j < v_dim; ++j) {
    if (kind == "zero_lines") at(1, j) = 0.0f;
    if (kind == "tiny_rows") {
      at(0, j) *= 1e-30f;
      at(2, j) *= 1e-6f;
    }
    if (kind == "hot_row") at(k_dim - 1, j) *= 300.0f;
  }
  for (int32_t i = 0; i < k_dim; ++i) {
    if (kind == "zero_lines") at(i, v_dim - 1) = at(i, 0) = 0.0f;
    for (int32_t j = 0; j < v_dim && kind == "one_row"; ++j) {
      if (i != 1) at(i, j) = 0.0f;
    }
    for (int32_t j = 0; j < v_dim && kind == "ties"; ++j) {
      // Halves of steps: with the largest magnitude Q in each column, codes lie on ties.
      at(i, j) = i == 0 ? 127.0f : 0.5f * static_cast<float>((i * 7 + j * 3) % 250 - 125);
    }
  }
  return m;
}

// What the reference's codec makes of the matrix, with zero padding.
std::vector<std::byte> expected_bytes(const Layout& layout, const std::vector<float>& m,
                                      uint32_t* flags) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.state_bytes), std::byte{0});
  *flags = reference::encode_residual(layout.head(0), m.data(), bytes.data());
  return bytes;
}

TEST_P(Codec, SameBytesForTheSameResidual) {
  uint32_t seed = 100;
  for (const Dims dims : {Dims{128, 128}, {60, 100}, {4, 4}, {256, 32}, {32, 68}}) {
    for (const leapquant_format& format : codec_formats()) {
      const Layout layout =
          make_test_layout(make_shape(1, 1, dims.k, dims.v, LEAPQUANT_DECAY_NONE), format);
      Session session(backend(), layout, 1);
      for (const char* kind : kKinds) {
        const std::vector<float> m = matrix(kind, dims.k, dims.v, ++seed);
        uint32_t flags = 0;
        const std::vector<std::byte> expected = expected_bytes(layout, m, &flags);
        session.import_state(0, 0, m);
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
        const std::string where =
            std::string(kind) + ", " + std::to_string(dims.k) + " x " + std::to_string(dims.v) +
            ", bits " + std::to_string(format.payload_bits) + ", levels " +
            std::to_string(format.levels) + ", scale " + std::to_string(format.value_scale_type) +
            ", smoothing " + std::to_string(format.smoothing);
        ASSERT_TRUE(session.memory().state_bytes(0) == expected) << where;
        ASSERT_EQ(session.memory().health(0)->flags, flags) << where;
      }
    }
  }
}

// Entries near the largest FP32 number: what a format cannot hold is flagged, nothing becomes NaN.
TEST_P(Codec, TheGreatestNumbersStayNumbers) {
  for (const leapquant_format& format : codec_formats()) {
    const leapquant_shape shape = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_NONE);
    Session session(backend(), make_test_layout(shape, format), 1);
    const std::vector<float> m = matrix("greatest", 64, 64, 11);
    session.import_state(0, 0, m);
    const std::vector<double> state = session.state(0, 0, 0);
    double error = 0.0;
    double size = 0.0;
    for (size_t i = 0; i < m.size(); ++i) {
      ASSERT_TRUE(std::isfinite(state[i])) << i;
      error += (state[i] - m[i]) * (state[i] - m[i]);
      size += static_cast<double>(m[i]) * m[i];
    }
    const bool flagged = (session.memory().health(0)->flags &
                          static_cast<uint32_t>(LEAPQUANT_HEALTH_SCALE_SATURATED)) != 0;
    // Three bits lose a quarter of a normal matrix, FP16 and log8 scales all but their range.
    EXPECT_TRUE(flagged || error < 0.1 * size) << std::sqrt(error / size);
  }
}

// FNV-1a of all bytes of a matrix made of integers: nothing that a library function rounds.
uint64_t hash_of(const leapquant_format& format) {
  const Layout layout = make_test_layout(make_shape(1, 1, 60, 100, LEAPQUANT_DECAY_NONE), format);
  std::vector<float> m(60 * 100);
  for (size_t i = 0; i < m.size(); ++i) {
    m[i] = static_cast<float>(static_cast<int32_t>(i * 2654435761u % 2001) - 1000) / 64.0f;
  }
  uint32_t flags = 0;
  uint64_t hash = 14695981039346656037ull;
  for (std::byte b : expected_bytes(layout, m, &flags)) {
    hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211ull;
  }
  return hash;
}

TEST(CodecOfTheReference, BytesArePinned) {
  uint64_t all = 0;
  for (const leapquant_format& format : codec_formats()) all = all * 31 + hash_of(format);
  EXPECT_EQ(all, 3721203290974039426ull);
}

// C7: a zero state has zero codes, finite scales, and decodes to zero, reset or imported.
TEST_P(Codec, ZeroStateStaysZeroAndFinite) {
  for (const char* text : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact", "3",
                           "3h", "bf16", "fp32"}) {
    const leapquant_shape shape = make_shape(1, 2, 60, 100, LEAPQUANT_DECAY_SCALAR);
    Session session(backend(), make_test_layout(shape, text), 2);
    session.reset(0);
    session.import_state(1, 0, std::vector<float>(2 * 60 * 100, 0.0f));
    for (int32_t slot : {0, 1}) {
      for (int32_t h : {0, 1}) {
        for (double x : session.state(slot, h, 0)) ASSERT_EQ(x, 0.0) << text;
      }
      EXPECT_EQ(session.memory().health(slot)->flags, 0u) << text;
    }
    const Tokens tokens = random_tokens(shape, 1, 5);
    const Outputs a = session.decode_one(0, 0, tokens, 0, 1);
    const Outputs b = session.decode_one(1, 0, tokens, 0, 1);
    EXPECT_EQ(a, b) << text;
    for (float x : a) ASSERT_TRUE(std::isfinite(x)) << text;
  }
}

}  // namespace
}  // namespace leapquant::conformance
