// SPDX-License-Identifier: Apache-2.0
//
// How fast a multiprocessor fetches instructions, by the size of the code and by whether its warps
// run through the same lines at the same time: warp instructions a cycle of straight-line FMAs, on
// one multiprocessor and on all. What bounds code that many heads run through once (docs/KERNELS).
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "straight_code.cuh"

namespace {

using leapquant::bench::kCodeParts;
using leapquant::bench::run_through;

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "fetch: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

constexpr int kShared = 200 * 1024;  // one block a multiprocessor

// `rounds` times through kKilobytes of code, 16 bytes an instruction. cycles: of each warp, from
// and to.
template <int kKilobytes>
__global__ void timed_run(int rounds, bool apart, long long* cycles, float* sink) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float x[4] = {static_cast<float>(threadIdx.x), 1.0f, 2.0f, 3.0f};
  const int start = __shfl_sync(~0u, apart ? warp % kCodeParts : 0, 0);
  __syncthreads();
  const long long from = clock64();
  run_through<kKilobytes>(x, start, rounds);
  const long long to = clock64();
  if (threadIdx.x % 32 == 0) {
    long long* at = cycles + 2 * (blockIdx.x * (blockDim.x / 32) + warp);
    at[0] = from, at[1] = to;
  }
  if (x[0] + x[1] + x[2] + x[3] == 1.25f) *sink = x[0];
}

// Warp instructions a cycle and multiprocessor.
template <int kKilobytes>
double rate(int blocks, int warps, bool apart) {
  const auto kernel = timed_run<kKilobytes>;
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const size_t count = size_t{2} * blocks * warps;
  long long* cycles;
  float* sink;
  require(cudaMalloc(&cycles, count * sizeof(long long)));
  require(cudaMalloc(&sink, sizeof(float)));
  const int rounds = std::max(2, 2048 / kKilobytes);
  for (int i = 0; i < 2; ++i) {  // the first brings the code near
    kernel<<<blocks, 32 * warps, kShared>>>(rounds, apart, cycles, sink);
    require(cudaGetLastError());
  }
  std::vector<long long> seen(count);
  require(cudaMemcpy(seen.data(), cycles, count * sizeof(long long), cudaMemcpyDeviceToHost));
  require(cudaFree(cycles));
  require(cudaFree(sink));
  double sum = 0.0;
  for (int b = 0; b < blocks; ++b) {
    long long first = seen[2 * b * warps], last = 0;
    double instructions = 0.0;
    for (int w = 0; w < warps; ++w) {
      const long long* at = &seen[2 * (b * warps + w)];
      first = std::min(first, at[0]);
      last = std::max(last, at[1]);
      const double left_out = apart ? static_cast<double>(w % kCodeParts) / kCodeParts : 0.0;
      instructions += (rounds - left_out) * kKilobytes * 64;
    }
    sum += instructions / static_cast<double>(last - first);
  }
  return sum / blocks;
}

template <int kKilobytes>
void print_row(int processors) {
  std::printf("%7d", kKilobytes);
  for (const int blocks : {1, processors}) {
    for (const int warps : {4, 12, 16}) {
      for (const bool apart : {false, true}) {
        std::printf(" %6.2f", rate<kKilobytes>(blocks, warps, apart));
      }
    }
  }
  std::printf("\n");
}

}  // namespace

int main() {
  int processors = 0;
  require(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  std::printf(
      "warp instructions a cycle and multiprocessor; warps together, apart\n"
      "        one multiprocessor                        all %d\n"
      "KB       4 warps       12            16           4 warps       12            16\n",
      processors);
  print_row<8>(processors);
  print_row<16>(processors);
  print_row<24>(processors);
  print_row<32>(processors);
  print_row<40>(processors);
  print_row<48>(processors);
  print_row<64>(processors);
  print_row<96>(processors);
  print_row<128>(processors);
  print_row<160>(processors);
}
