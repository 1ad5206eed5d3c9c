// SPDX-License-Identifier: Apache-2.0
//
// Prefill timed: one layer of 32 heads of 128 x 128, BF16 activations, ready gates, states of 8
// bits; one sequence of 8,192 tokens, and 16 of 1,024. Usage: prefill ROWS.JSONL. Medians of 15
// graph replays, each over fresh positions of the same slots; peers: peers.py, part `prefill`.
#include "cuda/backend.h"
#include "decode_case.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;

constexpr int kHeads = 32;

// `count` numbers, which repeat after some 2^18: drawing a hundred million takes the host too long.
std::vector<uint8_t> drawn(size_t count, int type, float scale, bool negative, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(std::min(count, (size_t{1} << 18) + 128));
  for (float& value : x) {
    value = scale * normal(random);
    if (negative) value = -std::fabs(value);
  }
  std::vector<uint8_t> bytes = packed(x, type);
  const size_t period = bytes.size();
  bytes.resize(count * (type == LEAPQUANT_FP32 ? 4 : 2));
  for (size_t i = period; i < bytes.size(); ++i) bytes[i] = bytes[i - period];
  return bytes;
}

int time_row(int decay, int type, int batch, int tokens, std::FILE* out) {
  const bool vector = decay == LEAPQUANT_DECAY_VECTOR;
  const Case c = {"int8", "int8", decay, kHeads, kHeads, 1, LEAPQUANT_BF16, 0, 0, 0.05};
  const Layout layout = layout_of(c, true);
  const Backend& backend = cuda::backend_128();
  DeviceArray<std::byte> states(static_cast<size_t>(layout.state_bytes * batch)),
      windows(static_cast<size_t>(layout.window.bytes * batch)),
      workspace(backend.workspace_per_worker(layout) + 64 +
                static_cast<size_t>(batch) * backend.workspace_per_sequence(layout));
  DeviceArray<int32_t> base(static_cast<size_t>(batch * kHeads)),
      status(static_cast<size_t>(batch));
  DeviceArray<leapquant_health> health(base.count);
  REQUIRE(cudaMemset(states.data, 0, states.count));
  REQUIRE(cudaMemset(windows.data, 0, windows.count));
  REQUIRE(cudaMemset(base.data, 0, base.count * 4));
  REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));
  const size_t rows = static_cast<size_t>(batch) * static_cast<size_t>(tokens) * kHeads;
  const int gate_type = vector ? LEAPQUANT_BF16 : LEAPQUANT_FP32;
  DeviceArray<uint8_t> q(drawn(rows * 128, type, 1, false, 1)),
      k(drawn(rows * 128, type, 1, false, 2)), v(drawn(rows * 128, type, 1, false, 3)),
      gate(drawn(rows * (vector ? 128 : 1), gate_type, 0.05f, true, 4)),
      beta(packed(std::vector<float>(rows, 0.5f), LEAPQUANT_FP32)), output(rows * 256);
  std::vector<int32_t> slots, offsets = {0};
  for (int i = 0; i < batch; ++i) {
    slots.push_back(i);
    offsets.push_back(offsets.back() + tokens);
  }
  const std::vector<int32_t> zeros(static_cast<size_t>(batch), 0);
  DeviceArray<int32_t> slot_list(slots), offset_list(offsets), positions(zeros);
  const leapquant_pool pool = pool_of(layout, batch, states, windows, base, health);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.workspace = workspace.data;
  launch.workspace_bytes = workspace.count;
  launch.stream = stream;
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  args.batch = batch;
  args.state_slots = slot_list.data;
  args.positions = positions.data;
  args.token_offsets = offset_list.data;
  args.inputs.q = {q.data, type, 0, 0, 0, 0};
  args.inputs.k = {k.data, type, 0, 0, 0, 0};
  args.inputs.v = {v.data, type, 0, 0, 0, 0};
  args.inputs.log_decay = {gate.data, gate_type, 0, 0, 0, 0};
  args.inputs.beta = {beta.data, LEAPQUANT_FP32, 0, 0, 0, 0};
  args.inputs.qk_l2norm = 1;
  args.inputs.q_scale = 0.0883883f;
  args.output.data = output.data;
  args.output.type = LEAPQUANT_BF16;
  args.status = status.data;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  REQUIRE(cudaMemsetAsync(base.data, 0, base.count * 4, stream));
  backend.prefill(layout, pool, args, launch);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0));
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
  int faults = 0;
  for (const int32_t s : status.get()) faults += s != LEAPQUANT_OK;
  const double us = static_cast<double>(times[times.size() / 2]);
  // Inputs and outputs once, states once.
  const double bytes = static_cast<double>(rows) * (vector ? 1284.0 : 1032.0) +
                       static_cast<double>(layout.state_bytes) * batch;
  char line[400];
  std::snprintf(line, sizeof line,
                "{\"family\":\"%s\",\"state\":\"int8\",\"rank\":4,\"window\":16,\"heads\":%d,"
                "\"batch\":%d,\"tokens\":%d,\"schedule\":\"prefill\",\"us\":%.1f,\"bytes\":%.0f,"
                "\"gb_per_s\":%.0f,\"copy_share\":0,\"peer\":false,\"variant\":\"prefill, %s\"}",
                vector ? "kda" : "gdn", kHeads, batch, tokens, us, bytes, bytes / (us * 1e-6) / 1e9,
                type == LEAPQUANT_BF16 ? "bf16" : "fp32");
  std::printf("%s%s\n", line, faults != 0 ? "  FAULTY" : "");
  std::fprintf(out, "%s\n", line);
  REQUIRE(cudaGraphExecDestroy(replay));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamDestroy(stream));
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  std::FILE* out = argc == 2 ? std::fopen(argv[1], "w") : nullptr;
  if (out == nullptr) {
    std::fprintf(stderr, "usage: prefill ROWS.JSONL\n");
    return 2;
  }
  int faults = 0;
  for (const int decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    for (const int type : {LEAPQUANT_BF16, LEAPQUANT_FP32}) {
      faults += time_row(decay, type, 1, 8192, out);
      faults += time_row(decay, type, 16, 1024, out);
    }
  }
  std::fclose(out);
  return faults != 0;
}
