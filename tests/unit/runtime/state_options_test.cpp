// SPDX-License-Identifier: Apache-2.0
//
// From options to formats: defaults, the plain baselines per step, ranks, mixes, and that the
// canonical text means the same formats.
#include "runtime/state_options.h"

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

StateOptions options(const std::string& state, StatePolicy policy = StatePolicy::kDefault) {
  StateOptions result;
  result.state = state;
  result.policy = policy;
  return result;
}

StateFormat resolve(const StateOptions& given, std::int32_t heads = 4, std::int32_t layers = 2) {
  const StateFormat format = resolve_state(given, heads, layers);
  // Canonical: the text alone gives the same formats, and the same text.
  const StateFormat again = resolve_state(options(format.text), heads, layers);
  EXPECT_EQ(again.text, format.text);
  EXPECT_TRUE(again.layers == format.layers) << format.text;
  return format;
}

TEST(StateOptions, DefaultsToStepForPlainTypesAndToWindowsForQuantisedOnes) {
  EXPECT_TRUE(resolve(options("fp32")).per_step());
  EXPECT_TRUE(resolve(options("bf16")).per_step());
  EXPECT_TRUE(resolve(options("fp32")).is_fp32());
  EXPECT_FALSE(resolve(options("bf16")).is_fp32());
  for (const char* name : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact"}) {
    const StateFormat format = resolve(options(name));
    EXPECT_FALSE(format.per_step()) << name;
    EXPECT_EQ(format.first().window, 16) << name;
    EXPECT_EQ(format.text, name);
  }
}

TEST(StateOptions, PlainTypesInAWindow) {
  const StateFormat format = resolve(options("fp32", StatePolicy::kWindow));
  EXPECT_FALSE(format.per_step());
  EXPECT_EQ(format.text, "fp32:window=16");
  EXPECT_FALSE(resolve(options("bf16:window=8")).per_step());
  EXPECT_EQ(resolve(options("bf16:window=8")).first().window, 8);
}

TEST(StateOptions, StepIsThePlainBaseline) {
  for (const char* name : {"int8", "int6", "int4", "int4+", "int8:window=32"}) {
    const leapquant_format format = resolve(options(name, StatePolicy::kStep)).first();
    EXPECT_EQ(format.policy, LEAPQUANT_PER_STEP) << name;
    EXPECT_EQ(format.window, 1);
    EXPECT_EQ(format.num_fp16 + format.num_int8 + format.num_int4, 0);
    EXPECT_EQ(format.smoothing, LEAPQUANT_SMOOTHING_NONE);
  }
  EXPECT_TRUE(resolve(options("int8:step")).per_step());
}

TEST(StateOptions, WindowRankSmoothingAndStagger) {
  StateOptions given = options("int8");
  given.window = 32;
  given.rank = 8;
  given.smoothing = false;
  given.stagger = true;
  const leapquant_format format = resolve(given).first();
  EXPECT_EQ(format.window, 32);
  EXPECT_EQ(format.num_fp16, 8);
  EXPECT_EQ(format.smoothing, LEAPQUANT_SMOOTHING_NONE);
  EXPECT_EQ(format.stagger, 1);
  given.rank = 0;
  EXPECT_EQ(resolve(given).first().num_fp16, 0);
}

TEST(StateOptions, RankNeedsFp16Compensators) {
  StateOptions given = options("int8+");
  given.rank = 8;
  EXPECT_ERROR(resolve_state(given, 4), "FP16 compensators only");
  given = options("fp32");
  given.rank = 8;
  EXPECT_ERROR(resolve_state(given, 4), "FP16 compensators only");
  given = options("int8", StatePolicy::kStep);
  given.rank = 8;
  EXPECT_ERROR(resolve_state(given, 4), "policy step keeps none");
  given = options("int8");
  given.rank = 33;
  EXPECT_ERROR(resolve_state(given, 4), "not possible");
}

TEST(StateOptions, ContradictionsAndNonsense) {
  StateOptions given = options("int8", StatePolicy::kStep);
  given.window = 16;
  EXPECT_ERROR(resolve_state(given, 4), "exclude each other");
  EXPECT_ERROR(resolve_state(options("int8:step", StatePolicy::kWindow), 4), "per step");
  EXPECT_ERROR(resolve_state(options("int5"), 4), "int5");
  EXPECT_ERROR(resolve_state(options(""), 4), "not understood");
  EXPECT_ERROR(resolve_state(options("mix(int8@0-9,int4)"), 4), "0-9");
  EXPECT_ERROR(resolve_state(options("mix(int8:window=8@0,int4)"), 4), "share");
  EXPECT_ERROR(resolve_state(options("int8"), 4, 0), "no linear-attention layers");
}

TEST(StateOptions, MixByHead) {
  const StateFormat format = resolve(options("mix(int8+@0-1,int4-compact)"));
  EXPECT_EQ(format.text, "mix(int8+@0-1,int4-compact)");
  ASSERT_EQ(format.layers.size(), 2u);
  EXPECT_TRUE(format.layers[0] == format.layers[1]);
  EXPECT_EQ(format.layers[0].head_format, (std::vector<std::uint8_t>{0, 0, 1, 1}));
}

TEST(StateOptions, MixByLayerAndHead) {
  const StateFormat format = resolve(options("mix(int8@0.0&0.2-3&1.1,int4)"));
  EXPECT_FALSE(format.layers[0] == format.layers[1]);
  const auto bits = [&](std::size_t layer, std::size_t head) {
    return format.layers[layer].formats[format.layers[layer].head_format[head]].payload_bits;
  };
  EXPECT_EQ(bits(0, 0), 8);
  EXPECT_EQ(bits(0, 1), 4);
  EXPECT_EQ(bits(0, 3), 8);
  EXPECT_EQ(bits(1, 0), 4);
  EXPECT_EQ(bits(1, 1), 8);
}

TEST(StateOptions, AMixNamesLayersThatAreThere) {
  for (const char* heads : {"2.0", "0.0&2.1", "1.0-1&9.3", "9.0-3&0"}) {
    const std::string first = std::string("mix(int8@") + heads + ",int4)";
    EXPECT_ERROR(resolve_state(options(first), 4, 2), "not among the recurrent layers 0-1");
    const std::string second = std::string("mix(int6@0.0,int8@") + heads + ",int4)";
    EXPECT_ERROR(resolve_state(options(second), 4, 2), "not among the recurrent layers 0-1");
  }
  EXPECT_ERROR(resolve_state(options("mix(int8@-1.0,int4)"), 4, 2), "layer -1");
  resolve(options("mix(int8@0.0&1.3,int4)"));
}

TEST(StateOptions, AMixWithAQuantisedFormatIsWindowedThroughout) {
  const StateFormat format = resolve(options("mix(fp32@0,int8)"));
  EXPECT_FALSE(format.per_step());
  EXPECT_FALSE(format.is_fp32());
}

TEST(StateOptions, FormatsThatTheOptionsMakeEqualAreOne) {
  StateOptions given = options("mix(int8@0,int8:r=8)");
  given.rank = 2;
  const StateFormat format = resolve(given);
  EXPECT_EQ(format.layers[0].formats.size(), 1u);
  EXPECT_EQ(format.text, "int8:r=2");
}

}  // namespace
}  // namespace leapquant::runtime
