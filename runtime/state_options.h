// SPDX-License-Identifier: Apache-2.0
//
// How a user says in which format recurrent states are kept, and what that means: the options
// --state, --policy, --window, --rank, --no-smoothing and --stagger become formats of the library.
// The grammar of format strings is the library's (docs/FORMAT.md).
#ifndef LEAPQUANT_RUNTIME_STATE_OPTIONS_H_
#define LEAPQUANT_RUNTIME_STATE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/model_config.h"

namespace leapquant::runtime {

enum class StatePolicy {
  kDefault,  // what the text says; where it says nothing: fp32 and bf16 per step, others windowed
  kWindow,   // records fill a window, the state is rounded once per window
  kStep,     // the plain baseline: window 1, no records, no compensators, no smoothing
};

struct StateOptions {
  std::string state = "int8";  // a preset, a format string or a mix by head
  StatePolicy policy = StatePolicy::kDefault;
  std::optional<std::int32_t> window;  // tokens between folds, 1..64; for windowed formats
  std::optional<std::int32_t> rank;    // FP16 compensators, 0..32; for formats that have some
  bool smoothing = true;               // false: no key smoothing
  std::optional<bool> stagger;         // spread the boundaries of the key heads; windowed formats
};

// Formats of the heads of one linear layer.
struct LayerFormat {
  std::vector<leapquant_format> formats;  // 1..8
  std::vector<std::uint8_t> head_format;  // [num_v_heads], index into formats

  bool operator==(const LayerFormat& other) const;
};

// Formats of all linear layers of a model.
struct StateFormat {
  std::vector<LayerFormat> layers;  // [linear layers], at least 1
  std::string text;                 // canonical; resolving it again gives the same formats

  // All layers share policy, window and stagger.
  const leapquant_format& first() const { return layers.front().formats.front(); }
  bool per_step() const { return first().policy == LEAPQUANT_PER_STEP; }
  // Plain FP32 in every head, per step or not.
  bool is_fp32() const;
};

// Throws Error for text that the library refuses and for options that contradict the format: a
// rank where compensators are not FP16, a window with policy kStep, formats that differ in policy,
// window or stagger.
StateFormat resolve_state(const StateOptions& options, std::int32_t num_v_heads,
                          std::int32_t num_linear_layers = 1);
StateFormat resolve_state(const StateOptions& options, const ModelConfig& config);

// The shape of a linear layer of this model. max_tokens: largest number of tokens of one decode
// call, 1..8; it decides how many records a window's ring holds.
leapquant_shape linear_layer_shape(const ModelConfig& config, std::int32_t max_tokens);

// A layout of the library, destroyed with this. Throws Error.
class StateLayout {
 public:
  StateLayout(const leapquant_shape& shape, const LayerFormat& format,
              leapquant_device device = LEAPQUANT_CPU);
  ~StateLayout() { leapquant_layout_destroy(layout_); }
  StateLayout(StateLayout&& other) noexcept : layout_(std::exchange(other.layout_, nullptr)) {}
  StateLayout& operator=(StateLayout&& other) noexcept {
    std::swap(layout_, other.layout_);
    return *this;
  }
  StateLayout(const StateLayout&) = delete;
  StateLayout& operator=(const StateLayout&) = delete;

  const leapquant_layout* get() const { return layout_; }
  leapquant_sizes sizes() const;

 private:
  leapquant_layout* layout_ = nullptr;
};

// Bytes of one sequence over all linear layers of a model.
struct StateBytes {
  std::int64_t boundary = 0;  // quantised states
  std::int64_t window = 0;    // records
  std::int64_t metadata = 0;  // base and health
  std::int64_t total() const { return boundary + window + metadata; }
};
// format must have been resolved for this model.
StateBytes state_bytes_per_sequence(const ModelConfig& config, const StateFormat& format,
                                    std::int32_t max_tokens = 1);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_STATE_OPTIONS_H_
