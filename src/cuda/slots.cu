// SPDX-License-Identifier: Apache-2.0
//
// Raw copies between slots and cleared windows: bytes, no arithmetic on states. Slots out of the
// pool's range are left alone.
#include <algorithm>

#include "cuda/block.cuh"
#include "cuda/operations.cuh"

namespace leapquant::cuda {
namespace {

constexpr int32_t kPieces = 8;  // blocks that share a slot

__device__ void copy_bytes(const char* from, char* to, int64_t bytes, int64_t worker,
                           int64_t workers) {
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(to);
  for (int64_t i = worker; i < bytes / 16; i += workers) target[i] = source[i];
}

// The window beside a state slot, negative for none.
__device__ int32_t window_beside(const Call& call, const int32_t* windows, int32_t i,
                                 int32_t slot) {
  const int32_t window = windows != nullptr ? windows[i] : slot;
  return window < call.num_window_slots ? window : -1;
}

__global__ void __launch_bounds__(kBlockThreads)
    copy_kernel(const __grid_constant__ Call call, const CopySlots slots) {
  const int64_t worker = int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
  const int64_t workers = int64_t{gridDim.y} * kBlockThreads;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t from = slots.source_states[i];
    const int32_t to = slots.destination_states[i];
    if (from < 0 || to < 0 || from >= call.num_state_slots || to >= call.num_state_slots) continue;
    copy_bytes(call.states + from * call.state_stride, call.states + to * call.state_stride,
               slots.state_bytes, worker, workers);
    for (int64_t h = worker; h < call.v_heads; h += workers) {
      const int32_t v_head = static_cast<int32_t>(h);
      call.base[head_index(call, to, v_head)] = call.base[head_index(call, from, v_head)];
      if (call.health != nullptr) {
        call.health[head_index(call, to, v_head)] = call.health[head_index(call, from, v_head)];
      }
    }
    if (call.per_step != 0) continue;
    const int32_t window_from = window_beside(call, slots.source_windows, i, from);
    const int32_t window_to = window_beside(call, slots.destination_windows, i, to);
    if (window_from < 0 || window_to < 0) continue;
    copy_bytes(call.windows + window_from * call.window_stride,
               call.windows + window_to * call.window_stride, slots.window_bytes, worker, workers);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    clear_windows_kernel(const __grid_constant__ Call call, int64_t window_bytes) {
  const int64_t worker = int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
  const int64_t workers = int64_t{gridDim.y} * kBlockThreads;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t slot = call.state_slots[i];
    if (slot < 0 || slot >= call.num_state_slots) continue;
    const int32_t window = window_beside(call, call.window_slots, i, slot);
    if (window < 0) continue;
    auto* target = reinterpret_cast<uint4*>(call.windows + window * call.window_stride);
    for (int64_t p = worker; p < window_bytes / 16; p += workers) {
      target[p] = make_uint4(0, 0, 0, 0);
    }
  }
}

dim3 grid_for(int32_t batch) {
  return dim3(static_cast<unsigned>(batch), static_cast<unsigned>(kPieces));
}

}  // namespace

cudaError_t find_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, copy_kernel);
}

cudaError_t copy_general(const Call& call, const CopySlots& slots, cudaStream_t stream) {
  copy_kernel<<<grid_for(call.batch), kBlockThreads, 0, stream>>>(call, slots);
  return cudaGetLastError();
}

cudaError_t clear_windows(const Call& call, int64_t window_bytes, cudaStream_t stream) {
  if (call.per_step != 0 || window_bytes == 0) return cudaSuccess;
  clear_windows_kernel<<<grid_for(call.batch), kBlockThreads, 0, stream>>>(call, window_bytes);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
