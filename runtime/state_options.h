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
  std::optional<std::int32_t> window;  // tokens between folds, 1..64
  std::optional<std::int32_t> rank;    // FP16 compensators, 0..32; formats that have some only
  bool smoothing = true;               // false: no key smoothing
  std::optional<bool> stagger;         // spread the boundaries of the key heads
};

// Formats of one model's linear layers; the same for every layer.
struct StateFormat {
  std::vector<leapquant_format> formats;   // 1..8
  std::vector<std::uint8_t> head_format;   // [num_v_heads], index into formats
  std::string text;                        // canonical; parsing it again gives the same formats

  bool per_step() const { return formats.front().policy == LEAPQUANT_PER_STEP; }
  // Plain FP32 in every head, whatever the policy.
  bool is_fp32() const;
};

// Throws Error for text that the library refuses and for options that contradict the format: a
// rank where compensators are not FP16, a window with policy step.
StateFormat resolve_state(const StateOptions& options, std::int32_t num_v_heads);

// The shape of a linear layer of this model. max_tokens: largest number of tokens of one decode
// call, 1..8; it decides how many records a window's ring holds.
leapquant_shape linear_layer_shape(const ModelConfig& config, std::int32_t max_tokens);

// Bytes of one sequence over all linear layers of a model.
struct StateBytes {
  std::int64_t boundary = 0;  // quantised states
  std::int64_t window = 0;    // records
  std::int64_t metadata = 0;  // base and health
  std::int64_t total() const { return boundary + window + metadata; }
};
StateBytes state_bytes_per_sequence(const ModelConfig& config, const StateFormat& format,
                                    std::int32_t max_tokens = 1);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_STATE_OPTIONS_H_
