// SPDX-License-Identifier: Apache-2.0
//
// See model_shapes.h. Dimensions are those of the published config.json files; weights are counted
// from them (norms and other vectors, below 0.01 %, left out).
#include "tool/model_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "lab/model_source.h"
#include "runtime/checkpoint.h"
#include "runtime/model_config.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr std::int64_t kHeadDim = 128;  // of recurrent states, in all these models
constexpr std::int64_t kBf16 = 2;

// Feed-forward part of one layer: dense (experts 0) or a mixture with shared experts.
struct FeedForward {
  std::int64_t dense_width = 0;
  std::int64_t experts = 0;
  std::int64_t expert_width = 0;
  std::int64_t shared_width = 0;

  std::int64_t weights(std::int64_t hidden) const {
    if (experts == 0) return 3 * hidden * dense_width;
    return experts * hidden + 3 * hidden * (experts * expert_width + shared_width);
  }
};

// Qwen3-Next and Qwen3.5: Gated DeltaNet and gated full attention 3:1, head dim 256 there.
struct QwenDims {
  std::int64_t vocab, hidden, layers, k_heads, v_heads, q_heads, kv_heads;
  bool tied;
  FeedForward feed_forward;
};
constexpr std::int64_t kAttentionDim = 256;

constexpr std::int64_t kVocab = 248320;
constexpr std::pair<std::string_view, QwenDims> kQwens[] = {
    {"qwen3.5-0.8b", {kVocab, 1024, 24, 16, 16, 8, 2, true, {3584, 0, 0, 0}}},
    {"qwen3.5-2b", {kVocab, 2048, 24, 16, 16, 8, 2, true, {6144, 0, 0, 0}}},
    {"qwen3.5-4b", {kVocab, 2560, 32, 16, 32, 16, 4, true, {9216, 0, 0, 0}}},
    {"qwen3.5-9b", {kVocab, 4096, 32, 16, 32, 16, 4, false, {12288, 0, 0, 0}}},
    {"qwen3.5-27b", {kVocab, 5120, 64, 16, 48, 24, 4, false, {17408, 0, 0, 0}}},
    {"qwen3.5-35b-a3b", {kVocab, 2048, 40, 16, 32, 16, 2, false, {0, 256, 512, 512}}},
    {"qwen3-next-80b", {151936, 2048, 48, 16, 32, 16, 2, false, {0, 512, 512, 512}}},
};

ModelShape qwen(std::string_view name, const QwenDims& d) {
  ModelShape shape;
  shape.name = name;
  shape.full_layers = static_cast<int>(d.layers / 4);
  shape.linear_layers = static_cast<int>(d.layers) - shape.full_layers;
  shape.linear = {static_cast<int>(d.k_heads), static_cast<int>(d.v_heads),
                  static_cast<int>(kHeadDim), static_cast<int>(kHeadDim)};
  const std::int64_t channels = (2 * d.k_heads + d.v_heads) * kHeadDim;
  const std::int64_t values = d.v_heads * kHeadDim;
  shape.convolution_channels = static_cast<int>(channels);
  shape.kv_elements_per_token = 2 * shape.full_layers * d.kv_heads * kAttentionDim;
  // qkv, z, a and b in; four taps; out.
  const std::int64_t linear = d.hidden * (channels + 2 * values + 2 * d.v_heads) + 4 * channels;
  // Queries with gates, keys and values in; out.
  const std::int64_t full = d.hidden * kAttentionDim * (3 * d.q_heads + 2 * d.kv_heads);
  const std::int64_t weights = shape.linear_layers * linear + shape.full_layers * full +
                               d.layers * d.feed_forward.weights(d.hidden) +
                               (d.tied ? 1 : 2) * d.vocab * d.hidden;
  shape.weight_bytes = kBf16 * weights;
  return shape;
}

// Kimi Linear: KDA and multi-head latent attention without rotary, of which one vector of 512 + 64
// elements per token is kept.
ModelShape kimi_linear_48b() {
  constexpr std::int64_t kHidden = 2304;
  constexpr std::int64_t kHeads = 32;
  constexpr std::int64_t kWidth = kHeads * kHeadDim;
  constexpr std::int64_t kLatent = 512;
  constexpr std::int64_t kShared = 64;
  ModelShape shape;
  shape.name = "kimi-linear-48b";
  shape.linear_layers = 20;
  shape.full_layers = 7;
  shape.linear = {static_cast<int>(kHeads), static_cast<int>(kHeads), static_cast<int>(kHeadDim),
                  static_cast<int>(kHeadDim)};
  shape.vector_decay = true;
  shape.convolution_channels = static_cast<int>(3 * kWidth);
  shape.kv_elements_per_token = shape.full_layers * (kLatent + kShared);
  // q, k, v and out; two low-rank gates; beta; taps.
  const std::int64_t linear = 4 * kHidden * kWidth + 2 * (kHeadDim * kHidden + kWidth * kHeadDim) +
                              kHeads * kHidden + 4 * 3 * kWidth;
  const std::int64_t full = kHidden * kHeads * (kHeadDim + kShared) +
                            kHidden * (kLatent + kShared) + kLatent * kHeads * 2 * kHeadDim +
                            kHidden * kWidth;
  const FeedForward mixture{0, 256, 1024, 1024};
  const FeedForward dense{9216, 0, 0, 0};
  shape.weight_bytes =
      kBf16 * (shape.linear_layers * linear + shape.full_layers * full +
               26 * mixture.weights(kHidden) + dense.weights(kHidden) + 2 * 163840 * kHidden);
  return shape;
}

const std::vector<ModelShape>& known_shapes() {
  static const std::vector<ModelShape> shapes = [] {
    std::vector<ModelShape> made;
    for (const auto& [name, dims] : kQwens) made.push_back(qwen(name, dims));
    made.push_back(kimi_linear_48b());
    return made;
  }();
  return shapes;
}

}  // namespace

std::vector<std::string> known_shape_names() {
  std::vector<std::string> names;
  for (const ModelShape& shape : known_shapes()) names.push_back(shape.name);
  return names;
}

ModelShape known_shape(std::string_view name) {
  for (const ModelShape& shape : known_shapes()) {
    if (shape.name == name) return shape;
  }
  throw UsageError(fmt::format("--shape {} is not known; known are {}.", name,
                               fmt::join(known_shape_names(), ", ")));
}

runtime::ModelConfig known_config(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [known, dims] : kQwens) {
    if (dims.feed_forward.experts > 0) continue;
    names.push_back(known);
    if (known != name) continue;
    runtime::ModelConfig config;
    config.model_type = "qwen3_5_text";
    config.vocab_size = dims.vocab;
    config.hidden_size = dims.hidden;
    config.intermediate_size = dims.feed_forward.dense_width;
    config.num_layers = dims.layers;
    for (std::int64_t i = 0; i < dims.layers; ++i) {
      config.layer_kinds.push_back(i % 4 == 3 ? runtime::LayerKind::kFullAttention
                                              : runtime::LayerKind::kLinearAttention);
    }
    config.rms_norm_eps = 1e-6;
    config.max_position_embeddings = 262144;
    config.tie_word_embeddings = dims.tied;
    config.num_attention_heads = dims.q_heads;
    config.num_key_value_heads = dims.kv_heads;
    config.head_dim = kAttentionDim;
    config.rope_theta = 1e7;
    config.rotary_dim = kAttentionDim / 4;
    config.linear_num_key_heads = dims.k_heads;
    config.linear_num_value_heads = dims.v_heads;
    config.linear_key_head_dim = kHeadDim;
    config.linear_value_head_dim = kHeadDim;
    config.linear_conv_kernel = 4;
    return config;
  }
  throw UsageError(fmt::format("--shape {} is no dense Qwen3.5 model; known are {}.", name,
                               fmt::join(names, ", ")));
}

ModelShape shape_of_checkpoint(const std::filesystem::path& folder) {
  const runtime::ModelConfig config = runtime::load_model_config(folder);
  const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(folder);
  ModelShape shape;
  shape.name = std::filesystem::absolute(folder).lexically_normal().filename().string();
  if (shape.name.empty()) shape.name = folder.string();
  shape.linear_layers = static_cast<int>(config.num_linear_layers());
  shape.full_layers = static_cast<int>(config.num_full_layers());
  shape.linear = lab::layer_shape(config);
  shape.convolution_channels = static_cast<int>(config.conv_dim());
  shape.convolution_inputs = static_cast<int>(config.linear_conv_kernel - 1);
  shape.kv_elements_per_token =
      2 * config.num_full_layers() * config.num_key_value_heads * config.head_dim;
  shape.weight_bytes = static_cast<std::int64_t>(checkpoint.tensor_bytes());
  return shape;
}

}  // namespace leapquant::tool
