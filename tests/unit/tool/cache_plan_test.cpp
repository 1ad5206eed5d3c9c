// SPDX-License-Identifier: Apache-2.0
//
// Sizes of models and what fits into memory, against published figures.
#include "tool/cache_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tool/verb.h"

namespace leapquant::tool {
namespace {

StateCost cost_of(const ModelShape& model, const std::string& state) {
  runtime::StateOptions options;
  options.state = state;
  return state_cost(model,
                    runtime::resolve_state(options, model.linear.num_v_heads, model.linear_layers));
}

CachePlan plan_of(const ModelShape& model, const std::string& state, const PlanOptions& options) {
  return plan_cache(model, cost_of(model, state), options);
}

TEST(CachePlan, SavesWhatTheMethodReports) {
  PlanOptions options;
  options.context = 4096;
  options.checkpoint_every = 1024;
  // Cache memory saved with one checkpoint per 1,024 tokens, in tenths of a percent.
  const std::vector<std::pair<const char*, int>> expected = {
      {"qwen3.5-9b", 416}, {"qwen3.5-35b-a3b", 518}, {"kimi-linear-48b", 571}};
  for (const auto& [name, tenths] : expected) {
    const ModelShape model = known_shape(name);
    const double saving =
        cache_saving(plan_of(model, "int8", options), plan_of(model, "fp32", options));
    EXPECT_EQ(std::lround(1000 * saving), tenths) << name;
  }
}

TEST(CachePlan, CountsTheBytesOfTheFamily) {
  const ModelShape model = known_shape("qwen3.5-9b");
  EXPECT_EQ(cost_of(model, "fp32").bytes.boundary, 50'331'648);
  EXPECT_EQ(cost_of(model, "int8").bytes.boundary, 14'942'208);
  EXPECT_EQ(model.convolution_bytes(), 1'179'648);
  EXPECT_EQ(2 * model.kv_elements_per_token * 1024, 33'554'432);
  const ModelShape large = known_shape("qwen3.5-27b");
  EXPECT_EQ(cost_of(large, "fp32").bytes.boundary, 150'994'944);
  EXPECT_EQ(large.convolution_bytes(), 2'949'120);
  // At 8 bits at least 3.3 times smaller.
  EXPECT_GE(cost_of(large, "fp32").bytes.boundary,
            3.3 * static_cast<double>(cost_of(large, "int8").bytes.boundary));
}

TEST(CachePlan, WeightsAreThoseOfTheNames) {
  // Billions of parameters as published, within 4 % for what names round away.
  const std::vector<std::pair<const char*, double>> expected = {
      {"qwen3.5-4b", 4.2},       {"qwen3.5-9b", 9.0},      {"qwen3.5-27b", 26.9},
      {"qwen3.5-35b-a3b", 35.0}, {"qwen3-next-80b", 80.0}, {"kimi-linear-48b", 48.9}};
  for (const auto& [name, billions] : expected) {
    EXPECT_NEAR(static_cast<double>(known_shape(name).weight_bytes) / 2e9, billions,
                0.04 * billions)
        << name;
  }
}

TEST(CachePlan, ARequestIsTheSumOfItsParts) {
  const ModelShape model = known_shape("kimi-linear-48b");
  PlanOptions options;
  options.context = 10'000;
  options.checkpoint_every = 1024;
  const CachePlan probe = plan_of(model, "int4+", options);
  EXPECT_EQ(probe.checkpoints, 9);
  EXPECT_EQ(probe.request_bytes, probe.kv_bytes + model.convolution_bytes() +
                                     probe.state.bytes.total() +
                                     9 * (probe.state.bytes.boundary + probe.state.bytes.metadata +
                                          model.convolution_bytes()));
  options.memory_bytes = model.weight_bytes + 3 * probe.request_bytes;
  EXPECT_EQ(plan_of(model, "int4+", options).requests, 3);
  --options.memory_bytes;
  EXPECT_EQ(plan_of(model, "int4+", options).requests, 2);
  options.memory_bytes = model.weight_bytes / 2;
  EXPECT_EQ(plan_of(model, "int4+", options).requests, 0);
}

TEST(CachePlan, WithoutCheckpointsNothingIsCached) {
  const ModelShape model = known_shape("qwen3.5-0.8b");
  PlanOptions options;
  options.context = 5000;
  const CachePlan plan = plan_of(model, "int8", options);
  EXPECT_EQ(plan.checkpoints, 0);
  EXPECT_EQ(cache_saving(plan, plan_of(model, "fp32", options)), 0);
}

TEST(ModelShapes, AnUnknownNameListsTheKnownOnes) {
  try {
    known_shape("nothing");
    FAIL();
  } catch (const UsageError& error) {
    for (const std::string& name : known_shape_names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace leapquant::tool
