// SPDX-License-Identifier: Apache-2.0
//
// Cases C9 and C10 place by place: wherever in an input a number is none or a decay grows, the
// sequence that it belongs to is told so and left alone, and no other. The checks of inputs read
// several numbers at once, in other ways for every type and head, so places are drawn at random,
// the first and the last among them.
#include <limits>
#include <random>

#include "conformance/backends.h"
#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

constexpr int32_t kSlots = 3;
constexpr int32_t kTries = 60;

// One wrong number: in which sequence, and what that sequence is told.
struct Fault {
  size_t sequence;
  int32_t status;
  std::string what;
};

// Plants a fault in tokens that belong to sequences of these lengths, one behind the other.
// `stride`: tokens from one sequence to the next, -1 where they are packed without gaps.
Fault plant(std::mt19937* random, const std::vector<int32_t>& lengths, int32_t stride, bool narrow,
            Tokens* tokens) {
  const auto draw = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(*random);
  };
  std::vector<float>* tensors[] = {&tokens->q, &tokens->k, &tokens->v, &tokens->beta,
                                   &tokens->log_decay};
  const char* names[] = {"q", "k", "v", "beta", "log decay"};
  const size_t tensor = draw(tokens->log_decay.empty() ? 4 : 5);
  const size_t width = tensors[tensor]->size() / static_cast<size_t>(tokens->count);
  const size_t sequence = draw(lengths.size());
  size_t first = sequence * static_cast<size_t>(std::max(stride, 0));
  for (size_t i = 0; i < sequence && stride < 0; ++i) first += static_cast<size_t>(lengths[i]);
  const size_t count = static_cast<size_t>(lengths[sequence]) * width;
  const size_t place = draw(4);
  const size_t at = first * width + (place == 0 ? 0 : place == 1 ? count - 1 : draw(count));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const bool gate = tensor == 4;
  // A decay of minus infinity is none at all, and allowed. What is tiny stays so in BF16.
  const float values[] = {kNan, kInfinity, gate ? kNan : -kInfinity, gate ? 1e-30f : kNan};
  const float value = values[draw(4)];
  (*tensors[tensor])[at] = value;
  return {sequence,
          gate && value > 0.0f ? LEAPQUANT_POSITIVE_LOG_DECAY : LEAPQUANT_NON_FINITE_INPUT,
          std::string(names[tensor]) + " of sequence " + std::to_string(sequence) + ", number " +
              std::to_string(at - first * width) + " of " + std::to_string(count) + ": " +
              std::to_string(value) + (narrow ? ", BF16" : "")};
}

// What a call must leave: `fault` told, its slot as before, its outputs zero; the others served.
void expect_alone(const DeviceLayer& layer, const Fault& fault,
                  const std::vector<std::vector<uint8_t>>& before,
                  const std::vector<int32_t>& first_row, const std::vector<int32_t>& lengths) {
  std::vector<int32_t> expected(lengths.size(), LEAPQUANT_OK);
  expected[fault.sequence] = fault.status;
  ASSERT_EQ(layer.status(lengths.size()), expected) << fault.what;
  const std::vector<float> o = layer.outputs(static_cast<size_t>(first_row.back()));
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool changed = layer.slot_bytes(static_cast<int32_t>(i)) != before[i];
    ASSERT_EQ(changed, i != fault.sequence) << fault.what << ", slot " << i;
    const size_t begin = static_cast<size_t>(first_row[i]) * layer.token_size();
    const size_t end = begin + static_cast<size_t>(lengths[i]) * layer.token_size();
    bool zero = true;
    for (size_t e = begin; e < end; ++e) zero = zero && o[e] == 0.0f;
    ASSERT_EQ(zero, i == fault.sequence) << fault.what << ", outputs of " << i;
  }
}

std::vector<std::vector<uint8_t>> slots_of(const DeviceLayer& layer) {
  std::vector<std::vector<uint8_t>> all;
  for (int32_t slot = 0; slot < kSlots; ++slot) all.push_back(layer.slot_bytes(slot));
  return all;
}

std::vector<leapquant_shape> shapes_128() {
  return {conformance::make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR),
          conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR)};
}

void expect_prefill_finds_all(const leapquant_shape& shape, bool bf16, int32_t tries = kTries) {
  SCOPED_TRACE(std::to_string(shape.head_k_dim) + " x " + std::to_string(shape.head_v_dim) +
               ", decay " + std::to_string(shape.decay));
  const std::vector<int32_t> lengths = {37, 5, 70};
  const std::vector<int32_t> first_row = {0, 37, 42, 112};
  const Tokens clean = conformance::random_tokens(shape, 112, 8701);
  DeviceLayer layer(shape, "int8", kSlots, kSlots);
  if (bf16) layer.use_bf16_rows();
  layer.reset({0, 1, 2});
  const std::vector<std::vector<uint8_t>> before = slots_of(layer);
  std::mt19937 random(8702);
  for (int32_t i = 0; i < tries; ++i) {
    Tokens tokens = clean;
    const Fault fault = plant(&random, lengths, -1, bf16, &tokens);
    layer.reset({0, 1, 2});
    layer.put_sequences({{0, 0, 37}, {1, 0, 5}, {2, 0, 70}}, tokens);
    require(layer.prefill_call(kSlots));
    expect_alone(layer, fault, before, first_row, lengths);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(FaultyInputs, PrefillFindsEveryPlace) {
  std::vector<leapquant_shape> shapes = shapes_128();
  shapes.push_back(conformance::make_shape(1, 3, 20, 36, LEAPQUANT_DECAY_SCALAR));
  shapes.push_back(conformance::make_shape(1, 2, 60, 100, LEAPQUANT_DECAY_VECTOR));
  for (const leapquant_shape& shape : shapes) {
    for (const bool bf16 : {false, true}) expect_prefill_finds_all(shape, bf16);
  }
  // More heads than clusters of multiprocessors, and than blocks of half a head.
  for (const int32_t k_heads : {11, 24}) {
    const leapquant_shape scalar =
        conformance::make_shape(k_heads, 2 * k_heads, 128, 128, LEAPQUANT_DECAY_SCALAR);
    const leapquant_shape vector =
        conformance::make_shape(2 * k_heads, 2 * k_heads, 128, 128, LEAPQUANT_DECAY_VECTOR);
    expect_prefill_finds_all(scalar, true, kTries / 6);
    expect_prefill_finds_all(vector, true, kTries / 6);
  }
}

// Rows of 1, 2 and 3 tokens in a call of three; what lies behind a row's last token is poison, and
// nobody's fault. With one token a call, rows of one.
void expect_decode_finds_all(const leapquant_shape& shape, const std::string& format,
                             const std::string& backend, int32_t call_tokens, bool bf16) {
  SCOPED_TRACE(backend + ", " + format + ", decay " + std::to_string(shape.decay) + ", tokens " +
               std::to_string(call_tokens));
  std::vector<int32_t> lengths, first_row = {0};
  Tokens clean;
  std::vector<Row> rows;
  for (int32_t i = 0; i < kSlots; ++i) {
    lengths.push_back(std::min(i + 1, call_tokens));
    first_row.push_back(first_row.back() + call_tokens);
    rows.push_back({i, 0, lengths.back()});
    const Tokens own =
        conformance::random_tokens(shape, call_tokens, 8703 + static_cast<uint32_t>(i));
    conformance::append(&clean, conformance::slice(own, 0, lengths.back()));
    const int32_t rest = call_tokens - lengths.back();
    if (rest > 0) conformance::append_poison(&clean, own, rest);
  }
  DeviceLayer layer(shape, format, kSlots, kSlots, 0, 0, backend);
  if (bf16) layer.use_bf16_rows();
  layer.reset({0, 1, 2});
  const std::vector<std::vector<uint8_t>> before = slots_of(layer);
  std::mt19937 random(8704);
  for (int32_t i = 0; i < kTries; ++i) {
    Tokens tokens = clean;
    const Fault fault = plant(&random, lengths, call_tokens, bf16, &tokens);
    layer.reset({0, 1, 2});
    layer.put_rows(rows, tokens);
    require(layer.decode_call(kSlots, call_tokens));
    expect_alone(layer, fault, before, first_row, lengths);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(FaultyInputs, DecodeFindsEveryPlace) {
  for (const leapquant_shape& shape : shapes_128()) {
    for (const std::string format : {"int8", "bf16", "fp32:step"}) {
      const Layout layout = conformance::make_test_layout(shape, format);
      for (const conformance::TestBackend& backend : conformance::device_backends(layout)) {
        for (const int32_t tokens : {1, 3}) {
          for (const bool bf16 : {false, true}) {
            expect_decode_finds_all(shape, format, backend.name, tokens, bf16);
          }
        }
      }
    }
  }
  const leapquant_shape odd = conformance::make_shape(1, 3, 20, 36, LEAPQUANT_DECAY_SCALAR);
  expect_decode_finds_all(odd, "int8", "cuda", 3, true);
}

}  // namespace
}  // namespace leapquant::cuda_test
