// SPDX-License-Identifier: Apache-2.0
//
// Number conversions against an independent path: exact values from exponents in FP64, and nearest
// neighbours by search in the sorted list of all values of the narrow type.
#include "core/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace leapquant {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Value of a 16-bit float with the given field widths, by its definition.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}
double fp16_value(uint16_t bits) { return value_of(bits, 5, 10); }
double bf16_value(uint16_t bits) { return value_of(bits, 8, 7); }

// Nearest of the finite non-negative values (codes 0..largest ascend), ties to the even code; past
// the middle between the largest and what would follow it: infinity.
uint16_t nearest(double x, double (*value)(uint16_t), uint16_t largest) {
  int low = 0;
  int high = largest;
  while (low < high) {  // largest code with value <= x
    const int middle = (low + high + 1) / 2;
    if (value(static_cast<uint16_t>(middle)) <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const double below = value(static_cast<uint16_t>(low));
  const double above = low < largest ? value(static_cast<uint16_t>(low + 1))
                                     : 2.0 * below - value(static_cast<uint16_t>(low - 1));
  const bool up = x - below > above - x || (x - below == above - x && low % 2 == 1);
  return static_cast<uint16_t>(low + (up ? 1 : 0));
}

// Every finite FP32 neighbourhood that matters: values, middles and their neighbours, random bits.
std::vector<float> probes(double (*value)(uint16_t), uint16_t largest) {
  std::vector<float> list;
  for (int code = 0; code <= largest; ++code) {
    const double here = value(static_cast<uint16_t>(code));
    const double next = code < largest ? value(static_cast<uint16_t>(code + 1)) : here * 1.001;
    for (double x : {here, (here + next) / 2}) {
      const float f = static_cast<float>(x);
      list.push_back(f);
      list.push_back(std::nextafter(f, 0.0f));
      list.push_back(std::nextafter(f, kInfinity));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7fffffffu);
    if (std::isfinite(f)) list.push_back(f);
  }
  list.push_back(std::numeric_limits<float>::max());
  list.erase(std::remove_if(list.begin(), list.end(), [](float f) { return !std::isfinite(f); }),
             list.end());
  return list;
}

TEST(Numeric, Fp16ValuesOfAllCodes) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const double expected = fp16_value(bits);
    const float actual = fp16_to_float(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << code;
      ASSERT_TRUE(std::isnan(fp16_to_float(float_to_fp16(actual)))) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(actual), expected) << code;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << code;
    ASSERT_EQ(float_to_fp16(actual), bits) << code;
  }
}

TEST(Numeric, Bf16ValuesOfAllCodes) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const double expected = bf16_value(bits);
    const float actual = bf16_to_float(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << code;
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(actual)))) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(actual), expected) << code;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << code;
    ASSERT_EQ(float_to_bf16(actual), bits) << code;
  }
}

TEST(Numeric, RoundingIsToNearestEven) {
  for (float x : probes(fp16_value, 0x7bff)) {
    const uint16_t expected = nearest(x, fp16_value, 0x7bff);
    ASSERT_EQ(float_to_fp16(x), expected) << x;
    ASSERT_EQ(float_to_fp16(-x), expected | 0x8000) << x;
    bool saturated = false;
    ASSERT_EQ(float_to_fp16_saturated(x, &saturated), std::min<uint16_t>(expected, 0x7bff)) << x;
    ASSERT_EQ(saturated, expected == 0x7c00) << x;
  }
  for (float x : probes(bf16_value, 0x7f7f)) {
    const uint16_t expected = nearest(x, bf16_value, 0x7f7f);
    ASSERT_EQ(float_to_bf16(x), expected) << x;
    ASSERT_EQ(float_to_bf16(-x), expected | 0x8000) << x;
  }
  EXPECT_EQ(float_to_fp16(kInfinity), 0x7c00);
  EXPECT_EQ(float_to_fp16(-kInfinity), 0xfc00);
  EXPECT_EQ(float_to_bf16(kInfinity), 0x7f80);
  bool saturated = false;
  EXPECT_EQ(float_to_fp16_saturated(-kInfinity, &saturated), 0xfbff);
  EXPECT_TRUE(saturated);
  saturated = false;
  EXPECT_EQ(float_to_fp16_saturated(std::nanf(""), &saturated), 0);
  EXPECT_TRUE(saturated);
}

TEST(Numeric, Fp16UpIsTheSmallestNotBelow) {
  for (float x : probes(fp16_value, 0x7bff)) {
    bool saturated = false;
    const uint16_t up = float_to_fp16_up(x, &saturated);
    if (static_cast<double>(x) > 65504.0) {
      ASSERT_EQ(up, 0x7bff) << x;
      ASSERT_TRUE(saturated) << x;
      continue;
    }
    ASSERT_FALSE(saturated) << x;
    ASSERT_GE(fp16_value(up), static_cast<double>(x)) << x;
    if (up > 0) {
      ASSERT_LT(fp16_value(static_cast<uint16_t>(up - 1)), static_cast<double>(x)) << x;
    }
  }
}

TEST(Numeric, RoundHalfEven) {
  const float ties[][2] = {{0.5f, 0.0f},   {1.5f, 2.0f},   {2.5f, 2.0f},     {-0.5f, 0.0f},
                           {-1.5f, -2.0f}, {-2.5f, -2.0f}, {126.5f, 126.0f}, {127.5f, 128.0f}};
  for (const auto& [x, expected] : ties) EXPECT_EQ(round_half_even(x), expected) << x;
  std::mt19937 random(2);
  std::uniform_real_distribution<float> range(-4096.0f, 4096.0f);
  for (int i = 0; i < 100000; ++i) {
    const float x = range(random);
    ASSERT_EQ(round_half_even(x), std::nearbyint(x)) << x;
  }
}

// Constants to the last bit: 2^((n - 128) / 8) in extended precision, rounded once.
TEST(Numeric, Log8ValuesAndThresholds) {
  const Log8Table& table = log8_table();
  for (int n = 0; n < 256; ++n) {
    ASSERT_EQ(table.value[n], static_cast<float>(std::exp2l((n - 128) / 8.0L))) << n;
    if (n == 0) continue;
    ASSERT_EQ(table.threshold[n], static_cast<float>(std::exp2l((2 * n - 257) / 16.0L))) << n;
    ASSERT_LT(table.threshold[n], table.value[n]) << n;
    ASSERT_GT(table.threshold[n], table.value[n - 1]) << n;
  }
}

TEST(Numeric, Log8EncodesToTheNearestInTheLogarithm) {
  const Log8Table& table = log8_table();
  EXPECT_EQ(float_to_log8(0.0f), 0);
  EXPECT_EQ(float_to_log8(1e-30f), 0);
  EXPECT_EQ(float_to_log8(1e30f), 255);
  EXPECT_EQ(float_to_log8(kInfinity), 255);
  for (int n = 0; n < 256; ++n) {
    ASSERT_EQ(float_to_log8(table.value[n]), n);
    if (n == 0) continue;
    ASSERT_EQ(float_to_log8(table.threshold[n]), n);
    ASSERT_EQ(float_to_log8(std::nextafter(table.threshold[n], 0.0f)), n - 1);
  }
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-15.5f, 15.5f);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::exp2(exponent(random));
    const double ratio =
        static_cast<double>(x) / static_cast<double>(table.value[float_to_log8(x)]);
    ASSERT_LE(std::fabs(std::log2(ratio)), 1.0 / 16 + 1e-6) << x;
  }
}

}  // namespace
}  // namespace leapquant
