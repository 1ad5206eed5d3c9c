// SPDX-License-Identifier: Apache-2.0
//
// Cases E1, F1, H, I and J on heads of 128 x 128: heads of any ratio, padding rows, cuts, drafts
// and rollback, copies and forced folds at every fill, windows and ranks. tests/conformance asks
// the same of every backend on small heads.
#include <utility>

#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using conformance::make_test_layout;
using conformance::Outputs;
using conformance::random_tokens;
using conformance::relative_error;
using conformance::Row;
using conformance::Session;
using conformance::slice;
using conformance::Tokens;
using conformance::worst_relative_error;

LEAPQUANT_ON_DEVICE_BACKENDS(Sequences128);

std::vector<double> widened(const std::vector<float>& o) {
  return std::vector<double>(o.begin(), o.end());
}

// One value head's tokens as a layer of one head.
Tokens head_of(const Tokens& all, int32_t v_head) {
  const leapquant_shape& s = all.shape;
  Tokens one = all;
  one.shape.num_k_heads = one.shape.num_v_heads = 1;
  one.shape.first_k_head = 0;
  one.shape.total_k_heads = 1;
  const auto pick = [](const std::vector<float>& data, int32_t heads, int32_t head, int32_t width) {
    std::vector<float> result;
    for (size_t row = 0; row * static_cast<size_t>(heads * width) < data.size(); ++row) {
      const auto begin = data.begin() + static_cast<int64_t>(row) * heads * width + head * width;
      result.insert(result.end(), begin, begin + width);
    }
    return result;
  };
  const int32_t k_head = v_head / (s.num_v_heads / s.num_k_heads);
  one.q = pick(all.q, s.num_k_heads, k_head, 128);
  one.k = pick(all.k, s.num_k_heads, k_head, 128);
  one.v = pick(all.v, s.num_v_heads, v_head, 128);
  one.beta = pick(all.beta, s.num_v_heads, v_head, 1);
  one.log_decay =
      pick(all.log_decay, s.num_v_heads, v_head, s.decay == LEAPQUANT_DECAY_VECTOR ? 128 : 1);
  return one;
}

Outputs outputs_of_head(const Outputs& all, int32_t heads, int32_t v_head) {
  Outputs one;
  for (size_t t = 0; t * static_cast<size_t>(heads * 128) < all.size(); ++t) {
    const auto begin = all.begin() + (static_cast<int64_t>(t) * heads + v_head) * 128;
    one.insert(one.end(), begin, begin + 128);
  }
  return one;
}

// E1: 2/32, 16/48, 4/12, 1/1 and 16/16 heads: each gives the bits of a layer of its own.
TEST_P(Sequences128, HeadsAreLayersOfTheirOwn) {
  const std::pair<int32_t, int32_t> counts[] = {{2, 32}, {16, 48}, {4, 12}, {1, 1}, {16, 16}};
  for (const auto& [k_heads, v_heads] : counts) {
    for (leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
      const leapquant_shape shape = conformance::make_shape(k_heads, v_heads, 128, 128, decay);
      const Tokens tokens = random_tokens(shape, 20, 8201);
      for (int32_t step : {1, 4}) {
        Session session(backend(), make_test_layout(shape, "int8+"), 1);
        session.reset(0);
        const Outputs all = session.decode_steps(0, 0, tokens, 0, 20, step);
        for (int32_t h : {0, v_heads / 3, v_heads - 1}) {
          const Tokens one = head_of(tokens, h);
          Session alone(backend(), make_test_layout(one.shape, "int8+"), 1);
          alone.reset(0);
          EXPECT_EQ(alone.decode_steps(0, 0, one, 0, 20, step), outputs_of_head(all, v_heads, h))
              << k_heads << "/" << v_heads << " head " << h << ", step " << step;
        }
      }
    }
  }
}

// E1: exchanging two value heads' gates changes exactly these.
TEST_P(Sequences128, GatesBelongToValueHeads) {
  Tokens tokens = random_tokens(gdn_128(2, 4), 20, 8202);
  const Layout layout = make_test_layout(tokens.shape, "int8");
  Session session(backend(), layout, 2);
  session.reset(0);
  session.reset(1);
  const Outputs before = session.decode_steps(0, 0, tokens, 0, 20);
  for (size_t t = 0; t < 20; ++t) std::swap(tokens.log_decay[t * 4], tokens.log_decay[t * 4 + 1]);
  const Outputs after = session.decode_steps(1, 0, tokens, 0, 20);
  for (int32_t h = 0; h < 4; ++h) {
    EXPECT_EQ(outputs_of_head(before, 4, h) == outputs_of_head(after, 4, h), h >= 2) << h;
  }
}

// F1: padding rows anywhere, slot 0 live: zero outputs (Session checks), no byte of another slot.
TEST_P(Sequences128, PaddingRowsTouchNothing) {
  const Tokens tokens = random_tokens(gdn_128(), 40, 8203);
  for (const char* format : {"int8", "int4+:stagger=1"}) {
    for (const std::vector<int32_t>& slots :
         {std::vector<int32_t>{0, 1, -1, 2}, {-1, -1, -1}, {-1, 0}, {3, -1, 0, -7}}) {
      for (int32_t position : {3, 16}) {  // no fold, folds
        Session session(backend(), make_test_layout(gdn_128(), format), 4);
        Session alone(backend(), make_test_layout(gdn_128(), format), 4);
        for (int32_t slot = 0; slot < 4; ++slot) {
          for (Session* each : {&session, &alone}) {
            each->reset(slot);
            each->decode_steps(slot, 0, tokens, slot, position, 8);
          }
        }
        std::vector<Row> rows;
        for (int32_t slot : slots) rows.push_back({slot, position, &tokens, 20, 2});
        const std::vector<Outputs> o = session.decode(rows);
        EXPECT_EQ(session.status(), std::vector<int32_t>(slots.size(), LEAPQUANT_OK));
        for (size_t i = 0; i < slots.size(); ++i) {
          if (slots[i] < 0) continue;
          EXPECT_EQ(alone.decode_one(slots[i], position, tokens, 20, 2), o[i]) << format;
        }
        for (int32_t slot = 0; slot < 4; ++slot) {
          EXPECT_TRUE(session.memory().slot_bytes(slot) == alone.memory().slot_bytes(slot))
              << format << ", slot " << slot << ", position " << position;
        }
      }
    }
  }
}

// H1: bit for bit wherever no boundary lies inside a call.
TEST_P(Sequences128, CutsBetweenBoundariesChangeNoBit) {
  for (const leapquant_shape& shape : {gdn_128(2, 4), kda_128()}) {
    for (const char* format : {"int8", "int4+", "int8+:decay=fp16", "int6"}) {
      const Tokens tokens = random_tokens(shape, 48, 8204);
      Session session(backend(), make_test_layout(shape, format), 2);
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
      EXPECT_EQ(parts, single) << format;
      EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1)) << format;
    }
  }
}

// H1: 97 tokens cut in all ways by prefill and decode. INT8 rounds entries to 1/127 of their
// column's largest: relative errors of some 1e-2 against FP32.
TEST_P(Sequences128, AnyCutIsTheSameSequence) {
  const Tokens tokens = random_tokens(gdn_128(), 97, 8205);
  Session exact(conformance::best_cpu_backend(), make_test_layout(gdn_128(), "fp32"), 1);
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

// H4: poison in front of the first token is skipped by the pointer. H5: a start far from zero with
// an initial state, which lies in the grid of windows as zero does.
TEST_P(Sequences128, PaddingInFrontAndFarStarts) {
  const leapquant_shape shape = gdn_128();
  const Tokens tokens = random_tokens(shape, 6, 8206);
  Tokens padded;
  conformance::append_poison(&padded, tokens, 7);
  conformance::append(&padded, tokens);
  leapquant_inputs inputs = padded.inputs();
  const auto skip = [](leapquant_tensor* tensor, size_t floats) {
    tensor->data = static_cast<const float*>(tensor->data) + floats / 13 * 7;
  };
  skip(&inputs.q, padded.q.size());
  skip(&inputs.k, padded.k.size());
  skip(&inputs.v, padded.v.size());
  skip(&inputs.log_decay, padded.log_decay.size());
  skip(&inputs.beta, padded.beta.size());
  Session session(backend(), make_test_layout(shape, "int8"), 4);
  session.reset(0);
  session.reset(1);
  EXPECT_EQ(session.decode_inputs(0, 0, inputs, 6),
            session.decode_inputs(1, 0, tokens.inputs(), 6));
  EXPECT_EQ(session.memory().slot_bytes(0), session.memory().slot_bytes(1));

  constexpr int32_t kFar = 131072;
  std::vector<float> initial(2 * 128 * 128);
  for (size_t i = 0; i < initial.size(); ++i) {
    initial[i] = static_cast<float>(static_cast<int32_t>(i * 37 % 101) - 50) / 50.0f;
  }
  session.import_state(0, kFar, initial);
  session.import_state(1, 0, initial);
  session.reset(2);
  const Outputs far = session.decode_one(0, kFar, tokens, 0, 5);
  EXPECT_EQ(far, session.decode_one(1, 0, tokens, 0, 5));
  EXPECT_NE(far, session.decode_one(2, 0, tokens, 0, 5)) << "the initial state was not used";
}

// I1: fill, draft, acceptance: as if only the accepted tokens had been fed, bit for bit; across a
// boundary, which the draft's later tokens read before its fold, within one fold's error: under
// 0.05 of the norm in INT8.
TEST_P(Sequences128, EveryFillDraftAndAcceptance) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    const Tokens tokens = random_tokens(shape, 40, 8207);
    const Tokens wrong = random_tokens(shape, 40, 8208);
    Session session(backend(), make_test_layout(shape, "int8"), 3);
    for (int32_t n = 0; n <= 16; ++n) {
      session.reset(0);
      if (n > 0) session.decode_steps(0, 0, tokens, 0, n, 1);
      for (int32_t draft : {1, 2, 4, 8}) {
        for (int32_t accepted = 0; accepted <= draft; ++accepted) {
          Tokens sent;
          if (accepted > 0) conformance::append(&sent, slice(tokens, n, accepted));
          if (accepted < draft) conformance::append(&sent, slice(wrong, n, draft - accepted));
          session.copy(0, 1);
          session.decode_one(1, n, sent, 0, draft);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
          const int32_t position = n + accepted;
          const std::vector<float> state = session.export_state(1, position);
          const Outputs next = session.decode_one(1, position, tokens, position, 1);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);

          session.copy(0, 2);
          if (accepted > 0) session.decode_steps(2, n, tokens, n, accepted, 1);
          const std::vector<float> expected_state = session.export_state(2, position);
          const Outputs expected = session.decode_one(2, position, tokens, position, 1);
          const std::string where = "fill " + std::to_string(n) + ", draft " +
                                    std::to_string(draft) + ", accepted " +
                                    std::to_string(accepted);
          if (n < 16 && position > 16) {
            ASSERT_LE(relative_error(widened(state), widened(expected_state)), 0.05) << where;
            continue;
          }
          // A draft at 16 folds there; with nothing accepted the other slot has not folded yet.
          if (n < 16 || accepted > 0) {
            ASSERT_EQ(state, expected_state) << where;
          }
          ASSERT_EQ(next, expected) << where;
        }
      }
    }
  }
}

// I2, I3: rows keep their own numbers of drafts and change places; a row's true length counts.
TEST_P(Sequences128, RowsChangePlacesAndKeepTheirLengths) {
  const leapquant_shape shape = gdn_128();
  const Tokens a = random_tokens(shape, 40, 8209);
  const Tokens b = random_tokens(shape, 40, 8210);
  const Tokens c = random_tokens(shape, 40, 8211);
  Session session(backend(), make_test_layout(shape, "int8+"), 8);
  for (int32_t slot = 0; slot < 8; ++slot) session.reset(slot);
  session.decode({{0, 0, &a, 0, 5}, {1, 0, &b, 0, 3}, {2, 0, &c, 0, 8}, {6, 0, &a, 0, 0}});
  EXPECT_EQ(session.status(), std::vector<int32_t>(4, LEAPQUANT_OK));
  // Kept: 2 of a, 3 of b, 0 of c.
  const std::vector<Outputs> o =
      session.decode({{2, 0, &c, 10, 4}, {0, 2, &a, 2, 4}, {1, 3, &b, 3, 4}, {6, 0, &a, 0, 1}});
  EXPECT_EQ(session.decode_steps(3, 0, c, 10, 4, 4), o[0]);
  session.decode_steps(4, 0, a, 0, 2, 2);
  EXPECT_EQ(session.decode_one(4, 2, a, 2, 4), o[1]);
  session.decode_steps(5, 0, b, 0, 3, 3);
  EXPECT_EQ(session.decode_one(5, 3, b, 3, 4), o[2]);
  const Outputs alone = session.decode_one(7, 0, a, 0, 1);
  EXPECT_EQ(alone, Outputs(o[3].begin(), o[3].begin() + static_cast<int64_t>(alone.size())));
  EXPECT_TRUE(session.memory().slot_bytes(6) == session.memory().slot_bytes(7));
}

// I1: how far back and how far on; a refusal changes nothing.
TEST_P(Sequences128, LimitsAreSaid) {
  for (const char* format : {"int8", "int8:stagger=1"}) {
    const Layout layout = make_test_layout(gdn_128(2, 2), format);
    const Tokens tokens = random_tokens(gdn_128(2, 2), 60, 8212);
    Session session(backend(), layout, 1);
    session.reset(0);
    session.decode_steps(0, 0, tokens, 0, 30);
    const int32_t largest = std::max(session.memory().base(0)[0], session.memory().base(0)[1]);
    const std::vector<std::byte> before = session.memory().slot_bytes(0);
    const auto refused = [&](int32_t position, int32_t status) {
      session.decode_one(0, position, tokens, 30, 1);
      EXPECT_EQ(session.status()[0], status) << format << " at " << position;
      EXPECT_TRUE(session.memory().slot_bytes(0) == before) << format << " at " << position;
    };
    refused(largest - 1, LEAPQUANT_POSITION_BELOW_BASE);
    refused(largest + layout.window.ring_tokens + 1, LEAPQUANT_POSITION_PAST_WINDOW);
    session.decode_one(0, largest, tokens, 30, 1);
    EXPECT_EQ(session.status()[0], LEAPQUANT_OK) << format;
  }
}

// J1: a copy at every fill goes on as the original would, after the original is gone.
TEST_P(Sequences128, CopiesAtEveryFillGoOnAlike) {
  for (const char* format : {"int8+", "int8:stagger=1"}) {
    const Tokens tokens = random_tokens(gdn_128(2, 2), 60, 8213);
    Session session(backend(), make_test_layout(gdn_128(2, 2), format), 2);
    for (int32_t fill = 0; fill < 18; ++fill) {
      session.reset(0);
      if (fill > 0) session.decode_steps(0, 0, tokens, 0, fill, 1);
      session.copy(0, 1);
      EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1));
      const Outputs original = session.decode_steps(0, fill, tokens, fill, 20, 1);
      session.reset(0);
      EXPECT_EQ(session.decode_steps(1, fill, tokens, fill, 20, 1), original) << fill;
    }
  }
}

// J2: a forced fold at every fill leaves the position, and costs one quantisation: what health
// reports.
TEST_P(Sequences128, ForcedFoldsAtEveryFill) {
  const Tokens tokens = random_tokens(gdn_128(), 60, 8214);
  for (const char* format : {"int8", "int4+"}) {
    Session session(backend(), make_test_layout(gdn_128(), format), 2);
    for (int32_t fill = 1; fill < 17; ++fill) {
      session.reset(0);
      session.decode_steps(0, 0, tokens, 0, fill, 1);
      session.copy(0, 1);
      session.fold(1, fill);
      for (int32_t h = 0; h < 2; ++h) {
        EXPECT_EQ(session.memory().base(1)[h], fill);
        const double error = relative_error(session.state(1, h, fill), session.state(0, h, fill));
        EXPECT_NEAR(error, session.memory().health(1)[h].fold_error, 0.01 * error + 1e-6)
            << format << " " << fill;
      }
      const Outputs o = session.decode_steps(1, fill, tokens, fill, 20, 1);
      const Outputs unfolded = session.decode_steps(0, fill, tokens, fill, 20, 1);
      EXPECT_LE(worst_relative_error(o, widened(unfolded), 2, 128, 20), 0.1)
          << format << " " << fill;
    }
  }
}

// J4: lengths of windows and ranks, aligned and staggered: near the FP32 state, see
// AnyCutIsTheSameSequence; outputs of calls without folds as the oracle's.
TEST_P(Sequences128, LengthsAndRanks) {
  const Tokens tokens = random_tokens(gdn_128(), 80, 8215);
  Session exact(conformance::best_cpu_backend(), make_test_layout(gdn_128(), "fp32"), 1);
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
