// SPDX-License-Identifier: Apache-2.0
//
// Tests of 128 x 128 heads that run once on every device backend taking them: the special kernels
// where they serve, and the general ones. Pools lie on the host (conformance/mirrored.h), so the
// FP64 oracle can read them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "conformance/session.h"

namespace leapquant::cuda_test {

inline leapquant_shape gdn_128(int32_t k_heads = 1, int32_t v_heads = 2) {
  return conformance::make_shape(k_heads, v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR);
}
inline leapquant_shape kda_128(int32_t heads = 2) {
  return conformance::make_shape(heads, heads, 128, 128, LEAPQUANT_DECAY_VECTOR);
}

// 36 tokens of two value heads with raw gates of this kind, step sizes through a sigmoid,
// normalised keys and scaled queries.
inline conformance::Tokens raw_gates_128(const leapquant_shape& shape, int32_t gate) {
  conformance::Tokens tokens = conformance::random_tokens(shape, 36, 8114);
  tokens.options.gate = gate;
  tokens.options.lower_bound = -5.0f;
  tokens.options.beta_kind = LEAPQUANT_BETA_SIGMOID;
  tokens.options.beta_scale = 2.0f;
  tokens.options.qk_l2norm = 1;
  tokens.options.q_scale = 0.088f;
  tokens.a_log = {0.5f, -1.0f};
  const size_t biases = shape.decay == LEAPQUANT_DECAY_VECTOR ? 2 * 128 : 2;
  for (size_t i = 0; i < biases; ++i) {
    tokens.dt_bias.push_back(0.1f * static_cast<float>(i % 7) - 3.0f);
  }
  for (float& x : tokens.log_decay) x = 60.0f * (x + 0.05f);  // -3 to 3
  return tokens;
}

class OnDeviceBackends : public ::testing::TestWithParam<conformance::TestBackend> {
 protected:
  const conformance::TestBackend& backend() const { return GetParam(); }
  // Whether this backend serves the layout; every layout has one that does.
  bool serves(const Layout& layout) const {
    Sentence why_not;
    return backend().table->accepts(layout, &why_not) == LEAPQUANT_OK;
  }
};

inline std::vector<conformance::TestBackend> backends_of_heads_128(const char* format) {
  return conformance::device_backends(
      conformance::make_test_layout(gdn_128(), std::string(format)));
}
inline std::string backend_name(const ::testing::TestParamInfo<conformance::TestBackend>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Decodes tokens first .. first + count - 1 of slot 0, `step` a call. Every output is finite, and
// those of calls that do not fold agree with the oracle on the same stored bytes. A call that folds
// is left out: the fold would be the backend's on one side and the oracle's on the other. What is
// left is FP32 rounding, or as fine fixed-point forms of the read vectors: at most 1e-5 of a head's
// norm over a window, twice that here since the last group of tokens is less than a window.
//
// In a call of several tokens an entry of a correction that lies between two FP16 numbers may be
// rounded either way, and the tokens behind it see that: with 5e-6 of difference and a spacing of
// 2^-11 or more that is one entry in a hundred, each off by up to 2^-10: 1e-4 of the norm.
constexpr double kSeveralTokensBar = 1e-4;
inline void expect_oracle(conformance::Session* session, const conformance::Tokens& tokens,
                          int32_t first, int32_t count, int32_t step, const std::string& what,
                          double bar = 2e-5) {
  const leapquant_shape& shape = session->layout().shape;
  session->shadow(true);
  conformance::Outputs all;
  std::vector<double> expected;
  for (int32_t t = first; t < first + count; t += step) {
    const int32_t now = std::min(step, first + count - t);
    const int32_t* base = session->memory().base(0);
    const std::vector<int32_t> before(base, base + shape.num_v_heads);
    const conformance::Outputs o = session->decode_one(0, t, tokens, t, now);
    ASSERT_EQ(session->status()[0], LEAPQUANT_OK) << what << ", token " << t;
    for (float x : o) ASSERT_TRUE(std::isfinite(x)) << what << ", token " << t;
    if (!std::equal(before.begin(), before.end(), session->memory().base(0))) continue;
    all.insert(all.end(), o.begin(), o.end());
    expected.insert(expected.end(), session->oracle()[0].begin(), session->oracle()[0].end());
  }
  session->shadow(false);
  ASSERT_FALSE(all.empty()) << what;
  EXPECT_LE(conformance::worst_relative_error(all, expected, shape.num_v_heads, shape.head_v_dim),
            bar)
      << what;
}

}  // namespace leapquant::cuda_test

// Declares test class NAME and runs its tests on every device backend that takes 128 x 128 heads in
// FORMAT.
#define LEAPQUANT_ON_DEVICE_BACKENDS(NAME, FORMAT)                                                \
  class NAME : public ::leapquant::cuda_test::OnDeviceBackends {};                                \
  INSTANTIATE_TEST_SUITE_P(                                                                       \
      Heads128, NAME, ::testing::ValuesIn(::leapquant::cuda_test::backends_of_heads_128(FORMAT)), \
      ::leapquant::cuda_test::backend_name)
