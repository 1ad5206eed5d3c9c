// SPDX-License-Identifier: Apache-2.0
//
// Drafts, acceptance, rollback (cases I): a smaller position next time is all there is to it.
#include <gtest/gtest.h>

#include "conformance/sequence_cases.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Rollback);

// One fold of INT4 with two compensators on these states: under 0.15 of the norm.
TEST_P(Rollback, EveryFillDraftAndAcceptance) {
  const std::vector<int32_t> drafts = {1, 2, 3, 4, 5, 6, 7, 8};
  expect_drafts_leave_no_trace(
      {backend(), make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_SCALAR), "int8"}, drafts, 0.15);
  expect_drafts_leave_no_trace(
      {backend(), make_shape(2, 2, 16, 16, LEAPQUANT_DECAY_VECTOR), "int4:r=2:decay=fp16"}, drafts,
      0.15);
}

TEST_P(Rollback, RowsChangePlaces) {
  expect_rows_change_places({backend(), make_shape(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR), "int8+"});
}

TEST_P(Rollback, TrueLengthOfPaddedRows) {
  expect_true_lengths({backend(), make_shape(1, 2, 32, 32, LEAPQUANT_DECAY_VECTOR), "int8+"});
}

TEST_P(Rollback, LimitsAreSaid) {
  for (const char* format : {"int8", "int8:stagger=1"}) {
    expect_limits_are_said({backend(), make_shape(2, 2, 16, 16, LEAPQUANT_DECAY_SCALAR), format});
  }
}

TEST_P(Rollback, PerStepKnowsOnlyItsPosition) {
  expect_steps_know_only_their_position(
      {backend(), make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_SCALAR), "int8:step"});
}

}  // namespace
}  // namespace leapquant::conformance
