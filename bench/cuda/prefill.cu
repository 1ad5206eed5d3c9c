// SPDX-License-Identifier: Apache-2.0
//
// Prefill of heads of 128 x 128 on the device: checked against the recurrence in FP64, and timed:
// one sequence of 8,192 tokens and 16 of 1,024, 32 heads, ready gates, states of 8 bits.
// Usage: prefill check | time ROWS.JSONL [SUBSTRING] | once SUBSTRING. Times are medians of graph
// replays; `once` makes two plain calls of each row for a profiler. Peers: peers.py, part
// `prefill`.
#include "prefill_case.cuh"
#include "timing.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;

constexpr int kNone = LEAPQUANT_DECAY_NONE;
constexpr int kScalar = LEAPQUANT_DECAY_SCALAR;
constexpr int kVector = LEAPQUANT_DECAY_VECTOR;
constexpr int kBf16 = LEAPQUANT_BF16;
constexpr int kFp16 = LEAPQUANT_FP16;
constexpr int kFp32 = LEAPQUANT_FP32;

// Largest relative error of the outputs of one sequence and head, and of its state.
struct Misses {
  double output = 0.0, state = 0.0;
};

Misses misses_of(const PrefillRun& run) {
  const auto heads = static_cast<size_t>(run.c.v_heads);
  DeviceArray<double> exact_outputs(run.rows(run.c.v_heads) * 128);
  DeviceArray<double> exact_states(static_cast<size_t>(run.batch) * heads * 128 * 128);
  run_exact(run, &exact_outputs, &exact_states);
  const std::vector<double> want = exact_outputs.get();
  const std::vector<double> want_states = exact_states.get();
  const std::vector<uint8_t> bytes = run.output.get();
  const std::vector<std::byte> state_bytes = run.states.get();
  std::vector<float> got(bytes.size() / 4);
  std::memcpy(got.data(), bytes.data(), bytes.size());
  std::vector<float> states(want_states.size());
  std::memcpy(states.data(), state_bytes.data(), states.size() * 4);
  Misses worst;
  const auto raise = [](double* to, double miss, double all) {
    const double x = std::sqrt(miss / all);
    *to = x == x ? std::max(*to, x) : 1e9;
  };
  for (size_t i = 0; i < static_cast<size_t>(run.batch); ++i) {
    const auto first = static_cast<size_t>(run.offsets[i]);
    const auto last = static_cast<size_t>(run.offsets[i + 1]);
    if (first == last) continue;
    for (size_t h = 0; h < heads; ++h) {
      double miss = 0.0;
      double all = 0.0;
      for (size_t t = first; t < last; ++t) {
        for (size_t j = 0; j < 128; ++j) {
          const size_t at = (t * heads + h) * 128 + j;
          const double d = static_cast<double>(got[at]) - want[at];
          miss += d * d;
          all += want[at] * want[at];
        }
      }
      raise(&worst.output, miss, all);
      miss = all = 0.0;
      for (size_t e = 0; e < 128 * 128; ++e) {
        const size_t at = (i * heads + h) * 128 * 128 + e;
        const double d = static_cast<double>(states[at]) - want_states[at];
        miss += d * d;
        all += want_states[at] * want_states[at];
      }
      raise(&worst.state, miss, all);
    }
  }
  return worst;
}

int check() {
  const std::vector<int> lengths = {300, 1, 33, 0, 64};
  const std::vector<int> many(10, 70);
  const std::vector<PrefillCase> cases = {
      {"scalar", "fp32", kScalar, 2, 4, lengths, kBf16, 0.05f, 0.0f},
      {"scalar, slow, like keys", "fp32", kScalar, 2, 2, {512}, kBf16, 1e-4f, 3.0f},
      {"scalar, strong", "fp32", kScalar, 1, 1, {256}, kBf16, 60.0f, 0.0f},
      {"scalar, no delta rule", "fp32", kScalar, 1, 2, {200}, kBf16, 0.05f, 0.0f, false},
      {"no decay", "fp32", kNone, 2, 2, {200}, kBf16, 0.0f, 0.0f},
      {"scalar, many", "fp32", kScalar, 16, 32, many, kBf16, 0.05f, 0.0f},
      {"scalar, FP16", "fp32", kScalar, 2, 4, lengths, kFp16, 0.05f, 0.0f},
      {"scalar, 2,048 tokens", "fp32", kScalar, 32, 32, {2048}, kBf16, 0.05f, 0.0f},
      {"vector", "fp32", kVector, 2, 4, lengths, kBf16, 0.05f, 0.0f},
      {"vector, strong", "fp32", kVector, 1, 1, {256}, kBf16, 60.0f, 0.0f},
      {"vector, rather strong", "fp32", kVector, 2, 2, {512}, kBf16, 5.0f, 0.0f},
      {"vector, slow, like keys", "fp32", kVector, 2, 2, {512}, kBf16, 1e-4f, 3.0f},
      {"vector, no delta rule", "fp32", kVector, 1, 2, {200}, kBf16, 0.05f, 0.0f, false},
      {"vector, many", "fp32", kVector, 16, 32, many, kBf16, 0.05f, 0.0f, true, true},
      {"vector, FP16", "fp32", kVector, 2, 4, lengths, kFp16, 0.05f, 0.0f, true, true},
  };
  int bad = 0;
  for (const PrefillCase& c : cases) {
    PrefillRun run(c, kFp32);
    run.prefill(nullptr);
    REQUIRE(cudaDeviceSynchronize());
    const Misses worst = misses_of(run);
    // Nearly equal keys with steps up to one amplify the rounding of FP32 itself.
    const double bar = c.common > 0.0f ? 1e-4 : 2e-5;
    const bool fits = worst.output <= bar && worst.state <= bar && run.faults() == 0;
    bad += fits ? 0 : 1;
    std::printf("%-26s outputs %.2e, states %.2e%s\n", c.name, worst.output, worst.state,
                fits ? "" : "  TOO MUCH");
    std::fflush(stdout);
  }
  return bad;
}

std::vector<PrefillCase> rows_to_time() {
  const std::vector<int> one(1, 8192);
  const std::vector<int> many(16, 1024);
  const std::vector<int> four(4, 4096);
  return {{"gdn bf16 1", "int8", kScalar, 32, 32, one, kBf16, 0.05f, 0.0f},
          {"gdn bf16 16", "int8", kScalar, 32, 32, many, kBf16, 0.05f, 0.0f},
          {"kda bf16 1", "int8", kVector, 32, 32, one, kBf16, 0.05f, 0.0f, true, true},
          {"kda bf16 16", "int8", kVector, 32, 32, many, kBf16, 0.05f, 0.0f, true, true},
          {"gdn fp32 1", "int8", kScalar, 32, 32, one, kFp32, 0.05f, 0.0f},
          {"gdn fp32 16", "int8", kScalar, 32, 32, many, kFp32, 0.05f, 0.0f},
          {"kda fp32 1", "int8", kVector, 32, 32, one, kFp32, 0.05f, 0.0f},
          {"kda fp32 16", "int8", kVector, 32, 32, many, kFp32, 0.05f, 0.0f},
          {"gdn bf16 512", "int8", kScalar, 32, 32, {512}, kBf16, 0.05f, 0.0f},
          {"gdn bf16 2k", "int8", kScalar, 32, 32, {2048}, kBf16, 0.05f, 0.0f},
          {"gdn bf16 64 heads", "int8", kScalar, 16, 64, one, kBf16, 0.05f, 0.0f},
          {"gdn bf16 4", "int8", kScalar, 32, 32, four, kBf16, 0.05f, 0.0f},
          {"kda bf16 512", "int8", kVector, 32, 32, {512}, kBf16, 0.05f, 0.0f, true, true},
          {"kda bf16 2k", "int8", kVector, 32, 32, {2048}, kBf16, 0.05f, 0.0f, true, true},
          {"kda bf16 64 heads", "int8", kVector, 64, 64, one, kBf16, 0.05f, 0.0f, true, true},
          {"kda bf16 4", "int8", kVector, 32, 32, four, kBf16, 0.05f, 0.0f, true, true}};
}

int time_row(const PrefillCase& c, double copy, std::FILE* out) {
  PrefillRun run(c, kBf16);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  run.prefill(stream);
  REQUIRE(cudaStreamSynchronize(stream));
  const cudaGraphExec_t replay = graph_of(stream, [&] {
    run.reset(stream);
    run.prefill(stream);
  });
  cudaEvent_t a, b;
  REQUIRE(cudaEventCreate(&a));
  REQUIRE(cudaEventCreate(&b));
  std::vector<float> times;
  for (int i = 0; i < 18; ++i) {
    REQUIRE(cudaEventRecord(a, stream));
    REQUIRE(cudaGraphLaunch(replay, stream));
    REQUIRE(cudaEventRecord(b, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    float ms;
    REQUIRE(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) times.push_back(ms * 1e3f);
  }
  std::sort(times.begin(), times.end());
  const auto us = static_cast<double>(times[times.size() / 2]);
  // Inputs and outputs once, states once.
  const double row_bytes = c.type == kFp32 ? 1792.0 : 1024.0;
  const double gate_bytes = c.decay != kVector ? 4.0 : c.bf16_gates ? 256.0 : 512.0;
  const double bytes = static_cast<double>(run.rows(c.v_heads)) * (row_bytes + gate_bytes + 4.0) +
                       static_cast<double>(run.layout.state_bytes) * run.batch;
  const double rate = bytes / (us * 1e-6) / 1e9;
  char line[400];
  std::snprintf(line, sizeof line,
                "{\"family\":\"%s\",\"state\":\"%s\",\"rank\":4,\"window\":16,\"heads\":%d,"
                "\"batch\":%d,\"tokens\":%d,\"schedule\":\"prefill\",\"us\":%.1f,\"bytes\":%.0f,"
                "\"gb_per_s\":%.0f,\"copy_share\":%.3f,\"peer\":false,\"variant\":\"prefill, %s\"}",
                c.decay == kVector ? "kda" : "gdn", c.format, c.v_heads, run.batch, c.lengths[0],
                us, bytes, rate, rate / copy, c.type == kBf16 ? "bf16" : "fp32");
  std::printf("%s  fastest %.1f%s\n", line, static_cast<double>(times.front()),
              run.faults() != 0 ? "  FAULTY" : "");
  std::fflush(stdout);
  std::fprintf(out, "%s\n", line);
  REQUIRE(cudaGraphExecDestroy(replay));
  REQUIRE(cudaStreamDestroy(stream));
  return run.faults();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "check" && argc == 2) return check() == 0 ? 0 : 1;
  if (mode == "once" && argc == 3) {
    for (const PrefillCase& c : rows_to_time()) {
      if (std::strstr(c.name, argv[2]) == nullptr) continue;
      PrefillRun run(c, kBf16);
      for (int i = 0; i < 2; ++i) {
        run.reset(nullptr);
        run.prefill(nullptr);
        REQUIRE(cudaDeviceSynchronize());
      }
    }
    return 0;
  }
  std::FILE* out = mode == "time" && (argc == 3 || argc == 4) ? std::fopen(argv[2], "w") : nullptr;
  if (out == nullptr) {
    std::fprintf(stderr, "usage: prefill check | time ROWS.JSONL [SUBSTRING] | once SUBSTRING\n");
    return 2;
  }
  const double copy = copy_bandwidth();
  std::printf("copy %.0f GB/s\n", copy);
  int faults = 0;
  for (const PrefillCase& c : rows_to_time()) {
    if (argc == 4 && std::strstr(c.name, argv[3]) == nullptr) continue;
    faults += time_row(c, copy, out);
  }
  std::fclose(out);
  return faults != 0;
}
