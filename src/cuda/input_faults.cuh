// SPDX-License-Identifier: Apache-2.0
//
// Faults of inputs: what was found, and how a sequence's status comes to say it.
#pragma once

#include "cuda/call.cuh"

namespace leapquant::cuda {

inline constexpr uint32_t kNotFinite = 1;
inline constexpr uint32_t kPositive = 2;

// The smallest fault found stays, in whatever order findings come.
__device__ __forceinline__ void lower_status(int32_t* status, int32_t fault) {
  int32_t seen = *reinterpret_cast<volatile int32_t*>(status);
  while (seen == LEAPQUANT_OK || fault < seen) {
    const int32_t before = atomicCAS(status, seen, fault);
    if (before == seen) return;
    seen = before;
  }
}
__device__ __forceinline__ void tell_faults(const Call& call, int32_t sequence, uint32_t found) {
  if (found == 0) return;
  lower_status(call.status + sequence, (found & kNotFinite) != 0 ? LEAPQUANT_NON_FINITE_INPUT
                                                                 : LEAPQUANT_POSITIVE_LOG_DECAY);
}

// Of a log decay as it is used: at most 0, -inf allowed.
__device__ __forceinline__ uint32_t log_decay_faults(float g) {
  return (g != g ? kNotFinite : 0u) | (g > 0.0f ? kPositive : 0u);
}

}  // namespace leapquant::cuda
