// SPDX-License-Identifier: Apache-2.0
//
// Cases B3, C, D and E5 on heads of 128 x 128: extreme and raw gates, equal keys, faulty inputs,
// normalisation, types of activations. tests/conformance/ranges_test.cpp asks the same of every
// backend on small heads.
#include <functional>
#include <limits>

#include "conformance/sequence_cases.h"
#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Kind;
using conformance::make_test_layout;
using conformance::Outputs;
using conformance::random_tokens;
using conformance::Row;
using conformance::Session;
using conformance::Tokens;

LEAPQUANT_ON_DEVICE_BACKENDS(Ranges128, "int8");

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two windows and a token over, in one format of either kind of compensator.
void expect_all(const conformance::TestBackend& backend, const Tokens& tokens,
                const std::string& what) {
  const bool vector = tokens.shape.decay == LEAPQUANT_DECAY_VECTOR;
  for (const std::string format : {"int8", vector ? "int4+:decay=fp16" : "int4+"}) {
    Session session(backend, make_test_layout(tokens.shape, format), 1);
    session.reset(0);
    expect_oracle(&session, tokens, 0, tokens.count, 1, format + ", " + what);
  }
}

// C1.
TEST_P(Ranges128, StrongDecays) {
  for (float g : {-3.0f, -5.0f, -5.5f, -6.0f, -27.63f, -60.0f, -90.0f, -1000.0f, -kInfinity}) {
    for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
      Tokens tokens = random_tokens(shape, 33, 8101);
      std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), g);
      std::fill(tokens.beta.begin(), tokens.beta.end(), 1.0f);
      expect_all(backend(), tokens, "g " + std::to_string(g));
    }
  }
}

// C1: what is left is the last write, both factors FP16 in the record: 2^-11 each.
TEST_P(Ranges128, StateAfterStrongDecayIsTheLastWrite) {
  Tokens tokens = random_tokens(gdn_128(1, 1), 16, 8102);
  std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), -60.0f);
  std::fill(tokens.beta.begin(), tokens.beta.end(), 1.0f);
  Session session(backend(), make_test_layout(tokens.shape, "int8"), 1);
  session.reset(0);
  session.decode_steps(0, 0, tokens, 0, 16);
  const std::vector<float> state = session.export_state(0, 16);
  for (size_t i = 0; i < 128; ++i) {
    for (size_t c = 0; c < 128; ++c) {
      const float kv = tokens.k[15 * 128 + i] * tokens.v[15 * 128 + c];
      ASSERT_NEAR(state[i * 128 + c], kv, 1.1e-3f * std::fabs(kv) + 1e-7f);
    }
  }
}

// C2, C3, C11: one strong token, one dead channel, tiny decays, sums that would turn positive.
TEST_P(Ranges128, MixedAndTinyDecays) {
  Tokens tokens = random_tokens(gdn_128(), 33, 8103);
  std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), 0.0f);
  for (size_t h = 0; h < 2; ++h) tokens.log_decay[h] = tokens.log_decay[20 * 2 + h] = -90.0f;
  expect_all(backend(), tokens, "token 20 strong");

  tokens = random_tokens(kda_128(), 33, 8104);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = i % 128 == 7 ? -1000.0f : 0.0f;
  }
  expect_all(backend(), tokens, "channel 7 dead");
  expect_all(backend(), random_tokens(kda_128(), 70, 8105, Kind::kStrong), "all kinds");

  tokens = random_tokens(gdn_128(2, 2), 160, 8106);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = std::log(1e-4f + 0.4f * tokens.beta[i]);
  }
  expect_all(backend(), tokens, "alpha in 1e-4..0.4");
  std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), std::log(1e-12f));
  expect_all(backend(), conformance::slice(tokens, 0, 64), "alpha 1e-12");
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = i % 6 < 2 ? -1e6f : -1e-3f;
  }
  expect_all(backend(), tokens, "-1e6 then -1e-3");
}

// C4: a decay of one is no decay, bit for bit. Vector decays may be summed otherwise: within a
// window there are records only, whose FP16 neighbours flip now and then: 1e-4 of a head's norm.
TEST_P(Ranges128, NoDecayIsThePlainDeltaRule) {
  const leapquant_shape none = conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_NONE);
  for (const leapquant_shape& shape : {gdn_128(2, 2), kda_128()}) {
    Tokens tokens = random_tokens(shape, 40, 8107);
    std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), 0.0f);
    Tokens plain = tokens;
    plain.shape = none;
    plain.log_decay.clear();
    Session gated(backend(), make_test_layout(shape, "int8"), 1);
    Session ungated(backend(), make_test_layout(none, "int8"), 1);
    gated.reset(0);
    ungated.reset(0);
    const bool bits = shape.decay == LEAPQUANT_DECAY_SCALAR || backend().name == "cuda";
    const int32_t count = bits ? 40 : 16;
    const Outputs a = gated.decode_steps(0, 0, tokens, 0, count);
    const Outputs b = ungated.decode_steps(0, 0, plain, 0, count);
    if (bits) {
      EXPECT_EQ(a, b);
    } else {
      const std::vector<double> wide(b.begin(), b.end());
      EXPECT_LE(conformance::worst_relative_error(a, wide, 2, 128), 1e-4);
    }
    for (size_t i = 0; i < tokens.log_decay.size(); i += 2) tokens.log_decay[i] = -0.1f;
    expect_all(backend(), tokens, "half the tokens");
  }
}

// C5: equal and nearly equal keys, step sizes near 1 and 2.
TEST_P(Ranges128, CollinearKeys) {
  for (float noise : {0.0f, 0.01f, 0.1f}) {
    for (float beta : {0.99966f, 2.0f}) {
      Tokens tokens = random_tokens(gdn_128(1, 1), 200, 8108);
      const Tokens other = random_tokens(gdn_128(1, 1), 200, 8109);
      for (size_t t = 1; t < 200; ++t) {
        float sum = 0.0f;
        for (size_t i = 0; i < 128; ++i) {
          float& x = tokens.k[t * 128 + i];
          x = tokens.k[i] + noise * other.k[t * 128 + i];
          sum += x * x;
        }
        for (size_t i = 0; i < 128; ++i) tokens.k[t * 128 + i] /= std::sqrt(sum);
      }
      std::fill(tokens.beta.begin(), tokens.beta.end(), beta);
      std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), -3.07e-5f);
      Session session(backend(), make_test_layout(tokens.shape, "int8"), 1);
      session.reset(0);
      // The recurrence has an eigenvalue near -1 or 0 and hands rounding on; the case asks 1e-3.
      expect_oracle(&session, tokens, 0, 200, 1,
                    "noise " + std::to_string(noise) + ", beta " + std::to_string(beta), 1e-3);
    }
  }
}

// C6: 8,192 correlated tokens, hardly a decay, by prefill and by decode.
TEST_P(Ranges128, LongCorrelatedSequence) {
  const leapquant_shape shape = gdn_128(2, 2);
  Tokens tokens = random_tokens(shape, 8192, 8110, Kind::kOutliers);
  for (float& x : tokens.k) x *= 0.9f;
  std::fill(tokens.beta.begin(), tokens.beta.end(), 1.0f);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = -0.0121f - 0.022f * static_cast<float>(i % 7) / 7.0f;
  }
  Session session(backend(), make_test_layout(shape, "int8"), 2);
  session.reset(0);
  session.reset(1);
  session.shadow(true);
  const Outputs prefilled = session.prefill({{0, 0, &tokens, 0, 8192}})[0];
  ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
  const std::vector<double> exact = session.oracle()[0];
  EXPECT_LE(conformance::worst_relative_error(prefilled, exact, 2, 128), 1e-3);
  session.shadow(false);
  // INT8 rounds entries to 1/127 of their column's largest: some 1e-2 of the state.
  const Outputs decoded = session.decode_steps(1, 0, tokens, 0, 2048, 8);
  const std::vector<double> begin(exact.begin(),
                                  exact.begin() + static_cast<int64_t>(decoded.size()));
  EXPECT_LE(conformance::worst_relative_error(decoded, begin, 2, 128), 0.05);
}

TEST_P(Ranges128, FaultyInputsStayAlone) {
  for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
    conformance::expect_faulty_inputs_stay_alone({backend(), shape, "int8"});
  }
}

// D1: eps lies inside the root: |k| = 1e-4 with eps 1e-6 becomes 0.0995, not 0.9901.
TEST_P(Ranges128, NormalisationAddsEpsInsideTheRoot) {
  Tokens tokens = random_tokens(gdn_128(1, 1), 1, 8112);
  for (float& x : tokens.k) x *= 1e-4f;
  tokens.options.qk_l2norm = 1;
  tokens.beta[0] = 1.0f;
  Session session(backend(), make_test_layout(tokens.shape, "int8"), 1);
  session.reset(0);
  session.decode_one(0, 0, tokens, 0, 1);
  const std::vector<float> state = session.export_state(0, 1);
  double state_norm = 0.0;
  double v_norm = 0.0;
  for (float x : state) state_norm += static_cast<double>(x) * x;
  for (float x : tokens.v) v_norm += static_cast<double>(x) * x;
  EXPECT_NEAR(std::sqrt(state_norm / v_norm), 0.0995, 2e-4);

  std::fill(tokens.k.begin(), tokens.k.end(), 0.0f);  // no singularity, no contribution
  session.reset(0);
  for (float x : session.decode_one(0, 0, tokens, 0, 1)) ASSERT_EQ(x, 0.0f);
}

// D2: an expanding step (beta |k|^2 = 100) grows until FP16 records saturate: flagged, and finite.
TEST_P(Ranges128, GrowthIsFlagged) {
  Tokens tokens = random_tokens(gdn_128(1, 1), 20, 8113);
  for (size_t i = 0; i < tokens.k.size(); ++i) tokens.k[i] = i % 128 == 3 ? 10.0f : 0.0f;
  std::fill(tokens.beta.begin(), tokens.beta.end(), 1.0f);
  Session session(backend(), make_test_layout(tokens.shape, "int8"), 1);
  session.reset(0);
  for (float x : session.decode_steps(0, 0, tokens, 0, 20)) ASSERT_TRUE(std::isfinite(x));
  EXPECT_NE(session.memory().health(0)->flags & LEAPQUANT_HEALTH_RECORD_SATURATED, 0u);
}

// E5: raw gates of both kinds, step sizes through a sigmoid, normalised keys, scaled queries.
TEST_P(Ranges128, RawGatesAndOptions) {
  for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
    for (const int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
      const Tokens tokens = raw_gates_128(shape, gate);
      for (int32_t step : {1, 4}) {
        Session session(backend(), make_test_layout(shape, "int8"), 1);
        session.reset(0);
        expect_oracle(&session, tokens, 0, 36, step,
                      "decay " + std::to_string(shape.decay) + ", gate " + std::to_string(gate) +
                          ", step " + std::to_string(step),
                      step == 1 ? 2e-5 : kSeveralTokensBar);
      }
    }
  }
}

// B3: also where the kernels have a form of their own for one token in BF16 with ready gates.
TEST_P(Ranges128, TypesOfActivationsDoNotReachTheState) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), kda_128()}) {
    for (const char* format : {"int8", "int4+", "int8+:stagger=1"}) {
      for (int32_t type : {LEAPQUANT_BF16, LEAPQUANT_FP16}) {
        for (int32_t step : {1, 3}) {
          conformance::expect_types_do_not_reach_the_state({backend(), shape, format}, type, step);
        }
      }
    }
  }
}

// C8: a readout beyond FP16 is its largest number with the right sign, never infinite. Each output
// is the sum of 128 entries of 1e5 in size, which INT8 rounds by less than 1/127.
TEST_P(Ranges128, NarrowOutputsSaturate) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    Tokens tokens = random_tokens(shape, 2, 8116);
    std::fill(tokens.q.begin(), tokens.q.end(), 1.0f);
    std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), 0.0f);
    std::fill(tokens.beta.begin(), tokens.beta.end(), 0.0f);  // no write
    std::vector<float> matrix(128 * 128);
    for (size_t e = 0; e < matrix.size(); ++e) matrix[e] = e % 2 == 0 ? 1e5f : -1e5f;
    Session session(backend(), make_test_layout(shape, "int8"), 1);
    for (int32_t type : {LEAPQUANT_FP16, LEAPQUANT_BF16, LEAPQUANT_FP32}) {
      for (int32_t count : {1, 2}) {
        session.import_state(0, 0, matrix);
        const Outputs o = session.decode_inputs(0, 0, tokens.inputs(), count, type);
        EXPECT_EQ(session.status()[0], LEAPQUANT_OK);
        ASSERT_EQ(o.size(), static_cast<size_t>(count) * 128);
        for (size_t j = 0; j < o.size(); ++j) {
          const float size = j % 2 == 0 ? o[j] : -o[j];
          if (type == LEAPQUANT_FP16) {
            ASSERT_EQ(size, 65504.0f) << j;
          } else {
            ASSERT_NEAR(size, 1.28e7f, 1.28e7f / 100) << "type " << type << ", " << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
