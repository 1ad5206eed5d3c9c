// SPDX-License-Identifier: Apache-2.0
//
// The door: what the host can see wrong with a call refuses it whole, changes nothing, and names
// the argument, the index, what was expected and what came.
#include <climits>
#include <cmath>
#include <functional>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

class Door : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(layer.reset({0, 1, 2, 3}), LEAPQUANT_OK) << leapquant_last_error();
    layer.feed(0, 0, 5);
    layer.feed(1, 0, 3);
  }

  // Expects a refusal after `spoil`, and that no byte has moved.
  void refused(leapquant_status expected, const std::string& part,
               const std::function<void(leapquant_decode_args&)>& spoil) {
    leapquant_decode_args args = layer.decode_args({0, 1}, {5, 3}, 2);
    spoil(args);
    const auto before = layer.snapshot();
    const auto output = layer.output;
    EXPECT_REFUSED(layer.run(args), expected, part);
    EXPECT_EQ(layer.snapshot(), before);
    EXPECT_EQ(layer.output, output);
    EXPECT_EQ(layer.status, std::vector<int32_t>(2, -1)) << "status of a refused call stays";
  }

  SmallLayer layer;
};

TEST_F(Door, DecodeSlots) {
  static const int32_t out_of_range[] = {0, 6};
  refused(LEAPQUANT_SLOT_OUT_OF_RANGE,
          "state_slots[1] is 6, expected below pool.num_state_slots, 6",
          [](auto& args) { args.state_slots = out_of_range; });
  static const int32_t huge[] = {INT_MAX, 0};
  refused(LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slots[0] is 2147483647",
          [](auto& args) { args.state_slots = huge; });
  static const int32_t twice[] = {1, 1};
  refused(LEAPQUANT_SLOT_REPEATED, "state_slots[1] is 1, as is state_slots[0]",
          [](auto& args) { args.state_slots = twice; });
  refused(LEAPQUANT_SLOT_REPEATED, "window_slots[1] is 1, as is window_slots[0]",
          [](auto& args) { args.window_slots = twice; });
  static const int32_t no_window[] = {0, -1};
  refused(LEAPQUANT_SLOT_OUT_OF_RANGE, "window_slots[1] is -1, but state_slots[1] is 1",
          [](auto& args) { args.window_slots = no_window; });
  static const int32_t far_window[] = {0, 4};
  refused(LEAPQUANT_SLOT_OUT_OF_RANGE,
          "window_slots[1] is 4, expected below pool.num_window_slots, 4",
          [](auto& args) { args.window_slots = far_window; });
  static const int32_t without_window[] = {0, 5};
  refused(LEAPQUANT_SLOT_OUT_OF_RANGE,
          "window_slots is null, so state_slots[1], 5, names the window",
          [](auto& args) { args.state_slots = without_window; });
}

TEST_F(Door, DecodePositions) {
  static const int32_t negative[] = {-1, 3};
  refused(LEAPQUANT_INVALID_ARGUMENT, "positions[0] is -1, expected at least 0",
          [](auto& args) { args.positions = negative; });
  static const int32_t overflowing[] = {INT_MAX - 1, 3};
  refused(LEAPQUANT_INVALID_ARGUMENT, "with 2 tokens, at most 2147483645",
          [](auto& args) { args.positions = overflowing; });
  static const int32_t past[] = {60, 3};
  refused(LEAPQUANT_POSITION_PAST_WINDOW, "positions[0] is 60, but value head 0 in state slot 0",
          [](auto& args) { args.positions = past; });
  ASSERT_EQ(layer.reset({1}, 10), LEAPQUANT_OK);
  static const int32_t below[] = {5, 9};
  refused(LEAPQUANT_POSITION_BELOW_BASE,
          "positions[1] is 9, but the base of value head 0 in state slot 1 is 10",
          [](auto& args) { args.positions = below; });
}

TEST_F(Door, DecodeTokens) {
  refused(LEAPQUANT_INVALID_ARGUMENT, "args.tokens is 0, expected 1 to shape.max_tokens, 4",
          [](auto& args) { args.tokens = 0; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "args.tokens is 5", [](auto& args) { args.tokens = 5; });
  static const int32_t too_many[] = {2, 3};
  refused(LEAPQUANT_INVALID_ARGUMENT, "args.num_tokens[1] is 3, expected 0 to args.tokens, 2",
          [](auto& args) { args.num_tokens = too_many; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "batch is -1", [](auto& args) { args.batch = -1; });
}

TEST_F(Door, DecodePointers) {
  refused(LEAPQUANT_NULL_POINTER, "state_slots is null",
          [](auto& args) { args.state_slots = nullptr; });
  refused(LEAPQUANT_NULL_POINTER, "positions is null",
          [](auto& args) { args.positions = nullptr; });
  refused(LEAPQUANT_NULL_POINTER, "args.status is null", [](auto& args) { args.status = nullptr; });
  refused(LEAPQUANT_NULL_POINTER, "inputs.q.data is null",
          [](auto& args) { args.inputs.q.data = nullptr; });
  refused(LEAPQUANT_NULL_POINTER, "inputs.log_decay.data is null",
          [](auto& args) { args.inputs.log_decay.data = nullptr; });
  refused(LEAPQUANT_NULL_POINTER, "output.data is null",
          [](auto& args) { args.output.data = nullptr; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "output.data is inputs.v.data",
          [](auto& args) { args.output.data = const_cast<void*>(args.inputs.v.data); });
  EXPECT_REFUSED(leapquant_decode(layer.layout, &layer.pool, nullptr, &layer.launch),
                 LEAPQUANT_NULL_POINTER, "args is null");
  EXPECT_REFUSED(leapquant_decode(layer.layout, nullptr, nullptr, &layer.launch),
                 LEAPQUANT_NULL_POINTER, "pool is null");
  EXPECT_REFUSED(leapquant_decode(nullptr, &layer.pool, nullptr, &layer.launch),
                 LEAPQUANT_NULL_POINTER, "layout is null");
  EXPECT_REFUSED(leapquant_decode(layer.layout, &layer.pool, nullptr, nullptr),
                 LEAPQUANT_NULL_POINTER, "launch is null");
}

TEST_F(Door, DecodeStrides) {
  // A row of q has 8 FP32 values, a head's output 12.
  refused(LEAPQUANT_INVALID_STRIDE, "inputs.q.head_stride_bytes is 28, expected at least 32",
          [](auto& args) { args.inputs.q.head_stride_bytes = 28; });
  refused(LEAPQUANT_INVALID_STRIDE, "inputs.k.token_stride_bytes is -64",
          [](auto& args) { args.inputs.k.token_stride_bytes = -64; });
  refused(LEAPQUANT_INVALID_STRIDE,
          "inputs.v.token_stride_bytes is 194, expected 0 (packed) or a "
          "positive multiple of 4",
          [](auto& args) { args.inputs.v.token_stride_bytes = 194; });
  refused(LEAPQUANT_INVALID_STRIDE, "output.sequence_stride_bytes is 380, expected at least 384",
          [](auto& args) { args.output.sequence_stride_bytes = 380; });
  refused(LEAPQUANT_INVALID_STRIDE, "passes 63 bits",
          [](auto& args) { args.inputs.v.sequence_stride_bytes = INT64_MAX - 7; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.q.type is 3",
          [](auto& args) { args.inputs.q.type = 3; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "output.type is -1",
          [](auto& args) { args.output.type = -1; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "expected a multiple of 4 bytes", [](auto& args) {
    args.inputs.beta.data = static_cast<const char*>(args.inputs.beta.data) + 2;
  });
}

TEST_F(Door, DecodeGates) {
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.gate is 3", [](auto& args) { args.inputs.gate = 3; });
  refused(LEAPQUANT_NULL_POINTER, "inputs.a_log is null",
          [](auto& args) { args.inputs.gate = LEAPQUANT_GATE_SOFTPLUS; });
  static const float a_log[4] = {0, 0, 0, 0};
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.lower_bound is 0", [](auto& args) {
    args.inputs.gate = LEAPQUANT_GATE_BOUNDED;
    args.inputs.a_log = a_log;
  });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.beta_kind is 2",
          [](auto& args) { args.inputs.beta_kind = 2; });
  refused(LEAPQUANT_NULL_POINTER, "inputs.beta.data is null", [](auto& args) {
    args.inputs.beta_kind = LEAPQUANT_BETA_SIGMOID;
    args.inputs.beta.data = nullptr;
  });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.beta_scale is -1",
          [](auto& args) { args.inputs.beta_scale = -1; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.l2norm_eps is nan",
          [](auto& args) { args.inputs.l2norm_eps = NAN; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.q_scale is inf",
          [](auto& args) { args.inputs.q_scale = INFINITY; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.qk_l2norm is 2",
          [](auto& args) { args.inputs.qk_l2norm = 2; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.read_before_update is -1",
          [](auto& args) { args.inputs.read_before_update = -1; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.reserved[3] is 9",
          [](auto& args) { args.inputs.reserved[3] = 9; });
  refused(LEAPQUANT_INVALID_ARGUMENT, "inputs.struct_size is 8",
          [](auto& args) { args.inputs.struct_size = 8; });
}

// What belongs to the model is the same for all sequences, so no sequence can be blamed for it.
TEST_F(Door, DecodeParameters) {
  constexpr size_t kHeads = 4;
  constexpr size_t kRows = kHeads * 8;  // value heads times K
  struct Parameter {
    const char* name;
    size_t count;
    const float* leapquant_inputs::* field;
  };
  const Parameter parameters[] = {{"a_log", kHeads, &leapquant_inputs::a_log},
                                  {"dt_bias", kHeads, &leapquant_inputs::dt_bias},
                                  {"bonus", kRows, &leapquant_inputs::bonus},
                                  {"skip", kHeads, &leapquant_inputs::skip}};
  const std::vector<float> zeros(kHeads);
  for (const int32_t gate : {LEAPQUANT_GATE_SOFTPLUS, LEAPQUANT_GATE_BOUNDED}) {
    for (const leapquant_check check : {LEAPQUANT_CHECK_FULL, LEAPQUANT_CHECK_OFF}) {
      layer.launch.check = check;
      for (const Parameter& parameter : parameters) {
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
          if (bad == -INFINITY && parameter.field == &leapquant_inputs::a_log) continue;
          for (const size_t at : {size_t{0}, parameter.count - 1}) {
            std::vector<float> values(parameter.count);
            values[at] = bad;
            refused(LEAPQUANT_INVALID_ARGUMENT,
                    "inputs." + std::string(parameter.name) + "[" + std::to_string(at) + "] is ",
                    [&](auto& args) {
                      args.inputs.gate = gate;
                      args.inputs.lower_bound = -5.0f;
                      args.inputs.a_log = zeros.data();
                      args.inputs.*(parameter.field) = values.data();
                    });
          }
        }
      }
    }
  }
}

TEST_F(Door, ALogOfMinusInfinityNeverForgets) {
  const std::vector<float> minus_infinity(4, -INFINITY);
  leapquant_decode_args args = layer.decode_args({0}, {5});
  args.inputs.gate = LEAPQUANT_GATE_SOFTPLUS;
  args.inputs.a_log = minus_infinity.data();
  ASSERT_EQ(layer.run(args), LEAPQUANT_OK) << leapquant_last_error();
  const std::vector<float> raw = layer.output;
  // The same token with a ready log decay of zero, into a slot with the same past.
  layer.feed(2, 0, 5);
  args = layer.decode_args({2}, {5});
  for (float& g : layer.input->log_decay) g = 0.0f;
  ASSERT_EQ(layer.run(args), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_EQ(layer.output, raw);
}

TEST_F(Door, StructSizes) {
  leapquant_decode_args args = layer.decode_args({0}, {5});
  args.struct_size = 0;
  EXPECT_REFUSED(layer.run(args), LEAPQUANT_INVALID_ARGUMENT, "args.struct_size is 0");
  args.struct_size = 0xffffffffu;
  EXPECT_REFUSED(layer.run(args), LEAPQUANT_INVALID_ARGUMENT, "args.struct_size is 4294967295");

  // A newer caller: the tail must be zero.
  struct Newer {
    leapquant_decode_args args;
    int64_t later;
  } newer = {layer.decode_args({0}, {5}), 0};
  newer.args.struct_size = sizeof(newer);
  EXPECT_EQ(layer.run(newer.args), LEAPQUANT_OK) << leapquant_last_error();
  newer.later = 1;
  EXPECT_REFUSED(layer.run(newer.args), LEAPQUANT_INVALID_ARGUMENT, "cannot honour a later field");

  // An older caller knows no health.
  leapquant_pool older = layer.pool;
  older.struct_size = offsetof(leapquant_pool, health);
  const leapquant_decode_args last = layer.decode_args({0}, {5});
  layer.pool = older;
  EXPECT_EQ(layer.run(last), LEAPQUANT_OK) << leapquant_last_error();
  layer.pool.struct_size = offsetof(leapquant_pool, base);
  EXPECT_REFUSED(layer.run(last), LEAPQUANT_INVALID_ARGUMENT, "pool.struct_size");
}

TEST_F(Door, Pools) {
  const leapquant_decode_args args = layer.decode_args({0}, {5});
  const leapquant_pool sound = layer.pool;
  const auto refuse = [&](leapquant_status expected, const char* part, auto spoil) {
    layer.pool = sound;
    spoil(layer.pool);
    EXPECT_REFUSED(layer.run(args), expected, part);
    layer.pool = sound;
  };
  refuse(LEAPQUANT_NULL_POINTER, "pool.states is null", [](auto& p) { p.states = nullptr; });
  refuse(LEAPQUANT_NULL_POINTER, "pool.windows is null", [](auto& p) { p.windows = nullptr; });
  refuse(LEAPQUANT_NULL_POINTER, "pool.base is null", [](auto& p) { p.base = nullptr; });
  refuse(LEAPQUANT_INVALID_ARGUMENT, "pool.states is",
         [](auto& p) { p.states = static_cast<char*>(p.states) + 8; });
  refuse(LEAPQUANT_INVALID_STRIDE, "pool.state_stride_bytes is",
         [](auto& p) { p.state_stride_bytes -= 16; });
  refuse(LEAPQUANT_INVALID_STRIDE, "pool.window_stride_bytes is",
         [](auto& p) { p.window_stride_bytes += 8; });
  refuse(LEAPQUANT_INVALID_STRIDE, "pool.state_stride_bytes is",
         [](auto& p) { p.state_stride_bytes = INT64_MAX / 16 * 16; });
  refuse(LEAPQUANT_INVALID_ARGUMENT, "pool.num_state_slots is -1",
         [](auto& p) { p.num_state_slots = -1; });
}

TEST_F(Door, Launches) {
  const leapquant_decode_args args = layer.decode_args({0}, {5});
  const leapquant_launch sound = layer.launch;
  const auto refuse = [&](leapquant_status expected, const char* part, auto spoil) {
    layer.launch = sound;
    spoil(layer.launch);
    EXPECT_REFUSED(layer.run(args), expected, part);
    layer.launch = sound;
  };
  refuse(LEAPQUANT_INVALID_ARGUMENT, "launch.check is 3", [](auto& l) { l.check = 3; });
  refuse(LEAPQUANT_BUFFER_TOO_SMALL, "launch.workspace_bytes is",
         [](auto& l) { l.workspace_bytes = 0; });
  refuse(LEAPQUANT_NULL_POINTER, "launch.workspace is null",
         [](auto& l) { l.workspace = nullptr; });
  refuse(LEAPQUANT_INVALID_ARGUMENT, "launch.workspace is",
         [](auto& l) { l.workspace = static_cast<char*>(l.workspace) + 16; });
  static leapquant_runner runner = {nullptr, 1, nullptr};
  refuse(LEAPQUANT_NULL_POINTER, "launch.runner->run is null", [](auto& l) { l.runner = &runner; });
  static leapquant_runner none = {nullptr, 0, [](void*, int32_t, leapquant_task, void*) {}};
  refuse(LEAPQUANT_INVALID_ARGUMENT, "launch.runner->num_workers is 0",
         [](auto& l) { l.runner = &none; });
}

TEST_F(Door, PaddingReadsAndWritesNothing) {
  const auto before = layer.snapshot();
  leapquant_decode_args args = layer.decode_args({-1, -5}, {-9, INT_MAX}, 2);
  layer.output.assign(layer.output.size(), NAN);
  ASSERT_EQ(layer.run(args), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_EQ(layer.snapshot(), before);
  for (const float x : layer.output) ASSERT_EQ(x, 0.0f);
  EXPECT_EQ(layer.status, std::vector<int32_t>(2, LEAPQUANT_OK));
  args.batch = 0;
  EXPECT_EQ(layer.run(args), LEAPQUANT_OK);
}

TEST_F(Door, FoldArguments) {
  const std::vector<int32_t> slots = {0, 1};
  const std::vector<int32_t> positions = {5, 3};
  std::vector<int32_t> status(2, -1);
  leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
  args.batch = 2;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.status = status.data();
  const auto run = [&] { return leapquant_fold(layer.layout, &layer.pool, &args, &layer.launch); };
  const auto before = layer.snapshot();
  std::vector<int32_t> destinations = {4, 4};
  args.destination_slots = destinations.data();
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_REPEATED, "args.destination_slots[1] is 4");
  destinations = {4, 0};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_REPEATED,
                 "args.destination_slots[1] is 0, as is args.state_slots[0]");
  destinations = {4, -1};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_OUT_OF_RANGE, "args.destination_slots[1] is -1");
  destinations = {4, 6};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_OUT_OF_RANGE, "args.destination_slots[1] is 6");
  EXPECT_EQ(layer.snapshot(), before);
  destinations = {4, 1};  // the second in place
  EXPECT_EQ(run(), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_EQ(layer.base[4 * 4], 5);
  EXPECT_EQ(layer.base[0], 0) << "the source is unchanged when the destination differs";
  EXPECT_EQ(layer.base[1 * 4], 3);
}

TEST_F(Door, TransferArguments) {
  std::vector<float> matrices(2 * 4 * 8 * 12);
  const std::vector<int32_t> slots = {0, 1};
  const std::vector<int32_t> positions = {5, 3};
  std::vector<int32_t> status(2, -1);
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 2;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.matrices = matrices.data();
  args.status = status.data();
  const auto run = [&] {
    return leapquant_export(layer.layout, &layer.pool, &args, &layer.launch);
  };
  args.type = LEAPQUANT_FP16;
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.type is 1");
  args.type = LEAPQUANT_FP32;
  args.order = 2;
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.order is 2");
  args.order = LEAPQUANT_KV;
  args.head_stride_bytes = 8 * 12 * 4 - 4;
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_STRIDE, "args.head_stride_bytes is 380");
  args.head_stride_bytes = 0;
  args.matrices = nullptr;
  EXPECT_REFUSED(run(), LEAPQUANT_NULL_POINTER, "args.matrices is null");
  args.matrices = matrices.data();
  EXPECT_EQ(run(), LEAPQUANT_OK) << leapquant_last_error();

  const std::vector<int32_t> twice = {2, 2};
  args.state_slots = twice.data();
  const auto before = layer.snapshot();
  EXPECT_REFUSED(leapquant_import(layer.layout, &layer.pool, &args, &layer.launch),
                 LEAPQUANT_SLOT_REPEATED, "state_slots[1] is 2");
  args.state_slots = slots.data();
  matrices[4 * 8 * 12 + 3] = INFINITY;  // the second sequence
  EXPECT_REFUSED(leapquant_import(layer.layout, &layer.pool, &args, &layer.launch),
                 LEAPQUANT_NON_FINITE_INPUT, "sequence 1 of import (state slot 1)");
  EXPECT_EQ(status[0], LEAPQUANT_OK);
  EXPECT_EQ(status[1], LEAPQUANT_NON_FINITE_INPUT);
  EXPECT_EQ(layer.base[1 * 4], 0) << "a faulty sequence is unchanged";
  EXPECT_EQ(layer.base[0], 5) << "its neighbour is done";
  (void)before;
}

TEST_F(Door, CopyAndReset) {
  const auto copy = [&](std::vector<int32_t> from, std::vector<int32_t> to) {
    return leapquant_copy(layer.layout, &layer.pool, static_cast<int32_t>(from.size()), from.data(),
                          nullptr, to.data(), nullptr, &layer.launch);
  };
  const auto before = layer.snapshot();
  EXPECT_REFUSED(copy({0, 1}, {2, 2}), LEAPQUANT_SLOT_REPEATED, "destination_state_slots[1] is 2");
  EXPECT_REFUSED(copy({0, 1}, {1, 2}), LEAPQUANT_SLOT_REPEATED,
                 "destination_state_slots[0] is 1, as is source_state_slots[1]");
  EXPECT_REFUSED(copy({0}, {6}), LEAPQUANT_SLOT_OUT_OF_RANGE, "destination_state_slots[0] is 6");
  EXPECT_REFUSED(copy({0}, {-1}), LEAPQUANT_SLOT_OUT_OF_RANGE, "both negative");
  EXPECT_REFUSED(copy({0}, {5}), LEAPQUANT_SLOT_OUT_OF_RANGE, "destination_window_slots is null");
  EXPECT_REFUSED(layer.reset({1, 1}), LEAPQUANT_SLOT_REPEATED, "state_slots[1] is 1");
  EXPECT_REFUSED(layer.reset({1}, -4), LEAPQUANT_INVALID_ARGUMENT, "positions[0] is -4");
  EXPECT_REFUSED(layer.reset({7}), LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slots[0] is 7");
  EXPECT_EQ(layer.snapshot(), before);
  EXPECT_EQ(copy({0, 0}, {2, 3}), LEAPQUANT_OK) << "sources may repeat: " << leapquant_last_error();
}

TEST_F(Door, PrefillArguments) {
  const std::vector<int32_t> slots = {2, 3};
  const std::vector<int32_t> positions = {0, 0};
  std::vector<int32_t> offsets = {0, 5, 8};
  const Activations x(layer.shape, {1}, {0}, 8);
  std::vector<float> output(8 * 4 * 12);
  std::vector<int32_t> status(2, -1);
  std::vector<leapquant_checkpoint> checkpoints = {{0, 2, 4}, {1, 3, 5}};
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  args.batch = 2;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.token_offsets = offsets.data();
  args.inputs.q.data = x.q.data();
  args.inputs.k.data = x.k.data();
  args.inputs.v.data = x.v.data();
  args.inputs.log_decay.data = x.log_decay.data();
  args.inputs.beta.data = x.beta.data();
  args.inputs.qk_l2norm = 1;
  args.output.data = output.data();
  args.num_checkpoints = 2;
  args.checkpoints = checkpoints.data();
  args.status = status.data();
  const auto run = [&] {
    return leapquant_prefill(layer.layout, &layer.pool, &args, &layer.launch);
  };
  const auto before = layer.snapshot();
  offsets = {1, 5, 8};
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.token_offsets[0] is 1, expected 0");
  offsets = {0, 5, 4};
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT,
                 "args.token_offsets[2] is 4, expected at least");
  offsets = {0, 5, 8};
  checkpoints = {{0, 6, 4}, {1, 3, 5}};
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT,
                 "args.checkpoints[0].position is 6, expected 1 to 5");
  checkpoints = {{1, 3, 5}, {0, 2, 4}};
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "expected them sorted by sequence");
  checkpoints = {{0, 2, 4}, {1, 3, 4}};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_REPEATED, "args.checkpoints[1].state_slot is 4");
  checkpoints = {{0, 2, 3}, {1, 3, 5}};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_REPEATED, "args.checkpoints[0].state_slot is 3");
  checkpoints = {{0, 2, 4}, {2, 3, 5}};
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.checkpoints[1].sequence is 2");
  checkpoints = {{0, 2, 4}, {1, 3, 6}};
  EXPECT_REFUSED(run(), LEAPQUANT_SLOT_OUT_OF_RANGE, "args.checkpoints[1].state_slot is 6");
  checkpoints = {{0, 2, 4}, {1, 3, 5}};
  args.through = 2;
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.through is 2");
  args.through = 0;
  args.num_checkpoints = -1;
  EXPECT_REFUSED(run(), LEAPQUANT_INVALID_ARGUMENT, "args.num_checkpoints is -1");
  args.num_checkpoints = 2;
  EXPECT_EQ(layer.snapshot(), before);
  EXPECT_EQ(run(), LEAPQUANT_OK) << leapquant_last_error();
  EXPECT_EQ(layer.base[2 * 4], 5);
  EXPECT_EQ(layer.base[4 * 4], 2) << "checkpoint";
}

}  // namespace
}  // namespace leapquant_test
