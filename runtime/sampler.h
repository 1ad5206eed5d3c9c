// SPDX-License-Identifier: Apache-2.0
//
// Chooses the next token of one sequence from its logits. One Sampler per sequence, so the tokens
// of a sequence depend neither on its neighbours in a batch nor on threads.
#ifndef LEAPQUANT_RUNTIME_SAMPLER_H_
#define LEAPQUANT_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tokenizer.h"

namespace leapquant::runtime {

// The steps in order, as in Hugging Face Transformers: repetition and presence penalty,
// temperature, top-k, top-p, min-p, draw.
struct SamplingOptions {
  double temperature = 0;         // 0: greedy, the steps after it do not apply
  std::int64_t top_k = 0;         // keep the k most likely; 0: all
  double top_p = 1;               // keep the fewest whose probability sums to at least this; (0, 1]
  double min_p = 0;               // keep those of at least this times the largest; [0, 1]
  double repetition_penalty = 1;  // logits of seen tokens: / if positive, * if negative; > 0
  double presence_penalty = 0;    // subtracted from logits of tokens generated so far; [-2, 2]
  std::uint64_t seed = 0;
};

// What greedy sampling takes from a row of logits: the largest, the lowest id where several are
// equal; and the first logit that is not finite, if there is one. A device finds it without its
// logits leaving it.
struct Pick {
  TokenId token = 0;
  TokenId not_finite = -1;
  float bad_logit = 0;  // that one
};
Pick pick_of(std::span<const float> logits);

// Empty, or a sentence about the first logit that is not finite.
std::string fault_of_logits(std::span<const float> logits);

// Throws Error that names the option, its value and its range.
void check_sampling_options(const SamplingOptions& options);

// Draw number `index` of the stream of `seed`: uniform in [0, 1), 53 bits, integer arithmetic only,
// hence the same on every platform. A counter instead of a state: a resumed sequence needs the
// number of draws made, nothing else.
double uniform_draw(std::uint64_t seed, std::uint64_t index);

// Equal logits are ordered by id, lowest first. Probabilities are formed in FP64. The draws of a
// seed are the same everywhere; the chosen tokens are the same for the same logits wherever exp()
// of the C library gives the same FP64 values.
class Sampler {
 public:
  // vocab_size bounds the ids that observe() takes and is the length of every logits span.
  Sampler(const SamplingOptions& options, std::int64_t vocab_size);

  // Tells of tokens that are in the context without having been sampled here (the prompt): they
  // count for the repetition penalty.
  void observe_prompt(std::span<const TokenId> tokens);
  // Chooses a token and takes note of it. logits: [vocab_size], FP32. Throws Error that names the
  // position and value of the first logit that is not finite.
  TokenId sample(std::span<const float> logits);
  // Whether the choice is a row's pick: greedy, without penalties.
  bool takes_picks() const;
  // As sample() of the logits that the pick is of.
  TokenId take(const Pick& pick);

  // For sessions: how many uniform draws were made, and continuing after so many. Tokens generated
  // before go in through observe_generated.
  std::uint64_t draws() const { return draws_; }
  void resume_at(std::uint64_t draws) { draws_ = draws; }
  void observe_generated(std::span<const TokenId> tokens);

 private:
  using Candidate = std::pair<double, TokenId>;  // logit, id

  void observe(std::span<const TokenId> tokens, std::uint8_t mark);
  double penalised(double logit, TokenId id) const;
  TokenId greedy(std::span<const float> logits) const;
  TokenId draw(std::span<const float> logits);

  SamplingOptions options_;
  std::int64_t vocab_size_;
  std::uint64_t draws_ = 0;
  std::vector<std::uint8_t> seen_;  // per token: bit 0 in the context, bit 1 generated
  std::vector<Candidate> candidates_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SAMPLER_H_
