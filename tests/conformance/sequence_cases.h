// SPDX-License-Identifier: Apache-2.0
//
// Cases B3, C9, E1, F1, H, I and J as functions of a backend and a layer, for the suites that ask
// them on layers of their own: small heads on every backend, heads of 128 x 128 on a device.
#pragma once

#include <string>
#include <vector>

#include "conformance/session.h"

namespace leapquant::conformance {

struct LayerUnderTest {
  const TestBackend& backend;
  leapquant_shape shape;
  std::string format;

  Layout layout() const { return make_test_layout(shape, format); }
  std::string name() const;
};

std::vector<double> widened(const Outputs& o);
// One value head's tokens as a layer of one head, and its share of a layer's outputs.
Tokens head_of(const Tokens& all, int32_t v_head);
Outputs outputs_of_head(const Outputs& all, int32_t heads, int32_t v_head, int32_t v_dim);

// B3: activations, gates and step sizes in 16 bits give, bit for bit, what their values give in
// FP32, and store the same bytes; 16-bit outputs are the FP32 ones rounded. 36 tokens.
void expect_types_do_not_reach_the_state(const LayerUnderTest& layer, int32_t type, int32_t step);

// C9, C10: a number that is none, or a decay that grows, in an input of row 3 of 8 (slot 5): the
// other rows are, bit for bit, those of a call without it; slot 5 is flagged and unchanged; after a
// reset it is as new.
void expect_faulty_inputs_stay_alone(const LayerUnderTest& layer);

// E1: every head is a layer of its own, bit for bit, by decode in calls of `step` and by prefill.
void expect_heads_are_layers(const LayerUnderTest& layer, int32_t step);
// E1: exchanging two value heads' scalar gates changes exactly these. Four value heads.
void expect_gates_belong_to_value_heads(const LayerUnderTest& layer);

// F1: padding rows anywhere, slot 0 live, sequences at `position`.
void expect_padding_rows_touch_nothing(const LayerUnderTest& layer, int32_t position);

// H1: T tokens in a call are T calls, bit for bit, where no boundary of 16 lies inside a call.
void expect_cuts_change_no_bit(const LayerUnderTest& layer);
// H4: poison in front of the first token is skipped by the pointer.
void expect_left_padding_is_not_read(const LayerUnderTest& layer);
// H5: an initial state at a start far from zero is used, as at zero.
void expect_far_starts_are_alike(const LayerUnderTest& layer);

// I1: fill n, draft T, accept a: afterwards all is as if only the accepted tokens had been fed, bit
// for bit; past a boundary of 16 that the draft crossed, within `fold_error` of the state's norm:
// the draft's later tokens read the state before its fold.
void expect_drafts_leave_no_trace(const LayerUnderTest& layer, const std::vector<int32_t>& drafts,
                                  double fold_error);
// I2: rows keep their own numbers of drafts and change places.
void expect_rows_change_places(const LayerUnderTest& layer);
// I3: a row of true length 1 among rows of 5 is as if alone.
void expect_true_lengths(const LayerUnderTest& layer);
// I1: how far back and how far on, in every operation that reads records; a refusal changes
// nothing.
void expect_limits_are_said(const LayerUnderTest& layer);
// The same per step: there is no way back and none forward.
void expect_steps_know_only_their_position(const LayerUnderTest& layer);

// J1: a copy at every fill goes on as the original would, after the original is gone.
void expect_copies_go_on_alike(const LayerUnderTest& layer);
// J2: a forced fold at every fill leaves the position and costs one quantisation, as health says.
void expect_forced_folds_at_every_fill(const LayerUnderTest& layer);

}  // namespace leapquant::conformance
