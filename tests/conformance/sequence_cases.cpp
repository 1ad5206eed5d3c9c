// SPDX-License-Identifier: Apache-2.0
//
// The bodies of sequence_cases.h: no suite, no shape and no format of their own.
#include "conformance/sequence_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/numeric.h"

namespace leapquant::conformance {

std::string LayerUnderTest::name() const {
  return format + ", " + std::to_string(shape.num_k_heads) + "/" +
         std::to_string(shape.num_v_heads) + " heads of " + std::to_string(shape.head_k_dim) +
         " x " + std::to_string(shape.head_v_dim) + ", decay " + std::to_string(shape.decay);
}

std::vector<double> widened(const Outputs& o) { return std::vector<double>(o.begin(), o.end()); }

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
  one.q = pick(all.q, s.num_k_heads, k_head, s.head_k_dim);
  one.k = pick(all.k, s.num_k_heads, k_head, s.head_k_dim);
  one.v = pick(all.v, s.num_v_heads, v_head, s.head_v_dim);
  one.beta = pick(all.beta, s.num_v_heads, v_head, 1);
  one.log_decay = pick(all.log_decay, s.num_v_heads, v_head,
                       s.decay == LEAPQUANT_DECAY_VECTOR ? s.head_k_dim : 1);
  return one;
}

Outputs outputs_of_head(const Outputs& all, int32_t heads, int32_t v_head, int32_t v_dim) {
  Outputs one;
  for (size_t t = 0; t * static_cast<size_t>(heads * v_dim) < all.size(); ++t) {
    const auto begin = all.begin() + (static_cast<int64_t>(t) * heads + v_head) * v_dim;
    one.insert(one.end(), begin, begin + v_dim);
  }
  return one;
}

void expect_types_do_not_reach_the_state(const LayerUnderTest& layer, int32_t type, int32_t step) {
  SCOPED_TRACE(layer.name() + ", type " + std::to_string(type) + ", step " + std::to_string(step));
  const auto narrow = [type](float x) {
    return type == LEAPQUANT_BF16 ? float_to_bf16(x) : float_to_fp16(x);
  };
  const auto wide = [type](uint16_t x) {
    return type == LEAPQUANT_BF16 ? bf16_to_float(x) : fp16_to_float(x);
  };
  Session session(layer.backend, layer.layout(), 2);
  session.reset(0);
  session.reset(1);
  for (int32_t t = 0; t < 36; t += step) {
    Tokens tokens = random_tokens(layer.shape, step, 9001 + static_cast<uint32_t>(t));
    leapquant_inputs inputs = tokens.inputs();
    std::vector<uint16_t> memory[5];
    std::vector<float>* arrays[] = {&tokens.q, &tokens.k, &tokens.v, &tokens.log_decay,
                                    &tokens.beta};
    leapquant_tensor* tensors[] = {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                                   &inputs.beta};
    for (size_t a = 0; a < 5; ++a) {
      if (arrays[a]->empty()) continue;
      for (float& x : *arrays[a]) {
        memory[a].push_back(narrow(x));
        x = wide(memory[a].back());
      }
      tensors[a]->data = memory[a].data();
      tensors[a]->type = type;
    }
    const Outputs expected = session.decode_inputs(0, t, tokens.inputs(), step);
    const Outputs actual = session.decode_inputs(1, t, inputs, step, type);
    ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i], wide(narrow(expected[i]))) << "token " << t << ", " << i;
    }
  }
  EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1));
}

void expect_faulty_inputs_stay_alone(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens tokens = random_tokens(layer.shape, 30, 9018);
  const auto fill = [&](Session* session) {
    for (int32_t slot = 0; slot < 8; ++slot) {
      session->reset(slot);
      session->decode_steps(slot, 0, tokens, slot, 10 + slot % 3, 8);
    }
  };
  const auto rows = [&](const Tokens* fifth) {
    std::vector<Row> all;
    for (const int32_t slot : {0, 7, 2, 5, 1, 6, 3, 4}) {
      const int32_t at = 10 + slot % 3;
      const bool faulty = slot == 5;
      all.push_back({faulty && fifth == nullptr ? -1 : slot, at, faulty ? fifth : &tokens,
                     faulty ? 0 : at, faulty && fifth == nullptr ? 0 : 1});
    }
    return all;
  };
  Session clean(layer.backend, layer.layout(), 8);
  fill(&clean);
  const std::vector<Outputs> expected = clean.decode(rows(nullptr));
  for (int what = 0; what < 6; ++what) {
    Session session(layer.backend, layer.layout(), 8);
    fill(&session);
    Tokens bad = slice(tokens, 12, 1);
    std::vector<float>* tensors[] = {&bad.q,    &bad.k,         &bad.v,
                                     &bad.beta, &bad.log_decay, &bad.log_decay};
    tensors[what]->back() = what == 5 ? 5.0f : std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::byte> before = session.memory().slot_bytes(5);
    const std::vector<Outputs> o = session.decode(rows(&bad));
    const int32_t fault = what == 5 ? LEAPQUANT_POSITIVE_LOG_DECAY : LEAPQUANT_NON_FINITE_INPUT;
    EXPECT_EQ(session.status(), (std::vector<int32_t>{0, 0, 0, fault, 0, 0, 0, 0})) << what;
    EXPECT_EQ(o, expected) << what;
    EXPECT_TRUE(session.memory().slot_bytes(5) == before) << what;
    for (int32_t slot : {0, 1, 2, 3, 4, 6, 7}) {
      EXPECT_TRUE(session.memory().slot_bytes(slot) == clean.memory().slot_bytes(slot)) << slot;
    }
    session.reset(5);
    session.reset(6);
    EXPECT_EQ(session.decode_steps(5, 0, tokens, 0, 20), session.decode_steps(6, 0, tokens, 0, 20));
    EXPECT_TRUE(session.memory().slot_bytes(5) == session.memory().slot_bytes(6));
  }
}

void expect_heads_are_layers(const LayerUnderTest& layer, int32_t step) {
  SCOPED_TRACE(layer.name() + ", step " + std::to_string(step));
  const int32_t heads = layer.shape.num_v_heads;
  const int32_t v_dim = layer.shape.head_v_dim;
  const Tokens tokens = random_tokens(layer.shape, 20, 9002);
  Session session(layer.backend, layer.layout(), 2);
  session.reset(0);
  session.reset(1);
  const Outputs decoded = session.decode_steps(0, 0, tokens, 0, 20, step);
  const Outputs prefilled = session.prefill({{1, 0, &tokens, 0, 20}})[0];
  for (int32_t h : {0, heads / 3, heads - 1}) {
    const Tokens one = head_of(tokens, h);
    Session alone(layer.backend, make_test_layout(one.shape, layer.format), 2);
    alone.reset(0);
    alone.reset(1);
    EXPECT_EQ(alone.decode_steps(0, 0, one, 0, 20, step), outputs_of_head(decoded, heads, h, v_dim))
        << "head " << h;
    EXPECT_EQ(alone.prefill({{1, 0, &one, 0, 20}})[0], outputs_of_head(prefilled, heads, h, v_dim))
        << "head " << h << ", prefill";
  }
}

void expect_gates_belong_to_value_heads(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const int32_t v_dim = layer.shape.head_v_dim;
  ASSERT_EQ(layer.shape.num_v_heads, 4);
  Tokens tokens = random_tokens(layer.shape, 20, 9003);
  Session session(layer.backend, layer.layout(), 2);
  session.reset(0);
  session.reset(1);
  const Outputs before = session.decode_steps(0, 0, tokens, 0, 20);
  for (size_t t = 0; t < 20; ++t) std::swap(tokens.log_decay[t * 4], tokens.log_decay[t * 4 + 1]);
  const Outputs after = session.decode_steps(1, 0, tokens, 0, 20);
  for (int32_t h = 0; h < 4; ++h) {
    EXPECT_EQ(outputs_of_head(before, 4, h, v_dim) == outputs_of_head(after, 4, h, v_dim), h >= 2)
        << "head " << h;
  }
}

void expect_padding_rows_touch_nothing(const LayerUnderTest& layer, int32_t position) {
  const Tokens tokens = random_tokens(layer.shape, 40, 9004);
  for (const std::vector<int32_t>& slots :
       {std::vector<int32_t>{0, 1, -1, 2}, {-1, -1, -1}, {-1, 0}, {3, -1, 0, -7}}) {
    SCOPED_TRACE(layer.name() + ", position " + std::to_string(position) + ", " +
                 std::to_string(slots.size()) + " rows");
    Session session(layer.backend, layer.layout(), 4);
    Session alone(layer.backend, layer.layout(), 4);
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
      EXPECT_EQ(alone.decode_one(slots[i], position, tokens, 20, 2), o[i]) << "row " << i;
    }
    for (int32_t slot = 0; slot < 4; ++slot) {
      EXPECT_TRUE(session.memory().slot_bytes(slot) == alone.memory().slot_bytes(slot))
          << "slot " << slot;
    }
  }
}

void expect_cuts_change_no_bit(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens tokens = random_tokens(layer.shape, 48, 9005);
  Session session(layer.backend, layer.layout(), 2);
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
  EXPECT_EQ(parts, single);
  EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1));
}

void expect_left_padding_is_not_read(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens tokens = random_tokens(layer.shape, 6, 9006);
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
  Session session(layer.backend, layer.layout(), 2);
  session.reset(0);
  session.reset(1);
  EXPECT_EQ(session.decode_inputs(0, 0, inputs, 6),
            session.decode_inputs(1, 0, tokens.inputs(), 6));
  EXPECT_EQ(session.memory().slot_bytes(0), session.memory().slot_bytes(1));
}

void expect_far_starts_are_alike(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const leapquant_shape& shape = layer.shape;
  const Tokens tokens = random_tokens(shape, 8, 9007);
  const int32_t numbers = shape.num_v_heads * shape.head_k_dim * shape.head_v_dim;
  std::vector<float> initial(static_cast<size_t>(numbers));
  for (size_t i = 0; i < initial.size(); ++i) {
    initial[i] = static_cast<float>(static_cast<int32_t>(i * 37 % 101) - 50) / 50.0f;
  }
  // 131072 and 0 lie alike in the grid of windows of 16, so all bits must be equal.
  constexpr int32_t kFar = 131072;
  Session session(layer.backend, layer.layout(), 4);
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
  EXPECT_LE(worst_relative_error(prefilled, widened(far), shape.num_v_heads, shape.head_v_dim),
            2e-3);
}

void expect_drafts_leave_no_trace(const LayerUnderTest& layer, const std::vector<int32_t>& drafts,
                                  double fold_error) {
  constexpr int32_t kWindow = 16;
  const Tokens tokens = random_tokens(layer.shape, 40, 9008);
  const Tokens wrong = random_tokens(layer.shape, 40, 9009);
  Session session(layer.backend, layer.layout(), 3);
  for (int32_t n = 0; n <= kWindow; ++n) {
    session.reset(0);
    if (n > 0) session.decode_steps(0, 0, tokens, 0, n, 1);
    for (const int32_t draft : drafts) {
      for (int32_t accepted = 0; accepted <= draft; ++accepted) {
        SCOPED_TRACE(layer.name() + ", fill " + std::to_string(n) + ", draft " +
                     std::to_string(draft) + ", accepted " + std::to_string(accepted));
        // The draft's first `accepted` tokens are the right ones, the others wrong.
        Tokens sent;
        if (accepted > 0) append(&sent, slice(tokens, n, accepted));
        if (accepted < draft) append(&sent, slice(wrong, n + accepted, draft - accepted));
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
        if (n < kWindow && position > kWindow) {
          ASSERT_LE(relative_error(widened(state), widened(expected_state)), fold_error);
          continue;
        }
        // A draft at 16 folds there; with nothing accepted the other slot has not folded yet.
        if (n < kWindow || accepted > 0) {
          ASSERT_EQ(state, expected_state);
        }
        ASSERT_EQ(next, expected);
      }
    }
  }
}

void expect_rows_change_places(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens a = random_tokens(layer.shape, 40, 9010);
  const Tokens b = random_tokens(layer.shape, 40, 9011);
  const Tokens c = random_tokens(layer.shape, 40, 9012);
  Session session(layer.backend, layer.layout(), 6);
  for (int32_t slot = 0; slot < 6; ++slot) session.reset(slot);
  session.decode({{0, 0, &a, 0, 5}, {1, 0, &b, 0, 3}, {2, 0, &c, 0, 8}});
  EXPECT_EQ(session.status(), std::vector<int32_t>(3, LEAPQUANT_OK));
  // Kept: 2 of a, 3 of b, 0 of c.
  const std::vector<Outputs> o =
      session.decode({{2, 0, &c, 10, 4}, {0, 2, &a, 2, 4}, {1, 3, &b, 3, 4}});
  EXPECT_EQ(session.decode_steps(3, 0, c, 10, 4, 4), o[0]);
  session.decode_steps(4, 0, a, 0, 2, 2);
  EXPECT_EQ(session.decode_one(4, 2, a, 2, 4), o[1]);
  session.decode_steps(5, 0, b, 0, 3, 3);
  EXPECT_EQ(session.decode_one(5, 3, b, 3, 4), o[2]);
}

void expect_true_lengths(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens a = random_tokens(layer.shape, 40, 9013);
  const Tokens b = random_tokens(layer.shape, 40, 9014);
  Session session(layer.backend, layer.layout(), 4);
  for (int32_t slot = 0; slot < 4; ++slot) session.reset(slot);
  const std::vector<Outputs> o =
      session.decode({{0, 0, &a, 0, 1}, {1, 0, &b, 0, 5}, {3, 0, &a, 0, 0}});
  EXPECT_EQ(session.status(), std::vector<int32_t>(3, LEAPQUANT_OK));
  const Outputs alone = session.decode_one(2, 0, a, 0, 1);
  EXPECT_EQ(alone, Outputs(o[0].begin(), o[0].begin() + static_cast<int64_t>(alone.size())));
  EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(2));
}

void expect_limits_are_said(const LayerUnderTest& layer) {
  const Layout layout = layer.layout();
  const Tokens tokens = random_tokens(layer.shape, 60, 9015);
  Session session(layer.backend, layout, 1);
  session.reset(0);
  session.decode_steps(0, 0, tokens, 0, 30, 1);
  const int32_t* base = session.memory().base(0);
  const int32_t largest = *std::max_element(base, base + layer.shape.num_v_heads);
  const std::vector<std::byte> before = session.memory().slot_bytes(0);
  const auto refused = [&](int32_t position, int32_t status) {
    SCOPED_TRACE(layer.name() + ", position " + std::to_string(position));
    session.decode_one(0, position, tokens, 30, 1);
    EXPECT_EQ(session.status()[0], status) << "decode";
    session.export_state(0, position);
    EXPECT_EQ(session.status()[0], status) << "export";
    session.fold(0, position);
    EXPECT_EQ(session.status()[0], status) << "fold";
    session.prefill({{0, position, &tokens, 30, 2}});
    EXPECT_EQ(session.status()[0], status) << "prefill";
    EXPECT_TRUE(session.memory().slot_bytes(0) == before);
  };
  refused(largest - 1, LEAPQUANT_POSITION_BELOW_BASE);
  refused(largest + layout.window.ring_tokens + 1, LEAPQUANT_POSITION_PAST_WINDOW);
  session.decode_one(0, largest, tokens, 30, 1);
  EXPECT_EQ(session.status()[0], LEAPQUANT_OK) << layer.name();
}

void expect_steps_know_only_their_position(const LayerUnderTest& layer) {
  SCOPED_TRACE(layer.name());
  const Tokens tokens = random_tokens(layer.shape, 8, 9019);
  Session session(layer.backend, layer.layout(), 1);
  session.reset(0);
  session.decode_steps(0, 0, tokens, 0, 5, 1);
  const std::vector<std::byte> before = session.memory().slot_bytes(0);
  session.decode_one(0, 4, tokens, 4, 1);
  EXPECT_EQ(session.status()[0], LEAPQUANT_POSITION_BELOW_BASE);
  session.decode_one(0, 6, tokens, 6, 1);
  EXPECT_EQ(session.status()[0], LEAPQUANT_POSITION_PAST_WINDOW);
  EXPECT_TRUE(session.memory().slot_bytes(0) == before);
}

void expect_copies_go_on_alike(const LayerUnderTest& layer) {
  const Tokens tokens = random_tokens(layer.shape, 60, 9016);
  Session session(layer.backend, layer.layout(), 3);
  for (int32_t fill = 0; fill < 18; ++fill) {
    SCOPED_TRACE(layer.name() + ", fill " + std::to_string(fill));
    session.reset(0);
    if (fill > 0) session.decode_steps(0, 0, tokens, 0, fill, 1);
    session.copy(0, 1);
    EXPECT_TRUE(session.memory().slot_bytes(0) == session.memory().slot_bytes(1));
    session.copy(0, 2);
    const Outputs original = session.decode_steps(0, fill, tokens, fill, 20, 1);
    session.reset(0);
    EXPECT_EQ(session.decode_steps(1, fill, tokens, fill, 20, 1), original);
    EXPECT_EQ(session.decode_steps(2, fill, tokens, fill, 20, 1), original);
  }
}

void expect_forced_folds_at_every_fill(const LayerUnderTest& layer) {
  const leapquant_shape& shape = layer.shape;
  const Tokens tokens = random_tokens(shape, 60, 9017);
  Session session(layer.backend, layer.layout(), 2);
  for (int32_t fill = 1; fill < 17; ++fill) {
    SCOPED_TRACE(layer.name() + ", fill " + std::to_string(fill));
    session.reset(0);
    session.decode_steps(0, 0, tokens, 0, fill, 1);
    session.copy(0, 1);
    session.fold(1, fill);
    for (int32_t h = 0; h < shape.num_v_heads; ++h) {
      EXPECT_EQ(session.memory().base(1)[h], fill);
      const double error = relative_error(session.state(1, h, fill), session.state(0, h, fill));
      EXPECT_NEAR(error, session.memory().health(1)[h].fold_error, 0.01 * error + 1e-6);
      EXPECT_LE(error, 0.1);
    }
    const Outputs o = session.decode_steps(1, fill, tokens, fill, 20, 1);
    const Outputs unfolded = session.decode_steps(0, fill, tokens, fill, 20, 1);
    EXPECT_LE(worst_relative_error(o, widened(unfolded), shape.num_v_heads, shape.head_v_dim, 20),
              0.1);
  }
}

}  // namespace leapquant::conformance
