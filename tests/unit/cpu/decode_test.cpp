// SPDX-License-Identifier: Apache-2.0
//
// Windowed decode on the CPU against the reference that reads the same stored bytes, on every SIMD
// target; T tokens in a call against single ones, and batches and threads, bit for bit.
#include "cpu/decode.h"

#include <gtest/gtest.h>

#include "core/position.h"
#include "cpu/backend.h"
#include "cpu/targets.h"
#include "reference/backend.h"
#include "reference/codec.h"
#include "reference/fold.h"
#include "unit/cpu/prefill_bed.h"

namespace leapquant::cpu_bed {
namespace {

struct Case {
  const char* name;
  int32_t k_heads, v_heads, k_dim, v_dim;
  leapquant_decay decay;
  int32_t delta_rule, sub_steps;
  std::vector<const char*> formats;  // dealt to the value heads in turn
  bool read_keys = false, hooks = false, before_update = false, raw_gates = false;
};

const Case kCases[] = {
    {"gdn", 2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR, 1, 1, {"int8"}},
    {"gdn mixed", 2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR, 1, 1, {"int8+", "int4-compact"}},
    {"gdn plus", 1, 3, 64, 128, LEAPQUANT_DECAY_SCALAR, 1, 1, {"int4+", "int6+", "int8+"}},
    {"gdn raw", 1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR, 1, 1, {"int6"}, false, false, false, true},
    {"kda", 2, 2, 128, 96, LEAPQUANT_DECAY_VECTOR, 1, 1, {"int4"}},
    {"kda raw",
     1,
     2,
     36,
     40,
     LEAPQUANT_DECAY_VECTOR,
     1,
     1,
     {"int6:decay=fp16"},
     false,
     false,
     false,
     true},
    {"retnet", 1, 2, 20, 36, LEAPQUANT_DECAY_CONSTANT, 0, 1, {"int6"}},
    {"none", 2, 2, 60, 100, LEAPQUANT_DECAY_NONE, 1, 1, {"3", "3h"}},
    {"mamba", 1, 4, 64, 64, LEAPQUANT_DECAY_SCALAR, 0, 1, {"int8"}, false, true},
    {"rwkv6", 2, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 0, 1, {"int8"}, false, true, true},
    {"rwkv7", 2, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 1, 2, {"int8"}, true},
    {"product", 1, 2, 32, 48, LEAPQUANT_DECAY_SCALAR, 1, 3, {"int4-compact"}, true},
    {"plain", 1, 2, 44, 52, LEAPQUANT_DECAY_SCALAR, 1, 1, {"bf16:window=16", "fp32:window=16"}},
};

Layout layout_of_case(const Case& one, int32_t window = 8) {
  leapquant_shape shape = shape_of(one.k_heads, one.v_heads, one.k_dim, one.v_dim, one.decay,
                                   one.delta_rule, one.sub_steps);
  std::vector<float> constant(static_cast<size_t>(one.v_heads), -0.05f);
  if (one.decay == LEAPQUANT_DECAY_CONSTANT) shape.constant_log_decay = constant.data();
  shape.max_tokens = 4;
  std::vector<leapquant_format> formats;
  std::vector<uint8_t> head_format;
  for (const char* text : one.formats) {
    leapquant_format format = LEAPQUANT_INIT(leapquant_format);
    EXPECT_EQ(leapquant_format_from_string(text, &format), LEAPQUANT_OK) << text;
    format.window = window;
    format.stagger = 1;
    formats.push_back(format);
  }
  for (int32_t h = 0; h < one.v_heads; ++h) {
    head_format.push_back(static_cast<uint8_t>(h % static_cast<int32_t>(formats.size())));
  }
  Layout layout;
  Sentence sentence;
  EXPECT_EQ(make_layout(shape, formats.data(), static_cast<int32_t>(formats.size()),
                        head_format.data(), &layout, &sentence),
            LEAPQUANT_OK)
      << sentence.text;
  return layout;
}

// Parameters that tokens point to.
struct Parameters {
  std::vector<float> a_log, dt_bias;
};

Tokens tokens_of_case(const Case& one, const Layout& layout, int32_t count, uint32_t seed,
                      Parameters* parameters) {
  Tokens tokens = random_tokens(layout, count, seed);
  std::mt19937 random(seed + 1);
  if (one.read_keys) {
    tokens.read_key = normal(&random, tokens.k.size(), 1.0f);
    normalise_rows(&tokens.read_key, static_cast<size_t>(one.k_dim));
  }
  if (one.hooks) {
    tokens.bonus = normal(&random, static_cast<size_t>(one.v_heads * one.k_dim), 1.0f);
    tokens.skip = normal(&random, static_cast<size_t>(one.v_heads), 1.0f);
  }
  tokens.options.read_before_update = one.before_update ? 1 : 0;
  if (one.raw_gates) {
    parameters->a_log = normal(&random, static_cast<size_t>(one.v_heads), 1.0f);
    parameters->dt_bias = normal(
        &random,
        static_cast<size_t>(one.v_heads * (one.decay == LEAPQUANT_DECAY_VECTOR ? one.k_dim : 1)),
        1.0f);
    tokens.log_decay = normal(&random, tokens.log_decay.size(), 2.0f);
    tokens.beta = normal(&random, tokens.beta.size(), 2.0f);
    tokens.options.gate =
        one.decay == LEAPQUANT_DECAY_VECTOR ? LEAPQUANT_GATE_BOUNDED : LEAPQUANT_GATE_SOFTPLUS;
    tokens.options.lower_bound = -5.0f;
    tokens.options.a_log = parameters->a_log.data();
    tokens.options.dt_bias = parameters->dt_bias.data();
    tokens.options.beta_kind = LEAPQUANT_BETA_SIGMOID;
    tokens.options.beta_scale = 2.0f;
    tokens.options.qk_l2norm = 1;
    tokens.options.q_scale = 0.125f;
  }
  return tokens;
}

// The part of the tokens from `first` on; one sequence.
Tokens from_token(const Layout& layout, const Tokens& all, int32_t first) {
  const leapquant_shape& s = layout.shape;
  Tokens part = all;
  const auto cut = [&](std::vector<float>* values, int64_t width) {
    if (!values->empty()) values->erase(values->begin(), values->begin() + first * width);
  };
  cut(&part.q, s.num_k_heads * s.head_k_dim);
  cut(&part.k, s.sub_steps * s.num_k_heads * s.head_k_dim);
  cut(&part.read_key, s.sub_steps * s.num_k_heads * s.head_k_dim);
  cut(&part.v, s.sub_steps * s.num_v_heads * s.head_v_dim);
  cut(&part.log_decay, s.num_v_heads * (s.decay == LEAPQUANT_DECAY_VECTOR ? s.head_k_dim : 1));
  cut(&part.beta, s.sub_steps * s.num_v_heads);
  return part;
}

void copy_pool(const Layout& layout, const leapquant_pool& from, const leapquant_pool& to) {
  std::memcpy(to.states, from.states, static_cast<size_t>(layout.state_bytes));
  std::memcpy(to.windows, from.windows, static_cast<size_t>(layout.window.bytes));
  std::memcpy(to.base, from.base, static_cast<size_t>(layout.shape.num_v_heads) * 4);
}

class CpuDecode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(GetParam())); }
  void TearDown() override { cpu::force_target(nullptr); }
};

TEST_P(CpuDecode, OutputsAndFoldsFollowTheReference) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const Layout layout = layout_of_case(one);
    Bed fast(cpu::cpu_backend(), layout, 1);
    Bed exact(reference::backend(), layout, 1);
    const int32_t length = 36;
    Parameters parameters;
    const Tokens tokens = tokens_of_case(one, layout, length, 5, &parameters);
    double difference = 0.0;
    double energy = 0.0;
    double log_ratio = 0.0;
    int folds = 0;
    for (int32_t t = 0; t < length; ++t) {
      const Tokens token = from_token(layout, tokens, t);
      // What the reference makes of the folds that are due, from the same bytes.
      copy_pool(layout, fast.pool(), exact.pool());
      std::vector<std::vector<double>> rebuilt;
      const std::vector<int32_t> before(fast.pool().base, fast.pool().base + one.v_heads);
      for (int32_t h = 0; h < one.v_heads; ++h) {
        const int32_t due =
            last_boundary(t, layout.head_boundary[static_cast<size_t>(h)], layout.window_tokens);
        rebuilt.push_back(due > before[static_cast<size_t>(h)]
                              ? reference::rebuild(layout, exact.pool(), 0, 0, h, due)
                              : std::vector<double>());
      }
      (void)exact.decode(token, {0}, {t}, 1);
      std::vector<std::vector<double>> wanted;
      for (int32_t h = 0; h < one.v_heads; ++h) {
        wanted.push_back(
            reference::decode_boundary(layout.head(h), boundary_state(layout, exact.pool(), 0, h)));
      }
      const std::vector<float> output = fast.decode(token, {0}, {t}, 1);
      ASSERT_EQ(fast.status[0], LEAPQUANT_OK);
      for (int32_t h = 0; h < one.v_heads; ++h) {
        const std::vector<double>& state = rebuilt[static_cast<size_t>(h)];
        if (state.empty()) continue;
        const std::vector<double> actual =
            reference::decode_boundary(layout.head(h), boundary_state(layout, fast.pool(), 0, h));
        double a = 1e-14, w = 1e-14;  // an exact fold has no ratio
        double size = 0.0;
        for (size_t i = 0; i < state.size(); ++i) {
          a += std::pow(actual[i] - state[i], 2);
          w += std::pow(wanted[static_cast<size_t>(h)][i] - state[i], 2);
          size += state[i] * state[i];
        }
        if (std::sqrt(w / size) < 1e-3) {  // nearly exact: only the size counts
          EXPECT_LT(std::sqrt(a / size), 1.1e-3);
          continue;
        }
        EXPECT_LT(std::sqrt(a / w), 1.06) << "head " << h << " token " << t;
        log_ratio += 0.5 * std::log(a / w);
        ++folds;
      }
      // The same token on the folded bytes: the ring still has what was read.
      copy_pool(layout, fast.pool(), exact.pool());
      const std::vector<float> expected = exact.decode(token, {0}, {t}, 1);
      for (size_t i = 0; i < output.size(); ++i) {
        difference += std::pow(double{output[i]} - expected[i], 2);
        energy += std::pow(double{expected[i]}, 2);
      }
    }
    EXPECT_LT(std::sqrt(difference / energy), 1e-5);
    if (folds > 0) {
      EXPECT_LT(std::exp(log_ratio / folds), 1.02) << folds;
    }
  }
}

TEST_P(CpuDecode, TokensOfOneCallAreSingleTokens) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const Layout layout = layout_of_case(one, 32);
    Bed single(cpu::cpu_backend(), layout, 1);
    Bed many(cpu::cpu_backend(), layout, 1);
    Parameters parameters;
    const Tokens tokens = tokens_of_case(one, layout, 14, 9, &parameters);
    const size_t row = static_cast<size_t>(one.v_heads * one.v_dim);
    std::vector<float> expected;
    for (int32_t t = 0; t < 14; ++t) {
      const auto output = single.decode(from_token(layout, tokens, t), {0}, {t}, 1);
      expected.insert(expected.end(), output.begin(), output.end());
    }
    int32_t t = 0;
    for (const int32_t count : {1, 4, 2, 3, 4}) {
      const auto output = many.decode(from_token(layout, tokens, t), {0}, {t}, count);
      EXPECT_EQ(std::memcmp(output.data(), expected.data() + static_cast<size_t>(t) * row,
                            output.size() * sizeof(float)),
                0)
          << t;
      t += count;
    }
    EXPECT_EQ(single.bytes(0), many.bytes(0));
  }
}

TEST_P(CpuDecode, BatchesAndThreadsChangeNoBit) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const Layout layout = layout_of_case(one);
    Bed alone(cpu::cpu_backend(), layout, 5);
    Bed together(cpu::cpu_backend(), layout, 5, 3);
    for (int32_t t = 0; t < 20; t += 2) {
      Parameters parameters;
      const Tokens tokens =
          tokens_of_case(one, layout, 6, static_cast<uint32_t>(20 + t), &parameters);
      const auto all = together.decode(tokens, {4, -1, 2}, {t, 0, t}, 2);
      const auto first = alone.decode(tokens, {1}, {t}, 2);
      const auto third = alone.decode(from_token(layout, tokens, 4), {3}, {t}, 2);
      const size_t size = first.size();
      EXPECT_EQ(std::memcmp(all.data(), first.data(), size * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(all.data() + 2 * size, third.data(), size * sizeof(float)), 0);
      for (size_t i = size; i < 2 * size; ++i) ASSERT_EQ(all[i], 0.0f);
    }
    EXPECT_EQ(together.bytes(4), alone.bytes(1));
    EXPECT_EQ(together.bytes(2), alone.bytes(3));
  }
}

TEST_P(CpuDecode, FaultsTouchOneSequenceOnly) {
  const Case& one = kCases[0];
  const Layout layout = layout_of_case(one);
  Bed bed(cpu::cpu_backend(), layout, 4);
  Bed clean(cpu::cpu_backend(), layout, 4);
  Parameters parameters;
  Tokens tokens = tokens_of_case(one, layout, 4, 3, &parameters);
  const size_t row = static_cast<size_t>(one.v_heads * one.v_dim);
  const auto expected = clean.decode(tokens, {0, 1, 2, 3}, {0, 0, 0, 0}, 1);
  const auto before = bed.bytes(1);
  tokens.v[row + 5] = NAN;
  tokens.log_decay[static_cast<size_t>(2 * one.v_heads)] = 0.5f;
  const auto output = bed.decode(tokens, {0, 1, 2, 3}, {0, 0, 0, 30}, 1);
  EXPECT_EQ(bed.status,
            (std::vector<int32_t>{LEAPQUANT_OK, LEAPQUANT_NON_FINITE_INPUT,
                                  LEAPQUANT_POSITIVE_LOG_DECAY, LEAPQUANT_POSITION_PAST_WINDOW}));
  EXPECT_EQ(std::memcmp(output.data(), expected.data(), row * sizeof(float)), 0);
  for (size_t i = row; i < 4 * row; ++i) ASSERT_EQ(output[i], 0.0f);
  EXPECT_EQ(bed.bytes(0), clean.bytes(0));
  EXPECT_EQ(bed.bytes(1), before);
}

std::vector<const char*> all_targets() {
  int32_t count = 0;
  const cpu::Target* targets = cpu::supported_targets(&count);
  std::vector<const char*> names;
  for (int32_t i = 0; i < count; ++i) names.push_back(targets[i].name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Targets, CpuDecode, testing::ValuesIn(all_targets()),
                         [](const auto& target) { return std::string(target.param); });

}  // namespace
}  // namespace leapquant::cpu_bed
