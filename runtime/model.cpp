// SPDX-License-Identifier: Apache-2.0
//
// Loading: which tensors a Qwen3.5 dense model has, and its fingerprint.
#include "runtime/model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

// The fingerprint reads at most this many bytes of a tensor, in pieces spread evenly over it, so
// that opening a model of many gigabytes stays quick.
constexpr std::size_t kSampledPieces = 16;
constexpr std::size_t kPieceBytes = 4096;

std::uint64_t fingerprint_of(const Checkpoint& checkpoint) {
  std::uint64_t hash = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::string label = fmt::format("{} {};", name, describe(tensor.dtype, tensor.shape));
    hash = XXH3_64bits_withSeed(label.data(), label.size(), hash);
    if (tensor.bytes <= kSampledPieces * kPieceBytes) {
      hash = XXH3_64bits_withSeed(tensor.data, tensor.bytes, hash);
      continue;
    }
    for (std::size_t piece = 0; piece < kSampledPieces; ++piece) {
      const std::size_t at = (tensor.bytes - kPieceBytes) / (kSampledPieces - 1) * piece;
      hash = XXH3_64bits_withSeed(tensor.data + at, kPieceBytes, hash);
    }
  }
  return hash;
}

std::int64_t mixer_bytes(const DecoderLayer& layer) {
  return std::visit([](const auto& mixer) { return mixer.bytes(); }, layer.mixer);
}

}  // namespace

Model Model::load(const std::filesystem::path& folder) {
  Model model;
  model.config_ = load_model_config(folder);
  model.checkpoint_ = std::make_unique<const Checkpoint>(Checkpoint::open(folder));
  const ModelConfig& config = model.config_;
  const Checkpoint& checkpoint = *model.checkpoint_;
  const auto norm = [&](const std::string& name) {
    return RmsNorm(checkpoint.require(name, {config.hidden_size}), config.rms_norm_eps,
                   NormWeight::kZeroCentred);
  };

  const std::string embedding = "model.embed_tokens.weight";
  model.embedding_ =
      Embedding(checkpoint.require(embedding, {config.vocab_size, config.hidden_size}));
  std::int32_t linear_layer = 0;
  std::int32_t full_layer = 0;
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const bool linear =
        config.layer_kinds[static_cast<std::size_t>(i)] == LayerKind::kLinearAttention;
    using Mixer = std::variant<GatedDeltaNet, Attention>;
    Mixer mixer =
        linear ? Mixer(GatedDeltaNet(checkpoint, config, prefix + "linear_attn.", linear_layer++))
               : Mixer(Attention(checkpoint, config, prefix + "self_attn.", full_layer++));
    model.layers_.push_back({norm(prefix + "input_layernorm.weight"), std::move(mixer),
                             norm(prefix + "post_attention_layernorm.weight"),
                             Mlp(checkpoint, config, prefix + "mlp.")});
    model.weight_bytes_per_step_ +=
        mixer_bytes(model.layers_.back()) + model.layers_.back().mlp.bytes();
  }
  model.final_norm_ = norm("model.norm.weight");
  model.head_ =
      config.tie_word_embeddings
          ? model.embedding_.table()
          : Linear(checkpoint.require("lm_head.weight", {config.vocab_size, config.hidden_size}));
  model.weight_bytes_per_step_ += model.head_.bytes();
  model.fingerprint_ = fingerprint_of(checkpoint);
  return model;
}

}  // namespace leapquant::runtime
