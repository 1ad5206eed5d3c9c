// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests of this program where a CUDA device serves; without one it says why and returns
// 77, which CTest counts as skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "backend/registry.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  size_t count = 0;
  const leapquant::Backend* const* backends = leapquant::built_in_backends(&count);
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(backends[i]->name, "cuda") != 0) continue;
    leapquant::Sentence why_not;
    if (backends[i]->accepts(leapquant::Layout{}, &why_not) == LEAPQUANT_OK) {
      return RUN_ALL_TESTS();
    }
    std::fprintf(stderr, "skipped: %s\n", why_not.text);
  }
  return 77;
}
