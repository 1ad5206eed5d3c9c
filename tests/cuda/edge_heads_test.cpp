// SPDX-License-Identifier: Apache-2.0
//
// Folds of states with an odd structure (cases C7, C8): ranks one and two, zero, small and large
// ones, one hot row, a boundary that decayed to nothing and channels that never decay. On heads of
// 128 x 128, where the special kernels fold inside a decode.
#include "cuda/edge_heads.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using conformance::make_test_layout;
using conformance::random_tokens;
using conformance::Session;
using conformance::Tokens;

LEAPQUANT_ON_DEVICE_BACKENDS(EdgeHeads128, "int8");

constexpr const char* kFormats[] = {"int8",  "int6",  "int4",        "int8+",
                                    "int6+", "int4+", "int4-compact"};

TEST_P(EdgeHeads128, FoldAsTheReference) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : kFormats) {
      for (const char* kind :
           {"rank_1", "rank_2", "zero", "small", "big", "hot_row", "tiny_rows"}) {
        fold_edge_state(backend(), shape, format, kind);
      }
    }
  }
}

TEST_P(EdgeHeads128, BoundaryDecayedToNothing) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : kFormats) {
      for (float g : {-90.0f, -std::numeric_limits<float>::infinity()}) {
        fold_decayed_boundary(backend(), shape, format, g);
      }
    }
  }
}

TEST_P(EdgeHeads128, ChannelsThatVanishAndChannelsThatStay) {
  for (const char* format : kFormats) fold_vanishing_channels(backend(), kda_128(1), format);
}

// Tokens all alike after the first ones, as a model repeats them: heads of rank 1 to 4, whose other
// compensators are rounding. Enough heads that rare roundings come up.
TEST_P(EdgeHeads128, TokensAlikeLeaveFiniteHeads) {
  constexpr int32_t kTokens = 36;
  const leapquant_shape shape = gdn_128(16, 32);
  for (const char* format : {"int8", "int8:stagger=1", "int6:stagger=1", "int4:stagger=1"}) {
    for (const int32_t distinct : {1, 2, 3}) {
      SCOPED_TRACE(std::string(format) + ", distinct " + std::to_string(distinct));
      Tokens tokens = random_tokens(shape, kTokens, static_cast<uint32_t>(8320 + distinct));
      const auto repeat = [&](std::vector<float>& x) {
        const size_t row = x.size() / kTokens;
        const size_t last = row * static_cast<size_t>(distinct - 1);
        for (size_t i = last + row; i < x.size(); ++i) x[i] = x[i - row];
      };
      repeat(tokens.q), repeat(tokens.k), repeat(tokens.v);
      repeat(tokens.log_decay), repeat(tokens.beta);
      Session session(backend(), make_test_layout(shape, format), 1);
      session.import_state(0, 0, std::vector<float>(32 * 128 * 128, 0.0f));
      for (int32_t t = 0; t < kTokens; ++t) {
        session.decode_one(0, t, tokens, t, 1);
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK) << t;
      }
      for (int32_t h = 0; h < 32; ++h) {
        for (const double x : session.state(0, h, kTokens)) ASSERT_TRUE(std::isfinite(x)) << h;
      }
    }
  }
}

// Few calls, a fold: what the slowest sanitizer runs (sanitize.sh).
TEST_P(EdgeHeads128, FoldsAfterTwoCalls) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : {"int8", "int4+"}) {
      Session session(backend(), make_test_layout(shape, format), 1);
      session.import_state(0, 0, edge_state("big", 8309));
      expect_good_fold(&session, random_tokens(shape, 17, 8310), 0, format, 8);
    }
  }
}

// C8: beyond what FP16 parts hold nothing becomes infinite, and the flags say what saturated.
TEST_P(EdgeHeads128, EnormousStatesStayFiniteAndAreFlagged) {
  for (const char* format : kFormats) {
    for (const char* kind : {"huge", "enormous"}) {
      Session session(backend(), make_test_layout(gdn_128(1, 1), format), 1);
      session.import_state(0, 0, edge_state(kind, 8307));
      const Tokens tokens = random_tokens(gdn_128(1, 1), 34, 8308);
      for (float x : session.decode_steps(0, 0, tokens, 0, 34)) {
        ASSERT_TRUE(std::isfinite(x)) << format << " " << kind;
      }
      for (double x : session.state(0, 0, 32))
        ASSERT_TRUE(std::isfinite(x)) << format << " " << kind;
      if (std::string(kind) == "huge") continue;
      const uint32_t expected = static_cast<uint32_t>(LEAPQUANT_HEALTH_COMPENSATOR_SATURATED) |
                                static_cast<uint32_t>(LEAPQUANT_HEALTH_RECORD_SATURATED);
      EXPECT_EQ(session.memory().health(0)->flags & expected, expected) << format;
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
