// SPDX-License-Identifier: Apache-2.0
//
// How the kernels' benches time: the copy bandwidth of the run, and a graph per phase of a window,
// all phases in turn.
#pragma once

#include "decode_case.cuh"

namespace leapquant::bench {

__global__ void advance(int32_t* positions, int32_t count, int32_t by) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) positions[i] += by;
}

// GB/s, bytes read plus bytes written.
inline double copy_bandwidth() {
  const size_t bytes = size_t{2} << 30;
  DeviceArray<uint8_t> from(bytes), to(bytes);
  REQUIRE(cudaMemset(from.data, 0x5a, bytes));
  cudaEvent_t a, b;
  REQUIRE(cudaEventCreate(&a));
  REQUIRE(cudaEventCreate(&b));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    REQUIRE(cudaEventRecord(a));
    REQUIRE(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice));
    REQUIRE(cudaEventRecord(b));
    REQUIRE(cudaEventSynchronize(b));
    float ms;
    REQUIRE(cudaEventElapsedTime(&ms, a, b));
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return 2.0 * static_cast<double>(bytes) / (times[4] * 1e-3) / 1e9;
}

// Sets of slots that a graph's calls go through: together past the second cache level, and enough
// of them that what a graph's launch takes is spread over several calls, as over a model's layers.
inline int sets_of(int64_t set_bytes, int most) {
  return static_cast<int>(std::clamp<int64_t>((int64_t{240} << 20) / set_bytes, 8, most));
}

// What `work` puts into the stream, as a graph.
template <typename Work>
cudaGraphExec_t graph_of(cudaStream_t stream, const Work& work) {
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  work();
  cudaGraph_t graph;
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphDestroy(graph));
  return exec;
}

// Microseconds of one call: medians of the phases.
struct PhaseTimes {
  double mean = 0.0, fastest = 1e30, slowest = 0.0;
};

// Replays graphs[phase], each of `sets` calls, `repeats` times after two that do not count.
// Destroys the graphs.
inline PhaseTimes time_phases(const std::vector<cudaGraphExec_t>& graphs, int sets, int repeats,
                              cudaStream_t stream) {
  const int phases = static_cast<int>(graphs.size());
  PhaseTimes result;
  std::vector<cudaEvent_t> events(static_cast<size_t>(phases) + 1);
  for (auto& e : events) REQUIRE(cudaEventCreate(&e));
  std::vector<std::vector<float>> times(static_cast<size_t>(phases));
  for (int r = 0; r < repeats + 2; ++r) {
    for (int p = 0; p < phases; ++p) {
      REQUIRE(cudaEventRecord(events[static_cast<size_t>(p)], stream));
      REQUIRE(cudaGraphLaunch(graphs[static_cast<size_t>(p)], stream));
    }
    REQUIRE(cudaEventRecord(events.back(), stream));
    REQUIRE(cudaStreamSynchronize(stream));
    for (int p = 0; p < phases && r >= 2; ++p) {
      float ms;
      REQUIRE(cudaEventElapsedTime(&ms, events[static_cast<size_t>(p)],
                                   events[static_cast<size_t>(p) + 1]));
      times[static_cast<size_t>(p)].push_back(ms * 1e3f / static_cast<float>(sets));
    }
  }
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    const double median = t[t.size() / 2];
    result.mean += median / phases;
    result.fastest = std::min(result.fastest, median);
    result.slowest = std::max(result.slowest, median);
  }
  for (auto& graph : graphs) REQUIRE(cudaGraphExecDestroy(graph));
  for (auto& e : events) REQUIRE(cudaEventDestroy(e));
  return result;
}

}  // namespace leapquant::bench
