// SPDX-License-Identifier: Apache-2.0
//
// Generation: continuous batching changes no completion, stop conditions, streaming, cancellation,
// faults, and prompts that are refused.
#include "runtime/generate.h"

#include <map>

#include "unit/runtime/tiny_model.h"

namespace leapquant::runtime {
namespace {

// Byte tokens would need 256 of them; the tiny model has 40, so the tokenizer of the reference
// model, whose token is the byte, prints its tokens as control characters and punctuation.
Tokenizer byte_tokenizer() {
  return Tokenizer::load(std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m");
}

class GenerateTest : public testing::Test {
 protected:
  Batch& batch(std::int32_t places, const std::string& state = "int8") {
    StateOptions options;
    options.state = state;
    BatchOptions batch_options;
    batch_options.max_sequences = places;
    batch_.emplace(model, resolve_state(options, model.config()), threads, batch_options);
    return *batch_;
  }
  std::vector<Prompt> prompts(std::size_t count, std::int64_t max_tokens) const {
    std::vector<Prompt> result(count);
    for (std::size_t i = 0; i < count; ++i) {
      result[i].tokens = random_tokens(3 + 5 * i, static_cast<unsigned>(i + 1));
      result[i].max_tokens = max_tokens;
      result[i].seed = i;
    }
    return result;
  }

  TinyModel tiny;
  Model model = tiny.load();
  Threads threads{2};
  Tokenizer tokenizer = byte_tokenizer();
  std::optional<Batch> batch_;
};

TEST_F(GenerateTest, CompletionsDoNotDependOnTheBatch) {
  std::vector<Prompt> given = prompts(7, 30);
  for (std::size_t i = 0; i < given.size(); ++i) given[i].max_tokens = 10 + 7 * (i % 4);
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.sampling.top_p = 0.95;
  const std::vector<Completion> one = generate(batch(1), tokenizer, given, options);
  ASSERT_EQ(one.size(), given.size());
  for (const std::int32_t places : {2, 7}) {
    GenerateStatistics statistics;
    const std::vector<Completion> many =
        generate(batch(places), tokenizer, given, options, {}, &statistics);
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < given.size(); ++i) {
      EXPECT_EQ(many[i].prompt, i);
      EXPECT_EQ(many[i].tokens, one[i].tokens);
      EXPECT_EQ(many[i].text, one[i].text);
      EXPECT_EQ(many[i].reason, one[i].reason);
      tokens += static_cast<std::int64_t>(many[i].tokens.size());
    }
    EXPECT_EQ(statistics.generated_tokens, tokens);
    EXPECT_EQ(batch_->num_open(), 0);
  }
}

TEST_F(GenerateTest, StopsAtTheRightPlace) {
  const std::vector<Prompt> given = prompts(1, 25);
  GenerateOptions options;
  options.stop_at_end_tokens = false;
  const Completion plain = generate(batch(1), tokenizer, given, options)[0];
  EXPECT_EQ(plain.reason, FinishReason::kLength);
  ASSERT_EQ(plain.tokens.size(), 25u);
  EXPECT_EQ(plain.prompt_tokens, 3);
  EXPECT_EQ(plain.mark.tokens.size(), 28u);
  EXPECT_EQ(plain.mark.prompt_tokens, 3);

  // The tokenth that first occurs latest gives the longest completion before an end token.
  std::size_t at = 0;
  for (std::size_t i = 0; i < plain.tokens.size(); ++i) {
    const auto first = std::find(plain.tokens.begin(), plain.tokens.end(), plain.tokens[i]);
    if (first == plain.tokens.begin() + static_cast<std::ptrdiff_t>(i)) at = i;
  }
  options.end_tokens = {plain.tokens[at]};
  const Completion ended = generate(batch(1), tokenizer, given, options)[0];
  EXPECT_EQ(ended.reason, FinishReason::kEndToken);
  EXPECT_EQ(ended.tokens.size(), at + 1);  // the end token included
  EXPECT_EQ(ended.text, plain.text.substr(0, at));

  options.end_tokens.clear();
  options.stop = {"not in there", plain.text.substr(at, 1)};
  std::string streamed;
  GenerateEvents events;
  events.text = [&](std::size_t prompt, std::string_view text) {
    EXPECT_EQ(prompt, 0u);
    streamed += text;
  };
  const Completion stopped = generate(batch(1), tokenizer, given, options, events)[0];
  EXPECT_EQ(stopped.reason, FinishReason::kStopText);
  EXPECT_EQ(stopped.text, plain.text.substr(0, at));
  EXPECT_EQ(streamed, stopped.text);
}

TEST_F(GenerateTest, EventsComeInOrder) {
  const std::vector<Prompt> given = prompts(5, 12);
  std::map<std::size_t, std::string> streamed;
  std::size_t finished = 0;
  std::size_t last_done = 0;
  GenerateEvents events;
  events.text = [&](std::size_t prompt, std::string_view text) { streamed[prompt] += text; };
  events.finished = [&](const Completion& completion, SequenceId sequence) {
    EXPECT_EQ(streamed[completion.prompt], completion.text);
    // Still open; the last token has been sampled but not fed.
    EXPECT_EQ(batch_->position(sequence),
              static_cast<std::int64_t>(completion.mark.tokens.size()) - 1);
    ++finished;
  };
  events.progress = [&](std::int64_t, std::size_t done) {
    EXPECT_GE(done, last_done);
    last_done = done;
  };
  generate(batch(2), tokenizer, given, {}, events);
  EXPECT_EQ(finished, given.size());
  EXPECT_EQ(last_done, given.size());
}

TEST_F(GenerateTest, NoTokensAsked) {
  std::vector<Prompt> given = prompts(2, 5);
  given[0].max_tokens = 0;
  const std::vector<Completion> completions = generate(batch(1), tokenizer, given, {});
  EXPECT_TRUE(completions[0].tokens.empty());
  EXPECT_EQ(completions[0].reason, FinishReason::kLength);
  EXPECT_FALSE(completions[1].tokens.empty());
}

TEST_F(GenerateTest, CancelEndsEverything) {
  std::atomic<bool> cancel = false;
  GenerateOptions options;
  options.cancel = &cancel;
  options.stop_at_end_tokens = false;
  GenerateEvents events;
  events.progress = [&](std::int64_t tokens, std::size_t) { cancel = cancel || tokens >= 6; };
  const std::vector<Completion> completions =
      generate(batch(2), tokenizer, prompts(4, 1000), options, events);
  ASSERT_EQ(completions.size(), 4u);
  for (const Completion& completion : completions) {
    EXPECT_EQ(completion.reason, FinishReason::kCancelled);
    EXPECT_LE(completion.tokens.size(), 5u);
  }
  EXPECT_FALSE(completions[0].tokens.empty());
  EXPECT_TRUE(completions[3].tokens.empty());
  EXPECT_EQ(batch_->num_open(), 0);
}

TEST_F(GenerateTest, CancelEndsAPrefill) {
  std::atomic<bool> cancel = false;
  GenerateOptions options;
  options.cancel = &cancel;
  std::vector<Prompt> given = prompts(2, 5);
  given[1].max_tokens = 0;
  std::vector<SequenceId> sequences;
  GenerateEvents events;
  // The second prompt is done before the first one is fed.
  events.finished = [&](const Completion&, SequenceId sequence) {
    cancel = true;
    sequences.push_back(sequence);
  };
  GenerateStatistics statistics;
  const std::vector<Completion> completions =
      generate(batch(2), tokenizer, given, options, events, &statistics);
  EXPECT_EQ(completions[0].reason, FinishReason::kCancelled);
  EXPECT_TRUE(completions[0].tokens.empty());
  EXPECT_EQ(sequences, (std::vector<SequenceId>{-1, -1}));  // nothing to save
  EXPECT_EQ(statistics.prompt_tokens, 0);
  EXPECT_EQ(batch_->num_open(), 0);
}

TEST_F(GenerateTest, TheContextLimitEndsACompletion) {
  std::vector<Prompt> given(1);
  given[0].tokens = random_tokens(4090, 3);
  given[0].max_tokens = 1000;
  GenerateOptions options;
  options.stop_at_end_tokens = false;
  const Completion completion = generate(batch(1), tokenizer, given, options)[0];
  EXPECT_EQ(completion.reason, FinishReason::kLength);
  EXPECT_EQ(completion.tokens.size(), 7u);  // six that were fed and the last, sampled
}

TEST_F(GenerateTest, WrongPromptsAreRefusedBeforeAnythingRuns) {
  Batch& runs = batch(1);
  bool ran = false;
  GenerateEvents events;
  events.finished = [&](const Completion&, SequenceId) { ran = true; };
  const auto with = [&](Prompt prompt, const GenerateOptions& options = {}) {
    const std::vector<Prompt> given = {prompts(1, 5)[0], std::move(prompt)};
    generate(runs, tokenizer, given, options, events);
  };
  const Prompt good = prompts(1, 5)[0];
  Prompt wrong = good;
  wrong.tokens.clear();
  EXPECT_ERROR(with(wrong), "Prompt 2 is empty");
  wrong = good;
  wrong.max_tokens = -1;
  EXPECT_ERROR(with(wrong), "-1 tokens");
  wrong = good;
  wrong.tokens.push_back(40);
  EXPECT_ERROR(with(wrong), "token 40");
  wrong = good;
  wrong.tokens = random_tokens(4097, 1);
  EXPECT_ERROR(with(wrong), "Prompt 2 does not fit. A sequence of ");
  EXPECT_ERROR(with(wrong), "longer than the 4096");
  wrong.name = "The prompt in a.jsonl line 7";
  EXPECT_ERROR(with(wrong), "The prompt in a.jsonl line 7 does not fit.");
  wrong.tokens.clear();
  EXPECT_ERROR(with(wrong), "The prompt in a.jsonl line 7 is empty");
  GenerateOptions options;
  options.stop = {""};
  EXPECT_ERROR(with(good, options), "stop text is empty");
  options = {};
  options.sampling.temperature = -1;
  EXPECT_ERROR(with(good, options), "temperature");
  EXPECT_FALSE(ran);
  EXPECT_EQ(runs.num_open(), 0);
}

TEST_F(GenerateTest, APromptThatNeverFitsSaysTheBytes) {
  StateOptions state;
  BatchOptions options;
  options.memory_bytes = 1 << 20;
  Batch small(model, resolve_state(state, model.config()), threads, options);
  std::vector<Prompt> given(1);
  given[0].tokens = random_tokens(4000, 1);
  given[0].max_tokens = 90;
  EXPECT_ERROR(generate(small, tokenizer, given, {}), "1,048,576 bytes");
}

TEST(GenerateFaults, AFaultEndsOnlyThatCompletion) {
  TinyOptions options;
  options.broken = "in_proj_qkv.weight";
  const TinyModel tiny(options);
  const Model model = tiny.load();
  const Threads threads(1);
  Batch batch(model, resolve_state(StateOptions(), model.config()), threads);
  std::vector<Prompt> given(2);
  for (Prompt& prompt : given) {
    prompt.tokens = random_tokens(5, 1);
    prompt.max_tokens = 5;
  }
  const std::vector<Completion> completions = generate(batch, byte_tokenizer(), given, {});
  for (const Completion& completion : completions) {
    EXPECT_EQ(completion.reason, FinishReason::kFault);
    EXPECT_NE(completion.fault.find("linear layer 1"), std::string::npos) << completion.fault;
  }
  EXPECT_EQ(finish_reason_name(FinishReason::kFault), "fault");
}

}  // namespace
}  // namespace leapquant::runtime
