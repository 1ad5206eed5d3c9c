// SPDX-License-Identifier: Apache-2.0
//
// What a hybrid model needs per sequence and for its weights, known by name (public model families)
// or read from a checkpoint. Numbers of layers, heads and channels only: sizes of recurrent states
// come from the library.
#ifndef LEAPQUANT_TOOL_MODEL_SHAPES_H_
#define LEAPQUANT_TOOL_MODEL_SHAPES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lab/layer_inputs.h"
#include "runtime/model_config.h"

namespace leapquant::tool {

struct ModelShape {
  std::string name;
  int linear_layers = 0;
  lab::LayerShape linear;     // of each linear layer
  bool vector_decay = false;  // a decay per key channel (KDA) instead of one per head
  // Convolution state: inputs kept per channel (kernel - 1), in BF16.
  int convolution_channels = 0;  // of each linear layer
  int convolution_inputs = 3;
  int full_layers = 0;
  std::int64_t kv_elements_per_token = 0;  // of all full-attention layers, keys and values
  std::int64_t weight_bytes = 0;           // BF16 by name, as stored in a checkpoint

  std::int64_t convolution_bytes() const {
    return std::int64_t{2} * linear_layers * convolution_channels * convolution_inputs;
  }
};

// Names in order: "qwen3.5-0.8b", ...
std::vector<std::string> known_shape_names();
// Throws UsageError that lists the names.
ModelShape known_shape(std::string_view name);
// The configuration of a dense Qwen3.5 model by name. Throws UsageError for other names: it lists
// those that it has.
runtime::ModelConfig known_config(std::string_view name);
// Reads config.json and the tensor headers of a checkpoint. Throws runtime::Error.
ModelShape shape_of_checkpoint(const std::filesystem::path& folder);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_MODEL_SHAPES_H_
