// SPDX-License-Identifier: Apache-2.0
//
// Lists what can run here.
#include "conformance/backends.h"

#include <cstdio>
#include <cstdlib>

#include "backend/registry.h"
#include "conformance/mirrored.h"
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
  // The general backend of a device, which serves any layout; that none is there is said once.
  size_t built_in = 0;
  const Backend* const* tables = built_in_backends(&built_in);
  const Layout any{};
  for (size_t i = 0; i < built_in; ++i) {
    if (tables[i]->memory == nullptr || std::string(tables[i]->name) != "cuda") continue;
    Sentence why_not;
    if (tables[i]->accepts(any, &why_not) == LEAPQUANT_OK) {
      list.push_back({tables[i]->name, &mirrored(*tables[i]), ""});
    } else {
      std::fprintf(stderr, "conformance without a device: %s\n", why_not.text);
    }
  }
  return list;
}

}  // namespace

const std::vector<TestBackend>& backends_under_test() {
  static const std::vector<TestBackend> list = list_backends();
  return list;
}

const TestBackend& best_cpu_backend() { return backends_under_test()[1]; }

std::vector<TestBackend> device_backends(const Layout& layout) {
  std::vector<TestBackend> list;
  size_t built_in = 0;
  const Backend* const* tables = built_in_backends(&built_in);
  for (size_t i = 0; i < built_in; ++i) {
    Sentence why_not;
    if (tables[i]->memory == nullptr || tables[i]->accepts(layout, &why_not) != LEAPQUANT_OK) {
      continue;
    }
    list.push_back({tables[i]->name, &mirrored(*tables[i]), ""});
  }
  return list;
}

ForcedTarget::ForcedTarget(const TestBackend& backend) : forced_(!backend.simd_target.empty()) {
  if (forced_ && !cpu::force_target(backend.simd_target.c_str())) {
    std::fprintf(stderr, "cannot force SIMD target %s\n", backend.simd_target.c_str());
    std::abort();
  }
}

ForcedTarget::~ForcedTarget() {
  if (forced_) cpu::force_target(nullptr);
}

}  // namespace leapquant::conformance
