// SPDX-License-Identifier: Apache-2.0
//
// The codec of the CPU backend against the reference: the same bytes for the same residual on every
// SIMD target, decoded states equal, and folds as good as those in FP64.
#include "cpu/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/format.h"
#include "core/numeric.h"
#include "cpu/targets.h"
#include "reference/codec.h"
#include "reference/fold.h"

namespace leapquant {
namespace {

struct alignas(64) Block {
  float lane[16];
};

// 64-byte aligned floats.
class Floats {
 public:
  explicit Floats(size_t count) : blocks_(count / 16 + 1) {}
  float* data() { return blocks_.data()->lane; }

 private:
  std::vector<Block> blocks_;
};

std::vector<const char*> target_names() {
  int32_t count = 0;
  const cpu::Target* targets = cpu::supported_targets(&count);
  std::vector<const char*> names;
  for (int32_t i = 0; i < count; ++i) names.push_back(targets[i].name);
  return names;
}

BoundaryLayout boundary_of(const char* text, int32_t k_dim, int32_t v_dim) {
  leapquant_format given = LEAPQUANT_INIT(leapquant_format);
  Sentence sentence;
  EXPECT_EQ(leapquant_format_from_string(text, &given), LEAPQUANT_OK) << leapquant_last_error();
  leapquant_format format;
  EXPECT_EQ(normalise_format(given, &format, &sentence), LEAPQUANT_OK) << sentence.text;
  return make_boundary_layout(format, k_dim, v_dim);
}

// Rows of very different size, some zero rows and columns, values on rounding ties.
std::vector<float> residual_of(std::mt19937* random, int32_t k_dim, int32_t v_dim, int kind) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(k_dim * v_dim));
  for (int32_t i = 0; i < k_dim; ++i) {
    const float size = kind == 1 ? std::exp2(static_cast<float>(i % 40) - 20.0f) : 1.0f;
    for (int32_t j = 0; j < v_dim; ++j) {
      float x = size * normal(*random);
      if (kind == 2 && (i % 7 == 3 || j % 5 == 1)) x = 0.0f;
      if (kind == 3) x = std::round(x * 4.0f) / 8.0f;
      if (kind == 4) x *= 1e30f;
      if (kind == 5) x *= 1e-20f;
      values[static_cast<size_t>(i * v_dim + j)] = x;
    }
  }
  return values;
}

constexpr const char* kFormats[] = {"int8",
                                    "int6",
                                    "int4",
                                    "int8+",
                                    "int6+",
                                    "int4+",
                                    "int4-compact",
                                    "3",
                                    "3h",
                                    "6h:smooth=none",
                                    "8:scale=fp16:smooth=none",
                                    "4:smooth=log8"};

TEST(CpuCodec, ResidualBytesEqualTheReferenceOnEveryTarget) {
  std::mt19937 random(7);
  for (const char* text : kFormats) {
    for (const auto& [k_dim, v_dim] :
         {std::pair{128, 128}, {20, 36}, {64, 100}, {4, 4}, {256, 68}}) {
      const BoundaryLayout layout = boundary_of(text, k_dim, v_dim);
      for (int kind = 0; kind < 6; ++kind) {
        const std::vector<float> residual = residual_of(&random, k_dim, v_dim, kind);
        std::vector<std::byte> expected(static_cast<size_t>(layout.bytes));
        const uint32_t flags = reference::encode_residual(layout, residual.data(), expected.data());
        for (const char* target : target_names()) {
          ASSERT_TRUE(cpu::force_target(target));
          std::vector<std::byte> actual(expected.size());
          std::vector<float> consumed = residual;
          Floats scratch(cpu::encode_scratch_bytes(layout) / sizeof(float));
          EXPECT_EQ(cpu::encode_residual(layout, consumed.data(), actual.data(), scratch.data()),
                    flags);
          EXPECT_EQ(std::memcmp(actual.data(), expected.data(), expected.size()), 0)
              << text << " " << k_dim << "x" << v_dim << " kind " << kind << " " << target;
        }
      }
    }
  }
  cpu::force_target(nullptr);
}

// A decaying sum of outer products: some structure, much residual.
std::vector<double> state_of(std::mt19937* random, int32_t k_dim, int32_t v_dim) {
  std::normal_distribution<double> normal;
  std::vector<double> state(static_cast<size_t>(k_dim * v_dim));
  for (int r = 0; r < 40; ++r) {
    std::vector<double> v(static_cast<size_t>(v_dim));
    for (double& x : v) x = normal(*random) * std::pow(0.9, r);
    for (int32_t i = 0; i < k_dim; ++i) {
      const double k = normal(*random);
      for (int32_t j = 0; j < v_dim; ++j) {
        state[static_cast<size_t>(i * v_dim + j)] += k * v[static_cast<size_t>(j)];
      }
    }
  }
  return state;
}

double error_of(const std::vector<double>& state, const std::vector<double>& decoded) {
  double sum = 0.0;
  double all = 0.0;
  for (size_t i = 0; i < state.size(); ++i) {
    sum += (state[i] - decoded[i]) * (state[i] - decoded[i]);
    all += state[i] * state[i];
  }
  return std::sqrt(sum / all);
}

// A cold encoding, then three warm ones of a drifting state. The error of each may exceed the
// reference's by 5 % (rounded compensators amplify last bits), and by 1 % in the geometric mean.
TEST(CpuCodec, EncodedStatesAreAsCloseAsTheReferences) {
  for (const char* target : target_names()) {
    ASSERT_TRUE(cpu::force_target(target));
    double log_ratio = 0.0;
    int count = 0;
    std::mt19937 random(11);
    for (const char* text : kFormats) {
      for (const auto& [k_dim, v_dim] : {std::pair{128, 128}, {60, 100}}) {
        const BoundaryLayout layout = boundary_of(text, k_dim, v_dim);
        std::vector<double> state = state_of(&random, k_dim, v_dim);
        std::vector<std::byte> boundary(static_cast<size_t>(layout.bytes));
        for (int fold = 0; fold < 4; ++fold) {
          for (double& x : state) x = static_cast<float>(x);
          std::vector<std::byte> expected = boundary;
          leapquant_health expected_health = {};
          reference::encode_state(layout, state.data(), fold == 0, expected.data(),
                                  &expected_health);
          std::vector<float> consumed(state.begin(), state.end());
          Floats scratch(cpu::encode_scratch_bytes(layout) / sizeof(float));
          leapquant_health health = {};
          cpu::encode_boundary(layout, fold == 0 ? cpu::FitKind::kCold : cpu::FitKind::kFormat,
                               boundary.data(), consumed.data(), boundary.data(), &health,
                               scratch.data());
          const double actual =
              error_of(state, reference::decode_boundary(layout, boundary.data()));
          const double wanted =
              error_of(state, reference::decode_boundary(layout, expected.data()));
          EXPECT_LT(actual, 1.05 * wanted) << text << " " << k_dim << " " << target << " " << fold;
          EXPECT_NEAR(health.fold_error, actual, 1e-3 * actual) << text;
          EXPECT_NEAR(health.compensator_energy, expected_health.compensator_energy, 1e-3);
          EXPECT_NEAR(health.residual_max, expected_health.residual_max,
                      0.1 * expected_health.residual_max);
          log_ratio += std::log(actual / wanted);
          ++count;
          // Decoding is FP32 sums of at most 33 products: 1e-6 of the largest entry.
          std::vector<float> decoded(state.size());
          cpu::decode_boundary(layout, boundary.data(), decoded.data());
          const std::vector<double> exact = reference::decode_boundary(layout, boundary.data());
          double largest = 0.0;
          for (double x : exact) largest = std::max(largest, std::fabs(x));
          for (size_t i = 0; i < exact.size(); ++i) {
            ASSERT_NEAR(decoded[i], exact[i], 3e-6 * largest) << text << " " << target;
          }
          const std::vector<double> drift = state_of(&random, k_dim, v_dim);
          for (size_t i = 0; i < state.size(); ++i) state[i] = 0.9 * state[i] + 0.1 * drift[i];
        }
      }
    }
    EXPECT_LT(std::exp(log_ratio / count), 1.01) << target;
  }
  cpu::force_target(nullptr);
}

TEST(CpuCodec, ExtremeStatesStayFinite) {
  for (const char* target : target_names()) {
    ASSERT_TRUE(cpu::force_target(target));
    for (const char* text : {"int8", "int4+", "3"}) {
      const BoundaryLayout layout = boundary_of(text, 64, 64);
      for (int kind = 0; kind < 5; ++kind) {
        std::vector<float> state(64 * 64, 0.0f);
        for (size_t i = 0; i < state.size(); ++i) {
          const auto x = static_cast<float>(static_cast<int>(i * 7 % 13) - 6);
          const auto one = static_cast<float>(i / 64 % 5) * static_cast<float>(i % 64 % 3);
          if (kind == 1) state[i] = x * 1e30f;
          if (kind == 2) state[i] = one;
          if (kind == 3) state[i] = x * 1e-30f;
          if (kind == 4) state[i] = i == 100 ? NAN : i == 77 ? -INFINITY : x;
        }
        const std::vector<float> given = state;
        std::vector<std::byte> boundary(static_cast<size_t>(layout.bytes), std::byte{0x5c});
        Floats scratch(cpu::encode_scratch_bytes(layout) / sizeof(float));
        leapquant_health health = {};
        const uint32_t flags =
            cpu::encode_boundary(layout, cpu::FitKind::kCold, nullptr, state.data(),
                                 boundary.data(), &health, scratch.data());
        EXPECT_EQ((flags & LEAPQUANT_HEALTH_NON_FINITE) != 0, kind == 4) << text << kind;
        std::vector<float> decoded(state.size());
        cpu::decode_boundary(layout, boundary.data(), decoded.data());
        for (float x : decoded) ASSERT_TRUE(std::isfinite(x)) << text << " " << kind;
        EXPECT_TRUE(std::isfinite(health.fold_error));
        EXPECT_TRUE(std::isfinite(health.compensator_energy));
        if (kind == 0) {
          for (float x : decoded) ASSERT_EQ(x, 0.0f);
        }
        if (kind == 2 && layout.rank > 0) {
          EXPECT_LT(health.fold_error, 0.02f) << text;
        }
      }
    }
  }
  cpu::force_target(nullptr);
}

TEST(CpuTargets, UnknownTargetsAreNotTaken) {
  EXPECT_FALSE(cpu::force_target("NEON9"));
  EXPECT_EQ(cpu::target_refusal(), nullptr);
  bool portable = false;
  for (const char* name : target_names()) portable = portable || std::string(name) == "EMU128";
  EXPECT_TRUE(portable);
}

}  // namespace
}  // namespace leapquant
