// SPDX-License-Identifier: Apache-2.0
//
// Google Benchmark of the CPU backend: decode from a pool that exceeds the caches and from one that
// lies in them, and folds. Times are per value head and token. `leapquant bench` has the floors.
#include <benchmark/benchmark.h>

#include <string>

#include "pool.h"

namespace leapquant::bench {
namespace {

constexpr const char* kFormats[] = {"int8",  "int6",         "int4", "int8+", "int6+",
                                    "int4+", "int4-compact", "bf16", "fp32",  "fp32:step"};

void per_head(benchmark::State& state, int32_t sequences) {
  state.SetItemsProcessed(state.iterations() * sequences * Pool::kHeads);
  state.counters["ns_per_head"] = benchmark::Counter(
      static_cast<double>(sequences) * Pool::kHeads,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert,
      benchmark::Counter::kIs1000);
}

// One iteration is a window's worth of tokens, so that every head folds once.
void decode_pool(benchmark::State& state, const char* format, leapquant_decay decay,
                 int64_t pool_bytes, int32_t workers) {
  leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
  {
    const Pool one(format, decay, 32, 1, 1);
    sizes = one.sizes();
  }
  const auto sequences = static_cast<int32_t>(std::max<int64_t>(1, pool_bytes / sizes.state_bytes));
  Pool pool(format, decay, 32, sequences, workers);
  for (int32_t t = 0; t < 16; ++t) pool.step();
  for (auto _ : state) {
    for (int32_t t = 0; t < 16; ++t) pool.step();
  }
  per_head(state, 16 * sequences);
}

void fold_heads(benchmark::State& state, const char* format) {
  Pool pool(format, LEAPQUANT_DECAY_SCALAR, 32, 1, 1);
  for (auto _ : state) {
    state.PauseTiming();
    for (int32_t t = 0; t < 15; ++t) pool.step();
    state.ResumeTiming();
    pool.fold();
  }
  per_head(state, 1);
}

void add_benchmarks() {
  for (const char* format : kFormats) {
    const std::string name(format);
    for (const int32_t workers : {1, 2}) {
      benchmark::RegisterBenchmark(
          ("decode/memory/" + name + "/threads:" + std::to_string(workers)).c_str(),
          [=](benchmark::State& state) {
            decode_pool(state, format, LEAPQUANT_DECAY_SCALAR, int64_t{128} << 20, workers);
          })
          ->UseRealTime();
    }
    benchmark::RegisterBenchmark(("decode/cached/" + name).c_str(), [=](benchmark::State& state) {
      decode_pool(state, format, LEAPQUANT_DECAY_SCALAR, 1, 1);
    })->UseRealTime();
    if (name == "fp32:step") continue;
    benchmark::RegisterBenchmark(("decode_vector/memory/" + name).c_str(), [=](benchmark::State&
                                                                                   state) {
      decode_pool(state, format, LEAPQUANT_DECAY_VECTOR, int64_t{128} << 20, 1);
    })->UseRealTime();
    benchmark::RegisterBenchmark(("fold/" + name).c_str(), [=](benchmark::State& state) {
      fold_heads(state, format);
    })->UseRealTime();
  }
}

}  // namespace
}  // namespace leapquant::bench

int main(int argc, char** argv) {
  leapquant::bench::add_benchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
