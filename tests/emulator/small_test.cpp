// SPDX-License-Identifier: Apache-2.0
//
// The kernel that decodes small batches in one launch, emulated: each step against the reference on
// the same bytes, and twice with other orders of threads, which must not change a bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "conformance/session.h"
#include "core/numeric.h"
#include "emulator/device_code.h"
#include "emulator/machine.h"
#include "emulator/payload_order.h"
#include "reference/backend.h"

// After device_code.h.
#include "cuda/small_kernel_128.cuh"

namespace leapquant::cuda::small_128 {
// The kernel's dynamic shared memory: all that a block of compute capability 9.0 may have.
alignas(128) char block_shared[227 * 1024];
}  // namespace leapquant::cuda::small_128

namespace leapquant::emulator {
namespace {

using conformance::make_shape;

struct Case {
  int k_heads, v_heads, batch;
  const char* format;
  int32_t start;  // position and base of all heads at first
};

// A pool of host memory, whose codes lie in the device's order or the canonical one.
struct Pool {
  std::vector<std::byte> states, windows;
  std::vector<int32_t> base;
  std::vector<leapquant_health> health;

  Pool(const Layout& layout, int32_t slots, int32_t start)
      : states(static_cast<size_t>(layout.state_bytes * slots)),
        windows(static_cast<size_t>(layout.window.bytes * slots)),
        base(static_cast<size_t>(slots * layout.shape.num_v_heads), start),
        health(base.size()) {}
  leapquant_pool view(const Layout& layout) {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    pool.states = states.data();
    pool.windows = windows.data();
    pool.base = base.data();
    pool.health = health.data();
    pool.num_state_slots = pool.num_window_slots =
        static_cast<int32_t>(base.size()) / layout.shape.num_v_heads;
    pool.state_stride_bytes = layout.state_bytes;
    pool.window_stride_bytes = layout.window.bytes;
    return pool;
  }
  bool same_as(const Pool& other) const {
    return states == other.states && windows == other.windows && base == other.base &&
           std::memcmp(health.data(), other.health.data(), health.size() * sizeof(health[0])) == 0;
  }
};

struct Inputs {
  std::vector<uint16_t> q, k, v;
  std::vector<float> decay, beta;
  std::vector<int32_t> slots, positions;
};

struct Result {
  std::vector<uint16_t> output;
  std::vector<int32_t> status;
};

leapquant_decode_args arguments(const Inputs& in, Result* result) {
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = static_cast<int32_t>(in.slots.size());
  args.tokens = 1;
  args.state_slots = in.slots.data();
  args.positions = in.positions.data();
  args.inputs.q = {in.q.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.k = {in.k.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.v = {in.v.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.log_decay = {in.decay.data(), LEAPQUANT_FP32, 0, 0, 0, 0};
  args.inputs.beta = {in.beta.data(), LEAPQUANT_FP32, 0, 0, 0, 0};
  args.inputs.qk_l2norm = 1;
  args.inputs.q_scale = 0.0883883f;
  result->output.assign(in.v.size(), 0x7fc0);
  result->status.assign(in.slots.size(), -1);
  args.output.data = result->output.data();
  args.output.type = LEAPQUANT_BF16;
  args.status = result->status.data();
  return args;
}

// As src/cuda/small_128.cu launches it.
Result decode(const Layout& layout, const Inputs& in, Pool* pool, Setting setting) {
  Result result;
  cuda::Call128 call;
  EXPECT_TRUE(cuda::make_call_128(layout, pool->view(layout), arguments(in, &result), &call));
  EXPECT_EQ(call.plain, 1);
  call.checked = 1;
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

Inputs draw(const Case& c, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  const auto rows = [&](int heads) {
    std::vector<uint16_t> x(static_cast<size_t>(c.batch * heads * 128));
    for (uint16_t& value : x) value = float_to_bf16(normal(*random));
    return x;
  };
  Inputs in;
  in.q = rows(c.k_heads), in.k = rows(c.k_heads), in.v = rows(c.v_heads);
  for (int i = 0; i < c.batch * c.v_heads; ++i) {
    in.decay.push_back(-0.05f * std::fabs(normal(*random)));
    in.beta.push_back(0.5f + 0.1f * normal(*random));
  }
  return in;
}

// Rounded to BF16, outputs within 2^-18 of one another differ in fewer than one of sixteen values,
// and by 2^-7 of a value at most there: 2^-7 / 4 of the norm.
constexpr double kMostError = 1.0 / 512;

double error_of(const std::vector<uint16_t>& x, const std::vector<uint16_t>& truth) {
  double lost = 0.0;
  double all = 1e-30;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = bf16_to_float(truth[i]);
    lost += std::pow(bf16_to_float(x[i]) - value, 2);
    all += value * value;
  }
  return std::sqrt(lost / all);
}

// What the reference answers to the call on the bytes of `canonical`, a copy of a pool of the
// device's order, which it puts in the canonical one first.
Result decode_by_reference(const Layout& layout, const Inputs& in, Pool* canonical) {
  reorder(layout, layout.state_bytes, &canonical->states, memory_of_cuda().to_canonical);
  Result truth;
  const leapquant_launch with = LEAPQUANT_INIT(leapquant_launch);
  EXPECT_EQ(
      reference::backend().decode(layout, canonical->view(layout), arguments(in, &truth), with),
      LEAPQUANT_OK);
  return truth;
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
