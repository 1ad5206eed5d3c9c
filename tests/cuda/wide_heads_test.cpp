// SPDX-License-Identifier: Apache-2.0
//
// Heads whose FP32 state does not fit the shared memory of a block, so that it lies in the
// workspace: decode, per-step decode, fold, prefill and export against the FP64 oracle on the same
// bytes, in more heads than there are blocks with such a workspace.
#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Session;
using conformance::TestBackend;

TestBackend general(const Layout& layout) { return conformance::device_backends(layout).back(); }

// 1e-5 of a head's norm over a window is FP32 rounding of sums over 256 keys; the last window is
// not whole, so twice that.
constexpr double kBar = 2e-5;

TEST(WideHeads, AgreeWithTheOracle) {
  for (const leapquant_shape& shape :
       {conformance::make_shape(1, 2, 256, 256, LEAPQUANT_DECAY_SCALAR),
        conformance::make_shape(1, 1, 192, 256, LEAPQUANT_DECAY_VECTOR, true, 2)}) {
    for (const char* format : {"int8", "int4+", "fp32", "fp32:step"}) {
      SCOPED_TRACE(std::string(format) + ", " + std::to_string(shape.head_k_dim));
      const Layout layout = conformance::make_test_layout(shape, std::string(format));
      const Tokens tokens = conformance::random_tokens(shape, 40, 7701);
      Session session(general(layout), layout, 2);
      session.reset(0);
      session.shadow(true);
      conformance::Outputs all;
      std::vector<double> expected;
      for (int32_t t = 0; t < 20; ++t) {
        if (t == 16 && !layout.per_step) session.fold(0, t);
        const conformance::Outputs o = session.decode_one(0, t, tokens, t, 1);
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
        all.insert(all.end(), o.begin(), o.end());
        expected.insert(expected.end(), session.oracle()[0].begin(), session.oracle()[0].end());
      }
      EXPECT_LE(conformance::worst_relative_error(all, expected, shape.num_v_heads, 256), kBar);
      const std::vector<float> exported = session.export_state(0, 20);
      const std::vector<double> state = session.state(0, 0, 20);
      std::vector<double> own(exported.begin(),
                              exported.begin() + static_cast<int64_t>(state.size()));
      EXPECT_LE(conformance::relative_error(own, state), kBar);
      const conformance::Outputs rest = session.prefill({{0, 20, &tokens, 20, 20}})[0];
      EXPECT_LE(
          conformance::worst_relative_error(rest, session.oracle()[0], shape.num_v_heads, 256),
          kBar);
    }
  }
}

// 300 sequences of one head, 264 blocks: those that wait get the same bits.
TEST(WideHeads, MoreHeadsThanBlocks) {
  const leapquant_shape shape = conformance::make_shape(1, 1, 200, 200, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = conformance::make_test_layout(shape, std::string("int8"));
  const Tokens tokens = conformance::random_tokens(shape, 4, 7702);
  Session session(general(layout), layout, 300);
  std::vector<conformance::Row> rows;
  for (int32_t i = 0; i < 300; ++i) {
    session.reset(i);
    rows.push_back({i, 0, &tokens, 0, 4});
  }
  const std::vector<conformance::Outputs> o = session.decode(rows);
  for (size_t i = 1; i < o.size(); ++i) ASSERT_EQ(o[i], o[0]) << i;
}

}  // namespace
}  // namespace leapquant::cuda_test
