// SPDX-License-Identifier: Apache-2.0
//
// Sequences do not see each other (cases F, G, O): padding rows, slot order, batch composition,
// neighbours, threads and repetition change no bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/sequence_cases.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Isolation);

leapquant_shape grouped() { return make_shape(2, 4, 32, 48, LEAPQUANT_DECAY_SCALAR); }

TEST_P(Isolation, PaddingRowsTouchNothing) {
  for (const char* format : {"int8", "int8:step"}) {
    expect_padding_rows_touch_nothing({backend(), grouped(), format}, 3);
  }
}

// Padding rows in the other operations: nothing read, nothing written, matrices zero.
TEST_P(Isolation, PaddingRowsInOtherOperations) {
  const Tokens tokens = random_tokens(grouped(), 10, 112);
  Session session(backend(), make_test_layout(grouped(), "int8"), 2);
  session.reset(0);
  session.reset(1);
  session.decode_steps(0, 0, tokens, 0, 5, 1);
  const std::vector<std::byte> before[] = {session.memory().slot_bytes(0),
                                           session.memory().slot_bytes(1)};
  session.fold(-1, 5);
  for (float x : session.export_state(-1, 5)) ASSERT_EQ(x, 0.0f);
  session.import_state(-3, 5, std::vector<float>(4 * 32 * 48, 1.0f));
  session.reset(-1);
  session.copy(0, -1);
  session.copy(-1, 1);
  const Outputs padding = session.prefill({{-1, 0, &tokens, 0, 7}})[0];
  for (float x : padding) ASSERT_EQ(x, 0.0f);
  for (int32_t slot : {0, 1}) {
    EXPECT_TRUE(session.memory().slot_bytes(slot) == before[slot]) << slot;
  }
}

// G1, O1: 4, 6 and 62 equal sequences among different ones, rows reordered between steps, sequences
// joining and leaving: one distinct result, and that of the sequence alone.
TEST_P(Isolation, EqualSequencesGiveOneResult) {
  const leapquant_shape shape = make_shape(1, 2, 16, 16, LEAPQUANT_DECAY_VECTOR);
  const Tokens same = random_tokens(shape, 24, 113);
  const Tokens other = random_tokens(shape, 24, 114);
  const Layout layout = make_test_layout(shape, "int8+");
  Session alone(backend(), layout, 1);
  alone.reset(0);
  const Outputs expected = alone.decode_steps(0, 0, same, 0, 24, 1);
  const size_t token = 2 * 16;
  for (int32_t count : {4, 6, 62}) {
    Session session(backend(), layout, count + 3);
    for (int32_t slot = 0; slot < count + 3; ++slot) session.reset(slot);
    for (int32_t t = 0; t < 24; ++t) {
      std::vector<Row> rows;
      for (int32_t slot = 0; slot < count; ++slot) rows.push_back({slot, t, &same, t, 1});
      for (int32_t extra = 0; extra < t % 4; ++extra) {  // neighbours come and go
        session.reset(count + extra, t);
        rows.push_back({count + extra, t, &other, (t * 5 + extra) % 24, 1});
      }
      std::rotate(rows.begin(), rows.begin() + t % static_cast<int32_t>(rows.size()), rows.end());
      const std::vector<Outputs> o = session.decode(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].slot >= count) continue;
        ASSERT_TRUE(std::equal(o[i].begin(), o[i].end(),
                               expected.begin() + t * static_cast<int64_t>(token)))
            << count << " sequences, token " << t << ", row " << i;
      }
    }
    for (int32_t slot = 1; slot < count; ++slot) {
      ASSERT_TRUE(session.memory().slot_bytes(slot) == session.memory().slot_bytes(0)) << slot;
    }
  }
}

// Threads: one or three workers, decode, prefill, fold: the same bits.
TEST_P(Isolation, ThreadsChangeNoBit) {
  const Tokens tokens = random_tokens(grouped(), 60, 115);
  for (const char* format : {"int8+", "int6:step"}) {
    const Layout layout = make_test_layout(grouped(), format);
    const auto run = [&](int32_t workers, std::vector<std::byte>* bytes) {
      Session session(backend(), layout, 5);
      session.set_num_workers(workers);
      std::vector<Row> prefills;
      for (int32_t slot = 0; slot < 5; ++slot) {
        session.reset(slot);
        prefills.push_back({slot, 0, &tokens, slot, 20 + slot});
      }
      std::vector<Outputs> all = session.prefill(prefills);
      for (int32_t t = 0; t < 20; t += 2) {
        std::vector<Row> rows;
        for (int32_t slot = 0; slot < 5; ++slot) {
          rows.push_back({slot, 20 + slot + t, &tokens, 20 + slot + t, 2});
        }
        for (const Outputs& o : session.decode(rows)) all.push_back(o);
        EXPECT_EQ(session.status(), std::vector<int32_t>(5, LEAPQUANT_OK));
      }
      for (int32_t slot = 0; slot < 5; ++slot) {
        session.fold(slot, 40 + slot);
        const std::vector<std::byte> slot_bytes = session.memory().slot_bytes(slot);
        bytes->insert(bytes->end(), slot_bytes.begin(), slot_bytes.end());
      }
      return all;
    };
    std::vector<std::byte> one, three;
    EXPECT_EQ(run(1, &one), run(3, &three)) << format;
    EXPECT_TRUE(one == three) << format;
  }
}

// O1: a hundred repetitions, in one slot or another.
TEST_P(Isolation, RepetitionChangesNoBit) {
  const leapquant_shape shape = make_shape(1, 1, 32, 32, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = random_tokens(shape, 18, 116);
  Session session(backend(), make_test_layout(shape, "int4+"), 7);
  session.reset(0);
  const Outputs expected = session.decode_steps(0, 0, tokens, 0, 18, 1);
  const std::vector<std::byte> bytes = session.memory().slot_bytes(0);
  for (int32_t i = 1; i < 100; ++i) {
    const int32_t slot = i % 7;
    session.reset(slot);
    ASSERT_EQ(session.decode_steps(slot, 0, tokens, 0, 18, 1), expected) << i;
    ASSERT_TRUE(session.memory().slot_bytes(slot) == bytes) << i;
  }
}

// A reset slot has nothing of its past, whatever garbage it held.
TEST_P(Isolation, ResetForgetsEverything) {
  const Tokens tokens = random_tokens(grouped(), 40, 117);
  Session session(backend(), make_test_layout(grouped(), "int8+"), 2);
  session.reset(0);
  session.decode_steps(0, 0, tokens, 7, 30, 1);
  session.reset(0);
  session.reset(1);
  EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1));
}

}  // namespace
}  // namespace leapquant::conformance
