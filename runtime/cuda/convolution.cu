// SPDX-License-Identifier: Apache-2.0
//
// Two kernels: outputs, a block per row; then the rings, a block per sequence. Between them lies
// the end of a launch, so no row reads a ring that another has moved.
#include "runtime/cuda/convolution.h"

#include "runtime/cuda/elements.cuh"

namespace leapquant::runtime::cuda {
namespace {

constexpr int kThreads = 128;
// Threads stride over the channels; a row's channels are cut into this many blocks at most.
constexpr unsigned kParts = 8;

template <typename T>
__global__ void __launch_bounds__(kThreads) output_kernel(Convolution c, PassTables tables) {
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t segment = tables.row_segments[row];
  const std::int32_t slot = tables.slots[segment];
  const std::int32_t token = row - tables.first_rows[segment];
  const std::int32_t kept = c.taps - 1;
  const std::int32_t position = tables.positions[segment];
  const T* x = static_cast<const T*>(c.x) + row * c.x_stride;
  const T* ring = static_cast<const T*>(c.history) + slot * c.place_stride;
  T* y = static_cast<T*>(c.y) + row * c.channels;
  const bool live = slot >= 0 && token < tables.tokens[segment];
  for (std::int64_t channel = blockIdx.y * kThreads + threadIdx.x; channel < c.channels;
       channel += gridDim.y * kThreads) {
    float sum = 0.0f;
    if (live) {
      for (std::int32_t tap = 0; tap < c.taps; ++tap) {
        const std::int32_t back = kept - tap;
        float input;
        if (back <= token) {
          input = to_float(x[channel - back * c.x_stride]);
        } else {
          // Before the first token the ring holds zeros.
          const std::int32_t at = (position + token - back + kept) % kept;
          input = to_float(ring[at * c.channels + channel]);
        }
        sum += c.weights[tap * c.channels + channel] * input;
      }
    }
    narrow(silu(sum), &y[channel]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ring_kernel(Convolution c, PassTables tables) {
  const std::int32_t segment = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t slot = tables.slots[segment];
  if (slot < 0) return;
  const std::int32_t kept = c.taps - 1;
  const std::int32_t tokens = tables.tokens[segment];
  const std::int32_t position = tables.positions[segment];
  const T* x = static_cast<const T*>(c.x) + tables.first_rows[segment] * c.x_stride;
  T* ring = static_cast<T*>(c.history) + slot * c.place_stride;
  const std::int32_t first = tokens > kept ? tokens - kept : 0;
  for (std::int64_t channel = blockIdx.y * kThreads + threadIdx.x; channel < c.channels;
       channel += gridDim.y * kThreads) {
    for (std::int32_t token = first; token < tokens; ++token) {
      ring[(position + token) % kept * c.channels + channel] = x[token * c.x_stride + channel];
    }
  }
}

}  // namespace

void convolve(cudaStream_t stream, const Convolution& convolution, const PassTables& tables,
              const PassSize& size, Element element) {
  if (size.rows == 0) return;
  const std::int64_t whole = (convolution.channels + kThreads - 1) / kThreads;
  const unsigned parts = whole < kParts ? static_cast<unsigned>(whole) : kParts;
  by_element(element, [&]<typename T>(T*) {
    output_kernel<T><<<dim3(static_cast<unsigned>(size.rows), parts), kThreads, 0, stream>>>(
        convolution, tables);
    if (convolution.taps > 1) {
      ring_kernel<T><<<dim3(static_cast<unsigned>(size.segments), parts), kThreads, 0, stream>>>(
          convolution, tables);
    }
  });
  check_launch();
}

}  // namespace leapquant::runtime::cuda
