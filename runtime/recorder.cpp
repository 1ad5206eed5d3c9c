// SPDX-License-Identifier: Apache-2.0
//
// Collects, writes and reads recordings.
#include "runtime/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "runtime/error.h"
#include "runtime/safetensors.h"

namespace leapquant::runtime {
namespace {

constexpr std::string_view kKind = "leapquant recording 1";
constexpr std::string_view kNames[] = {"q", "k", "v", "log_decay", "beta"};

std::vector<float>& part(LayerInputs& inputs, std::size_t index) {
  std::vector<float>* const parts[] = {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                                       &inputs.beta};
  return *parts[index];
}

// Shape of part `index` for so many tokens.
std::vector<std::int64_t> part_shape(std::size_t index, std::int64_t tokens, std::int64_t k_heads,
                                     std::int64_t v_heads, std::int64_t k_dim, std::int64_t v_dim) {
  if (index < 2) return {tokens, k_heads, k_dim};
  if (index == 2) return {tokens, v_heads, v_dim};
  return {tokens, v_heads};
}

}  // namespace

Recorder::Recorder(const ModelConfig& config) : config_(config) {
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if (config.layer_kinds[static_cast<std::size_t>(i)] == LayerKind::kLinearAttention) {
      model_layer_.push_back(static_cast<std::int32_t>(i));
    }
  }
  layers_.resize(model_layer_.size());
}

std::int64_t Recorder::bytes_per_token() const {
  return static_cast<std::int64_t>(layers_.size() * sizeof(float)) *
         (config_.conv_dim() + 2 * config_.linear_num_value_heads);
}

void Recorder::append(std::int32_t linear_layer, std::int64_t tokens, std::span<const float> q_k_v,
                      std::span<const float> log_decay, std::span<const float> beta) {
  LayerInputs& layer = layers_[static_cast<std::size_t>(linear_layer)];
  const auto key_dim = static_cast<std::size_t>(config_.linear_key_dim());
  const auto conv_dim = static_cast<std::size_t>(config_.conv_dim());
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    const std::span<const float> row = q_k_v.subspan(t * conv_dim, conv_dim);
    layer.q.insert(layer.q.end(), row.begin(), row.begin() + static_cast<std::ptrdiff_t>(key_dim));
    const auto k = row.subspan(key_dim, key_dim);
    layer.k.insert(layer.k.end(), k.begin(), k.end());
    const auto v = row.subspan(2 * key_dim);
    layer.v.insert(layer.v.end(), v.begin(), v.end());
  }
  layer.log_decay.insert(layer.log_decay.end(), log_decay.begin(), log_decay.end());
  layer.beta.insert(layer.beta.end(), beta.begin(), beta.end());
  if (static_cast<std::size_t>(linear_layer) + 1 == layers_.size()) num_tokens_ += tokens;
}

void Recorder::write(const std::filesystem::path& path) const {
  std::vector<TensorToWrite> tensors;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (std::size_t p = 0; p < std::size(kNames); ++p) {
      const std::vector<float>& values = part(const_cast<LayerInputs&>(layers_[l]), p);
      tensors.push_back(
          {fmt::format("layers.{}.{}", model_layer_[l], kNames[p]), DType::kF32,
           part_shape(p, num_tokens_, config_.linear_num_key_heads, config_.linear_num_value_heads,
                      config_.linear_key_head_dim, config_.linear_value_head_dim),
           std::as_bytes(std::span(values))});
    }
  }
  const std::map<std::string, std::string> metadata = {
      {"kind", std::string(kKind)},
      {"q_and_k", "before the l2 norm (eps 1e-6 on the sum of squares) and the query scale"},
      {"log_decay", "final, natural logarithm"},
      {"beta", "final"}};
  write_safetensors(path, tensors, metadata);
}

Recording read_recording(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const auto kind = file.metadata().find("kind");
  if (kind == file.metadata().end() || kind->second != kKind) {
    throw Error(fmt::format("{} is no recording of layer inputs; make one with leapquant record.",
                            in_quotes(path.string())));
  }
  Recording recording;
  std::map<std::int32_t, LayerInputs> layers;
  for (const TensorView& tensor : file.tensors()) {
    std::int32_t layer = -1;
    std::size_t index = std::size(kNames);
    for (std::size_t p = 0; p < std::size(kNames); ++p) {
      const std::string suffix = fmt::format(".{}", kNames[p]);
      const std::string& name = tensor.name;
      if (!name.starts_with("layers.") || !name.ends_with(suffix) ||
          name.size() <= 7 + suffix.size() || name.size() > 12 + suffix.size()) {
        continue;
      }
      const std::string number = name.substr(7, name.size() - 7 - suffix.size());
      if (number.find_first_not_of("0123456789") != std::string::npos) continue;
      layer = std::stoi(number);
      index = p;
    }
    if (layer < 0 || tensor.dtype != DType::kF32) {
      throw Error(fmt::format("{}: tensor {} does not belong into a recording.",
                              in_quotes(path.string()), in_quotes(tensor.name)));
    }
    const auto values = tensor.as<float>();
    part(layers[layer], index).assign(values.begin(), values.end());
    if (index == 0 && tensor.shape.size() == 3) {
      recording.num_tokens = tensor.shape[0];
      recording.num_k_heads = static_cast<std::int32_t>(tensor.shape[1]);
      recording.head_k_dim = static_cast<std::int32_t>(tensor.shape[2]);
    }
    if (index == 2 && tensor.shape.size() == 3) {
      recording.num_v_heads = static_cast<std::int32_t>(tensor.shape[1]);
      recording.head_v_dim = static_cast<std::int32_t>(tensor.shape[2]);
    }
  }
  for (auto& [layer, inputs] : layers) {
    for (std::size_t p = 0; p < std::size(kNames); ++p) {
      const TensorView& tensor = file.at(fmt::format("layers.{}.{}", layer, kNames[p]));
      if (tensor.shape != part_shape(p, recording.num_tokens, recording.num_k_heads,
                                     recording.num_v_heads, recording.head_k_dim,
                                     recording.head_v_dim)) {
        throw Error(fmt::format("{}: tensor {} is {}, which does not go with the others.",
                                in_quotes(path.string()), in_quotes(tensor.name),
                                describe(tensor.dtype, tensor.shape)));
      }
    }
    recording.model_layers.push_back(layer);
    recording.layers.push_back(std::move(inputs));
  }
  if (recording.layers.empty()) {
    throw Error(fmt::format("{} holds no layers.", in_quotes(path.string())));
  }
  return recording;
}

}  // namespace leapquant::runtime
