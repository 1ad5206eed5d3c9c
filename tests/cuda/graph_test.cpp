// SPDX-License-Identifier: Apache-2.0
//
// Case F2: a decode captured in a CUDA graph and replayed with other slots, positions and padding
// rows gives the bits of eager calls, across window boundaries; a prefill too, with other lengths
// and checkpoints. Nothing of a launch may depend on what lies in the arrays.
#include <algorithm>

#include "cuda/captured_call.h"

namespace leapquant::cuda_test {
namespace {

constexpr int32_t kBatch = 8;

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

  std::vector<int32_t> position(kBatch, 0);
  CapturedCall captured;
  for (int32_t step = 0; step < kSteps; ++step) {
    const std::vector<Row> rows = rows_of_step(step, tokens, &position);
    std::vector<const Tokens*> sequences(kBatch, &all);
    std::vector<int32_t> index;
    for (const Row& row : rows) {
      index.push_back(row.slot < 0 ? 0 : std::min(row.position, all.count - tokens));
    }
    const Tokens packed = tokens_at(sequences, index, tokens);
    replayed.put_rows(rows, packed);
    captured.run([&](cudaStream_t stream) { return replayed.decode_call(kBatch, tokens, stream); });
    const std::vector<float> expected = eager.decode(rows, packed, tokens);
    const std::vector<float> actual = replayed.outputs(expected.size() / replayed.token_size());
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "step " << step;
    ASSERT_EQ(replayed.status(kBatch), std::vector<int32_t>(kBatch, LEAPQUANT_OK));
  }
  for (int32_t slot : slots) {
    EXPECT_TRUE(replayed.slot_bytes(slot) == eager.slot_bytes(slot)) << slot;
  }
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

// Four sequences in six slots, two checkpoints a call, in slots that hold no sequence. The first
// call has most tokens, so that no array moves later.
void expect_prefills_as_eager(const leapquant_shape& shape, const std::string& format, bool bf16) {
  SCOPED_TRACE(format + ", " + std::to_string(shape.head_k_dim) + ", decay " +
               std::to_string(shape.decay) + (bf16 ? ", BF16" : ""));
  struct Step {
    std::vector<Row> rows;
    std::vector<leapquant_checkpoint> checkpoints;
  };
  const Step steps[] = {
      {{{0, 0, 70}, {1, 0, 33}, {2, 0, 1}, {3, 0, 16}}, {{0, 40, 4}, {1, 33, 5}}},
      {{{3, 16, 5}, {2, 1, 0}, {-1, 77, 9}, {1, 33, 64}}, {{0, 17, 5}, {3, 97, 4}}},
      {{{-4, 0, 3}, {5, 17, 90}, {0, 70, 2}, {2, 1, 17}}, {{1, 64, 1}, {1, 65, 3}}}};
  const Tokens all = conformance::random_tokens(shape, 120, 7002);
  DeviceLayer replayed(shape, format, 6, 4);
  DeviceLayer eager(shape, format, 6, 4);
  for (DeviceLayer* layer : {&replayed, &eager}) {
    if (bf16) layer->use_bf16_rows();
    layer->reset({0, 1, 2, 3, 4, 5});
  }
  CapturedCall captured;
  for (const Step& step : steps) {
    int32_t count = 0;
    for (const Row& row : step.rows) count += row.count;
    const Tokens packed = conformance::slice(all, 120 - count, count);
    for (DeviceLayer* layer : {&replayed, &eager}) {
      layer->put_sequences(step.rows, packed, step.checkpoints);
    }
    captured.run([&](cudaStream_t stream) { return replayed.prefill_call(4, 2, true, stream); });
    require(eager.prefill_call(4, 2, true));
    const auto tokens = static_cast<size_t>(count);
    const std::vector<float> expected = eager.outputs(tokens);
    const std::vector<float> actual = replayed.outputs(tokens);
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)), 0);
    ASSERT_EQ(replayed.status(4), std::vector<int32_t>(4, LEAPQUANT_OK));
    for (int32_t slot = 0; slot < 6; ++slot) {
      EXPECT_TRUE(replayed.slot_bytes(slot) == eager.slot_bytes(slot)) << slot;
    }
  }
}

TEST(Graph, PrefillsReplayAsEagerCalls) {
  const auto shape = [](int32_t dim, leapquant_decay decay) {
    return conformance::make_shape(2, 4, dim, dim, decay);
  };
  expect_prefills_as_eager(shape(64, LEAPQUANT_DECAY_SCALAR), "int8", false);
  expect_prefills_as_eager(shape(20, LEAPQUANT_DECAY_SCALAR), "int4+", false);
  for (const char* format : {"int8", "bf16", "fp32:step"}) {
    expect_prefills_as_eager(shape(128, LEAPQUANT_DECAY_SCALAR), format, true);
    expect_prefills_as_eager(shape(128, LEAPQUANT_DECAY_SCALAR), format, false);
  }
  expect_prefills_as_eager(conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR), "int8",
                           true);
}

}  // namespace
}  // namespace leapquant::cuda_test
