// SPDX-License-Identifier: Apache-2.0
//
// The backends that every conformance test runs on: the reference, the CPU backend once for each
// SIMD target that this program holds and this machine runs, and, where there is a device, the
// general CUDA backend behind host pointers.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/operations.h"

namespace leapquant::conformance {

struct TestBackend {
  std::string name;  // "reference", "cpu_AVX2", "cuda": also the test's suffix
  const Backend* table = nullptr;
  std::string simd_target;  // to force before use; empty but for the CPU backend
};

const std::vector<TestBackend>& backends_under_test();

// The CPU backend at its best target: for tests too long to run on all of them.
const TestBackend& best_cpu_backend();

// The built-in backends of devices that this machine has, most special first, behind host pointers.
// `layout`: only those that accept it.
std::vector<TestBackend> device_backends(const Layout& layout);

// Chooses a backend's SIMD target while it lives.
class ForcedTarget {
 public:
  explicit ForcedTarget(const TestBackend& backend);
  ~ForcedTarget();
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;

 private:
  bool forced_;
};

// Base of tests that run once per backend.
class OnEveryBackend : public ::testing::TestWithParam<TestBackend> {
 protected:
  OnEveryBackend() : forced_(GetParam()) {}
  const TestBackend& backend() const { return GetParam(); }

 private:
  ForcedTarget forced_;
};

inline std::string backend_suffix(const ::testing::TestParamInfo<TestBackend>& info) {
  return info.param.name;
}

}  // namespace leapquant::conformance

// Declares test class NAME and runs its tests on every backend.
#define LEAPQUANT_ON_EVERY_BACKEND(NAME)                                                         \
  class NAME : public ::leapquant::conformance::OnEveryBackend {};                               \
  INSTANTIATE_TEST_SUITE_P(Backends, NAME,                                                       \
                           ::testing::ValuesIn(::leapquant::conformance::backends_under_test()), \
                           ::leapquant::conformance::backend_suffix)
