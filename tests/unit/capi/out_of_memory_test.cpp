// SPDX-License-Identifier: Apache-2.0
//
// A host that refuses memory: every allocation of every creating call is refused in turn, which
// must be a status and a sentence; and the operations allocate nothing. The allocator of this
// program counts.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "capi/small_layer.h"

namespace {

// Of this thread, while a call is watched.
struct Watch {
  bool on = false;
  int64_t seen = 0;
  int64_t refused = 0;  // the number of the allocation to refuse, from 1; 0: none
  int64_t throwing = 0;
};
thread_local Watch watch;

void* allocate(size_t bytes, size_t alignment, bool may_throw) {
  if (watch.on) {
    ++watch.seen;
    watch.throwing += may_throw ? 1 : 0;
    if (watch.seen == watch.refused) {
      if (!may_throw) return nullptr;
      throw std::bad_alloc();
    }
  }
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes > 0 ? bytes : 1)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr && may_throw) throw std::bad_alloc();
  return memory;
}

// Not inlined: the compiler would take what new has returned for what malloc must have.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, 0, true); }
void* operator new[](size_t bytes) { return allocate(bytes, 0, true); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, false);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, false);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment), true);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment), false);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  release(memory);
}

namespace leapquant_test {
namespace {

// What the call did with its allocation number `refused` (0: none) turned down.
template <typename Call>
leapquant_status watched(int64_t refused, const Call& call) {
  watch = {.on = true, .refused = refused};
  const leapquant_status status = call();
  watch.on = false;
  return status;
}

// `create` succeeds, and with its n-th allocation refused it is OUT_OF_MEMORY with a sentence, for
// every n; nothing comes out then.
template <typename Handle>
void expect_refusals(const std::function<leapquant_status(Handle**)>& create,
                     const std::function<void(Handle*)>& destroy) {
  Handle* handle = nullptr;
  ASSERT_EQ(watched(0, [&] { return create(&handle); }), LEAPQUANT_OK) << leapquant_last_error();
  const int64_t allocations = watch.seen;
  destroy(handle);
  EXPECT_GT(allocations, 0);
  EXPECT_EQ(watch.throwing, 0) << "an allocation that throws could not be caught";
  for (int64_t n = 1; n <= allocations; ++n) {
    handle = nullptr;
    ASSERT_EQ(watched(n, [&] { return create(&handle); }), LEAPQUANT_OUT_OF_MEMORY) << n;
    EXPECT_EQ(handle, nullptr) << n;
    EXPECT_NE(std::string(leapquant_last_error()).find("refused"), std::string::npos)
        << leapquant_last_error();
  }
  ASSERT_EQ(watched(allocations + 1, [&] { return create(&handle); }), LEAPQUANT_OK);
  destroy(handle);
}

TEST(OutOfMemory, EveryAllocationOfALayoutMayFail) {
  leapquant_shape shape = small_shape();
  const float decays[] = {-0.1f, -0.2f, -0.3f, -0.4f};
  for (const bool constant : {false, true}) {
    shape.decay = constant ? LEAPQUANT_DECAY_CONSTANT : LEAPQUANT_DECAY_SCALAR;
    shape.constant_log_decay = constant ? decays : nullptr;
    leapquant_format formats[8];
    uint8_t heads[4];
    int32_t count = 0;
    ASSERT_EQ(leapquant_formats_from_string("mix(int8+@0&2,int4)", 0, 4, formats, 8, &count, heads),
              LEAPQUANT_OK);
    expect_refusals<leapquant_layout>(
        [&](leapquant_layout** layout) {
          return leapquant_layout_create(&shape, formats, count, heads, LEAPQUANT_CPU, layout);
        },
        leapquant_layout_destroy);
    EXPECT_GE(watch.seen, constant ? 6 : 5) << "the handle and the arrays of a layout";
  }
}

TEST(OutOfMemory, EveryAllocationOfSlotsMayFail) {
  const SmallLayer layer("int8+");
  expect_refusals<leapquant_slots>(
      [&](leapquant_slots** slots) {
        return leapquant_slots_create(layer.layout, 3, int64_t{1} << 20, slots);
      },
      leapquant_slots_destroy);
}

TEST(OutOfMemory, EveryAllocationOfThreadsMayFail) {
  expect_refusals<leapquant_threads>(
      [](leapquant_threads** threads) { return leapquant_threads_create(3, threads); },
      leapquant_threads_destroy);
}

// All calls that work on states, on formats of every kind.
TEST(OutOfMemory, OperationsAllocateNothing) {
  for (const char* format : {"int8", "int4+", "bf16", "int6:step", "mix(int8+@0&2,int4)"}) {
    SmallLayer layer(format);
    const auto expect_none = [&](const char* name, const std::function<leapquant_status()>& call) {
      EXPECT_EQ(watched(0, call), LEAPQUANT_OK) << name << ": " << leapquant_last_error();
      EXPECT_EQ(watch.seen, 0) << name << " in " << format;
    };
    const int32_t slots[] = {0, 1};
    const int32_t others[] = {2, 3};
    int32_t positions[] = {0, 0};
    int32_t status[2];
    expect_none("reset", [&] {
      return leapquant_reset(layer.layout, &layer.pool, 2, slots, nullptr, positions,
                             &layer.launch);
    });
    for (int32_t t = 0; t < 20; ++t) {
      const leapquant_decode_args args = layer.decode_args({0, 1}, {t, t}, 1, {7, 8});
      expect_none("decode", [&] { return layer.run(args); });
    }

    leapquant_prefill_args prefill = LEAPQUANT_INIT(leapquant_prefill_args);
    layer.decode_args({0, 1}, {20, 20}, 9, {7, 8});
    const int32_t offsets[] = {0, 9, 18};
    const leapquant_checkpoint checkpoint = {0, 24, 4};
    prefill.batch = 2;
    prefill.state_slots = layer.call_slots.data();
    prefill.positions = layer.call_positions.data();
    prefill.token_offsets = offsets;
    prefill.inputs = layer.inputs();
    prefill.output.data = layer.output.data();
    prefill.num_checkpoints = 1;
    prefill.checkpoints = &checkpoint;
    prefill.status = status;
    expect_none("prefill", [&] {
      return leapquant_prefill(layer.layout, &layer.pool, &prefill, &layer.launch);
    });

    positions[0] = positions[1] = 29;
    leapquant_fold_args fold = LEAPQUANT_INIT(leapquant_fold_args);
    fold.batch = 2;
    fold.state_slots = slots;
    fold.positions = positions;
    fold.status = status;
    expect_none("fold",
                [&] { return leapquant_fold(layer.layout, &layer.pool, &fold, &layer.launch); });
    expect_none("copy", [&] {
      return leapquant_copy(layer.layout, &layer.pool, 2, slots, slots, others, others,
                            &layer.launch);
    });

    std::vector<float> matrices(2 * 4 * 8 * 12);
    leapquant_transfer_args transfer = LEAPQUANT_INIT(leapquant_transfer_args);
    transfer.batch = 2;
    transfer.state_slots = slots;
    transfer.positions = positions;
    transfer.matrices = matrices.data();
    transfer.status = status;
    expect_none("export", [&] {
      return leapquant_export(layer.layout, &layer.pool, &transfer, &layer.launch);
    });
    expect_none("import", [&] {
      return leapquant_import(layer.layout, &layer.pool, &transfer, &layer.launch);
    });

    const int32_t window = layer.sizes.window_bytes > 0 ? 0 : -1;
    size_t bytes = 0;
    expect_none("saved_bytes", [&] {
      return leapquant_saved_bytes(layer.layout, &layer.pool, 0, window, 29, &bytes);
    });
    std::vector<std::byte> blob(bytes);
    size_t written = 0;
    expect_none("save", [&] {
      return leapquant_save(layer.layout, &layer.pool, 0, window, 29, 5, blob.data(), blob.size(),
                            &written);
    });
    int32_t position = 0;
    expect_none("load", [&] {
      return leapquant_load(layer.layout, &layer.pool, 1, window >= 0 ? 1 : -1, 5, blob.data(),
                            blob.size(), &position);
    });
    leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
    expect_none("inspect",
                [&] { return leapquant_inspect(blob.data(), blob.size(), &info, nullptr, 0); });
    leapquant_format parsed = LEAPQUANT_INIT(leapquant_format);
    expect_none("format", [&] { return leapquant_format_from_string("int4+", &parsed); });
  }
}

}  // namespace
}  // namespace leapquant_test
