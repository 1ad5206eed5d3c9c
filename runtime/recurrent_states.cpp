// SPDX-License-Identifier: Apache-2.0
//
// Calls of the C API: slots, decode, prefill, transfer, save and load.
#include "runtime/recurrent_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

std::int64_t slot_bytes(const StateLayout& layout) {
  const leapquant_sizes sizes = layout.sizes();
  return sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes;
}

}  // namespace

RecurrentStates::Group RecurrentStates::make_group(const leapquant_shape& shape,
                                                   const LayerFormat& format,
                                                   std::int32_t num_layers, std::int32_t num_slots,
                                                   const char* purpose) {
  Group group{StateLayout(shape, format), nullptr, {}};
  const std::int64_t budget = slot_bytes(group.layout) * num_layers * num_slots;
  leapquant_slots* slots = nullptr;
  require_ok(leapquant_slots_create(group.layout.get(), num_layers, budget, &slots), purpose);
  group.slots.reset(slots);
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    require_ok(leapquant_slots_pool(slots, layer, &pool), purpose);
    group.pools.push_back(pool);
  }
  return group;
}

RecurrentStates::RecurrentStates(const ModelConfig& config, const StateFormat& format,
                                 const Threads& threads, std::int32_t max_sequences,
                                 std::int32_t max_tokens)
    : shape_(linear_layer_shape(config, max_tokens)),
      threads_(threads),
      max_sequences_(max_sequences) {
  const LayerGroups groups = group_layers(format);
  layers_ = groups.layers;
  for (std::size_t group = 0; group < groups.formats.size(); ++group) {
    groups_.push_back(make_group(shape_, groups.formats[group], groups.num_layers[group],
                                 max_sequences, "reserve recurrent states"));
  }
  if (format_needs_carry(format)) {
    carry_.push_back(make_group(shape_, carry_format(shape_.num_v_heads),
                                static_cast<std::int32_t>(layers_.size()),
                                std::min(kCarrySlots, max_sequences), "reserve FP32 states"));
  }
}

RecurrentStates::~RecurrentStates() = default;

std::int64_t RecurrentStates::reserved_bytes(const ModelConfig& config, const StateFormat& format,
                                             std::int32_t max_sequences, std::int32_t max_tokens) {
  const std::int64_t each = state_bytes_per_sequence(config, format, max_tokens).total();
  std::int64_t bytes = each * max_sequences;
  if (format_needs_carry(format)) {
    const leapquant_shape shape = linear_layer_shape(config, max_tokens);
    const StateLayout layout(shape, carry_format(shape.num_v_heads));
    bytes += slot_bytes(layout) * static_cast<std::int64_t>(format.layers.size()) *
             std::min(kCarrySlots, max_sequences);
  }
  return bytes;
}

const char* RecurrentStates::backend() const {
  return leapquant_layout_backend(groups_.front().layout.get());
}

StatePlace RecurrentStates::open() {
  StatePlace place;
  for (const Group& group : groups_) {
    std::int32_t state_slot = -1;
    std::int32_t window_slot = -1;
    const leapquant_status status =
        leapquant_slots_acquire(group.slots.get(), &state_slot, &window_slot);
    if (status != LEAPQUANT_OK) {
      const std::string reason = leapquant_last_error();
      close(place);
      throw Error(fmt::format("There is no place for another sequence: {}.", reason));
    }
    place.state_slots.push_back(state_slot);
    place.window_slots.push_back(window_slot);
  }
  return place;
}

void RecurrentStates::close(StatePlace& place) {
  for (std::size_t group = 0; group < place.state_slots.size(); ++group) {
    require_ok(leapquant_slots_release(groups_[group].slots.get(), place.state_slots[group], 0),
               "free a state");
  }
  if (place.carry_slot >= 0) {
    require_ok(leapquant_slots_release(carry_.front().slots.get(), place.carry_slot, 0),
               "free an FP32 state");
  }
  place = StatePlace();
}

leapquant_launch RecurrentStates::launch(const Group& group) {
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  // Slots and positions are this runtime's own; faults of sequences are read from the status array.
  launch.check = LEAPQUANT_CHECK_OFF;
  launch.runner = threads_.runner();
  launch.workspace_bytes =
      leapquant_workspace_bytes(group.layout.get(), threads_.count(), max_sequences_);
  launch.workspace = workspace_.bytes(launch.workspace_bytes);
  return launch;
}

leapquant_inputs RecurrentStates::describe(const StateInputs& inputs,
                                           std::int64_t tokens_per_row) const {
  const std::int64_t key_dim = std::int64_t{shape_.num_k_heads} * shape_.head_k_dim;
  const std::int64_t value_dim = std::int64_t{shape_.num_v_heads} * shape_.head_v_dim;
  constexpr std::int64_t kFloat = sizeof(float);
  const auto tensor = [&](const float* data, std::int64_t row, std::int64_t head) {
    leapquant_tensor view{};
    view.data = data;
    view.type = LEAPQUANT_FP32;
    view.token_stride_bytes = row * kFloat;
    view.sequence_stride_bytes = tokens_per_row * row * kFloat;
    view.sub_step_stride_bytes = row * kFloat;
    view.head_stride_bytes = head * kFloat;
    return view;
  };
  const std::int64_t row = 2 * key_dim + value_dim;
  leapquant_inputs described = LEAPQUANT_INIT(leapquant_inputs);
  described.q = tensor(inputs.q_k_v, row, shape_.head_k_dim);
  described.k = tensor(inputs.q_k_v + key_dim, row, shape_.head_k_dim);
  described.v = tensor(inputs.q_k_v + 2 * key_dim, row, shape_.head_v_dim);
  described.log_decay = tensor(inputs.decay_input, shape_.num_v_heads, 0);
  described.beta = tensor(inputs.beta_input, shape_.num_v_heads, 0);
  described.gate = LEAPQUANT_GATE_SOFTPLUS;
  described.a_log = inputs.a_log;
  described.dt_bias = inputs.dt_bias;
  described.beta_kind = LEAPQUANT_BETA_SIGMOID;
  described.qk_l2norm = 1;
  described.q_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_k_dim));
  return described;
}

leapquant_output RecurrentStates::describe_output(const StateInputs& inputs,
                                                  std::int64_t tokens_per_row) const {
  const std::int64_t row = std::int64_t{shape_.num_v_heads} * shape_.head_v_dim;
  constexpr std::int64_t kFloat = sizeof(float);
  leapquant_output output{};
  output.data = inputs.output;
  output.type = LEAPQUANT_FP32;
  output.sequence_stride_bytes = tokens_per_row * row * kFloat;
  output.token_stride_bytes = row * kFloat;
  output.head_stride_bytes = shape_.head_v_dim * kFloat;
  return output;
}

void RecurrentStates::decode(std::int32_t layer, std::span<const StateRow> rows,
                             const StateInputs& inputs, std::span<std::int32_t> status) {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  const Group& group = groups_[where.group];
  std::vector<std::int32_t> state_slots;
  std::vector<std::int32_t> window_slots;
  std::vector<std::int32_t> positions;
  for (const StateRow& row : rows) {
    state_slots.push_back(row.place->state_slots[where.group]);
    window_slots.push_back(row.place->window_slots[where.group]);
    positions.push_back(row.position);
  }
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = static_cast<std::int32_t>(rows.size());
  args.tokens = rows.front().tokens;
  args.state_slots = state_slots.data();
  args.window_slots = window_slots.data();
  args.positions = positions.data();
  args.inputs = describe(inputs, args.tokens);
  args.output = describe_output(inputs, args.tokens);
  args.status = status.data();
  const leapquant_launch launched = launch(group);
  require_ok(leapquant_decode(group.layout.get(), &group.pools[where.index], &args, &launched),
             "decode");
}

void RecurrentStates::prefill(std::int32_t layer, std::span<const StateRow> rows,
                              const StateInputs& inputs, bool carried,
                              std::span<std::int32_t> status) {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  const Group& group = carried ? carry_.front() : groups_[where.group];
  const leapquant_pool& pool =
      carried ? group.pools[static_cast<std::size_t>(layer)] : group.pools[where.index];
  std::vector<std::int32_t> state_slots;
  std::vector<std::int32_t> window_slots;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> offsets{0};
  for (const StateRow& row : rows) {
    state_slots.push_back(carried ? row.place->carry_slot : row.place->state_slots[where.group]);
    window_slots.push_back(carried ? -1 : row.place->window_slots[where.group]);
    positions.push_back(row.position);
    offsets.push_back(offsets.back() + row.tokens);
  }
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  args.batch = static_cast<std::int32_t>(rows.size());
  args.state_slots = state_slots.data();
  args.window_slots = window_slots.data();
  args.positions = positions.data();
  args.token_offsets = offsets.data();
  args.inputs = describe(inputs, 0);
  args.output = describe_output(inputs, 0);
  args.status = status.data();
  const leapquant_launch launched = launch(group);
  require_ok(leapquant_prefill(group.layout.get(), &pool, &args, &launched), "prefill");
}

void RecurrentStates::transfer(const Group& group, const leapquant_pool& pool, std::int32_t slot,
                               std::int32_t window_slot, std::int32_t position, float* matrices,
                               bool to_matrices) {
  std::int32_t status = LEAPQUANT_OK;
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = &slot;
  args.window_slots = &window_slot;
  args.positions = &position;
  args.matrices = matrices;
  args.type = LEAPQUANT_FP32;
  args.order = LEAPQUANT_KV;
  args.status = &status;
  const leapquant_launch launched = launch(group);
  const auto operation = to_matrices ? leapquant_export : leapquant_import;
  require_ok(operation(group.layout.get(), &pool, &args, &launched), "move a state");
  if (status != LEAPQUANT_OK) {
    throw Error(fmt::format("A recurrent state could not be moved. {}",
                            leapquant_status_string(static_cast<leapquant_status>(status))));
  }
}

bool RecurrentStates::begin_carry(StatePlace& place, std::int32_t position) {
  const Group& carry = carry_.front();
  std::int32_t slot = -1;
  std::int32_t window_slot = -1;
  const leapquant_status status = leapquant_slots_acquire(carry.slots.get(), &slot, &window_slot);
  if (status == LEAPQUANT_POOL_FULL) return false;
  require_ok(status, "take an FP32 state");
  place.carry_slot = slot;
  if (position > 0) {
    for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(layers_.size()); ++layer) {
      const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
      float* matrices = matrices_.floats(std::int64_t{shape_.num_v_heads} * shape_.head_k_dim *
                                         shape_.head_v_dim);
      transfer(groups_[where.group], pool_of(layer), place.state_slots[where.group],
               place.window_slots[where.group], position, matrices, true);
      transfer(carry, carry.pools[static_cast<std::size_t>(layer)], slot, -1, position, matrices,
               false);
    }
  }
  return true;
}

void RecurrentStates::end_carry(StatePlace& place, std::int32_t position) {
  const Group& carry = carry_.front();
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(layers_.size()); ++layer) {
    const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
    float* matrices =
        matrices_.floats(std::int64_t{shape_.num_v_heads} * shape_.head_k_dim * shape_.head_v_dim);
    transfer(carry, carry.pools[static_cast<std::size_t>(layer)], place.carry_slot, -1, position,
             matrices, true);
    transfer(groups_[where.group], pool_of(layer), place.state_slots[where.group],
             place.window_slots[where.group], position, matrices, false);
  }
  require_ok(leapquant_slots_release(carry.slots.get(), place.carry_slot, 0), "free an FP32 state");
  place.carry_slot = -1;
}

std::int32_t RecurrentStates::tokens_to_boundary(std::int32_t position, std::int32_t most) const {
  // All layers share window and stagger, so one layout speaks for all.
  return runtime::tokens_to_boundary(groups_.front().layout.get(), shape_.num_v_heads, position,
                                     most);
}

void RecurrentStates::export_state(std::int32_t layer, const StatePlace& place,
                                   std::int32_t position, std::span<float> state) {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  transfer(groups_[where.group], pool_of(layer), place.state_slots[where.group],
           place.window_slots[where.group], position, state.data(), true);
}

std::span<const leapquant_health> RecurrentStates::health(std::int32_t layer,
                                                          const StatePlace& place) const {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  const leapquant_health* all = pool_of(layer).health;
  const auto heads = static_cast<std::size_t>(shape_.num_v_heads);
  return {all + static_cast<std::size_t>(place.state_slots[where.group]) * heads, heads};
}

std::vector<std::byte> RecurrentStates::save(std::int32_t layer, const StatePlace& place,
                                             std::int32_t position,
                                             std::uint64_t fingerprint) const {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  const leapquant_layout* layout = groups_[where.group].layout.get();
  const std::int32_t state_slot = place.state_slots[where.group];
  const std::int32_t window_slot = place.window_slots[where.group];
  std::size_t bytes = 0;
  require_ok(
      leapquant_saved_bytes(layout, &pool_of(layer), state_slot, window_slot, position, &bytes),
      "save a state");
  std::vector<std::byte> blob(bytes);
  std::size_t written = 0;
  require_ok(leapquant_save(layout, &pool_of(layer), state_slot, window_slot, position, fingerprint,
                            blob.data(), bytes, &written),
             "save a state");
  blob.resize(written);
  return blob;
}

void RecurrentStates::load(std::int32_t layer, const StatePlace& place,
                           std::span<const std::byte> blob, std::uint64_t fingerprint,
                           std::int32_t position) {
  const LayerGroups::Place where = layers_[static_cast<std::size_t>(layer)];
  std::int32_t saved_position = -1;
  const leapquant_status status = leapquant_load(
      groups_[where.group].layout.get(), &pool_of(layer), place.state_slots[where.group],
      place.window_slots[where.group], fingerprint, blob.data(), blob.size(), &saved_position);
  if (status != LEAPQUANT_OK) {
    throw Error(fmt::format("The recurrent state of linear layer {} cannot be restored: {}.", layer,
                            leapquant_last_error()));
  }
  if (saved_position != position) {
    throw Error(fmt::format(
        "The recurrent state of linear layer {} was saved after {} tokens, but the session has {}.",
        layer, saved_position, position));
  }
}

}  // namespace leapquant::runtime
