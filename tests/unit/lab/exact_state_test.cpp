// SPDX-License-Identifier: Apache-2.0
//
// The FP64 recurrence of the lab against its definition written out, and the library's FP32 state
// against both.
#include "lab/exact_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lab/drift.h"
#include "lab/format_layer.h"
#include "runtime/error.h"

namespace leapquant::lab {
namespace {

LayerInputs random_inputs(const LayerShape& shape, int tokens, unsigned seed) {
  LayerInputs inputs;
  inputs.resize(shape, tokens);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  for (auto* values : {&inputs.q, &inputs.k, &inputs.v}) {
    for (float& x : *values) x = normal(random);
  }
  const auto dim = static_cast<std::size_t>(shape.head_k_dim);
  for (auto* rows : {&inputs.q, &inputs.k}) {
    for (std::size_t row = 0; row < rows->size(); row += dim) {
      float sum = 0;
      for (std::size_t i = 0; i < dim; ++i) sum += (*rows)[row + i] * (*rows)[row + i];
      for (std::size_t i = 0; i < dim; ++i) (*rows)[row + i] /= std::sqrt(sum);
    }
  }
  for (float& g : inputs.log_decay) g = -0.1F * uniform(random);
  for (float& beta : inputs.beta) beta = uniform(random);
  return inputs;
}

// The recurrence as it is written, one value head at a time.
std::vector<double> by_definition(const LayerShape& shape, const LayerInputs& inputs,
                                  std::vector<double>* outputs) {
  const auto keys = static_cast<std::size_t>(shape.head_k_dim);
  const auto values = static_cast<std::size_t>(shape.head_v_dim);
  const auto heads = static_cast<std::size_t>(shape.num_v_heads);
  std::vector<double> states(heads * keys * values);
  outputs->assign(static_cast<std::size_t>(inputs.tokens) * heads * values, 0);
  for (std::size_t h = 0; h < heads; ++h) {
    double* s = states.data() + h * keys * values;
    const std::size_t k_head = h / static_cast<std::size_t>(shape.num_v_heads / shape.num_k_heads);
    for (std::size_t t = 0; t < static_cast<std::size_t>(inputs.tokens); ++t) {
      const float* k = inputs.k.data() + t * shape.k_row() + k_head * keys;
      const float* q = inputs.q.data() + t * shape.k_row() + k_head * keys;
      const float* v = inputs.v.data() + t * shape.v_row() + h * values;
      const double decay = std::exp(static_cast<double>(inputs.log_decay[t * heads + h]));
      for (std::size_t i = 0; i < keys * values; ++i) s[i] *= decay;
      for (std::size_t j = 0; j < values; ++j) {
        double read = 0;
        for (std::size_t i = 0; i < keys; ++i) read += s[i * values + j] * k[i];
        const double u = inputs.beta[t * heads + h] * (v[j] - read);
        for (std::size_t i = 0; i < keys; ++i) s[i * values + j] += k[i] * u;
        double out = 0;
        for (std::size_t i = 0; i < keys; ++i) out += s[i * values + j] * q[i];
        (*outputs)[t * shape.v_row() + h * values + j] = out;
      }
    }
  }
  return states;
}

double relative(std::span<const double> a, std::span<const double> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

class ExactStateShapes : public ::testing::TestWithParam<LayerShape> {};

TEST_P(ExactStateShapes, FollowsTheDefinition) {
  const LayerShape shape = GetParam();
  const LayerInputs inputs = random_inputs(shape, 50, 1);
  std::vector<double> expected;
  const std::vector<double> states = by_definition(shape, inputs, &expected);
  ExactState exact(shape);
  std::vector<double> outputs(expected.size());
  exact.advance(inputs, outputs, 2);
  // Two FP64 evaluations in different order: a few hundred roundings of 1.1e-16.
  EXPECT_LT(relative(outputs, expected), 1e-13);
  const std::size_t size = states.size() / static_cast<std::size_t>(shape.num_v_heads);
  for (int h = 0; h < shape.num_v_heads; ++h) {
    EXPECT_LT(relative(exact.matrix(h),
                       std::span(states).subspan(static_cast<std::size_t>(h) * size, size)),
              1e-13);
  }
}

// A width below, at and past the block of columns; grouped heads; keys and values of unlike size.
INSTANTIATE_TEST_SUITE_P(Shapes, ExactStateShapes,
                         ::testing::Values(LayerShape{1, 1, 8, 4}, LayerShape{1, 2, 16, 16},
                                           LayerShape{2, 4, 32, 40}, LayerShape{2, 6, 128, 128}));

TEST(ExactState, TokensInSeveralCallsAreTokensInOne) {
  const LayerShape shape{1, 2, 16, 24};
  const LayerInputs first = random_inputs(shape, 5, 1);
  const LayerInputs second = random_inputs(shape, 9, 2);
  LayerInputs both = first;
  both.tokens = 14;
  const auto join = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  join(both.q, second.q);
  join(both.k, second.k);
  join(both.v, second.v);
  join(both.log_decay, second.log_decay);
  join(both.beta, second.beta);
  ExactState split(shape);
  ExactState whole(shape);
  std::vector<double> outputs(both.v.size());
  std::vector<double> parts(both.v.size());
  whole.advance(both, outputs, 1);
  split.advance(first, std::span(parts).first(first.v.size()), 1);
  split.advance(second, std::span(parts).subspan(first.v.size()), 1);
  EXPECT_EQ(outputs, parts);
  EXPECT_EQ(split.matrix(1), whole.matrix(1));
}

runtime::StateFormat format_of(const std::string& text, int heads, int layers) {
  runtime::StateOptions options;
  options.state = text;
  return runtime::resolve_state(options, heads, layers);
}

TEST(FormatLayer, AnFp32StateFollowsTheExactOne) {
  const LayerShape shape{2, 4, 128, 128};
  const LayerInputs inputs = random_inputs(shape, 40, 3);
  ExactState exact(shape);
  std::vector<double> expected(inputs.v.size());
  exact.advance(inputs, expected, 1);
  FormatLayer layer(shape, format_of("fp32", 4, 1).layers.front());
  std::vector<float> outputs(inputs.v.size());
  layer.advance(inputs, outputs);
  const std::vector<double> wide(outputs.begin(), outputs.end());
  // FP32 sums of 128 terms over 40 tokens: 40 * sqrt(128) * 6e-8 is 3e-5 at worst, 1e-6 in
  // practice.
  EXPECT_LT(relative(wide, expected), 1e-5);
  const std::vector<float> matrices = layer.matrices();
  const std::vector<double> head(matrices.begin(), matrices.begin() + 128 * 128);
  EXPECT_LT(relative(head, exact.matrix(0)), 1e-5);
}

// Random inputs in chunks of odd sizes, two sequences.
class RandomSource final : public InputSource {
 public:
  const LayerShape& shape() const override { return shape_; }
  int num_layers() const override { return 2; }
  std::int64_t total_tokens() const override { return 140; }
  SequenceLength shortest() const override { return {"first", 70}; }
  bool next(InputChunk& chunk) override {
    if (step_ == 4) return false;
    chunk.sequence = step_ < 2 ? "first" : "second";
    chunk.position = step_ % 2 == 0 ? 0 : gap_ ? 38 : 37;
    chunk.layers.clear();
    for (unsigned layer = 0; layer < 2; ++layer) {
      chunk.layers.push_back(random_inputs(shape_, step_ % 2 == 0 ? 37 : 33, 10 * step_ + layer));
    }
    ++step_;
    return true;
  }
  bool gap_ = false;

 private:
  LayerShape shape_{1, 2, 32, 32};
  unsigned step_ = 0;
};

DriftOptions drift_options() {
  DriftOptions options;
  for (const char* state : {"fp32", "int8", "4"}) {
    options.states.push_back(format_of(state, 2, 2));
  }
  options.from = 10;
  options.to = 70;
  options.every = 32;
  return options;
}

TEST(Drift, SumsOverBucketsAndSpans) {
  RandomSource source;
  std::int64_t progress = 0;
  const auto sequences =
      measure_drift(source, drift_options(), [&](std::int64_t tokens) { progress = tokens; });
  EXPECT_EQ(progress, 140);
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_EQ(sequences[0].name, "first");
  EXPECT_EQ(sequences[1].tokens, 70);
  for (const SequenceDrift& sequence : sequences) {
    for (const auto& heads : sequence.heads) {
      ASSERT_EQ(heads.size(), 4U);
      for (const HeadDrift& head : heads) {
        EXPECT_EQ(head.outputs.size(), 3U);  // 32, 64 and the rest
        EXPECT_EQ(head.state_error.size(), 3U);
        EXPECT_TRUE(head.finite);
        EXPECT_LT(head.mean_log_decay, 0);
        double all = 0;
        for (const ErrorSums& sums : head.outputs) all += sums.reference;
        EXPECT_GT(all, head.span.reference);
      }
    }
  }
  const double fp32 = mean_span_error(sequences, 0);
  const double int8 = mean_span_error(sequences, 1);
  const double plain4 = mean_span_error(sequences, 2);
  EXPECT_LT(fp32, 1e-10);  // the square of the 1e-5 above
  EXPECT_GT(int8, fp32);
  EXPECT_GT(plain4, 4 * int8);  // 4 bits without compensators round 18 times as coarsely
  EXPECT_EQ(sequences[0].heads[0][0].first_divergence, -1);
  EXPECT_GE(sequences[0].heads[2][0].first_divergence, 0);
}

TEST(Drift, DoesNotDependOnThreads) {
  RandomSource a;
  RandomSource b;
  DriftOptions options = drift_options();
  options.threads = 1;
  const auto one = measure_drift(a, options, nullptr);
  options.threads = 3;
  const auto three = measure_drift(b, options, nullptr);
  EXPECT_EQ(mean_span_error(one, 1), mean_span_error(three, 1));
  EXPECT_EQ(mean_bucket_error(one, 2, 0, 3), mean_bucket_error(three, 2, 0, 3));
}

TEST(Drift, ASequenceThatEndsBeforeTheSpanIsAnError) {
  RandomSource source;
  DriftOptions options = drift_options();
  options.from = 70;
  options.to = 140;
  std::int64_t progress = 0;
  try {
    measure_drift(source, options, [&](std::int64_t tokens) { progress = tokens; });
    FAIL() << "no error";
  } catch (const runtime::Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"first\" has 70 tokens"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(progress, 0);
  options.from = 69;
  EXPECT_EQ(measure_drift(source, options, nullptr).size(), 2U);
}

TEST(Drift, ACancellationIsSeenInTheNextChunk) {
  RandomSource source;
  std::atomic<bool> cancel{false};
  DriftOptions options = drift_options();
  options.cancel = &cancel;
  int chunks = 0;
  EXPECT_THROW(measure_drift(source, options,
                             [&](std::int64_t) {
                               ++chunks;
                               cancel = true;
                             }),
               runtime::Error);
  EXPECT_EQ(chunks, 1);
}

TEST(Drift, AGapInARecordingIsAnError) {
  RandomSource source;
  source.gap_ = true;
  EXPECT_THROW(measure_drift(source, drift_options(), nullptr), runtime::Error);
}

}  // namespace
}  // namespace leapquant::lab
