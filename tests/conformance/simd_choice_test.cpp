// SPDX-License-Identifier: Apache-2.0
//
// LEAPQUANT_SIMD (case N1): a target that does not exist or that this machine lacks is refused with
// a sentence, and never runs. A program of its own, since the variable is read once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "conformance/session.h"
#include "cpu/backend.h"
#include "cpu/targets.h"

namespace leapquant::conformance {
namespace {

TEST(SimdChoice, UnknownTargetIsRefused) {
  ASSERT_EQ(setenv("LEAPQUANT_SIMD", "AVX9", 1), 0);
  const Layout layout = make_test_layout(make_shape(1, 1, 16, 16, LEAPQUANT_DECAY_SCALAR), "int8");
  Sentence why_not;
  EXPECT_EQ(cpu::cpu_backend().accepts(layout, &why_not), LEAPQUANT_UNSUPPORTED);
  EXPECT_NE(std::string(why_not.text).find("AVX9"), std::string::npos) << why_not.text;
  EXPECT_NE(std::string(why_not.text).find("LEAPQUANT_SIMD"), std::string::npos) << why_not.text;
}

TEST(SimdChoice, OnlySupportedTargetsCanBeForced) {
  int32_t count = 0;
  const cpu::Target* targets = cpu::supported_targets(&count);
  ASSERT_GE(count, 1);
  const std::string before = cpu::target_name();
  EXPECT_FALSE(cpu::force_target("AVX9"));
  EXPECT_EQ(cpu::target_name(), before);
  for (int32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(cpu::force_target(targets[i].name));
    EXPECT_STREQ(cpu::target_name(), targets[i].name);
  }
  ASSERT_TRUE(cpu::force_target(nullptr));
  EXPECT_EQ(cpu::target_name(), before);
}

}  // namespace
}  // namespace leapquant::conformance
