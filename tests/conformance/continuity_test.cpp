// SPDX-License-Identifier: Apache-2.0
//
// However a sequence is cut, it is the same sequence (cases H, and K1's checkpoints inside a
// prefill).
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/sequence_cases.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Continuity);

leapquant_shape grouped() { return make_shape(2, 4, 32, 32, LEAPQUANT_DECAY_SCALAR); }
leapquant_shape vectors() { return make_shape(1, 2, 32, 48, LEAPQUANT_DECAY_VECTOR); }

const std::vector<std::vector<int32_t>>& cuts_of_97() {
  static const std::vector<std::vector<int32_t>> cuts = {
      {97}, std::vector<int32_t>(97, 1), {16, 81}, {15, 1, 81}, {17, 80}, {64, 33}, {96, 1}};
  return cuts;
}

// H1 by prefill. An FP32 state is rounded at each cut: 2^-24 per entry and cut.
TEST_P(Continuity, PrefillInAnyParts) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    const Tokens tokens = random_tokens(shape, 97, 81);
    const Layout layout = make_test_layout(shape, "fp32");
    Session exact(backends_under_test()[0], layout, 1);
    exact.reset(0);
    const std::vector<double> expected = widened(exact.prefill({{0, 0, &tokens, 0, 97}})[0]);
    for (const std::vector<int32_t>& cut : cuts_of_97()) {
      Session session(backend(), layout, 1);
      session.reset(0);
      Outputs all;
      int32_t t = 0;
      for (int32_t count : cut) {
        const Outputs part = session.prefill({{0, t, &tokens, t, count}})[0];
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
        all.insert(all.end(), part.begin(), part.end());
        t += count;
      }
      EXPECT_LE(worst_relative_error(all, expected, shape.num_v_heads, shape.head_v_dim), 1e-5)
          << cut.size() << " parts";
    }
  }
}

// H1 by decode, per step: T tokens in a call are T calls, bit for bit, wherever the cuts are.
TEST_P(Continuity, PerStepDecodeInAnyParts) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    const Tokens tokens = random_tokens(shape, 40, 82);
    for (const char* format : {"fp32:step", "int8:step"}) {
      Session session(backend(), make_test_layout(shape, format), 2);
      session.reset(0);
      const Outputs single = session.decode_steps(0, 0, tokens, 0, 40, 1);
      for (int32_t step : {2, 3, 8}) {
        session.reset(1);
        EXPECT_EQ(session.decode_steps(1, 0, tokens, 0, 40, step), single) << format << step;
        EXPECT_TRUE(session.memory().state_bytes(0) == session.memory().state_bytes(1)) << format;
      }
    }
  }
}

// H1 by decode, windowed.
TEST_P(Continuity, WindowedDecodeBetweenBoundaries) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    for (const char* format : {"int8", "int4+", "fp32", "int8+:decay=fp16"}) {
      expect_cuts_change_no_bit({backend(), shape, format});
    }
  }
}

// H1, boundaries inside calls: the tokens past one read the state before its fold. In an FP32 state
// a fold rounds nothing but FP32, so the outputs agree but for flips of FP16 records (see
// windowed_test). Drafts of 8, all kept, must go on for ever: 12 windows.
TEST_P(Continuity, WindowedDecodeAcrossBoundaries) {
  for (const leapquant_shape& shape :
       {grouped(), vectors(), make_shape(2, 2, 32, 32, LEAPQUANT_DECAY_SCALAR)}) {
    const Tokens tokens = random_tokens(shape, 192, 84);
    for (const char* format :
         {"fp32", "fp32:window=1", "fp32:window=2:stagger=1", "fp32:window=64"}) {
      Session session(backend(), make_test_layout(shape, format), 2);
      session.reset(0);
      session.reset(1);
      const std::vector<double> single = widened(session.decode_steps(0, 0, tokens, 0, 192, 1));
      for (int32_t step : {8, 5}) {
        session.reset(1);
        const Outputs drafts = session.decode_steps(1, 0, tokens, 0, 192, step);
        EXPECT_LE(worst_relative_error(drafts, single, shape.num_v_heads, shape.head_v_dim), 2e-4)
            << format << " in steps of " << step;
      }
    }
  }
}

// H2: prefill of any length at every start offset, from a window with records in it.
TEST_P(Continuity, PrefillOfAnyLengthAtAnyOffset) {
  const leapquant_shape shape = make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = make_test_layout(shape, "int8");
  const Tokens tokens = random_tokens(shape, 16 + 256, 85);
  Session session(backend(), layout, 1);
  session.shadow(true);
  for (int32_t offset = 0; offset < 16; ++offset) {
    for (int32_t count : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 130, 256}) {
      session.reset(0);
      if (offset > 0) session.decode_steps(0, 0, tokens, 0, offset, 8);
      const Outputs o = session.prefill({{0, offset, &tokens, offset, count}})[0];
      ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
      ASSERT_LE(worst_relative_error(o, session.oracle()[0], 2, 16), 1e-5)
          << count << " tokens at " << offset;
      ASSERT_EQ(session.memory().base(0)[0], offset + count);
      ASSERT_EQ(session.memory().base(0)[1], offset + count);
    }
  }
}

// Prefill to decode: the state that prefill leaves is the exact one but for its fold.
TEST_P(Continuity, DecodeGoesOnFromAPrefill) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    const Tokens tokens = random_tokens(shape, 70, 86);
    Session session(backend(), make_test_layout(shape, "fp32:step"), 2);
    session.reset(0);
    session.reset(1);
    const Outputs all = session.decode_steps(0, 0, tokens, 0, 70, 1);
    session.prefill({{1, 0, &tokens, 0, 50}});
    const Outputs rest = session.decode_steps(1, 50, tokens, 50, 20, 4);
    const size_t token = static_cast<size_t>(shape.num_v_heads * shape.head_v_dim);
    const std::vector<double> expected(all.begin() + static_cast<int64_t>(50 * token), all.end());
    EXPECT_LE(worst_relative_error(rest, expected, shape.num_v_heads, shape.head_v_dim), 1e-5);
  }
}

// H3: sequences of a packed batch are each what they are alone, bit for bit.
TEST_P(Continuity, PackedSequencesStayApart) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    const Layout layout = make_test_layout(shape, "int8+");
    const Tokens tokens = random_tokens(shape, 80, 87);
    const int32_t lengths[] = {1, 5, 16, 17, 0, 40};
    Session together(backend(), layout, 6);
    Session alone(backend(), layout, 6);
    std::vector<Row> rows;
    for (int32_t i = 0; i < 6; ++i) {
      together.reset(i);
      alone.reset(i);
      rows.push_back({i, 0, &tokens, 3 * i, lengths[i]});
    }
    const std::vector<std::byte> untouched = together.memory().slot_bytes(4);
    const std::vector<Outputs> o = together.prefill(rows);
    EXPECT_EQ(together.status(), std::vector<int32_t>(6, LEAPQUANT_OK));
    EXPECT_TRUE(together.memory().slot_bytes(4) == untouched) << "an empty sequence changed";
    for (size_t i = 0; i < 6; ++i) {
      if (lengths[i] == 0) continue;
      EXPECT_EQ(alone.prefill({rows[i]})[0], o[i]) << i;
      EXPECT_TRUE(alone.memory().slot_bytes(static_cast<int32_t>(i)) ==
                  together.memory().slot_bytes(static_cast<int32_t>(i)))
          << i;
    }
  }
}

// H4: padding is what is not given. Poison behind the last token is cut off by the count (all
// decode calls of these tests do that).
TEST_P(Continuity, LeftPaddingIsNotRead) {
  expect_left_padding_is_not_read({backend(), grouped(), "int8"});
}

TEST_P(Continuity, InitialStateAndStartPosition) {
  for (const char* format : {"int8", "fp32:step"}) {
    expect_far_starts_are_alike({backend(), grouped(), format});
  }
}

// Checkpoints on the way. Without `through` the run is the one without checkpoints, but for FP32
// rounding (chunks may start anew at a checkpoint); with it, a later hit (copy the checkpoint,
// prefill the rest) equals the run, bit for bit.
TEST_P(Continuity, CheckpointsInsideAPrefill) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    const Layout layout = make_test_layout(shape, "int8+");
    const Tokens tokens = random_tokens(shape, 100, 90);
    Session session(backend(), layout, 6);
    for (int32_t slot = 0; slot < 6; ++slot) session.reset(slot);
    const Outputs plain = session.prefill({{0, 0, &tokens, 0, 100}})[0];
    const std::vector<leapquant_checkpoint> marks = {{0, 37, 2}, {0, 64, 3}};
    const Outputs marked = session.prefill({{1, 0, &tokens, 0, 100}}, marks, false)[0];
    EXPECT_LE(worst_relative_error(marked, widened(plain), shape.num_v_heads, shape.head_v_dim),
              1e-5);
    for (int32_t h = 0; h < shape.num_v_heads; ++h) {
      // Two folds of states that are equal to FP32 rounding: each has the fold's error.
      EXPECT_LE(relative_error(session.state(1, h, 100), session.state(0, h, 100)),
                2.0f * session.memory().health(0)[h].fold_error);
    }
    EXPECT_EQ(session.memory().base(2)[0], 37);
    EXPECT_EQ(session.memory().base(3)[1], 64);
    // The checkpoint is the state at its position: what a prefill that ends there leaves.
    session.prefill({{5, 0, &tokens, 0, 37}});
    EXPECT_TRUE(session.memory().state_bytes(5) == session.memory().state_bytes(2));

    session.reset(1);
    const Outputs through = session.prefill({{1, 0, &tokens, 0, 100}}, marks, true)[0];
    session.copy(3, 4);
    const Outputs hit = session.prefill({{4, 64, &tokens, 64, 36}})[0];
    const auto token = static_cast<int64_t>(shape.num_v_heads * shape.head_v_dim);
    EXPECT_EQ(Outputs(through.begin() + 64 * token, through.end()), hit);
    EXPECT_TRUE(session.memory().state_bytes(1) == session.memory().state_bytes(4));
    // A checkpoint at the end: a hit is a copy, and so is the run's own state.
    session.reset(1);
    session.prefill({{1, 0, &tokens, 0, 50}}, {{0, 50, 2}}, true);
    EXPECT_TRUE(session.memory().state_bytes(1) == session.memory().state_bytes(2));
  }
}

}  // namespace
}  // namespace leapquant::conformance
