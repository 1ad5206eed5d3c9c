// SPDX-License-Identifier: Apache-2.0
//
// Cases F3 and E4: pools past 2^31 bytes, strides past them, more than 65,535 heads in a call,
// slots as far apart as an engine's pages.
#include <algorithm>

#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

leapquant_shape heads_48() {
  return conformance::make_shape(16, 48, 128, 128, LEAPQUANT_DECAY_SCALAR, true, 1, 1);
}

// Decodes 20 tokens in a slot: one fold and four records.
std::vector<float> run(DeviceLayer* layer, int32_t slot, const Tokens& tokens) {
  std::vector<float> all;
  layer->reset({slot});
  for (int32_t t = 0; t < 20; ++t) {
    const std::vector<float> o = layer->decode({{slot, t, 1}}, conformance::slice(tokens, t, 1));
    EXPECT_EQ(layer->status(1)[0], LEAPQUANT_OK);
    all.insert(all.end(), o.begin(), o.end());
  }
  return all;
}

TEST(LargePools, SlotsPast31Bits) {
  const leapquant_shape shape = heads_48();
  const Tokens tokens = conformance::random_tokens(shape, 20, 7101);
  DeviceLayer small(shape, "int8", 1, 1);
  const std::vector<float> expected = run(&small, 0, tokens);

  // 2,732 slots of 48 x 19,456 bytes: 2.55 GB; slot 2,731 begins past 2^31 elements and bytes.
  DeviceLayer large(shape, "int8", 2732, 1);
  std::vector<std::vector<uint8_t>> before;
  for (int32_t slot = 0; slot < 11; ++slot) before.push_back(large.slot_bytes(slot));
  EXPECT_EQ(run(&large, 2731, tokens), expected);
  EXPECT_TRUE(large.slot_bytes(2731) == small.slot_bytes(0));
  for (int32_t slot = 0; slot < 11; ++slot) {
    EXPECT_TRUE(large.slot_bytes(slot) == before[static_cast<size_t>(slot)]) << slot;
  }
}

TEST(LargePools, StridesPast31Bits) {
  const leapquant_shape shape = heads_48();
  const Tokens tokens = conformance::random_tokens(shape, 20, 7102);
  DeviceLayer small(shape, "int8", 1, 1);
  const std::vector<float> expected = run(&small, 0, tokens);
  // Slot 2 begins past 2^31 bytes, in states and in windows.
  DeviceLayer strided(shape, "int8", 3, 1, int64_t{1} << 30, int64_t{1} << 30);
  const std::vector<uint8_t> first = strided.slot_bytes(0);
  EXPECT_EQ(run(&strided, 2, tokens), expected);
  EXPECT_TRUE(strided.slot_bytes(2) == small.slot_bytes(0));
  EXPECT_TRUE(strided.slot_bytes(0) == first);
}

// E4: a pool of 64 slots, 8 heads, a page of 135,168 elements of four bytes.
TEST(LargePools, PagesOfAnEngine) {
  const leapquant_shape shape = conformance::make_shape(8, 8, 128, 128, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = conformance::random_tokens(shape, 20, 7103);
  for (const char* format : {"int8", "fp32"}) {
    DeviceLayer packed(shape, format, 64, 1);
    const int64_t gap = 4 * 135168 - packed.layout().sizes().state_bytes;
    ASSERT_GT(gap, 0);
    DeviceLayer paged(shape, format, 64, 1, gap);
    for (int32_t slot : {0, 63}) {
      EXPECT_EQ(run(&packed, slot, tokens), run(&paged, slot, tokens)) << format;
      EXPECT_TRUE(packed.slot_bytes(slot) == paged.slot_bytes(slot)) << format;
      for (uint8_t byte : paged.gap_bytes(slot)) ASSERT_EQ(byte, 0xff) << format;
    }
  }
}

// More heads in a call than a grid's second axis can have, all sequences alike; and a layer of more
// heads than a launch has tables for, in two formats with constant decays.
TEST(LargePools, ManyHeads) {
  const leapquant_shape shape =
      conformance::make_shape(48, 48, 16, 16, LEAPQUANT_DECAY_SCALAR, true, 1, 1);
  constexpr int32_t kBatch = 1400;  // 67,200 heads
  const Tokens tokens = conformance::random_tokens(shape, 18, 7104);
  DeviceLayer layer(shape, "int8+", kBatch, kBatch);
  std::vector<int32_t> slots;
  for (int32_t i = 0; i < kBatch; ++i) slots.push_back(kBatch - 1 - i);
  layer.reset(slots);
  const std::vector<const Tokens*> sequences(kBatch, &tokens);
  for (int32_t t = 0; t < 18; ++t) {
    std::vector<Row> rows;
    for (int32_t slot : slots) rows.push_back({slot, t, 1});
    const std::vector<float> o =
        layer.decode(rows, tokens_at(sequences, std::vector<int32_t>(kBatch, t)));
    const size_t size = layer.token_size();
    for (size_t i = 1; i < kBatch; ++i) {
      ASSERT_TRUE(std::equal(o.begin(), o.begin() + static_cast<int64_t>(size),
                             o.begin() + static_cast<int64_t>(i * size)))
          << "token " << t << ", row " << i;
    }
  }
  EXPECT_TRUE(layer.slot_bytes(0) == layer.slot_bytes(kBatch - 1));
}

TEST(LargePools, LayersOfManyHeadsAndFormats) {
  leapquant_shape wide = conformance::make_shape(600, 600, 16, 16, LEAPQUANT_DECAY_CONSTANT);
  std::vector<float> decays;
  for (int32_t h = 0; h < 600; ++h) decays.push_back(-0.001f * static_cast<float>(h % 97));
  wide.constant_log_decay = decays.data();
  const std::string mix = "mix(int4+@0-255&300,int8)";
  const Tokens tokens = conformance::random_tokens(wide, 20, 7105);
  DeviceLayer layer(wide, mix, 1, 1);
  const std::vector<float> all = run(&layer, 0, tokens);
  // Heads 256, 300 and 599 as layers of their own.
  for (int32_t h : {0, 255, 256, 300, 599}) {
    leapquant_shape one = conformance::make_shape(1, 1, 16, 16, LEAPQUANT_DECAY_CONSTANT);
    one.constant_log_decay = &decays[static_cast<size_t>(h)];
    Tokens own;
    own.shape = one;
    own.count = tokens.count;
    for (int32_t t = 0; t < tokens.count; ++t) {
      const auto take = [&](const std::vector<float>& from, std::vector<float>* to, int32_t width) {
        const auto at = from.begin() + (int64_t{t} * 600 + h) * width;
        to->insert(to->end(), at, at + width);
      };
      take(tokens.q, &own.q, 16);
      take(tokens.k, &own.k, 16);
      take(tokens.v, &own.v, 16);
      if (!tokens.beta.empty()) take(tokens.beta, &own.beta, 1);
    }
    DeviceLayer alone(one, h < 256 || h == 300 ? "int4+" : "int8", 1, 1);
    const std::vector<float> expected = run(&alone, 0, own);
    for (size_t t = 0; t < 20; ++t) {
      for (size_t j = 0; j < 16; ++j) {
        ASSERT_EQ(all[(t * 600 + static_cast<size_t>(h)) * 16 + j], expected[t * 16 + j])
            << "head " << h << ", token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
