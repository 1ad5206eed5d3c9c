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

class OnDeviceBackends : public ::testing::TestWithParam<conformance::TestBackend> {
 protected:
  const conformance::TestBackend& backend() const { return GetParam(); }
  // Whether this backend serves the layout; every layout has one that does.
  bool serves(const Layout& layout) const {
    Sentence why_not;
    return backend().table->accepts(layout, &why_not) == LEAPQUANT_OK;
  }
};

inline std::vector<conformance::TestBackend> backends_of_heads_128() {
  return conformance::device_backends(conformance::make_test_layout(gdn_128(), "int8"));
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

// Declares test class NAME and runs its tests on every device backend for 128 x 128 heads.
#define LEAPQUANT_ON_DEVICE_BACKENDS(NAME)                                                       \
  class NAME : public ::leapquant::cuda_test::OnDeviceBackends {};                               \
  INSTANTIATE_TEST_SUITE_P(Heads128, NAME,                                                       \
                           ::testing::ValuesIn(::leapquant::cuda_test::backends_of_heads_128()), \
                           ::leapquant::cuda_test::backend_name)
