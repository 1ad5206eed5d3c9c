// SPDX-License-Identifier: Apache-2.0
//
// Cases E1, F1, H, I and J (conformance/sequence_cases.h) on heads of 128 x 128: heads of any
// ratio, padding rows, cuts, drafts and rollback, copies and forced folds at every fill, windows
// and ranks.
#include <utility>

#include "conformance/sequence_cases.h"
#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using namespace conformance;

LEAPQUANT_ON_DEVICE_BACKENDS(Sequences128, "int8");

TEST_P(Sequences128, HeadsAreLayersOfTheirOwn) {
  const std::pair<int32_t, int32_t> counts[] = {{2, 32}, {16, 48}, {4, 12}, {1, 1}, {16, 16}};
  for (const auto& [k_heads, v_heads] : counts) {
    for (leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
      for (int32_t step : {1, 4}) {
        expect_heads_are_layers({backend(), make_shape(k_heads, v_heads, 128, 128, decay), "int8+"},
                                step);
      }
    }
  }
}

TEST_P(Sequences128, GatesBelongToValueHeads) {
  expect_gates_belong_to_value_heads({backend(), gdn_128(2, 4), "int8"});
}

TEST_P(Sequences128, PaddingRowsTouchNothing) {
  for (const char* format : {"int8", "int4+:stagger=1"}) {
    for (int32_t position : {3, 16}) {  // no fold, folds
      expect_padding_rows_touch_nothing({backend(), gdn_128(), format}, position);
    }
  }
}

TEST_P(Sequences128, CutsBetweenBoundariesChangeNoBit) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), kda_128()}) {
    for (const char* format : {"int8", "int4+", "int8+:decay=fp16", "int6"}) {
      expect_cuts_change_no_bit({backend(), shape, format});
    }
  }
}

// H1: 97 tokens cut in all ways by prefill and decode. INT8 rounds entries to 1/127 of their
// column's largest: relative errors of some 1e-2 against FP32.
TEST_P(Sequences128, AnyCutIsTheSameSequence) {
  const Tokens tokens = random_tokens(gdn_128(), 97, 8205);
  Session exact(best_cpu_backend(), make_test_layout(gdn_128(), "fp32"), 1);
  exact.reset(0);
  const std::vector<double> expected = widened(exact.prefill({{0, 0, &tokens, 0, 97}})[0]);
  const std::vector<std::vector<int32_t>> cuts = {{97},     {16, 81}, {15, 1, 81}, {17, 80},
                                                  {64, 33}, {96, 1},  {1, 96}};
  for (const std::vector<int32_t>& cut : cuts) {
    for (int32_t step : {1, 8}) {  // every second part by decode, `step` tokens a call
      Session session(backend(), make_test_layout(gdn_128(), "int8"), 1);
      session.reset(0);
      Outputs all;
      int32_t t = 0;
      for (size_t i = 0; i < cut.size(); ++i) {
        const Outputs part = i % 2 == 0 ? session.prefill({{0, t, &tokens, t, cut[i]}})[0]
                                        : session.decode_steps(0, t, tokens, t, cut[i], step);
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
        all.insert(all.end(), part.begin(), part.end());
        t += cut[i];
      }
      EXPECT_LE(worst_relative_error(all, expected, 2, 128), 0.05) << cut[0] << ", step " << step;
    }
  }
}

TEST_P(Sequences128, PaddingInFrontAndFarStarts) {
  expect_left_padding_is_not_read({backend(), gdn_128(), "int8"});
  expect_far_starts_are_alike({backend(), gdn_128(), "int8"});
}

// One fold of INT8: under 0.05 of the norm.
TEST_P(Sequences128, EveryFillDraftAndAcceptance) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    expect_drafts_leave_no_trace({backend(), shape, "int8"}, {1, 2, 4, 8}, 0.05);
  }
}

TEST_P(Sequences128, RowsChangePlacesAndKeepTheirLengths) {
  expect_rows_change_places({backend(), gdn_128(), "int8+"});
  expect_true_lengths({backend(), gdn_128(), "int8+"});
}

TEST_P(Sequences128, LimitsAreSaid) {
  for (const char* format : {"int8", "int8:stagger=1"}) {
    expect_limits_are_said({backend(), gdn_128(2, 2), format});
  }
}

TEST_P(Sequences128, CopiesAtEveryFillGoOnAlike) {
  for (const char* format : {"int8+", "int8:stagger=1"}) {
    expect_copies_go_on_alike({backend(), gdn_128(2, 2), format});
  }
}

TEST_P(Sequences128, ForcedFoldsAtEveryFill) {
  for (const char* format : {"int8", "int4+"}) {
    expect_forced_folds_at_every_fill({backend(), gdn_128(), format});
  }
}

// J4: lengths of windows and ranks, aligned and staggered: near the FP32 state, see
// AnyCutIsTheSameSequence; outputs of calls without folds as the oracle's.
TEST_P(Sequences128, LengthsAndRanks) {
  const Tokens tokens = random_tokens(gdn_128(), 80, 8215);
  Session exact(best_cpu_backend(), make_test_layout(gdn_128(), "fp32"), 1);
  exact.reset(0);
  const std::vector<double> expected = widened(exact.prefill({{0, 0, &tokens, 0, 80}})[0]);
  int32_t served = 0;
  for (int32_t p : {1, 2, 5, 16, 32, 64}) {
    for (int32_t r : {0, 1, 4, 8, 32}) {
      for (const char* stagger : {"0", "1"}) {
        const std::string format =
            "int8:r=" + std::to_string(r) + ":window=" + std::to_string(p) + ":stagger=" + stagger;
        const Layout layout = make_test_layout(gdn_128(), format);
        if (!serves(layout)) continue;
        ++served;
        Session session(backend(), layout, 2);
        session.reset(0);
        session.reset(1);
        const Outputs o = session.decode_steps(1, 0, tokens, 0, 80, 3);
        EXPECT_LE(worst_relative_error(o, expected, 2, 128), 0.05) << format;
        if (p > 2) expect_oracle(&session, tokens, 0, 80, 1, format);
      }
    }
  }
  EXPECT_GE(served, 10);
}

}  // namespace
}  // namespace leapquant::cuda_test
