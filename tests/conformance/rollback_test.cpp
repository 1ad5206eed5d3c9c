// SPDX-License-Identifier: Apache-2.0
//
// Drafts, acceptance, rollback (cases I): a smaller position next time is all there is to it.
#include <gtest/gtest.h>

#include "conformance/session.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Rollback);

constexpr int32_t kWindow = 16;

struct Setting {
  leapquant_shape shape;
  const char* format;
};

std::vector<Setting> settings() {
  return {{make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_SCALAR), "int8"},
          {make_shape(2, 2, 16, 16, LEAPQUANT_DECAY_VECTOR), "int4:r=2:decay=fp16"}};
}

// Runs `fill` tokens one by one from a fresh slot.
void fill_slot(Session* session, int32_t slot, const Tokens& tokens, int32_t fill) {
  session->reset(slot);
  if (fill > 0) session->decode_steps(slot, 0, tokens, 0, fill, 1);
}

// I1: fill n, draft T, accept a: afterwards everything is as if only the accepted tokens had been
// fed. Bit for bit, unless accepted tokens lie past a boundary that the draft crossed: those read
// the state before its fold, so there within that fold's error.
TEST_P(Rollback, EveryFillDraftAndAcceptance) {
  for (const Setting& setting : settings()) {
    const Tokens tokens = random_tokens(setting.shape, 40, 91);
    const Tokens drafts = random_tokens(setting.shape, 40, 92);
    Session session(backend(), make_test_layout(setting.shape, setting.format), 3);
    for (int32_t n = 0; n <= kWindow; ++n) {
      fill_slot(&session, 0, tokens, n);
      for (int32_t draft = 1; draft <= 8; ++draft) {
        for (int32_t accepted = 0; accepted <= draft; ++accepted) {
          // The draft's first `accepted` tokens are the right ones, the others wrong.
          Tokens sent = slice(tokens, n, accepted);
          if (accepted == 0) {
            sent = slice(drafts, n, draft);
          } else if (accepted < draft) {
            append(&sent, slice(drafts, n + accepted, draft - accepted));
          }
          session.copy(0, 1);
          session.decode_one(1, n, sent, 0, draft);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
          const int32_t position = n + accepted;
          const std::vector<float> state = session.export_state(1, position);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
          const Outputs next = session.decode_one(1, position, tokens, position, 1);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);

          session.copy(0, 2);
          if (accepted > 0) session.decode_steps(2, n, tokens, n, accepted, 1);
          const std::vector<float> expected_state = session.export_state(2, position);
          const Outputs expected = session.decode_one(2, position, tokens, position, 1);
          const std::string where = std::string(setting.format) + ", fill " + std::to_string(n) +
                                    ", draft " + std::to_string(draft) + ", accepted " +
                                    std::to_string(accepted);
          const bool crossed = n < kWindow && position > kWindow;
          if (crossed) {
            // One fold of INT4 with two compensators on these states: under 0.15 of the norm.
            const std::vector<double> wide(expected_state.begin(), expected_state.end());
            ASSERT_LE(relative_error(std::vector<double>(state.begin(), state.end()), wide), 0.15)
                << where;
            continue;
          }
          // A draft at 16 folds there; with nothing accepted the other slot has not folded yet.
          if (n < kWindow || accepted > 0) {
            ASSERT_EQ(state, expected_state) << where;
          }
          ASSERT_EQ(next, expected) << where;
        }
      }
    }
  }
}

// I2: each row keeps its own number of drafts, and rows change places between verify and the next
// call.
TEST_P(Rollback, RowsChangePlaces) {
  const leapquant_shape shape = make_shape(1, 2, 32, 32, LEAPQUANT_DECAY_SCALAR);
  const Tokens a = random_tokens(shape, 40, 93);
  const Tokens b = random_tokens(shape, 40, 94);
  const Tokens c = random_tokens(shape, 40, 95);
  Session session(backend(), make_test_layout(shape, "int8+"), 6);
  for (int32_t slot = 0; slot < 6; ++slot) session.reset(slot);
  session.decode({{0, 0, &a, 0, 5}, {1, 0, &b, 0, 3}, {2, 0, &c, 0, 8}});
  // Kept: 2 of a, 3 of b, 0 of c.
  const std::vector<Outputs> o =
      session.decode({{2, 0, &c, 10, 4}, {0, 2, &a, 2, 4}, {1, 3, &b, 3, 4}});
  EXPECT_EQ(session.decode_steps(3, 0, c, 10, 4, 4), o[0]);
  session.decode_steps(4, 0, a, 0, 2, 2);
  EXPECT_EQ(session.decode_one(4, 2, a, 2, 4), o[1]);
  session.decode_steps(5, 0, b, 0, 3, 3);
  EXPECT_EQ(session.decode_one(5, 3, b, 3, 4), o[2]);
}

// I3: a row of true length 1 among rows of 5 (the rest of it is poison) is as if alone.
TEST_P(Rollback, TrueLengthOfPaddedRows) {
  const leapquant_shape shape = make_shape(1, 2, 32, 32, LEAPQUANT_DECAY_VECTOR);
  const Tokens a = random_tokens(shape, 40, 96);
  const Tokens b = random_tokens(shape, 40, 97);
  Session session(backend(), make_test_layout(shape, "int8+"), 4);
  for (int32_t slot = 0; slot < 4; ++slot) session.reset(slot);
  const std::vector<Outputs> o =
      session.decode({{0, 0, &a, 0, 1}, {1, 0, &b, 0, 5}, {3, 0, &a, 0, 0}});
  EXPECT_EQ(session.status(), std::vector<int32_t>(3, LEAPQUANT_OK));
  const Outputs alone = session.decode_one(2, 0, a, 0, 1);
  EXPECT_EQ(alone, Outputs(o[0].begin(), o[0].begin() + static_cast<int64_t>(alone.size())));
  EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(2));
}

// How far back: to the base and no further; how far on: as far as the ring has records. A refusal
// changes nothing.
TEST_P(Rollback, LimitsAreSaid) {
  for (const char* format : {"int8", "int8:stagger=1"}) {
    const leapquant_shape shape = make_shape(2, 2, 16, 16, LEAPQUANT_DECAY_SCALAR);
    const Layout layout = make_test_layout(shape, format);
    const Tokens tokens = random_tokens(shape, 60, 98);
    Session session(backend(), layout, 1);
    fill_slot(&session, 0, tokens, 30);
    const int32_t largest = std::max(session.memory().base(0)[0], session.memory().base(0)[1]);
    const std::vector<std::byte> before = session.memory().slot_bytes(0);
    const auto refused = [&](int32_t position, int32_t status) {
      session.decode_one(0, position, tokens, 30, 1);
      EXPECT_EQ(session.status()[0], status) << format << " decode at " << position;
      session.export_state(0, position);
      EXPECT_EQ(session.status()[0], status) << format << " export at " << position;
      session.fold(0, position);
      EXPECT_EQ(session.status()[0], status) << format << " fold at " << position;
      session.prefill({{0, position, &tokens, 30, 2}});
      EXPECT_EQ(session.status()[0], status) << format << " prefill at " << position;
      EXPECT_TRUE(session.memory().slot_bytes(0) == before) << format << " at " << position;
    };
    refused(largest - 1, LEAPQUANT_POSITION_BELOW_BASE);
    refused(largest + layout.window.ring_tokens + 1, LEAPQUANT_POSITION_PAST_WINDOW);
    session.decode_one(0, largest, tokens, 30, 1);
    EXPECT_EQ(session.status()[0], LEAPQUANT_OK) << format;
  }
}

// Per step there is no way back and none forward.
TEST_P(Rollback, PerStepKnowsOnlyItsPosition) {
  const leapquant_shape shape = make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = random_tokens(shape, 8, 99);
  Session session(backend(), make_test_layout(shape, "int8:step"), 1);
  fill_slot(&session, 0, tokens, 5);
  const std::vector<std::byte> before = session.memory().slot_bytes(0);
  session.decode_one(0, 4, tokens, 4, 1);
  EXPECT_EQ(session.status()[0], LEAPQUANT_POSITION_BELOW_BASE);
  session.decode_one(0, 6, tokens, 6, 1);
  EXPECT_EQ(session.status()[0], LEAPQUANT_POSITION_PAST_WINDOW);
  EXPECT_TRUE(session.memory().slot_bytes(0) == before);
}

}  // namespace
}  // namespace leapquant::conformance
