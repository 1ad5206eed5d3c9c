// SPDX-License-Identifier: Apache-2.0
//
// Blocking copies between host and device, and a head's codes between the canonical order and the
// device's.
#include "cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "core/packing.h"
#include "cuda/payload_order.cuh"

namespace leapquant::cuda {
namespace {

// What the device has free of what it has, in bytes.
Status refused(size_t bytes, Sentence* sentence) {
  size_t available = 0;
  size_t total = 0;
  cudaGetLastError();  // told here; it must not come up again
  cudaMemGetInfo(&available, &total);
  return sentence->say(LEAPQUANT_OUT_OF_MEMORY,
                       "the device refused %zu bytes: %zu of its %zu are free", bytes, available,
                       total);
}

Status told(cudaError_t error, const char* what, size_t bytes, Sentence* sentence) {
  if (error == cudaSuccess) return LEAPQUANT_OK;
  if (error == cudaErrorMemoryAllocation) return refused(bytes, sentence);
  return sentence->say(LEAPQUANT_DEVICE_UNAVAILABLE, "the device could not %s %zu bytes: %s", what,
                       bytes, cudaGetErrorString(error));
}

Status read(void* host, const void* device, size_t bytes, Sentence* sentence) {
  return told(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy out", bytes, sentence);
}

Status write(void* device, const void* host, size_t bytes, Sentence* sentence) {
  return told(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy in", bytes, sentence);
}

Status clear(void* device, size_t bytes, Sentence* sentence) {
  cudaError_t error = cudaMemset(device, 0, bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  return told(error, "clear", bytes, sentence);
}

Status wait(void* stream, Sentence* sentence) {
  return told(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "finish a call on", 0,
              sentence);
}

Status allocate(size_t bytes, void** memory, Sentence* sentence) {
  return told(cudaMalloc(memory, bytes), "allocate", bytes, sentence);
}

void release(void* memory) { cudaFree(memory); }

bool permuted(const BoundaryLayout& head, PayloadOrder* order) {
  *order = {head.format.payload_bits, head.k_dim, head.v_dim, head.row_bytes};
  return head.quantised() && order->permuted();
}

// Rows of a permuted payload are a multiple of 32 codes, so that no group of codes is cut.
void to_canonical(const BoundaryLayout& head, const std::byte* from, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(head.bytes));
  PayloadOrder order;
  if (!permuted(head, &order)) return;
  const auto* payload = reinterpret_cast<const uint8_t*>(from + head.payload);
  for (int32_t i = 0; i < head.k_dim; ++i) {
    int8_t codes[256];
    for (int32_t j = 0; j < head.v_dim; ++j) {
      codes[j] = static_cast<int8_t>(load_code(order, payload, i, j));
    }
    pack_codes(codes, head.v_dim, order.bits,
               reinterpret_cast<uint8_t*>(to + head.payload) + int64_t{i} * head.row_bytes);
  }
}

void from_canonical(const BoundaryLayout& head, const std::byte* from, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(head.bytes));
  PayloadOrder order;
  if (!permuted(head, &order)) return;
  auto* payload = reinterpret_cast<uint8_t*>(to + head.payload);
  for (int32_t i = 0; i < head.k_dim; ++i) {
    int8_t row[256];
    unpack_codes(
        reinterpret_cast<const uint8_t*>(from + head.payload) + int64_t{i} * head.row_bytes,
        head.v_dim, order.bits, row);
    for (int32_t group = 0; group < order.groups_per_key(); ++group) {
      int32_t codes[8];
      for (int32_t p = 0; p < order.group_size(); ++p) codes[p] = row[order.group_value(group, p)];
      store_group(order, payload, i, group, codes);
    }
  }
}

}  // namespace

const DeviceMemory kDeviceMemory = {read,     write,   clear,        wait,
                                    allocate, release, to_canonical, from_canonical};

}  // namespace leapquant::cuda
