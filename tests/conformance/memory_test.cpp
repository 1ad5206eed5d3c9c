// SPDX-License-Identifier: Apache-2.0
//
// Where a caller's memory lies: pools whose windows lie behind their boundary states in one page,
// spread-out tensors of prefills, left padding of a batch, and raw gates in 16 bits. Each must be,
// bit for bit, what packed memory gives.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "conformance/session.h"
#include "core/numeric.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Memory);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A pool of pages as some engines have them: [state | gap | window | gap] per slot, and calls on
// it.
class Pages {
 public:
  static constexpr int64_t kGap = 80;
  Pages(const TestBackend& backend, const Layout& layout, int32_t num_slots)
      : backend_(backend),
        layout_(layout),
        page_(layout.state_bytes + layout.window.bytes + 2 * kGap),
        memory_(static_cast<size_t>(page_ * num_slots / 16), Block{}),
        base_(static_cast<size_t>(num_slots * layout.shape.num_v_heads)),
        health_(base_.size()) {
    std::memset(memory_.data(), 0xff, memory_.size() * sizeof(Block));
    pool_.num_state_slots = pool_.num_window_slots = num_slots;
    pool_.states = memory_.data();
    pool_.windows = bytes() + layout.state_bytes + kGap;
    pool_.state_stride_bytes = pool_.window_stride_bytes = page_;
    pool_.base = base_.data();
    pool_.health = health_.data();
  }

  void reset(int32_t slot) {
    const int32_t position = 0;
    const leapquant_launch call = launch(1);
    EXPECT_EQ(table().reset(layout_, pool_, 1, &slot, nullptr, &position, call), LEAPQUANT_OK);
  }
  void copy(int32_t from, int32_t to) {
    const leapquant_launch call = launch(1);
    EXPECT_EQ(table().copy(layout_, pool_, 1, &from, nullptr, &to, nullptr, call), LEAPQUANT_OK);
  }
  void fold(int32_t slot, int32_t position) {
    leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
    const leapquant_launch call = launch(1);
    args.batch = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.status = status_.data();
    EXPECT_EQ(table().fold(layout_, pool_, args, call), LEAPQUANT_OK);
  }
  // `tokens` of every slot; inputs and output as they are.
  void decode(const std::vector<int32_t>& slots, const std::vector<int32_t>& positions,
              const leapquant_inputs& inputs, const leapquant_output& output, int32_t tokens) {
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = static_cast<int32_t>(slots.size());
    const leapquant_launch call = launch(args.batch);
    args.tokens = tokens;
    args.state_slots = slots.data();
    args.positions = positions.data();
    args.inputs = inputs;
    args.output = output;
    args.status = status_.data();
    EXPECT_EQ(table().decode(layout_, pool_, args, call), LEAPQUANT_OK);
    EXPECT_EQ(status_, std::vector<int32_t>(slots.size(), LEAPQUANT_OK));
  }
  void prefill(int32_t slot, int32_t position, const leapquant_inputs& inputs,
               const leapquant_output& output, int32_t tokens) {
    leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
    const int32_t offsets[] = {0, tokens};
    const leapquant_launch call = launch(1);
    args.batch = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.token_offsets = offsets;
    args.inputs = inputs;
    args.output = output;
    args.status = status_.data();
    EXPECT_EQ(table().prefill(layout_, pool_, args, call), LEAPQUANT_OK);
    EXPECT_EQ(status_[0], LEAPQUANT_OK);
  }

  // As PoolMemory::slot_bytes: state, window, bases, health.
  std::vector<std::byte> slot_bytes(int32_t slot) {
    std::vector<std::byte> all;
    const auto add = [&all](const void* from, int64_t count) {
      const auto* begin = static_cast<const std::byte*>(from);
      all.insert(all.end(), begin, begin + count);
    };
    const int64_t heads = layout_.shape.num_v_heads;
    add(bytes() + slot * page_, layout_.state_bytes);
    add(bytes() + slot * page_ + layout_.state_bytes + kGap, layout_.window.bytes);
    add(base_.data() + slot * heads, heads * static_cast<int64_t>(sizeof(int32_t)));
    add(health_.data() + slot * heads, heads * static_cast<int64_t>(sizeof(leapquant_health)));
    return all;
  }
  bool gaps_untouched() {
    for (int32_t slot = 0; slot < pool_.num_state_slots; ++slot) {
      const std::byte* behind_state = bytes() + slot * page_ + layout_.state_bytes;
      const std::byte* behind_window = behind_state + kGap + layout_.window.bytes;
      for (int64_t i = 0; i < kGap; ++i) {
        if (behind_state[i] != std::byte{0xff} || behind_window[i] != std::byte{0xff}) return false;
      }
    }
    return true;
  }

 private:
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  const Backend& table() const { return *backend_.table; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory_.data()); }
  leapquant_launch launch(int32_t batch) {
    const size_t worker = (table().workspace_per_worker(layout_) + 63) / 64 * 64;
    const size_t sequence = (table().workspace_per_sequence(layout_) + 63) / 64 * 64;
    leapquant_launch result = LEAPQUANT_INIT(leapquant_launch);
    result.check = LEAPQUANT_CHECK_OFF;
    result.workspace_bytes = worker + sequence * static_cast<size_t>(batch);
    workspace_.assign(result.workspace_bytes + 64, std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(workspace_.data());
    result.workspace = workspace_.data() + (64 - address % 64) % 64;
    status_.assign(static_cast<size_t>(batch), -1);
    return result;
  }

  TestBackend backend_;
  const Layout& layout_;
  int64_t page_;
  std::vector<Block> memory_;
  std::vector<int32_t> base_;
  std::vector<leapquant_health> health_;
  leapquant_pool pool_ = LEAPQUANT_INIT(leapquant_pool);
  std::vector<std::byte> workspace_;
  std::vector<int32_t> status_;
};

size_t width_of(const leapquant_shape& shape) {
  return static_cast<size_t>(shape.num_v_heads * shape.head_v_dim);
}

leapquant_output packed(Outputs* outputs, const leapquant_shape& shape, int32_t tokens) {
  outputs->assign(static_cast<size_t>(tokens) * width_of(shape), kNan);
  leapquant_output output = {};
  output.data = outputs->data();
  output.type = LEAPQUANT_FP32;
  return output;
}

// A window behind its boundary state in the page of a slot: every operation gives the bits of two
// pools apart, and nobody touches what lies between.
TEST_P(Memory, WindowsBehindTheirStates) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const leapquant_shape shape = make_shape(2, 4, 36, 44, decay);
    for (const char* format : {"int8:stagger=1", "int4+", "bf16"}) {
      const Layout layout = make_test_layout(shape, format);
      const Tokens tokens = random_tokens(shape, 60, 101);
      Session apart(backend(), layout, 3);
      Pages pages(backend(), layout, 3);
      apart.reset(1);
      pages.reset(1);
      Outputs o;
      pages.prefill(1, 0, slice(tokens, 0, 19).inputs(), packed(&o, shape, 19), 19);
      EXPECT_EQ(o, apart.prefill({{1, 0, &tokens, 0, 19}})[0]) << format;
      for (int32_t t = 19; t < 47; t += 4) {
        const Tokens now = slice(tokens, t, 4);
        pages.decode({1}, {t}, now.inputs(), packed(&o, shape, 4), 4);
        EXPECT_EQ(o, apart.decode_one(1, t, tokens, t, 4)) << format << " token " << t;
      }
      pages.copy(1, 2);
      apart.copy(1, 2);
      EXPECT_TRUE(pages.slot_bytes(2) == apart.memory().slot_bytes(2)) << format;
      pages.fold(1, 47);
      apart.fold(1, 47);
      EXPECT_TRUE(pages.slot_bytes(1) == apart.memory().slot_bytes(1)) << format;
      EXPECT_TRUE(pages.gaps_untouched()) << format;
    }
  }
}

// Copies rows of [rows, heads, width] with gaps of NaN between heads and rows.
leapquant_tensor spread(const std::vector<float>& data, size_t heads, size_t width,
                        std::vector<float>* memory) {
  const size_t head_stride = width + 4;
  const size_t row_stride = heads * head_stride + 12;
  const size_t rows = data.size() / (heads * width);
  memory->assign(rows * row_stride, kNan);
  for (size_t i = 0; i < data.size(); ++i) {
    const size_t row = i / (heads * width);
    const size_t head = i / width % heads;
    (*memory)[row * row_stride + head * head_stride + i % width] = data[i];
  }
  leapquant_tensor tensor = {};
  tensor.data = memory->data();
  tensor.type = LEAPQUANT_FP32;
  tensor.token_stride_bytes = static_cast<int64_t>(row_stride * sizeof(float));
  tensor.head_stride_bytes = static_cast<int64_t>(head_stride * sizeof(float));
  return tensor;
}

// Prefills of tensors with gaps, in and out: the bits of packed ones, and the gaps stay.
TEST_P(Memory, SpreadTensorsOfAPrefill) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const leapquant_shape shape = make_shape(2, 4, 32, 44, decay);
    const bool vector = decay == LEAPQUANT_DECAY_VECTOR;
    const Layout layout = make_test_layout(shape, "int8+");
    constexpr int32_t kTokens = 83;
    const Tokens tokens = random_tokens(shape, kTokens, 102);
    Pages pages(backend(), layout, 2);
    pages.reset(0);
    pages.reset(1);
    Outputs expected;
    pages.prefill(0, 0, tokens.inputs(), packed(&expected, shape, kTokens), kTokens);

    std::vector<float> q, k, v, g, beta, memory;
    leapquant_inputs inputs = tokens.inputs();
    inputs.q = spread(tokens.q, 2, 32, &q);
    inputs.k = spread(tokens.k, 2, 32, &k);
    inputs.v = spread(tokens.v, 4, 44, &v);
    // Scalars per head lie side by side; only tokens may be apart.
    inputs.log_decay =
        vector ? spread(tokens.log_decay, 4, 32, &g) : spread(tokens.log_decay, 1, 4, &g);
    inputs.beta = spread(tokens.beta, 1, 4, &beta);
    if (!vector) inputs.log_decay.head_stride_bytes = 0;
    inputs.beta.head_stride_bytes = 0;
    const leapquant_tensor out = spread(std::vector<float>(expected.size(), kNan), 4, 44, &memory);
    leapquant_output output = {};
    output.data = memory.data();
    output.type = LEAPQUANT_FP32;
    output.token_stride_bytes = out.token_stride_bytes;
    output.head_stride_bytes = out.head_stride_bytes;
    pages.prefill(1, 0, inputs, output, kTokens);
    std::vector<float> right;
    spread(expected, 4, 44, &right);
    ASSERT_EQ(memory.size(), right.size());
    EXPECT_EQ(std::memcmp(memory.data(), right.data(), memory.size() * sizeof(float)), 0)
        << "outputs or the gaps between them differ";
    EXPECT_TRUE(pages.slot_bytes(0) == pages.slot_bytes(1));
  }
}

// H4, batch 4: sequences with 7, 0, 3 and 5 masked tokens in front. A decode skips equal padding by
// the pointer; a packed prefill gives padding to rows without a slot. Neither reads it.
TEST_P(Memory, LeftPaddingOfABatch) {
  const leapquant_shape shape = make_shape(2, 4, 32, 32, LEAPQUANT_DECAY_SCALAR);
  const Layout layout = make_test_layout(shape, "int8");
  const int32_t padding[] = {7, 0, 3, 5};
  const int32_t lengths[] = {6, 13, 10, 8};
  Session alone(backend(), layout, 4);
  Session together(backend(), layout, 4);
  std::vector<Tokens> all;
  std::vector<Row> rows;
  Tokens poison;
  append_poison(&poison, random_tokens(shape, 1, 1), 7);
  for (int32_t i = 0; i < 4; ++i) {
    alone.reset(i);
    together.reset(i);
    all.push_back(random_tokens(shape, 13, 103 + static_cast<uint32_t>(i)));
  }
  for (int32_t i = 0; i < 4; ++i) {
    rows.push_back({-1, 0, &poison, 0, padding[i]});
    rows.push_back({i, 0, &all[static_cast<size_t>(i)], 0, lengths[i]});
  }
  const std::vector<Outputs> o = together.prefill(rows);
  for (int32_t i = 0; i < 4; ++i) {
    const Row& row = rows[static_cast<size_t>(2 * i + 1)];
    EXPECT_EQ(alone.prefill({row})[0], o[static_cast<size_t>(2 * i + 1)]) << i;
    for (float x : o[static_cast<size_t>(2 * i)]) ASSERT_EQ(x, 0.0f) << "padding of " << i;
    EXPECT_TRUE(alone.memory().slot_bytes(i) == together.memory().slot_bytes(i)) << i;
  }

  // Decode of [4, 7 + 6] tokens, of which the first 7 are poison.
  Tokens batch;
  for (int32_t i = 0; i < 4; ++i) {
    append_poison(&batch, all[0], 7);
    append(&batch, slice(all[static_cast<size_t>(i)], 0, 6));
  }
  leapquant_inputs inputs = batch.inputs();
  const auto skip = [](leapquant_tensor* tensor, size_t floats) {
    const size_t token = floats / (4 * 13);
    tensor->data = static_cast<const float*>(tensor->data) + 7 * token;
    tensor->sequence_stride_bytes = static_cast<int64_t>(13 * token * sizeof(float));
  };
  skip(&inputs.q, batch.q.size());
  skip(&inputs.k, batch.k.size());
  skip(&inputs.v, batch.v.size());
  skip(&inputs.log_decay, batch.log_decay.size());
  skip(&inputs.beta, batch.beta.size());
  Pages pages(backend(), layout, 4);
  Session single(backend(), layout, 4);
  for (int32_t i = 0; i < 4; ++i) {
    pages.reset(i);
    single.reset(i);
  }
  Outputs decoded;
  pages.decode({0, 1, 2, 3}, {0, 0, 0, 0}, inputs, packed(&decoded, shape, 4 * 6), 6);
  for (int32_t i = 0; i < 4; ++i) {
    const Outputs one = single.decode_one(i, 0, all[static_cast<size_t>(i)], 0, 6);
    const auto begin = decoded.begin() + static_cast<int64_t>(static_cast<size_t>(i) * one.size());
    EXPECT_EQ(Outputs(begin, begin + static_cast<int64_t>(one.size())), one) << i;
    EXPECT_TRUE(pages.slot_bytes(i) == single.memory().slot_bytes(i)) << i;
  }
}

// Raw gates and step sizes in 16 bits are, bit for bit, the same values in FP32: they are widened
// before anything is computed, for every kind of gate, in decodes and prefills.
TEST_P(Memory, RawGatesIn16Bits) {
  for (const leapquant_decay decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
    const leapquant_shape shape = make_shape(2, 4, 32, 32, decay);
    const Layout layout = make_test_layout(shape, "int8");
    for (const int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
      for (const int32_t type : {LEAPQUANT_BF16, LEAPQUANT_FP16}) {
        Tokens tokens = random_tokens(shape, 8, 110);
        tokens.options.gate = gate;
        tokens.options.lower_bound = -5.0f;
        tokens.options.beta_kind = LEAPQUANT_BETA_SIGMOID;
        tokens.options.beta_scale = 2.0f;
        tokens.a_log = {0.5f, -1.0f, 0.0f, 1.5f};
        const size_t biases = decay == LEAPQUANT_DECAY_VECTOR ? 4 * 32 : 4;
        for (size_t i = 0; i < biases; ++i)
          tokens.dt_bias.push_back(0.1f * static_cast<float>(i % 7));
        std::vector<uint16_t> memory[2];
        std::vector<float>* arrays[] = {&tokens.log_decay, &tokens.beta};
        for (size_t a = 0; a < 2; ++a) {
          for (float& x : *arrays[a]) {
            // Raw values on both sides of zero, up to where softplus is the identity.
            x = 60.0f * (x + 0.05f) + static_cast<float>(memory[a].size() % 23) - 2.0f;
            memory[a].push_back(type == LEAPQUANT_BF16 ? float_to_bf16(x) : float_to_fp16(x));
            x = type == LEAPQUANT_BF16 ? bf16_to_float(memory[a].back())
                                       : fp16_to_float(memory[a].back());
          }
        }
        leapquant_inputs narrow = tokens.inputs();
        narrow.log_decay.data = memory[0].data();
        narrow.beta.data = memory[1].data();
        narrow.log_decay.type = narrow.beta.type = type;
        Pages pages(backend(), layout, 4);
        for (int32_t slot = 0; slot < 4; ++slot) pages.reset(slot);
        Outputs expected, actual;
        pages.decode({0}, {0}, tokens.inputs(), packed(&expected, shape, 8), 8);
        pages.decode({1}, {0}, narrow, packed(&actual, shape, 8), 8);
        EXPECT_EQ(actual, expected) << "decode, gate " << gate << ", type " << type;
        EXPECT_TRUE(pages.slot_bytes(0) == pages.slot_bytes(1));
        pages.prefill(2, 0, tokens.inputs(), packed(&expected, shape, 8), 8);
        pages.prefill(3, 0, narrow, packed(&actual, shape, 8), 8);
        EXPECT_EQ(actual, expected) << "prefill, gate " << gate << ", type " << type;
        EXPECT_TRUE(pages.slot_bytes(2) == pages.slot_bytes(3));
      }
    }
  }
}

}  // namespace
}  // namespace leapquant::conformance
