// SPDX-License-Identifier: Apache-2.0
//
// The recurrent states of all linear layers of all places, in pools of device memory, and the
// library's operations on them. A place's number is its slot in every pool. Like
// runtime/recurrent_states.h, which does this on the CPU; this one shares its rules
// (layer_groups.h), and its calls only queue work on a stream.
#ifndef LEAPQUANT_RUNTIME_CUDA_DEVICE_STATES_H_
#define LEAPQUANT_RUNTIME_CUDA_DEVICE_STATES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/pass_tables.h"
#include "runtime/layer_groups.h"
#include "runtime/model_config.h"
#include "runtime/state_options.h"

namespace leapquant::runtime::cuda {

// Activations of one layer in device memory, rows of all sequences behind one another.
struct StateInputs {
  Element element = Element::kBf16;
  const void* q_k_v = nullptr;       // [rows, q | k | v], after the convolution
  const float* log_decay = nullptr;  // [rows, num_v_heads]
  const float* beta = nullptr;       // [rows, num_v_heads]
  void* output = nullptr;            // [rows, num_v_heads, head_v_dim]
};

// Which segments of a prefill a call takes.
struct PrefillPart {
  std::int32_t first_segment = 0;
  std::int32_t segments = 0;
  std::int64_t first_row = 0;
  std::int32_t first_offset = 0;  // index into PassTables::offsets
  bool carried = false;
};

class DeviceStates {
 public:
  // Throws Error when the library has no backend for these states or the memory is refused.
  DeviceStates(const ModelConfig& config, const StateFormat& format, const Stream& stream,
               std::int32_t places, std::int32_t max_tokens);

  // Bytes that the constructor takes.
  static std::int64_t reserved_bytes(const ModelConfig& config, const StateFormat& format,
                                     std::int32_t places, std::int32_t max_tokens);

  const char* backend() const { return leapquant_layout_backend(groups_.front().layout.get()); }
  std::int32_t num_layers() const { return static_cast<std::int32_t>(layers_.size()); }
  bool needs_carry() const { return !carry_.empty(); }
  std::int32_t tokens_to_boundary(std::int32_t position, std::int32_t most) const;

  // Zero states that stand for `position` tokens.
  void reset(std::int32_t place, std::int32_t position);
  // The place's state at `position` moves into an FP32 slot; -1 when all are in use.
  std::int32_t begin_carry(std::int32_t place, std::int32_t position);
  // Rounds it to the format; position: tokens it stands for now.
  void end_carry(std::int32_t place, std::int32_t carry_slot, std::int32_t position);
  void release_carry(std::int32_t carry_slot);

  // tokens: of a row of the tensors, [segments, tokens]; how many count is in the tables. status
  // [segments] lies in device memory.
  void decode(std::int32_t layer, const PassTables& tables, std::int32_t segments,
              std::int32_t tokens, const StateInputs& inputs, std::int32_t* status);
  void prefill(std::int32_t layer, const PassTables& tables, const PrefillPart& part,
               const StateInputs& inputs, std::int32_t* status);

  // These wait for the device. state: FP32 [num_v_heads, head_k_dim, head_v_dim] on the host.
  void export_state(std::int32_t layer, std::int32_t place, std::int32_t position,
                    std::span<float> state);
  std::vector<leapquant_health> health(std::int32_t layer, std::int32_t place) const;
  std::vector<std::byte> save(std::int32_t layer, std::int32_t place, std::int32_t position,
                              std::uint64_t fingerprint) const;
  void load(std::int32_t layer, std::int32_t place, std::span<const std::byte> blob,
            std::uint64_t fingerprint, std::int32_t position);

 private:
  struct Group {
    StateLayout layout;
    DeviceMemory memory;
    std::vector<leapquant_pool> pools;  // [layers of the group]
  };

  static Group make_group(const leapquant_shape& shape, const LayerFormat& format,
                          std::int32_t num_layers, std::int32_t slots);
  const Group& group_of(std::int32_t layer) const {
    return groups_[layers_[static_cast<std::size_t>(layer)].group];
  }
  const leapquant_pool& pool_of(std::int32_t layer) const {
    return group_of(layer).pools[layers_[static_cast<std::size_t>(layer)].index];
  }
  // Per step there are no windows.
  std::int32_t window_slot_of(std::int32_t layer, std::int32_t place) const {
    return pool_of(layer).num_window_slots > 0 ? place : -1;
  }
  leapquant_launch launch(const Group& group) const;
  leapquant_inputs describe(const StateInputs& inputs, std::int64_t first_row,
                            std::int64_t tokens_per_row) const;
  leapquant_output describe_output(const StateInputs& inputs, std::int64_t first_row,
                                   std::int64_t tokens_per_row) const;
  // One state between its slot and matrices_; position and slot go through arguments_.
  void transfer(const Group& group, const leapquant_pool& pool, std::int32_t slot,
                std::int32_t position, bool to_matrices);
  void put_arguments(std::int32_t slot, std::int32_t position);

  leapquant_shape shape_;
  const Stream& stream_;
  std::int32_t places_;
  std::vector<LayerGroups::Place> layers_;  // [linear layers]
  std::vector<Group> groups_;
  std::vector<Group> carry_;  // none or one, for all layers
  std::vector<bool> carry_used_;
  DeviceMemory workspace_;
  DeviceMemory matrices_;
  DeviceMemory arguments_;  // slot, position, status
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_DEVICE_STATES_H_
