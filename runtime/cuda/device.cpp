// SPDX-License-Identifier: Apache-2.0
//
// See device.h.
#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/cuda/rows.h"
#include "runtime/error.h"
#include "runtime/memory.h"

namespace leapquant::runtime::cuda {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  // Clears the error, unless it is one that stays with the process.
  cudaGetLastError();
  throw Error(fmt::format("CUDA could not {}: {}.", what, cudaGetErrorString(status)));
}

namespace {

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

// Why there is no device, and what helps.
std::string absence(cudaError_t status) {
  cudaGetLastError();
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) {
    return fmt::format("there is no NVIDIA driver; install one for CUDA {} or later, or",
                       version(CUDART_VERSION));
  }
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver is for CUDA {}, but {} is needed; update the driver, or",
                       version(driver), version(CUDART_VERSION));
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr) {
    return fmt::format(
        "CUDA_VISIBLE_DEVICES is '{}', which names none of this machine; name one "
        "of those that nvidia-smi -L lists, or",
        visible);
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    return "the NVIDIA driver shows none; look at nvidia-smi, or";
  }
  return fmt::format("{};", cudaGetErrorString(status));
}

}  // namespace

std::string require_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw Error(fmt::format("There is no CUDA device that this program can use: {} use the CPU.",
                            absence(status)));
  }
  int device = 0;
  check(cudaGetDevice(&device), "name its device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "describe its device");
  // BF16 arithmetic begins there.
  if (properties.major < 8) {
    throw Error(
        fmt::format("The {} has compute capability {}.{}, but these kernels need 8.0; use the CPU.",
                    properties.name, properties.major, properties.minor));
  }
  if (find_kernels() != cudaSuccess) {
    cudaGetLastError();
    throw Error(fmt::format(
        "This program has no kernels for the {} (compute capability {}.{}); build it with "
        "-DLEAPQUANT_CUDA_ARCHITECTURES={}{}, or use the CPU.",
        properties.name, properties.major, properties.minor, properties.major, properties.minor));
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
  if (status != cudaErrorMemoryAllocation) {
    throw Error(fmt::format("The device could not set {} of memory aside: {}.",
                            describe_bytes(bytes), cudaGetErrorString(status)));
  }
  throw Error(fmt::format(
      "The device refused {} of memory, since it has {} free; use a shorter context, fewer "
      "sequences at once where there are several, or free what other programs hold.",
      describe_bytes(bytes), describe_bytes(free_device_bytes())));
}

PinnedMemory::PinnedMemory(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const cudaError_t status = cudaMallocHost(&data_, size);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  data_ = nullptr;
  throw Error(fmt::format("The host refused {} of pinned memory: {}.", describe_bytes(bytes),
                          cudaGetErrorString(status)));
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
