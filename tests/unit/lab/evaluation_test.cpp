// SPDX-License-Identifier: Apache-2.0
//
// Pieces of the evaluation that need no model, and the spreading of coarse work.
#include "lab/evaluation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include "lab/parallel.h"

namespace leapquant::lab {
namespace {

TEST(TokenLoss, IsMinusLogOfTheProbability) {
  const std::vector<float> logits = {0.0f, 0.0f, 20000.0f};
  EXPECT_NEAR(token_loss(logits, 2), 0, 1e-12);
  EXPECT_NEAR(token_loss(logits, 0), 20000, 1e-6);
  EXPECT_NEAR(token_loss(std::vector<float>(4, 7.0f), 1), std::log(4.0), 1e-12);
}

TEST(Divergence, OfADistributionFromItselfIsZero) {
  const std::vector<float> logits = {1, -3, 0.5F, 80};
  EXPECT_EQ(divergence(logits, logits), 0);
  std::vector<float> shifted = logits;
  for (float& x : shifted) x += 16;  // exact in FP32
  EXPECT_NEAR(divergence(logits, shifted), 0, 1e-14);
}

TEST(Divergence, IsTheSumOfItsDefinition) {
  // p = (1/2, 1/2), q = (1/4, 3/4): log 2 / 2 + log(2/3) / 2.
  const std::vector<float> p = {0, 0};
  const std::vector<float> q = {0, static_cast<float>(std::log(3.0))};
  const double expected = 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0);
  EXPECT_NEAR(divergence(p, q), expected, 1e-7);  // log 3 is rounded to FP32
  EXPECT_GT(std::abs(divergence(q, p) - expected), 1e-3);
}

TEST(Divergence, OfLogitsThatAreNoNumbersIsNone) {
  const std::vector<float> good = {1, 2};
  for (const std::vector<float>& bad : {std::vector<float>{NAN, 2}, {1, NAN}, {NAN, NAN}}) {
    EXPECT_TRUE(std::isnan(divergence(good, bad)));
    EXPECT_TRUE(std::isnan(divergence(bad, good)));
  }
}

TEST(Divergence, TakesLargeLogits) {
  const std::vector<float> p = {10000, -10000};
  const std::vector<float> q = {-10000, 10000};
  EXPECT_NEAR(divergence(p, q), 20000, 1e-6);
}

runtime::StateFormat format_of(const std::string& text) {
  runtime::StateOptions options;
  options.state = text;
  return runtime::resolve_state(options, 4, 2);
}

TEST(Names, PolicyIsNoPartOfTheState) {
  EXPECT_EQ(state_name(format_of("int8")), "int8");
  EXPECT_EQ(policy_name(format_of("int8")), "window");
  EXPECT_EQ(state_name(format_of("int8:step")), "int8");
  EXPECT_EQ(policy_name(format_of("int8:step")), "step");
  EXPECT_EQ(state_name(format_of("fp32")), "fp32");
  EXPECT_EQ(policy_name(format_of("fp32")), "step");
}

TEST(ForEachIndex, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> calls(100);
    for_each_index(100, threads, [&](int i) { ++calls[static_cast<std::size_t>(i)]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  for_each_index(0, 3, [](int) { FAIL(); });
}

TEST(ForEachIndex, PassesOnTheFirstExceptionOfOneThread) {
  int calls = 0;
  const auto third = [&](int) {
    if (++calls == 3) throw std::runtime_error("three");
  };
  EXPECT_THROW(for_each_index(1000, 1, third), std::runtime_error);
  EXPECT_EQ(calls, 3);
}

// Releases `gone` when its last copy is.
struct Failure {
  std::shared_ptr<void> sign;
  explicit Failure(std::atomic<bool>& gone)
      : sign(nullptr, [&](void*) {
          gone = true;
          gone.notify_all();
        }) {}
};

// All three threads are inside a call when two of them fail. The second failure is not kept: once
// it is gone both are recorded, and the third call, which has waited for that, is the last one.
TEST(ForEachIndex, PassesOnTheFirstExceptionOfMany) {
  std::atomic<int> calls{0};
  std::atomic<bool> gone{false};
  std::barrier<> inside(3);
  const auto two_fail = [&](int i) {
    ++calls;
    if (i > 2) return;
    inside.arrive_and_wait();
    if (i < 2) throw Failure(gone);
    gone.wait(false);
  };
  EXPECT_THROW(for_each_index(1000, 3, two_fail), Failure);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace leapquant::lab
