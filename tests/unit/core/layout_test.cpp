// SPDX-License-Identifier: Apache-2.0
//
// Bytes of states and windows, and what makes a shape or format invalid.
#include "core/layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/format.h"
#include "core/packing.h"

namespace leapquant {
namespace {

leapquant_shape shape_of(int32_t k_heads, int32_t v_heads, int32_t k_dim, int32_t v_dim,
                         leapquant_decay decay, int32_t max_tokens = 1) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = k_heads;
  shape.num_v_heads = v_heads;
  shape.head_k_dim = k_dim;
  shape.head_v_dim = v_dim;
  shape.decay = decay;
  shape.delta_rule = 1;
  shape.max_tokens = max_tokens;
  return shape;
}

leapquant_format format_of(const char* text) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  Sentence sentence;
  EXPECT_EQ(parse_format(text, &format, &sentence), LEAPQUANT_OK) << sentence.text;
  return format;
}

Layout layout_of(const leapquant_shape& shape, const char* text) {
  const leapquant_format format = format_of(text);
  Layout layout;
  Sentence sentence;
  EXPECT_EQ(make_layout(shape, &format, 1, nullptr, &layout, &sentence), LEAPQUANT_OK)
      << sentence.text;
  return layout;
}

TEST(Layout, BytesOfThePresets) {
  const std::pair<const char*, int64_t> presets[] = {
      {"int8", 19456},         {"int6", 15360},  {"int4", 13312},
      {"int8+", 18736},        {"int6+", 14768}, {"int4+", 13040},
      {"int4-compact", 11072}, {"bf16", 32768},  {"fp32", 65536}};
  for (const auto& [name, bytes] : presets) {
    const Layout layout = layout_of(shape_of(1, 1, 128, 128, LEAPQUANT_DECAY_SCALAR), name);
    EXPECT_EQ(layout.head(0).bytes, bytes) << name;
    EXPECT_EQ(layout.state_bytes, bytes) << name;
  }
}

// 16 records of FP16 key and correction: 8,192 B; the decays come on top.
TEST(Layout, BytesOfWindows) {
  const auto bytes = [](int32_t k_heads, int32_t v_heads, leapquant_decay decay, const char* text,
                        int32_t max_tokens = 1) {
    return layout_of(shape_of(k_heads, v_heads, 128, 128, decay, max_tokens), text).window.bytes;
  };
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_NONE, "int8"), 8192);
  leapquant_shape constant = shape_of(1, 1, 128, 128, LEAPQUANT_DECAY_CONSTANT);
  const float log_decay = -0.1f;
  constant.constant_log_decay = &log_decay;
  EXPECT_EQ(layout_of(constant, "bf16").window.bytes, 8192);
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_SCALAR, "int8"), 8192 + 64);
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_VECTOR, "int8"), 8192 + 8192);
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_VECTOR, "int8:decay=fp16"), 8192 + 4096);
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_SCALAR, "int8:step"), 0);
  // Two value heads share a key record: a 17th token, one key and two corrections each.
  EXPECT_EQ(bytes(1, 2, LEAPQUANT_DECAY_NONE, "int8"), 17 * (128 + 2 * 128) * 2);
  // Drafts of 8: 16 + 7 tokens alone, 16 + 15 shared.
  EXPECT_EQ(bytes(1, 1, LEAPQUANT_DECAY_NONE, "int8", 8), 23 * 256 * 2);
  EXPECT_EQ(bytes(1, 2, LEAPQUANT_DECAY_NONE, "int8", 8), 31 * 384 * 2);
}

// No part overlaps another, and only the end is padded.
TEST(Layout, PartsLieBehindOneAnother) {
  for (const char* text : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact", "3",
                           "3h:scale=fp16:smooth=none:r=1:i8=1:i4=1"}) {
    for (const auto& [k_dim, v_dim] :
         {std::pair<int32_t, int32_t>{128, 128}, {60, 100}, {4, 256}}) {
      const BoundaryLayout b =
          layout_of(shape_of(1, 1, k_dim, v_dim, LEAPQUANT_DECAY_NONE), text).head(0);
      const leapquant_format& f = b.format;
      const std::vector<std::pair<int64_t, int64_t>> parts = {
          {b.payload, int64_t{k_dim} * packed_bytes(v_dim, f.payload_bits)},
          {b.value_scale, v_dim * (f.value_scale_type == LEAPQUANT_FP16 ? 2 : 4)},
          {b.smoothing, k_dim * (f.smoothing == LEAPQUANT_SMOOTHING_NONE   ? 0
                                 : f.smoothing == LEAPQUANT_SMOOTHING_FP32 ? 4
                                                                           : 1)},
          {b.fp16_keys, 2 * f.num_fp16 * k_dim},
          {b.fp16_values, 2 * f.num_fp16 * v_dim},
          {b.int8_keys, f.num_int8 * k_dim},
          {b.int8_values, f.num_int8 * v_dim},
          {b.int4_keys, f.num_int4 * ((k_dim + 1) / 2)},
          {b.int4_values, f.num_int4 * ((v_dim + 1) / 2)},
          {b.key_scales, 2 * (f.num_int8 + f.num_int4)},
          {b.value_scales, 2 * (f.num_int8 + f.num_int4)}};
      int64_t total = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        total += parts[i].second;
        EXPECT_LE(parts[i].first + parts[i].second, b.bytes) << text;
        for (size_t j = 0; j < i; ++j) {
          if (parts[i].second == 0 || parts[j].second == 0) continue;
          EXPECT_TRUE(parts[i].first + parts[i].second <= parts[j].first ||
                      parts[j].first + parts[j].second <= parts[i].first)
              << text << ": parts " << i << " and " << j << " overlap";
        }
      }
      EXPECT_EQ(b.bytes, (total + 15) / 16 * 16) << text;
    }
  }
}

TEST(Layout, MixedFormatsByHead) {
  const leapquant_format formats[] = {format_of("int8+"), format_of("int4-compact")};
  const uint8_t head_format[] = {1, 0, 1};
  Layout layout;
  Sentence sentence;
  ASSERT_EQ(make_layout(shape_of(1, 3, 128, 128, LEAPQUANT_DECAY_SCALAR), formats, 2, head_format,
                        &layout, &sentence),
            LEAPQUANT_OK)
      << sentence.text;
  EXPECT_EQ(layout.state_bytes, 11072 + 18736 + 11072);
  EXPECT_EQ(std::vector<int64_t>(layout.head_offset.begin(), layout.head_offset.end()),
            (std::vector<int64_t>{0, 11072, 11072 + 18736}));
}

TEST(Layout, ShapesThatCannotBe) {
  const auto status = [](leapquant_shape shape) {
    leapquant_shape normalised;
    Sentence sentence;
    const Status result = normalise_shape(shape, &normalised, &sentence);
    EXPECT_EQ(result != LEAPQUANT_OK, sentence.text[0] != '\0');
    return result;
  };
  const leapquant_shape good = shape_of(2, 4, 64, 64, LEAPQUANT_DECAY_SCALAR);
  EXPECT_EQ(status(good), LEAPQUANT_OK);
  const auto with = [&](auto change) {
    leapquant_shape shape = good;
    change(&shape);
    return status(shape);
  };
  EXPECT_EQ(with([](auto* s) { s->num_v_heads = 5; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->num_k_heads = 0; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->num_k_heads = 8; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->head_k_dim = 6; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->head_v_dim = 260; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->decay = 4; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->sub_steps = 9; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->max_tokens = 9; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->first_k_head = 1; }), LEAPQUANT_INVALID_SHAPE);
  EXPECT_EQ(with([](auto* s) { s->decay = LEAPQUANT_DECAY_CONSTANT; }), LEAPQUANT_NULL_POINTER);
  const float growing[] = {0.0f, 0.0f, 0.5f, 0.0f};
  EXPECT_EQ(with([&](auto* s) {
              s->decay = LEAPQUANT_DECAY_CONSTANT;
              s->constant_log_decay = growing;
            }),
            LEAPQUANT_INVALID_SHAPE);
}

TEST(Layout, FormatsThatCannotBe) {
  const auto with = [](auto change) {
    leapquant_format format = format_of("int8");
    change(&format);
    leapquant_format normalised;
    Sentence sentence;
    const Status result = normalise_format(format, &normalised, &sentence);
    EXPECT_EQ(result != LEAPQUANT_OK, sentence.text[0] != '\0');
    return result;
  };
  EXPECT_EQ(with([](auto*) {}), LEAPQUANT_OK);
  EXPECT_EQ(with([](auto* f) { f->payload_bits = 5; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->num_fp16 = 33; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->num_int8 = 29; }), LEAPQUANT_INVALID_FORMAT);  // 4 + 29
  EXPECT_EQ(with([](auto* f) { f->window = 65; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->window = -1; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->smoothing = 3; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->value_scale_type = LEAPQUANT_BF16; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->fit_rounds = 5; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->scale_steps = 1000.0f; }), LEAPQUANT_INVALID_FORMAT);
  EXPECT_EQ(with([](auto* f) { f->payload_bits = 32; }), LEAPQUANT_INVALID_FORMAT);  // r = 4
  EXPECT_EQ(with([](auto* f) { f->policy = LEAPQUANT_PER_STEP; }), LEAPQUANT_INVALID_FORMAT);
}

}  // namespace
}  // namespace leapquant
