// SPDX-License-Identifier: Apache-2.0
//
// Prefill by chunks, which serves activations in BF16, against prefill by columns, which the same
// numbers in FP32 go to: outputs, states, and the bits of a sequence in any batch.
#include <algorithm>
#include <cmath>

#include "core/numeric.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

// Products have operands of two BF16 parts: 2^-17 of each operand is lost at most, and the smallest
// of the four products, 2^-18. Sums of random signs leave about 2^-16 of a product's norm, and the
// parts of an output (state and chunk) may cancel to a third of it: 5e-5.
constexpr double kBar = 5e-5;

void round_to_bf16(std::vector<float>* values) {
  for (float& x : *values) x = bf16_to_float(float_to_bf16(x));
}
std::vector<uint16_t> narrow(const std::vector<float>& values) {
  std::vector<uint16_t> to;
  for (const float x : values) to.push_back(float_to_bf16(x));
  return to;
}

struct Result {
  std::vector<float> outputs;
  std::vector<std::vector<float>> states;
};

// Sequences of `lengths` tokens from position `start` of slots 0, 1, ..; `start` tokens are decoded
// before, so that the window holds records.
Result prefill(const leapquant_shape& shape, const char* format, const Tokens& tokens,
               const Tokens& earlier, int32_t start, const std::vector<int32_t>& lengths, bool bf16,
               const std::vector<leapquant_checkpoint>& checkpoints = {},
               int32_t output_type = LEAPQUANT_FP32) {
  const auto batch = static_cast<int32_t>(lengths.size());
  const auto slots_in_all = batch + static_cast<int32_t>(checkpoints.size());
  DeviceLayer layer(shape, format, slots_in_all, slots_in_all);
  std::vector<int32_t> slots, positions, offsets = {0};
  for (int32_t i = 0; i < batch; ++i) {
    slots.push_back(i);
    positions.push_back(start);
    offsets.push_back(offsets.back() + lengths[static_cast<size_t>(i)]);
  }
  layer.reset(slots);
  for (int32_t t = 0; t < start; ++t) {
    std::vector<Row> rows;
    for (const int32_t slot : slots) rows.push_back({slot, t, 1});
    layer.decode(rows, tokens_at(std::vector<const Tokens*>(slots.size(), &earlier),
                                 std::vector<int32_t>(slots.size(), t)));
  }
  DeviceArray<int32_t> slot_list, position_list, offset_list, status;
  slot_list.put(slots);
  position_list.put(positions);
  offset_list.put(offsets);
  status.resize(slots.size());
  DeviceArray<float> q, k, v, log_decay, beta, output;
  DeviceArray<uint16_t> narrow_q, narrow_k, narrow_v;
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  if (bf16) {
    narrow_q.put(narrow(tokens.q));
    narrow_k.put(narrow(tokens.k));
    narrow_v.put(narrow(tokens.v));
    args.inputs.q = {narrow_q.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.k = {narrow_k.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.v = {narrow_v.data(), LEAPQUANT_BF16, 0, 0, 0, 0};
  } else {
    q.put(tokens.q);
    k.put(tokens.k);
    v.put(tokens.v);
    args.inputs.q.data = q.data();
    args.inputs.k.data = k.data();
    args.inputs.v.data = v.data();
  }
  if (!tokens.log_decay.empty()) log_decay.put(tokens.log_decay);
  if (!tokens.beta.empty()) beta.put(tokens.beta);
  args.inputs.log_decay.data = log_decay.data();
  args.inputs.beta.data = beta.data();
  args.inputs.qk_l2norm = 1;
  DeviceArray<float> a_log, dt_bias;
  if (!tokens.a_log.empty()) {
    a_log.put(tokens.a_log);
    dt_bias.put(tokens.dt_bias);
    args.inputs.gate = tokens.options.gate;
    args.inputs.lower_bound = tokens.options.lower_bound;
    args.inputs.a_log = a_log.data();
    args.inputs.dt_bias = dt_bias.data();
  }
  DeviceArray<leapquant_checkpoint> checkpoint_list;
  if (!checkpoints.empty()) checkpoint_list.put(checkpoints);
  args.num_checkpoints = static_cast<int32_t>(checkpoints.size());
  args.checkpoints = checkpoint_list.data();
  const size_t numbers = static_cast<size_t>(offsets.back()) * layer.token_size();
  DeviceArray<uint16_t> narrow_output;
  output.resize(numbers);
  narrow_output.resize(numbers);
  args.batch = batch;
  args.state_slots = slot_list.data();
  args.positions = position_list.data();
  args.token_offsets = offset_list.data();
  args.output.data = output.data();
  if (output_type != LEAPQUANT_FP32) args.output.data = narrow_output.data();
  args.output.type = output_type;
  args.status = status.data();
  const leapquant_pool pool = layer.pool();
  const leapquant_launch launch = layer.launch();
  require(leapquant_prefill(layer.layout().get(), &pool, &args, &launch));
  EXPECT_EQ(status.get(0, slots.size()), std::vector<int32_t>(slots.size(), LEAPQUANT_OK));
  Result result;
  result.outputs = output.get(0, numbers);
  if (output_type != LEAPQUANT_FP32) {
    const std::vector<uint16_t> halves = narrow_output.get(0, numbers);
    for (size_t i = 0; i < numbers; ++i) {
      result.outputs[i] =
          output_type == LEAPQUANT_BF16 ? bf16_to_float(halves[i]) : fp16_to_float(halves[i]);
    }
  }
  for (int32_t i = 0; i < batch; ++i) {
    result.states.push_back(layer.export_state(i, start + lengths[static_cast<size_t>(i)]));
  }
  for (const leapquant_checkpoint& at : checkpoints) {
    result.states.push_back(layer.export_state(at.state_slot, at.position));
  }
  return result;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

std::vector<leapquant_shape> shapes() {
  return {conformance::make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR),
          conformance::make_shape(1, 2, 64, 96, LEAPQUANT_DECAY_SCALAR),
          conformance::make_shape(1, 2, 64, 128, LEAPQUANT_DECAY_SCALAR, false),
          conformance::make_shape(2, 2, 128, 64, LEAPQUANT_DECAY_NONE),
          conformance::make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_VECTOR),
          conformance::make_shape(1, 2, 128, 64, LEAPQUANT_DECAY_VECTOR, false)};
}

Tokens bf16_tokens(const leapquant_shape& shape, int32_t count, uint32_t seed) {
  Tokens tokens = conformance::random_tokens(shape, count, seed);
  round_to_bf16(&tokens.q);
  round_to_bf16(&tokens.k);
  round_to_bf16(&tokens.v);
  return tokens;
}

TEST(PrefillChunks, AgreeWithColumns) {
  for (const leapquant_shape& shape : shapes()) {
    SCOPED_TRACE(std::to_string(shape.head_k_dim) + " x " + std::to_string(shape.head_v_dim));
    const std::vector<int32_t> lengths = {1, 31, 32, 33, 0, 300};
    const Tokens tokens = bf16_tokens(shape, 397, 7701);
    const Tokens earlier = conformance::random_tokens(shape, 5, 7702);
    const Result chunks = prefill(shape, "fp32", tokens, earlier, 5, lengths, true);
    const Result columns = prefill(shape, "fp32", tokens, earlier, 5, lengths, false);
    const double error = relative(chunks.outputs, columns.outputs);
    std::printf("%d x %d: outputs %.2e\n", shape.head_k_dim, shape.head_v_dim, error);
    EXPECT_LE(error, kBar);
    EXPECT_NE(chunks.outputs, columns.outputs) << "both went the same way";
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_LE(relative(chunks.states[i], columns.states[i]), kBar) << "length " << lengths[i];
    }
  }
}

// H2, H3: the lengths of those cases side by side, from every fill of the window.
TEST(PrefillChunks, AnyLengthAtAnyOffset) {
  const std::vector<int32_t> lengths = {1,  2,  15, 16, 17, 31, 32,  33,
                                        47, 48, 63, 64, 0,  65, 130, 256};
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, decay);
    const Tokens tokens = bf16_tokens(shape, 820, 7710);
    const Tokens earlier = conformance::random_tokens(shape, 15, 7711);
    for (int32_t start = 0; start < 16; ++start) {
      SCOPED_TRACE("decay " + std::to_string(decay) + ", start " + std::to_string(start));
      const Result chunks = prefill(shape, "fp32", tokens, earlier, start, lengths, true);
      const Result columns = prefill(shape, "fp32", tokens, earlier, start, lengths, false);
      EXPECT_NE(chunks.outputs, columns.outputs) << "both went the same way";
      auto a = chunks.outputs.begin();
      auto b = columns.outputs.begin();
      for (size_t i = 0; i < lengths.size(); ++i) {
        const auto size = static_cast<std::ptrdiff_t>(lengths[i]) * 256;
        EXPECT_LE(relative({a, a + size}, {b, b + size}), kBar) << "length " << lengths[i];
        EXPECT_LE(relative(chunks.states[i], columns.states[i]), kBar) << "length " << lengths[i];
        a += size;
        b += size;
      }
    }
  }
}

// Strong decays, none, and one that forgets all; channels that decay at all rates, in chunks whose
// ratios of decays stay in the range of floats and in those where they would leave it.
TEST(PrefillChunks, HoldAnyDecay) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    for (const bool strong : {false, true}) {
      SCOPED_TRACE(std::to_string(decay) + (strong ? ", strong" : ""));
      const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, decay);
      Tokens tokens = bf16_tokens(shape, 100, 7703);
      for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
        const float strong_choices[] = {0.0f, -1e-4f, -3.0f, -90.0f, -INFINITY};
        const float choices[] = {0.0f, -1e-4f, -3.0f, -0.5f, -5.0f};
        tokens.log_decay[i] = (strong ? strong_choices : choices)[(i * 7 + i / 11) % 5];
      }
      const Result chunks = prefill(shape, "fp32", tokens, tokens, 0, {100}, true);
      const Result columns = prefill(shape, "fp32", tokens, tokens, 0, {100}, false);
      EXPECT_LE(relative(chunks.outputs, columns.outputs), kBar);
      EXPECT_LE(relative(chunks.states[0], columns.states[0]), kBar);
    }
  }
}

// Few heads are spread over several multiprocessors, of more a block has a part, of many a whole
// one: the same bits.
void expect_the_same_bits(leapquant_decay decay) {
  const leapquant_shape shape = conformance::make_shape(2, 4, 128, 128, decay);
  const Tokens one = bf16_tokens(shape, 70, 7704);
  const Result alone = prefill(shape, "int8", one, one, 0, {70}, true);
  const auto size = static_cast<std::ptrdiff_t>(alone.outputs.size());
  for (const int32_t copies : {14, 40}) {  // x 4 heads, on a GPU of 132 multiprocessors
    SCOPED_TRACE(copies);
    Tokens many = one;
    for (int32_t i = 1; i < copies; ++i) conformance::append(&many, one);
    const Result together = prefill(shape, "int8", many, one, 0,
                                    std::vector<int32_t>(static_cast<size_t>(copies), 70), true);
    for (int32_t i = 0; i < copies; ++i) {
      const std::vector<float> part(together.outputs.begin() + i * size,
                                    together.outputs.begin() + (i + 1) * size);
      EXPECT_EQ(part, alone.outputs) << "sequence " << i;
      EXPECT_EQ(together.states[static_cast<size_t>(i)], alone.states[0]) << "sequence " << i;
    }
  }
}
TEST(PrefillChunks, BitsDoNotHangOnTheBatch) { expect_the_same_bits(LEAPQUANT_DECAY_SCALAR); }
TEST(PrefillChunks, BitsOfVectorDecaysDoNotHangOnTheBatch) {
  expect_the_same_bits(LEAPQUANT_DECAY_VECTOR);
}

// Outputs of 16 bits are the FP32 ones rounded.
TEST(PrefillChunks, RoundOutputs) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, decay);
    const Tokens tokens = bf16_tokens(shape, 50, 7705);
    const Result exact = prefill(shape, "fp32", tokens, tokens, 0, {50}, true);
    for (const int32_t type : {LEAPQUANT_BF16, LEAPQUANT_FP16}) {
      SCOPED_TRACE(std::to_string(decay) + ", type " + std::to_string(type));
      const Result rounded = prefill(shape, "fp32", tokens, tokens, 0, {50}, true, {}, type);
      std::vector<float> expected = exact.outputs;
      for (float& x : expected) {
        x = type == LEAPQUANT_BF16 ? bf16_to_float(float_to_bf16(x))
                                   : fp16_to_float(float_to_fp16(x));
      }
      EXPECT_EQ(rounded.outputs, expected);
      EXPECT_EQ(rounded.states, exact.states);
    }
  }
}

// Raw gates, softplus and bounded, with parameters by channel.
TEST(PrefillChunks, TakeRawGates) {
  for (const int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
    for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
      SCOPED_TRACE(std::to_string(decay) + ", gate " + std::to_string(gate));
      const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, decay);
      Tokens tokens = bf16_tokens(shape, 60, 7706);
      for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
        tokens.log_decay[i] = static_cast<float>(static_cast<int32_t>(i * 37 % 101) - 50) / 20.0f;
      }
      tokens.options.gate = gate;
      tokens.options.lower_bound = -5.0f;
      tokens.a_log = {-1.0f, 0.3f};
      const size_t biases = decay == LEAPQUANT_DECAY_VECTOR ? 256 : 2;
      for (size_t i = 0; i < biases; ++i) {
        tokens.dt_bias.push_back(static_cast<float>(static_cast<int32_t>(i % 7) - 3) / 4.0f);
      }
      const Result chunks = prefill(shape, "fp32", tokens, tokens, 0, {60}, true);
      const Result columns = prefill(shape, "fp32", tokens, tokens, 0, {60}, false);
      EXPECT_LE(relative(chunks.outputs, columns.outputs), kBar);
      EXPECT_LE(relative(chunks.states[0], columns.states[0]), kBar);
    }
  }
}

// A checkpoint holds what a prefill up to there leaves, and the exact state goes on: stretches cut
// the tokens elsewhere, so that outputs behind it agree but for rounding.
TEST(PrefillChunks, Checkpoints) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    SCOPED_TRACE(decay);
    const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, decay);
    const Tokens tokens = bf16_tokens(shape, 90, 7707);
    const Result whole = prefill(shape, "int8", tokens, tokens, 0, {90}, true);
    const Result cut = prefill(shape, "int8", tokens, tokens, 0, {90}, true, {{0, 37, 1}});
    const Result part =
        prefill(shape, "int8", conformance::slice(tokens, 0, 37), tokens, 0, {37}, true);
    EXPECT_EQ(cut.states[1], part.states[0]);
    EXPECT_LE(relative(cut.outputs, whole.outputs), kBar);
    EXPECT_TRUE(std::equal(part.outputs.begin(), part.outputs.end(), cut.outputs.begin()));
  }
}

// Numbers between the largest BF16 and the largest float stay finite: their high parts do.
TEST(PrefillChunks, KeepTheLargestNumbers) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    SCOPED_TRACE(decay);
    const leapquant_shape shape = conformance::make_shape(1, 1, 128, 128, decay);
    Tokens tokens = bf16_tokens(shape, 3, 7708);
    std::fill(tokens.log_decay.begin(), tokens.log_decay.end(), 0.0f);
    std::fill(tokens.q.begin(), tokens.q.end(), 0.0f);
    std::fill(tokens.k.begin(), tokens.k.end(), 0.0f);
    std::fill(tokens.v.begin(), tokens.v.end(), 0.0f);
    std::fill(tokens.v.begin(), tokens.v.begin() + 128, 3.3895e38f);
    tokens.beta = {1.003f, 0.5f, 0.5f};
    const size_t key[] = {3, 5, 3};
    const size_t query[] = {3, 3, 9};
    for (size_t t = 0; t < 3; ++t) {
      tokens.k[128 * t + key[t]] = 1.0f;
      tokens.q[128 * t + query[t]] = 1.0f;
    }
    round_to_bf16(&tokens.v);
    const Result chunks = prefill(shape, "fp32", tokens, tokens, 0, {3}, true);
    const Result columns = prefill(shape, "fp32", tokens, tokens, 0, {3}, false);
    for (const float x : chunks.outputs) ASSERT_TRUE(std::isfinite(x));
    EXPECT_GT(chunks.outputs[0], 3.3895e38f);
    EXPECT_LE(relative(chunks.outputs, columns.outputs), kBar);
    EXPECT_LE(relative(chunks.states[0], columns.states[0]), kBar);
  }
}

// Large values in chunks whose halves decay by exp(-40), which their products go through as
// exp(40).
TEST(PrefillChunks, KeepLargeNumbersUnderStrongDecays) {
  const leapquant_shape shape = conformance::make_shape(1, 2, 128, 128, LEAPQUANT_DECAY_VECTOR);
  Tokens tokens = bf16_tokens(shape, 40, 7709);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    tokens.log_decay[i] = i % 3 == 0 ? -5.0f : -1e-3f;
  }
  for (float& x : tokens.v) x *= 1e30f;
  round_to_bf16(&tokens.v);
  const Result chunks = prefill(shape, "fp32", tokens, tokens, 0, {40}, true);
  const Result columns = prefill(shape, "fp32", tokens, tokens, 0, {40}, false);
  for (const float x : chunks.outputs) ASSERT_TRUE(std::isfinite(x));
  // Sums of squares of such numbers leave the range of floats, not that of doubles.
  EXPECT_LE(relative(chunks.outputs, columns.outputs), kBar);
  EXPECT_LE(relative(chunks.states[0], columns.states[0]), kBar);
}

}  // namespace
}  // namespace leapquant::cuda_test
