// SPDX-License-Identifier: Apache-2.0
//
// Extreme gates, faulty inputs and normalisation (cases C and D): no exponent is ever positive, no
// NaN is ever multiplied by zero, a faulty sequence changes nothing and infects nobody.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "conformance/session.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Ranges);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

leapquant_shape gdn(int32_t heads = 1) {
  return make_shape(heads, heads, 64, 64, LEAPQUANT_DECAY_SCALAR);
}
leapquant_shape kda() { return make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_VECTOR); }

// The exact recurrence on the same tokens: an FP64 prefill of the reference, [count, HV, V].
std::vector<double> exact_outputs(const Tokens& tokens) {
  Session session(backends_under_test()[0], make_test_layout(tokens.shape, "fp32"), 1);
  session.reset(0);
  const Outputs o = session.prefill({{0, 0, &tokens, 0, tokens.count}})[0];
  EXPECT_EQ(session.status()[0], LEAPQUANT_OK);
  return std::vector<double>(o.begin(), o.end());
}

// Windowed and per step decode and prefill of the tokens: finite, and equal to the exact
// recurrence. Windowed tolerance as in families_test: FP16 records.
void expect_all_paths(const TestBackend& backend, const Tokens& tokens, double windowed,
                      double direct, const std::string& what) {
  const std::vector<double> exact = exact_outputs(tokens);
  const int32_t heads = tokens.shape.num_v_heads;
  const int32_t v_dim = tokens.shape.head_v_dim;
  for (const char* format : {"fp32", "fp32:decay=fp16", "fp32:step"}) {
    Session session(backend, make_test_layout(tokens.shape, format), 1);
    session.reset(0);
    const Outputs o = session.decode_steps(0, 0, tokens, 0, tokens.count);
    const bool step = std::string(format) == "fp32:step";
    EXPECT_LE(worst_relative_error(o, exact, heads, v_dim), step ? direct : windowed)
        << what << ", " << format;
  }
  Session session(backend, make_test_layout(tokens.shape, "fp32"), 1);
  session.reset(0);
  const Outputs o = session.prefill({{0, 0, &tokens, 0, tokens.count}})[0];
  EXPECT_LE(worst_relative_error(o, exact, heads, v_dim), direct) << what << ", prefill";
}

// C1: sixteen equal log decays, beta 1, down to minus infinity.
TEST_P(Ranges, StrongDecays) {
  for (float g : {-3.0f, -5.0f, -5.5f, -6.0f, -27.63f, -60.0f, -90.0f, -1000.0f, -kInfinity}) {
    for (const leapquant_shape& shape : {gdn(), kda()}) {
      Tokens tokens = random_tokens(shape, 33, 51);
      for (float& x : tokens.log_decay) x = g;
      for (float& x : tokens.beta) x = 1.0f;
      expect_all_paths(backend(), tokens, 2e-3, 1e-5, "g " + std::to_string(g));
    }
  }
}

// C1: after strong decays the state is the last token's write alone.
TEST_P(Ranges, StateAfterStrongDecayIsTheLastWrite) {
  Tokens tokens = random_tokens(gdn(), 16, 52);
  for (float& x : tokens.log_decay) x = -60.0f;
  for (float& x : tokens.beta) x = 1.0f;
  Session session(backend(), make_test_layout(gdn(), "int8"), 1);
  session.reset(0);
  session.decode_steps(0, 0, tokens, 0, 16);
  const std::vector<float> state = session.export_state(0, 16);
  for (size_t i = 0; i < 64; ++i) {
    for (size_t c = 0; c < 64; ++c) {
      const float k = tokens.k[15 * 64 + i];
      const float v = tokens.v[15 * 64 + c];
      // Both factors are FP16 in the record: 2^-11 each.
      ASSERT_NEAR(state[i * 64 + c], k * v, 1.1e-3f * std::fabs(k * v) + 1e-7f);
    }
  }
}

// C2: one strong token among slow ones; one dead channel among slow ones.
TEST_P(Ranges, MixedDecays) {
  Tokens tokens = random_tokens(gdn(), 33, 53);
  for (float& x : tokens.log_decay) x = 0.0f;
  tokens.log_decay[0] = tokens.log_decay[20] = -90.0f;
  expect_all_paths(backend(), tokens, 2e-3, 1e-5, "token 20 strong");

  tokens = random_tokens(kda(), 33, 54);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = i % 64 == 7 ? -1000.0f : 0.0f;
  }
  expect_all_paths(backend(), tokens, 2e-3, 1e-5, "channel 7 dead");
  expect_all_paths(backend(), random_tokens(kda(), 70, 55, Kind::kStrong), 2e-3, 1e-5, "all kinds");
}

// C3: decays from 1e-12 to 0.4 for many tokens. C11: -1e6, then -1e-3: sums whose differences would
// round to a positive number.
TEST_P(Ranges, SumsOfDecaysNeverTurnPositive) {
  Tokens tokens = random_tokens(gdn(2), 160, 56);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    const float u = tokens.beta[i];
    tokens.log_decay[i] = std::log(1e-4f + 0.4f * u);
  }
  expect_all_paths(backend(), tokens, 2e-3, 1e-5, "alpha in 1e-4..0.4");
  for (float& x : tokens.log_decay) x = std::log(1e-12f);
  expect_all_paths(backend(), tokens, 2e-3, 1e-5, "alpha 1e-12");
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = i % 6 < 2 ? -1e6f : -1e-3f;
  }
  expect_all_paths(backend(), tokens, 2e-3, 1e-5, "-1e6 then -1e-3");
}

// C4: g = 0 everywhere is the plain delta rule, bit for bit; half the tokens at 0.
TEST_P(Ranges, NoDecayIsThePlainDeltaRule) {
  const leapquant_shape none = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_NONE);
  for (const leapquant_shape& shape : {gdn(), kda()}) {
    Tokens tokens = random_tokens(shape, 40, 57);
    for (float& x : tokens.log_decay) x = 0.0f;
    Tokens plain = tokens;
    plain.shape = none;
    plain.log_decay.clear();
    Session gated(backend(), make_test_layout(shape, "int8"), 1);
    Session ungated(backend(), make_test_layout(none, "int8"), 1);
    gated.reset(0);
    ungated.reset(0);
    EXPECT_EQ(gated.decode_steps(0, 0, tokens, 0, 40), ungated.decode_steps(0, 0, plain, 0, 40));
    for (size_t i = 0; i < tokens.log_decay.size(); i += 2) tokens.log_decay[i] = -0.1f;
    expect_all_paths(backend(), tokens, 2e-3, 1e-5, "half the tokens");
  }
}

// C5: equal keys, beta near 1 and 2. With a residual of noise: 0, 0.01, 0.1. The recurrence itself
// amplifies FP32 rounding here (eigenvalues near -1 for beta 2, near 0 for beta 1), far below the
// 1e-3 that the case asks.
TEST_P(Ranges, CollinearKeys) {
  for (float noise : {0.0f, 0.01f, 0.1f}) {
    for (float beta : {0.99966f, 2.0f}) {
      Tokens tokens = random_tokens(gdn(), 200, 58);
      const Tokens other = random_tokens(gdn(), 200, 59);
      for (size_t t = 0; t < 200; ++t) {
        float sum = 0.0f;
        for (size_t i = 0; i < 64; ++i) {
          float& x = tokens.k[t * 64 + i];
          x = tokens.k[i] + noise * other.k[t * 64 + i];
          sum += x * x;
        }
        for (size_t i = 0; i < 64 && t > 0; ++i) tokens.k[t * 64 + i] /= std::sqrt(sum);
      }
      for (float& x : tokens.beta) x = beta;
      for (float& x : tokens.log_decay) x = -3.07e-5f;
      const std::vector<double> exact = exact_outputs(tokens);
      Session session(backend(), make_test_layout(gdn(), "fp32"), 2);
      session.reset(0);
      session.reset(1);
      const Outputs prefilled = session.prefill({{0, 0, &tokens, 0, 200}})[0];
      EXPECT_LE(worst_relative_error(prefilled, exact, 1, 64), 1e-3) << noise << " " << beta;
      const Outputs decoded = session.decode_steps(1, 0, tokens, 0, 200);
      for (float x : decoded) ASSERT_TRUE(std::isfinite(x));
      EXPECT_LE(worst_relative_error(decoded, exact, 1, 64), 2e-2) << noise << " " << beta;
    }
  }
}

// C6: long, correlated, slow: outputs stay finite and small.
TEST_P(Ranges, LongCorrelatedSequence) {
  const leapquant_shape shape = make_shape(2, 2, 32, 32, LEAPQUANT_DECAY_SCALAR);
  Tokens tokens = random_tokens(shape, 2048, 60, Kind::kOutliers);
  for (float& x : tokens.k) x *= 0.9f;
  for (float& x : tokens.beta) x = 1.0f;
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = -0.0121f - 0.022f * static_cast<float>(i % 7) / 7.0f;
  }
  Session session(backend(), make_test_layout(shape, "fp32"), 1);
  session.reset(0);
  const Outputs o = session.prefill({{0, 0, &tokens, 0, 2048}})[0];
  EXPECT_LE(worst_relative_error(o, exact_outputs(tokens), 2, 32), 1e-4);
}

// D2: an expanding step (beta |k|^2 = 100) grows until FP16 records saturate: flagged, and finite.
TEST_P(Ranges, GrowthIsFlagged) {
  Tokens tokens = random_tokens(gdn(), 16, 61);
  for (size_t t = 0; t < 16; ++t) {
    for (size_t i = 0; i < 64; ++i) tokens.k[t * 64 + i] = 10.0f * (i == 3 ? 1.0f : 0.0f);
  }
  for (float& x : tokens.beta) x = 1.0f;
  Session session(backend(), make_test_layout(gdn(), "int8"), 1);
  session.reset(0);
  const Outputs o = session.decode_steps(0, 0, tokens, 0, 16);
  for (float x : o) ASSERT_TRUE(std::isfinite(x));
  EXPECT_NE(session.memory().health(0)->flags & LEAPQUANT_HEALTH_RECORD_SATURATED, 0u);
}

// D1: eps lies inside the root: |k| = 1e-4 with eps 1e-6 becomes 0.0995, not 0.9901.
TEST_P(Ranges, NormalisationAddsEpsInsideTheRoot) {
  Tokens tokens = random_tokens(gdn(), 1, 62);
  for (float& x : tokens.k) x *= 1e-4f;
  tokens.options.qk_l2norm = 1;
  tokens.beta[0] = 1.0f;
  Session session(backend(), make_test_layout(gdn(), "fp32"), 1);
  session.reset(0);
  session.decode_one(0, 0, tokens, 0, 1);
  const std::vector<float> state = session.export_state(0, 1);
  double state_norm = 0.0;
  double v_norm = 0.0;
  for (float x : state) state_norm += static_cast<double>(x) * x;
  for (float x : tokens.v) v_norm += static_cast<double>(x) * x;
  EXPECT_NEAR(std::sqrt(state_norm / v_norm), 0.0995, 2e-4);

  for (float& x : tokens.k) x = 0.0f;  // a zero key: no singularity, no contribution
  session.reset(0);
  const Outputs o = session.decode_one(0, 0, tokens, 0, 1);
  for (float x : o) ASSERT_EQ(x, 0.0f);
}

// C8 and report 32: a readout beyond FP16 is its largest number with the right sign, never
// infinite.
TEST_P(Ranges, NarrowOutputsSaturate) {
  Tokens tokens = random_tokens(gdn(), 1, 64);
  for (float& x : tokens.q) x = 1.0f;
  tokens.log_decay[0] = 0.0f;
  tokens.beta[0] = 0.0f;  // no write: each output is the sum of 64 equal entries of the state
  std::vector<float> matrix(64 * 64);
  for (size_t e = 0; e < matrix.size(); ++e) matrix[e] = e % 2 == 0 ? 1e5f : -1e5f;
  for (const char* format : {"fp32", "fp32:step"}) {
    Session session(backend(), make_test_layout(gdn(), format), 1);
    for (int32_t type : {LEAPQUANT_FP16, LEAPQUANT_FP32}) {
      session.import_state(0, 0, matrix);
      const Outputs o = session.decode_inputs(0, 0, tokens.inputs(), 1, type);
      EXPECT_EQ(session.status()[0], LEAPQUANT_OK);
      // 64 x 1e5 and all partial sums are whole numbers below 2^24: exact in FP32.
      const float largest = type == LEAPQUANT_FP16 ? 65504.0f : 6.4e6f;
      for (size_t j = 0; j < o.size(); ++j) {
        ASSERT_EQ(o[j], j % 2 == 0 ? largest : -largest) << format << ", value " << j;
      }
    }
  }
}

// E5 and report 26: gate kinds at x in {-20, -1, 0, 1, 20}, saturated and infinite parameters.
TEST_P(Ranges, GateKinds) {
  const leapquant_shape shape = make_shape(1, 1, 4, 4, LEAPQUANT_DECAY_SCALAR, false);
  const auto decay_of = [&](int32_t gate, float x, float a_log, float bias) {
    Tokens tokens = random_tokens(shape, 1, 63);
    tokens.options.gate = gate;
    tokens.options.lower_bound = -5.0f;
    tokens.log_decay[0] = x;
    tokens.a_log = {a_log};
    tokens.dt_bias = {bias};
    tokens.beta[0] = 0.0f;  // no write: the state after is the decay itself
    Session session(backend(), make_test_layout(shape, "fp32:step"), 1);
    session.import_state(0, 0, std::vector<float>(16, 1.0f));
    session.decode_one(0, 0, tokens, 0, 1);
    EXPECT_EQ(session.status()[0], LEAPQUANT_OK);
    return static_cast<double>(session.export_state(0, 1)[0]);
  };
  for (float x : {-20.0f, -1.0f, 0.0f, 1.0f, 20.0f}) {
    const double y = static_cast<double>(x) + 0.25;
    const double softplus = y > 20.0 ? y : std::log1p(std::exp(y));
    const double rate = std::exp(0.5);
    EXPECT_NEAR(decay_of(LEAPQUANT_GATE_SOFTPLUS, x, 0.5f, 0.25f), std::exp(-rate * softplus),
                1e-6 * std::exp(-rate * softplus) + 1e-12)
        << x;
    const double bounded = -5.0 / (1.0 + std::exp(-rate * y));
    EXPECT_NEAR(decay_of(LEAPQUANT_GATE_BOUNDED, x, 0.5f, 0.25f), std::exp(bounded), 2e-6) << x;
  }
  EXPECT_EQ(decay_of(LEAPQUANT_GATE_SOFTPLUS, -200.0f, 100.0f, 0.0f), 1.0);
  EXPECT_EQ(decay_of(LEAPQUANT_GATE_SOFTPLUS, 1.0f, -kInfinity, 0.0f), 1.0);
  EXPECT_EQ(decay_of(LEAPQUANT_GATE_SOFTPLUS, 50.0f, 100.0f, 0.0f), 0.0);
  EXPECT_NEAR(decay_of(LEAPQUANT_GATE_BOUNDED, 0.0f, 100.0f, 0.0f), std::exp(-2.5), 1e-6);
}

// C9, C10: one faulty value in sequence 1 of three. Its rows are zero, its slot keeps every byte;
// the neighbours get the bits of a call without it.
TEST_P(Ranges, FaultyInputsStayAlone) {
  using Poison = std::function<void(Tokens*)>;
  struct Fault {
    const char* name;
    Poison poison;
    int32_t status;
  };
  const std::vector<Fault> faults = {
      {"q", [](Tokens* t) { t->q[5] = kNan; }, LEAPQUANT_NON_FINITE_INPUT},
      {"k", [](Tokens* t) { t->k[t->k.size() - 1] = kNan; }, LEAPQUANT_NON_FINITE_INPUT},
      {"v", [](Tokens* t) { t->v[t->v.size() / 2] = kInfinity; }, LEAPQUANT_NON_FINITE_INPUT},
      {"read key", [](Tokens* t) { t->read_key[9] = -kInfinity; }, LEAPQUANT_NON_FINITE_INPUT},
      {"beta", [](Tokens* t) { t->beta[3] = kNan; }, LEAPQUANT_NON_FINITE_INPUT},
      {"log decay", [](Tokens* t) { t->log_decay[2] = kNan; }, LEAPQUANT_NON_FINITE_INPUT},
      {"log decay +5", [](Tokens* t) { t->log_decay[2] = 5.0f; }, LEAPQUANT_POSITIVE_LOG_DECAY},
      {"log decay +tiny", [](Tokens* t) { t->log_decay.back() = 1e-30f; },
       LEAPQUANT_POSITIVE_LOG_DECAY},
      {"log decay +inf", [](Tokens* t) { t->log_decay[0] = kInfinity; },
       LEAPQUANT_POSITIVE_LOG_DECAY},
  };
  for (const leapquant_shape& shape : {make_shape(1, 2, 36, 44, LEAPQUANT_DECAY_SCALAR),
                                       make_shape(1, 2, 36, 44, LEAPQUANT_DECAY_VECTOR)}) {
    for (const char* format : {"int8", "int4+", "int8:step"}) {
      Tokens tokens = random_tokens(shape, 3, 64);
      tokens.read_key = random_tokens(shape, 3, 65).k;
      const Layout layout = make_test_layout(shape, format);
      const auto fill = [&](Session* session) {
        for (int32_t slot : {0, 1, 2}) session->reset(slot);
      };
      Session clean(backend(), layout, 3);
      fill(&clean);
      const std::vector<Outputs> expected =
          clean.decode({{0, 0, &tokens, 0, 3}, {2, 0, &tokens, 1, 2}});
      for (const Fault& fault : faults) {
        Tokens bad = tokens;
        fault.poison(&bad);
        Session session(backend(), layout, 3);
        fill(&session);
        const std::vector<std::byte> before = session.memory().slot_bytes(1);
        const std::vector<Outputs> o =
            session.decode({{0, 0, &tokens, 0, 3}, {1, 0, &bad, 0, 3}, {2, 0, &tokens, 1, 2}});
        const std::string where = std::string(fault.name) + ", " + format;
        EXPECT_EQ(session.status(), (std::vector<int32_t>{0, fault.status, 0})) << where;
        EXPECT_EQ(o[0], expected[0]) << where;
        EXPECT_EQ(o[2], expected[1]) << where;
        EXPECT_TRUE(session.memory().slot_bytes(1) == before) << where;
        EXPECT_TRUE(session.memory().slot_bytes(0) == clean.memory().slot_bytes(0)) << where;
        EXPECT_TRUE(session.memory().slot_bytes(2) == clean.memory().slot_bytes(2)) << where;

        const Outputs prefilled = session.prefill({{1, 0, &bad, 0, 3}})[0];
        EXPECT_EQ(session.status()[0], fault.status) << where;
        for (float x : prefilled) ASSERT_EQ(x, 0.0f) << where;
        EXPECT_TRUE(session.memory().slot_bytes(1) == before) << where;
        // The slot is as good as new.
        EXPECT_EQ(session.decode_one(1, 0, tokens, 0, 3), expected[0]) << where;
      }
    }
  }
}

// A matrix with a NaN changes nothing either.
TEST_P(Ranges, NonFiniteImportIsRefused) {
  Session session(backend(), make_test_layout(gdn(2), "int8"), 1);
  session.reset(0);
  const std::vector<std::byte> before = session.memory().slot_bytes(0);
  for (float bad : {kNan, kInfinity}) {
    std::vector<float> m(2 * 64 * 64, 1.0f);
    m[6000] = bad;
    session.import_state(0, 3, m);
    EXPECT_EQ(session.status()[0], LEAPQUANT_NON_FINITE_INPUT);
    EXPECT_TRUE(session.memory().slot_bytes(0) == before);
  }
}

// Faults of raw gates.
TEST_P(Ranges, NonFiniteRawGatesAreRefused) {
  for (int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
    for (float bad : {kNan, kInfinity, -kInfinity}) {
      Tokens tokens = random_tokens(gdn(), 2, 66);
      tokens.options.gate = gate;
      tokens.options.lower_bound = -5.0f;
      tokens.a_log = {0.5f};
      tokens.log_decay[1] = bad;
      Session session(backend(), make_test_layout(gdn(), "int8"), 1);
      session.reset(0);
      session.decode_one(0, 0, tokens, 0, 2);
      EXPECT_EQ(session.status()[0], LEAPQUANT_NON_FINITE_INPUT) << bad;
    }
  }
}

}  // namespace
}  // namespace leapquant::conformance
