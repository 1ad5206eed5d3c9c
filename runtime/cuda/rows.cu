// SPDX-License-Identifier: Apache-2.0
//
// See rows.h. One block per row, or grid strides over elements; all of it is small beside the
// products.
#include "runtime/cuda/rows.h"

#include <algorithm>

#include "runtime/cuda/elements.cuh"

namespace leapquant::runtime::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + kThreads - 1) / kThreads, 1, 1 << 16));
}

template <typename T>
__global__ void look_up_kernel(const T* table, const std::int32_t* tokens, std::int64_t size,
                               float* hidden) {
  const T* from = table + std::int64_t{tokens[blockIdx.x]} * size;
  float* to = hidden + std::int64_t{blockIdx.x} * size;
  for (std::int64_t i = threadIdx.x; i < size; i += blockDim.x) to[i] = to_float(from[i]);
}

// kCount elements of a thread at a time; size is a multiple of it.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const std::int32_t* picked, std::int64_t size,
                    const float* factor, float eps, T* y) {
  const std::int64_t row = picked != nullptr ? picked[blockIdx.x] : blockIdx.x;
  const float* from = x + row * size;
  float squares = 0.0f;
  float values[kCount];
  for (std::int64_t i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    load(from + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += values[j] * values[j];
  }
  const float mean = block_sum<kThreads>(squares) / static_cast<float>(size);
  const float scale = rsqrtf(mean + eps);
  T* to = y + std::int64_t{blockIdx.x} * size;
  for (std::int64_t i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    float factors[kCount];
    load(from + i, values);
    load(factor + i, factors);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] *= scale * factors[j];
    store(values, to + i);
  }
}

template <typename T>
__global__ void gates_kernel(Gates gates) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= gates.rows * gates.heads) return;
  const std::int64_t head = i % gates.heads;
  const std::int64_t from = i / gates.heads * gates.stride + head;
  const float a = to_float(static_cast<const T*>(gates.a)[from]) + gates.dt_bias[head];
  const float b = to_float(static_cast<const T*>(gates.b)[from]);
  const float softplus = a > 20.0f ? a : log1pf(expf(a));
  gates.log_decay[i] = -expf(gates.a_log[head]) * softplus;
  gates.beta[i] = 1.0f / (1.0f + expf(-b));
}

// A warp per head of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) gated_rms_norm_kernel(GatedNorm norm) {
  const std::int64_t index = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (index >= norm.rows * norm.heads) return;
  const int lane = threadIdx.x % 32;
  const T* o = static_cast<const T*>(norm.o) + index * norm.size;
  const T* z = static_cast<const T*>(norm.z) + index / norm.heads * norm.z_stride +
               index % norm.heads * norm.size;
  T* y = static_cast<T*>(norm.y) + index * norm.size;
  float squares = 0.0f;
  for (std::int64_t i = lane; i < norm.size; i += 32) squares += to_float(o[i]) * to_float(o[i]);
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(norm.size) + norm.eps);
  for (std::int64_t i = lane; i < norm.size; i += 32) {
    const float gate = to_float(z[i]);
    narrow(
        to_float(o[i]) * scale * norm.factor[i] * (norm.sigmoid_gate ? sigmoid(gate) : silu(gate)),
        &y[i]);
  }
}

template <typename T, int kCount>
__global__ void swiglu_kernel(const T* gate_up, std::int64_t runs, std::int64_t width, T* y) {
  const std::int64_t runs_per_row = width / kCount;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < runs;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t row = i / runs_per_row;
    const std::int64_t at = i % runs_per_row * kCount;
    float gate[kCount];
    float up[kCount];
    load(gate_up + row * 2 * width + at, gate);
    load(gate_up + row * 2 * width + width + at, up);
#pragma unroll
    for (int j = 0; j < kCount; ++j) gate[j] = silu(gate[j]) * up[j];
    store(gate, y + row * width + at);
  }
}

// SplitMix64's output function of a counter.
__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

template <typename T>
__global__ void fill_random_kernel(T* values, std::int64_t count, std::uint64_t seed, float centre,
                                   float scale) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t bits = mix(seed + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ULL);
    const float even = static_cast<float>(bits >> 40) * 0x1p-24f;
    narrow(centre + scale * (2.0f * even - 1.0f), &values[i]);
  }
}

}  // namespace

cudaError_t find_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, swiglu_kernel<float, 1>);
}

void look_up(cudaStream_t stream, const void* table, Element element, const std::int32_t* tokens,
             std::int64_t rows, std::int64_t size, float* hidden) {
  if (rows == 0) return;
  by_element(element, [&]<typename T>(T*) {
    look_up_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        static_cast<const T*>(table), tokens, size, hidden);
  });
  check_launch();
}

void rms_norm(cudaStream_t stream, const float* x, const std::int32_t* picked, std::int64_t rows,
              std::int64_t size, const float* factor, float eps, void* y, Element element) {
  if (rows == 0) return;
  by_element(element, [&]<typename T>(T*) {
    const auto blocks = static_cast<unsigned>(rows);
    auto* to = static_cast<T*>(y);
    if (size % kWide == 0) {
      rms_norm_kernel<T, kWide><<<blocks, kThreads, 0, stream>>>(x, picked, size, factor, eps, to);
    } else {
      rms_norm_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(x, picked, size, factor, eps, to);
    }
  });
  check_launch();
}

void gated_rms_norm(cudaStream_t stream, const GatedNorm& norm, Element element) {
  const std::int64_t heads = norm.rows * norm.heads;
  if (heads == 0) return;
  const auto blocks = static_cast<unsigned>((heads + kThreads / 32 - 1) / (kThreads / 32));
  by_element(element, [&]<typename T>(T*) {
    gated_rms_norm_kernel<T><<<blocks, kThreads, 0, stream>>>(norm);
  });
  check_launch();
}

void form_gates(cudaStream_t stream, const Gates& gates, Element element) {
  const std::int64_t count = gates.rows * gates.heads;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  by_element(element,
             [&]<typename T>(T*) { gates_kernel<T><<<blocks, kThreads, 0, stream>>>(gates); });
  check_launch();
}

void swiglu(cudaStream_t stream, const void* gate_up, std::int64_t rows, std::int64_t width,
            void* y, Element element) {
  if (rows == 0) return;
  by_element(element, [&]<typename T>(T*) {
    const auto* from = static_cast<const T*>(gate_up);
    if (width % kWide == 0) {
      const std::int64_t runs = rows * width / kWide;
      swiglu_kernel<T, kWide>
          <<<blocks_for(runs), kThreads, 0, stream>>>(from, runs, width, static_cast<T*>(y));
    } else {
      swiglu_kernel<T, 1><<<blocks_for(rows * width), kThreads, 0, stream>>>(
          from, rows * width, width, static_cast<T*>(y));
    }
  });
  check_launch();
}

void fill_random(cudaStream_t stream, void* values, Element element, std::int64_t count,
                 std::uint64_t seed, float centre, float scale) {
  if (count == 0) return;
  by_element(element, [&]<typename T>(T*) {
    fill_random_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<T*>(values), count,
                                                                   seed, centre, scale);
  });
  check_launch();
}

}  // namespace leapquant::runtime::cuda
