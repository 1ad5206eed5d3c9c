// SPDX-License-Identifier: Apache-2.0
//
// Greedy choices made on the device: the rows of a kernel against the host's, and whole completions
// against sampling from logits. What a device that is not there, or refuses memory, is told as.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/batch.h"
#include "runtime/cuda/picks.h"
#include "runtime/error.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Rows of a vocabulary whose size is a multiple of four or is not; equal largest logits, only
// negative ones, zeros of both signs, numbers that are none first or last.
TEST(PickRows, AreTheHosts) {
  for (const std::size_t size : {std::size_t{151936}, std::size_t{1001}, std::size_t{4},
                                 std::size_t{1}, std::size_t{5000}}) {
    constexpr std::size_t kRows = 9;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> logits(kRows * size);
    for (float& x : logits) x = std::round(64.0f * normal(random)) / 64.0f;  // many ties
    const auto row = [&](std::size_t r) { return std::span(logits).subspan(r * size, size); };
    for (float& x : row(1)) x = -std::fabs(x) - 1.0f;
    std::fill(row(2).begin(), row(2).end(), -0.0f);
    row(2)[size / 2] = 0.0f;
    std::fill(row(3).begin(), row(3).end(), -3.0f);
    row(4)[size - 1] = kNan;
    row(5)[0] = -kInfinity;
    row(6)[size / 2] = kInfinity;
    row(6)[size - 1] = kNan;
    std::fill(row(7).begin(), row(7).end(), kNan);

    const cuda::Stream stream;
    const auto bytes = static_cast<std::int64_t>(logits.size() * sizeof(float));
    const cuda::DeviceMemory there(bytes);
    const cuda::DeviceMemory picks(kRows * sizeof(Pick));
    cuda::check(cudaMemcpy(there.data(), logits.data(), static_cast<std::size_t>(bytes),
                           cudaMemcpyHostToDevice),
                "copy");
    cuda::pick_rows(stream.get(), there.as<float>(), kRows, static_cast<std::int64_t>(size),
                    picks.as<Pick>());
    stream.wait();
    std::vector<Pick> found(kRows);
    cuda::check(
        cudaMemcpy(found.data(), picks.data(), kRows * sizeof(Pick), cudaMemcpyDeviceToHost),
        "copy");
    for (std::size_t r = 0; r < kRows; ++r) {
      const Pick expected = pick_of(row(r));
      EXPECT_EQ(found[r].not_finite, expected.not_finite) << size << ", row " << r;
      if (expected.not_finite < 0) {
        EXPECT_EQ(found[r].token, expected.token) << size << ", row " << r;
      } else {
        EXPECT_EQ(std::isnan(found[r].bad_logit), std::isnan(expected.bad_logit)) << r;
      }
    }
  }
}

// A batch of 64 at a vocabulary of a quarter million: the same picks, and what each way costs.
TEST(PickRows, OfALargeVocabulary) {
  constexpr std::size_t kRows = 64;
  constexpr std::size_t kSize = 248320;
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> logits(kRows * kSize);
  for (float& x : logits) x = normal(random);
  const std::size_t bytes = logits.size() * sizeof(float);
  const cuda::Stream stream;
  const cuda::DeviceMemory there(static_cast<std::int64_t>(bytes));
  const cuda::DeviceMemory device_picks(kRows * sizeof(Pick));
  const cuda::PinnedMemory pinned(static_cast<std::int64_t>(bytes));
  std::vector<float> pageable(logits.size());
  std::vector<Pick> picks(kRows);
  std::vector<Pick> expected(kRows);
  cuda::check(cudaMemcpy(there.data(), logits.data(), bytes, cudaMemcpyHostToDevice), "copy");
  const auto copy_to = [&](void* to) {
    cuda::check(cudaMemcpyAsync(to, there.data(), bytes, cudaMemcpyDeviceToHost, stream.get()),
                "copy");
    stream.wait();
  };
  const auto time_of = [](const char* what, const auto& work) {
    work();  // warm
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    std::printf("[   NOTE   ] 64 rows of 248,320 logits, %s: %.0f us\n", what, time.count());
  };
  time_of("picks on the device, copied", [&] {
    cuda::pick_rows(stream.get(), there.as<float>(), kRows, kSize, device_picks.as<Pick>());
    cuda::check(cudaMemcpyAsync(picks.data(), device_picks.data(), kRows * sizeof(Pick),
                                cudaMemcpyDeviceToHost, stream.get()),
                "copy");
    stream.wait();
  });
  time_of("copied to pinned memory", [&] { copy_to(pinned.data()); });
  time_of("copied to pageable memory", [&] { copy_to(pageable.data()); });
  time_of("picked on one core of the host", [&] {
    for (std::size_t r = 0; r < kRows; ++r) {
      expected[r] = pick_of(std::span(pageable).subspan(r * kSize, kSize));
    }
  });
  for (std::size_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(picks[r].token, expected[r].token) << r;
    EXPECT_EQ(picks[r].not_finite, -1) << r;
  }
}

std::filesystem::path model_folder() {
  return std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m";
}

// Prompts of several lengths, more than there are places: by picks, and from the logits of the same
// batch. A presence penalty too small to change an order keeps the host's sampler at work.
TEST(Picks, CompletionsAreThoseOfLogits) {
  const Model model = Model::load(model_folder());
  const Tokenizer tokenizer = Tokenizer::load(model_folder());
  const Threads threads(2);
  BatchOptions options;
  options.max_sequences = 5;
  options.device_model = load_on_cuda(model, Activations::kFp32);
  StateOptions state;
  state.state = "int8";
  Batch batch(model, resolve_state(state, model.config()), threads, options);
  ASSERT_TRUE(batch.prefers_picks());
  std::vector<Prompt> prompts;
  for (int i = 0; i < 12; ++i) {
    Prompt prompt;
    for (int t = 0; t <= 7 * i; ++t) {
      prompt.tokens.push_back(
          static_cast<TokenId>((t * 37 + i * 11) % (model.config().vocab_size - 1) + 1));
    }
    prompt.max_tokens = 20 + i;
    prompts.push_back(prompt);
  }
  GenerateOptions picking;
  picking.stop_at_end_tokens = false;
  GenerateOptions sampling = picking;
  sampling.sampling.presence_penalty = 1e-12;
  ASSERT_FALSE(Sampler(sampling.sampling, 1).takes_picks());
  const auto picked = generate(batch, tokenizer, prompts, picking);
  const auto sampled = generate(batch, tokenizer, prompts, sampling);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(picked[i].tokens, sampled[i].tokens) << i;
    EXPECT_EQ(picked[i].tokens.size(), static_cast<std::size_t>(prompts[i].max_tokens)) << i;
  }
}

TEST(Memory, RefusalsAreSentences) {
  try {
    const cuda::DeviceMemory all(std::int64_t{1} << 50);
    FAIL() << "a device gave a pebibyte";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("refused"), std::string::npos) << text;
    EXPECT_NE(text.find("free"), std::string::npos) << text;
    EXPECT_NE(text.find("fewer sequences"), std::string::npos) << text;
  }
  try {
    const cuda::PinnedMemory all(std::int64_t{1} << 50);
    FAIL() << "a host gave a pebibyte";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("pinned"), std::string::npos) << error.what();
  }
  const cuda::DeviceMemory some(1 << 20);  // the refusals left no error behind
  cuda::check_launch();
}

}  // namespace
}  // namespace leapquant::runtime
