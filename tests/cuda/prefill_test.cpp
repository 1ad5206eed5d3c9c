// SPDX-License-Identifier: Apache-2.0
//
// Prefill by value columns: against the FP64 oracle on the same stored bytes, in more sequences
// than a wave holds, with checkpoints, and after a decode whose records it must take in.
#include <algorithm>

#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Session;
using conformance::TestBackend;

std::vector<leapquant_shape> shapes() {
  return {conformance::make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR),
          conformance::make_shape(1, 2, 64, 96, LEAPQUANT_DECAY_SCALAR, false),
          conformance::make_shape(2, 2, 128, 64, LEAPQUANT_DECAY_VECTOR),
          conformance::make_shape(2, 2, 64, 64, LEAPQUANT_DECAY_NONE)};
}

TestBackend general(const Layout& layout) { return conformance::device_backends(layout).back(); }

// Lengths around the chunk of sixteen tokens, from positions with records in the window.
TEST(Prefill, AgreesWithTheOracle) {
  for (const leapquant_shape& shape : shapes()) {
    for (const char* format : {"int8", "int4+", "fp32"}) {
      SCOPED_TRACE(std::string(format) + ", " + std::to_string(shape.head_k_dim) + ", decay " +
                   std::to_string(shape.decay));
      const Layout layout = conformance::make_test_layout(shape, std::string(format));
      Session session(general(layout), layout, 6);
      const Tokens tokens = conformance::random_tokens(shape, 110, 7601);
      const int32_t lengths[] = {1, 15, 16, 17, 0, 100};
      std::vector<conformance::Row> rows;
      for (int32_t i = 0; i < 6; ++i) {
        session.reset(i);
        session.decode_steps(i, 0, tokens, 0, i, 1);
        rows.push_back({i, i, &tokens, i, lengths[i]});
      }
      session.shadow(true);
      const std::vector<conformance::Outputs> o = session.prefill(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(session.status()[i], LEAPQUANT_OK);
        if (lengths[i] == 0) continue;
        EXPECT_LE(conformance::worst_relative_error(o[i], session.oracle()[i], shape.num_v_heads,
                                                    shape.head_v_dim),
                  1e-5)
            << "length " << lengths[i];
      }
    }
  }
}

// 700 sequences of one head: two waves; all equal to the first, and to one alone.
TEST(Prefill, WavesAreAlike) {
  const leapquant_shape shape = conformance::make_shape(1, 1, 64, 32, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = conformance::make_test_layout(shape, std::string("int8"));
  const Tokens tokens = conformance::random_tokens(shape, 20, 7602);
  Session alone(general(layout), layout, 1);
  alone.reset(0);
  const conformance::Outputs expected = alone.prefill({{0, 0, &tokens, 0, 20}})[0];
  Session many(general(layout), layout, 700);
  std::vector<conformance::Row> rows;
  for (int32_t i = 0; i < 700; ++i) {
    many.reset(i);
    rows.push_back({i, 0, &tokens, 0, 20});
  }
  const std::vector<conformance::Outputs> o = many.prefill(rows);
  for (size_t i = 0; i < o.size(); ++i) ASSERT_EQ(o[i], expected) << i;
  for (int32_t i : {0, 511, 512, 699}) {
    EXPECT_TRUE(many.memory().slot_bytes(i) == alone.memory().slot_bytes(0)) << i;
  }
}

// Checkpoints inside and at the end of two sequences: what they hold is what a prefill up to there
// leaves; `through` continues from them.
TEST(Prefill, Checkpoints) {
  for (const leapquant_shape& shape : shapes()) {
    for (bool through : {false, true}) {
      SCOPED_TRACE(std::to_string(shape.head_k_dim) + ", decay " + std::to_string(shape.decay) +
                   (through ? ", through" : ""));
      const Layout layout = conformance::make_test_layout(shape, std::string("int8"));
      const Tokens tokens = conformance::random_tokens(shape, 60, 7603);
      Session session(general(layout), layout, 10);
      for (int32_t slot : {0, 1, 6, 7, 8}) session.reset(slot);
      const std::vector<leapquant_checkpoint> checkpoints = {
          {0, 10, 2}, {0, 33, 3}, {1, 16, 4}, {1, 60, 5}};
      const std::vector<conformance::Outputs> o =
          session.prefill({{0, 0, &tokens, 0, 50}, {1, 0, &tokens, 0, 60}}, checkpoints, through);
      session.prefill({{6, 0, &tokens, 0, 10}});
      EXPECT_TRUE(session.memory().state_bytes(2) == session.memory().state_bytes(6));
      EXPECT_TRUE(session.memory().state_bytes(5) == session.memory().state_bytes(1));
      EXPECT_EQ(session.memory().base(0)[0], 50);
      EXPECT_EQ(session.memory().base(1)[1], 60);
      EXPECT_EQ(session.memory().base(3)[0], 33);
      if (through) {  // a hit at 33 continues as this run did
        session.copy(3, 7);
        const conformance::Outputs rest = session.prefill({{7, 33, &tokens, 33, 17}})[0];
        EXPECT_TRUE(
            std::equal(rest.begin(), rest.end(), o[0].end() - static_cast<int64_t>(rest.size())));
        EXPECT_TRUE(session.memory().state_bytes(7) == session.memory().state_bytes(0));
      } else {  // the exact state goes on
        const conformance::Outputs whole = session.prefill({{8, 0, &tokens, 0, 50}})[0];
        EXPECT_EQ(whole, o[0]);
        EXPECT_TRUE(session.memory().state_bytes(8) == session.memory().state_bytes(0));
      }
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
