// SPDX-License-Identifier: Apache-2.0
//
// See sampler.h.
#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

constexpr std::uint8_t kInContext = 1;
constexpr std::uint8_t kGenerated = 2;

void check_range(std::string_view name, double value, bool inside, std::string_view range) {
  if (inside) return;  // NaN is outside of every range
  std::ostringstream text;
  text << "The option " << name << " must be " << range << ", found " << value << ".";
  throw Error(text.str());
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::string describe_bad_logit(std::size_t index, float logit) {
  const std::string value = std::isnan(logit) ? "NaN" : logit > 0 ? "+inf" : "-inf";
  return "The logit of token " + std::to_string(index) + " is " + value +
         "; the model's weights or state are damaged, or its numbers overflowed.";
}

[[noreturn]] void refuse_logit(std::size_t index, float logit) {
  throw Error(describe_bad_logit(index, logit));
}

}  // namespace

Pick pick_of(std::span<const float> logits) {
  Pick pick;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!std::isfinite(logits[i]) && pick.not_finite < 0) {
      pick.not_finite = id;
      pick.bad_logit = logits[i];
    }
    if (logits[i] > largest) {
      pick.token = id;
      largest = logits[i];
    }
  }
  return pick;
}

std::string fault_of_logits(std::span<const float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return describe_bad_logit(i, logits[i]);
  }
  return "";
}

void check_sampling_options(const SamplingOptions& options) {
  const auto& o = options;
  check_range("temperature", o.temperature, o.temperature >= 0 && o.temperature <= 1000,
              "from 0 (greedy) to 1000");
  check_range("top-k", static_cast<double>(o.top_k), o.top_k >= 0, "0 (all tokens) or more");
  check_range("top-p", o.top_p, o.top_p > 0 && o.top_p <= 1, "above 0 and at most 1");
  check_range("min-p", o.min_p, o.min_p >= 0 && o.min_p <= 1, "from 0 to 1");
  check_range("repetition-penalty", o.repetition_penalty,
              o.repetition_penalty > 0 && o.repetition_penalty <= 100, "above 0 and at most 100");
  check_range("presence-penalty", o.presence_penalty,
              o.presence_penalty >= -2 && o.presence_penalty <= 2, "from -2 to 2");
}

double uniform_draw(std::uint64_t seed, std::uint64_t index) {
  // SplitMix64 started at a mixed seed, so that neighbouring seeds do not give shifted streams.
  const std::uint64_t bits = mix(mix(seed) + (index + 1) * 0x9E3779B97F4A7C15u);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Sampler::Sampler(const SamplingOptions& options, std::int64_t vocab_size)
    : options_(options), vocab_size_(vocab_size) {
  check_sampling_options(options);
  if (vocab_size < 1 || vocab_size > std::numeric_limits<TokenId>::max()) {
    throw Error("A vocabulary of " + std::to_string(vocab_size) + " tokens cannot be sampled.");
  }
  seen_.resize(static_cast<std::size_t>(vocab_size), 0);
}

void Sampler::observe(std::span<const TokenId> tokens, std::uint8_t mark) {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab_size_) {
      throw Error("The token id " + std::to_string(token) + " is outside of the vocabulary of " +
                  std::to_string(vocab_size_) + " tokens.");
    }
    seen_[static_cast<std::size_t>(token)] |= mark;
  }
}

void Sampler::observe_prompt(std::span<const TokenId> tokens) { observe(tokens, kInContext); }

void Sampler::observe_generated(std::span<const TokenId> tokens) {
  observe(tokens, kInContext | kGenerated);
}

double Sampler::penalised(double logit, TokenId id) const {
  const std::uint8_t seen = seen_[static_cast<std::size_t>(id)];
  if (seen == 0) return logit;
  const double penalty = options_.repetition_penalty;
  logit = logit > 0 ? logit / penalty : logit * penalty;
  return (seen & kGenerated) != 0 ? logit - options_.presence_penalty : logit;
}

TokenId Sampler::sample(std::span<const float> logits) {
  if (static_cast<std::int64_t>(logits.size()) != vocab_size_) {
    throw Error("The model gave " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                std::to_string(vocab_size_) + " tokens.");
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) refuse_logit(i, logits[i]);
  }
  const TokenId token = options_.temperature == 0 ? greedy(logits) : draw(logits);
  observe_generated(std::span(&token, 1));
  return token;
}

bool Sampler::takes_picks() const {
  return options_.temperature == 0 && options_.repetition_penalty == 1 &&
         options_.presence_penalty == 0;
}

TokenId Sampler::take(const Pick& pick) {
  if (pick.not_finite >= 0) {
    refuse_logit(static_cast<std::size_t>(pick.not_finite), pick.bad_logit);
  }
  observe_generated(std::span(&pick.token, 1));
  return pick.token;
}

TokenId Sampler::greedy(std::span<const float> logits) const {
  TokenId best = 0;
  double best_logit = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double logit = penalised(static_cast<double>(logits[i]), static_cast<TokenId>(i));
    if (logit > best_logit) {
      best = static_cast<TokenId>(i);
      best_logit = logit;
    }
  }
  return best;
}

TokenId Sampler::draw(std::span<const float> logits) {
  // Candidates as a heap with the most likely on top; only as many as the limits need are taken
  // off, which spares sorting a vocabulary of a quarter million.
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  candidates_.clear();
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const double logit = penalised(static_cast<double>(logits[i]), id);
    candidates_.emplace_back(logit, id);
    largest = std::max(largest, logit);
  }
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);

  // Weights relative to the largest, which weighs 1: exp never overflows, and a tiny temperature
  // only makes the others vanish.
  const auto weight = [&](const Candidate& candidate) {
    return std::exp((candidate.first - largest) / options_.temperature);
  };
  const std::size_t all = candidates_.size();
  const std::size_t k = options_.top_k == 0
                            ? all
                            : std::min<std::size_t>(all, static_cast<std::size_t>(options_.top_k));
  std::size_t popped = 0;
  const auto pop = [&]() -> const Candidate& {
    std::pop_heap(candidates_.begin(), candidates_.end() - static_cast<std::ptrdiff_t>(popped),
                  less_likely);
    return candidates_[all - ++popped];
  };
  // top-p counts the probability within the top k, whose sum has to be known first.
  double total = 0;
  if (k == all) {
    for (const Candidate& candidate : candidates_) total += weight(candidate);
  } else {
    while (popped < k) total += weight(pop());
  }
  // After popping, candidate number n in order of likelihood stands at all - 1 - n.
  double kept = 0;
  std::size_t count = 0;
  while (count < k) {
    const Candidate& candidate = count < popped ? candidates_[all - 1 - count] : pop();
    const double w = weight(candidate);
    if (w < options_.min_p) break;  // min-p is relative to the largest, which weighs 1
    kept += w;
    ++count;
    if (options_.top_p < 1 && kept >= options_.top_p * total) break;
  }
  const double target = uniform_draw(options_.seed, draws_++) * kept;
  double sum = 0;
  for (std::size_t n = 0; n < count; ++n) {
    sum += weight(candidates_[all - 1 - n]);
    if (sum > target) return candidates_[all - 1 - n].second;
  }
  // The sum repeats the additions that gave `kept`, and target < kept, so this is not reached; a
  // weight of the last candidate that rounds away would still be the right answer.
  return candidates_[all - count].second;
}

}  // namespace leapquant::runtime
