// SPDX-License-Identifier: Apache-2.0
//
// However a sequence is cut, it is the same sequence (cases H, and K1's checkpoints inside a
// prefill).
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/session.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Continuity);

std::vector<double> widened(const Outputs& o) { return std::vector<double>(o.begin(), o.end()); }

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

// H1 by decode, windowed: bit for bit where no boundary lies inside a call.
TEST_P(Continuity, WindowedDecodeBetweenBoundaries) {
  for (const leapquant_shape& shape : {grouped(), vectors()}) {
    for (const char* format : {"int8", "int4+", "fp32", "int8+:decay=fp16"}) {
      Session session(backend(), make_test_layout(shape, format), 2);
      const Tokens tokens = random_tokens(shape, 48, 83);
      session.reset(0);
      session.reset(1);
      const Outputs single = session.decode_steps(0, 0, tokens, 0, 48, 1);
      Outputs parts;
      int32_t t = 0;
      for (int32_t count : {8, 8, 1, 7, 8, 3, 5, 8}) {  // cuts at 16 and 32 among them
        const Outputs part = session.decode_one(1, t, tokens, t, count);
        parts.insert(parts.end(), part.begin(), part.end());
        t += count;
      }
      ASSERT_EQ(t, 48);
      EXPECT_EQ(parts, single) << format;
      EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1)) << format;
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

// H4: padding is what is not given. Seven poisoned tokens before the first one are skipped by the
// pointer; poison behind the last one by the count (all decode calls of these tests do that).
TEST_P(Continuity, LeftPaddingIsNotRead) {
  const leapquant_shape shape = grouped();
  Tokens tokens = random_tokens(shape, 6, 88);
  Tokens padded;
  append_poison(&padded, tokens, 7);
  append(&padded, tokens);
  leapquant_inputs inputs = padded.inputs();
  const auto skip = [](leapquant_tensor* tensor, size_t all_floats) {
    tensor->data = static_cast<const float*>(tensor->data) + all_floats / 13 * 7;
  };
  skip(&inputs.q, padded.q.size());
  skip(&inputs.k, padded.k.size());
  skip(&inputs.v, padded.v.size());
  skip(&inputs.log_decay, padded.log_decay.size());
  skip(&inputs.beta, padded.beta.size());
  Session session(backend(), make_test_layout(shape, "int8"), 2);
  session.reset(0);
  session.reset(1);
  EXPECT_EQ(session.decode_inputs(0, 0, inputs, 6),
            session.decode_inputs(1, 0, tokens.inputs(), 6));
  EXPECT_EQ(session.memory().slot_bytes(0), session.memory().slot_bytes(1));
}

// H5: an initial state and a start far from zero are used, for one token or several.
TEST_P(Continuity, InitialStateAndStartPosition) {
  const leapquant_shape shape = grouped();
  const Tokens tokens = random_tokens(shape, 8, 89);
  std::vector<float> initial(4 * 32 * 32);
  for (size_t i = 0; i < initial.size(); ++i) {
    initial[i] = static_cast<float>(static_cast<int32_t>(i * 37 % 101) - 50) / 50.0f;
  }
  // 131072 and 0 lie alike in the grid of windows of 16, so all bits must be equal.
  constexpr int32_t kFar = 131072;
  for (const char* format : {"int8", "fp32:step"}) {
    Session session(backend(), make_test_layout(shape, format), 4);
    session.import_state(0, kFar, initial);
    session.import_state(1, 0, initial);
    session.import_state(2, kFar, initial);
    session.reset(3);
    const Outputs far = session.decode_one(0, kFar, tokens, 0, 5);
    EXPECT_EQ(far, session.decode_one(1, 0, tokens, 0, 5));
    EXPECT_NE(far, session.decode_one(3, 0, tokens, 0, 5)) << "the initial state was not used";
    const Outputs prefilled = session.prefill({{2, kFar, &tokens, 0, 5}})[0];
    ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
    // FP16 records on one side only (windowed): 2e-3 as in families_test.
    EXPECT_LE(worst_relative_error(prefilled, widened(far), 4, 32), 2e-3);
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
