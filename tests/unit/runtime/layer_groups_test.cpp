// SPDX-License-Identifier: Apache-2.0
//
// Which layers share a pool, which formats are carried, and how a sequence keeps its fault.
#include "runtime/layer_groups.h"

#include <gtest/gtest.h>

#include "runtime/sequence.h"

namespace leapquant::runtime {
namespace {

StateFormat format_of(const std::string& state, std::int32_t layers) {
  StateOptions options;
  options.state = state;
  return resolve_state(options, 4, layers);
}

TEST(LayerGroups, EqualFormatsShareAGroup) {
  const LayerGroups same = group_layers(format_of("int8", 3));
  ASSERT_EQ(same.formats.size(), 1u);
  EXPECT_EQ(same.num_layers, std::vector<std::int32_t>{3});
  // Head 0 of layer 1 alone is kept otherwise.
  const LayerGroups mixed = group_layers(format_of("mix(int4@1.0,int8)", 3));
  ASSERT_EQ(mixed.formats.size(), 2u);
  EXPECT_EQ(mixed.num_layers, (std::vector<std::int32_t>{2, 1}));
  EXPECT_EQ(mixed.layers[0].group, 0u);
  EXPECT_EQ(mixed.layers[1].group, 1u);
  EXPECT_EQ(mixed.layers[1].index, 0u);
  EXPECT_EQ(mixed.layers[2].group, 0u);
  EXPECT_EQ(mixed.layers[2].index, 1u);
}

TEST(LayerGroups, OnlyFp32PerStepNeedsNoCarry) {
  EXPECT_FALSE(format_needs_carry(format_of("fp32", 1)));
  EXPECT_TRUE(format_needs_carry(format_of("fp32:window=16", 1)));
  EXPECT_TRUE(format_needs_carry(format_of("bf16", 1)));
  EXPECT_TRUE(format_needs_carry(format_of("int8", 1)));
}

TEST(Sequence, TheFirstFaultStays) {
  Sequence sequence(KvShape{});
  sequence.position = 7;
  note_fault(sequence, 0, LEAPQUANT_OK);
  EXPECT_EQ(sequence.fault, "");
  note_fault(sequence, 2, LEAPQUANT_NON_FINITE_INPUT);
  const std::string first = sequence.fault;
  EXPECT_NE(first.find("after 7 tokens in linear layer 2"), std::string::npos) << first;
  note_fault(sequence, 3, LEAPQUANT_POSITIVE_LOG_DECAY);
  EXPECT_EQ(sequence.fault, first);
}

}  // namespace
}  // namespace leapquant::runtime
