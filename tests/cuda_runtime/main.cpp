// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests where there is a CUDA device; elsewhere says so and exits with 77, which CTest
// shows as skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "runtime/engine.h"
#include "runtime/error.h"
#include "runtime/model.h"

namespace {

constexpr int kSkipped = 77;

bool device_is_missing() {
  using namespace leapquant::runtime;
  const auto model =
      Model::load(std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m");
  try {
    load_on_cuda(model, Activations::kBf16);
    return false;
  } catch (const Error& error) {
    // Any other failure is the tests' to report.
    if (std::string_view(error.what()).find("no CUDA device") == std::string_view::npos) {
      return false;
    }
    std::printf("SKIPPED: %s\n", error.what());
    return true;
  }
}

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  if (device_is_missing()) return kSkipped;
  return RUN_ALL_TESTS();
}
