// SPDX-License-Identifier: Apache-2.0
//
// The recurrent states of all linear layers of all open sequences, in slot pools of the library,
// and the library's operations on them. It knows no weights and no tokens.
//
// A prompt that takes several prefill passes is carried between them in an FP32 slot and rounded to
// its format once, after the last.
#ifndef LEAPQUANT_RUNTIME_RECURRENT_STATES_H_
#define LEAPQUANT_RUNTIME_RECURRENT_STATES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/layer_groups.h"
#include "runtime/scratch.h"
#include "runtime/state_options.h"
#include "runtime/threads.h"

namespace leapquant::runtime {

// Where the states of one sequence lie: a slot per group of layers with equal formats.
struct StatePlace {
  std::vector<std::int32_t> state_slots;
  std::vector<std::int32_t> window_slots;
  std::int32_t carry_slot = -1;  // >= 0 between begin_carry and end_carry
};

// One sequence in a call.
struct StateRow {
  const StatePlace* place = nullptr;
  std::int32_t position = 0;  // tokens before the call
  std::int32_t tokens = 0;
};

// Activations of one layer, rows of all sequences behind one another.
struct StateInputs {
  const float* q_k_v = nullptr;        // [rows, q | k | v], after the convolution
  const float* decay_input = nullptr;  // [rows, num_v_heads], a
  const float* beta_input = nullptr;   // [rows, num_v_heads], b
  const float* a_log = nullptr;        // [num_v_heads]
  const float* dt_bias = nullptr;      // [num_v_heads]
  float* output = nullptr;             // [rows, num_v_heads, head_v_dim]
};

class RecurrentStates {
 public:
  // Throws Error when the library refuses; memory for all places is reserved here.
  RecurrentStates(const ModelConfig& config, const StateFormat& format, const Threads& threads,
                  std::int32_t max_sequences, std::int32_t max_tokens);
  ~RecurrentStates();
  RecurrentStates(const RecurrentStates&) = delete;
  RecurrentStates& operator=(const RecurrentStates&) = delete;

  // Bytes that the constructor will reserve: places and FP32 slots.
  static std::int64_t reserved_bytes(const ModelConfig& config, const StateFormat& format,
                                     std::int32_t max_sequences, std::int32_t max_tokens);

  const char* backend() const;
  StatePlace open();  // cleared, position 0
  void close(StatePlace& place);

  // Whether prompts of several passes need a carry; FP32 formats do not.
  bool needs_carry() const { return !carry_.empty(); }
  // False when all FP32 slots are in use. The state at `position` moves into one.
  bool begin_carry(StatePlace& place, std::int32_t position);
  // Rounds the carried state to the format; position: tokens it stands for now.
  void end_carry(StatePlace& place, std::int32_t position);

  // Rows must all have the same number of tokens. status [rows] receives a leapquant_status each.
  void decode(std::int32_t layer, std::span<const StateRow> rows, const StateInputs& inputs,
              std::span<std::int32_t> status);
  // carried: the rows' places are, all or none.
  void prefill(std::int32_t layer, std::span<const StateRow> rows, const StateInputs& inputs,
               bool carried, std::span<std::int32_t> status);

  // Tokens from position on until the next boundary of any head, at least 1, at most `most`.
  std::int32_t tokens_to_boundary(std::int32_t position, std::int32_t most) const;
  // FP32 [num_v_heads, head_k_dim, head_v_dim].
  void export_state(std::int32_t layer, const StatePlace& place, std::int32_t position,
                    std::span<float> state);
  std::span<const leapquant_health> health(std::int32_t layer, const StatePlace& place) const;

  std::vector<std::byte> save(std::int32_t layer, const StatePlace& place, std::int32_t position,
                              std::uint64_t fingerprint) const;
  // Throws Error unless the blob is sound, of this format and model, and at this position.
  void load(std::int32_t layer, const StatePlace& place, std::span<const std::byte> blob,
            std::uint64_t fingerprint, std::int32_t position);

 private:
  struct Free {
    void operator()(leapquant_slots* slots) const { leapquant_slots_destroy(slots); }
  };
  // Layers with equal formats share a layout and a pool of slots.
  struct Group {
    StateLayout layout;
    std::unique_ptr<leapquant_slots, Free> slots;
    std::vector<leapquant_pool> pools;  // [layers of the group]
  };

  static Group make_group(const leapquant_shape& shape, const LayerFormat& format,
                          std::int32_t num_layers, std::int32_t num_slots, const char* purpose);
  const Group& group_of(std::int32_t layer) const { return groups_[layers_[layer].group]; }
  const leapquant_pool& pool_of(std::int32_t layer) const {
    return group_of(layer).pools[layers_[layer].index];
  }
  leapquant_launch launch(const Group& group);
  leapquant_inputs describe(const StateInputs& inputs, std::int64_t tokens_per_row) const;
  leapquant_output describe_output(const StateInputs& inputs, std::int64_t tokens_per_row) const;
  void transfer(const Group& group, const leapquant_pool& pool, std::int32_t slot,
                std::int32_t window_slot, std::int32_t position, float* matrices, bool to_matrices);

  leapquant_shape shape_;
  const Threads& threads_;
  std::int32_t max_sequences_;
  std::vector<LayerGroups::Place> layers_;  // [linear layers]
  std::vector<Group> groups_;
  std::vector<Group> carry_;  // none or one, for all layers
  Buffer workspace_;
  Buffer matrices_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_RECURRENT_STATES_H_
