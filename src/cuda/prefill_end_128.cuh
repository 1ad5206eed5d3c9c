// SPDX-License-Identifier: Apache-2.0
//
// The end of a stretch of prefill for heads of 128 x 128 in codes: states of the workspace into
// slots.
#pragma once

#include "core/layout.h"
#include "cuda/prefill_columns.cuh"

namespace leapquant::cuda {

// Whether end_128 encodes the states of this layout on the current device.
bool end_128_serves(const Layout& layout);
// What end_kernel does, for all items of the range, but for the state that goes on through a
// checkpoint.
cudaError_t end_128(const Layout& layout, const Call& call, const StretchRange& range,
                    cudaStream_t stream);

}  // namespace leapquant::cuda
