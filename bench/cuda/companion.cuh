// SPDX-License-Identifier: Apache-2.0
//
// Kernels that run beside the one that is timed, one block on each of some multiprocessors (those
// that run through code have it to themselves), until they are told to stop: to find out what a
// kernel shares with its neighbours, and what it does on fewer multiprocessors.
#pragma once

#include "decode_case.cuh"
#include "straight_code.cuh"

namespace leapquant::bench {

enum class Work {
  kNone,
  kOccupy,  // the whole multiprocessor, asleep
  kSleep,   // two warps, asleep
  kLoop,    // two warps of arithmetic, code of a few lines
  kCode8,   // arithmetic through 8 KB of code, warps at different places of it; and so on
  kCode16,
  kCode24,
  kCode32,
  kCode48,
  kCode64,
  kCode96,
  kStream,     // two warps that read memory, eight words of 16 bytes a lane on their way
  kReads,      // twelve such warps, the whole multiprocessor
  kParameters  // two warps that read 2 KB of parameters
};

struct Parameters {
  float values[512];
};

constexpr int kilobytes_of(Work work) {
  switch (work) {
    case Work::kCode8:
      return 8;
    case Work::kCode16:
      return 16;
    case Work::kCode24:
      return 24;
    case Work::kCode32:
      return 32;
    case Work::kCode48:
      return 48;
    case Work::kCode64:
      return 64;
    case Work::kCode96:
      return 96;
    default:
      return 0;
  }
}

template <Work kWork>
__global__ void companion(const volatile int* stop, const uint4* memory, int64_t words,
                          const __grid_constant__ Parameters parameters, float* sink) {
  float x[1] = {static_cast<float>(threadIdx.x)};
  const int64_t ahead = blockDim.x;
  int64_t at = int64_t{blockIdx.x} * 8 * ahead + threadIdx.x;
  while (true) {
    // One lane asks, seldom, and in device memory: many reads of the host's hold up all fences.
    int ends = 0;
    if ((threadIdx.x & 31) == 0) ends = *stop;
    if (__shfl_sync(~0u, ends, 0) != 0) break;
    if constexpr (kWork == Work::kOccupy || kWork == Work::kSleep) {
      for (int i = 0; i < 8; ++i) __nanosleep(1000);
    } else if constexpr (kWork == Work::kLoop) {
#pragma unroll 1
      for (int i = 0; i < 1024; ++i) multiply_adds<16>(x, 0.5f);
    } else if constexpr (kilobytes_of(kWork) > 0) {
      const int warp = static_cast<int>(threadIdx.x) / 32;
      run_through<kilobytes_of(kWork)>(x, __shfl_sync(~0u, warp % kCodeParts, 0), 2);
    } else if constexpr (kWork == Work::kStream || kWork == Work::kReads) {
#pragma unroll 1
      for (int i = 0; i < 64; ++i) {
        uint4 got[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) got[j] = __ldcs(memory + (at + ahead * j) % words);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[0] += __uint_as_float(got[j].x ^ got[j].w);
        at += 8 * ahead * 132;
      }
    } else if constexpr (kWork == Work::kParameters) {
#pragma unroll
      for (int i = 0; i < 512; ++i) x[0] = x[0] * 0.5f + parameters.values[i];
    }
  }
  if (x[0] == 1.25f) *sink = x[0];
}

// Starts blocks of a companion on a stream of its own; ends them when it goes.
class Beside {
 public:
  Beside(Work work, int blocks) {
    if (work == Work::kNone || blocks == 0) return;
    REQUIRE(cudaMalloc(&stop_, sizeof(int)));
    REQUIRE(cudaMemset(stop_, 0, sizeof(int)));
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    REQUIRE(cudaMalloc(&memory_, kBytes));
    REQUIRE(cudaMemset(memory_, 0, kBytes));
    REQUIRE(cudaDeviceSynchronize());
    const int whole = 227 * 1024;  // shared memory: nothing else fits beside it
    switch (work) {
      case Work::kOccupy:
        start<Work::kOccupy>(blocks, 2, whole);
        break;
      case Work::kSleep:
        start<Work::kSleep>(blocks, 2, 0);
        break;
      case Work::kLoop:
        start<Work::kLoop>(blocks, 2, 0);
        break;
      case Work::kCode8:
        start<Work::kCode8>(blocks, 12, whole);
        break;
      case Work::kCode16:
        start<Work::kCode16>(blocks, 12, whole);
        break;
      case Work::kCode24:
        start<Work::kCode24>(blocks, 12, whole);
        break;
      case Work::kCode32:
        start<Work::kCode32>(blocks, 12, whole);
        break;
      case Work::kCode48:
        start<Work::kCode48>(blocks, 12, whole);
        break;
      case Work::kCode64:
        start<Work::kCode64>(blocks, 12, whole);
        break;
      case Work::kCode96:
        start<Work::kCode96>(blocks, 12, whole);
        break;
      case Work::kStream:
        start<Work::kStream>(blocks, 2, 0);
        break;
      case Work::kReads:
        start<Work::kReads>(blocks, 12, whole);
        break;
      case Work::kParameters:
        start<Work::kParameters>(blocks, 2, 0);
        break;
      case Work::kNone:
        break;
    }
  }
  ~Beside() {
    if (stop_ == nullptr) return;
    cudaStream_t other;
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    int* one;  // a copy, not a kernel: there may be no room for one
    REQUIRE(cudaHostAlloc(&one, sizeof(int), cudaHostAllocDefault));
    *one = 1;
    REQUIRE(cudaMemcpyAsync(stop_, one, sizeof(int), cudaMemcpyHostToDevice, other));
    REQUIRE(cudaStreamSynchronize(stream_));
    REQUIRE(cudaStreamDestroy(stream_));
    REQUIRE(cudaFree(memory_));
    REQUIRE(cudaStreamDestroy(other));
    REQUIRE(cudaFreeHost(one));
    REQUIRE(cudaFree(stop_));
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  static constexpr size_t kBytes = size_t{1} << 30;
  template <Work kWork>
  void start(int blocks, int warps, int shared) {
    const auto kernel = companion<kWork>;
    REQUIRE(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    // As the library's kernels: others would never share a multiprocessor.
    REQUIRE(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared));
    kernel<<<blocks, 32 * warps, static_cast<size_t>(shared), stream_>>>(
        stop_, static_cast<const uint4*>(memory_), int64_t{kBytes / 16}, Parameters{},
        static_cast<float*>(memory_));
    REQUIRE(cudaGetLastError());
  }
  int* stop_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace leapquant::bench
