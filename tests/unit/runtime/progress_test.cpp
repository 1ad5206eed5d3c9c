// SPDX-License-Identifier: Apache-2.0
//
// The text of the progress bar.
#include "runtime/progress.h"

#include <gtest/gtest.h>

namespace leapquant::runtime {
namespace {

TEST(Progress, ShowsShareCountTimeAndNote) {
  EXPECT_EQ(progress_line("int8", 6, 12, 65.4, "900 tokens/s", 200),
            "int8 [############............] 6/12, 1:05, 900 tokens/s");
  EXPECT_EQ(progress_line("fp32", 12, 12, 3725, "", 200),
            "fp32 [########################] 12/12, 1:02:05");
}

TEST(Progress, WithoutATotalItCounts) {
  EXPECT_EQ(progress_line("prompt", 512, 0, 2, "", 200), "prompt 512, 2 s");
}

TEST(Progress, FitsIntoTheTerminal) {
  EXPECT_EQ(progress_line("int8", 6, 12, 1, "note", 20).size(), 20u);
  // More done than announced must not draw beyond the bar.
  EXPECT_EQ(progress_line("x", 5, 4, 1, "", 200), "x [########################] 5/4, 1 s");
}

}  // namespace
}  // namespace leapquant::runtime
