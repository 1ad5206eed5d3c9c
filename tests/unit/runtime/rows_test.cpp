// SPDX-License-Identifier: Apache-2.0
//
// Norms, activation functions, convolution and rotation against FP64 formulas, at sizes with and
// without a rest after the last whole vector.
#include "runtime/kernels/rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace leapquant::runtime::kernels {
namespace {

constexpr std::int64_t kSizes[] = {1, 4, 7, 8, 16, 33, 128, 384};

std::vector<float> random_values(std::int64_t count, unsigned seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(normal(engine));
  return values;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

// A handful of FP32 roundings and a vector exp that is good to about 3 units in the last place:
// 16 * 2^-24 relative covers them.
constexpr double kRelative = 1e-6;

void expect_close(double value, double expected) {
  EXPECT_NEAR(value, expected, kRelative * std::abs(expected) + 1e-30);
}

TEST(Rows, RmsNorm) {
  for (const std::int64_t size : kSizes) {
    const std::vector<float> x = random_values(size, 1);
    const std::vector<float> factor = random_values(size, 2);
    std::vector<float> y(x.size());
    rms_norm(x.data(), factor.data(), 1e-6f, size, y.data());
    double sum = 0;
    for (const float value : x) sum += double{value} * value;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(size) + 1e-6);
    for (std::size_t i = 0; i < x.size(); ++i) expect_close(y[i], x[i] * scale * factor[i]);
  }
}

TEST(Rows, RmsNormOfZeroIsZero) {
  const std::vector<float> zero(20, 0.0f);
  const std::vector<float> factor(20, 2.0f);
  std::vector<float> y(20, 1.0f);
  rms_norm(zero.data(), factor.data(), 1e-6f, 20, y.data());
  for (const float value : y) EXPECT_EQ(value, 0.0f);
}

TEST(Rows, GatedNorm) {
  for (const bool sigmoid_gate : {false, true}) {
    const std::vector<float> x = random_values(37, 3);
    const std::vector<float> z = random_values(37, 4, 4);
    const std::vector<float> factor = random_values(37, 5);
    std::vector<float> normed(x.size());
    rms_norm(x.data(), factor.data(), 1e-6f, 37, normed.data());
    std::vector<float> y = x;
    gated_rms_norm(y.data(), z.data(), factor.data(), 1e-6f, 37, sigmoid_gate);
    for (std::size_t i = 0; i < x.size(); ++i) {
      expect_close(y[i], double{normed[i]} * (sigmoid_gate ? sigmoid(z[i]) : silu(z[i])));
    }
  }
}

TEST(Rows, ActivationFunctions) {
  for (const std::int64_t size : kSizes) {
    const std::vector<float> a = random_values(size, 6, 5);
    const std::vector<float> b = random_values(size, 7);
    std::vector<float> sum = a;
    add(sum.data(), b.data(), size);
    std::vector<float> gated = a;
    silu_multiply(gated.data(), b.data(), size);
    std::vector<float> scaled = b;
    sigmoid_multiply(scaled.data(), a.data(), size);
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(sum[i], a[i] + b[i]);
      expect_close(gated[i], silu(a[i]) * b[i]);
      expect_close(scaled[i], sigmoid(a[i]) * b[i]);
    }
  }
}

TEST(Rows, ActivationFunctionsFarOut) {
  std::vector<float> gate = {-200.0f, -88.0f, 0.0f, 88.0f, 200.0f};
  const std::vector<float> ones(gate.size(), 1.0f);
  silu_multiply(gate.data(), ones.data(), static_cast<std::int64_t>(gate.size()));
  EXPECT_NEAR(gate[0], 0.0f, 1e-30f);
  EXPECT_NEAR(gate[1], 0.0f, 1e-30f);
  EXPECT_EQ(gate[2], 0.0f);
  EXPECT_EQ(gate[3], 88.0f);
  EXPECT_EQ(gate[4], 200.0f);
  std::vector<float> x = {1.0f, 1.0f, 1.0f};
  const std::vector<float> far = {-1e30f, 1e30f, NAN};
  sigmoid_multiply(x.data(), far.data(), 3);
  EXPECT_NEAR(x[0], 0.0f, 1e-30f);
  EXPECT_EQ(x[1], 1.0f);
  EXPECT_TRUE(std::isnan(x[2]));
}

TEST(Rows, Convolution) {
  constexpr std::int64_t kChannels = 21;
  constexpr std::int64_t kTaps = 4;
  const std::vector<float> taps = random_values(kTaps * kChannels, 8);
  const std::vector<float> x = random_values(kTaps * kChannels, 9);
  const float* inputs[kTaps];
  for (std::int64_t j = 0; j < kTaps; ++j) inputs[j] = x.data() + j * kChannels;
  std::vector<float> y(kChannels);
  convolve(inputs, taps.data(), kChannels, kTaps, kChannels, y.data());
  for (std::size_t c = 0; c < kChannels; ++c) {
    double sum = 0;
    double magnitude = 0;
    for (std::size_t j = 0; j < kTaps; ++j) {
      sum += double{taps[j * kChannels + c]} * x[j * kChannels + c];
      magnitude += std::abs(double{taps[j * kChannels + c]} * x[j * kChannels + c]);
    }
    // Cancellation between taps scales with the sum of magnitudes; |silu'| <= 1.1.
    EXPECT_NEAR(y[c], silu(sum), kRelative * (magnitude + 1));
  }
}

TEST(Rows, Rotation) {
  for (const std::int64_t half : {1, 5, 8, 16, 32}) {
    std::vector<float> x = random_values(2 * half, 10);
    const std::vector<float> before = x;
    std::vector<float> cosines;
    std::vector<float> sines;
    for (std::int64_t i = 0; i < half; ++i) {
      cosines.push_back(std::cos(0.3f * static_cast<float>(i)));
      sines.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    rotate(x.data(), cosines.data(), sines.data(), half);
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      const double low = before[i];
      const double high = before[i + cosines.size()];
      EXPECT_NEAR(x[i], low * cosines[i] - high * sines[i], 1e-6);
      EXPECT_NEAR(x[i + cosines.size()], high * cosines[i] + low * sines[i], 1e-6);
    }
  }
}

TEST(Rows, ElementsDoNotDependOnTheirPlace) {
  // The last elements of 21 are computed in a filled-up vector, those of 24 in a whole one.
  const std::vector<float> a = random_values(24, 11);
  const std::vector<float> b = random_values(24, 12);
  std::vector<float> whole = a;
  std::vector<float> part = a;
  silu_multiply(whole.data(), b.data(), 24);
  silu_multiply(part.data(), b.data(), 21);
  for (std::size_t i = 0; i < 21; ++i) EXPECT_EQ(whole[i], part[i]);
}

TEST(Rows, NarrowsToTheNearestBf16) {
  const std::vector<float> x = {1.0f,
                                std::bit_cast<float>(0x3f808000u),  // a tie: to even, down
                                std::bit_cast<float>(0x3f818000u),  // a tie: to even, up
                                std::bit_cast<float>(0x3f808001u),
                                -0.0f,
                                std::numeric_limits<float>::infinity(),
                                std::bit_cast<float>(0x7f800001u)};  // a NaN with a low payload
  std::vector<std::uint16_t> y(x.size());
  narrow_to_bf16(x.data(), static_cast<std::int64_t>(x.size()), y.data());
  EXPECT_EQ(y[0], 0x3f80);
  EXPECT_EQ(y[1], 0x3f80);
  EXPECT_EQ(y[2], 0x3f82);
  EXPECT_EQ(y[3], 0x3f81);
  EXPECT_EQ(y[4], 0x8000);
  EXPECT_EQ(y[5], 0x7f80);
  EXPECT_TRUE((y[6] & 0x7f80) == 0x7f80 && (y[6] & 0x7f) != 0);
}

}  // namespace
}  // namespace leapquant::runtime::kernels
