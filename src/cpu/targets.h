// SPDX-License-Identifier: Apache-2.0
//
// SIMD targets of the CPU backend: which ones this program holds, which ones this machine runs, and
// which one is chosen. The choice is made once: the best one, or what LEAPQUANT_SIMD names. It is
// the backend's own; other users of Highway in the process are not touched.
#pragma once

#include <cstdint>

namespace leapquant::cpu {

// A target that is compiled in, best first. bit is Highway's HWY_AVX2 and so on.
struct Target {
  const char* name;  // "AVX3", "AVX2", "SSE4", "EMU128", ...: what LEAPQUANT_SIMD takes
  int64_t bit;
};

// Targets that are compiled in and that this machine supports, best first; *count receives how
// many. Static storage; never empty.
const Target* supported_targets(int32_t* count);

// Name of the chosen target.
const char* target_name();

// Null when the choice stands; otherwise one sentence: LEAPQUANT_SIMD names something unknown or
// something that this machine lacks. The backend's accepts() returns UNSUPPORTED with it. Until
// then the best supported target is used, so nothing ever runs an illegal instruction.
const char* target_refusal();

// For tests: chooses a target by name, null for the first choice again. False, and no change, when
// it is not supported. Not while operations run.
bool force_target(const char* name);

// Index of the chosen target in Highway's dispatch tables (LEAPQUANT_CPU_DISPATCH).
int64_t target_index();

}  // namespace leapquant::cpu

// Calls the chosen target's version of a function that HWY_EXPORT listed, in the way of
// HWY_DYNAMIC_DISPATCH but with the backend's own choice of target.
#define LEAPQUANT_CPU_DISPATCH(FUNCTION) \
  (*(HWY_DISPATCH_TABLE(FUNCTION)[::leapquant::cpu::target_index()]))
