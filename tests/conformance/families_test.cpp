// SPDX-License-Identifier: Apache-2.0
//
// Every family's native recurrence against every backend: stored per step in FP32, windowed in
// FP32, prefilled. And the general form's own identities (method.md's combined read and window
// identity) against the reference, before any rounding.
#include <gtest/gtest.h>

#include "conformance/families.h"
#include "conformance/session.h"
#include "reference/prefill.h"

namespace leapquant::conformance {
namespace {

constexpr int32_t kTokens = 40;  // two full windows of 16 and a part

LEAPQUANT_ON_EVERY_BACKEND(Families);

// FP32 per step: one rounding of every entry per token, 2^-24 relative, and FP32 sums of K terms:
// far below the 1e-5 that is asked of a backend.
TEST_P(Families, Fp32PerStepEqualsTheNativeRecurrence) {
  for (const std::string& name : family_names()) {
    const Family family = make_family(name, 32, 48, kTokens, 11);
    Session session(backend(), make_test_layout(family.shape(), "fp32:step"), 1);
    session.reset(0);
    const Outputs o = session.decode_steps(0, 0, family.tokens, 0, kTokens);
    EXPECT_LE(worst_relative_error(o, family.outputs, family.shape().num_v_heads, 48), 1e-5)
        << name;
  }
}

// Windowed, records are FP16: a write key and a correction, each off by at most 2^-11 of an entry
// (2^-12 on average, at random), so a read is off by less than 2 x 2^-11 of the records' sum of
// magnitudes. 2e-3 of the output's norm holds unless terms cancel tenfold; a wrong decay, sub-step
// or hook gives errors of the order of one.
TEST_P(Families, Fp32WindowedEqualsTheNativeRecurrence) {
  for (const std::string& name : family_names()) {
    for (const char* format : {"fp32", "fp32:window=5"}) {
      const Family family = make_family(name, 32, 48, kTokens, 12);
      Session session(backend(), make_test_layout(family.shape(), format), 1);
      session.reset(0);
      const Outputs o = session.decode_steps(0, 0, family.tokens, 0, kTokens, 3);
      EXPECT_LE(worst_relative_error(o, family.outputs, family.shape().num_v_heads, 48), 2e-3)
          << name << " " << format;
    }
  }
}

// Prefill never rounds a record: FP32 arithmetic only.
TEST_P(Families, PrefillEqualsTheNativeRecurrence) {
  for (const std::string& name : family_names()) {
    const Family family = make_family(name, 32, 48, 150, 13);
    Session session(backend(), make_test_layout(family.shape(), "fp32"), 1);
    session.reset(0);
    const Outputs o = session.prefill({{0, 0, &family.tokens, 0, 150}})[0];
    EXPECT_LE(worst_relative_error(o, family.outputs, family.shape().num_v_heads, 48), 1e-5)
        << name;
    const std::vector<float> state = session.export_state(0, 150);
    const std::vector<double> as_double(state.begin(), state.end());
    EXPECT_LE(relative_error(as_double, family.state), 1e-5) << name;
  }
}

// 128 x 128 heads, the size that models use.
TEST_P(Families, FullSizeHeads) {
  for (const char* name : {"gated_delta_net", "kda_bounded"}) {
    const Family family = make_family(name, 128, 128, 20, 14);
    Session session(backend(), make_test_layout(family.shape(), "fp32:step"), 1);
    session.reset(0);
    const Outputs o = session.decode_steps(0, 0, family.tokens, 0, 20);
    EXPECT_LE(worst_relative_error(o, family.outputs, family.shape().num_v_heads, 128), 1e-5)
        << name;
  }
}

// The oracle itself, before rounding: FP64 sums of some hundred terms, 1e-12 with room.
TEST(FamiliesOfTheReference, AreExactBeforeRounding) {
  for (const std::string& name : family_names()) {
    const Family family = make_family(name, 32, 48, 60, 15);
    const Layout layout = make_test_layout(family.shape(), "fp32");
    PoolMemory memory(layout, 1);
    Session clean(backends_under_test()[0], layout, 1);
    clean.reset(0);
    const int32_t slot = 0;
    const int32_t position = 0;
    const int32_t offsets[] = {0, 60};
    int32_t status = -1;
    leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
    args.batch = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.token_offsets = offsets;
    args.inputs = family.tokens.inputs();
    args.status = &status;
    std::vector<double> outputs(family.outputs.size());
    reference::prefill_fp64(layout, clean.memory().pool(), args, outputs.data());
    EXPECT_EQ(status, LEAPQUANT_OK) << name;
    EXPECT_LE(relative_error(outputs, family.outputs), 1e-12) << name;
  }
}

}  // namespace
}  // namespace leapquant::conformance
