// SPDX-License-Identifier: Apache-2.0
//
// The joint short convolution of a linear layer on the device: depthwise and causal, SiLU after it.
// Its state is a ring of the last kernel - 1 inputs per sequence: token t lies at index
// t mod (kernel - 1), so that a step reads the ring and writes one row of it.
#ifndef LEAPQUANT_RUNTIME_CUDA_CONVOLUTION_H_
#define LEAPQUANT_RUNTIME_CUDA_CONVOLUTION_H_

#include <cstdint>

#include "runtime/cuda/device.h"
#include "runtime/cuda/pass_tables.h"

namespace leapquant::runtime::cuda {

inline constexpr std::int32_t kMostTaps = 8;

struct Convolution {
  const void* x;  // rows of `channels` elements, x_stride elements apart
  std::int64_t x_stride;
  const float* weights;  // [taps, channels]; the last tap multiplies the current token
  std::int32_t taps;
  std::int64_t channels;
  void* history;              // of place 0: [taps - 1, channels] elements
  std::int64_t place_stride;  // elements between places
  void* y;                    // [rows, channels]
};

// y from x and the rings; then the rings take the inputs. Rows of padding get zeros.
void convolve(cudaStream_t stream, const Convolution& convolution, const PassTables& tables,
              const PassSize& size, Element element);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_CONVOLUTION_H_
