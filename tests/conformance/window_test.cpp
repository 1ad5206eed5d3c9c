// SPDX-License-Identifier: Apache-2.0
//
// The window as an object (cases J): copies at every fill, forced folds, lengths, ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/sequence_cases.h"
#include "core/numeric.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Window);

leapquant_shape small() { return make_shape(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR); }

TEST_P(Window, CopiesAtEveryFillGoOnAlike) {
  for (const char* format : {"int8+", "int8+:stagger=1"}) {
    expect_copies_go_on_alike({backend(), small(), format});
  }
}

TEST_P(Window, ForcedFoldsAtEveryFill) {
  for (const char* format : {"int8", "int8+", "int4+"}) {
    expect_forced_folds_at_every_fill({backend(), small(), format});
  }
}

// J4: window lengths and ranks: every combination decodes, near the FP32 state. INT8 rounds entries
// to about 1/127 of their column's largest: relative errors of the state of some 1e-2 at worst.
TEST_P(Window, LengthsAndRanks) {
  const Tokens tokens = random_tokens(small(), 80, 103);
  Session exact(backends_under_test()[0], make_test_layout(small(), "fp32"), 1);
  exact.reset(0);
  const std::vector<double> wide = widened(exact.prefill({{0, 0, &tokens, 0, 80}})[0]);
  for (int32_t p : {1, 2, 16, 32, 64}) {
    for (int32_t r : {0, 1, 8, 32}) {
      for (const char* stagger : {":stagger=0", ":stagger=1"}) {
        const std::string format =
            "int8:r=" + std::to_string(r) + ":window=" + std::to_string(p) + stagger;
        Session session(backend(), make_test_layout(small(), format), 1);
        session.reset(0);
        const Outputs o = session.decode_steps(0, 0, tokens, 0, 80, 3);
        EXPECT_LE(worst_relative_error(o, wide, 2, 32), 0.05) << format;
      }
    }
  }
}

// J4: p = 1 is per-step quantisation, bit for bit, where the record itself rounds nothing: keys and
// values that FP16 holds, no decay, no read.
TEST_P(Window, OneTokenWindowsAreStepsOfQuantisation) {
  const leapquant_shape shape = make_shape(1, 1, 32, 32, LEAPQUANT_DECAY_NONE, false);
  Tokens tokens = random_tokens(shape, 40, 104);
  for (float& x : tokens.k) x = fp16_to_float(float_to_fp16(x));
  for (float& x : tokens.v) x = fp16_to_float(float_to_fp16(x));
  tokens.beta.clear();
  const std::string formats[][2] = {{"8:smooth=none:window=1", "int8:step"},
                                    {"int8:window=1", "int8:step:r=4:smooth=fp32"},
                                    {"int4+:window=1", "int4+:step:i8=8:i4=18:smooth=log8"}};
  for (const auto& [window, step] : formats) {
    Session windowed(backend(), make_test_layout(shape, window), 1);
    Session stepwise(backend(), make_test_layout(shape, step), 1);
    windowed.reset(0);
    stepwise.reset(0);
    windowed.decode_steps(0, 0, tokens, 0, 40, 1);
    stepwise.decode_steps(0, 0, tokens, 0, 40, 1);
    windowed.fold(0, 40);
    EXPECT_TRUE(windowed.memory().state_bytes(0) == stepwise.memory().state_bytes(0)) << step;
  }
}

// The plainest per-step INT8, written down here: one scale per value column, nearest codes. The
// reference with no compensators and no smoothing is that, bit for bit.
TEST(WindowOfTheReference, PerStepInt8IsPlainInt8) {
  const leapquant_shape shape = make_shape(1, 1, 32, 32, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = random_tokens(shape, 30, 105);
  Session session(backends_under_test()[0], make_test_layout(shape, "8:smooth=none:step"), 1);
  session.reset(0);
  std::vector<double> s(32 * 32, 0.0);
  for (int32_t t = 0; t < 30; ++t) {
    const auto token = static_cast<size_t>(t);
    const float* k = tokens.k.data() + token * 32;
    const float* v = tokens.v.data() + token * 32;
    for (double& x : s) x *= std::exp(static_cast<double>(tokens.log_decay[token]));
    for (size_t j = 0; j < 32; ++j) {
      double read = 0.0;
      for (size_t i = 0; i < 32; ++i) read += s[i * 32 + j] * static_cast<double>(k[i]);
      const double u = static_cast<double>(tokens.beta[token]) * (static_cast<double>(v[j]) - read);
      float largest = 0.0f;
      for (size_t i = 0; i < 32; ++i) {
        s[i * 32 + j] += static_cast<double>(k[i]) * u;
        largest = std::max(largest, std::fabs(static_cast<float>(s[i * 32 + j])));
      }
      for (size_t i = 0; i < 32; ++i) {
        const float code = std::nearbyint(static_cast<float>(s[i * 32 + j]) * (127.0f / largest));
        s[i * 32 + j] = static_cast<double>(code) * (static_cast<double>(largest) / 127.0);
      }
    }
    session.decode_one(0, t, tokens, t, 1);
    EXPECT_LE(relative_error(session.state(0, 0, t + 1), s), 1e-12) << t;
  }
}

}  // namespace
}  // namespace leapquant::conformance
