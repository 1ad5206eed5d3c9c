// SPDX-License-Identifier: Apache-2.0
//
// Folds of states with an odd structure by the CUDA kernel, emulated; as tests/cuda/edge_heads_test
// on a device, with fewer formats.
#include <limits>

#include "cuda/edge_heads.h"
#include "cuda/heads_128.h"
#include "emulator/fold_backend.h"

namespace leapquant::emulator {
namespace {

using cuda_test::gdn_128;
using cuda_test::kda_128;

// Fits of few FP16 columns, of some, of those in 8 and 4 bits, few and many, of many in FP16, and
// of none.
constexpr const char* kFormats[] = {"int8", "int4", "int8+", "int4+", "4:r=20", "4h:r=2:i8=3:i4=5",
                                    "6:r=0"};
constexpr int32_t kStep = 8;  // tokens a call

TEST(EdgeHeadsEmulator, FoldAsTheReference) {
  for (const char* format : kFormats) {
    for (const char* kind : {"rank_1", "rank_2", "zero", "small", "big", "hot_row", "tiny_rows"}) {
      cuda_test::fold_edge_state(fold_backend(), gdn_128(1, 1), format, kind, kStep);
    }
  }
}

TEST(EdgeHeadsEmulator, VectorDecays) {
  for (const char* format : {"int8", "int6+"}) {
    for (const char* kind : {"rank_1", "hot_row"}) {
      cuda_test::fold_edge_state(fold_backend(), kda_128(1), format, kind, kStep);
    }
    cuda_test::fold_vanishing_channels(fold_backend(), kda_128(1), format, kStep);
  }
}

TEST(EdgeHeadsEmulator, BoundaryDecayedToNothing) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : {"int8", "int4+"}) {
      for (float g : {-90.0f, -std::numeric_limits<float>::infinity()}) {
        cuda_test::fold_decayed_boundary(fold_backend(), shape, format, g, kStep);
      }
    }
  }
}

// Beyond what FP16 parts hold nothing becomes infinite, and the flags say what saturated.
TEST(EdgeHeadsEmulator, EnormousStatesStayFiniteAndAreFlagged) {
  for (const char* format : {"int8", "int4+"}) {
    for (const char* kind : {"huge", "enormous"}) {
      const leapquant_shape shape = gdn_128(1, 1);
      conformance::Session session(fold_backend(),
                                   conformance::make_test_layout(shape, std::string(format)), 1);
      session.import_state(0, 0, cuda_test::edge_state(kind, 8307));
      const conformance::Tokens tokens = conformance::random_tokens(shape, 34, 8308);
      for (int32_t t = 0; t < 34; t += 2) session.decode_one(0, t, tokens, t, 2);
      for (double x : session.state(0, 0, 32)) ASSERT_TRUE(std::isfinite(x)) << format << kind;
      if (std::string(kind) == "huge") continue;
      EXPECT_TRUE(session.memory().health(0)->flags & LEAPQUANT_HEALTH_COMPENSATOR_SATURATED);
    }
  }
}

}  // namespace
}  // namespace leapquant::emulator
