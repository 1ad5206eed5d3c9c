// SPDX-License-Identifier: Apache-2.0
//
// Forks: a slot copied with its ring at any fill goes on as the original does, bit for bit, after
// the original is gone.
#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

TEST(Copy, ContinuesFromEveryFill) {
  for (const char* format : {"int8", "int4+", "fp32", "int8:step"}) {
    SmallLayer layer(format);
    SmallLayer witness(format);
    for (int32_t fill = 0; fill <= 17; ++fill) {
      ASSERT_EQ(layer.reset({0, 1}), LEAPQUANT_OK);
      ASSERT_EQ(witness.reset({3}), LEAPQUANT_OK);
      layer.feed(0, 0, fill);
      witness.feed(3, 0, fill);
      const int32_t from = 0;
      const int32_t to = 1;
      ASSERT_EQ(
          leapquant_copy(layer.layout, &layer.pool, 1, &from, nullptr, &to, nullptr, &layer.launch),
          LEAPQUANT_OK)
          << leapquant_last_error();
      ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);  // the source is freed first
      EXPECT_EQ(layer.feed(1, fill, 20), witness.feed(3, fill, 20)) << format << " fill " << fill;
      EXPECT_EQ(layer.save(1, fill + 20), witness.save(3, fill + 20)) << format << " fill " << fill;
    }
  }
}

// A raw copy with its ring is a checkpoint for every position from base to its last record.
TEST(Copy, IsACheckpointForEveryPositionItCovers) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0, 1, 2}), LEAPQUANT_OK);
  layer.feed(0, 0, 30);
  const int32_t from = 0;
  const int32_t to = 1;
  for (int32_t position = 16; position <= 30; ++position) {
    ASSERT_EQ(
        leapquant_copy(layer.layout, &layer.pool, 1, &from, nullptr, &to, nullptr, &layer.launch),
        LEAPQUANT_OK);
    ASSERT_EQ(layer.reset({2}), LEAPQUANT_OK);
    layer.feed(2, 0, position);
    EXPECT_EQ(layer.feed(1, position, 20, 11), layer.feed(2, position, 20, 11)) << position;
  }
}

// A prefill checkpoint without window, exported and folded with window slot -1.
TEST(Copy, CheckpointsNeedNoWindow) {
  SmallLayer layer;
  ASSERT_EQ(layer.reset({0, 5}), LEAPQUANT_OK);
  layer.feed(0, 0, 11);
  const int32_t state = 0;
  const int32_t checkpoint = 5;
  const int32_t none = -1;
  const int32_t position = 11;
  int32_t status = -1;
  leapquant_fold_args fold = LEAPQUANT_INIT(leapquant_fold_args);
  fold.batch = 1;
  fold.state_slots = &state;
  fold.positions = &position;
  fold.destination_slots = &checkpoint;
  fold.status = &status;
  ASSERT_EQ(leapquant_fold(layer.layout, &layer.pool, &fold, &layer.launch), LEAPQUANT_OK);

  std::vector<float> matrices(4 * 8 * 12);
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = &checkpoint;
  args.window_slots = &none;
  args.positions = &position;
  args.matrices = matrices.data();
  args.status = &status;
  EXPECT_EQ(leapquant_export(layer.layout, &layer.pool, &args, &layer.launch), LEAPQUANT_OK)
      << leapquant_last_error();
  const int32_t later = 12;
  args.positions = &later;
  EXPECT_REFUSED(leapquant_export(layer.layout, &layer.pool, &args, &layer.launch),
                 LEAPQUANT_POSITION_PAST_WINDOW, "only 0 records");

  const int32_t to = 1;
  ASSERT_EQ(
      leapquant_copy(layer.layout, &layer.pool, 1, &checkpoint, &none, &to, nullptr, &layer.launch),
      LEAPQUANT_OK)
      << leapquant_last_error();
  layer.feed(1, 11, 8);
}

}  // namespace
}  // namespace leapquant_test
