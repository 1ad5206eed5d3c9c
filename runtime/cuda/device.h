// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA runtime gives, as owners that free themselves and errors that are sentences: device
// and pinned memory, streams, events. No kernel and no model here.
#ifndef LEAPQUANT_RUNTIME_CUDA_DEVICE_H_
#define LEAPQUANT_RUNTIME_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace leapquant::runtime::cuda {

// Type of weights, activations or cached keys and values in device memory.
enum class Element { kFp32, kBf16 };
inline std::int64_t element_bytes(Element element) { return element == Element::kFp32 ? 4 : 2; }

// Throws Error "CUDA could not <what>: <reason>."
void check(cudaError_t status, std::string_view what);
// After a launch.
inline void check_launch() { check(cudaGetLastError(), "start a kernel"); }

// Throws Error unless there is a device that this build's kernels run on. Returns its name.
std::string require_device();
std::int64_t free_device_bytes();
std::int32_t num_multiprocessors();

// Aligned to 256 bytes. Contents undefined.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::int64_t bytes);
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Host memory that the device copies from and to on its own time.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::int64_t bytes);
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(PinnedMemory&& other) noexcept { std::swap(data_, other.data_); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "finish its work"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "make an event"); }
  ~Event() {
    // Destroying null is an error that the next check would find.
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that was recorded once and is replayed with the memory as it is then.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  // Records what `launches` puts on the stream; nothing runs. It may throw.
  template <typename Launches>
  static Graph record(const Stream& stream, Launches&& launches) {
    begin(stream);
    try {
      launches();
    } catch (...) {
      drop(stream);
      throw;
    }
    return end(stream);
  }
  bool empty() const { return graph_ == nullptr; }
  void launch(const Stream& stream) const {
    check(cudaGraphLaunch(graph_, stream.get()), "replay a graph");
  }

 private:
  static void begin(const Stream& stream);
  static void drop(const Stream& stream);
  static Graph end(const Stream& stream);
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_DEVICE_H_
