// SPDX-License-Identifier: Apache-2.0
//
// The choice of the SIMD target; no arithmetic.
#include "cpu/targets.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cpu/simd.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace leapquant::cpu {
namespace {

constexpr int32_t kMaxTargets = 16;

// What the first use found: filled once, then only read.
struct Choice {
  Target targets[kMaxTargets];
  int32_t count = 0;
  int32_t first = 0;  // index of the target to use
  char refusal[256] = {0};

  Choice() {
    // The portable target runs anywhere, whatever Highway's detection says.
    const int64_t supported = (hwy::SupportedTargets() | HWY_EMU128 | HWY_SCALAR) & HWY_TARGETS;
    for (int32_t bit = 0; bit < 63 && count < kMaxTargets; ++bit) {  // lower bits are better
      const int64_t target = int64_t{1} << bit;
      if ((supported & target) != 0) targets[count++] = {hwy::TargetName(target), target};
    }
    const char* wanted = std::getenv("LEAPQUANT_SIMD");
    if (wanted == nullptr || *wanted == '\0') return;
    const int32_t found = find(wanted);
    if (found >= 0) {
      first = found;
      return;
    }
    char list[128] = {0};
    for (int32_t i = 0; i < count; ++i) {
      const size_t used = std::strlen(list);
      std::snprintf(list + used, sizeof(list) - used, "%s%s", i == 0 ? "" : ", ", targets[i].name);
    }
    std::snprintf(refusal, sizeof(refusal),
                  "LEAPQUANT_SIMD is '%.32s', but this build on this machine has %s; unset it or "
                  "name one of these",
                  wanted, list);
  }

  int32_t find(const char* name) const {
    for (int32_t i = 0; i < count; ++i) {
      if (std::strcmp(targets[i].name, name) == 0) return i;
    }
    return -1;
  }
};

const Choice& choice() {
  static const Choice instance;
  return instance;
}

int64_t dispatch_index(int64_t target) {
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) {
    return 0;  // one target only: Highway's tables have one entry
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    return static_cast<int64_t>(chosen.GetIndex());
  }
}

// The chosen target in use; -1 until the first question.
std::atomic<int32_t> current_target{-1};
std::atomic<int64_t> current_index{-1};

void use(int32_t target) {
  current_index.store(dispatch_index(choice().targets[target].bit), std::memory_order_relaxed);
  current_target.store(target, std::memory_order_relaxed);
}

}  // namespace

const Target* supported_targets(int32_t* count) {
  *count = choice().count;
  return choice().targets;
}

const char* target_name() {
  if (current_target.load(std::memory_order_relaxed) < 0) use(choice().first);
  return choice().targets[current_target.load(std::memory_order_relaxed)].name;
}

const char* target_refusal() { return choice().refusal[0] == '\0' ? nullptr : choice().refusal; }

bool force_target(const char* name) {
  const int32_t target = name == nullptr ? choice().first : choice().find(name);
  if (target < 0) return false;
  use(target);
  return true;
}

int64_t target_index() {
  const int64_t index = current_index.load(std::memory_order_relaxed);
  if (index >= 0) [[likely]] {
    return index;
  }
  use(choice().first);
  return current_index.load(std::memory_order_relaxed);
}

}  // namespace leapquant::cpu
