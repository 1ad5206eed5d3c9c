// SPDX-License-Identifier: Apache-2.0
//
// Saved states: what is saved comes back bit for bit and goes on bit for bit; what has changed in
// any way is refused with the right status and leaves the slot alone.
#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

using Blob = std::vector<std::byte>;

constexpr const char* kFormats[] = {"int8",  "int6", "int4",          "int8+",
                                    "int4+", "bf16", "int4-compact",  "mix(int8+@0&2,int4-compact)",
                                    "3:r=2", "fp32", "int8:stagger=1"};

class SavedStates : public ::testing::TestWithParam<const char*> {};

// At every fill of the window: the blob has the predicted size, equals itself, and a run that
// continues from it in another slot of another pool, whose ring is larger, equals the run itself.
TEST_P(SavedStates, GoOnBitForBit) {
  SmallLayer source(GetParam());
  leapquant_shape roomier = small_shape();
  roomier.max_tokens = 8;
  for (const int32_t tokens : {1, 7, 15, 16, 17, 35}) {
    ASSERT_EQ(source.reset({0}), LEAPQUANT_OK);
    source.feed(0, 0, tokens);
    const Blob blob = source.save(0, tokens);
    EXPECT_EQ(blob, source.save(0, tokens)) << "the same state, the same bytes";

    SmallLayer target(GetParam(), roomier);
    int32_t position = -1;
    ASSERT_EQ(target.load(2, blob, &position), LEAPQUANT_OK) << leapquant_last_error();
    ASSERT_EQ(position, tokens);
    EXPECT_EQ(target.save(2, tokens), blob) << "after " << tokens;
    EXPECT_EQ(target.feed(2, tokens, 20), source.feed(0, tokens, 20)) << "after " << tokens;
    EXPECT_EQ(target.save(2, tokens + 20), source.save(0, tokens + 20)) << "after " << tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SavedStates, ::testing::ValuesIn(kFormats),
                         [](const auto& test) { return "format_" + std::to_string(test.index); });

TEST(SavedStates, TheSameFileFiftyTimes) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  layer.feed(0, 0, 21);
  const Blob blob = layer.save(0, 21);
  std::vector<float> first;
  for (int32_t i = 0; i < 50; ++i) {
    int32_t position = 0;
    ASSERT_EQ(layer.load(1, blob, &position), LEAPQUANT_OK);
    const std::vector<float> outputs = layer.feed(1, position, 12);
    if (i == 0) first = outputs;
    ASSERT_EQ(outputs, first) << "replay " << i;
  }
}

TEST(SavedStates, SizeIsHeaderStatesAndKeptRecords) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  layer.feed(0, 0, 5);
  // 128 prefix, one format of 64, per value head base 4, health 16, format index 1; padded.
  const size_t header = (128 + 64 + 4 * (4 + 16 + 1) + 15) / 16 * 16;
  // Per token: 2 key heads of 8 FP16, 4 value heads of 12 FP16 and one FP32 log decay.
  const auto window = [](size_t tokens) {
    return (tokens * (2 * 8 * 2 + 4 * (12 * 2 + 4)) + 15) / 16 * 16;
  };
  const size_t states = static_cast<size_t>(layer.sizes.state_bytes);
  EXPECT_EQ(layer.save(0, 5).size(), header + states + window(5));
  EXPECT_EQ(layer.save(0, 3).size(), header + states + window(3)) << "drafts taken back first";
  EXPECT_EQ(static_cast<size_t>(layer.sizes.saved_bytes),
            header + states + window(static_cast<size_t>(layer.sizes.ring_tokens)));
}

TEST(SavedStates, RollBackThenSaveEqualsNeverDrafted) {
  SmallLayer drafted;
  SmallLayer plain;
  for (SmallLayer* layer : {&drafted, &plain}) {
    ASSERT_EQ(layer->reset({0}), LEAPQUANT_OK);
    layer->feed(0, 0, 9);
  }
  drafted.feed(0, 9, 4, 99);
  EXPECT_EQ(drafted.save(0, 9), plain.save(0, 9));
}

// One bit flipped anywhere: magic, version and checksum each say their own, and nothing changes.
TEST(SavedStates, EveryFlippedBitIsSeen) {
  SmallLayer layer("int4-compact");
  ASSERT_EQ(layer.reset({0, 1}), LEAPQUANT_OK);
  layer.feed(0, 0, 18);
  const Blob blob = layer.save(0, 18);
  const auto before = layer.snapshot();
  for (size_t i = 0; i < blob.size(); ++i) {
    Blob flipped = blob;
    flipped[i] ^= static_cast<std::byte>(1u << (i % 8));
    const leapquant_status expected = i < 8    ? LEAPQUANT_BAD_MAGIC
                                      : i < 12 ? LEAPQUANT_VERSION_MISMATCH
                                               : LEAPQUANT_CHECKSUM_MISMATCH;
    int32_t position = -1;
    ASSERT_EQ(layer.load(1, flipped, &position), expected) << "byte " << i;
    ASSERT_EQ(position, -1);
  }
  EXPECT_EQ(layer.snapshot(), before);
}

TEST(SavedStates, EveryCutIsSeen) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0, 1}), LEAPQUANT_OK);
  layer.feed(0, 0, 18);
  const Blob blob = layer.save(0, 18);
  const auto before = layer.snapshot();
  for (size_t size = 0; size < blob.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read past its end.
    const Blob cut(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(size));
    int32_t position = -1;
    const std::byte nothing{};
    ASSERT_EQ(leapquant_load(layer.layout, &layer.pool, 1, 1, 42, size == 0 ? &nothing : cut.data(),
                             size, &position),
              LEAPQUANT_TRUNCATED)
        << size << " bytes";
  }
  EXPECT_EQ(layer.snapshot(), before);
}

TEST(SavedStates, AnEmptyEntryIsAMiss) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  int32_t position = -1;
  for (const size_t bytes : {1, 100, 128, 5000}) {
    EXPECT_REFUSED(layer.load(0, Blob(bytes), &position), LEAPQUANT_EMPTY_ENTRY, "never written");
  }
}

TEST(SavedStates, BytesBehindABlobAreNotRead) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  layer.feed(0, 0, 4);
  Blob blob = layer.save(0, 4);
  const size_t bytes = blob.size();
  blob.resize(bytes + 100, std::byte{0x5a});
  int32_t position = -1;
  EXPECT_EQ(layer.load(1, blob, &position), LEAPQUANT_OK) << leapquant_last_error();
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  ASSERT_EQ(leapquant_inspect(blob.data(), blob.size(), &info, nullptr, 0), LEAPQUANT_OK);
  EXPECT_EQ(info.blob_bytes, static_cast<int64_t>(bytes)) << "where the next one starts";
}

// Another shape, format or model: refused, slot unchanged.
TEST(SavedStates, MismatchesAreRefused) {
  SmallLayer source("int8");
  ASSERT_EQ(source.reset({0}), LEAPQUANT_OK);
  source.feed(0, 0, 4);
  const Blob blob = source.save(0, 4);
  int32_t position = -1;
  EXPECT_REFUSED(source.load(1, blob, &position, 43), LEAPQUANT_FINGERPRINT_MISMATCH,
                 "000000000000002a, expected 000000000000002b");

  const auto refused = [&](const char* format, void (*change)(leapquant_shape&),
                           leapquant_status expected, const char* part) {
    leapquant_shape shape = small_shape();
    change(shape);
    SmallLayer other(format, shape);
    const auto before = other.snapshot();
    EXPECT_REFUSED(other.load(1, blob, &position), expected, part);
    EXPECT_EQ(other.snapshot(), before);
  };
  const auto same = [](leapquant_shape&) {};
  refused("int6", same, LEAPQUANT_FORMAT_MISMATCH,
          "saved in format 'int8', but the layout has 'int6'");
  refused("int8:window=8", same, LEAPQUANT_FORMAT_MISMATCH, "'int8:window=8'");
  refused("int8+", same, LEAPQUANT_FORMAT_MISMATCH, "value head 0");
  refused("mix(int8@0-2,int4)", same, LEAPQUANT_FORMAT_MISMATCH, "value head 3");
  refused(
      "int8", [](auto& s) { s.num_v_heads = 8; }, LEAPQUANT_SHAPE_MISMATCH,
      "num_v_heads 4, but the layout has 8");
  refused("int8", [](auto& s) { s.head_k_dim = 12; }, LEAPQUANT_SHAPE_MISMATCH, "head_k_dim 8");
  refused("int8", [](auto& s) { s.delta_rule = 0; }, LEAPQUANT_SHAPE_MISMATCH, "delta_rule 1");
  refused(
      "int8", [](auto& s) { s.decay = LEAPQUANT_DECAY_VECTOR; }, LEAPQUANT_SHAPE_MISMATCH,
      "decay 2, but the layout has 3");
  refused(
      "int8", [](auto& s) { s.total_k_heads = 4; }, LEAPQUANT_SHAPE_MISMATCH, "total_k_heads 2");

  EXPECT_EQ(source.load(1, blob, &position), LEAPQUANT_OK);
  SmallLayer other_fit("int8:fit=fixed:rounds=4");
  EXPECT_EQ(other_fit.load(1, blob, &position), LEAPQUANT_OK)
      << "the encoder's choices are no part of the format: " << leapquant_last_error();
}

TEST(SavedStates, ARingThatIsTooSmallIsRefused) {
  SmallLayer source;  // max_tokens 4, shared keys: the ring holds 16 + 2 * 4 - 1 = 23
  ASSERT_EQ(source.reset({0}), LEAPQUANT_OK);
  source.feed(0, 0, 15);
  const auto args = source.decode_args({0}, {15}, 4);
  ASSERT_EQ(source.run(args), LEAPQUANT_OK);
  const Blob blob = source.save(0, 19);
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  ASSERT_EQ(leapquant_inspect(blob.data(), blob.size(), &info, nullptr, 0), LEAPQUANT_OK);
  EXPECT_EQ(info.num_records, 19);
  EXPECT_EQ(info.shape.max_tokens, 2) << "16 + 2 * 2 - 1 = 19";
  leapquant_shape shape = small_shape();
  shape.max_tokens = 1;
  SmallLayer tight("int8", shape);
  int32_t position = -1;
  EXPECT_REFUSED(tight.load(0, blob, &position), LEAPQUANT_SHAPE_MISMATCH,
                 "19 tokens in its window, but the layout's ring holds 17");
  shape.max_tokens = 2;
  SmallLayer enough("int8", shape);
  EXPECT_EQ(enough.load(0, blob, &position), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_REFUSED(source.load(5, blob, &position), LEAPQUANT_POSITION_PAST_WINDOW,
                 "window_slot is negative");
}

TEST(SavedStates, SaveArguments) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0, 5}), LEAPQUANT_OK);
  layer.feed(0, 0, 4);
  Blob buffer(64);
  size_t written = 7;
  const auto save = [&](int32_t slot, int32_t window, int32_t position, void* data) {
    return leapquant_save(layer.layout, &layer.pool, slot, window, position, 0, data, buffer.size(),
                          &written);
  };
  EXPECT_REFUSED(save(6, 0, 4, buffer.data()), LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slot is 6");
  EXPECT_REFUSED(save(-1, 0, 4, buffer.data()), LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slot is -1");
  EXPECT_REFUSED(save(0, 4, 4, buffer.data()), LEAPQUANT_SLOT_OUT_OF_RANGE, "window_slot is 4");
  EXPECT_REFUSED(save(0, 0, 4, nullptr), LEAPQUANT_NULL_POINTER, "buffer is null");
  EXPECT_REFUSED(save(0, 0, 4, buffer.data()), LEAPQUANT_BUFFER_TOO_SMALL, "bytes is 64");
  EXPECT_REFUSED(save(0, -1, 4, buffer.data()), LEAPQUANT_POSITION_PAST_WINDOW, "window_slot -1");
  EXPECT_REFUSED(save(0, 0, 99, buffer.data()), LEAPQUANT_POSITION_PAST_WINDOW, "position is 99");
  ASSERT_EQ(layer.reset({1}, 10), LEAPQUANT_OK);
  EXPECT_REFUSED(save(1, 1, 9, buffer.data()), LEAPQUANT_POSITION_BELOW_BASE, "position is 9");
  EXPECT_EQ(written, 7u);
  int32_t position = 0;
  EXPECT_EQ(layer.load(0, layer.save(5, 0), &position), LEAPQUANT_OK) << "a slot without window";
}

TEST(SavedStates, InspectTellsShapeAndFormats) {
  SmallLayer layer("mix(int8+@0&2,int4-compact)");
  ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
  layer.feed(0, 0, 20);
  const Blob blob = layer.save(0, 20, 0xfeedu);
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  std::vector<uint8_t> heads(4);
  ASSERT_EQ(leapquant_inspect(blob.data(), blob.size(), &info, heads.data(), 4), LEAPQUANT_OK);
  EXPECT_EQ(info.version, 1u);
  EXPECT_EQ(info.position, 20);
  EXPECT_EQ(info.num_records, 4) << "folded at 16";
  EXPECT_EQ(info.fingerprint, 0xfeedu);
  EXPECT_EQ(info.shape.num_v_heads, 4);
  EXPECT_EQ(info.shape.constant_log_decay, nullptr);
  ASSERT_EQ(info.num_formats, 2);
  EXPECT_EQ(info.formats[0].num_int4, 7);
  EXPECT_EQ(info.formats[1].levels, LEAPQUANT_HALF_INTEGERS);
  EXPECT_EQ(heads, (std::vector<uint8_t>{0, 1, 0, 1}));
  EXPECT_REFUSED(leapquant_inspect(blob.data(), blob.size(), &info, heads.data(), 3),
                 LEAPQUANT_BUFFER_TOO_SMALL, "head_format_capacity is 3");
}

TEST(SavedStates, ConstantDecaysAreComparedToo) {
  const float decays[4] = {-0.1f, -0.2f, -0.3f, -0.4f};
  leapquant_shape shape = small_shape();
  shape.decay = LEAPQUANT_DECAY_CONSTANT;
  shape.constant_log_decay = decays;
  SmallLayer source("int8", shape);
  ASSERT_EQ(source.reset({0}), LEAPQUANT_OK);
  source.feed(0, 0, 3);
  const Blob blob = source.save(0, 3);
  int32_t position = 0;
  EXPECT_EQ(source.load(1, blob, &position), LEAPQUANT_OK) << leapquant_last_error();
  const float others[4] = {-0.1f, -0.2f, -0.3f, -0.5f};
  shape.constant_log_decay = others;
  SmallLayer other("int8", shape);
  EXPECT_REFUSED(other.load(1, blob, &position), LEAPQUANT_SHAPE_MISMATCH, "for value head 3");
}

}  // namespace
}  // namespace leapquant_test
