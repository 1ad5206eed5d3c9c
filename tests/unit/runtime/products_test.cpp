// SPDX-License-Identifier: Apache-2.0
//
// The product kernel against plain loops in FP64, and that a value depends neither on its row's
// neighbours nor on how the outputs are cut.
#include "runtime/kernels/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace leapquant::runtime::kernels {
namespace {

std::uint16_t bf16_bits(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

// Values that all three types hold exactly: multiples of 1/64 below 2.
struct Case {
  std::int64_t rows;
  std::int64_t inner;
  std::int64_t outputs;
  std::vector<float> x;
  std::vector<float> w;
  std::vector<std::uint16_t> w_bf16;
  std::vector<std::uint16_t> w_f16;

  Case(std::int64_t r, std::int64_t k, std::int64_t n) : rows(r), inner(k), outputs(n) {
    std::mt19937 engine(static_cast<unsigned>(r * 7919 + k * 31 + n));
    std::uniform_int_distribution<int> small(-127, 127);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < r * k; ++i) x.push_back(normal(engine));
    for (std::int64_t i = 0; i < n * k; ++i) {
      const float value = static_cast<float>(small(engine)) / 64.0f;
      w.push_back(value);
      w_bf16.push_back(bf16_bits(value));
      const _Float16 half = static_cast<_Float16>(value);
      std::uint16_t bits = 0;
      std::memcpy(&bits, &half, sizeof(bits));
      w_f16.push_back(bits);
    }
  }

  const void* weights(WeightType type) const {
    if (type == WeightType::kBf16) return w_bf16.data();
    if (type == WeightType::kF16) return w_f16.data();
    return w.data();
  }

  std::vector<float> multiply(WeightType type) const {
    std::vector<float> y(static_cast<std::size_t>(rows * outputs), NAN);
    multiply_rows(x.data(), inner, rows, weights(type), type, inner, 0, outputs, y.data(), outputs);
    return y;
  }
};

constexpr WeightType kTypes[] = {WeightType::kBf16, WeightType::kF16, WeightType::kF32};

TEST(Products, EqualPlainLoops) {
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 18}) {
    for (const std::int64_t inner : {1, 3, 8, 16, 37, 128, 384}) {
      for (const std::int64_t outputs : {1, 2, 5, 24, 31}) {
        const Case c(rows, inner, outputs);
        const std::vector<float> y = c.multiply(WeightType::kBf16);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t n = 0; n < outputs; ++n) {
            double sum = 0;
            double magnitude = 0;
            for (std::int64_t k = 0; k < inner; ++k) {
              const double term = double{c.x[static_cast<std::size_t>(r * inner + k)]} *
                                  c.w[static_cast<std::size_t>(n * inner + k)];
              sum += term;
              magnitude += std::abs(term);
            }
            // At most `inner` roundings of partial sums, each 2^-24 of at most `magnitude`.
            const double bound = static_cast<double>(inner) * std::ldexp(magnitude, -24) + 1e-30;
            ASSERT_NEAR(y[static_cast<std::size_t>(r * outputs + n)], sum, bound)
                << rows << " rows, inner " << inner << ", output " << n;
          }
        }
      }
    }
  }
}

TEST(Products, WeightTypesGiveTheSameBits) {
  const Case c(6, 101, 29);
  const std::vector<float> expected = c.multiply(WeightType::kF32);
  for (const WeightType type : kTypes) {
    const std::vector<float> y = c.multiply(type);
    EXPECT_EQ(0, std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)));
  }
}

TEST(Products, ValuesDoNotDependOnTheCompany) {
  const Case c(23, 200, 53);
  const std::vector<float> all = c.multiply(WeightType::kBf16);
  // Any number of rows from any row on, any range of outputs.
  for (std::int64_t first_row = 0; first_row < c.rows; ++first_row) {
    for (const std::int64_t rows : {1, 2, 3, 4, 6}) {
      if (first_row + rows > c.rows) continue;
      for (const auto& [first, last] :
           {std::pair<std::int64_t, std::int64_t>{0, 53}, {1, 2}, {7, 30}, {24, 48}, {50, 53}}) {
        std::vector<float> y(static_cast<std::size_t>(rows * c.outputs), NAN);
        multiply_rows(c.x.data() + first_row * c.inner, c.inner, rows, c.w_bf16.data(),
                      WeightType::kBf16, c.inner, first, last, y.data(), c.outputs);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t n = 0; n < c.outputs; ++n) {
            const float value = y[static_cast<std::size_t>(r * c.outputs + n)];
            if (n < first || n >= last) {
              ASSERT_TRUE(std::isnan(value)) << "an output outside the range was written";
            } else {
              ASSERT_EQ(value, all[static_cast<std::size_t>((first_row + r) * c.outputs + n)]);
            }
          }
        }
      }
    }
  }
}

TEST(Products, WidensRows) {
  const Case c(1, 37, 5);
  for (const WeightType type : kTypes) {
    std::vector<float> row(37);
    widen_row(c.weights(type), type, 3, 37, row.data());
    for (std::size_t k = 0; k < row.size(); ++k) EXPECT_EQ(row[k], c.w[3 * 37 + k]);
  }
}

}  // namespace
}  // namespace leapquant::runtime::kernels
