// SPDX-License-Identifier: Apache-2.0
//
// The reference model on the device: logits against golden values and the CPU, independence of
// neighbours and graphs, sessions that go between devices, greedy completions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/batch.h"
#include "runtime/error.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/safetensors.h"
#include "runtime/session.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {
namespace {

// FP32 on both sides, sums in another order and exp of the device: some 1e-5 in all; the figure of
// the project is this.
constexpr double kFp32 = 1e-3;
// A BF16 rounding is 2^-9 of a value; eight layers of some ten roundings each, uncorrelated, give
// sqrt(80) 2^-9 / sqrt(3) = 1e-2, and twice that where they line up.
constexpr double kBf16 = 3e-2;
// Two correct folds differ by at most the format's own error of the outputs, which for INT8 is
// sqrt(1.4e-5) = 4e-3 (docs/DESIGN.md), on each side.
constexpr double kInt8 = 2e-2;

std::filesystem::path model_folder() {
  return std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m";
}

double relative(std::span<const float> values, std::span<const float> expected) {
  EXPECT_EQ(values.size(), expected.size());
  double difference = 0;
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Not-a-number never passes: it makes the sum one.
    difference += std::pow(double{values[i]} - expected[i], 2);
    total += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / total);
}

class CudaEngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new Model(Model::load(model_folder()));
    golden_ = new SafetensorsFile(model_folder() / "golden.safetensors");
    fp32_ = load_on_cuda(*model_, Activations::kFp32);
    bf16_ = load_on_cuda(*model_, Activations::kBf16);
  }
  static void TearDownTestSuite() {
    fp32_.reset();
    bf16_.reset();
    delete golden_;
    delete model_;
  }

  static std::size_t vocab() { return static_cast<std::size_t>(model_->config().vocab_size); }
  static std::vector<TokenId> tokens_of(const std::string& name) {
    std::vector<TokenId> tokens;
    for (const std::int64_t token : golden_->at(name).as<std::int64_t>()) {
      tokens.push_back(static_cast<TokenId>(token));
    }
    return tokens;
  }
  static std::vector<TokenId> text(std::size_t index) {
    const std::vector<TokenId> all = tokens_of("input_ids");
    const auto length = static_cast<std::ptrdiff_t>(all.size() / 2);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(index) * length;
    return {first, first + length};
  }
  static std::span<const float> golden_logits(std::size_t index) {
    const std::span<const float> all = golden_->at("logits").as<float>();
    return all.subspan(index * all.size() / 2, all.size() / 2);
  }

  static StateFormat format(const std::string& state) {
    StateOptions options;
    options.state = state;
    return resolve_state(options, model_->config());
  }
  std::unique_ptr<Batch> batch(const std::string& state, const BatchOptions& options) const {
    return std::make_unique<Batch>(*model_, format(state), threads_, options);
  }
  static BatchOptions on(const std::shared_ptr<const DeviceModel>& device,
                         std::int32_t sequences = 1) {
    BatchOptions options;
    options.device_model = device;
    options.max_sequences = sequences;
    return options;
  }

  // Prefills the first `prefilled` tokens and decodes the rest one by one; logits of these.
  static std::vector<float> follow(Batch& batch, const std::vector<TokenId>& tokens,
                                   std::size_t prefilled) {
    const SequenceId sequence = *batch.open(static_cast<std::int64_t>(tokens.size()));
    if (prefilled > 0) {
      const Feed feed{sequence, std::span(tokens).first(prefilled)};
      batch.prefill(std::span(&feed, 1), {});
    }
    std::vector<float> logits((tokens.size() - prefilled) * vocab());
    for (std::size_t i = prefilled; i < tokens.size(); ++i) {
      const Feed feed{sequence, std::span(tokens).subspan(i, 1)};
      batch.decode(std::span(&feed, 1),
                   std::span(logits).subspan((i - prefilled) * vocab(), vocab()));
    }
    EXPECT_EQ(batch.fault(sequence), "");
    batch.close(sequence);
    return logits;
  }

  static void note(const std::string& what, double value) {
    std::printf("[   NOTE   ] %s: %.3g\n", what.c_str(), value);
  }

  const Threads threads_{1};
  static Model* model_;
  static SafetensorsFile* golden_;
  static std::shared_ptr<const DeviceModel> fp32_;
  static std::shared_ptr<const DeviceModel> bf16_;
};
Model* CudaEngineTest::model_ = nullptr;
SafetensorsFile* CudaEngineTest::golden_ = nullptr;
std::shared_ptr<const DeviceModel> CudaEngineTest::fp32_;
std::shared_ptr<const DeviceModel> CudaEngineTest::bf16_;

TEST_F(CudaEngineTest, PrefillGivesGoldenLogits) {
  for (const auto& [device, limit, name] :
       {std::tuple{fp32_, kFp32, "fp32"}, std::tuple{bf16_, kBf16, "bf16"}}) {
    const auto one = batch("fp32", on(device));
    for (std::size_t index = 0; index < 2; ++index) {
      const std::vector<TokenId> tokens = text(index);
      const SequenceId sequence = *one->open(static_cast<std::int64_t>(tokens.size()));
      std::vector<float> logits(tokens.size() * vocab());
      one->prefill_with_all_logits({sequence, tokens}, logits);
      one->close(sequence);
      const double error = relative(logits, golden_logits(index));
      note(std::string("prefill, activations ") + name, error);
      EXPECT_LE(error, limit) << name;
    }
  }
}

TEST_F(CudaEngineTest, DecodeGivesGoldenLogits) {
  for (const auto& [device, limit, name] :
       {std::tuple{fp32_, kFp32, "fp32"}, std::tuple{bf16_, kBf16, "bf16"}}) {
    const auto one = batch("fp32", on(device));
    const double error = relative(follow(*one, text(0), 0), golden_logits(0));
    note(std::string("decode, activations ") + name, error);
    EXPECT_LE(error, limit) << name;
  }
}

TEST_F(CudaEngineTest, StatesAndConvolutionAreTheCpus) {
  const auto cpu = batch("fp32", {});
  const auto cuda = batch("fp32", on(fp32_));
  const std::vector<TokenId> tokens = text(0);
  const ModelConfig& config = model_->config();
  const auto size = static_cast<std::size_t>(
      config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim);
  // So few that the ring has not been filled, and many.
  for (const std::size_t length : {std::size_t{2}, std::size_t{61}}) {
    const Feed feed{*cpu->open(100), std::span(tokens).first(length)};
    cpu->prefill(std::span(&feed, 1), {});
    const Feed same{*cuda->open(100), feed.tokens};
    cuda->prefill(std::span(&same, 1), {});
    for (std::int32_t layer = 0; layer < config.num_linear_layers(); ++layer) {
      std::vector<float> expected(size);
      std::vector<float> state(size);
      cpu->export_state(feed.sequence, layer, expected);
      cuda->export_state(same.sequence, layer, state);
      EXPECT_LE(relative(state, expected), kFp32) << layer;
      EXPECT_LE(relative(cuda->convolution_state(same.sequence, layer),
                         cpu->convolution_state(feed.sequence, layer)),
                kFp32)
          << layer;
    }
    cpu->close(feed.sequence);
    cuda->close(same.sequence);
  }
}

TEST_F(CudaEngineTest, EveryFormatFollowsTheCpu) {
  for (const auto& [state, limit] :
       {std::pair{"fp32", kFp32}, std::pair{"bf16:window=16", kInt8}, std::pair{"int8", kInt8},
        std::pair{"int8:stagger=1", kInt8}}) {
    const auto cpu = batch(state, {});
    const auto cuda = batch(state, on(fp32_));
    const double error = relative(follow(*cuda, text(1), 40), follow(*cpu, text(1), 40));
    note(std::string("against the CPU, state ") + state, error);
    EXPECT_LE(error, limit) << state;
  }
}

TEST_F(CudaEngineTest, GraphsChangeNothing) {
  for (const auto& device : {fp32_, bf16_}) {
    BatchOptions eager = on(device);
    eager.record_graphs = false;
    const auto recorded = batch("int8", on(device));
    const auto launched = batch("int8", eager);
    EXPECT_EQ(follow(*recorded, text(0), 50), follow(*launched, text(0), 50));
  }
}

TEST_F(CudaEngineTest, NeighboursAndPlacesChangeNothing) {
  const auto batched = batch("int8", on(bf16_, 3));
  const std::vector<TokenId> tokens = text(0);
  const std::vector<float> alone = follow(*batched, tokens, 0);
  // Now in place 1, between two others, one of which comes and goes.
  const std::vector<TokenId> other = text(1);
  const SequenceId first = *batched->open(300);
  const SequenceId own = *batched->open(300);
  const SequenceId third = *batched->open(300);
  std::vector<float> logits;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<Feed> feeds;
    if (i % 3 != 0) feeds.push_back({first, std::span(other).subspan(i, 1)});
    feeds.push_back({own, std::span(tokens).subspan(i, 1)});
    if (i % 2 != 0) feeds.push_back({third, std::span(other).subspan(0, 1)});
    std::vector<float> step(feeds.size() * vocab());
    batched->decode(feeds, step);
    const std::size_t at = i % 3 != 0 ? 1 : 0;
    logits.insert(logits.end(), step.begin() + static_cast<std::ptrdiff_t>(at * vocab()),
                  step.begin() + static_cast<std::ptrdiff_t>((at + 1) * vocab()));
  }
  EXPECT_EQ(logits, alone);
}

TEST_F(CudaEngineTest, SeveralTokensInACallAreThoseOneByOne) {
  BatchOptions options = on(fp32_, 2);
  options.max_tokens_per_call = 3;
  const auto several = batch("fp32", options);
  const std::vector<TokenId> tokens = text(0);
  const SequenceId sequence = *several->open(300);
  const SequenceId other = *several->open(300);
  std::vector<float> logits;
  for (std::size_t i = 0; i < tokens.size();) {
    const std::size_t count = std::min<std::size_t>(1 + i % 3, tokens.size() - i);
    // A neighbour with another number of tokens.
    const Feed feeds[] = {{sequence, std::span(tokens).subspan(i, count)},
                          {other, std::span(tokens).first(1)}};
    std::vector<float> step((count + 1) * vocab());
    several->decode(feeds, step);
    logits.insert(logits.end(), step.begin(),
                  step.begin() + static_cast<std::ptrdiff_t>(count * vocab()));
    i += count;
  }
  EXPECT_LE(relative(logits, golden_logits(0)), kFp32);
}

TEST_F(CudaEngineTest, PrefillInPiecesIsThatOfTheWhole) {
  BatchOptions pieces = on(fp32_, 2);
  pieces.prefill_chunk = 37;
  const auto whole = batch("int8", on(fp32_, 2));
  const auto chunked = batch("int8", pieces);
  const std::vector<TokenId> tokens[] = {text(0), text(1)};
  const auto run = [&](Batch& batch) {
    const Feed feeds[] = {{*batch.open(200), tokens[0]}, {*batch.open(200), tokens[1]}};
    std::vector<float> logits(2 * vocab());
    batch.prefill(feeds, logits);
    return logits;
  };
  EXPECT_LE(relative(run(*chunked), run(*whole)), kFp32);
}

TEST_F(CudaEngineTest, SessionsGoOnAndGoBetweenDevices) {
  const std::vector<TokenId> tokens = text(0);
  constexpr std::size_t kBefore = 90;
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "leapquant_cuda_session_test.bin";
  const auto save = [&](Batch& batch) {
    const SequenceId sequence = *batch.open(200);
    const Feed prompt{sequence, std::span(tokens).first(50)};
    batch.prefill(std::span(&prompt, 1), {});
    for (std::size_t i = 50; i < kBefore; ++i) {
      const Feed feed{sequence, std::span(tokens).subspan(i, 1)};
      batch.decode(std::span(&feed, 1), {});
    }
    SessionMark mark;
    mark.tokens.assign(tokens.begin(), tokens.begin() + kBefore);
    save_session(path, batch, sequence, mark);
    return sequence;
  };
  const auto go_on = [&](Batch& batch, SequenceId sequence) {
    std::vector<float> logits((tokens.size() - kBefore) * vocab());
    for (std::size_t i = kBefore; i < tokens.size(); ++i) {
      const Feed feed{sequence, std::span(tokens).subspan(i, 1)};
      batch.decode(std::span(&feed, 1),
                   std::span(logits).subspan((i - kBefore) * vocab(), vocab()));
    }
    return logits;
  };
  const auto resume = [&](Batch& batch) {
    const SessionFile session(path);
    const SequenceId sequence = *batch.open(200);
    restore_session(session, batch, sequence);
    return go_on(batch, sequence);
  };
  for (const auto& device : {fp32_, bf16_}) {
    const auto first = batch("int8", on(device));
    const std::vector<float> uninterrupted = go_on(*first, save(*first));
    const auto second = batch("int8", on(device));
    EXPECT_EQ(resume(*second), uninterrupted);
    const auto cpu = batch("int8", {});
    EXPECT_LE(relative(resume(*cpu), uninterrupted), device == fp32_ ? kInt8 : kBf16 + kInt8);
  }
  const auto cpu = batch("int8", {});
  const std::vector<float> uninterrupted = go_on(*cpu, save(*cpu));
  const auto cuda = batch("int8", on(fp32_));
  EXPECT_LE(relative(resume(*cuda), uninterrupted), kInt8);
  std::filesystem::remove(path);
}

TEST_F(CudaEngineTest, GreedyCompletionsAreTheCpus) {
  const Tokenizer tokenizer = Tokenizer::load(model_folder());
  std::vector<Prompt> prompts;
  for (const std::string task : {"swap", "copy"}) {
    Prompt prompt;
    prompt.tokens = tokens_of("generate." + task + ".prompt");
    prompt.max_tokens =
        static_cast<std::int64_t>(tokens_of("generate." + task + ".completion").size()) + 10;
    prompts.push_back(prompt);
  }
  for (const char* state : {"fp32", "int8"}) {
    const auto cpu = batch(state, {});
    const auto cuda = batch(state, on(fp32_, 2));
    const auto expected = generate(*cpu, tokenizer, prompts, {});
    const auto completions = generate(*cuda, tokenizer, prompts, {});
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(completions[i].tokens, expected[i].tokens) << state << " " << i;
    }
  }
}

TEST_F(CudaEngineTest, TooLittleMemoryIsASentence) {
  BatchOptions options = on(bf16_, 64);
  options.memory_bytes = 1 << 20;
  try {
    batch("fp32", options);
    FAIL() << "a mebibyte held 64 sequences";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("may be used"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace leapquant::runtime
