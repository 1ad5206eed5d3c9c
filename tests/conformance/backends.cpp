// SPDX-License-Identifier: Apache-2.0
//
// Lists what can run here.
#include "conformance/backends.h"

#include <cstdio>
#include <cstdlib>

#include "cpu/backend.h"
#include "cpu/targets.h"
#include "reference/backend.h"

namespace leapquant::conformance {
namespace {

std::vector<TestBackend> list_backends() {
  std::vector<TestBackend> list;
  list.push_back({"reference", &reference::backend(), ""});
  int32_t count = 0;
  const cpu::Target* targets = cpu::supported_targets(&count);
  for (int32_t i = 0; i < count; ++i) {
    list.push_back({std::string("cpu_") + targets[i].name, &cpu::cpu_backend(), targets[i].name});
  }
  return list;
}

}  // namespace

const std::vector<TestBackend>& backends_under_test() {
  static const std::vector<TestBackend> list = list_backends();
  return list;
}

const TestBackend& best_cpu_backend() { return backends_under_test()[1]; }

ForcedTarget::ForcedTarget(const TestBackend& backend) : forced_(!backend.is_reference()) {
  if (forced_ && !cpu::force_target(backend.simd_target.c_str())) {
    std::fprintf(stderr, "cannot force SIMD target %s\n", backend.simd_target.c_str());
    std::abort();
  }
}

ForcedTarget::~ForcedTarget() {
  if (forced_) cpu::force_target(nullptr);
}

}  // namespace leapquant::conformance
