// SPDX-License-Identifier: Apache-2.0
//
// Every status value has a sentence of its own, and each that a caller can provoke is met by a
// test: those of shapes, formats and layouts here; README.md of this folder says where the others
// are.
#include <set>
#include <thread>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

constexpr leapquant_status kAll[] = {LEAPQUANT_OK,
                                     LEAPQUANT_INVALID_ARGUMENT,
                                     LEAPQUANT_NULL_POINTER,
                                     LEAPQUANT_INVALID_SHAPE,
                                     LEAPQUANT_INVALID_FORMAT,
                                     LEAPQUANT_INVALID_STRIDE,
                                     LEAPQUANT_BUFFER_TOO_SMALL,
                                     LEAPQUANT_SLOT_OUT_OF_RANGE,
                                     LEAPQUANT_SLOT_REPEATED,
                                     LEAPQUANT_POSITION_BELOW_BASE,
                                     LEAPQUANT_POSITION_PAST_WINDOW,
                                     LEAPQUANT_UNSUPPORTED,
                                     LEAPQUANT_NON_FINITE_INPUT,
                                     LEAPQUANT_POSITIVE_LOG_DECAY,
                                     LEAPQUANT_TRUNCATED,
                                     LEAPQUANT_BAD_MAGIC,
                                     LEAPQUANT_VERSION_MISMATCH,
                                     LEAPQUANT_CHECKSUM_MISMATCH,
                                     LEAPQUANT_SHAPE_MISMATCH,
                                     LEAPQUANT_FORMAT_MISMATCH,
                                     LEAPQUANT_FINGERPRINT_MISMATCH,
                                     LEAPQUANT_EMPTY_ENTRY,
                                     LEAPQUANT_CORRUPT,
                                     LEAPQUANT_POOL_FULL,
                                     LEAPQUANT_OUT_OF_MEMORY,
                                     LEAPQUANT_DEVICE_UNAVAILABLE,
                                     LEAPQUANT_INTERNAL};

TEST(Status, EveryValueHasItsOwnSentence) {
  std::set<std::string> sentences;
  for (const leapquant_status status : kAll) {
    const std::string sentence = leapquant_status_string(status);
    EXPECT_TRUE(sentence.ends_with(".")) << sentence;
    EXPECT_TRUE(sentences.insert(sentence).second) << sentence;
  }
  EXPECT_TRUE(sentences.insert(leapquant_status_string(static_cast<leapquant_status>(63))).second);
}

TEST(Status, TheSentenceBelongsToTheThread) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  ASSERT_NE(leapquant_format_from_string("nonsense", &format), LEAPQUANT_OK);
  std::string elsewhere = "not run";
  std::thread([&] { elsewhere = leapquant_last_error(); }).join();
  EXPECT_EQ(elsewhere, "") << "nothing has failed there";
  EXPECT_NE(std::string(leapquant_last_error()), "");
}

TEST(Status, ShapesThatNoStateHas) {
  const leapquant_format format = [] {
    leapquant_format f = LEAPQUANT_INIT(leapquant_format);
    EXPECT_EQ(leapquant_format_from_string("int8", &f), LEAPQUANT_OK);
    return f;
  }();
  const auto create = [&](void (*change)(leapquant_shape&)) {
    leapquant_shape shape = small_shape();
    change(shape);
    leapquant_layout* layout = nullptr;
    const leapquant_status s =
        leapquant_layout_create(&shape, &format, 1, nullptr, LEAPQUANT_CPU, &layout);
    EXPECT_EQ(layout == nullptr, s != LEAPQUANT_OK);
    leapquant_layout_destroy(layout);
    return s;
  };
  EXPECT_REFUSED(create([](auto& s) { s.num_k_heads = 3; }), LEAPQUANT_INVALID_SHAPE,
                 "num_v_heads is 4, expected a multiple of num_k_heads, 3");
  EXPECT_REFUSED(create([](auto& s) { s.num_k_heads = 8; }), LEAPQUANT_INVALID_SHAPE,
                 "expected a multiple of num_k_heads, 8");
  EXPECT_REFUSED(create([](auto& s) { s.num_k_heads = 0; }), LEAPQUANT_INVALID_SHAPE,
                 "num_k_heads is 0");
  EXPECT_REFUSED(create([](auto& s) { s.head_k_dim = 6; }), LEAPQUANT_INVALID_SHAPE,
                 "head_k_dim is 6, expected a multiple of 4 from 4 to 256");
  EXPECT_REFUSED(create([](auto& s) { s.head_v_dim = 260; }), LEAPQUANT_INVALID_SHAPE,
                 "head_v_dim is 260");
  EXPECT_REFUSED(create([](auto& s) { s.sub_steps = 9; }), LEAPQUANT_INVALID_SHAPE,
                 "sub_steps is 9");
  EXPECT_REFUSED(create([](auto& s) { s.max_tokens = 9; }), LEAPQUANT_INVALID_SHAPE,
                 "max_tokens is 9");
  EXPECT_REFUSED(create([](auto& s) { s.decay = 4; }), LEAPQUANT_INVALID_SHAPE, "decay is 4");
  EXPECT_REFUSED(create([](auto& s) { s.decay = LEAPQUANT_DECAY_CONSTANT; }),
                 LEAPQUANT_NULL_POINTER, "constant_log_decay is null");
  EXPECT_REFUSED(create([](auto& s) { s.first_k_head = 1; }), LEAPQUANT_INVALID_SHAPE,
                 "first_k_head is 1");
  EXPECT_REFUSED(create([](auto& s) { s.reserved[0] = 1; }), LEAPQUANT_INVALID_SHAPE,
                 "shape.reserved[0] is 1");
  EXPECT_REFUSED(create([](auto& s) { s.struct_size = 4; }), LEAPQUANT_INVALID_ARGUMENT,
                 "shape.struct_size is 4");
  // An older caller: the shape ends before tensor parallelism was known.
  EXPECT_EQ(create([](auto& s) { s.struct_size = offsetof(leapquant_shape, first_k_head); }),
            LEAPQUANT_OK)
      << leapquant_last_error();
}

TEST(Status, FormatsAndTheirText) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  const leapquant_format before = format;
  EXPECT_REFUSED(leapquant_format_from_string("int5", &format), LEAPQUANT_INVALID_FORMAT,
                 "allowed: fp32, bf16, int8, int6, int4, int8+");
  EXPECT_REFUSED(leapquant_format_from_string("int8:bits=4", &format), LEAPQUANT_INVALID_FORMAT,
                 "'bits=4' is not known here; allowed: step, r=");
  EXPECT_REFUSED(leapquant_format_from_string("int8:window=65", &format), LEAPQUANT_INVALID_FORMAT,
                 "window is 65, expected 1 to 64");
  EXPECT_REFUSED(leapquant_format_from_string("int8:r=33", &format), LEAPQUANT_INVALID_FORMAT,
                 "num_fp16 (r=) is 33, expected 0 to 32");
  EXPECT_REFUSED(leapquant_format_from_string("int8:window=0", &format), LEAPQUANT_INVALID_FORMAT,
                 "window=1..64");
  EXPECT_REFUSED(leapquant_format_from_string("int8:rounds=5", &format), LEAPQUANT_INVALID_FORMAT,
                 "fit_rounds (rounds=) is 5, expected 0 to 4");
  EXPECT_REFUSED(leapquant_format_from_string("fp32:r=1", &format), LEAPQUANT_INVALID_FORMAT,
                 "payload_bits is 32");
  EXPECT_REFUSED(leapquant_format_from_string("", &format), LEAPQUANT_INVALID_FORMAT, "''");
  EXPECT_REFUSED(leapquant_format_from_string(nullptr, &format), LEAPQUANT_NULL_POINTER, "text");
  EXPECT_EQ(std::memcmp(&format, &before, sizeof(format)), 0) << "not changed on failure";

  char text[128];
  for (int32_t i = 0; leapquant_preset_name(i) != nullptr; ++i) {
    ASSERT_EQ(leapquant_format_from_string(leapquant_preset_name(i), &format), LEAPQUANT_OK);
    ASSERT_EQ(leapquant_format_to_string(&format, text, sizeof(text)), LEAPQUANT_OK);
    EXPECT_STREQ(text, leapquant_preset_name(i));
  }
  EXPECT_REFUSED(leapquant_format_to_string(&format, text, 3), LEAPQUANT_BUFFER_TOO_SMALL,
                 "bytes is 3, but the text 'int4-compact' needs 13");
  format.payload_bits = 5;
  EXPECT_REFUSED(leapquant_format_to_string(&format, text, 128), LEAPQUANT_INVALID_FORMAT,
                 "payload_bits is 5");
  // What a file or a flag may hold, against what is allowed: the sentence lists it.
  int32_t count = 0;
  uint8_t heads[4];
  leapquant_format formats[2];
  EXPECT_REFUSED(
      leapquant_formats_from_string("mix(int8@0-9,int4)", 0, 4, formats, 2, &count, heads),
      LEAPQUANT_INVALID_ARGUMENT, "'0-9' are not ranges within 0-3");
  EXPECT_REFUSED(leapquant_formats_from_string("mix(int8@0-1)", 0, 4, formats, 2, &count, heads),
                 LEAPQUANT_INVALID_FORMAT, "value head 2 of layer 0 has no format");
  EXPECT_REFUSED(
      leapquant_formats_from_string("mix(int8@0,int6@1,int4)", 0, 4, formats, 2, &count, heads),
      LEAPQUANT_BUFFER_TOO_SMALL, "more than 2 distinct formats");
}

TEST(Status, LayoutArguments) {
  const leapquant_shape shape = small_shape();
  leapquant_format formats[2] = {LEAPQUANT_INIT(leapquant_format),
                                 LEAPQUANT_INIT(leapquant_format)};
  ASSERT_EQ(leapquant_format_from_string("int8", &formats[0]), LEAPQUANT_OK);
  ASSERT_EQ(leapquant_format_from_string("int4:window=8", &formats[1]), LEAPQUANT_OK);
  leapquant_layout* layout = nullptr;
  const auto create = [&](int32_t num_formats, const uint8_t* heads, leapquant_device device) {
    return leapquant_layout_create(&shape, formats, num_formats, heads, device, &layout);
  };
  // A library built without CUDA and a machine without a device both say so; with both it is made.
  const leapquant_status on_device = create(1, nullptr, LEAPQUANT_CUDA);
  if (on_device == LEAPQUANT_OK) {
    leapquant_layout_destroy(layout);
    layout = nullptr;
  } else {
    EXPECT_REFUSED(on_device, LEAPQUANT_DEVICE_UNAVAILABLE, "CUDA");
  }
  EXPECT_REFUSED(create(1, nullptr, static_cast<leapquant_device>(7)), LEAPQUANT_INVALID_ARGUMENT,
                 "device is 7");
  EXPECT_REFUSED(create(0, nullptr, LEAPQUANT_CPU), LEAPQUANT_INVALID_ARGUMENT, "num_formats is 0");
  EXPECT_REFUSED(create(9, nullptr, LEAPQUANT_CPU), LEAPQUANT_INVALID_ARGUMENT, "num_formats is 9");
  EXPECT_REFUSED(create(2, nullptr, LEAPQUANT_CPU), LEAPQUANT_INVALID_FORMAT,
                 "formats[1] differs from formats[0] in policy, window");
  const uint8_t heads[4] = {0, 0, 1, 0};
  EXPECT_REFUSED(create(1, heads, LEAPQUANT_CPU), LEAPQUANT_INVALID_ARGUMENT,
                 "head_format[2] is 1");
  formats[0].reserved[4] = 3;
  EXPECT_REFUSED(create(1, nullptr, LEAPQUANT_CPU), LEAPQUANT_INVALID_FORMAT,
                 "formats[0].reserved[4] is 3");
  EXPECT_EQ(layout, nullptr);
  EXPECT_EQ(leapquant_workspace_bytes(nullptr, 1, 1), 0u);
  EXPECT_EQ(leapquant_boundary_bytes(nullptr, 0), 0);
  EXPECT_STREQ(leapquant_layout_backend(nullptr), "");
  leapquant_layout_destroy(nullptr);
}

TEST(Status, BoundariesArePureArithmetic) {
  SmallLayer layer("int8:stagger=1");  // two key heads: boundaries at 0 and 8 modulo 16
  EXPECT_EQ(leapquant_last_boundary(layer.layout, 0, 31), 16);
  EXPECT_EQ(leapquant_last_boundary(layer.layout, 1, 32), 32);
  EXPECT_EQ(leapquant_last_boundary(layer.layout, 2, 31), 24);
  EXPECT_EQ(leapquant_last_boundary(layer.layout, 3, 7), -8);
  EXPECT_EQ(leapquant_last_boundary(layer.layout, 4, 7), INT32_MIN);
  EXPECT_EQ(leapquant_workspace_bytes(layer.layout, 0, 1), 0u);
  EXPECT_EQ(leapquant_workspace_bytes(layer.layout, 1, -1), 0u);
}

}  // namespace
}  // namespace leapquant_test
