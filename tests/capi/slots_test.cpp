// SPDX-License-Identifier: Apache-2.0
//
// The slot allocator: the byte budget holds, a full pool is an error and not a crash, checkpoints
// go by last use, a slot taken anew holds nothing of its last owner.
#include <atomic>
#include <thread>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

class SlotsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kLayers = 3;

  void create(int64_t budget) {
    ASSERT_EQ(leapquant_slots_create(layer.layout, kLayers, budget, &slots), LEAPQUANT_OK)
        << leapquant_last_error();
  }
  void TearDown() override { leapquant_slots_destroy(slots); }

  leapquant_slots_usage usage() const {
    leapquant_slots_usage usage = LEAPQUANT_INIT(leapquant_slots_usage);
    EXPECT_EQ(leapquant_slots_get_usage(slots, &usage), LEAPQUANT_OK);
    EXPECT_LE(usage.resident_bytes, usage.budget_bytes);
    return usage;
  }
  int32_t acquire() {
    int32_t state = -1;
    int32_t window = -1;
    EXPECT_EQ(leapquant_slots_acquire(slots, &state, &window), LEAPQUANT_OK)
        << leapquant_last_error();
    EXPECT_GE(window, 0);
    return state;
  }
  int32_t acquire_checkpoint(int32_t* evicted) {
    int32_t state = -1;
    EXPECT_EQ(leapquant_slots_acquire_checkpoint(slots, &state, evicted), LEAPQUANT_OK)
        << leapquant_last_error();
    return state;
  }

  SmallLayer layer;
  leapquant_slots* slots = nullptr;
  int64_t checkpoint_bytes = kLayers * (layer.sizes.state_bytes + layer.sizes.metadata_bytes);
  int64_t sequence_bytes = checkpoint_bytes + kLayers * layer.sizes.window_bytes;
};

TEST_F(SlotsTest, AThirdSequenceIsRefusedAndNothingIsOverwritten) {
  create(2 * sequence_bytes);
  const int32_t first = acquire();
  const int32_t second = acquire();
  EXPECT_NE(first, second);
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  ASSERT_EQ(leapquant_slots_pool(slots, 1, &pool), LEAPQUANT_OK);
  layer.pool = pool;
  layer.feed(first, 0, 18);
  const auto before = layer.save(first, 18);
  int32_t state = -5;
  int32_t window = -5;
  EXPECT_REFUSED(leapquant_slots_acquire(slots, &state, &window), LEAPQUANT_POOL_FULL,
                 "2 sequences and 0 checkpoints");
  EXPECT_REFUSED(leapquant_slots_acquire_checkpoint(slots, &state, nullptr), LEAPQUANT_POOL_FULL,
                 "no room for a checkpoint");
  EXPECT_EQ(state, -5);
  EXPECT_EQ(layer.save(first, 18), before);
  EXPECT_EQ(leapquant_slots_release(slots, second, 0), LEAPQUANT_OK);
  EXPECT_EQ(acquire(), second);
}

TEST_F(SlotsTest, CheckpointsStayWithinTheBudgetAndGoByLastUse) {
  create(sequence_bytes + 3 * checkpoint_bytes);
  const int32_t sequence = acquire();
  int32_t evicted = -9;
  const int32_t a = acquire_checkpoint(&evicted);
  EXPECT_EQ(evicted, -1);
  const int32_t b = acquire_checkpoint(nullptr);
  const int32_t c = acquire_checkpoint(nullptr);
  EXPECT_EQ(usage().resident_bytes, sequence_bytes + 3 * checkpoint_bytes);
  ASSERT_EQ(leapquant_slots_touch(slots, a), LEAPQUANT_OK);
  const int32_t d = acquire_checkpoint(&evicted);
  EXPECT_EQ(evicted, b) << "a was touched, so b is the oldest";
  EXPECT_EQ(usage().num_evictions, 1);
  EXPECT_EQ(usage().num_checkpoints, 3);
  EXPECT_EQ(leapquant_slots_touch(slots, c), LEAPQUANT_OK);
  EXPECT_EQ(leapquant_slots_touch(slots, d), LEAPQUANT_OK);
  EXPECT_REFUSED(leapquant_slots_touch(slots, sequence), LEAPQUANT_EMPTY_ENTRY, "a miss");
}

TEST_F(SlotsTest, SequencesTakeTheRoomOfCheckpoints) {
  create(2 * sequence_bytes);
  std::vector<int32_t> checkpoints;
  while (usage().resident_bytes + checkpoint_bytes <= 2 * sequence_bytes) {
    checkpoints.push_back(acquire_checkpoint(nullptr));
  }
  const size_t most = static_cast<size_t>(2 * sequence_bytes / checkpoint_bytes);
  EXPECT_EQ(checkpoints.size(), most);
  acquire();
  const auto kept = usage().num_checkpoints;
  EXPECT_EQ(kept, (sequence_bytes) / checkpoint_bytes);
  acquire();
  EXPECT_EQ(usage().num_checkpoints, 0);
  int32_t state = 0;
  int32_t window = 0;
  EXPECT_EQ(leapquant_slots_acquire(slots, &state, &window), LEAPQUANT_POOL_FULL);
}

TEST_F(SlotsTest, ASlotTakenAnewIsClearAndScrubbingLeavesZeros) {
  create(sequence_bytes);
  const int32_t slot = acquire();
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  ASSERT_EQ(leapquant_slots_pool(slots, 2, &pool), LEAPQUANT_OK);
  layer.pool = pool;
  const auto fresh = layer.save(slot, 0);
  const std::vector<float> outputs = layer.feed(slot, 0, 20);
  ASSERT_EQ(leapquant_slots_release(slots, slot, 1), LEAPQUANT_OK);
  const auto* bytes =
      static_cast<const unsigned char*>(pool.states) + slot * pool.state_stride_bytes;
  for (int64_t i = 0; i < layer.sizes.state_bytes; ++i) ASSERT_EQ(bytes[i], 0) << i;
  bytes = static_cast<const unsigned char*>(pool.windows);
  for (int64_t i = 0; i < layer.sizes.window_bytes; ++i) ASSERT_EQ(bytes[i], 0) << i;
  EXPECT_EQ(acquire(), slot);
  EXPECT_EQ(layer.save(slot, 0), fresh);
  EXPECT_EQ(layer.feed(slot, 0, 20), outputs);
}

TEST_F(SlotsTest, Arguments) {
  leapquant_slots* none = nullptr;
  EXPECT_REFUSED(leapquant_slots_create(layer.layout, kLayers, sequence_bytes - 1, &none),
                 LEAPQUANT_BUFFER_TOO_SMALL,
                 "one sequence of 3 layers needs " + std::to_string(sequence_bytes));
  EXPECT_REFUSED(leapquant_slots_create(layer.layout, 0, 1 << 20, &none),
                 LEAPQUANT_INVALID_ARGUMENT, "num_layers is 0");
  EXPECT_REFUSED(leapquant_slots_create(layer.layout, 1, 0, &none), LEAPQUANT_INVALID_ARGUMENT,
                 "budget_bytes is 0");
  EXPECT_REFUSED(leapquant_slots_create(nullptr, 1, 1, &none), LEAPQUANT_NULL_POINTER, "layout");
  // More address space than any machine has.
  EXPECT_REFUSED(leapquant_slots_create(layer.layout, kLayers, INT64_MAX / 1024, &none),
                 LEAPQUANT_INVALID_ARGUMENT, "slots");
  EXPECT_EQ(none, nullptr);
  create(2 * sequence_bytes);
  EXPECT_REFUSED(leapquant_slots_release(slots, 99, 0), LEAPQUANT_SLOT_OUT_OF_RANGE, "99");
  EXPECT_REFUSED(leapquant_slots_release(slots, -1, 0), LEAPQUANT_SLOT_OUT_OF_RANGE, "-1");
  EXPECT_REFUSED(leapquant_slots_release(slots, 0, 0), LEAPQUANT_INVALID_ARGUMENT, "not live");
  EXPECT_REFUSED(leapquant_slots_release(slots, 0, 2), LEAPQUANT_INVALID_ARGUMENT, "scrub is 2");
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  EXPECT_REFUSED(leapquant_slots_pool(slots, 3, &pool), LEAPQUANT_INVALID_ARGUMENT, "layer is 3");
  leapquant_slots_destroy(nullptr);
}

// A host that has no memory left: the sentence, and nothing leaks (ASan looks on).
TEST_F(SlotsTest, RefusedAddressSpaceIsAStatus) {
  leapquant_slots* none = nullptr;
  // 60 TB: within what 32-bit slot numbers reach for a large layer, past a user's address space.
  leapquant_shape large = small_shape();
  large.num_k_heads = 256;
  large.num_v_heads = 256;
  large.head_k_dim = 256;
  large.head_v_dim = 256;
  SmallLayer wide("fp32", large, 0, 0);
  EXPECT_REFUSED(leapquant_slots_create(wide.layout, 1, int64_t{1} << 52, &none),
                 LEAPQUANT_OUT_OF_MEMORY, "refused memory for slots");
  EXPECT_EQ(none, nullptr);
}

TEST_F(SlotsTest, ManyThreadsNeverShareASlot) {
  create(4 * sequence_bytes);
  std::vector<std::atomic<int>> owners(64);
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int32_t state = -1;
        int32_t window = -1;
        if (leapquant_slots_acquire(slots, &state, &window) != LEAPQUANT_OK) continue;
        if (owners[static_cast<size_t>(state)].exchange(t + 1) != 0) ++clashes;
        owners[static_cast<size_t>(state)].store(0);
        if (leapquant_slots_release(slots, state, i % 2) != LEAPQUANT_OK) ++clashes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes.load(), 0);
  EXPECT_EQ(usage().num_sequences, 0);
}

// 48 layers of 48 value heads of 128 x 128: the report of bytes shows what 8 bits save.
TEST(Footprint, EightBitsAgainstFp32) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = 16;
  shape.num_v_heads = 48;
  shape.head_k_dim = 128;
  shape.head_v_dim = 128;
  shape.decay = LEAPQUANT_DECAY_SCALAR;
  shape.delta_rule = 1;
  const auto state_bytes = [&](const char* format) {
    leapquant_format parsed = LEAPQUANT_INIT(leapquant_format);
    EXPECT_EQ(leapquant_format_from_string(format, &parsed), LEAPQUANT_OK);
    leapquant_layout* layout = nullptr;
    EXPECT_EQ(leapquant_layout_create(&shape, &parsed, 1, nullptr, LEAPQUANT_CPU, &layout),
              LEAPQUANT_OK)
        << leapquant_last_error();
    leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
    EXPECT_EQ(leapquant_bytes_per_slot(layout, &sizes), LEAPQUANT_OK);
    leapquant_layout_destroy(layout);
    return sizes.state_bytes;
  };
  EXPECT_EQ(48 * state_bytes("fp32:step"), 150994944);
  EXPECT_GE(static_cast<double>(state_bytes("fp32")) / static_cast<double>(state_bytes("int8")),
            3.3);
  EXPECT_EQ(state_bytes("int8"), 48 * 19456);
  EXPECT_EQ(state_bytes("int6"), 48 * 15360);
  EXPECT_EQ(state_bytes("int4"), 48 * 13312);
  EXPECT_EQ(state_bytes("int8+"), 48 * 18736);
  EXPECT_EQ(state_bytes("int6+"), 48 * 14768);
  EXPECT_EQ(state_bytes("int4+"), 48 * 13040);
  EXPECT_EQ(state_bytes("int4-compact"), 48 * 11072);
}

}  // namespace
}  // namespace leapquant_test
