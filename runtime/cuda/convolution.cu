// SPDX-License-Identifier: Apache-2.0
//
// Outputs, then the rings, in two kernels: between them lies the end of a launch, so no row reads a
// ring that another has moved. Where every sequence has one row, one kernel does both, as each
// thread alone uses its channel of a ring.
#include "runtime/cuda/convolution.h"

#include "runtime/cuda/elements.cuh"

namespace leapquant::runtime::cuda {
namespace {

constexpr int kThreads = 128;
// Threads stride over the channels; a row's channels are cut into this many blocks at most.
constexpr unsigned kParts = 64;

template <typename T, bool kMovesRing>
__global__ void __launch_bounds__(kThreads) output_kernel(Convolution c, PassTables tables) {
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t segment = tables.row_segments[row];
  const std::int32_t slot = tables.slots[segment];
  const std::int32_t token = row - tables.first_rows[segment];
  const std::int32_t kept = c.taps - 1;
  const std::int32_t position = tables.positions[segment];
  const T* x = static_cast<const T*>(c.x) + row * c.x_stride;
  T* ring = static_cast<T*>(c.history) + slot * c.place_stride;
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
    if (kMovesRing && live && kept > 0) ring[position % kept * c.channels + channel] = x[channel];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ring_kernel(Convolution c, PassTables tables) {
  const std::int32_t segment = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t slot = tables.slots[segment];
  const std::int32_t kept = c.taps - 1;
  if (slot < 0 || kept == 0) return;
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
  const dim3 rows(static_cast<unsigned>(size.rows), parts);
  const dim3 segments(static_cast<unsigned>(size.segments), parts);
  by_element(element, [&]<typename T>(T*) {
    if (size.rows == size.segments) {
      output_kernel<T, true><<<rows, kThreads, 0, stream>>>(convolution, tables);
      return;
    }
    output_kernel<T, false><<<rows, kThreads, 0, stream>>>(convolution, tables);
    ring_kernel<T><<<segments, kThreads, 0, stream>>>(convolution, tables);
  });
  check_launch();
}

}  // namespace leapquant::runtime::cuda
