// SPDX-License-Identifier: Apache-2.0
//
// Head counts, dims, layouts and boundaries (cases E): every value head is its own; h uses key head
// h / (HV / HK).
#include <gtest/gtest.h>

#include <utility>

#include "conformance/sequence_cases.h"
#include "core/position.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Heads);

TEST_P(Heads, EachEqualsALayerOfItsOwn) {
  const std::pair<int32_t, int32_t> counts[] = {{2, 32}, {16, 48}, {4, 12}, {1, 1}, {16, 16}};
  for (const auto& [k_heads, v_heads] : counts) {
    for (leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
      expect_heads_are_layers({backend(), make_shape(k_heads, v_heads, 32, 32, decay), "int8+"}, 4);
    }
  }
}

TEST_P(Heads, GatesBelongToValueHeads) {
  expect_gates_belong_to_value_heads(
      {backend(), make_shape(2, 4, 32, 32, LEAPQUANT_DECAY_SCALAR), "int8"});
}

// E3: K != V, both memory orders; hand-over of prefill to decode; converting twice changes nothing.
TEST_P(Heads, RectangularStatesInBothOrders) {
  for (const auto& [k_dim, v_dim] : {std::pair<int32_t, int32_t>{64, 128}, {256, 32}, {60, 100}}) {
    const leapquant_shape shape = make_shape(1, 2, k_dim, v_dim, LEAPQUANT_DECAY_SCALAR);
    const Tokens tokens = random_tokens(shape, 24, 73);
    const Layout layout = make_test_layout(shape, "fp32");
    Session session(backend(), layout, 3);
    for (int32_t slot : {0, 1, 2}) session.reset(slot);
    session.prefill({{0, 0, &tokens, 0, 20}});
    const std::vector<float> kv = session.export_state(0, 20, LEAPQUANT_FP32, LEAPQUANT_KV);
    const std::vector<float> vk = session.export_state(0, 20, LEAPQUANT_FP32, LEAPQUANT_VK);
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t i = 0; i < k_dim; ++i) {
        for (int32_t j = 0; j < v_dim; ++j) {
          ASSERT_EQ(kv[static_cast<size_t>((h * k_dim + i) * v_dim + j)],
                    vk[static_cast<size_t>((h * v_dim + j) * k_dim + i)]);
        }
      }
    }
    session.import_state(1, 20, kv, LEAPQUANT_KV);
    session.import_state(2, 20, vk, LEAPQUANT_VK);
    EXPECT_EQ(session.export_state(1, 20), kv);
    EXPECT_EQ(session.memory().state_bytes(1), session.memory().state_bytes(2));
    const Outputs expected = session.decode_one(0, 20, tokens, 20, 4);
    EXPECT_EQ(session.decode_one(1, 20, tokens, 20, 4), expected);
    EXPECT_EQ(session.decode_one(2, 20, tokens, 20, 4), expected);
  }
}

// Boundaries by head: base after each token is the last boundary at or below the position, for
// aligned and staggered windows and for a shard of a larger layer.
TEST_P(Heads, BasesFollowTheBoundaries) {
  for (const char* format : {"int8:window=5", "int8:window=7:stagger=1"}) {
    leapquant_shape shape = make_shape(3, 6, 8, 8, LEAPQUANT_DECAY_SCALAR);
    shape.first_k_head = 2;
    shape.total_k_heads = 8;
    const Layout layout = make_test_layout(shape, format);
    const bool stagger = layout.head(0).format.stagger != 0;
    Session session(backend(), layout, 1);
    session.reset(0);
    const Tokens tokens = random_tokens(shape, 30, 74);
    std::vector<int32_t> base(6, 0);
    for (int32_t t = 0; t < 30; ++t) {
      session.decode_one(0, t, tokens, t, 1);
      for (int32_t h = 0; h < 6; ++h) {
        const int32_t p = layout.window_tokens;
        const int32_t offset = stagger ? (2 + h / 2) * p / 8 : 0;
        if (t > 0 && (t - offset) % p == 0) base[static_cast<size_t>(h)] = t;
        ASSERT_EQ(session.memory().base(0)[h], base[static_cast<size_t>(h)])
            << format << " head " << h << " after token " << t;
      }
    }
  }
}

// A shard of a layer is that part of the layer, bit for bit.
TEST_P(Heads, AShardIsThatPartOfTheLayer) {
  const leapquant_shape whole = make_shape(4, 8, 16, 16, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = random_tokens(whole, 24, 75);
  Session session(backend(), make_test_layout(whole, "int8:stagger=1"), 1);
  session.reset(0);
  const Outputs all = session.decode_steps(0, 0, tokens, 0, 24);
  for (int32_t h = 0; h < 8; ++h) {
    Tokens one = head_of(tokens, h);
    one.shape.first_k_head = h / 2;
    one.shape.total_k_heads = 4;
    Session shard(backend(), make_test_layout(one.shape, "int8:stagger=1"), 1);
    shard.reset(0);
    EXPECT_EQ(shard.decode_steps(0, 0, one, 0, 24), outputs_of_head(all, 8, h, 16)) << h;
  }
}

}  // namespace
}  // namespace leapquant::conformance
