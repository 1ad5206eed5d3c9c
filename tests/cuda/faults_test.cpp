// SPDX-License-Identifier: Apache-2.0
//
// Faults that only the device can see, in every operation: each row at fault gets the status that
// the CPU refuses the call with, changes nothing, and leaves its neighbours alone. Copy and reset
// have no status array: rows at fault are left alone, and with checks on the call says so.
#include <algorithm>
#include <climits>

#include "conformance/backends.h"
#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

constexpr int32_t kSlots = 6;

leapquant_shape shape_of(int32_t dim) {
  return conformance::make_shape(2, 4, dim, dim, LEAPQUANT_DECAY_SCALAR);
}

using Ints = std::vector<int32_t>;

// Slots 0 to 5 of a layer with 5, 6, .. 10 tokens in them.
class Faults : public ::testing::TestWithParam<int32_t> {
 protected:
  Faults()
      : shape_(shape_of(GetParam())),
        tokens_(conformance::random_tokens(shape_, 40, 8501)),
        layer_(shape_, "int8", kSlots, 8) {
    Ints slots;
    for (int32_t slot = 0; slot < kSlots; ++slot) slots.push_back(slot);
    layer_.reset(slots);
    for (int32_t t = 0; t < 10; ++t) {
      std::vector<Row> rows;
      std::vector<const Tokens*> sequences;
      Ints index;
      for (int32_t slot = std::max(0, t - 4); slot < kSlots; ++slot) {
        rows.push_back({slot, t, 1});
        sequences.push_back(&tokens_);
        index.push_back((t * 3 + slot) % 40);
      }
      layer_.decode(rows, tokens_at(sequences, index));
    }
    before_ = bytes();
  }

  std::vector<std::vector<uint8_t>> bytes() const {
    std::vector<std::vector<uint8_t>> all;
    for (int32_t slot = 0; slot < kSlots; ++slot) all.push_back(layer_.slot_bytes(slot));
    return all;
  }
  // These slots changed, and no other.
  void expect_changed(const std::vector<int32_t>& changed) {
    const std::vector<std::vector<uint8_t>> after = bytes();
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const bool may = std::find(changed.begin(), changed.end(), slot) != changed.end();
      const auto s = static_cast<size_t>(slot);
      EXPECT_EQ(after[s] != before_[s], may) << "slot " << slot;
    }
  }
  leapquant_status copy(const Ints& from, const Ints& to, const Ints& window_from,
                        const Ints& window_to, int32_t check) {
    const DeviceArray<int32_t> a(from), b(to), c(window_from), d(window_to);
    const leapquant_pool p = layer_.pool();
    const leapquant_launch l = layer_.launch(nullptr, check);
    const leapquant_status status =
        leapquant_copy(layer_.layout().get(), &p, static_cast<int32_t>(from.size()), a.data(),
                       window_from.empty() ? nullptr : c.data(), b.data(),
                       window_to.empty() ? nullptr : d.data(), &l);
    require(cudaDeviceSynchronize());
    return status;
  }
  leapquant_status reset(const Ints& slots, const Ints& windows, const Ints& positions,
                         int32_t check) {
    const DeviceArray<int32_t> a(slots), b(windows), c(positions);
    const leapquant_pool p = layer_.pool();
    const leapquant_launch l = layer_.launch(nullptr, check);
    const leapquant_status status =
        leapquant_reset(layer_.layout().get(), &p, static_cast<int32_t>(slots.size()), a.data(),
                        windows.empty() ? nullptr : b.data(), c.data(), &l);
    require(cudaDeviceSynchronize());
    return status;
  }
  static void expect_said(const std::string& part) {
    EXPECT_NE(std::string(leapquant_last_error()).find(part), std::string::npos)
        << leapquant_last_error();
  }

  leapquant_shape shape_;
  Tokens tokens_;
  DeviceLayer layer_;
  std::vector<std::vector<uint8_t>> before_;
};
INSTANTIATE_TEST_SUITE_P(Dims, Faults, ::testing::Values(64, 128));

TEST_P(Faults, CopyLeavesFaultyRowsAlone) {
  // A good row, slots past the end, one side only, padding, and a destination named again.
  const Ints from = {0, kSlots, 1, 0, -1, 1};
  const Ints to = {4, 2, 99, -1, -1, 4};
  EXPECT_EQ(copy(from, to, {}, {}, LEAPQUANT_CHECK_DEFAULT), LEAPQUANT_OK);
  expect_changed({4});
  EXPECT_TRUE(layer_.slot_bytes(4) == before_[0]);
  EXPECT_EQ(copy(from, to, {}, {}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_OUT_OF_RANGE);
  expect_said("sequence 1 of copy");
  EXPECT_EQ(copy({0, 1}, {4, 4}, {}, {}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_REPEATED);
  expect_said("sequence 1 of copy");
  EXPECT_TRUE(layer_.slot_bytes(4) == before_[0]);
}

TEST_P(Faults, CopyReadsNoSlotThatItWrites) {
  EXPECT_EQ(copy({0, 1, 3}, {1, 2, 3}, {}, {}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_REPEATED);
  expect_said("sequence 0 of copy");
  expect_changed({2});
  EXPECT_TRUE(layer_.slot_bytes(2) == before_[1]);
}

TEST_P(Faults, CopyMindsWindows) {
  // A window past the end, and one that two rows write; without a window the state alone.
  EXPECT_EQ(
      copy({0, 1, 2, 0}, {3, 4, 5, 5}, {0, kSlots, 2, 0}, {3, 4, 3, -1}, LEAPQUANT_CHECK_FULL),
      LEAPQUANT_SLOT_OUT_OF_RANGE);
  expect_said("sequence 1 of copy");
  expect_changed({3});
  EXPECT_TRUE(layer_.slot_bytes(3) == before_[0]);
}

TEST_P(Faults, ResetLeavesFaultyRowsAlone) {
  const Ints slots = {0, kSlots, 1, -1, 0};
  EXPECT_EQ(reset(slots, {}, {7, 0, -1, 0, 9}, LEAPQUANT_CHECK_DEFAULT), LEAPQUANT_OK);
  expect_changed({0});
  DeviceLayer fresh(shape_, "int8", 1, 8);
  fresh.reset({0}, 7);
  EXPECT_TRUE(layer_.slot_bytes(0) == fresh.slot_bytes(0));
  EXPECT_EQ(reset(slots, {}, {7, 0, -1, 0, 9}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_OUT_OF_RANGE);
  expect_said("sequence 1 of reset");
  EXPECT_EQ(reset({2, 3}, {2, kSlots}, {0, 0}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_OUT_OF_RANGE);
  expect_changed({0, 2});
  EXPECT_EQ(reset({2}, {}, {-5}, LEAPQUANT_CHECK_FULL), LEAPQUANT_INVALID_ARGUMENT);
  EXPECT_EQ(reset({3, 3}, {}, {0, 0}, LEAPQUANT_CHECK_FULL), LEAPQUANT_SLOT_REPEATED);
  expect_said("sequence 1 of reset");
  EXPECT_EQ(reset({4, -1}, {}, {0, 0}, LEAPQUANT_CHECK_FULL), LEAPQUANT_OK);
}

TEST_P(Faults, ExportAndImportSayWhichRows) {
  const size_t matrix = layer_.token_size() * static_cast<size_t>(shape_.head_k_dim);
  const DeviceArray<int32_t> slots(Ints{0, kSlots, -1, 1, 1, 2});
  const DeviceArray<int32_t> windows(Ints{0, 0, 0, kSlots, 1, 2});
  const DeviceArray<int32_t> positions(Ints{5, 5, 5, 6, 40, -1});
  DeviceArray<int32_t> status(6);
  DeviceArray<float> matrices(6 * matrix);
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 6;
  args.state_slots = slots.data();
  args.window_slots = windows.data();
  args.positions = positions.data();
  args.matrices = matrices.data();
  args.type = LEAPQUANT_FP32;
  args.status = status.data();
  const leapquant_pool p = layer_.pool();
  const leapquant_launch l = layer_.launch();
  require(leapquant_export(layer_.layout().get(), &p, &args, &l));
  EXPECT_EQ(status.get(0, 6), (Ints{LEAPQUANT_OK, LEAPQUANT_SLOT_OUT_OF_RANGE, LEAPQUANT_OK,
                                    LEAPQUANT_SLOT_OUT_OF_RANGE, LEAPQUANT_POSITION_PAST_WINDOW,
                                    LEAPQUANT_INVALID_ARGUMENT}));
  expect_changed({});
  const std::vector<float> exported = matrices.get(0, 6 * matrix);
  EXPECT_TRUE(
      std::vector<float>(exported.begin(), exported.begin() + static_cast<int64_t>(matrix)) ==
      layer_.export_state(0, 5));
  for (size_t i = matrix; i < exported.size(); ++i) ASSERT_EQ(exported[i], 0.0f) << i;

  matrices.put(std::vector<float>(6 * matrix, 0.25f));
  const DeviceArray<int32_t> again(Ints{0, kSlots, -1, 1, 0, 2});
  args.state_slots = again.data();
  require(leapquant_import(layer_.layout().get(), &p, &args, &l));
  EXPECT_EQ(status.get(0, 6), (Ints{LEAPQUANT_OK, LEAPQUANT_SLOT_OUT_OF_RANGE, LEAPQUANT_OK,
                                    LEAPQUANT_SLOT_OUT_OF_RANGE, LEAPQUANT_SLOT_REPEATED,
                                    LEAPQUANT_INVALID_ARGUMENT}));
  expect_changed({0});
}

TEST_P(Faults, FoldsDoNotWriteWhatTheyRead) {
  // Into a slot that a later row folds, twice into one slot, past the end, nowhere; a good row.
  const DeviceArray<int32_t> slots(Ints{0, 1, 2, 3, 3, -1});
  const DeviceArray<int32_t> positions(Ints{5, 6, 7, 8, 8, 0});
  const DeviceArray<int32_t> destinations(Ints{1, 4, 4, kSlots, 5, 0});
  DeviceArray<int32_t> status(6);
  leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
  args.batch = 6;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.destination_slots = destinations.data();
  args.status = status.data();
  const leapquant_pool p = layer_.pool();
  const leapquant_launch l = layer_.launch();
  require(leapquant_fold(layer_.layout().get(), &p, &args, &l));
  EXPECT_EQ(status.get(0, 6), (Ints{LEAPQUANT_SLOT_REPEATED, LEAPQUANT_OK, LEAPQUANT_SLOT_REPEATED,
                                    LEAPQUANT_SLOT_OUT_OF_RANGE, LEAPQUANT_OK, LEAPQUANT_OK}));
  expect_changed({4, 5});
}

// Each fault is the sequence's, with the status that the CPU refuses the call with.
TEST_P(Faults, CheckpointsKeepToTheirSlots) {
  const auto run = [&](const std::vector<leapquant_checkpoint>& checkpoints, int32_t first_offset,
                       const Ints& states = {0, 1}) {
    const DeviceArray<int32_t> slots(states), positions(Ints{0, 0});
    const DeviceArray<int32_t> offsets(Ints{first_offset, 10, 14});
    const DeviceArray<leapquant_checkpoint> marks(checkpoints);
    const Tokens tokens = conformance::slice(tokens_, 0, 14);
    const DeviceArray<float> q(tokens.q), k(tokens.k), v(tokens.v), g(tokens.log_decay);
    const DeviceArray<float> beta(tokens.beta), output(tokens.v.size());
    const DeviceArray<int32_t> status(size_t{2});
    leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
    args.batch = 2;
    args.state_slots = slots.data();
    args.positions = positions.data();
    args.token_offsets = offsets.data();
    args.inputs.q.data = q.data();
    args.inputs.k.data = k.data();
    args.inputs.v.data = v.data();
    args.inputs.log_decay.data = g.data();
    args.inputs.beta.data = beta.data();
    args.output.data = output.data();
    args.num_checkpoints = static_cast<int32_t>(checkpoints.size());
    args.checkpoints = checkpoints.empty() ? nullptr : marks.data();
    args.status = status.data();
    const leapquant_pool p = layer_.pool();
    const leapquant_launch l = layer_.launch();
    layer_.reset({0, 1, 2, 3, 4, 5});
    before_ = bytes();
    require(leapquant_prefill(layer_.layout().get(), &p, &args, &l));
    return status.get(0, 2);
  };
  const int32_t ok = LEAPQUANT_OK;
  // A sequence's slot, its own or another's; one slot twice, for one sequence or two.
  EXPECT_EQ(run({{0, 5, 1}}, 0), (Ints{LEAPQUANT_SLOT_REPEATED, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 5, 0}}, 0), (Ints{LEAPQUANT_SLOT_REPEATED, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 5, 2}, {0, 7, 2}}, 0), (Ints{LEAPQUANT_SLOT_REPEATED, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 5, 2}, {1, 3, 2}}, 0), (Ints{ok, LEAPQUANT_SLOT_REPEATED}));
  expect_changed({0, 2});
  // Past the pool's end, past the sequence's, out of order; tokens that do not begin at 0.
  EXPECT_EQ(run({{0, 5, kSlots}}, 0), (Ints{LEAPQUANT_SLOT_OUT_OF_RANGE, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 11, 3}}, 0), (Ints{LEAPQUANT_INVALID_ARGUMENT, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 7, 3}, {0, 5, 4}}, 0), (Ints{LEAPQUANT_INVALID_ARGUMENT, ok}));
  expect_changed({1});
  EXPECT_EQ(run({}, 1), (Ints{LEAPQUANT_INVALID_ARGUMENT, ok}));
  expect_changed({1});
  EXPECT_EQ(run({{0, 5, 3}, {1, 4, 4}}, 0), (Ints{ok, ok}));
  expect_changed({0, 1, 3, 4});
  // A padding row, in front and behind, beside a sequence with a checkpoint of its own.
  EXPECT_EQ(run({{0, 5, 3}, {1, 4, 4}}, 0, {-1, 1}), (Ints{LEAPQUANT_INVALID_ARGUMENT, ok}));
  expect_changed({1, 4});
  EXPECT_EQ(run({{0, 5, 3}, {1, 4, 4}}, 0, {0, -1}), (Ints{ok, LEAPQUANT_INVALID_ARGUMENT}));
  expect_changed({0, 3});
  EXPECT_EQ(run({{1, 4, 4}}, 0, {-1, 1}), (Ints{ok, ok}));
  expect_changed({1, 4});
}

// Decode, on every backend that serves the layer: the slots, windows, counts and positions of a
// row.
TEST_P(Faults, DecodeSaysWhichRows) {
  const Layout layout = conformance::make_test_layout(shape_, "int8");
  for (const conformance::TestBackend& backend : conformance::device_backends(layout)) {
    SCOPED_TRACE(backend.name);
    DeviceLayer layer(shape_, "int8", kSlots, 12, 0, 0, backend.name);
    layer.reset({0, 1, 2, 3, 4, 5});
    struct Given {
      int32_t slot, window, position, count, status;
    };
    const Given rows[] = {{0, 0, 0, 1, LEAPQUANT_OK},
                          {kSlots, 1, 0, 1, LEAPQUANT_SLOT_OUT_OF_RANGE},
                          {1, kSlots, 0, 1, LEAPQUANT_SLOT_OUT_OF_RANGE},
                          {2, -1, 0, 1, LEAPQUANT_SLOT_OUT_OF_RANGE},
                          {0, 3, 0, 1, LEAPQUANT_SLOT_REPEATED},
                          {3, 0, 0, 1, LEAPQUANT_SLOT_REPEATED},
                          {-1, 0, 77, 1, LEAPQUANT_OK},
                          {4, 4, 0, 3, LEAPQUANT_INVALID_ARGUMENT},
                          {4, 4, 0, -1, LEAPQUANT_INVALID_ARGUMENT},
                          {5, 5, -1, 1, LEAPQUANT_INVALID_ARGUMENT},
                          {5, 5, INT_MAX, 1, LEAPQUANT_INVALID_ARGUMENT}};
    // One row at a time beside the first, so that a faulty row names no slot for another.
    for (const Given& row : rows) {
      layer.reset({0, 1, 2, 3, 4, 5});
      std::vector<std::vector<uint8_t>> before;
      for (int32_t slot = 0; slot < kSlots; ++slot) before.push_back(layer.slot_bytes(slot));
      const DeviceArray<int32_t> windows(Ints{0, row.window});
      layer.put_rows({{0, 0, 1}, {row.slot, row.position, row.count}},
                     tokens_at({&tokens_, &tokens_}, {0, 2}, 2));
      require(layer.decode_call(2, 2, nullptr, LEAPQUANT_CHECK_DEFAULT, windows.data()));
      const bool first = &row == &rows[0];
      const int32_t expected = first ? int32_t{LEAPQUANT_SLOT_REPEATED} : row.status;
      EXPECT_EQ(layer.status(2), (Ints{LEAPQUANT_OK, expected}))
          << "slot " << row.slot << ", window " << row.window << ", position " << row.position
          << ", count " << row.count;
      const std::vector<float> o = layer.outputs(4);
      for (size_t i = 2 * layer.token_size(); i < o.size(); ++i) ASSERT_EQ(o[i], 0.0f);
      for (int32_t slot = 1; slot < kSlots; ++slot) {
        EXPECT_TRUE(layer.slot_bytes(slot) == before[static_cast<size_t>(slot)]) << slot;
      }
    }
    // A row without tokens is no fault, wherever it stands.
    layer.reset({0, 3});
    layer.put_rows({{0, 0, 1}, {3, 900, 0}}, tokens_at({&tokens_, &tokens_}, {0, 2}, 2));
    require(layer.decode_call(2, 2));
    EXPECT_EQ(layer.status(2), (Ints{LEAPQUANT_OK, LEAPQUANT_OK}));
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
