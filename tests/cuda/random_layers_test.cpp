// SPDX-License-Identifier: Apache-2.0
//
// Layers of 128 x 128 heads drawn at random: heads and groups, decays, formats with any number of
// compensators, windows, gates, tokens a call, rollbacks. Every backend that takes one is held
// against the FP64 oracle on the same stored bytes, its folds against the reference's. What the
// chosen cases of other tests leave out is met here.
#include <algorithm>
#include <random>

#include "cuda/device_layer.h"
#include "cuda/fold_errors.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Kind;
using conformance::Outputs;
using conformance::Session;

constexpr uint32_t kLayers = 32;

struct RandomLayer {
  leapquant_shape shape;
  std::string format;
  Tokens tokens;
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int32_t number(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[number(0, static_cast<int32_t>(values.size()) - 1)];
  }
  bool one_in(int32_t n) { return number(1, n) == 1; }

 private:
  std::mt19937 random_;
};

std::string draw_format(Draw* draw) {
  if (draw->one_in(4)) {
    std::string preset = draw->one_of(
        {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact", "bf16", "fp32"});
    return preset + (draw->one_in(2) ? ":stagger=1" : "");
  }
  std::string format = draw->one_of({"8", "6", "4", "8h", "6h", "4h"});
  format += draw->one_of({":scale=fp32", ":scale=fp16"});
  format += draw->one_of({":smooth=none", ":smooth=fp32", ":smooth=log8"});
  int32_t left = draw->one_of({0, 4, 12, 32});
  for (const char* kind : {":f16=", ":i8=", ":i4="}) {
    const int32_t count = draw->number(0, left);
    left -= count;
    format += kind + std::to_string(count);
  }
  format += ":window=" + std::to_string(draw->one_of({16, 16, 16, 5, 24}));
  format += draw->one_of({":stagger=0", ":stagger=1"});
  format += draw->one_of({":decay=fp32", ":decay=fp16"});
  format += draw->one_of({":fit=default", ":fit=fixed", ":fit=warm"});
  if (draw->one_in(3)) format += ":rounds=" + std::to_string(draw->number(1, 4));
  return format;
}

RandomLayer draw_layer(uint32_t seed) {
  Draw draw(8801 + seed);
  RandomLayer layer;
  const int32_t k_heads = draw.number(1, 2);
  const int32_t group = draw.one_of({1, 1, 2, 3});
  const leapquant_decay decay =
      draw.one_of({LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR,
                   LEAPQUANT_DECAY_VECTOR, LEAPQUANT_DECAY_NONE});
  layer.shape = conformance::make_shape(k_heads, k_heads * group, 128, 128, decay, !draw.one_in(6),
                                        1, draw.one_of({1, 4, 8}));
  layer.format = draw_format(&draw);
  const Kind kind = draw.one_of({Kind::kPlain, Kind::kPlain, Kind::kSlow, Kind::kOutliers});
  layer.tokens = conformance::random_tokens(layer.shape, 72, 8900 + seed, kind);
  if (draw.one_in(3)) {
    layer.tokens.options.qk_l2norm = 1;
    layer.tokens.options.q_scale = 0.088f;
  }
  return layer;
}

class RandomLayers : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayers, ::testing::Range(0u, kLayers));

// One call: outputs of calls that do not fold go to the lists, folds are judged at once: at
// most 1.05 of the reference's error, or nearly exact.
void decode_call(Session* session, const Tokens& tokens, int32_t position, int32_t count,
                 Outputs* outputs, std::vector<double>* expected) {
  conformance::PoolMemory before = session->memory();
  const Outputs o = session->decode_one(0, position, tokens, position, count);
  ASSERT_EQ(session->status()[0], LEAPQUANT_OK) << "position " << position;
  for (float x : o) ASSERT_TRUE(std::isfinite(x)) << "position " << position;
  bool folds = false;
  const int32_t heads = session->layout().shape.num_v_heads;
  for (int32_t h = 0; h < heads; ++h) {
    if (session->memory().base(0)[h] == before.base(0)[h]) continue;
    folds = true;
    const FoldErrors errors = fold_errors(session, &before, h);
    EXPECT_TRUE(errors.own <= 1.05 * errors.reference || errors.own <= 1e-3 * errors.norm)
        << "head " << h << ", position " << position << ": " << errors.own / errors.reference;
  }
  if (folds) return;
  const std::vector<double>& oracle = session->oracle()[0];
  outputs->insert(outputs->end(), o.begin(), o.end());
  expected->insert(expected->end(), oracle.begin(), oracle.end());
}

// Inside a call of several tokens the later ones read the oracle's own records, where FP32 and FP64
// corrections now and then round to different FP16 neighbours: 1e-4 of a head's norm (see
// conformance/windowed_test).
TEST_P(RandomLayers, AgreeWithTheReference) {
  const RandomLayer layer = draw_layer(GetParam());
  const Layout layout = conformance::make_test_layout(layer.shape, layer.format);
  for (const conformance::TestBackend& backend : conformance::device_backends(layout)) {
    SCOPED_TRACE(backend.name + ", " + layer.format + ", " +
                 std::to_string(layer.shape.num_k_heads) + "/" +
                 std::to_string(layer.shape.num_v_heads) + " heads, decay " +
                 std::to_string(layer.shape.decay) + ", at most " +
                 std::to_string(layer.shape.max_tokens) + " tokens");
    Draw draw(9900 + GetParam());
    Session session(backend, layout, 1);
    session.shadow(true);
    session.reset(0);
    Outputs outputs;
    std::vector<double> expected;
    int32_t position = 0;
    while (position < 56) {
      const int32_t* base = session.memory().base(0);
      const int32_t earliest = *std::max_element(base, base + layer.shape.num_v_heads);
      if (draw.one_in(5)) position = draw.number(std::max(earliest, position - 8), position);
      const int32_t count = draw.number(1, layer.shape.max_tokens);
      decode_call(&session, layer.tokens, position, count, &outputs, &expected);
      if (HasFatalFailure()) return;
      position += count;
    }
    ASSERT_FALSE(outputs.empty());
    EXPECT_LE(conformance::worst_relative_error(outputs, expected, layer.shape.num_v_heads, 128),
              1e-4);
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
