// SPDX-License-Identifier: Apache-2.0
//
// Raw copies between slots and cleared windows: bytes, no arithmetic on states. Rows at fault,
// whose status says so, are left alone.
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

// The slots of one row of a copy; windows are negative where there is none.
struct Copy {
  int32_t from, to, window_from, window_to;
  __device__ bool live() const { return from >= 0 || to >= 0; }
};

__device__ Copy copy_of(const Call& call, const CopySlots& slots, int32_t i) {
  Copy copy;
  copy.from = slots.source_states[i];
  copy.to = slots.destination_states[i];
  copy.window_from = copy.window_to = -1;
  if (call.per_step != 0) return copy;
  copy.window_from = slots.source_windows != nullptr ? slots.source_windows[i] : copy.from;
  copy.window_to = slots.destination_windows != nullptr ? slots.destination_windows[i] : copy.to;
  return copy;
}

__device__ bool out_of_range(const Call& call, const Copy& copy) {
  return copy.from < 0 || copy.to < 0 || copy.from >= call.num_state_slots ||
         copy.to >= call.num_state_slots || copy.window_from >= call.num_window_slots ||
         copy.window_to >= call.num_window_slots;
}

// A destination is written once and not read by the call.
__device__ bool collides(const Copy& own, const Copy& other, bool earlier) {
  const bool windows = own.window_to >= 0 && (other.window_from == own.window_to ||
                                              (earlier && other.window_to == own.window_to));
  return other.from == own.to || (earlier && other.to == own.to) || windows;
}

__global__ void __launch_bounds__(kBlockThreads)
    check_copies_kernel(const __grid_constant__ Call call, const CopySlots slots) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const Copy own = copy_of(call, slots, i);
    bool found = false;
    for (int32_t row = thread; row < call.batch && own.live(); row += kBlockThreads) {
      const Copy other = copy_of(call, slots, row);
      found = found || (other.live() && collides(own, other, row < i));
    }
    found = __syncthreads_or(found) != 0;
    if (thread != 0) continue;
    int32_t fault = LEAPQUANT_OK;
    if (found) fault = LEAPQUANT_SLOT_REPEATED;
    if (own.live() && out_of_range(call, own)) fault = LEAPQUANT_SLOT_OUT_OF_RANGE;
    call.status[i] = fault;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    copy_kernel(const __grid_constant__ Call call, const CopySlots slots) {
  const int64_t worker = int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
  const int64_t workers = int64_t{gridDim.y} * kBlockThreads;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const Copy copy = copy_of(call, slots, i);
    if (!copy.live() || call.status[i] != LEAPQUANT_OK) continue;
    copy_bytes(call.states + copy.from * call.state_stride,
               call.states + copy.to * call.state_stride, slots.state_bytes, worker, workers);
    for (int64_t h = worker; h < call.v_heads; h += workers) {
      const int32_t v_head = static_cast<int32_t>(h);
      const int64_t from = head_index(call, copy.from, v_head);
      const int64_t to = head_index(call, copy.to, v_head);
      call.base[to] = call.base[from];
      if (call.health != nullptr) call.health[to] = call.health[from];
    }
    if (copy.window_from < 0 || copy.window_to < 0) continue;
    copy_bytes(call.windows + copy.window_from * call.window_stride,
               call.windows + copy.window_to * call.window_stride, slots.window_bytes, worker,
               workers);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    clear_windows_kernel(const __grid_constant__ Call call, int64_t window_bytes) {
  const int64_t worker = int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
  const int64_t workers = int64_t{gridDim.y} * kBlockThreads;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < call.batch;
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t slot = call.state_slots[i];
    const int32_t window = call.window_slots != nullptr ? call.window_slots[i] : slot;
    if (slot < 0 || window < 0 || call.status[i] != LEAPQUANT_OK) continue;
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
  const auto rows = static_cast<unsigned>(call.batch);
  check_copies_kernel<<<rows, kBlockThreads, 0, stream>>>(call, slots);
  if (const cudaError_t error = cudaGetLastError()) return error;
  copy_kernel<<<grid_for(call.batch), kBlockThreads, 0, stream>>>(call, slots);
  return cudaGetLastError();
}

cudaError_t clear_windows(const Call& call, int64_t window_bytes, cudaStream_t stream) {
  if (call.per_step != 0 || window_bytes == 0) return cudaSuccess;
  clear_windows_kernel<<<grid_for(call.batch), kBlockThreads, 0, stream>>>(call, window_bytes);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
