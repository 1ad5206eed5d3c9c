// SPDX-License-Identifier: Apache-2.0
//
// The door on a device: faults of sequences that only the device can see stay with them; checks on
// request; the slot allocator in device memory; the name of the backend.
#include <cmath>
#include <limits>

#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

leapquant_shape shape_of(int32_t dim) {
  return conformance::make_shape(2, 4, dim, dim, LEAPQUANT_DECAY_SCALAR);
}

// Row 1 of three is at fault; its neighbours are those of a call without it, its slot is unchanged,
// its output zero.
void expect_fault(int32_t dim, const Row& row, leapquant_status fault, const Tokens* poisoned) {
  const leapquant_shape shape = shape_of(dim);
  const Tokens tokens = conformance::random_tokens(shape, 30, 7401);
  DeviceLayer layer(shape, "int8", 4, 3);
  DeviceLayer clean(shape, "int8", 4, 3);
  for (DeviceLayer* each : {&layer, &clean}) {
    each->reset({0, 1, 2, 3});
    for (int32_t t = 0; t < 20; ++t) {
      each->decode({{0, t, 1}, {1, t, 1}, {2, t, 1}},
                   tokens_at({&tokens, &tokens, &tokens}, {t, t, t}));
    }
  }
  const std::vector<uint8_t> before = layer.slot_bytes(1);
  const Tokens* middle = poisoned != nullptr ? poisoned : &tokens;
  const std::vector<float> o = layer.decode({{0, 20, 1}, row, {2, 20, 1}},
                                            tokens_at({&tokens, middle, &tokens}, {20, 20, 20}));
  const std::vector<float> expected = clean.decode(
      {{0, 20, 1}, {-1, 0, 1}, {2, 20, 1}}, tokens_at({&tokens, &tokens, &tokens}, {20, 20, 20}));
  EXPECT_EQ(layer.status(3), (std::vector<int32_t>{LEAPQUANT_OK, fault, LEAPQUANT_OK}));
  EXPECT_EQ(o, expected);
  EXPECT_TRUE(layer.slot_bytes(1) == before);
  for (int32_t slot : {0, 2}) EXPECT_TRUE(layer.slot_bytes(slot) == clean.slot_bytes(slot)) << slot;

  // With checks on, the fault is the call's.
  layer.put_rows({{0, 21, 1}, row, {2, 21, 1}},
                 tokens_at({&tokens, middle, &tokens}, {21, 20, 21}));
  EXPECT_EQ(layer.decode_call(3, 1, nullptr, LEAPQUANT_CHECK_FULL), fault);
  EXPECT_NE(std::string(leapquant_last_error()).find("sequence 1"), std::string::npos)
      << leapquant_last_error();
}

TEST(Door, FaultsStayWithTheirSequence) {
  for (int32_t dim : {64, 128}) {
    SCOPED_TRACE(dim);
    expect_fault(dim, {99, 20, 1}, LEAPQUANT_SLOT_OUT_OF_RANGE, nullptr);
    expect_fault(dim, {1, 3, 1}, LEAPQUANT_POSITION_BELOW_BASE, nullptr);
    expect_fault(dim, {1, 2000, 1}, LEAPQUANT_POSITION_PAST_WINDOW, nullptr);
    const Tokens tokens = conformance::random_tokens(shape_of(dim), 30, 7401);
    for (int what = 0; what < 5; ++what) {
      Tokens bad = tokens;
      std::vector<float>* tensors[] = {&bad.q, &bad.k, &bad.v, &bad.beta, &bad.log_decay};
      std::vector<float>& tensor = *tensors[what];
      tensor[tensor.size() / 30 * 20 + 1] = std::numeric_limits<float>::quiet_NaN();
      expect_fault(dim, {1, 20, 1}, LEAPQUANT_NON_FINITE_INPUT, &bad);
    }
    Tokens growing = tokens;
    growing.log_decay[growing.log_decay.size() / 30 * 20] = 5.0f;
    expect_fault(dim, {1, 20, 1}, LEAPQUANT_POSITIVE_LOG_DECAY, &growing);
  }
}

// One slot twice: the second row is refused.
TEST(Door, RepeatedSlotsAreFound) {
  const leapquant_shape shape = shape_of(64);  // of all backends: Faults.DecodeSaysWhichRows
  const Tokens tokens = conformance::random_tokens(shape, 2, 7402);
  DeviceLayer layer(shape, "int8", 2, 3);
  layer.reset({0, 1});
  layer.decode({{1, 0, 1}, {0, 0, 1}, {1, 0, 1}},
               tokens_at({&tokens, &tokens, &tokens}, {0, 0, 1}));
  EXPECT_EQ(layer.status(3),
            (std::vector<int32_t>{LEAPQUANT_OK, LEAPQUANT_OK, LEAPQUANT_SLOT_REPEATED}));
}

TEST(Door, NamesTheBackend) {
  const LayoutHandle general(shape_of(64), "int8", LEAPQUANT_CUDA);
  EXPECT_EQ(std::string(leapquant_layout_backend(general.get())).find("cuda/"), 0u)
      << leapquant_layout_backend(general.get());
}

// All memory of slots on a device is taken at creation: a budget that it does not have is refused
// with what it would take and what is free, and leaves no error behind.
TEST(Door, SlotsSayWhatTheyTake) {
  const LayoutHandle layout(shape_of(64), "int8", LEAPQUANT_CUDA);
  leapquant_slots* slots = nullptr;
  EXPECT_EQ(leapquant_slots_create(layout.get(), 2, int64_t{1} << 45, &slots),
            LEAPQUANT_OUT_OF_MEMORY);
  const std::string said = leapquant_last_error();
  for (const char* part : {"35184372088832", "at creation", "the device refused", "are free",
                           "smaller budget_bytes"}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// The allocator on the device: a budget of three sequences, eviction of checkpoints, cleared slots.
TEST(Door, SlotsLieInDeviceMemory) {
  const LayoutHandle layout(shape_of(64), "int8", LEAPQUANT_CUDA);
  const leapquant_sizes& sizes = layout.sizes();
  const int64_t sequence = 2 * (sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes);
  leapquant_slots* slots = nullptr;
  require(leapquant_slots_create(layout.get(), 2, 3 * sequence, &slots));
  ASSERT_NE(slots, nullptr);
  int32_t state[4];
  int32_t window[4];
  int32_t checkpoint = -1;
  int32_t evicted = -1;
  require(leapquant_slots_acquire(slots, &state[0], &window[0]));
  require(leapquant_slots_acquire(slots, &state[1], &window[1]));
  require(leapquant_slots_acquire_checkpoint(slots, &checkpoint, &evicted));
  require(leapquant_slots_acquire(slots, &state[2], &window[2]));  // the checkpoint goes
  EXPECT_EQ(leapquant_slots_touch(slots, checkpoint), LEAPQUANT_EMPTY_ENTRY);
  EXPECT_EQ(leapquant_slots_acquire(slots, &state[3], &window[3]), LEAPQUANT_POOL_FULL);
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  require(leapquant_slots_pool(slots, 1, &pool));
  cudaPointerAttributes attributes = {};
  require(cudaPointerGetAttributes(&attributes, pool.states));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  size_t bytes = 0;
  require(leapquant_saved_bytes(layout.get(), &pool, state[2], window[2], 0, &bytes));
  require(leapquant_slots_release(slots, state[1], 1));
  require(leapquant_slots_acquire(slots, &state[1], &window[1]));
  leapquant_slots_destroy(slots);
}

}  // namespace
}  // namespace leapquant::cuda_test
