// SPDX-License-Identifier: Apache-2.0
//
// The C++ layer: owners, results, and lengths of spans, which C pointers do not carry.
#include "leapquant/leapquant.hpp"

#include <gtest/gtest.h>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

class Cpp : public ::testing::Test {
 protected:
  static leapquant::Layout make_layout(int32_t decay) {
    leapquant_shape shape = small_shape();
    shape.decay = decay;
    const leapquant_format format = leapquant::format_from_string("int8").value();
    return leapquant::Layout::create(shape, {&format, 1}).value();
  }

  leapquant::Layout layout = make_layout(LEAPQUANT_DECAY_SCALAR);
  leapquant::Slots slots = leapquant::Slots::create(layout, 1, 1 << 20).value();
  leapquant_pool pool = slots.pool(0).value();
  leapquant::Launch launch = leapquant::Launch::create(layout, 2).value();
  Activations x = Activations(small_shape(), {7, 8}, {0, 0}, 1);
  std::vector<float> output = std::vector<float>(2 * 4 * 12);
  std::vector<int32_t> status = {-1, -1};
  std::vector<int32_t> positions = {0, 0};

  leapquant::Inputs inputs() const {
    leapquant::Inputs in;
    in.q = std::span<const float>(x.q);
    in.k = std::span<const float>(x.k);
    in.v = std::span<const float>(x.v);
    in.log_decay = std::span<const float>(x.log_decay);
    in.beta = std::span<const float>(x.beta);
    in.qk_l2norm = true;
    return in;
  }
};

TEST_F(Cpp, DecodesSavesAndLoads) {
  const leapquant::Slot a = slots.acquire().value();
  const leapquant::Slot b = slots.acquire().value();
  const int32_t states[] = {a.state, b.state};
  const int32_t windows[] = {a.window, b.window};
  const leapquant::Batch batch = {states, windows, positions, status};
  const auto done = leapquant::decode(layout, pool, batch, 1, inputs(), output, launch);
  ASSERT_TRUE(done.ok()) << done.error().sentence;

  const std::vector<std::byte> blob = leapquant::save(layout, pool, a, 1, 5).value();
  EXPECT_EQ(leapquant::inspect(blob).value().position, 1);
  EXPECT_EQ(leapquant::load(layout, pool, b, 5, blob).value(), 1);
  EXPECT_EQ(leapquant::save(layout, pool, b, 1, 5).value(), blob);
  const auto wrong = leapquant::load(layout, pool, b, 6, blob);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().status, LEAPQUANT_FINGERPRINT_MISMATCH);
  EXPECT_NE(wrong.error().sentence.find("fingerprint"), std::string::npos);
  EXPECT_TRUE(slots.release(a.state).ok());
  EXPECT_FALSE(slots.release(a.state).ok());
  EXPECT_EQ(slots.usage().num_sequences, 1);
}

// An array shorter than the batch, a bias of the wrong length: all numbers in the sentence, inputs
// untouched.
TEST_F(Cpp, LengthsAreChecked) {
  const int32_t states[] = {0, 1};
  const std::vector<float> v_before = x.v;
  const auto run = [&](const leapquant::Batch& batch, const leapquant::Inputs& in) {
    return leapquant::decode(layout, pool, batch, 1, in, output, launch);
  };
  const leapquant::Batch batch = {states, {}, positions, status};
  leapquant::Batch one_short = batch;
  one_short.positions = std::span<const int32_t>(positions).first(1);
  EXPECT_EQ(run(one_short, inputs()).error().sentence, "positions has 1 elements, expected 2");
  leapquant::Inputs in = inputs();
  in.v = std::span<const float>(x.v).first(95);
  EXPECT_EQ(run(batch, in).error().sentence, "v has 95 elements, expected 96");

  // Per-channel gates take a bias per channel, 4 heads of 8.
  const leapquant::Layout vector = make_layout(LEAPQUANT_DECAY_VECTOR);
  const std::vector<float> decays(2 * 4 * 8, -1.0f);
  const float four[4] = {0, 0, 0, 0};
  in = inputs();
  in.log_decay = std::span<const float>(decays);
  in.gate = LEAPQUANT_GATE_SOFTPLUS;
  in.a_log = four;
  in.dt_bias = four;
  const auto wrong = leapquant::decode(vector, pool, batch, 1, in, output, launch);
  EXPECT_EQ(wrong.error().sentence, "dt_bias has 4 elements, expected 32");
  EXPECT_EQ(x.v, v_before);
}

TEST_F(Cpp, FormatsAndOwners) {
  EXPECT_EQ(leapquant::format_to_string(leapquant::format_from_string("8:r=4").value()).value(),
            "int8");
  EXPECT_EQ(leapquant::format_from_string("int9").error().status, LEAPQUANT_INVALID_FORMAT);
  const auto mix = leapquant::formats_from_string("mix(int8@1,int4)", 0, 4).value();
  EXPECT_EQ(mix.head_format, (std::vector<uint8_t>{1, 0, 1, 1}));
  const uint8_t three[] = {0, 0, 0};
  const leapquant_format format = leapquant::format_from_string("int8").value();
  EXPECT_EQ(leapquant::Layout::create(small_shape(), {&format, 1}, three).error().sentence,
            "head_format has 3 entries, expected num_v_heads, 4");
  leapquant::Threads threads = leapquant::Threads::create(2).value();
  leapquant::Threads moved = std::move(threads);
  EXPECT_EQ(moved.runner()->num_workers, 2);
  EXPECT_EQ(layout.boundary_bytes(0), layout.sizes().state_bytes / 4);
}

}  // namespace
}  // namespace leapquant_test
