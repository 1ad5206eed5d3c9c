// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing runs of FP32 or BF16 elements as FP32 values, and sums over a block. For the
// kernels of this folder.
#ifndef LEAPQUANT_RUNTIME_CUDA_ELEMENTS_CUH_
#define LEAPQUANT_RUNTIME_CUDA_ELEMENTS_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

// kCount elements that lie together, aligned to their size in bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount <= 16 ? sizeof(T) * kCount : 16) Run {
  T at[kCount];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void narrow(float value, float* to) { *to = value; }
__device__ inline void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

template <int kCount, typename T>
__device__ inline void load(const T* from, float (&values)[kCount]) {
  const auto run = *reinterpret_cast<const Run<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = to_float(run.at[i]);
}

template <int kCount, typename T>
__device__ inline void store(const float (&values)[kCount], T* to) {
  Run<T, kCount> run;
#pragma unroll
  for (int i = 0; i < kCount; ++i) narrow(values[i], &run.at[i]);
  *reinterpret_cast<Run<T, kCount>*>(to) = run;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

// Of all threads of the block, to all of them; kThreads is a multiple of 32, at most 1024.
template <int kThreads>
__device__ inline float block_sum(float value) {
  __shared__ float parts[kThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

// Calls launch with a null pointer of the element's type.
template <typename Launch>
void by_element(Element element, const Launch& launch) {
  if (element == Element::kFp32) {
    launch(static_cast<float*>(nullptr));
  } else {
    launch(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_ELEMENTS_CUH_
