// SPDX-License-Identifier: Apache-2.0
//
// The loop of continuous batching: admit prompts while there are places, prefill them together,
// then one token for every active sequence, and again.
#include "runtime/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "runtime/error.h"
#include "runtime/stop_text.h"

namespace leapquant::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A prompt that has a place.
struct Active {
  Active(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
         const SamplingOptions& sampling, std::int64_t vocab_size)
      : sampler(sampling, vocab_size), decoder(tokenizer, true), stop(stops) {}

  SequenceId sequence = -1;
  Completion completion;
  Sampler sampler;
  StreamDecoder decoder;
  StopText stop;
  std::int64_t max_tokens = 0;
  std::vector<TokenId> unfed;  // before the first step: what the context still lacks
  TokenId next = 0;            // sampled, not fed
  std::string fault;
  bool done = false;
};

class Loop {
 public:
  Loop(Batch& batch, const Tokenizer& tokenizer, std::span<const Prompt> prompts,
       const GenerateOptions& options, const GenerateEvents& events)
      : batch_(batch),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options),
        events_(events),
        vocab_size_(batch.model().config().vocab_size),
        completions_(prompts.size()),
        picks_(batch.prefers_picks() && Sampler(options.sampling, 1).takes_picks()) {}

  void check() const;
  void run();
  std::vector<Completion> take_completions() { return std::move(completions_); }
  const GenerateStatistics& statistics() const { return statistics_; }

 private:
  std::int64_t context_of(const Prompt& prompt) const;
  bool cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
  bool ends(TokenId token) const;
  // False when there is no room now.
  bool admit(std::size_t index);
  void feed_new();
  void decode_step();
  // Room for what a call gives for each row: its pick, or its logits.
  void make_room(std::size_t rows);
  void decode(std::span<const Feed> feeds);
  // False when it was cancelled.
  bool prefill(std::span<const Feed> feeds);
  void sample(std::span<Active* const> rows);
  void take_token(Active& active);
  void finish(Active& active, FinishReason reason);
  void finish_unplaced(std::size_t index, FinishReason reason);
  void say(std::size_t prompt, Completion& completion, const std::string& text);
  void remove_done();

  Batch& batch_;
  const Tokenizer& tokenizer_;
  std::span<const Prompt> prompts_;
  const GenerateOptions& options_;
  const GenerateEvents& events_;
  const std::int64_t vocab_size_;
  std::vector<Completion> completions_;
  std::vector<std::unique_ptr<Active>> active_;
  const bool picks_;  // picks instead of logits
  std::vector<Pick> row_picks_;
  std::span<float> row_logits_;
  GenerateStatistics statistics_;
  std::size_t prompts_done_ = 0;
};

std::int64_t Loop::context_of(const Prompt& prompt) const {
  std::int64_t tokens = static_cast<std::int64_t>(prompt.tokens.size());
  if (prompt.session != nullptr) {
    tokens += static_cast<std::int64_t>(prompt.session->contents().mark.tokens.size());
  }
  return tokens;
}

void Loop::check() const {
  check_sampling_options(options_.sampling);
  for (const std::string& stop : options_.stop) {
    if (stop.empty()) throw Error("A stop text is empty; it would end every completion at once.");
  }
  const std::int64_t most = batch_.model().config().max_position_embeddings;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const Prompt& prompt = prompts_[i];
    const std::string which = !prompt.name.empty()   ? prompt.name
                              : prompts_.size() == 1 ? "The prompt"
                                                     : fmt::format("Prompt {}", i + 1);
    if (prompt.max_tokens < 0) {
      throw Error(fmt::format("{} asks for {} tokens; the number must not be negative.", which,
                              prompt.max_tokens));
    }
    if (prompt.session != nullptr) {
      require_session_fits(*prompt.session, batch_);
      const SessionContents& contents = prompt.session->contents();
      if (prompt.tokens.empty() &&
          contents.position == static_cast<std::int64_t>(contents.mark.tokens.size())) {
        throw Error(
            fmt::format("{} is empty and its session has no token to continue from.", which));
      }
    } else if (prompt.tokens.empty()) {
      throw Error(fmt::format("{} is empty; give at least one character.", which));
    }
    for (const TokenId token : prompt.tokens) {
      if (token < 0 || token >= vocab_size_) {
        throw Error(fmt::format("{} holds token {}, but the model has {} tokens.", which, token,
                                vocab_size_));
      }
    }
    const std::int64_t context = context_of(prompt);
    try {
      batch_.require_context(context);
      batch_.require_context(std::min(most, context + std::min(most, prompt.max_tokens)));
    } catch (const Error& error) {
      throw Error(fmt::format("{} does not fit. {}", which, error.what()));
    }
  }
}

bool Loop::ends(TokenId token) const {
  if (std::find(options_.end_tokens.begin(), options_.end_tokens.end(), token) !=
      options_.end_tokens.end()) {
    return true;
  }
  return options_.stop_at_end_tokens && batch_.model().config().is_eos(token);
}

bool Loop::admit(std::size_t index) {
  const Prompt& prompt = prompts_[index];
  const std::int64_t most = batch_.model().config().max_position_embeddings;
  const std::int64_t context = context_of(prompt);
  const std::int64_t new_tokens = std::min(prompt.max_tokens, most - context);
  const std::optional<SequenceId> sequence =
      batch_.open(context + std::max<std::int64_t>(new_tokens, 0));
  if (!sequence.has_value()) return false;
  SamplingOptions sampling = options_.sampling;
  sampling.seed = prompt.seed;
  // Owned by the loop from here on, so that a failure below still frees the place.
  active_.push_back(std::make_unique<Active>(tokenizer_, options_.stop, sampling, vocab_size_));
  Active* const active = active_.back().get();
  active->sequence = *sequence;
  active->completion.prompt = index;
  // One more token than the context can be fed: the last one is only sampled.
  active->max_tokens = std::min(prompt.max_tokens, most - context + 1);
  SessionMark& mark = active->completion.mark;
  if (prompt.session != nullptr) {
    restore_session(*prompt.session, batch_, *sequence);
    const SessionContents& contents = prompt.session->contents();
    mark = contents.mark;
    active->sampler.resume_at(mark.draws);
    active->unfed.assign(mark.tokens.begin() + contents.position, mark.tokens.end());
  }
  active->unfed.insert(active->unfed.end(), prompt.tokens.begin(), prompt.tokens.end());
  mark.tokens.insert(mark.tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
  // A new prompt makes everything before it prompt; without one, what was generated stays so.
  if (!prompt.tokens.empty()) {
    mark.prompt_tokens = static_cast<std::int64_t>(mark.tokens.size());
  }
  const std::span<const TokenId> all = mark.tokens;
  const auto prompt_tokens = static_cast<std::size_t>(mark.prompt_tokens);
  active->sampler.observe_prompt(all.first(prompt_tokens));
  active->sampler.observe_generated(all.subspan(prompt_tokens));
  active->completion.prompt_tokens = static_cast<std::int64_t>(active->unfed.size());
  return true;
}

void Loop::feed_new() {
  std::vector<Active*> fresh;
  std::vector<Active*> resumed;
  for (const auto& active : active_) {
    if (active->unfed.empty()) continue;
    const Prompt& prompt = prompts_[active->completion.prompt];
    // A session that goes on without new text takes its tokens as an uninterrupted run would.
    (prompt.tokens.empty() ? resumed : fresh).push_back(active.get());
  }
  if (!fresh.empty()) {
    const Clock::time_point start = Clock::now();
    std::vector<Feed> feeds;
    for (const Active* active : fresh) feeds.push_back({active->sequence, active->unfed});
    const bool complete = prefill(feeds);
    statistics_.prefill_seconds += seconds_since(start);
    if (!complete) return;
    // Before sampling: that ends, and frees, completions.
    for (Active* active : fresh) {
      statistics_.prompt_tokens += static_cast<std::int64_t>(active->unfed.size());
      active->unfed.clear();
    }
    sample(fresh);
  }
  for (Active* active : resumed) {
    const Clock::time_point start = Clock::now();
    for (const TokenId& token : active->unfed) {
      const Feed feed{active->sequence, std::span(&token, 1)};
      decode(std::span(&feed, 1));
    }
    statistics_.decode_seconds += seconds_since(start);
    statistics_.decoded_tokens += static_cast<std::int64_t>(active->unfed.size());
    ++statistics_.decode_steps;
    active->unfed.clear();
    sample(std::span(&active, 1));
  }
}

void Loop::decode_step() {
  if (active_.empty()) return;
  const Clock::time_point start = Clock::now();
  std::vector<Feed> feeds;
  std::vector<Active*> rows;
  for (const auto& active : active_) {
    feeds.push_back({active->sequence, std::span(&active->next, 1)});
    rows.push_back(active.get());
  }
  decode(feeds);
  sample(rows);
  statistics_.decode_seconds += seconds_since(start);
  statistics_.decoded_tokens += static_cast<std::int64_t>(feeds.size());
  ++statistics_.decode_steps;
}

void Loop::make_room(std::size_t rows) {
  if (picks_) {
    row_picks_.resize(rows);
  } else {
    row_logits_ = batch_.logits_buffer(rows * static_cast<std::size_t>(vocab_size_));
  }
}

void Loop::decode(std::span<const Feed> feeds) {
  make_room(feeds.size());
  if (picks_) {
    batch_.decode_picks(feeds, row_picks_);
  } else {
    batch_.decode(feeds, row_logits_);
  }
}

bool Loop::prefill(std::span<const Feed> feeds) {
  make_room(feeds.size());
  return picks_ ? batch_.prefill_picks(feeds, row_picks_, options_.cancel)
                : batch_.prefill(feeds, row_logits_, options_.cancel);
}

void Loop::sample(std::span<Active* const> rows) {
  const auto vocab_size = static_cast<std::size_t>(vocab_size_);
  const std::int64_t grain = 16 * 1024 / vocab_size_ + 1;
  batch_.threads().run_rows(
      static_cast<std::int64_t>(rows.size()), grain, [&](std::int64_t first, std::int64_t last) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
          Active& active = *rows[i];
          active.fault = batch_.fault(active.sequence);
          if (!active.fault.empty()) continue;
          try {
            active.next =
                picks_ ? active.sampler.take(row_picks_[i])
                       : active.sampler.sample(row_logits_.subspan(i * vocab_size, vocab_size));
          } catch (const std::exception& error) {
            active.fault = error.what();
          }
        }
      });
  for (Active* active : rows) take_token(*active);
  remove_done();
  if (events_.progress) events_.progress(statistics_.generated_tokens, prompts_done_);
}

void Loop::say(std::size_t prompt, Completion& completion, const std::string& text) {
  if (text.empty()) return;
  completion.text += text;
  if (events_.text) events_.text(prompt, text);
}

void Loop::take_token(Active& active) {
  Completion& completion = active.completion;
  if (!active.fault.empty()) {
    completion.fault = active.fault;
    finish(active, FinishReason::kFault);
    return;
  }
  completion.tokens.push_back(active.next);
  completion.mark.tokens.push_back(active.next);
  completion.mark.draws = active.sampler.draws();
  ++statistics_.generated_tokens;
  if (ends(active.next)) {
    finish(active, FinishReason::kEndToken);
    return;
  }
  say(completion.prompt, completion, active.stop.push(active.decoder.push(active.next)));
  if (active.stop.found()) {
    finish(active, FinishReason::kStopText);
  } else if (static_cast<std::int64_t>(completion.tokens.size()) >= active.max_tokens) {
    finish(active, FinishReason::kLength);
  }
}

void Loop::finish(Active& active, FinishReason reason) {
  Completion& completion = active.completion;
  // Bytes that were kept back can still complete a stop text.
  say(completion.prompt, completion, active.stop.push(active.decoder.finish()));
  say(completion.prompt, completion, active.stop.finish());
  completion.reason = active.stop.found() ? FinishReason::kStopText : reason;
  ++prompts_done_;
  // A context that was fed in part is nothing to save.
  if (events_.finished) events_.finished(completion, active.unfed.empty() ? active.sequence : -1);
  batch_.close(active.sequence);
  active.done = true;
  completions_[completion.prompt] = std::move(completion);
}

void Loop::finish_unplaced(std::size_t index, FinishReason reason) {
  Completion& completion = completions_[index];
  completion.prompt = index;
  completion.reason = reason;
  ++prompts_done_;
  if (events_.finished) events_.finished(completion, -1);
}

void Loop::remove_done() {
  std::erase_if(active_, [](const std::unique_ptr<Active>& active) { return active->done; });
}

void Loop::run() {
  std::size_t next = 0;
  try {
    while (next < prompts_.size() || !active_.empty()) {
      if (cancelled()) {
        for (const auto& active : active_) finish(*active, FinishReason::kCancelled);
        remove_done();
        while (next < prompts_.size()) finish_unplaced(next++, FinishReason::kCancelled);
        return;
      }
      while (next < prompts_.size()) {
        if (prompts_[next].max_tokens == 0) {
          finish_unplaced(next++, FinishReason::kLength);
        } else if (admit(next)) {
          ++next;
        } else {
          break;
        }
      }
      feed_new();
      if (!cancelled()) decode_step();
    }
  } catch (...) {
    // The batch stays usable for its owner.
    for (const auto& active : active_) {
      if (!active->done) batch_.close(active->sequence);
    }
    throw;
  }
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken:
      return "end";
    case FinishReason::kStopText:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFault:
      return "fault";
  }
  return "fault";
}

std::vector<Completion> generate(Batch& batch, const Tokenizer& tokenizer,
                                 std::span<const Prompt> prompts, const GenerateOptions& options,
                                 const GenerateEvents& events, GenerateStatistics* statistics) {
  Loop loop(batch, tokenizer, prompts, options, events);
  loop.check();
  loop.run();
  if (statistics != nullptr) *statistics = loop.statistics();
  return loop.take_completions();
}

}  // namespace leapquant::runtime
