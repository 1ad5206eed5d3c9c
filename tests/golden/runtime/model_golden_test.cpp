// SPDX-License-Identifier: Apache-2.0
//
// The runtime with FP32 states against golden.safetensors, which Hugging Face Transformers made
// from the same weights in FP32: logits, recurrent states, convolution states, greedy completions.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/batch.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/safetensors.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {
namespace {

// The figure of the project. Two FP32 implementations that sum in different orders differ by about
// the square root of the number of roundings times 2^-24 per layer, some 1e-6 in all.
constexpr double kRelative = 1e-4;

std::filesystem::path model_folder() {
  return std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m";
}

class Golden : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new Model(Model::load(model_folder()));
    golden_ = new SafetensorsFile(model_folder() / "golden.safetensors");
  }
  static void TearDownTestSuite() {
    delete golden_;
    delete model_;
  }

  static std::vector<TokenId> tokens_of(const TensorView& tensor) {
    std::vector<TokenId> tokens;
    if (tensor.dtype == DType::kI64) {
      for (const std::int64_t token : tensor.as<std::int64_t>()) {
        tokens.push_back(static_cast<TokenId>(token));
      }
    } else {
      for (const std::int32_t token : tensor.as<std::int32_t>()) tokens.push_back(token);
    }
    return tokens;
  }
  // Tokens of text `index` of input_ids [texts, tokens].
  static std::vector<TokenId> text(std::size_t index) {
    const TensorView& ids = golden_->at("input_ids");
    const std::vector<TokenId> all = tokens_of(ids);
    const auto length = static_cast<std::size_t>(ids.shape[1]);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(index * length);
    return {first, first + static_cast<std::ptrdiff_t>(length)};
  }
  static std::span<const float> part(const std::string& name, std::size_t index) {
    const TensorView& tensor = golden_->at(name);
    const std::span<const float> all = tensor.as<float>();
    const std::size_t size = all.size() / static_cast<std::size_t>(tensor.shape[0]);
    return all.subspan(index * size, size);
  }

  static void expect_equal(std::span<const float> values, std::span<const float> expected,
                           const std::string& what) {
    ASSERT_EQ(values.size(), expected.size()) << what;
    double difference = 0;
    double total = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{values[i]} - expected[i], 2);
      total += std::pow(double{expected[i]}, 2);
    }
    const double relative = std::sqrt(difference / total);
    EXPECT_LE(relative, kRelative) << what;
    testing::Test::RecordProperty(what, std::to_string(relative));
  }

  static void expect_states(const Batch& batch, SequenceId sequence, std::size_t index) {
    const ModelConfig& config = model_->config();
    std::int32_t linear_layer = 0;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      if (config.layer_kinds[static_cast<std::size_t>(i)] != LayerKind::kLinearAttention) continue;
      const std::string prefix = "layers." + std::to_string(i) + ".";
      std::vector<float> state(
          static_cast<std::size_t>(config.linear_num_value_heads * config.linear_key_head_dim *
                                   config.linear_value_head_dim));
      batch.export_state(sequence, linear_layer, state);
      expect_equal(state, part(prefix + "recurrent_state", index), prefix + "recurrent_state");
      // The golden convolution state keeps one input more, channel by channel.
      const std::span<const float> golden = part(prefix + "conv_state", index);
      const auto taps = static_cast<std::size_t>(config.linear_conv_kernel);
      std::vector<float> expected;
      for (std::size_t input = 1; input < taps; ++input) {
        for (std::size_t c = 0; c < static_cast<std::size_t>(config.conv_dim()); ++c) {
          expected.push_back(golden[c * taps + input]);
        }
      }
      expect_equal(batch.convolution_state(sequence, linear_layer), expected,
                   prefix + "conv_state");
      ++linear_layer;
    }
    EXPECT_EQ(linear_layer, config.num_linear_layers());
  }

  static Model* model_;
  static SafetensorsFile* golden_;
};
Model* Golden::model_ = nullptr;
SafetensorsFile* Golden::golden_ = nullptr;

StateFormat fp32(const Model& model) {
  StateOptions options;
  options.state = "fp32";
  return resolve_state(options, model.config());
}

TEST_F(Golden, PrefillGivesLogitsAndStates) {
  const Threads threads(1);
  Batch batch(*model_, fp32(*model_), threads);
  for (std::size_t index = 0; index < 2; ++index) {
    const std::vector<TokenId> tokens = text(index);
    const SequenceId sequence = *batch.open(static_cast<std::int64_t>(tokens.size()));
    std::vector<float> logits(tokens.size() *
                              static_cast<std::size_t>(model_->config().vocab_size));
    batch.prefill_with_all_logits({sequence, tokens}, logits);
    expect_equal(logits, part("logits", index), "logits");
    expect_states(batch, sequence, index);
    batch.close(sequence);
  }
}

TEST_F(Golden, ChunkedPrefillGivesTheSame) {
  const Threads threads(2);
  BatchOptions options;
  options.prefill_chunk = 37;
  Batch batch(*model_, fp32(*model_), threads, options);
  const std::vector<TokenId> tokens = text(0);
  const SequenceId sequence = *batch.open(static_cast<std::int64_t>(tokens.size()));
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(model_->config().vocab_size));
  batch.prefill_with_all_logits({sequence, tokens}, logits);
  expect_equal(logits, part("logits", 0), "logits");
  expect_states(batch, sequence, 0);
}

TEST_F(Golden, DecodeOfBothTextsAtOnceGivesLogitsAndStates) {
  const Threads threads(2);
  BatchOptions options;
  options.max_sequences = 2;
  options.max_tokens_per_call = 3;
  Batch batch(*model_, fp32(*model_), threads, options);
  const std::vector<TokenId> tokens[2] = {text(0), text(1)};
  const std::size_t length = tokens[0].size();
  const auto vocab_size = static_cast<std::size_t>(model_->config().vocab_size);
  const SequenceId sequences[2] = {*batch.open(static_cast<std::int64_t>(length)),
                                   *batch.open(static_cast<std::int64_t>(length))};
  std::vector<float> logits[2];
  std::size_t fed[2] = {0, 0};
  // One text goes token by token, the other in threes.
  while (fed[0] < length || fed[1] < length) {
    std::vector<Feed> feeds;
    std::vector<std::size_t> owners;
    std::size_t rows = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t count = std::min<std::size_t>(i == 0 ? 1 : 3, length - fed[i]);
      if (count == 0) continue;
      feeds.push_back({sequences[i], std::span(tokens[i]).subspan(fed[i], count)});
      owners.push_back(i);
      rows += count;
    }
    std::vector<float> step(rows * vocab_size);
    batch.decode(feeds, step);
    auto from = step.begin();
    for (std::size_t f = 0; f < feeds.size(); ++f) {
      const auto size = static_cast<std::ptrdiff_t>(feeds[f].tokens.size() * vocab_size);
      logits[owners[f]].insert(logits[owners[f]].end(), from, from + size);
      from += size;
      fed[owners[f]] += feeds[f].tokens.size();
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    expect_equal(logits[i], part("logits", i), "logits");
    expect_states(batch, sequences[i], i);
  }
}

TEST_F(Golden, GreedyCompletions) {
  const Threads threads(2);
  BatchOptions batch_options;
  batch_options.max_sequences = 2;
  Batch batch(*model_, fp32(*model_), threads, batch_options);
  const Tokenizer tokenizer = Tokenizer::load(model_folder());
  std::vector<Prompt> prompts;
  std::vector<std::vector<TokenId>> expected;
  for (const std::string task : {"swap", "copy"}) {
    Prompt prompt;
    prompt.tokens = tokens_of(golden_->at("generate." + task + ".prompt"));
    expected.push_back(tokens_of(golden_->at("generate." + task + ".completion")));
    prompt.max_tokens = static_cast<std::int64_t>(expected.back().size()) + 10;
    prompts.push_back(prompt);
  }
  const std::vector<Completion> completions = generate(batch, tokenizer, prompts, {});
  ASSERT_EQ(completions.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(completions[i].tokens, expected[i]);
    EXPECT_EQ(completions[i].reason, FinishReason::kEndToken);
  }
}

}  // namespace
}  // namespace leapquant::runtime
