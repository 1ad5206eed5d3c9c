// SPDX-License-Identifier: Apache-2.0
//
// Folds of 128 x 128 heads by the CUDA kernel, emulated: what tests/cuda asks of them on a device,
// where there is none. That neither the order of threads nor the launch changes a bit is checked
// at every call (fold_backend.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "conformance/session.h"
#include "core/position.h"
#include "cuda/fold_errors.h"
#include "emulator/fold_backend.h"

namespace leapquant::emulator {
namespace {

using conformance::make_shape;
using conformance::random_tokens;
using conformance::Session;
using conformance::Tokens;
using cuda_test::fold_errors;
using cuda_test::FoldErrors;

struct Case {
  leapquant_shape shape;
  const char* format;
};

// Every branch of the fit and of the codec: bits, kinds and numbers of compensators, scales,
// boundaries, decays. With six heads a team of threads folds one after another, where the next
// head's state arrives while one is folded.
std::vector<Case> cases() {
  const leapquant_shape one = make_shape(1, 1, 128, 128, LEAPQUANT_DECAY_SCALAR);
  const leapquant_shape two = make_shape(1, 2, 128, 128, LEAPQUANT_DECAY_SCALAR);
  const leapquant_shape six = make_shape(3, 6, 128, 128, LEAPQUANT_DECAY_SCALAR);
  const leapquant_shape kda = make_shape(1, 1, 128, 128, LEAPQUANT_DECAY_VECTOR);
  const leapquant_shape kda_six = make_shape(6, 6, 128, 128, LEAPQUANT_DECAY_VECTOR);
  return {{six, "int8"},
          {one, "int6"},
          {one, "int4"},
          {two, "int8+:stagger=1"},
          {one, "int6+"},
          {six, "int4+"},
          {one, "int4-compact"},
          {six, "mix(int8+@0-2,int4-compact)"},
          {six, "mix(int8@0-1,int4+@2-3,int8+)"},
          {one, "8:r=0"},
          {one, "6:r=1"},
          {one, "4h:r=0"},
          {one, "4:r=20"},
          {one, "8:r=32"},
          {one, "4:i4=32"},
          {one, "4:r=2:i8=1"},
          {one, "4:r=2:smooth=none"},
          {one, "4h:r=2:i8=3:i4=5"},
          {kda, "int8"},
          {kda_six, "int8+:decay=fp16"},
          {kda, "int4+:stagger=1"},
          {make_shape(1, 2, 128, 128, LEAPQUANT_DECAY_NONE, false), "int8"}};
}

// The bars of tests/cuda/kernels_128_test: the fit is not unique and FP32 takes other turns in it
// than FP64, so a fold may have 1.05 of the reference's error, or be nearly exact. The error that a
// fold reports is one against its own rebuild: halves in two parts and sums of 16 cut to FP32,
// within 2^-20 of the state's norm of the exact one, and as much again for the sum of its squares.
// Of the compensators' energy as in tests/cuda/edge_heads_test; where all have 4 bits their fit has
// more turns, whose worth the first bar tells.
TEST(FoldEmulator, FoldsAreAsGoodAsTheReferences) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.format);
    const Layout layout = conformance::make_test_layout(c.shape, std::string(c.format));
    const Tokens tokens = random_tokens(c.shape, 33, 8402, conformance::Kind::kOutliers);
    Session session(fold_backend(), layout, 1);
    session.reset(0);
    int32_t folds = 0;
    for (int32_t t = 0; t < 33; t += t % 16 == 0 ? 1 : 5) {
      conformance::PoolMemory before = session.memory();
      session.decode_one(0, t, tokens, t, t % 16 == 0 ? 1 : 5);
      ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
      for (int32_t h = 0; h < c.shape.num_v_heads; ++h) {
        const int32_t base = session.memory().base(0)[h];
        const int32_t due = std::max(
            last_boundary(t, layout.head_boundary[static_cast<size_t>(h)], layout.window_tokens),
            0);
        ASSERT_EQ(base, due) << "token " << t;
        if (base == before.base(0)[h]) continue;
        ++folds;
        const FoldErrors errors = fold_errors(&session, &before, h);
        EXPECT_TRUE(errors.own <= 1.05 * errors.reference || errors.own <= 1e-3 * errors.norm)
            << "head " << h << ", token " << t << ": " << errors.own / errors.reference;
        const leapquant_health& health = session.memory().health(0)[h];
        EXPECT_EQ(health.flags, errors.health.flags);
        EXPECT_NEAR(health.fold_error, errors.own / errors.norm, 2e-6);
        const leapquant_format& format = layout.head(h).format;
        if (format.num_int4 > 0 && format.num_fp16 + format.num_int8 == 0) continue;
        EXPECT_NEAR(health.compensator_energy, errors.health.compensator_energy, 2e-3);
      }
    }
    EXPECT_EQ(folds, 2 * c.shape.num_v_heads);
  }
}

// A call whose rows are, in this order: a padding row, one with an input that is not finite, two
// that are in order, and one far past its window. Those in order fold as if they were alone; no
// other row's state changes.
TEST(FoldEmulator, FaultsStayWithTheirRows) {
  const leapquant_shape shape = make_shape(1, 2, 128, 128, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = conformance::make_test_layout(shape, std::string("int8"));
  const Tokens tokens = random_tokens(shape, 17, 8403);
  Tokens faulty = tokens;
  faulty.v[faulty.v.size() - 7] = std::numeric_limits<float>::quiet_NaN();
  Session alone(fold_backend(), layout, 1);
  Session many(fold_backend(), layout, 4);
  alone.reset(0);
  for (int32_t slot = 0; slot < 4; ++slot) many.reset(slot);
  for (int32_t t = 0; t < 16; t += 8) {
    alone.decode_one(0, t, tokens, t, 8);
    many.decode({{2, t, &tokens, t, 8}, {0, t, &tokens, t, 8}, {3, t, &tokens, t, 8}});
  }
  const std::vector<std::byte> before = many.memory().slot_bytes(3);
  const std::vector<std::byte> untouched = many.memory().slot_bytes(1);
  alone.decode_one(0, 16, tokens, 16, 1);
  many.decode({{-1, 16, &tokens, 16, 1},
               {3, 16, &faulty, 16, 1},
               {0, 16, &tokens, 16, 1},
               {2, 16, &tokens, 16, 1},
               {1, 40, &tokens, 16, 1}});
  const std::vector<int32_t> expected = {LEAPQUANT_OK, LEAPQUANT_NON_FINITE_INPUT, LEAPQUANT_OK,
                                         LEAPQUANT_OK, LEAPQUANT_POSITION_PAST_WINDOW};
  EXPECT_EQ(many.status(), expected);
  EXPECT_TRUE(many.memory().slot_bytes(3) == before);
  EXPECT_TRUE(many.memory().slot_bytes(1) == untouched);
  EXPECT_TRUE(many.memory().slot_bytes(0) == alone.memory().slot_bytes(0));
  EXPECT_TRUE(many.memory().slot_bytes(2) == alone.memory().slot_bytes(0));
  EXPECT_EQ(alone.memory().base(0)[0], 16);
}

}  // namespace
}  // namespace leapquant::emulator
