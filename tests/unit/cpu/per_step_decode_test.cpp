// SPDX-License-Identifier: Apache-2.0
//
// Per-step decode on the CPU against the FP64 reference, for states advanced in place and for
// encoded ones; faults, padding, threads.
#include <limits>

#include "core/numeric.h"
#include "cpu/backend.h"
#include "reference/backend.h"
#include "unit/cpu/prefill_bed.h"

namespace leapquant::cpu_bed {
namespace {

const Backend& cpu() { return cpu::cpu_backend(); }

struct Case {
  const char* name;
  leapquant_shape shape;
  bool read_keys = false;
  bool before_update = false;
};

class PerStep : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Families, PerStep,
    ::testing::Values(
        Case{"gdn", shape_of(1, 2, 64, 128, LEAPQUANT_DECAY_SCALAR, 1, 1)},
        Case{"narrow", shape_of(1, 3, 36, 20, LEAPQUANT_DECAY_SCALAR, 1, 1)},
        Case{"smallest", shape_of(1, 1, 4, 4, LEAPQUANT_DECAY_NONE, 1, 1)},
        Case{"mamba2", shape_of(1, 2, 64, 52, LEAPQUANT_DECAY_SCALAR, 0, 1)},
        Case{"kda", shape_of(2, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 1, 1)},
        Case{"rwkv6", shape_of(1, 2, 32, 64, LEAPQUANT_DECAY_VECTOR, 0, 1), false, true},
        Case{"rwkv7", shape_of(1, 2, 64, 64, LEAPQUANT_DECAY_VECTOR, 1, 2), true},
        Case{"delta_product", shape_of(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR, 1, 3)},
        Case{"before_update", shape_of(1, 2, 32, 36, LEAPQUANT_DECAY_SCALAR, 1, 2), false, true}),
    [](const auto& test) { return std::string(test.param.name); });

Tokens tokens_of(const Case& c, const Layout& layout, int32_t count, uint32_t seed) {
  Tokens tokens = random_tokens(layout, count, seed);
  std::mt19937 random(seed + 1);
  if (c.read_keys) {
    tokens.read_key = normal(&random, tokens.k.size(), 1.0f);
    normalise_rows(&tokens.read_key, static_cast<size_t>(layout.shape.head_k_dim));
  }
  if (c.before_update) {
    const size_t heads = static_cast<size_t>(layout.shape.num_v_heads);
    tokens.options.read_before_update = 1;
    tokens.bonus = normal(&random, heads * static_cast<size_t>(layout.shape.head_k_dim), 1.0f);
    tokens.skip = normal(&random, heads, 1.0f);
  }
  return tokens;
}

// Runs the same twelve calls of three tokens on two sequences on both backends; the largest
// relative differences of outputs and states.
void compare(const Case& c, int32_t bits, double output_limit, double state_limit) {
  const Layout layout = layout_of(c.shape, format_of(bits, LEAPQUANT_PER_STEP));
  Bed bed(cpu(), layout, 3, 2);
  Bed oracle(reference::backend(), layout, 3);
  for (int32_t call = 0; call < 12; ++call) {
    const Tokens tokens = tokens_of(c, layout, 6, static_cast<uint32_t>(50 + call));
    const std::vector<int32_t> positions = {3 * call, 3 * call};
    const std::vector<float> actual = bed.decode(tokens, {2, 0}, positions, 3);
    const std::vector<float> expected = oracle.decode(tokens, {2, 0}, positions, 3);
    ASSERT_EQ(bed.status, (std::vector<int32_t>{0, 0}));
    EXPECT_LE(relative_difference(actual, expected), output_limit) << "call " << call;
  }
  EXPECT_LE(relative_difference(bed.state(2, 36), oracle.state(2, 36)), state_limit);
  EXPECT_LE(relative_difference(bed.state(0, 36), oracle.state(0, 36)), state_limit);
}

// FP32 sums of at most 256 terms over 36 tokens.
TEST_P(PerStep, Fp32EqualsTheReference) { compare(GetParam(), 32, 1e-5, 1e-5); }

// Where FP32 and FP64 straddle a rounding of BF16, entries differ by one step of 2^-8; a few such
// entries remain a few parts in a thousand of the largest one.
TEST_P(PerStep, Bf16FollowsTheReference) { compare(GetParam(), 16, 4e-3, 8e-3); }

// One scale per column: a code more or less is 1/127 of the column's largest entry. Codes that fall
// differently (FP32 against FP64) feed back into later tokens; after 36 a few steps are left.
TEST_P(PerStep, Int8FollowsTheReference) { compare(GetParam(), 8, 4.0 / 127, 4.0 / 127); }

// What a BF16 state holds after a token is the FP32 update, rounded once half to even.
TEST(PerStepBf16, IsRoundedHalfToEvenAfterEveryToken) {
  const Layout layout = layout_of(shape_of(1, 1, 8, 36, LEAPQUANT_DECAY_NONE, 0, 1),
                                  format_of(16, LEAPQUANT_PER_STEP));
  Tokens tokens = random_tokens(layout, 1, 61);
  std::fill(tokens.k.begin(), tokens.k.end(), 0.0f);
  tokens.k[3] = 1.0f;  // S = k v^T: one row takes v as it is
  tokens.beta[0] = 1.0f;
  tokens.v[0] = 1.0f + 1.0f / 256;    // a tie, to even: down
  tokens.v[1] = 1.0f + 3.0f / 256;    // a tie, to even: up
  tokens.v[33] = -1.0f - 1.5f / 256;  // in the last columns, which no whole vector covers
  Bed bed(cpu(), layout, 1);
  bed.decode(tokens, {0}, {0}, 1);
  const std::vector<float> state = bed.state(0, 1);
  for (size_t c = 0; c < 36; ++c) {
    EXPECT_EQ(state[3 * 36 + c], bf16_to_float(float_to_bf16(tokens.v[c]))) << c;
  }
  EXPECT_EQ(state[3 * 36], 1.0f);
  EXPECT_EQ(state[3 * 36 + 1], 1.0f + 4.0f / 256);
}

TEST(PerStepFaults, LeaveTheSlotAloneAndZeroTheRows) {
  const Layout layout = layout_of(shape_of(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR, 1, 1),
                                  format_of(32, LEAPQUANT_PER_STEP));
  Tokens tokens = random_tokens(layout, 12, 71);
  Bed clean(cpu(), layout, 4);
  const std::vector<float> expected = clean.decode(tokens, {0, 1, 2, 3}, {0, 0, 0, 0}, 3);
  tokens.k[3 * 32 + 5] = std::numeric_limits<float>::quiet_NaN();  // sequence 1
  Bed bed(cpu(), layout, 4, 2);
  const std::vector<std::byte> before[] = {bed.bytes(1), bed.bytes(2), bed.bytes(3)};
  const std::vector<float> outputs =
      bed.decode(tokens, {0, 1, -1, 3}, {0, 0, 0, 7}, 3, {3, 3, 3, 3});
  EXPECT_EQ(bed.status, (std::vector<int32_t>{LEAPQUANT_OK, LEAPQUANT_NON_FINITE_INPUT,
                                              LEAPQUANT_OK, LEAPQUANT_POSITION_PAST_WINDOW}));
  EXPECT_EQ(bed.bytes(0), clean.bytes(0));
  for (int32_t slot = 1; slot < 4; ++slot) EXPECT_EQ(bed.bytes(slot), before[slot - 1]);
  for (size_t i = 0; i < outputs.size(); ++i) {
    ASSERT_EQ(outputs[i], i < outputs.size() / 4 ? expected[i] : 0.0f) << i;
  }
}

TEST(PerStepFaults, NumTokensMayDiffer) {
  const Layout layout = layout_of(shape_of(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR, 1, 1),
                                  format_of(16, LEAPQUANT_PER_STEP));
  const Tokens tokens = random_tokens(layout, 6, 72);
  Bed bed(cpu(), layout, 2);
  const std::vector<std::byte> before = bed.bytes(1);
  const std::vector<float> outputs = bed.decode(tokens, {0, 1}, {0, 0}, 3, {2, 0});
  EXPECT_EQ(bed.bytes(1), before);
  EXPECT_EQ(base_of(layout, bed.pool(), 0, 1), 2);
  for (size_t i = 0; i < outputs.size(); ++i) ASSERT_EQ(outputs[i] == 0.0f, i >= 2 * 64) << i;
}

// A state that overflows: the entries become zero and the flag says so, in place and encoded alike.
TEST(PerStepHealth, OverflowIsFlaggedAndCleared) {
  for (const int32_t bits : {32, 16, 8}) {
    for (const int32_t delta : {0, 1}) {
      const Layout layout = layout_of(shape_of(1, 1, 16, 16, LEAPQUANT_DECAY_NONE, delta, 1),
                                      format_of(bits, LEAPQUANT_PER_STEP));
      Tokens tokens = random_tokens(layout, 1, 81);
      std::fill(tokens.k.begin(), tokens.k.end(), 1e20f);
      tokens.v[0] = 1e20f;
      tokens.beta[0] = 1.0f;
      Bed bed(cpu(), layout, 1);
      bed.decode(tokens, {0}, {0}, 1);
      EXPECT_TRUE(health_of(layout, bed.pool(), 0, 0)->flags & LEAPQUANT_HEALTH_NON_FINITE) << bits;
      for (const float x : bed.state(0, 1)) ASSERT_TRUE(std::isfinite(x)) << bits;
    }
  }
}

}  // namespace
}  // namespace leapquant::cpu_bed
