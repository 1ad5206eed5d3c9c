// SPDX-License-Identifier: Apache-2.0
//
// Case F2: a decode captured in a CUDA graph and replayed with other slots, positions and padding
// rows gives the bits of eager calls, across window boundaries. Nothing of a launch may depend on
// what lies in the arrays.
#include <algorithm>

#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

constexpr int32_t kBatch = 8;

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ~Graph() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

void capture(DeviceLayer* layer, int32_t tokens, cudaStream_t stream, Graph* graph) {
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  require(layer->decode_call(kBatch, tokens, stream));
  require(cudaStreamEndCapture(stream, &graph->graph));
  require(cudaGraphInstantiate(&graph->executable, graph->graph, 0));
}

// Rows of step `step`: 1, 3, 5 or 8 live ones in an order that changes, the others padding.
std::vector<Row> rows_of_step(int32_t step, int32_t tokens, std::vector<int32_t>* position) {
  const int32_t live[] = {1, 3, 5, 8};
  std::vector<Row> rows;
  for (int32_t i = 0; i < kBatch; ++i) {
    const int32_t slot = (i * 3 + step) % kBatch;  // 3 and 8 share no factor: each slot once
    if (i >= live[step % 4]) {
      rows.push_back({-1 - i, 12345, tokens});
      continue;
    }
    rows.push_back({slot, (*position)[static_cast<size_t>(slot)], tokens});
    (*position)[static_cast<size_t>(slot)] += tokens;
  }
  return rows;
}

void expect_replays_as_eager(const leapquant_shape& shape, const std::string& format,
                             int32_t tokens) {
  SCOPED_TRACE(format + ", " + std::to_string(shape.head_k_dim));
  constexpr int32_t kSteps = 40;
  const Tokens all = conformance::random_tokens(shape, kSteps * tokens + tokens, 7001);
  DeviceLayer replayed(shape, format, kBatch, kBatch);
  DeviceLayer eager(shape, format, kBatch, kBatch);
  std::vector<int32_t> slots;
  for (int32_t i = 0; i < kBatch; ++i) slots.push_back(i);
  replayed.reset(slots);
  eager.reset(slots);

  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<int32_t> position(kBatch, 0);
  Graph graph;
  for (int32_t step = 0; step < kSteps; ++step) {
    const std::vector<Row> rows = rows_of_step(step, tokens, &position);
    std::vector<const Tokens*> sequences(kBatch, &all);
    std::vector<int32_t> index;
    for (const Row& row : rows) {
      index.push_back(row.slot < 0 ? 0 : std::min(row.position, all.count - tokens));
    }
    const Tokens packed = tokens_at(sequences, index, tokens);
    replayed.put_rows(rows, packed);
    require(cudaDeviceSynchronize());
    if (step == 0) {
      capture(&replayed, tokens, stream, &graph);
      ASSERT_NE(graph.executable, nullptr);
    }
    require(cudaGraphLaunch(graph.executable, stream));
    require(cudaStreamSynchronize(stream));
    const std::vector<float> expected = eager.decode(rows, packed, tokens);
    const std::vector<float> actual = replayed.outputs(expected.size() / replayed.token_size());
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "step " << step;
    ASSERT_EQ(replayed.status(kBatch), std::vector<int32_t>(kBatch, LEAPQUANT_OK));
  }
  for (int32_t slot : slots) {
    EXPECT_TRUE(replayed.slot_bytes(slot) == eager.slot_bytes(slot)) << slot;
  }
  require(cudaStreamDestroy(stream));
}

TEST(Graph, ReplaysAreEagerCalls) {
  const auto scalar = [](int32_t dim) {
    return conformance::make_shape(2, 4, dim, dim, LEAPQUANT_DECAY_SCALAR);
  };
  expect_replays_as_eager(scalar(64), "int8", 1);
  expect_replays_as_eager(scalar(64), "int4+:stagger=1", 2);
  expect_replays_as_eager(scalar(64), "int8:step", 1);
  expect_replays_as_eager(scalar(128), "int8", 1);
  expect_replays_as_eager(scalar(128), "int8+:stagger=1", 4);
  expect_replays_as_eager(conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR),
                          "int6+:stagger=1", 1);
}

}  // namespace
}  // namespace leapquant::cuda_test
