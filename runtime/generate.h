// SPDX-License-Identifier: Apache-2.0
//
// From prompts to completions: continuous batching, sampling, stop conditions, streaming. A prompt
// that is done frees its place for the next one. It prints nothing.
#ifndef LEAPQUANT_RUNTIME_GENERATE_H_
#define LEAPQUANT_RUNTIME_GENERATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/batch.h"
#include "runtime/sampler.h"
#include "runtime/session.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

struct Prompt {
  std::vector<TokenId> tokens;  // may be empty only with a session
  // Most tokens to generate, the end token included; 0 gives an empty completion.
  std::int64_t max_tokens = 0;
  std::uint64_t seed = 0;  // replaces sampling.seed, so that prompts of one run differ
  // How sentences call it; empty: "The prompt" or "Prompt 2".
  std::string name;
  // Continues a saved session: its tokens come before `tokens`. Must outlive the call.
  const SessionFile* session = nullptr;
};

struct GenerateOptions {
  std::vector<std::string> stop;    // byte strings; the completion ends before the first one found
  bool stop_at_end_tokens = true;   // the model's eos tokens
  std::vector<TokenId> end_tokens;  // further ones, such as the end of a turn
  SamplingOptions sampling;
  // Checked between steps and between the passes of a prefill; true ends all sequences with
  // kCancelled.
  const std::atomic<bool>* cancel = nullptr;
};

enum class FinishReason { kEndToken, kStopText, kLength, kCancelled, kFault };
// "end", "stop", "length", "cancelled", "fault".
std::string_view finish_reason_name(FinishReason reason);

struct Completion {
  std::size_t prompt = 0;       // index into the prompts
  std::vector<TokenId> tokens;  // generated, the end token included
  std::string text;             // bytes of the tokens without the end token, cut at a stop text
  FinishReason reason = FinishReason::kLength;
  std::string fault;               // a sentence, kFault only
  std::int64_t prompt_tokens = 0;  // fed before the first generated token, without a session's
  SessionMark mark;                // what save_session needs to know beside the sequence
};

// Called on the calling thread, in the order of the events; any may be empty.
struct GenerateEvents {
  // Text that is certain: held back while it may begin a stop text or ends inside a character.
  std::function<void(std::size_t prompt, std::string_view text)> text;
  // A prompt is done; its sequence is still open in the batch (for save_session) until this
  // returns. sequence is -1 for prompts that never got a place (max_tokens 0, cancelled) and for
  // those whose prefill was cancelled.
  std::function<void(const Completion& completion, SequenceId sequence)> finished;
  // After every step: tokens generated so far and prompts done so far.
  std::function<void(std::int64_t generated_tokens, std::size_t prompts_done)> progress;
};

struct GenerateStatistics {
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // wall time of all decode steps, sampling included
  std::int64_t decode_steps = 0;
  std::int64_t decoded_tokens = 0;  // fed through decode steps: the first token of a completion
                                    // comes from the prefill
  double tokens_per_second() const {
    return decode_seconds > 0 ? static_cast<double>(decoded_tokens) / decode_seconds : 0;
  }
};

// Runs all prompts through the batch, at most batch.options().max_sequences at a time. Completions
// are in the order of the prompts. Throws Error before anything runs for an empty prompt (which
// one), ids outside the vocabulary, a negative max_tokens, a session of another model or format, an
// empty stop text, and a prompt whose context could never fit into memory (with the bytes).
std::vector<Completion> generate(Batch& batch, const Tokenizer& tokenizer,
                                 std::span<const Prompt> prompts, const GenerateOptions& options,
                                 const GenerateEvents& events = {},
                                 GenerateStatistics* statistics = nullptr);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_GENERATE_H_
