// SPDX-License-Identifier: Apache-2.0
//
// The choice of tokens: order, limits and penalties against their definitions, fixed draws of a
// seed.
#include "runtime/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

// How often each token comes in many draws from the same logits.
std::map<TokenId, int> histogram(const SamplingOptions& options, const std::vector<float>& logits,
                                 int draws) {
  std::map<TokenId, int> counts;
  Sampler sampler(options, static_cast<std::int64_t>(logits.size()));
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

std::set<TokenId> reachable(const SamplingOptions& options, const std::vector<float>& logits) {
  std::set<TokenId> tokens;
  for (const auto& [token, count] : histogram(options, logits, 4000)) tokens.insert(token);
  return tokens;
}

// Logits with these probabilities.
std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(UniformDraw, IsTheSameEverywhere) {
  // Written down from the definition (SplitMix64 from a mixed seed, upper 53 bits) in other code.
  EXPECT_EQ(uniform_draw(0, 0), 0x1.c4415072f63b9p-1);
  EXPECT_EQ(uniform_draw(1, 0), 0x1.7fdf0061bb85ap-1);
  EXPECT_EQ(uniform_draw(1, 1), 0x1.7d54b3920bcaap-2);
  EXPECT_EQ(uniform_draw(~std::uint64_t{0}, ~std::uint64_t{0}), 0x1.2fff600bafec4p-2);
}

TEST(UniformDraw, IsUniformAndSeedsAreIndependent) {
  // Mean of n uniform numbers: 1/2, standard deviation 1/sqrt(12 n); five of them for n = 100,000
  // is 0.0046. The correlation of two independent streams has standard deviation 1/sqrt(n).
  constexpr int kCount = 100'000;
  double sum = 0, product = 0;
  for (int i = 0; i < kCount; ++i) {
    const double a = uniform_draw(7, static_cast<std::uint64_t>(i));
    const double b = uniform_draw(8, static_cast<std::uint64_t>(i));
    ASSERT_GE(a, 0.0);
    ASSERT_LT(a, 1.0);
    sum += a;
    product += 12 * (a - 0.5) * (b - 0.5);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.0046);
  EXPECT_NEAR(product / kCount, 0, 0.016);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfEquals) {
  Sampler sampler({}, 4);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-5, -5, -5, -5}), 0);
  EXPECT_EQ(sampler.draws(), 0u);
}

TEST(Sampler, APickIsTheGreedyChoice) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits : {std::vector<float>{1, 3, 3, 2},
                                           {-5, -5, -5, -5},
                                           {-0.0f, 0.0f, -1, -2},
                                           {-9, -8, -7, -6}}) {
    Sampler sampler({}, 4);
    EXPECT_TRUE(sampler.takes_picks());
    EXPECT_EQ(sampler.take(pick_of(logits)), sampler.sample(logits));
  }
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const std::vector<float> logits{1, 9, bad, kNan};
    Sampler sampler({}, 4);
    const std::string sampled = sentence_of([&] { sampler.sample(logits); });
    EXPECT_EQ(sentence_of([&] { sampler.take(pick_of(logits)); }), sampled);
    EXPECT_THAT(sampled, testing::HasSubstr("token 2"));
  }
  EXPECT_FALSE(Sampler({.temperature = 0.5}, 4).takes_picks());
  EXPECT_FALSE(Sampler({.repetition_penalty = 1.1}, 4).takes_picks());
  EXPECT_FALSE(Sampler({.presence_penalty = 0.1}, 4).takes_picks());
}

TEST(Sampler, FrequenciesAreTheProbabilities) {
  // Five standard deviations of a binomial count: 5 sqrt(n p (1 - p)) < 5 sqrt(n / 4) = 354.
  const std::vector<double> p{0.1, 0.5, 0.15, 0.25};
  const auto counts = histogram({.temperature = 1, .seed = 3}, logs(p), 20'000);
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(counts.at(static_cast<TokenId>(i)), 20'000 * p[i], 354) << i;
  }
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  // At temperature 1/2 probabilities are squared: 0.8 and 0.2 become 16/17 and 1/17.
  const auto counts = histogram({.temperature = 0.5, .seed = 3}, logs({0.8, 0.2}), 20'000);
  EXPECT_NEAR(counts.at(1), 20'000 / 17.0, 5 * std::sqrt(20'000 * 16.0 / 17 / 17));
  // A temperature so small that logits over it overflow is greedy.
  EXPECT_EQ(reachable({.temperature = 1e-308}, {5, 80, 79, 80}), (std::set<TokenId>{1, 3}));
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  const auto logits = logs({0.1, 0.4, 0.1, 0.3, 0.1});
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 2}, logits), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 3}, logits), (std::set<TokenId>{0, 1, 3}));
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 99}, logits).size(), 5u);
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 1}, logits), (std::set<TokenId>{1}));
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const auto logits = logs({0.1, 0.4, 0.2, 0.3});
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 0.35}, logits), (std::set<TokenId>{1}));
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 0.45}, logits), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 0.75}, logits), (std::set<TokenId>{1, 2, 3}));
  EXPECT_EQ(reachable({.temperature = 1, .top_p = 1e-9}, logits), (std::set<TokenId>{1}));
  // Within the top 2, 0.4 is 4/7 of the probability.
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 2, .top_p = 0.55}, logits),
            (std::set<TokenId>{1}));
  EXPECT_EQ(reachable({.temperature = 1, .top_k = 2, .top_p = 0.6}, logits),
            (std::set<TokenId>{1, 3}));
}

TEST(Sampler, MinPIsRelativeToTheLargest) {
  const auto logits = logs({0.1, 0.4, 0.2, 0.3});
  EXPECT_EQ(reachable({.temperature = 1, .min_p = 0.6}, logits), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(reachable({.temperature = 1, .min_p = 1}, logits), (std::set<TokenId>{1}));
}

TEST(Sampler, LimitsAgreeWithSortingEverything) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random() % 50);
    for (float& logit : logits) logit = std::round(4 * normal(random)) / 2;  // with ties
    const SamplingOptions options{.temperature = 0.5 + static_cast<double>(random() % 4) / 2,
                                  .top_k = static_cast<std::int64_t>(random() % 12),
                                  .top_p = random() % 2 ? 0.9 : 1.0,
                                  .min_p = random() % 2 ? 0.05 : 0.0,
                                  .seed = random()};
    // The definition: sort, cut, walk.
    std::vector<std::pair<double, TokenId>> order;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      order.emplace_back(-static_cast<double>(logits[i]) / options.temperature,
                         static_cast<TokenId>(i));
    }
    std::sort(order.begin(), order.end());
    if (options.top_k > 0)
      order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
    const double top = order[0].first;
    double total = 0;
    for (const auto& [minus, id] : order) total += std::exp(top - minus);
    std::vector<std::pair<double, TokenId>> kept;
    double sum = 0;
    for (const auto& [minus, id] : order) {
      const double weight = std::exp(top - minus);
      if (weight < options.min_p || (options.top_p < 1 && sum >= options.top_p * total)) break;
      sum += weight;
      kept.emplace_back(sum, id);
    }
    const double target = uniform_draw(options.seed, 0) * sum;
    const auto expected =
        std::find_if(kept.begin(), kept.end(), [&](const auto& k) { return k.first > target; });
    Sampler sampler(options, static_cast<std::int64_t>(logits.size()));
    ASSERT_EQ(sampler.sample(logits), expected->second);
  }
}

TEST(Sampler, RepetitionPenaltyWeakensSeenTokens) {
  Sampler sampler({.repetition_penalty = 2}, 4);
  sampler.observe_prompt(std::vector<TokenId>{0});
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2, 1, 0}), 1);            // 3 / 2 < 2
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2, 1, 0}), 0);            // 1.5 against 1, 1, 0
  EXPECT_EQ(sampler.sample(std::vector<float>{-1, -1.5f, -1.9f, -9}), 2);  // -2, -3, -1.9
}

TEST(Sampler, PresencePenaltyCountsGeneratedTokensOnly) {
  Sampler sampler({.presence_penalty = 1.5}, 3);
  sampler.observe_prompt(std::vector<TokenId>{0});
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2, 1}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2, 1}), 1);
  Sampler resumed({.presence_penalty = 1.5}, 3);
  resumed.observe_generated(std::vector<TokenId>{0});
  EXPECT_EQ(resumed.sample(std::vector<float>{3, 2, 1}), 1);
}

TEST(Sampler, ASeedGivesTheSameTokens) {
  const auto logits = logs({0.2, 0.2, 0.2, 0.2, 0.2});
  const SamplingOptions options{.temperature = 1, .seed = 42};
  Sampler a(options, 5), b(options, 5), c({.temperature = 1, .seed = 43}, 5);
  std::vector<TokenId> from_a, from_b, from_c;
  for (int i = 0; i < 64; ++i) {
    from_a.push_back(a.sample(logits));
    from_b.push_back(b.sample(logits));
    from_c.push_back(c.sample(logits));
  }
  EXPECT_EQ(from_a, from_b);
  EXPECT_NE(from_a, from_c);
  EXPECT_EQ(a.draws(), 64u);
  Sampler resumed(options, 5);
  resumed.resume_at(60);
  for (std::size_t i = 60; i < 64; ++i) EXPECT_EQ(resumed.sample(logits), from_a[i]);
}

TEST(Sampler, NamesLogitsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  Sampler sampler({}, 3);
  EXPECT_ERROR(sampler.sample(std::vector<float>{0, NAN, 1}), "The logit of token 1 is NaN");
  EXPECT_ERROR(sampler.sample(std::vector<float>{0, 1, infinity}), "The logit of token 2 is +inf");
  EXPECT_ERROR(sampler.sample(std::vector<float>{-infinity, 1, 2}), "The logit of token 0 is -inf");
  EXPECT_ERROR(sampler.sample(std::vector<float>{0, 1}), "2 logits for a vocabulary of 3 tokens");
}

TEST(Sampler, NamesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuse = [](const SamplingOptions& options, const char* part) {
    EXPECT_ERROR(Sampler(options, 3), part);
  };
  refuse({.temperature = -1}, "The option temperature must be from 0 (greedy) to 1000, found -1.");
  refuse({.temperature = nan}, "temperature");
  refuse({.temperature = INFINITY}, "temperature");
  refuse({.top_k = -1}, "top-k must be 0 (all tokens) or more, found -1.");
  refuse({.top_p = 0}, "top-p must be above 0 and at most 1, found 0.");
  refuse({.top_p = 1.01}, "top-p");
  refuse({.top_p = nan}, "top-p");
  refuse({.min_p = -0.1}, "min-p must be from 0 to 1, found -0.1.");
  refuse({.min_p = 1.1}, "min-p");
  refuse({.repetition_penalty = 0}, "repetition-penalty must be above 0");
  refuse({.repetition_penalty = nan}, "repetition-penalty");
  refuse({.presence_penalty = 3}, "presence-penalty must be from -2 to 2, found 3.");
  EXPECT_ERROR(Sampler({}, 0), "A vocabulary of 0 tokens");
  Sampler sampler({}, 3);
  EXPECT_ERROR(sampler.observe_prompt(std::vector<TokenId>{1, 3}), "The token id 3 is outside");
  EXPECT_ERROR(sampler.observe_prompt(std::vector<TokenId>{-1}), "The token id -1 is outside");
}

}  // namespace
}  // namespace leapquant::runtime
