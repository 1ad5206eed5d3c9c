// SPDX-License-Identifier: Apache-2.0
//
// Steps of one token through decode kernels that are emulated: pools in host memory, inputs, and
// what the reference answers to a step on the same bytes. After device_code.h.
#ifndef LEAPQUANT_TESTS_EMULATOR_STEPS_H_
#define LEAPQUANT_TESTS_EMULATOR_STEPS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "conformance/session.h"
#include "core/numeric.h"
#include "cuda/decode_128.cuh"
#include "emulator/payload_order.h"
#include "reference/backend.h"

namespace leapquant::emulator {

using conformance::make_shape;

struct Case {
  int k_heads, v_heads, batch;
  const char* format;
  int32_t start;        // position and base of all heads at first
  bool vector = false;  // decays
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

inline leapquant_decode_args arguments(const Inputs& in, Result* result) {
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

// The common call, whose inputs a check has passed.
inline cuda::Call128 common_call(const Layout& layout, const Inputs& in, Pool* pool,
                                 Result* result) {
  cuda::Call128 call;
  EXPECT_TRUE(cuda::make_call_128(layout, pool->view(layout), arguments(in, result), &call));
  EXPECT_EQ(call.plain, 1);
  call.checked = 1;
  return call;
}

inline Inputs draw(const Case& c, std::mt19937_64* random) {
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
  while (c.vector && in.decay.size() < in.v.size()) {
    in.decay.push_back(-0.05f * std::fabs(normal(*random)));
  }
  return in;
}

// Rounded to BF16, outputs within 2^-18 of one another differ in fewer than one of sixteen values,
// and by 2^-7 of a value at most there: 2^-7 / 4 of the norm.
inline constexpr double kMostError = 1.0 / 512;

inline double error_of(const std::vector<uint16_t>& x, const std::vector<uint16_t>& truth) {
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
inline Result decode_by_reference(const Layout& layout, const Inputs& in, Pool* canonical) {
  reorder(layout, layout.state_bytes, &canonical->states, memory_of_cuda().to_canonical);
  Result truth;
  const leapquant_launch with = LEAPQUANT_INIT(leapquant_launch);
  EXPECT_EQ(
      reference::backend().decode(layout, canonical->view(layout), arguments(in, &truth), with),
      LEAPQUANT_OK);
  return truth;
}

}  // namespace leapquant::emulator

#endif  // LEAPQUANT_TESTS_EMULATOR_STEPS_H_
