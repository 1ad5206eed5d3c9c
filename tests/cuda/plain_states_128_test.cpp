// SPDX-License-Identifier: Apache-2.0
//
// Plain BF16 and FP32 states of 128 x 128 heads, windowed and per step: the cases that quantised
// ones are asked (ranges_128_test, sequences_128_test), on the kernels made for them and on the
// general ones.
#include <limits>

#include "conformance/sequence_cases.h"
#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using namespace conformance;

LEAPQUANT_ON_DEVICE_BACKENDS(PlainStates128, "fp32");

constexpr const char* kWindowed[] = {"fp32", "bf16", "bf16:stagger=1", "fp32:decay=fp16"};
constexpr const char* kPerStep[] = {"fp32:step", "bf16:step"};

leapquant_shape ungated_128() { return make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_NONE); }

// Every call of a state per step against the oracle on the bytes before it.
void expect_oracle_per_step(Session* session, const Tokens& tokens, int32_t step,
                            const std::string& what, double bar) {
  const leapquant_shape& shape = session->layout().shape;
  session->shadow(true);
  session->reset(0);
  const Outputs o = session->decode_steps(0, 0, tokens, 0, tokens.count, step);
  for (float x : o) ASSERT_TRUE(std::isfinite(x)) << what;
  EXPECT_LE(worst_relative_error(o, session->oracle()[0], shape.num_v_heads, shape.head_v_dim), bar)
      << what;
}

// Both ways of a state. Within a call of several tokens a BF16 state per step is rounded after each
// token, and sums that differ in FP32 round now and then to the other neighbour, 2^-8 away: one
// entry in thousands, far below the 1e-3 that outputs owe.
void expect_all(const TestBackend& backend, const Tokens& tokens, const std::string& what) {
  for (const int32_t step : {1, 3}) {
    const std::string where = what + ", step " + std::to_string(step);
    for (const char* format : kWindowed) {
      Session session(backend, make_test_layout(tokens.shape, std::string(format)), 1);
      session.reset(0);
      expect_oracle(&session, tokens, 0, tokens.count, step, format + (", " + where),
                    step == 1 ? 2e-5 : kSeveralTokensBar);
    }
    for (const char* format : kPerStep) {
      Session session(backend, make_test_layout(tokens.shape, std::string(format)), 1);
      const bool rounds = step > 1 && std::string(format) == "bf16:step";
      expect_oracle_per_step(&session, tokens, step, format + (", " + where), rounds ? 1e-3 : 2e-5);
    }
  }
}

TEST_P(PlainStates128, AgreeWithTheOracle) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), gdn_128(2, 2), kda_128(), ungated_128()}) {
    expect_all(backend(), random_tokens(shape, 36, 8601),
               "decay " + std::to_string(shape.decay) + ", " + std::to_string(shape.num_v_heads) +
                   " heads");
  }
}

// C1, C2: decays down to minus infinity, of all kinds by channel.
TEST_P(PlainStates128, StrongDecays) {
  for (float g : {-5.5f, -90.0f, -std::numeric_limits<float>::infinity()}) {
    for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
      Tokens tokens = random_tokens(shape, 33, 8602);
      std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), g);
      std::fill(tokens.beta.begin(), tokens.beta.end(), 1.0f);
      expect_all(backend(), tokens, "g " + std::to_string(g));
    }
  }
  expect_all(backend(), random_tokens(kda_128(), 36, 8603, Kind::kStrong), "all kinds");
}

// E5: raw gates of both kinds, step sizes through a sigmoid, normalised keys, scaled queries.
TEST_P(PlainStates128, RawGatesAndOptions) {
  for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
    for (const int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
      expect_all(backend(), raw_gates_128(shape, gate), "gate " + std::to_string(gate));
    }
  }
}

TEST_P(PlainStates128, TypesOfActivationsDoNotReachTheState) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), kda_128()}) {
    for (const char* format : {"fp32", "bf16:stagger=1", "fp32:step", "bf16:step"}) {
      for (int32_t type : {LEAPQUANT_BF16, LEAPQUANT_FP16}) {
        for (int32_t step : {1, 3}) {
          expect_types_do_not_reach_the_state({backend(), shape, format}, type, step);
        }
      }
    }
  }
}

TEST_P(PlainStates128, FaultyInputsStayAlone) {
  for (const leapquant_shape& shape : {gdn_128(), kda_128()}) {
    for (const char* format : {"bf16", "fp32:step"}) {
      expect_faulty_inputs_stay_alone({backend(), shape, format});
    }
  }
}

TEST_P(PlainStates128, HeadsAreLayersOfTheirOwn) {
  for (const char* format : {"fp32", "bf16", "fp32:step", "bf16:step"}) {
    for (int32_t step : {1, 4}) {
      expect_heads_are_layers({backend(), gdn_128(4, 12), format}, step);
      expect_heads_are_layers({backend(), kda_128(3), format}, step);
    }
    expect_gates_belong_to_value_heads({backend(), gdn_128(2, 4), format});
  }
}

TEST_P(PlainStates128, PaddingRowsTouchNothing) {
  for (const char* format : {"bf16", "fp32:stagger=1", "fp32:step", "bf16:step"}) {
    for (int32_t position : {3, 16}) {
      expect_padding_rows_touch_nothing({backend(), gdn_128(), format}, position);
    }
  }
}

TEST_P(PlainStates128, CutsAndStartsChangeNoBit) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), kda_128()}) {
    for (const char* format : {"fp32", "bf16", "fp32:step", "bf16:step"}) {
      expect_cuts_change_no_bit({backend(), shape, format});
    }
  }
  for (const char* format : {"bf16", "fp32:step"}) {
    expect_left_padding_is_not_read({backend(), gdn_128(), format});
    expect_far_starts_are_alike({backend(), gdn_128(), format});
  }
}

// One fold of BF16 rounds by at most 2^-9.
TEST_P(PlainStates128, EveryFillDraftAndAcceptance) {
  for (const leapquant_shape& shape : {gdn_128(1, 2), kda_128(1)}) {
    expect_drafts_leave_no_trace({backend(), shape, "bf16"}, {1, 4, 8}, 0.01);
  }
  for (const char* format : {"fp32", "bf16:stagger=1"}) {
    expect_rows_change_places({backend(), gdn_128(), format});
    expect_true_lengths({backend(), gdn_128(), format});
    expect_limits_are_said({backend(), gdn_128(2, 2), format});
  }
  for (const char* format : kPerStep) {
    expect_steps_know_only_their_position({backend(), gdn_128(), format});
    expect_true_lengths({backend(), gdn_128(), format});
  }
}

TEST_P(PlainStates128, CopiesAndFoldsAtEveryFill) {
  for (const char* format : {"fp32", "bf16:stagger=1"}) {
    expect_copies_go_on_alike({backend(), gdn_128(2, 2), format});
    expect_forced_folds_at_every_fill({backend(), gdn_128(), format});
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
