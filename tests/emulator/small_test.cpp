// SPDX-License-Identifier: Apache-2.0
//
// The kernel that decodes small batches in one launch, emulated: each step against the reference on
// the same bytes, and twice with other orders of threads, which must not change a bit.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "emulator/device_code.h"
#include "emulator/machine.h"

// After device_code.h.
#include "cuda/small_kernel_128.cuh"
#include "emulator/steps.h"

namespace leapquant::cuda::small_128 {
// The kernel's dynamic shared memory: all that a block of compute capability 9.0 may have.
alignas(128) char block_shared[227 * 1024];
}  // namespace leapquant::cuda::small_128

namespace leapquant::emulator {
namespace {

// As src/cuda/small_128.cu launches it.
Result decode(const Layout& layout, const Inputs& in, Pool* pool, Setting setting) {
  Result result;
  const cuda::Call128 call = common_call(layout, in, pool, &result);
  const cuda::small_128::Places places = cuda::small_128::places_of(call);
  setting.width = static_cast<uint32_t>(call.v_heads);
  const auto blocks = static_cast<uint32_t>(call.batch * call.v_heads);
  EXPECT_EQ(run(blocks, {cuda::small_128::kThreads, 1}, cuda::small_128::block_shared,
                static_cast<uint32_t>(places.bytes), setting,
                [&] {
                  cuda::small_128::with_kinds(call, [&](auto fits, auto known) {
                    cuda::small_128::small_kernel<fits(), known()>(call, places);
                  });
                }),
            "");
  return result;
}

void follow(const Case& c) {
  const Layout layout = conformance::make_test_layout(
      make_shape(c.k_heads, c.v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR), std::string(c.format));
  std::mt19937_64 random(8421);
  Pool pool(layout, c.batch + 1, c.start);
  std::vector<int32_t> positions(static_cast<size_t>(c.batch), c.start);
  int32_t folds = 0;
  for (int32_t step = 0; step < 35; ++step) {
    SCOPED_TRACE(step);
    Inputs in = draw(c, &random);
    in.positions = positions;
    for (int32_t i = 0; i < c.batch; ++i) in.slots.push_back((i + 1) % (c.batch + 1));
    if (step == 5) in.v[77] = 0x7fc0;       // not a number
    if (step == 6) in.decay.back() = 0.5f;  // a state that grows
    if (step == 7) in.slots[0] = -1;        // padding
    if (step == 9) in.positions[0] += 40;   // past the window

    Pool canonical = pool;
    const Result truth = decode_by_reference(layout, in, &canonical);
    if (::testing::Test::HasFailure()) return;
    const Pool before = pool;
    Pool again = pool;
    const Result first = decode(layout, in, &pool, {0, 0xff});
    const Result second = decode(layout, in, &again, {static_cast<uint64_t>(8500 + step), 0x35});
    EXPECT_TRUE(pool.same_as(again) && first.output == second.output &&
                first.status == second.status);
    EXPECT_EQ(first.status, truth.status);
    EXPECT_EQ(pool.base, canonical.base);
    if (pool.base == before.base) {
      EXPECT_LT(error_of(first.output, truth.output), kMostError);
    } else {
      ++folds;  // by another fit, whose worth fold_test.cpp tells
    }
    for (size_t i = 0; i < positions.size(); ++i) {
      if (first.status[i] == LEAPQUANT_OK && in.slots[i] >= 0) ++positions[i];
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(folds, 1);
}

TEST(SmallEmulator, StepsAreTheReferencesOnTheSameBytes) {
  for (const Case& c :
       {Case{1, 2, 2, "int8", 0}, Case{2, 4, 3, "int8:stagger=1", 3}, Case{4, 4, 1, "int8", 9},
        Case{1, 1, 2, "int6", 5}, Case{1, 2, 1, "int4+", 5}, Case{1, 1, 1, "8:r=0", 2},
        Case{1, 1, 1, "4h:r=2:i8=3:i4=5", 0}, Case{1, 1, 1, "8:r=32", 1},
        Case{1, 1, 1, "4:r=2:smooth=none", 12}}) {
    SCOPED_TRACE(std::string(c.format) + " from " + std::to_string(c.start));
    follow(c);
  }
}

// Heads of rank 1, and of rank 3 first: tokens are all alike from the first, or from the fourth on.
// The columns past the rank are rounding; whatever the matrix units leave of it, nothing grows.
void follow_tokens_alike(const Case& c, int32_t distinct) {
  const Layout layout = conformance::make_test_layout(
      make_shape(c.k_heads, c.v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR), std::string(c.format));
  std::mt19937_64 random(8423);
  Pool pool(layout, c.batch + 1, c.start);
  Inputs in;
  for (int32_t step = 0; step < 36; ++step) {
    SCOPED_TRACE(step);
    if (step < distinct) in = draw(c, &random);
    in.positions.assign(static_cast<size_t>(c.batch), c.start + step);
    in.slots.clear();
    for (int32_t i = 0; i < c.batch; ++i) in.slots.push_back(i + 1);
    Pool canonical = pool;
    const Result truth = decode_by_reference(layout, in, &canonical);
    if (::testing::Test::HasFailure()) return;
    const Result own = decode(layout, in, &pool, {0, 0xff});
    ASSERT_EQ(own.status, truth.status);
    // Also where heads were folded, by different fits: what both leave of such heads is small.
    ASSERT_LT(error_of(own.output, truth.output), 4 * kMostError);
  }
}

TEST(SmallEmulator, HeadsOfTokensAlikeStayFinite) {
  for (const int bits : {0, 24, 14}) {
    cuda::kept_bits = bits;
    for (const int32_t distinct : {1, 3}) {
      SCOPED_TRACE(std::to_string(bits) + " bits, distinct " + std::to_string(distinct));
      follow_tokens_alike({4, 8, 1, "int8:stagger=1", 0}, distinct);
    }
  }
  cuda::kept_bits = 0;
}

}  // namespace
}  // namespace leapquant::emulator
