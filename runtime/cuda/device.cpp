// SPDX-License-Identifier: Apache-2.0
//
// See device.h.
#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/error.h"
#include "runtime/memory.h"

namespace leapquant::runtime::cuda {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  // Clears the error, unless it is one that stays with the process.
  cudaGetLastError();
  throw Error(fmt::format("CUDA could not {}: {}.", what, cudaGetErrorString(status)));
}

std::string require_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw Error(fmt::format("There is no CUDA device that this program can use ({}); use the CPU.",
                            status == cudaSuccess ? "none is there" : cudaGetErrorString(status)));
  }
  int device = 0;
  check(cudaGetDevice(&device), "name its device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "describe its device");
  // BF16 arithmetic begins there.
  if (properties.major < 8) {
    throw Error(fmt::format("The {} has compute capability {}.{}; 8.0 is the least. Use the CPU.",
                            properties.name, properties.major, properties.minor));
  }
  return properties.name;
}

std::int64_t free_device_bytes() {
  std::size_t available = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&available, &total), "tell its free memory");
  return static_cast<std::int64_t>(available);
}

std::int32_t num_multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "name its device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "describe its device");
  return count;
}

DeviceMemory::DeviceMemory(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const cudaError_t status = cudaMalloc(&data_, static_cast<std::size_t>(bytes));
  if (status == cudaSuccess) return;
  cudaGetLastError();
  data_ = nullptr;
  throw Error(fmt::format("The device refused {} of memory, having {} free: {}.",
                          describe_bytes(bytes), describe_bytes(free_device_bytes()),
                          cudaGetErrorString(status)));
}

PinnedMemory::PinnedMemory(std::int64_t bytes) {
  check(cudaMallocHost(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))),
        "set host memory aside");
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void Graph::begin(const Stream& stream) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "record a graph");
}

void Graph::drop(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream.get(), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

Graph Graph::end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph), "record a graph");
  Graph made;
  const cudaError_t status = cudaGraphInstantiate(&made.graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "prepare a graph");
  return made;
}

}  // namespace leapquant::runtime::cuda
