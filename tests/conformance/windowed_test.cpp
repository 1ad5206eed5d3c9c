// SPDX-License-Identifier: Apache-2.0
//
// Windowed decode of every preset against the oracle: the reference on a copy of the very bytes
// that the backend stored, taken before each call. So quantisation cancels out and FP32 arithmetic
// is all that may differ.
#include <gtest/gtest.h>

#include <limits>

#include "conformance/sequence_cases.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Windowed);

constexpr const char* kPresets[] = {"fp32",  "bf16",  "int8",  "int6",        "int4",
                                    "int8+", "int6+", "int4+", "int4-compact"};

struct Case {
  const char* name;
  leapquant_shape shape;
  Kind kind;
};

std::vector<Case> cases() {
  return {
      {"gdn", make_shape(2, 4, 64, 64, LEAPQUANT_DECAY_SCALAR), Kind::kOutliers},
      {"gdn wide", make_shape(1, 1, 128, 128, LEAPQUANT_DECAY_SCALAR), Kind::kPlain},
      {"kda", make_shape(2, 2, 64, 96, LEAPQUANT_DECAY_VECTOR), Kind::kStrong},
      {"kda odd", make_shape(1, 2, 60, 100, LEAPQUANT_DECAY_VECTOR), Kind::kPlain},
      {"product", make_shape(1, 2, 32, 64, LEAPQUANT_DECAY_SCALAR, true, 3), Kind::kPlain},
      {"gla", make_shape(2, 2, 256, 32, LEAPQUANT_DECAY_VECTOR, false), Kind::kSlow},
  };
}

// A fold inside the call would be the backend's on one side and the oracle's on the other. Folds
// are compared in fold_test; here boundaries fold by a call of their own, and both then read equal
// bytes.
TEST_P(Windowed, OutputsEqualTheOracleOnTheSameBytes) {
  for (const Case& c : cases()) {
    for (const char* preset : kPresets) {
      Session session(backend(), make_test_layout(c.shape, preset), 1);
      session.reset(0);
      const Tokens tokens = random_tokens(c.shape, 37, 21, c.kind);
      session.shadow(true);
      Outputs all;
      std::vector<double> expected;
      for (int32_t t = 0; t < tokens.count; ++t) {
        if (t > 0 && t % 16 == 0) session.fold(0, t);
        const Outputs o = session.decode_one(0, t, tokens, t, 1);
        ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
        all.insert(all.end(), o.begin(), o.end());
        expected.insert(expected.end(), session.oracle()[0].begin(), session.oracle()[0].end());
      }
      EXPECT_LE(worst_relative_error(all, expected, c.shape.num_v_heads, c.shape.head_v_dim), 1e-5)
          << c.name << " " << preset;
    }
  }
}

// Log decays stored as FP16 and staggered boundaries, drafts of several tokens. Inside one call the
// oracle's later tokens read its own records; where FP32 and FP64 corrections round to different
// FP16 neighbours (one in some thousands), an entry of u differs by 2^-10 of itself: 1e-4 of a
// head's output norm covers several of these.
TEST_P(Windowed, DraftsEqualTheOracle) {
  for (const Case& c : cases()) {
    Session session(backend(), make_test_layout(c.shape, "int8+:stagger=1:decay=fp16"), 1);
    session.reset(0);
    const Tokens tokens = random_tokens(c.shape, 36, 22, c.kind);
    session.shadow(true);
    int32_t t = 0;
    for (int32_t step : {3, 8, 1, 5, 2, 8, 4, 5}) {
      session.fold(0, t);
      const Outputs o = session.decode_one(0, t, tokens, t, step);
      ASSERT_EQ(session.status()[0], LEAPQUANT_OK);
      EXPECT_LE(
          worst_relative_error(o, session.oracle()[0], c.shape.num_v_heads, c.shape.head_v_dim),
          1e-4)
          << c.name << " at " << t;
      t += step;
    }
  }
}

// Mixed formats by head: every head equals itself in a layer of one format, bit for bit.
TEST_P(Windowed, MixedFormatsByHead) {
  const leapquant_shape shape = make_shape(2, 4, 64, 64, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = random_tokens(shape, 20, 23);
  const auto run = [&](const char* format) {
    Session session(backend(), make_test_layout(shape, format), 1);
    session.reset(0);
    return session.decode_steps(0, 0, tokens, 0, 20);
  };
  const Outputs mixed = run("mix(int8+@0,int4-compact@2-3,int6)");
  const Outputs int8 = run("int8+");
  const Outputs compact = run("int4-compact");
  const Outputs int6 = run("int6");
  const Outputs* by_head[] = {&int8, &int6, &compact, &compact};
  for (size_t t = 0; t < 20; ++t) {
    for (size_t h = 0; h < 4; ++h) {
      for (size_t e = 0; e < 64; ++e) {
        const size_t i = (t * 4 + h) * 64 + e;
        ASSERT_EQ(mixed[i], (*by_head[h])[i]) << "token " << t << " head " << h;
      }
    }
  }
}

// Rows spread out with poison between them read as packed ones do (report 54, 56).
TEST_P(Windowed, StridedTensorsReadTheSame) {
  const leapquant_shape shape = make_shape(2, 4, 32, 64, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = make_test_layout(shape, "int8");
  const Tokens tokens = random_tokens(shape, 3, 24);
  Session session(backend(), layout, 2);
  session.reset(0);
  session.reset(1);
  const Outputs expected = session.decode_inputs(0, 0, tokens.inputs(), 3);

  const auto spread = [](const std::vector<float>& data, size_t heads, size_t width,
                         std::vector<float>* memory, leapquant_tensor* tensor) {
    const size_t head_stride = width + 8;
    const size_t row_stride = heads * head_stride + 16;
    memory->assign(3 * row_stride, std::numeric_limits<float>::quiet_NaN());
    for (size_t r = 0; r < 3; ++r) {
      for (size_t h = 0; h < heads; ++h) {
        for (size_t e = 0; e < width; ++e) {
          (*memory)[r * row_stride + h * head_stride + e] = data[(r * heads + h) * width + e];
        }
      }
    }
    tensor->data = memory->data();
    tensor->head_stride_bytes = static_cast<int64_t>(head_stride * 4);
    tensor->token_stride_bytes = static_cast<int64_t>(row_stride * 4);
  };
  std::vector<float> q, k, v;
  leapquant_inputs inputs = tokens.inputs();
  spread(tokens.q, 2, 32, &q, &inputs.q);
  spread(tokens.k, 2, 32, &k, &inputs.k);
  spread(tokens.v, 4, 64, &v, &inputs.v);
  EXPECT_EQ(session.decode_inputs(1, 0, inputs, 3), expected);
}

TEST_P(Windowed, TypesOfActivationsDoNotReachTheState) {
  const leapquant_shape shape = make_shape(2, 4, 32, 64, LEAPQUANT_DECAY_SCALAR);
  for (int32_t type : {LEAPQUANT_BF16, LEAPQUANT_FP16}) {
    expect_types_do_not_reach_the_state({backend(), shape, "int8"}, type, 4);
  }
}

}  // namespace
}  // namespace leapquant::conformance
