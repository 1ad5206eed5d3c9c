// SPDX-License-Identifier: Apache-2.0
//
// Batches: a sequence's logits are bitwise its own, whatever runs beside it and on however many
// threads; places, memory and wrong calls.
#include "runtime/batch.h"

#include <cstring>
#include <numeric>

#include "unit/runtime/tiny_model.h"

namespace leapquant::runtime {
namespace {

constexpr std::size_t kVocab = static_cast<std::size_t>(kTinyVocab);

StateFormat format_of(const Model& model, const std::string& state) {
  StateOptions options;
  options.state = state;
  return resolve_state(options, model.config());
}

class BatchTest : public testing::Test {
 protected:
  // Logits of prefilling `prompt` tokens and decoding the rest one by one, alone, on one thread.
  std::vector<float> alone(const std::string& state, std::span<const TokenId> tokens,
                           std::size_t prompt, const BatchOptions& options = {}) const {
    const Threads threads(1);
    Batch batch(model, format_of(model, state), threads, options);
    const SequenceId sequence = *batch.open(static_cast<std::int64_t>(tokens.size()));
    std::vector<float> logits((tokens.size() - prompt + 1) * kVocab);
    const std::span<float> all(logits);
    const Feed first{sequence, tokens.first(prompt)};
    batch.prefill(std::span(&first, 1), all.first(kVocab));
    for (std::size_t t = prompt; t < tokens.size(); ++t) {
      const Feed feed{sequence, tokens.subspan(t, 1)};
      batch.decode(std::span(&feed, 1), all.subspan((t - prompt + 1) * kVocab, kVocab));
    }
    return logits;
  }

  TinyModel tiny;
  Model model = tiny.load();
};

TEST_F(BatchTest, NeitherCompanyNorThreadsTouchASequence) {
  for (const std::string state :
       {"fp32", "int8", "int4+", "bf16", "int8:step", "mix(int8+@0-1,int4-compact)",
        "mix(int8@0.1,int4:stagger=0)", "int8:window=6:stagger=1"}) {
    // Prompts of different lengths, some longer than a chunk; the sequences join one after another.
    const std::size_t prompts[] = {3, 70, 33, 1, 40};
    constexpr std::size_t kNew = 40;
    BatchOptions options;
    options.prefill_chunk = 32;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<float>> expected;
    for (std::size_t i = 0; i < std::size(prompts); ++i) {
      tokens.push_back(random_tokens(prompts[i] + kNew, static_cast<unsigned>(i + 10)));
      expected.push_back(alone(state, tokens[i], prompts[i], options));
    }
    for (const std::int32_t num_threads : {1, 3}) {
      const Threads threads(num_threads);
      options.max_sequences = 5;
      Batch batch(model, format_of(model, state), threads, options);
      std::vector<SequenceId> ids(std::size(prompts), -1);
      std::vector<std::size_t> fed(std::size(prompts), 0);
      for (std::size_t step = 0; step < kNew + 10; ++step) {
        // Two join at step 0, two at 5, one at 9.
        std::vector<std::size_t> joining;
        if (step == 0) joining = {1, 0};
        if (step == 5) joining = {2, 3};
        if (step == 9) joining = {4};
        std::vector<Feed> feeds;
        for (const std::size_t i : joining) {
          ids[i] = *batch.open(static_cast<std::int64_t>(tokens[i].size()));
          feeds.push_back({ids[i], std::span(tokens[i]).first(prompts[i])});
        }
        std::vector<float> logits(feeds.size() * kVocab);
        batch.prefill(feeds, logits);
        for (std::size_t f = 0; f < joining.size(); ++f) {
          ASSERT_EQ(0, std::memcmp(logits.data() + f * kVocab, expected[joining[f]].data(),
                                   kVocab * sizeof(float)))
              << state << ", prompt " << joining[f];
        }
        feeds.clear();
        std::vector<std::size_t> active;
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] < 0 || fed[i] == kNew) continue;
          active.push_back(i);
          feeds.push_back({ids[i], std::span(tokens[i]).subspan(prompts[i] + fed[i], 1)});
        }
        if (step % 2 == 1) {  // the order of the feeds does not matter either
          std::reverse(active.begin(), active.end());
          std::reverse(feeds.begin(), feeds.end());
        }
        logits.resize(feeds.size() * kVocab);
        batch.decode(feeds, logits);
        for (std::size_t f = 0; f < active.size(); ++f) {
          const std::size_t i = active[f];
          ++fed[i];
          ASSERT_EQ(0, std::memcmp(logits.data() + f * kVocab, expected[i].data() + fed[i] * kVocab,
                                   kVocab * sizeof(float)))
              << state << ", sequence " << i << ", token " << fed[i];
        }
      }
    }
  }
}

TEST_F(BatchTest, PicksAreThoseOfTheLogits) {
  const Threads threads(1);
  BatchOptions options;
  options.max_sequences = 6;
  options.max_tokens_per_call = 3;
  Batch batch(model, format_of(model, "int8"), threads, options);
  const std::vector<TokenId> tokens = random_tokens(60, 9);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(*batch.open(60));
  // The first three by logits, the same tokens by picks in the others; lengths differ.
  const auto feeds = [&](std::size_t first, std::size_t at,
                         const std::vector<std::size_t>& counts) {
    std::vector<Feed> all;
    for (std::size_t i = 0; i < 3; ++i) {
      all.push_back({ids[first + i], std::span(tokens).subspan(at + i, counts[i])});
    }
    return all;
  };
  const auto expect_picks = [](std::span<const float> logits, std::span<const Pick> picks) {
    for (std::size_t i = 0; i < picks.size(); ++i) {
      EXPECT_EQ(picks[i].token, pick_of(logits.subspan(i * kVocab, kVocab)).token) << i;
      EXPECT_EQ(picks[i].not_finite, -1) << i;
    }
  };
  std::vector<float> logits(3 * kVocab);
  std::vector<Pick> picks(3);
  batch.prefill(feeds(0, 0, {20, 1, 9}), logits);
  batch.prefill_picks(feeds(3, 0, {20, 1, 9}), picks);
  expect_picks(logits, picks);
  logits.resize(6 * kVocab);
  picks.resize(6);
  batch.decode(feeds(0, 30, {3, 1, 2}), logits);
  batch.decode_picks(feeds(3, 30, {3, 1, 2}), picks);
  expect_picks(logits, picks);
  EXPECT_ERROR(batch.decode_picks(feeds(3, 40, {1, 1, 1}), picks), "3 picks");
}

TEST_F(BatchTest, SeveralTokensPerCallEqualSingleOnesUpToTheNextBoundary) {
  for (const std::string state :
       {"fp32", "int8", "int6+", "int8:step", "int4:window=6:stagger=1"}) {
    const std::vector<TokenId> tokens = random_tokens(60, 4);
    const std::vector<float> expected = alone(state, tokens, 5);
    const Threads threads(2);
    BatchOptions options;
    options.max_tokens_per_call = 8;
    Batch batch(model, format_of(model, state), threads, options);
    const SequenceId sequence = *batch.open(60);
    const Feed prompt{sequence, std::span(tokens).first(5)};
    batch.prefill(std::span(&prompt, 1), {});
    std::size_t at = 5;
    std::size_t longest = 0;
    while (at < tokens.size()) {
      const auto exact = static_cast<std::size_t>(batch.exact_tokens(sequence));
      ASSERT_GE(exact, 1u);
      const std::size_t count = std::min(exact, tokens.size() - at);
      longest = std::max(longest, count);
      std::vector<float> logits(count * kVocab);
      const Feed feed{sequence, std::span(tokens).subspan(at, count)};
      batch.decode(std::span(&feed, 1), logits);
      ASSERT_EQ(0, std::memcmp(logits.data(), expected.data() + (at - 5 + 1) * kVocab,
                               logits.size() * sizeof(float)))
          << state << " at " << at;
      at += count;
    }
    EXPECT_GT(longest, 1u) << state;
  }
}

TEST_F(BatchTest, AFreedPlaceStartsAfresh) {
  const std::vector<TokenId> tokens = random_tokens(50, 5);
  const std::vector<float> expected = alone("int8", tokens, 20);
  const Threads threads(1);
  Batch batch(model, format_of(model, "int8"), threads);
  for (int round = 0; round < 3; ++round) {
    const SequenceId sequence = *batch.open(100);
    EXPECT_FALSE(batch.open(100).has_value());  // one place only
    const Feed prompt{sequence, std::span(tokens).first(20)};
    std::vector<float> logits(kVocab);
    batch.prefill(std::span(&prompt, 1), logits);
    EXPECT_EQ(0, std::memcmp(logits.data(), expected.data(), kVocab * sizeof(float)));
    const Feed more{sequence, std::span(tokens).subspan(20, 1)};
    batch.decode(std::span(&more, 1), logits);
    EXPECT_EQ(0, std::memcmp(logits.data(), expected.data() + kVocab, kVocab * sizeof(float)));
    EXPECT_EQ(batch.position(sequence), 21);
    batch.close(sequence);
    EXPECT_EQ(batch.num_open(), 0);
    EXPECT_ERROR(batch.position(sequence), "not open");
  }
}

TEST_F(BatchTest, PrefillInPiecesIsCloseToOnePiece) {
  const std::vector<TokenId> tokens = random_tokens(90, 6);
  BatchOptions whole;
  BatchOptions pieces;
  pieces.prefill_chunk = 7;
  // FP32 sums in another order over three small layers.
  for (const std::string state : {"fp32", "int8"}) {
    const std::vector<float> a = alone(state, tokens, 90, whole);
    const std::vector<float> b = alone(state, tokens, 90, pieces);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4f);
  }
}

TEST_F(BatchTest, Bf16CacheIsCloseAndHalfAsLarge) {
  const std::vector<TokenId> tokens = random_tokens(60, 7);
  BatchOptions bf16;
  bf16.kv_type = KvType::kBf16;
  const std::vector<float> a = alone("fp32", tokens, 30);
  const std::vector<float> b = alone("fp32", tokens, 30, bf16);
  double difference = 0;
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    total += std::pow(double{a[i]}, 2);
  }
  // Keys and values are rounded by up to 2^-9 relative, in one of three layers.
  EXPECT_LT(std::sqrt(difference / total), 0.01);
  EXPECT_GT(difference, 0);
}

TEST_F(BatchTest, MemoryAndLengthLimits) {
  const Threads threads(1);
  BatchOptions options;
  options.memory_bytes = 1000;
  EXPECT_ERROR(Batch(model, format_of(model, "int8"), threads, options), "may be used");
  options.memory_bytes = 1 << 20;
  Batch batch(model, format_of(model, "int8"), threads, options);
  EXPECT_ERROR(batch.require_context(5000), "longer than the 4096");
  // 4,096 tokens x 2 x 2 heads x 16 x 4 bytes = 1 MiB, which the states leave no room for.
  EXPECT_EQ(batch.kv_bytes(4096), 1 << 20);
  EXPECT_ERROR(batch.open(4096), "1,048,576 bytes");
  ASSERT_TRUE(batch.open(1000).has_value());
}

TEST_F(BatchTest, MemoryIsSharedBetweenPlaces) {
  const Threads threads(1);
  BatchOptions options;
  options.max_sequences = 3;
  Batch probe(model, format_of(model, "int8"), threads, options);
  options.memory_bytes = RecurrentStates::reserved_bytes(model.config(), probe.format(), 3, 1) +
                         3 * 2 * 3 * 96 * 4 + probe.kv_bytes(256);
  Batch batch(model, format_of(model, "int8"), threads, options);
  const std::optional<SequenceId> first = batch.open(128);
  const std::optional<SequenceId> second = batch.open(128);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(batch.open(1).has_value());  // a place, but no memory
  batch.close(*first);
  EXPECT_TRUE(batch.open(1).has_value());
}

TEST_F(BatchTest, WrongCallsChangeNothing) {
  const Threads threads(1);
  BatchOptions options;
  options.max_sequences = 2;
  Batch batch(model, format_of(model, "int8"), threads, options);
  const SequenceId a = *batch.open(10);
  const std::vector<TokenId> tokens = random_tokens(11, 8);
  const std::vector<TokenId> wrong = {3, static_cast<TokenId>(kTinyVocab)};
  const std::vector<TokenId> negative = {-1};
  const auto decode = [&](std::vector<Feed> feeds) { batch.decode(feeds, {}); };
  EXPECT_ERROR(decode({{7, std::span(tokens).first(1)}}), "not open");
  EXPECT_ERROR(decode({{a, {}}}), "0 tokens");
  EXPECT_ERROR(decode({{a, std::span(tokens).first(2)}}), "2 tokens");
  EXPECT_ERROR(decode({{a, std::span(tokens).first(1)}, {a, std::span(tokens).first(1)}}), "twice");
  const auto prefill = [&](std::span<const TokenId> given) {
    const Feed feed{a, given};
    batch.prefill(std::span(&feed, 1), {});
  };
  EXPECT_ERROR(prefill(wrong), "Token 40");
  EXPECT_ERROR(prefill(negative), "Token -1");
  EXPECT_ERROR(prefill(tokens), "opened for 10");
  EXPECT_EQ(batch.position(a), 0);
  std::vector<float> small(3);
  const Feed feed{a, std::span(tokens).first(1)};
  EXPECT_ERROR(batch.decode(std::span(&feed, 1), small), "do not fit");
  EXPECT_EQ(batch.position(a), 0);
}

TEST_F(BatchTest, ACancelledPrefillTakesNoPass) {
  const Threads threads(1);
  BatchOptions options;
  options.prefill_chunk = 16;
  Batch batch(model, format_of(model, "int8"), threads, options);
  const std::vector<TokenId> tokens = random_tokens(40, 4);
  std::vector<float> logits(kVocab);
  const std::atomic<bool> cancel = true;
  const SequenceId given_up = *batch.open(40);
  const Feed feed{given_up, tokens};
  EXPECT_FALSE(batch.prefill(std::span(&feed, 1), logits, &cancel));
  EXPECT_EQ(batch.position(given_up), 0);
  batch.close(given_up);
  // The place is as good as new.
  const std::atomic<bool> go_on = false;
  const SequenceId sequence = *batch.open(40);
  const Feed again{sequence, tokens};
  EXPECT_TRUE(batch.prefill(std::span(&again, 1), logits, &go_on));
  EXPECT_EQ(batch.position(sequence), 40);
  EXPECT_EQ(logits, alone("int8", tokens, tokens.size(), options));
}

TEST(BatchFaults, ANonFiniteLayerStopsItsSequencesWithASentence) {
  TinyOptions options;
  options.broken = "in_proj_qkv.weight";
  const TinyModel tiny(options);
  const Model model = tiny.load();
  const Threads threads(1);
  StateOptions state;
  Batch batch(model, resolve_state(state, model.config()), threads);
  const SequenceId sequence = *batch.open(10);
  const std::vector<TokenId> tokens = random_tokens(4, 9);
  const Feed feed{sequence, tokens};
  batch.prefill(std::span(&feed, 1), {});
  EXPECT_NE(batch.fault(sequence).find("linear layer 1"), std::string::npos)
      << batch.fault(sequence);
}

}  // namespace
}  // namespace leapquant::runtime
