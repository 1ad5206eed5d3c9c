// SPDX-License-Identifier: Apache-2.0
//
// The configuration of a named model says the same sizes as its shape.
#include <gtest/gtest.h>

#include <string>

#include "tool/model_shapes.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

TEST(KnownConfig, AgreesWithTheShape) {
  for (const std::string name :
       {"qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b"}) {
    const ModelShape shape = known_shape(name);
    const runtime::ModelConfig config = known_config(name);
    EXPECT_EQ(config.num_linear_layers(), shape.linear_layers) << name;
    EXPECT_EQ(config.num_full_layers(), shape.full_layers) << name;
    EXPECT_EQ(config.conv_dim(), shape.convolution_channels) << name;
    EXPECT_EQ(config.linear_num_value_heads, shape.linear.num_v_heads) << name;
    EXPECT_EQ(2 * config.num_full_layers() * config.num_key_value_heads * config.head_dim,
              shape.kv_elements_per_token)
        << name;
    // The last layer of four is the full one.
    EXPECT_EQ(config.layer_kinds[3], runtime::LayerKind::kFullAttention) << name;
  }
}

TEST(KnownConfig, RefusesMixturesOfExpertsWithTheNamesItHas) {
  try {
    known_config("qwen3.5-35b-a3b");
    FAIL() << "a mixture of experts was taken for a dense model";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("qwen3.5-27b"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace leapquant::tool
