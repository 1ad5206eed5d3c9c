// SPDX-License-Identifier: Apache-2.0
//
// Calls of the C API on device memory.
#include "runtime/cuda/device_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/error.h"

namespace leapquant::runtime::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t align(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Where the parts of a layer's pool lie.
struct PoolBytes {
  PoolBytes(const leapquant_shape& shape, const StateLayout& layout, std::int32_t slots)
      : sizes(layout.sizes()),
        states(align(sizes.state_bytes * slots)),
        windows(align(sizes.window_bytes * slots)),
        base(align(std::int64_t{slots} * shape.num_v_heads *
                   static_cast<std::int64_t>(sizeof(std::int32_t)))),
        health(align(std::int64_t{slots} * shape.num_v_heads *
                     static_cast<std::int64_t>(sizeof(leapquant_health)))) {}
  std::int64_t total() const { return states + windows + base + health; }

  leapquant_sizes sizes;
  std::int64_t states;
  std::int64_t windows;
  std::int64_t base;
  std::int64_t health;
};

}  // namespace

DeviceStates::Group DeviceStates::make_group(const leapquant_shape& shape,
                                             const LayerFormat& format, std::int32_t num_layers,
                                             std::int32_t slots) {
  Group group{StateLayout(shape, format, LEAPQUANT_CUDA), {}, {}};
  const PoolBytes bytes(shape, group.layout, slots);
  group.memory = DeviceMemory(bytes.total() * num_layers);
  std::byte* at = group.memory.data();
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    pool.num_state_slots = slots;
    pool.states = at;
    pool.state_stride_bytes = bytes.sizes.state_bytes;
    at += bytes.states;
    if (bytes.sizes.window_bytes > 0) {
      pool.num_window_slots = slots;
      pool.windows = at;
      pool.window_stride_bytes = bytes.sizes.window_bytes;
    }
    at += bytes.windows;
    pool.base = reinterpret_cast<std::int32_t*>(at);
    at += bytes.base;
    pool.health = reinterpret_cast<leapquant_health*>(at);
    at += bytes.health;
    group.pools.push_back(pool);
  }
  return group;
}

DeviceStates::DeviceStates(const ModelConfig& config, const StateFormat& format,
                           const Stream& stream, std::int32_t places, std::int32_t max_tokens)
    : shape_(linear_layer_shape(config, max_tokens)), stream_(stream), places_(places) {
  const LayerGroups groups = group_layers(format);
  layers_ = groups.layers;
  for (std::size_t group = 0; group < groups.formats.size(); ++group) {
    groups_.push_back(make_group(shape_, groups.formats[group], groups.num_layers[group], places));
  }
  if (format_needs_carry(format)) {
    const std::int32_t slots = std::min(kCarrySlots, places);
    carry_.push_back(make_group(shape_, carry_format(shape_.num_v_heads), num_layers(), slots));
    carry_used_.assign(static_cast<std::size_t>(slots), false);
  }
  std::size_t workspace = 0;
  for (const std::vector<Group>* all : {&groups_, &carry_}) {
    for (const Group& group : *all) {
      workspace = std::max(workspace, leapquant_workspace_bytes(group.layout.get(), 1, places));
    }
  }
  workspace_ = DeviceMemory(static_cast<std::int64_t>(workspace));
  matrices_ = DeviceMemory(std::int64_t{shape_.num_v_heads} * shape_.head_k_dim *
                           shape_.head_v_dim * static_cast<std::int64_t>(sizeof(float)));
  arguments_ = DeviceMemory(3 * static_cast<std::int64_t>(sizeof(std::int32_t)));
}

std::int64_t DeviceStates::reserved_bytes(const ModelConfig& config, const StateFormat& format,
                                          std::int32_t places, std::int32_t max_tokens) {
  const leapquant_shape shape = linear_layer_shape(config, max_tokens);
  const LayerGroups groups = group_layers(format);
  std::int64_t bytes = 0;
  for (std::size_t group = 0; group < groups.formats.size(); ++group) {
    const StateLayout layout(shape, groups.formats[group], LEAPQUANT_CUDA);
    bytes += PoolBytes(shape, layout, places).total() * groups.num_layers[group];
  }
  if (format_needs_carry(format)) {
    const StateLayout layout(shape, carry_format(shape.num_v_heads), LEAPQUANT_CUDA);
    bytes += PoolBytes(shape, layout, std::min(kCarrySlots, places)).total() *
             static_cast<std::int64_t>(format.layers.size());
  }
  return bytes;
}

std::int32_t DeviceStates::tokens_to_boundary(std::int32_t position, std::int32_t most) const {
  return runtime::tokens_to_boundary(groups_.front().layout.get(), shape_.num_v_heads, position,
                                     most);
}

leapquant_launch DeviceStates::launch(const Group& group) const {
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.stream = stream_.get();
  launch.workspace = workspace_.data();
  launch.workspace_bytes = leapquant_workspace_bytes(group.layout.get(), 1, places_);
  return launch;
}

void DeviceStates::put_arguments(std::int32_t slot, std::int32_t position) {
  const std::int32_t values[] = {slot, position, LEAPQUANT_OK};
  check(cudaMemcpyAsync(arguments_.data(), values, sizeof(values), cudaMemcpyHostToDevice,
                        stream_.get()),
        "copy arguments");
}

void DeviceStates::reset(std::int32_t place, std::int32_t position) {
  put_arguments(place, position);
  const auto* arguments = arguments_.as<std::int32_t>();
  for (const Group& group : groups_) {
    const leapquant_launch launched = launch(group);
    for (const leapquant_pool& pool : group.pools) {
      require_ok(leapquant_reset(group.layout.get(), &pool, 1, arguments, nullptr, arguments + 1,
                                 &launched),
                 "clear a state");
    }
  }
}

leapquant_inputs DeviceStates::describe(const StateInputs& inputs, std::int64_t first_row,
                                        std::int64_t tokens_per_row) const {
  const std::int64_t key_dim = std::int64_t{shape_.num_k_heads} * shape_.head_k_dim;
  const std::int64_t value_dim = std::int64_t{shape_.num_v_heads} * shape_.head_v_dim;
  // `row` and `head`: elements from row to row and from head to head; `at`: of the first head.
  const auto tensor = [&](const void* data, Element type, std::int64_t at, std::int64_t row,
                          std::int64_t head) {
    const std::int64_t element = element_bytes(type);
    leapquant_tensor view{};
    view.data = static_cast<const std::byte*>(data) + (first_row * row + at) * element;
    view.type = type == Element::kFp32 ? LEAPQUANT_FP32 : LEAPQUANT_BF16;
    view.token_stride_bytes = row * element;
    view.sequence_stride_bytes = tokens_per_row * row * element;
    view.sub_step_stride_bytes = row * element;
    view.head_stride_bytes = head * element;
    return view;
  };
  const std::int64_t row = 2 * key_dim + value_dim;
  leapquant_inputs described = LEAPQUANT_INIT(leapquant_inputs);
  described.q = tensor(inputs.q_k_v, inputs.element, 0, row, shape_.head_k_dim);
  described.k = tensor(inputs.q_k_v, inputs.element, key_dim, row, shape_.head_k_dim);
  described.v = tensor(inputs.q_k_v, inputs.element, 2 * key_dim, row, shape_.head_v_dim);
  described.log_decay = tensor(inputs.log_decay, Element::kFp32, 0, shape_.num_v_heads, 0);
  described.beta = tensor(inputs.beta, Element::kFp32, 0, shape_.num_v_heads, 0);
  described.qk_l2norm = 1;
  described.q_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_k_dim));
  return described;
}

leapquant_output DeviceStates::describe_output(const StateInputs& inputs, std::int64_t first_row,
                                               std::int64_t tokens_per_row) const {
  const std::int64_t element = element_bytes(inputs.element);
  const std::int64_t row = std::int64_t{shape_.num_v_heads} * shape_.head_v_dim * element;
  leapquant_output output{};
  output.data = static_cast<std::byte*>(inputs.output) + first_row * row;
  output.type = inputs.element == Element::kFp32 ? LEAPQUANT_FP32 : LEAPQUANT_BF16;
  output.sequence_stride_bytes = tokens_per_row * row;
  output.token_stride_bytes = row;
  output.head_stride_bytes = shape_.head_v_dim * element;
  return output;
}

void DeviceStates::decode(std::int32_t layer, const PassTables& tables, std::int32_t segments,
                          std::int32_t tokens, const StateInputs& inputs, std::int32_t* status) {
  const Group& group = group_of(layer);
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = segments;
  args.tokens = tokens;
  args.state_slots = tables.slots;
  args.positions = tables.positions;
  args.num_tokens = tables.tokens;
  args.inputs = describe(inputs, 0, tokens);
  args.output = describe_output(inputs, 0, tokens);
  args.status = status;
  const leapquant_launch launched = launch(group);
  require_ok(leapquant_decode(group.layout.get(), &pool_of(layer), &args, &launched), "decode");
}

void DeviceStates::prefill(std::int32_t layer, const PassTables& tables, const PrefillPart& part,
                           const StateInputs& inputs, std::int32_t* status) {
  if (part.segments == 0) return;
  const Group& group = part.carried ? carry_.front() : group_of(layer);
  const leapquant_pool& pool =
      part.carried ? group.pools[static_cast<std::size_t>(layer)] : pool_of(layer);
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  args.batch = part.segments;
  args.state_slots = (part.carried ? tables.carry_slots : tables.slots) + part.first_segment;
  args.positions = tables.positions + part.first_segment;
  args.token_offsets = tables.offsets + part.first_offset;
  args.inputs = describe(inputs, part.first_row, 0);
  args.output = describe_output(inputs, part.first_row, 0);
  args.status = status + part.first_segment;
  const leapquant_launch launched = launch(group);
  require_ok(leapquant_prefill(group.layout.get(), &pool, &args, &launched), "prefill");
}

void DeviceStates::transfer(const Group& group, const leapquant_pool& pool, std::int32_t slot,
                            std::int32_t position, bool to_matrices) {
  put_arguments(slot, position);
  auto* arguments = arguments_.as<std::int32_t>();
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = arguments;
  args.positions = arguments + 1;
  args.matrices = matrices_.data();
  args.type = LEAPQUANT_FP32;
  args.order = LEAPQUANT_KV;
  args.status = arguments + 2;
  const leapquant_launch launched = launch(group);
  const auto operation = to_matrices ? leapquant_export : leapquant_import;
  require_ok(operation(group.layout.get(), &pool, &args, &launched), "move a state");
  std::int32_t status = LEAPQUANT_OK;
  check(cudaMemcpyAsync(&status, arguments + 2, sizeof(status), cudaMemcpyDeviceToHost,
                        stream_.get()),
        "copy a status");
  stream_.wait();
  if (status != LEAPQUANT_OK) {
    throw Error(fmt::format("A recurrent state could not be moved. {}",
                            leapquant_status_string(static_cast<leapquant_status>(status))));
  }
}

std::int32_t DeviceStates::begin_carry(std::int32_t place, std::int32_t position) {
  const auto free = std::find(carry_used_.begin(), carry_used_.end(), false);
  if (free == carry_used_.end()) return -1;
  *free = true;
  const auto slot = static_cast<std::int32_t>(free - carry_used_.begin());
  const Group& carry = carry_.front();
  if (position == 0) {
    put_arguments(slot, 0);
    const auto* arguments = arguments_.as<std::int32_t>();
    const leapquant_launch launched = launch(carry);
    for (const leapquant_pool& pool : carry.pools) {
      require_ok(leapquant_reset(carry.layout.get(), &pool, 1, arguments, nullptr, arguments + 1,
                                 &launched),
                 "clear an FP32 state");
    }
    return slot;
  }
  for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
    transfer(group_of(layer), pool_of(layer), place, position, true);
    transfer(carry, carry.pools[static_cast<std::size_t>(layer)], slot, position, false);
  }
  return slot;
}

void DeviceStates::end_carry(std::int32_t place, std::int32_t carry_slot, std::int32_t position) {
  const Group& carry = carry_.front();
  for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
    transfer(carry, carry.pools[static_cast<std::size_t>(layer)], carry_slot, position, true);
    transfer(group_of(layer), pool_of(layer), place, position, false);
  }
  release_carry(carry_slot);
}

void DeviceStates::release_carry(std::int32_t carry_slot) {
  carry_used_[static_cast<std::size_t>(carry_slot)] = false;
}

void DeviceStates::export_state(std::int32_t layer, std::int32_t place, std::int32_t position,
                                std::span<float> state) {
  transfer(group_of(layer), pool_of(layer), place, position, true);
  check(cudaMemcpy(state.data(), matrices_.data(), state.size_bytes(), cudaMemcpyDeviceToHost),
        "copy a state");
}

std::vector<leapquant_health> DeviceStates::health(std::int32_t layer, std::int32_t place) const {
  const auto heads = static_cast<std::size_t>(shape_.num_v_heads);
  std::vector<leapquant_health> all(heads);
  stream_.wait();
  check(cudaMemcpy(all.data(), pool_of(layer).health + static_cast<std::size_t>(place) * heads,
                   heads * sizeof(leapquant_health), cudaMemcpyDeviceToHost),
        "copy telemetry");
  return all;
}

std::vector<std::byte> DeviceStates::save(std::int32_t layer, std::int32_t place,
                                          std::int32_t position, std::uint64_t fingerprint) const {
  const leapquant_layout* layout = group_of(layer).layout.get();
  const std::int32_t window_slot = window_slot_of(layer, place);
  stream_.wait();
  std::size_t bytes = 0;
  require_ok(leapquant_saved_bytes(layout, &pool_of(layer), place, window_slot, position, &bytes),
             "save a state");
  std::vector<std::byte> blob(bytes);
  std::size_t written = 0;
  require_ok(leapquant_save(layout, &pool_of(layer), place, window_slot, position, fingerprint,
                            blob.data(), bytes, &written),
             "save a state");
  blob.resize(written);
  return blob;
}

void DeviceStates::load(std::int32_t layer, std::int32_t place, std::span<const std::byte> blob,
                        std::uint64_t fingerprint, std::int32_t position) {
  stream_.wait();
  std::int32_t saved_position = -1;
  const leapquant_status status = leapquant_load(group_of(layer).layout.get(), &pool_of(layer),
                                                 place, window_slot_of(layer, place), fingerprint,
                                                 blob.data(), blob.size(), &saved_position);
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

}  // namespace leapquant::runtime::cuda
