// SPDX-License-Identifier: Apache-2.0
//
// Cases F2, G1 and O1: a sequence's outputs and bytes are the same bits alone, in any batch, in any
// row and slot, among padding rows, eager or from a graph; one token a call or several, BF16 rows
// of a model or FP32 tensors, sequences at phases of their own, boundaries aligned or staggered.
#include <algorithm>
#include <numeric>

#include "conformance/backends.h"
#include "conformance/session.h"
#include "cuda/captured_call.h"

namespace leapquant::cuda_test {
namespace {

struct Setting {
  leapquant_shape shape;
  const char* format;
  int32_t tokens;  // a call
  bool bf16;
};

leapquant_shape gdn(int32_t k_heads, int32_t v_heads) {
  return conformance::make_shape(k_heads, v_heads, 128, 128, LEAPQUANT_DECAY_SCALAR);
}
leapquant_shape kda(int32_t heads) {
  return conformance::make_shape(heads, heads, 128, 128, LEAPQUANT_DECAY_VECTOR);
}

constexpr int32_t kStreams = 24;
constexpr int32_t kLastStart = 18;  // streams begin to feed whole calls at 0 .. kLastStart
constexpr int32_t kCalls = 20;

// What stream i feeds in step s: one token each in its first steps, nothing while it waits for the
// others, then whole calls.
struct Feed {
  int32_t position = 0;
  int32_t count = 0;
};
Feed feed_of(int32_t stream, int32_t step, int32_t tokens) {
  const int32_t start = stream * 7 % (kLastStart + 1);
  if (step < kLastStart) return step < start ? Feed{step, 1} : Feed{start, 0};
  return {start + (step - kLastStart) * tokens, tokens};
}

// How the streams are dealt to rows and slots. Row i of the batch plays stream i mod kStreams, so
// that large batches hold many copies.
struct Dealing {
  int32_t rows = kStreams;
  int32_t padding = 0;
  bool shuffled = false;
  bool graph = false;
};

struct Result {
  std::vector<std::vector<float>> outputs;  // of each row's stream, all its tokens
  std::vector<std::vector<uint8_t>> slots;
};

// Every row of a dealing through all steps, on one backend.
Result run(const Setting& setting, const std::string& backend, const std::vector<Tokens>& streams,
           const Dealing& dealing) {
  const int32_t batch = dealing.rows + dealing.padding;
  DeviceLayer layer(setting.shape, setting.format, dealing.rows, batch, 0, 0, backend);
  if (setting.bf16) layer.use_bf16_rows();
  std::vector<int32_t> slot_of(static_cast<size_t>(dealing.rows));
  std::iota(slot_of.begin(), slot_of.end(), 0);
  if (dealing.shuffled) std::reverse(slot_of.begin(), slot_of.end());
  layer.reset(slot_of);

  Result result;
  result.outputs.resize(slot_of.size());
  CapturedCall captured;
  for (int32_t step = 0; step < kLastStart + kCalls; ++step) {
    std::vector<Row> rows;
    std::vector<int32_t> player;  // row to play, or -1 for padding
    Tokens packed;
    for (int32_t i = 0; i < batch; ++i) {
      // Padding rows lie anywhere; 7 and the sizes of the batches here share no factor.
      const int32_t turned = dealing.shuffled ? (i * 7 + step) % batch : i;
      player.push_back(turned < dealing.rows ? turned : -1);
      const int32_t stream = turned % kStreams;
      const Tokens& tokens = streams[static_cast<size_t>(stream)];
      const Feed feed = feed_of(stream, step, setting.tokens);
      if (player.back() < 0) {
        rows.push_back({-1 - i, 12345, setting.tokens});
      } else {
        rows.push_back({slot_of[static_cast<size_t>(turned)], feed.position, feed.count});
      }
      const int32_t used = player.back() < 0 ? 0 : feed.count;
      if (used > 0) conformance::append(&packed, conformance::slice(tokens, feed.position, used));
      if (used < setting.tokens) {
        conformance::append_poison(&packed, tokens, setting.tokens - used);
      }
    }
    layer.put_rows(rows, packed);
    if (dealing.graph) {
      captured.run(
          [&](cudaStream_t stream) { return layer.decode_call(batch, setting.tokens, stream); });
    } else {
      require(layer.decode_call(batch, setting.tokens));
    }
    EXPECT_EQ(layer.status(static_cast<size_t>(batch)),
              std::vector<int32_t>(static_cast<size_t>(batch), LEAPQUANT_OK));
    const auto calls = static_cast<size_t>(setting.tokens);
    const std::vector<float> o = layer.outputs(static_cast<size_t>(batch) * calls);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin = o.begin() + static_cast<int64_t>(i * calls * layer.token_size());
      const size_t used = player[i] < 0 ? 0 : static_cast<size_t>(rows[i].count);
      const auto end = begin + static_cast<int64_t>(used * layer.token_size());
      if (player[i] >= 0) {
        std::vector<float>& all = result.outputs[static_cast<size_t>(player[i])];
        all.insert(all.end(), begin, end);
      }
      const auto rest = begin + static_cast<int64_t>(calls * layer.token_size());
      EXPECT_TRUE(std::all_of(end, rest, [](float x) { return x == 0.0f; }))
          << "padding, row " << i;
    }
  }
  for (const int32_t slot : slot_of) result.slots.push_back(layer.slot_bytes(slot));
  return result;
}

// One stream alone, with calls of exactly its tokens.
Result run_alone(const Setting& setting, const std::string& backend, int32_t stream,
                 const Tokens& tokens) {
  DeviceLayer layer(setting.shape, setting.format, 1, 1, 0, 0, backend);
  if (setting.bf16) layer.use_bf16_rows();
  layer.reset({0});
  Result result;
  result.outputs.resize(1);
  for (int32_t step = 0; step < kLastStart + kCalls; ++step) {
    const Feed feed = feed_of(stream, step, setting.tokens);
    if (feed.count == 0) continue;
    const std::vector<float> o =
        layer.decode({{0, feed.position, feed.count}},
                     conformance::slice(tokens, feed.position, feed.count), feed.count);
    result.outputs[0].insert(result.outputs[0].end(), o.begin(), o.end());
  }
  result.slots.push_back(layer.slot_bytes(0));
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every row of `result` plays its stream as it was played alone.
void expect_as_alone(const Result& result, const std::vector<Result>& alone,
                     const std::string& what) {
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const Result& expected = alone[i % alone.size()];
    ASSERT_TRUE(same_bits(result.outputs[i], expected.outputs[0])) << what << ", outputs of " << i;
    ASSERT_TRUE(result.slots[i] == expected.slots[0]) << what << ", bytes of " << i;
  }
}

void expect_independence(const Setting& setting, const std::vector<Dealing>& dealings,
                         size_t most_backends = 2) {
  const Layout layout = conformance::make_test_layout(setting.shape, std::string(setting.format));
  std::vector<Tokens> streams;
  for (int32_t i = 0; i < kStreams; ++i) {
    streams.push_back(conformance::random_tokens(
        setting.shape, kLastStart + kCalls * setting.tokens, 8400 + static_cast<uint32_t>(i)));
  }
  std::vector<conformance::TestBackend> backends = conformance::device_backends(layout);
  backends.resize(std::min(backends.size(), most_backends));
  for (const conformance::TestBackend& backend : backends) {
    SCOPED_TRACE(backend.name + ", " + setting.format + ", " +
                 std::to_string(setting.shape.num_v_heads) + " heads, " +
                 std::to_string(setting.tokens) + " tokens" + (setting.bf16 ? ", BF16" : ""));
    std::vector<Result> alone;
    for (int32_t i = 0; i < kStreams; ++i) {
      alone.push_back(run_alone(setting, backend.name, i, streams[static_cast<size_t>(i)]));
    }
    for (const Dealing& dealing : dealings) {
      const std::string what =
          std::to_string(dealing.rows) + " rows, " + std::to_string(dealing.padding) +
          " of padding" + (dealing.shuffled ? ", shuffled" : "") + (dealing.graph ? ", graph" : "");
      expect_as_alone(run(setting, backend.name, streams, dealing), alone, what);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

const std::vector<Dealing> kAll = {
    {.rows = kStreams},
    {.rows = kStreams, .padding = 17, .shuffled = true},
    {.rows = 395, .padding = 6, .shuffled = true},
    {.rows = kStreams, .padding = 17, .shuffled = true, .graph = true},
    {.rows = 200, .padding = 1, .graph = true}};

TEST(Determinism, OneTokenOfAModelsRows) {
  for (const char* format : {"int8", "int8:stagger=1", "int4+:stagger=1", "int6"}) {
    expect_independence({gdn(2, 4), format, 1, true}, kAll);
  }
  expect_independence({kda(2), "int8", 1, true}, kAll);
  expect_independence({kda(2), "int8+:stagger=1:decay=fp16", 1, true}, kAll);
}

TEST(Determinism, OneTokenOfOtherTensors) {
  expect_independence({gdn(1, 3), "int8", 1, false}, kAll);
  expect_independence({gdn(2, 4), "int4-compact:stagger=1", 1, false}, kAll);
  expect_independence({gdn(2, 2), "mix(int8+@0,int4-compact)", 1, false}, kAll);
}

TEST(Determinism, SeveralTokensACall) {
  expect_independence({gdn(2, 4), "int8", 4, true}, kAll);
  expect_independence({gdn(2, 4), "int8+:stagger=1", 3, false}, kAll);
  expect_independence({kda(2), "int4+:stagger=1", 2, true}, kAll);
  expect_independence({kda(2), "int8", 8, false}, kAll);
}

// States that only the general kernels serve, and plain ones.
TEST(Determinism, OtherStates) {
  for (const char* format : {"fp32", "bf16", "fp32:step", "bf16:step", "3h:r=2", "int8:step"}) {
    expect_independence({gdn(2, 4), format, 1, true}, kAll);
  }
  expect_independence({kda(2), "fp32:step", 2, false}, kAll);
}

// All rows play one stream over a boundary, for few steps.
void expect_equal_rows(const char* format, int32_t num_rows, int32_t steps) {
  DeviceLayer layer(gdn(16, 32), format, num_rows, num_rows);
  layer.use_bf16_rows();
  std::vector<int32_t> slots(static_cast<size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  layer.reset(slots, 15);
  const Tokens tokens = conformance::random_tokens(gdn(16, 32), steps, 8499);
  for (int32_t t = 0; t < steps; ++t) {
    std::vector<Row> rows;
    for (const int32_t slot : slots) rows.push_back({slot, 15 + t, 1});
    const std::vector<float> o =
        layer.decode(rows, tokens_at(std::vector<const Tokens*>(slots.size(), &tokens),
                                     std::vector<int32_t>(slots.size(), t)));
    for (size_t i = layer.token_size(); i < o.size(); ++i) {
      ASSERT_EQ(o[i], o[i % layer.token_size()]) << format << ", token " << t << ", " << i;
    }
  }
  for (const int32_t slot : slots) {
    ASSERT_TRUE(layer.slot_bytes(slot) == layer.slot_bytes(0)) << format << ", " << slot;
  }
}

// As many heads a block as a server has: what the sanitizers run (sanitize.sh), the slowest of them
// the second.
TEST(Determinism, ManyHeadsAFewSteps) {
  for (const char* format : {"int8", "int4+:stagger=1", "fp32:step", "bf16:step", "fp32", "bf16"}) {
    expect_equal_rows(format, 64, 3);
  }
}
TEST(Determinism, SomeHeadsTwoSteps) {
  for (const char* format : {"int8:stagger=1", "fp32:step", "bf16"}) {
    expect_equal_rows(format, 24, 2);
  }
}

// Few enough for one launch a call.
TEST(Determinism, FewHeadsAFewSteps) {
  for (const char* format : {"int8", "int8:stagger=1", "int4:stagger=1", "int8+"}) {
    expect_equal_rows(format, 8, 3);
  }
}

// O1: a hundred runs over a boundary, of few and of many heads.
TEST(Determinism, AHundredRepeats) {
  const Setting settings[] = {{gdn(16, 32), "int8", 1, true},
                              {gdn(2, 4), "int4+:stagger=1", 1, true},
                              {kda(2), "int8+:stagger=1:decay=fp16", 2, true}};
  for (const Setting& setting : settings) {
    const Tokens tokens = conformance::random_tokens(setting.shape, 20, 8498);
    for (const int32_t batch : {1, 24}) {
      SCOPED_TRACE(std::string(setting.format) + ", batch " + std::to_string(batch));
      DeviceLayer layer(setting.shape, setting.format, batch, batch);
      layer.use_bf16_rows();
      std::vector<int32_t> slots(static_cast<size_t>(batch));
      std::iota(slots.begin(), slots.end(), 0);
      std::vector<float> expected;
      std::vector<uint8_t> expected_slot;
      for (int32_t repeat = 0; repeat < 100; ++repeat) {
        layer.reset(slots);
        std::vector<float> all;
        for (int32_t t = 0; t < 20; t += setting.tokens) {
          std::vector<Row> rows;
          Tokens packed;
          for (const int32_t slot : slots) {
            rows.push_back({slot, t, setting.tokens});
            conformance::append(&packed, conformance::slice(tokens, t, setting.tokens));
          }
          const std::vector<float> o = layer.decode(rows, packed, setting.tokens);
          all.insert(all.end(), o.begin(), o.end());
        }
        const std::vector<uint8_t> slot = layer.slot_bytes(batch - 1);
        if (repeat == 0) {
          expected = all;
          expected_slot = slot;
        }
        ASSERT_TRUE(same_bits(all, expected)) << repeat;
        ASSERT_TRUE(slot == expected_slot) << repeat;
      }
    }
  }
}

// A layer of 32 heads at the sizes of a server, on the backend that serves it there: batch 64 and
// 512 against sequences alone.
TEST(Determinism, LargeBatchesOfALayer) {
  const std::vector<Dealing> large = {
      {.rows = 64}, {.rows = 509, .padding = 3, .shuffled = true}, {.rows = 512, .graph = true}};
  for (const char* format : {"int8", "int8:stagger=1"}) {
    expect_independence({gdn(16, 32), format, 1, true}, large, 1);
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
