// SPDX-License-Identifier: Apache-2.0
//
// The table of start vectors is a constant of the format family: pinned.
#include "core/start_vectors.h"

#include <gtest/gtest.h>

#include <cmath>

namespace leapquant {
namespace {

TEST(StartVectors, ArePinned) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a over all entries as integers
  for (int32_t column = 0; column < 32; ++column) {
    for (int32_t row = 0; row < 256; ++row) {
      const float x = start_vector(column, row);
      ASSERT_EQ(x, std::floor(x));
      ASSERT_LE(std::fabs(x), 120.0f);
      hash = (hash ^ static_cast<uint64_t>(static_cast<int32_t>(x) + 120)) * 1099511628211ull;
    }
  }
  EXPECT_EQ(hash, 3457722222635917912ull);
  EXPECT_EQ(start_vector(0, 0), 10.0f);
  EXPECT_EQ(start_vector(31, 255), 8.0f);
}

// Mean 0 and variance 340 within five standard errors, columns nearly orthogonal.
TEST(StartVectors, LookGaussian) {
  double sum = 0.0;
  double squares = 0.0;
  for (int32_t column = 0; column < 32; ++column) {
    for (int32_t row = 0; row < 256; ++row) {
      const double x = start_vector(column, row);
      sum += x;
      squares += x * x;
    }
  }
  constexpr double kCount = 32 * 256;
  EXPECT_LE(std::fabs(sum / kCount), 5 * std::sqrt(340.0 / kCount));
  EXPECT_NEAR(squares / kCount, 340.0, 5 * 340.0 * std::sqrt(2.0 / kCount));
  for (int32_t a = 0; a < 32; ++a) {
    for (int32_t b = 0; b < a; ++b) {
      double dot = 0.0;
      for (int32_t row = 0; row < 256; ++row) dot += start_vector(a, row) * start_vector(b, row);
      EXPECT_LE(std::fabs(dot) / (340.0 * 256), 6.0 / std::sqrt(256.0)) << a << " " << b;
    }
  }
}

}  // namespace
}  // namespace leapquant
