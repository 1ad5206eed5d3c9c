// SPDX-License-Identifier: Apache-2.0
//
// Faults of single sequences: the row is zero, the slot unchanged, the neighbours bitwise as in a
// run without it. With checks on the call says so; with checks off only the status array does.
#include <climits>
#include <cmath>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

constexpr int32_t kBad = 1;  // the faulty sequence of three

struct Case {
  const char* name;
  leapquant_status status;
  const char* sentence;
  void (*spoil)(Activations& x);
};

// Index of the first value of the faulty sequence in a tensor of three sequences.
float& first_of(std::vector<float>& data) { return data[data.size() / 3 * kBad]; }

const Case kCases[] = {
    {"q", LEAPQUANT_NON_FINITE_INPUT, "inputs.q holds nan at token 0",
     [](auto& x) { first_of(x.q) = NAN; }},
    {"k", LEAPQUANT_NON_FINITE_INPUT, "inputs.k holds inf at token 0",
     [](auto& x) { first_of(x.k) = INFINITY; }},
    {"v", LEAPQUANT_NON_FINITE_INPUT, "inputs.v holds -inf at token 0",
     [](auto& x) { first_of(x.v) = -INFINITY; }},
    {"beta", LEAPQUANT_NON_FINITE_INPUT, "inputs.beta holds nan at token 0",
     [](auto& x) { first_of(x.beta) = NAN; }},
    {"decay", LEAPQUANT_NON_FINITE_INPUT, "inputs.log_decay holds nan at token 0",
     [](auto& x) { first_of(x.log_decay) = NAN; }},
    {"growth", LEAPQUANT_POSITIVE_LOG_DECAY, "inputs.log_decay holds 5 at token 0",
     [](auto& x) { first_of(x.log_decay) = 5.0f; }},
};

class Faults : public ::testing::TestWithParam<std::tuple<int, const char*, leapquant_check>> {};

TEST_P(Faults, StayWithTheirSequence) {
  const Case& fault = kCases[std::get<0>(GetParam())];
  const leapquant_check check = std::get<2>(GetParam());
  SmallLayer healthy(std::get<1>(GetParam()));
  SmallLayer hurt(std::get<1>(GetParam()));
  for (SmallLayer* layer : {&healthy, &hurt}) {
    ASSERT_EQ(layer->reset({0, 1, 2}), LEAPQUANT_OK);
    layer->launch.check = check;
    const leapquant_decode_args first = layer->decode_args({0, 1, 2}, {0, 0, 0}, 1, {1, 2, 3});
    ASSERT_EQ(layer->run(first), LEAPQUANT_OK) << leapquant_last_error();
  }
  const auto args_healthy = healthy.decode_args({0, -1, 2}, {1, 1, 1}, 1, {1, 2, 3});
  ASSERT_EQ(healthy.run(args_healthy), LEAPQUANT_OK);
  const auto args = hurt.decode_args({0, 1, 2}, {1, 1, 1}, 1, {1, 2, 3});
  fault.spoil(*hurt.input);
  const leapquant_status answer = hurt.run(args);
  if (check == LEAPQUANT_CHECK_OFF) {
    EXPECT_EQ(answer, LEAPQUANT_OK);
  } else {
    EXPECT_REFUSED(answer, fault.status, "sequence 1");
    EXPECT_NE(std::string(leapquant_last_error()).find(fault.sentence), std::string::npos)
        << leapquant_last_error();
  }
  EXPECT_EQ(hurt.status, (std::vector<int32_t>{LEAPQUANT_OK, fault.status, LEAPQUANT_OK}));
  EXPECT_EQ(hurt.output, healthy.output) << "outputs: the faulty row is zero, the others equal";
  EXPECT_EQ(hurt.snapshot(), healthy.snapshot()) << "slots";
}

INSTANTIATE_TEST_SUITE_P(
    All, Faults,
    ::testing::Combine(::testing::Range(0, 6), ::testing::Values("int8", "fp32:step"),
                       ::testing::Values(LEAPQUANT_CHECK_FULL, LEAPQUANT_CHECK_OFF)),
    [](const auto& test) {
      return std::string(kCases[std::get<0>(test.param)].name) +
             (std::get<1>(test.param)[0] == 'i' ? "_int8" : "_fp32_step") +
             (std::get<2>(test.param) == LEAPQUANT_CHECK_FULL ? "_full" : "_off");
    });

// With checks off, what the host would have refused becomes a fault of its sequence.
TEST(ChecksOff, SlotsAndPositionsReachTheStatus) {
  SmallLayer healthy;
  SmallLayer hurt;
  for (SmallLayer* layer : {&healthy, &hurt}) {
    ASSERT_EQ(layer->reset({0, 1, 2, 3}), LEAPQUANT_OK);
    ASSERT_EQ(layer->reset({2}, 10), LEAPQUANT_OK);
    layer->launch.check = LEAPQUANT_CHECK_OFF;
  }
  const std::vector<uint64_t> seeds = {1, 2, 3, 4, 5, 6};
  const auto args_healthy =
      healthy.decode_args({0, -1, -1, -1, -1, -1}, {0, 0, 0, 9, 40, 0}, 1, seeds);
  ASSERT_EQ(healthy.run(args_healthy), LEAPQUANT_OK);
  const auto args = hurt.decode_args({0, 6, 0, 2, 1, 3}, {0, 0, 0, 9, 40, INT_MAX}, 1, seeds);
  ASSERT_EQ(hurt.run(args), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_EQ(hurt.status,
            (std::vector<int32_t>{LEAPQUANT_OK, LEAPQUANT_SLOT_OUT_OF_RANGE,
                                  LEAPQUANT_SLOT_REPEATED, LEAPQUANT_POSITION_BELOW_BASE,
                                  LEAPQUANT_POSITION_PAST_WINDOW, LEAPQUANT_INVALID_ARGUMENT}));
  EXPECT_EQ(hurt.output, healthy.output);
  EXPECT_EQ(hurt.snapshot(), healthy.snapshot());
}

TEST(MinusInfinity, IsALegalDecay) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  layer.feed(0, 0, 3);
  const auto args = layer.decode_args({0}, {3});
  for (float& g : layer.input->log_decay) g = -INFINITY;
  ASSERT_EQ(layer.run(args), LEAPQUANT_OK) << leapquant_last_error();
  for (const float x : layer.output) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace leapquant_test
