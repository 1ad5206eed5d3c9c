// SPDX-License-Identifier: Apache-2.0
//
// The parts of a call's workspace: first what the backend asks for (its workers' scratch, then its
// sequences'), then the door's own two integers a sequence, where faults of sequences wait when
// checks are off.
#pragma once

#include <cstddef>
#include <cstdint>

#include "capi/layout_handle.h"

namespace leapquant::capi {

inline size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline size_t backend_workspace_bytes(const leapquant_layout& handle, int32_t num_workers,
                                      int32_t batch) {
  return round_up_64(handle.backend->workspace_per_worker(handle.layout)) *
             static_cast<size_t>(num_workers) +
         round_up_64(handle.backend->workspace_per_sequence(handle.layout)) *
             static_cast<size_t>(batch);
}

inline size_t workspace_bytes(const leapquant_layout& handle, int32_t num_workers, int32_t batch) {
  return backend_workspace_bytes(handle, num_workers, batch) +
         round_up_64(2 * sizeof(int32_t) * static_cast<size_t>(batch));
}

}  // namespace leapquant::capi
