// SPDX-License-Identifier: Apache-2.0
//
// Layers of 128 x 128 heads on every device backend that takes them, against the FP64 oracle on the
// same stored bytes, with folds judged by their decoded states; and the bits that batches, row
// order and drafts must not change.
#include <algorithm>
#include <cmath>

#include "conformance/session.h"
#include "cuda/device_layer.h"
#include "cuda/fold_errors.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Session;
using conformance::TestBackend;

struct Case {
  leapquant_shape shape;
  const char* format;
};

std::vector<Case> cases() {
  const auto gdn = [](int32_t k_heads, int32_t v_heads) {
    return conformance::make_shape(k_heads, v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR);
  };
  const leapquant_shape kda = conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR);
  return {{gdn(2, 4), "int8"},
          {gdn(1, 2), "int6"},
          {gdn(1, 2), "int4"},
          {gdn(1, 2), "int8+:stagger=1"},
          {gdn(2, 2), "int6+"},
          {gdn(1, 2), "int4+"},
          {gdn(1, 2), "int4-compact"},
          {gdn(1, 2), "int8:r=8"},
          {gdn(1, 2), "mix(int8+@0,int4-compact)"},
          {kda, "int8"},
          {kda, "int8+:decay=fp16"},
          {kda, "int4+:stagger=1"},
          {conformance::make_shape(1, 2, 128, 128, LEAPQUANT_DECAY_NONE, false), "int8"}};
}

// Outputs of 42 tokens, one or three a call. A call that folds is left out: the fold would be the
// backend's on one side and the oracle's on the other. What is left is arithmetic on equal bytes:
// FP32 rounding, or as fine fixed-point forms of the read vectors, at most 1e-5 of a head's norm
// over a window; twice that here, as the last group of tokens is less than half a window.
TEST(Kernels128, OutputsAgreeWithTheOracleOnTheSameBytes) {
  for (const Case& c : cases()) {
    const Layout layout = conformance::make_test_layout(c.shape, std::string(c.format));
    const Tokens tokens = conformance::random_tokens(c.shape, 42, 7301);
    const auto heads = static_cast<size_t>(c.shape.num_v_heads);
    for (const TestBackend& backend : conformance::device_backends(layout)) {
      for (int32_t step : {1, 3}) {
        SCOPED_TRACE(backend.name + ", " + c.format + ", " + std::to_string(step));
        Session session(backend, layout, 1);
        session.shadow(true);
        session.reset(0);
        conformance::Outputs all;
        std::vector<double> expected;
        for (int32_t t = 0; t < 42; t += step) {
          int32_t* base = session.memory().base(0);
          const std::vector<int32_t> before(base, base + heads);
          const conformance::Outputs o = session.decode_one(0, t, tokens, t, step);
          ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
          if (!std::equal(before.begin(), before.end(), base)) continue;
          all.insert(all.end(), o.begin(), o.end());
          expected.insert(expected.end(), session.oracle()[0].begin(), session.oracle()[0].end());
        }
        EXPECT_LE(conformance::worst_relative_error(all, expected, c.shape.num_v_heads, 128), 2e-5);
      }
    }
  }
}

// Each head's stored state after a fold in a decode call is as near to the exact rebuild as the
// reference's: at most 1.05 of its error for one fold, or nearly exact.
TEST(Kernels128, FoldsAreAsGoodAsTheReferences) {
  for (const Case& c : cases()) {
    const Layout layout = conformance::make_test_layout(c.shape, std::string(c.format));
    const Tokens tokens =
        conformance::random_tokens(c.shape, 65, 7302, conformance::Kind::kOutliers);
    for (const TestBackend& backend : conformance::device_backends(layout)) {
      SCOPED_TRACE(backend.name + ", " + c.format);
      Session session(backend, layout, 1);
      session.reset(0);
      for (int32_t t = 0; t < 65; ++t) {
        conformance::PoolMemory before = session.memory();
        session.decode_one(0, t, tokens, t, 1);
        for (int32_t h = 0; h < c.shape.num_v_heads; ++h) {
          if (session.memory().base(0)[h] == before.base(0)[h]) continue;
          const FoldErrors errors = fold_errors(&session, &before, h);
          EXPECT_TRUE(errors.own <= 1.05 * errors.reference || errors.own <= 1e-3 * errors.norm)
              << "head " << h << ", token " << t << ": " << errors.own / errors.reference;
        }
      }
    }
  }
}

// A sequence alone, and the same in the last of many rows with other neighbours; T tokens in a call
// and T calls: the same bits.
TEST(Kernels128, BatchesAndDraftsChangeNoBit) {
  for (const Case& c : cases()) {
    const Layout layout = conformance::make_test_layout(c.shape, std::string(c.format));
    const Tokens same = conformance::random_tokens(c.shape, 24, 7303);
    const Tokens other = conformance::random_tokens(c.shape, 24, 7304);
    for (const TestBackend& backend : conformance::device_backends(layout)) {
      SCOPED_TRACE(backend.name + ", " + c.format);
      Session alone(backend, layout, 1);
      alone.reset(0);
      const conformance::Outputs expected = alone.decode_steps(0, 0, same, 0, 24);
      Session many(backend, layout, 62);
      for (int32_t slot = 0; slot < 62; ++slot) many.reset(slot);
      const size_t size = static_cast<size_t>(c.shape.num_v_heads) * 128;
      for (int32_t t = 0; t < 24; ++t) {
        std::vector<conformance::Row> rows;
        for (int32_t i = 0; i < 62; ++i) {
          const int32_t slot = (i * 5 + t) % 62;
          rows.push_back({slot, t, slot % 7 == 0 ? &same : &other, t, 1});
        }
        const std::vector<conformance::Outputs> o = many.decode(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          if (rows[i].slot % 7 != 0) continue;
          ASSERT_TRUE(
              std::equal(o[i].begin(), o[i].end(),
                         expected.begin() + static_cast<int64_t>(static_cast<size_t>(t) * size)))
              << "token " << t << ", row " << i;
        }
      }
      EXPECT_TRUE(many.memory().slot_bytes(0) == alone.memory().slot_bytes(0));

      // Drafts of four tokens between boundaries: kept ones are as if fed alone.
      Session drafts(backend, layout, 1);
      drafts.reset(0);
      drafts.decode_steps(0, 0, same, 0, 8);
      drafts.decode_one(0, 8, same, 8, 4);
      drafts.decode_one(0, 10, other, 10, 4);  // two kept, then other drafts, none kept
      Session single(backend, layout, 1);
      single.reset(0);
      single.decode_steps(0, 0, same, 0, 10);
      EXPECT_EQ(drafts.decode_one(0, 10, same, 10, 1), single.decode_one(0, 10, same, 10, 1));
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
