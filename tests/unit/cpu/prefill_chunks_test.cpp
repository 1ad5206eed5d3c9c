// SPDX-License-Identifier: Apache-2.0
//
// Prefill on the CPU against the FP64 reference, and against itself: splits, checkpoints, threads,
// neighbours, faults.
#include <cmath>
#include <limits>

#include "cpu/backend.h"
#include "reference/backend.h"
#include "unit/cpu/prefill_bed.h"

namespace leapquant::cpu_bed {
namespace {

// FP32 sums of a few hundred terms, each rounded to 6e-8, over states that decay or stay bounded:
// some 1e-6 of the largest value. The contract allows 1e-5.
constexpr double kLimit = 1e-5;

const Backend& cpu() { return cpu::cpu_backend(); }

struct Case {
  const char* name;
  leapquant_shape shape;
  bool read_keys = false;
  bool hooks = false;
  float deepest_decay = -0.2f;
  float largest_beta = 1.0f;
};

std::vector<Case> cases() {
  const auto shape = shape_of;
  return {
      {"gdn", shape(2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR, 1, 1)},
      {"gdn_narrow", shape(1, 3, 36, 20, LEAPQUANT_DECAY_SCALAR, 1, 1)},
      {"gdn_negative_eigenvalues", shape(1, 1, 64, 32, LEAPQUANT_DECAY_SCALAR, 1, 1), false, false,
       -0.02f, 2.0f},
      {"delta", shape(1, 2, 64, 64, LEAPQUANT_DECAY_NONE, 1, 1)},
      {"mamba2", shape(1, 4, 64, 48, LEAPQUANT_DECAY_SCALAR, 0, 1), false, true},
      {"linear", shape(2, 2, 32, 64, LEAPQUANT_DECAY_NONE, 0, 1)},
      {"kda", shape(2, 2, 128, 64, LEAPQUANT_DECAY_VECTOR, 1, 1)},
      {"gla_deep", shape(1, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 0, 1), false, false, -30.0f},
      {"gdn_deep", shape(1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR, 1, 1), false, false, -30.0f},
      {"delta_product", shape(1, 2, 64, 32, LEAPQUANT_DECAY_SCALAR, 1, 3)},
      {"rwkv7", shape(1, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 1, 2), true},
      {"rwkv6", shape(1, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 0, 1), false, true},
      {"scalar_read_keys", shape(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR, 1, 2), true},
      {"before_update", shape(1, 2, 32, 36, LEAPQUANT_DECAY_SCALAR, 1, 1), false, true},
      {"widest", shape(1, 1, 256, 256, LEAPQUANT_DECAY_SCALAR, 1, 1)},
      {"smallest", shape(1, 1, 4, 4, LEAPQUANT_DECAY_VECTOR, 1, 8)},
  };
}

Tokens tokens_of(const Case& c, const Layout& layout, int32_t count, uint32_t seed) {
  Tokens tokens = random_tokens(layout, count, seed, c.deepest_decay, c.largest_beta);
  std::mt19937 random(seed + 1);
  if (c.read_keys) {
    tokens.read_key = normal(&random, tokens.k.size(), 1.0f);
    normalise_rows(&tokens.read_key, static_cast<size_t>(layout.shape.head_k_dim));
  }
  if (c.hooks) {
    const size_t heads = static_cast<size_t>(layout.shape.num_v_heads);
    tokens.skip = normal(&random, heads, 1.0f);
    tokens.bonus = normal(&random, heads * static_cast<size_t>(layout.shape.head_k_dim), 1.0f);
    tokens.options.read_before_update = 1;
  }
  return tokens;
}

class Prefill : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, Prefill, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(Prefill, EqualsTheReference) {
  const Layout layout = layout_of(GetParam().shape, format_of(32, LEAPQUANT_WINDOWED));
  const Tokens tokens = tokens_of(GetParam(), layout, 75, 11);
  Bed bed(cpu(), layout, 1);
  Bed oracle(reference::backend(), layout, 1);
  // From a state that is not zero, so that the reads of it count.
  std::mt19937 random(3);
  const std::vector<float> start =
      normal(&random,
             static_cast<size_t>(layout.shape.num_v_heads * layout.shape.head_k_dim *
                                 layout.shape.head_v_dim),
             0.5f);
  bed.import(0, 5, start);
  oracle.import(0, 5, start);
  EXPECT_LE(relative_difference(bed.prefill(tokens, {0}, {5}, {0, 75}),
                                oracle.prefill(tokens, {0}, {5}, {0, 75})),
            kLimit);
  EXPECT_LE(relative_difference(bed.state(0, 80), oracle.state(0, 80)), kLimit);
}

TEST_P(Prefill, EqualsPerStepDecodeAtAnySplit) {
  const Layout layout = layout_of(GetParam().shape, format_of(32, LEAPQUANT_PER_STEP));
  const Tokens all = tokens_of(GetParam(), layout, 40, 12);
  Bed whole(cpu(), layout, 2);
  const std::vector<float> expected = whole.prefill(all, {0}, {0}, {0, 40});
  const size_t row = static_cast<size_t>(layout.shape.num_v_heads * layout.shape.head_v_dim);
  const auto part = [&](const std::vector<float>& values, int32_t first, int32_t count) {
    const size_t width = values.size() / 40;
    return std::vector<float>(values.begin() + static_cast<int64_t>(width) * first,
                              values.begin() + static_cast<int64_t>(width) * (first + count));
  };
  std::vector<float> outputs;
  int32_t position = 0;
  for (const int32_t count : {1, 8, 17, 3, 8, 2, 1}) {  // by turns decoded and prefilled
    Tokens tokens = all;
    for (auto* values : {&tokens.q, &tokens.k, &tokens.v, &tokens.beta}) {
      *values = part(*values, position, count);
    }
    if (!all.read_key.empty()) tokens.read_key = part(all.read_key, position, count);
    if (!all.log_decay.empty()) tokens.log_decay = part(all.log_decay, position, count);
    const std::vector<float> o = count == 17 || count == 3
                                     ? whole.prefill(tokens, {1}, {position}, {0, count})
                                     : whole.decode(tokens, {1}, {position}, count);
    ASSERT_EQ(whole.status[0], LEAPQUANT_OK);
    outputs.insert(outputs.end(), o.begin(), o.end());
    position += count;
  }
  ASSERT_EQ(outputs.size(), 40 * row);
  EXPECT_LE(relative_difference(outputs, expected), kLimit);
  EXPECT_LE(relative_difference(whole.state(1, 40), whole.state(0, 40)), kLimit);
}

// Two sequences with an empty one between, a padding row, threads: the bits of single calls.
TEST_P(Prefill, SequencesDoNotKnowOfEachOther) {
  const Layout layout = layout_of(GetParam().shape, format_of(8, LEAPQUANT_WINDOWED));
  const Tokens tokens = tokens_of(GetParam(), layout, 60, 13);
  Bed together(cpu(), layout, 4, 3);
  together.reset(1, 4);
  const std::vector<std::byte> idle = together.bytes(3);
  const std::vector<float> outputs =
      together.prefill(tokens, {2, 3, -1, 1}, {0, 9, 0, 4}, {0, 33, 33, 40, 60});
  EXPECT_EQ(together.status, (std::vector<int32_t>{0, 0, 0, LEAPQUANT_OK}));
  EXPECT_EQ(together.bytes(3), idle);
  const size_t row = static_cast<size_t>(layout.shape.num_v_heads * layout.shape.head_v_dim);
  for (size_t i = 33 * row; i < 40 * row; ++i) ASSERT_EQ(outputs[i], 0.0f);
  Bed alone(cpu(), layout, 4);
  const std::vector<float> first = alone.prefill(tokens, {2}, {0}, {0, 33});
  EXPECT_EQ(alone.bytes(2), together.bytes(2));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), outputs.begin()));
}

TEST_P(Prefill, AHitAtACheckpointEqualsTheColdRunBitwise) {
  const Layout layout = layout_of(GetParam().shape, format_of(8, LEAPQUANT_WINDOWED));
  const Tokens tokens = tokens_of(GetParam(), layout, 90, 14);
  Bed bed(cpu(), layout, 4);
  const std::vector<float> cold =
      bed.prefill(tokens, {0}, {0}, {0, 90}, {{0, 37, 1}, {0, 90, 2}}, true);
  EXPECT_EQ(bed.bytes(0), bed.bytes(2));  // a checkpoint at the end is the end
  Tokens rest = tokens;
  const auto drop = [](std::vector<float>* values) {
    values->erase(values->begin(),
                  values->begin() + static_cast<int64_t>(values->size() / 90 * 37));
  };
  for (auto* v : {&rest.q, &rest.k, &rest.v, &rest.read_key, &rest.log_decay, &rest.beta}) drop(v);
  bed.copy(1, 3);
  const std::vector<float> hit = bed.prefill(rest, {3}, {37}, {0, 53}, {{0, 90, 1}}, true);
  EXPECT_EQ(bed.bytes(3), bed.bytes(0));
  EXPECT_TRUE(std::equal(hit.begin(), hit.end(), cold.end() - static_cast<int64_t>(hit.size())));
}

// Sixteen equal keys (and nearly equal ones), steps of 1 and 2 and hardly any decay: the case that
// breaks explicit inverses in short types. Limit 1e-3; forward substitution in FP32 stays near
// 1e-5.
TEST(PrefillHard, CollinearKeys) {
  for (const float beta : {0.0f, 0.99966f, 1.0f, 2.0f}) {
    for (const float noise : {0.0f, 0.01f, 0.1f}) {
      const Layout layout = layout_of(shape_of(1, 1, 64, 64, LEAPQUANT_DECAY_SCALAR, 1, 1),
                                      format_of(32, LEAPQUANT_WINDOWED));
      Tokens tokens = random_tokens(layout, 512, 21);
      std::mt19937 random(22);
      const std::vector<float> jitter = normal(&random, tokens.k.size(), noise / 8.0f);
      for (size_t i = 0; i < tokens.k.size(); ++i) {
        tokens.k[i] = tokens.k[i % 64] + jitter[i];
        if (i % 64 == 0) tokens.beta[i / 64] = beta;
      }
      normalise_rows(&tokens.k, 64);
      std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), -3.07e-5f);
      Bed bed(cpu(), layout, 1);
      Bed oracle(reference::backend(), layout, 1);
      EXPECT_LE(relative_difference(bed.prefill(tokens, {0}, {0}, {0, 512}),
                                    oracle.prefill(tokens, {0}, {0}, {0, 512})),
                1e-3)
          << "beta " << beta << ", noise " << noise;
    }
  }
}

// Decays down to -1000 and minus infinity, by token and by channel: zeros, never NaN.
TEST(PrefillHard, StrongDecays) {
  for (const auto decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const Layout layout =
        layout_of(shape_of(1, 2, 64, 32, decay, 1, 1), format_of(32, LEAPQUANT_WINDOWED));
    Tokens tokens = random_tokens(layout, 100, 31);
    const float depths[] = {0.0f,   -3.0f,    -5.5f, -27.63f,
                            -90.0f, -1000.0f, -0.1f, -std::numeric_limits<float>::infinity()};
    for (size_t i = 0; i < tokens.log_decay.size(); ++i) tokens.log_decay[i] = depths[i * 5 % 8];
    Bed bed(cpu(), layout, 1);
    Bed oracle(reference::backend(), layout, 1);
    EXPECT_LE(relative_difference(bed.prefill(tokens, {0}, {0}, {0, 100}),
                                  oracle.prefill(tokens, {0}, {0}, {0, 100})),
              kLimit);
    EXPECT_LE(relative_difference(bed.state(0, 100), oracle.state(0, 100)), kLimit);
  }
}

TEST(PrefillFaults, LeaveTheSlotAndTheNeighboursAlone) {
  const Layout layout = layout_of(shape_of(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR, 1, 1),
                                  format_of(8, LEAPQUANT_WINDOWED));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tokens good = random_tokens(layout, 120, 41);
  struct Fault {
    std::vector<float> Tokens::* values;
    float value;
    int32_t status;
  };
  const Fault faults[] = {{&Tokens::k, nan, LEAPQUANT_NON_FINITE_INPUT},
                          {&Tokens::q, INFINITY, LEAPQUANT_NON_FINITE_INPUT},
                          {&Tokens::v, nan, LEAPQUANT_NON_FINITE_INPUT},
                          {&Tokens::beta, nan, LEAPQUANT_NON_FINITE_INPUT},
                          {&Tokens::log_decay, nan, LEAPQUANT_NON_FINITE_INPUT},
                          {&Tokens::log_decay, 5.0f, LEAPQUANT_POSITIVE_LOG_DECAY}};
  Bed clean(cpu(), layout, 3);
  const std::vector<float> expected = clean.prefill(good, {0, 1, 2}, {0, 0, 0}, {0, 40, 80, 120});
  for (const Fault& fault : faults) {
    Tokens tokens = good;
    std::vector<float>& values = tokens.*fault.values;
    values[values.size() / 120 * 71 + 1] = fault.value;  // the second sequence
    Bed bed(cpu(), layout, 3, 2);
    const std::vector<std::byte> before = bed.bytes(1);
    const std::vector<float> outputs = bed.prefill(tokens, {0, 1, 2}, {0, 0, 0}, {0, 40, 80, 120});
    EXPECT_EQ(bed.status, (std::vector<int32_t>{0, fault.status, 0}));
    EXPECT_EQ(bed.bytes(1), before);
    EXPECT_EQ(bed.bytes(0), clean.bytes(0));
    EXPECT_EQ(bed.bytes(2), clean.bytes(2));
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool faulty = i / 64 >= 40 && i / 64 < 80;
      ASSERT_EQ(outputs[i], faulty ? 0.0f : expected[i]) << i;
    }
  }
  Bed bed(cpu(), layout, 2);
  bed.reset(0, 10);
  bed.prefill(random_tokens(layout, 3, 1), {0, 1}, {9, 100}, {0, 2, 3});
  EXPECT_EQ(bed.status,
            (std::vector<int32_t>{LEAPQUANT_POSITION_BELOW_BASE, LEAPQUANT_POSITION_PAST_WINDOW}));
}

}  // namespace
}  // namespace leapquant::cpu_bed
