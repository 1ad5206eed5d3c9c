// SPDX-License-Identifier: Apache-2.0
//
// The kernel that decodes large batches, emulated: each step against the reference on the same
// bytes, and with other shares of heads and other orders of threads and copies, which must not
// change a bit. No head is due: folds run beside it on a device, which one multiprocessor at a time
// cannot show.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/device_code.h"
#include "emulator/machine.h"

// After device_code.h.
#include "cuda/decode_pairs_128.cuh"
#include "emulator/steps.h"

namespace leapquant::cuda::decoding_128 {
// The kernel's dynamic shared memory: all that a block of compute capability 9.0 may have.
alignas(128) char pool_shared[227 * 1024];
}  // namespace leapquant::cuda::decoding_128

namespace leapquant::emulator {
namespace {

// As src/cuda/decode_128.cu launches it for large batches, behind a check that has found a fault in
// row `faulty`.
template <bool kVector>
Result decode(const Layout& layout, const Inputs& in, Pool* pool, uint32_t blocks, uint32_t pairs,
              const Setting& setting, int32_t faulty = -1) {
  using cuda::decoding_128::Shares;
  Result result;
  const cuda::Call128 call = common_call(layout, in, pool, &result);
  for (int32_t& status : result.status) status = LEAPQUANT_OK;  // the check's work
  if (faulty >= 0) result.status[static_cast<size_t>(faulty)] = LEAPQUANT_NON_FINITE_INPUT;
  const auto bytes = static_cast<uint32_t>(
      cuda::decoding_128::bytes_of_block<kVector>(call, static_cast<int32_t>(pairs)));
  const auto total = static_cast<uint32_t>(call.batch * call.v_heads);
  const Shares shares = {static_cast<int32_t>(total / blocks),
                         static_cast<int32_t>(total % blocks)};
  EXPECT_EQ(run(blocks, {64, pairs}, cuda::decoding_128::pool_shared, bytes, setting,
                [&] {
                  cuda::with_known(cuda::known_128(call.classes[0]), [&](auto known) {
                    cuda::decoding_128::decode_pairs_kernel<kVector, known()>(call, shares);
                  });
                }),
            "");
  return result;
}

template <bool kVector>
void follow(const Case& c) {
  const Layout layout = conformance::make_test_layout(
      make_shape(c.k_heads, c.v_heads, 128, 128,
                 kVector ? LEAPQUANT_DECAY_VECTOR : LEAPQUANT_DECAY_SCALAR),
      std::string(c.format));
  std::mt19937_64 random(8431);
  Pool pool(layout, c.batch + 1, c.start);
  const auto total = static_cast<uint32_t>(c.batch * c.v_heads);
  for (int32_t step = 0; step < 15; ++step) {
    SCOPED_TRACE(step);
    Inputs in = draw(c, &random);
    in.positions.assign(static_cast<size_t>(c.batch), c.start + step);
    for (int32_t i = 0; i < c.batch; ++i) in.slots.push_back((i + 1) % (c.batch + 1));
    if (step == 14) in.slots[0] = -1;  // padding
    Pool canonical = pool;
    const Result truth = decode_by_reference(layout, in, &canonical);
    if (::testing::Test::HasFailure()) return;
    Pool by_few = pool;
    Pool by_all = pool;
    const Result own = decode<kVector>(layout, in, &pool, 1, 1, {0, 0xff});
    for (const auto& [other, blocks, pairs] :
         {std::tuple(&by_few, 1u, 3u), {&by_all, 1 + total / 2, 2u}}) {
      const Result again = decode<kVector>(layout, in, other, blocks, pairs,
                                           {static_cast<uint64_t>(8500 + step), 0x35});
      EXPECT_TRUE(pool.same_as(*other) && own.output == again.output);
    }
    EXPECT_EQ(own.status, truth.status);
    EXPECT_EQ(pool.base, canonical.base);
    EXPECT_LT(error_of(own.output, truth.output), kMostError);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(DecodeEmulator, StepsAreTheReferencesOnTheSameBytes) {
  for (const Case& c :
       {Case{4, 4, 3, "int8", 0}, Case{2, 4, 2, "int6", 16}, Case{2, 2, 2, "int4", 0},
        Case{1, 2, 2, "int4+", 0}, Case{1, 2, 1, "int8+", 32}, Case{1, 2, 2, "8:r=0", 0},
        Case{1, 1, 2, "4h:r=2:i8=3:i4=5", 0}, Case{1, 2, 1, "4:r=2:smooth=none", 0},
        Case{2, 2, 2, "int8:decay=fp16", 0, true}, Case{1, 1, 1, "int4", 16, true}}) {
    SCOPED_TRACE(std::string(c.format) + " from " + std::to_string(c.start));
    c.vector ? follow<true>(c) : follow<false>(c);
  }
}

// Rows that the check has found faulty get zeros and leave everything as it was; the others are
// decoded as if they were alone.
TEST(DecodeEmulator, FaultsStayWithTheirRows) {
  const Case c = {1, 2, 3, "int8", 0};
  const Layout layout = conformance::make_test_layout(
      make_shape(c.k_heads, c.v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR), std::string(c.format));
  std::mt19937_64 random(8432);
  Pool pool(layout, c.batch, c.start);
  Inputs in = draw(c, &random);
  in.slots = {2, 0, 1};
  in.positions.assign(3, 0);
  const Pool before = pool;
  Pool sound = pool;
  const Result all = decode<false>(layout, in, &sound, 1, 2, {0, 0xff});
  const Result some = decode<false>(layout, in, &pool, 1, 2, {0, 0xff}, 1);
  const auto row = static_cast<size_t>(c.v_heads) * 128;
  for (size_t i = 0; i < some.output.size(); ++i) {
    ASSERT_EQ(some.output[i], i / row == 1 ? 0 : all.output[i]) << i;
  }
  const auto window = static_cast<size_t>(layout.window.bytes);
  for (size_t i = 0; i < pool.windows.size(); ++i) {
    ASSERT_EQ(pool.windows[i], i / window == 0 ? before.windows[i] : sound.windows[i]) << i;
  }
  EXPECT_EQ(pool.base, before.base);
}

}  // namespace
}  // namespace leapquant::emulator
