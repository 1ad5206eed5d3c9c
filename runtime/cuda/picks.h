// SPDX-License-Identifier: Apache-2.0
//
// Greedy choices from rows of logits that stay on the device.
#ifndef LEAPQUANT_RUNTIME_CUDA_PICKS_H_
#define LEAPQUANT_RUNTIME_CUDA_PICKS_H_

#include <cstdint>

#include "runtime/cuda/device.h"
#include "runtime/sampler.h"

namespace leapquant::runtime::cuda {

// picks [rows] = pick_of each row of logits [rows, size]; all in device memory.
void pick_rows(cudaStream_t stream, const float* logits, std::int64_t rows, std::int64_t size,
               Pick* picks);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_PICKS_H_
