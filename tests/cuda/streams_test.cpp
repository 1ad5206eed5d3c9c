// SPDX-License-Identifier: Apache-2.0
//
// Calls on several streams at once, with more blocks than the device holds: folds, decodes that
// start beside them and prefills take each other's places. Every layer ends with the bits that it
// has alone, and all end: a kernel that counted on all of its blocks, or on those of the kernel
// before it, to be on the device at one time would hang here.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

struct Part {
  const char* format;
  leapquant_decay decay = LEAPQUANT_DECAY_SCALAR;
  int32_t batch = 48;
  int32_t tokens = 1;  // of a sequence, a call
  bool prefill = false;
};

constexpr int32_t kSteps = 40;
constexpr int32_t kStart = 13;  // the first boundary is near, and all sequences have it at once

// One layer with a stream of its own. All calls read the same tokens; positions go on by a copy on
// the stream, so that nothing waits for the host.
class Player {
 public:
  explicit Player(const Part& part)
      : part_(part),
        shape_(conformance::make_shape(part.decay == LEAPQUANT_DECAY_VECTOR ? 32 : 16, 32, 128, 128,
                                       part.decay)),
        layer_(shape_, part.format, part.batch, part.batch) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    std::vector<int32_t> slots(static_cast<size_t>(part.batch));
    std::iota(slots.begin(), slots.end(), 0);
    layer_.reset(slots, kStart);
    layer_.use_bf16_rows();
    std::vector<Row> rows;
    for (const int32_t slot : slots) rows.push_back({slot, kStart, part.tokens});
    const Tokens tokens = conformance::random_tokens(shape_, part.batch * part.tokens, 8901);
    if (part.prefill) {
      layer_.put_sequences(rows, tokens);
    } else {
      layer_.put_rows(rows, tokens);
    }
    std::vector<int32_t> positions;
    for (int32_t step = 0; step < kSteps; ++step) {
      positions.insert(positions.end(), slots.size(), kStart + step * part.tokens);
    }
    positions_.put(positions);
  }
  ~Player() { cudaStreamDestroy(stream_); }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  void put_call(int32_t step) {
    const auto batch = static_cast<size_t>(part_.batch);
    require(cudaMemcpyAsync(layer_.positions().data(),
                            positions_.data() + static_cast<size_t>(step) * batch,
                            batch * sizeof(int32_t), cudaMemcpyDeviceToDevice, stream_));
    require(part_.prefill ? layer_.prefill_call(part_.batch, 0, false, stream_)
                          : layer_.decode_call(part_.batch, part_.tokens, stream_));
  }
  void wait() { require(cudaStreamSynchronize(stream_)); }

  void expect_as(const Player& other) const {
    SCOPED_TRACE(std::string(part_.format) + (part_.prefill ? ", prefill" : "") + ", decay " +
                 std::to_string(part_.decay));
    const auto batch = static_cast<size_t>(part_.batch);
    EXPECT_EQ(layer_.status(batch), std::vector<int32_t>(batch, LEAPQUANT_OK));
    const size_t rows = batch * static_cast<size_t>(part_.tokens);
    ASSERT_EQ(layer_.outputs(rows), other.layer_.outputs(rows));
    for (int32_t slot = 0; slot < part_.batch; ++slot) {
      ASSERT_TRUE(layer_.slot_bytes(slot) == other.layer_.slot_bytes(slot)) << slot;
    }
  }

 private:
  Part part_;
  leapquant_shape shape_;
  DeviceLayer layer_;
  DeviceArray<int32_t> positions_;
  cudaStream_t stream_ = nullptr;
};

TEST(Streams, CallsOfManyLayersAtOnce) {
  const std::vector<Part> parts = {
      {"int8"},
      {"int8:stagger=1"},
      {"int4+"},
      {"int8+:stagger=1", LEAPQUANT_DECAY_VECTOR},
      {"int6", LEAPQUANT_DECAY_SCALAR, 48, 4},
      {"bf16:stagger=1"},
      {"fp32:step"},
      {"int8", LEAPQUANT_DECAY_SCALAR, 12, 70, true},
      {"int4", LEAPQUANT_DECAY_VECTOR, 12, 70, true},
  };
  std::vector<std::unique_ptr<Player>> alone, together;
  for (const Part& part : parts) {
    alone.push_back(std::make_unique<Player>(part));
    together.push_back(std::make_unique<Player>(part));
    for (int32_t step = 0; step < kSteps; ++step) {
      alone.back()->put_call(step);
      alone.back()->wait();
    }
  }
  require(cudaDeviceSynchronize());
  for (int32_t step = 0; step < kSteps; ++step) {
    for (const auto& player : together) player->put_call(step);
  }
  for (const auto& player : together) player->wait();
  for (size_t i = 0; i < parts.size(); ++i) together[i]->expect_as(*alone[i]);
}

}  // namespace
}  // namespace leapquant::cuda_test
