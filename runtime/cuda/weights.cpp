// SPDX-License-Identifier: Apache-2.0
//
// Two walks over the same list of tensors: one that counts bytes, one that fills memory.
#include "runtime/cuda/weights.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "runtime/cuda/weight_source.h"
#include "runtime/error.h"
#include "runtime/memory.h"

namespace leapquant::runtime::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

}  // namespace

// Takes memory from a block tensor by tensor and fills it. Without a block it only counts.
class Weights::Builder {
 public:
  using Part = std::pair<std::string, std::int64_t>;  // name, outputs

  Builder(Element element, std::byte* block, WeightSource& source)
      : element_(element), block_(block), source_(source) {}

  std::int64_t bytes() const { return used_; }

  // One matrix of several that take the same input.
  Matrix matrix(const std::vector<Part>& parts, std::int64_t inner) {
    std::int64_t outputs = 0;
    for (const Part& part : parts) outputs += part.second;
    std::byte* at = take(outputs * inner * element_bytes(element_));
    Matrix made{at, outputs, inner};
    if (block_ == nullptr) return made;
    for (const auto& [name, rows] : parts) {
      source_.matrix(name, rows, inner, at, element_);
      at += rows * inner * element_bytes(element_);
    }
    return made;
  }

  const float* vector(const std::string& name, const std::vector<std::int64_t>& shape,
                      VectorKind kind) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    auto* to = reinterpret_cast<float*>(take(count * std::int64_t{sizeof(float)}));
    if (block_ != nullptr) source_.vector(name, shape, kind, to);
    return to;
  }

 private:
  std::byte* take(std::int64_t bytes) {
    std::byte* taken = block_ == nullptr ? nullptr : block_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }

  Element element_;
  std::byte* block_;
  WeightSource& source_;
  std::int64_t used_ = 0;
};

Weights Weights::build(const ModelConfig& config, Element element, WeightSource& source) {
  Weights weights;
  weights.element_ = element;
  const auto walk = [&](Builder& builder) {
    const std::int64_t hidden = config.hidden_size;
    const auto norm = [&](const std::string& name, std::int64_t size) {
      return builder.vector(name, {size}, VectorKind::kFactorLessOne);
    };
    weights.layers_.clear();
    std::int32_t linear_layers = 0;
    std::int32_t full_layers = 0;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      const std::string prefix = fmt::format("model.layers.{}.", i);
      Layer layer{};
      layer.input_norm = norm(prefix + "input_layernorm.weight", hidden);
      layer.post_norm = norm(prefix + "post_attention_layernorm.weight", hidden);
      if (config.layer_kinds[static_cast<std::size_t>(i)] == LayerKind::kLinearAttention) {
        const std::string p = prefix + "linear_attn.";
        const std::int64_t heads = config.linear_num_value_heads;
        LinearMixer mixer{};
        mixer.in = builder.matrix({{p + "in_proj_qkv.weight", config.conv_dim()},
                                   {p + "in_proj_z.weight", config.linear_value_dim()},
                                   {p + "in_proj_a.weight", heads},
                                   {p + "in_proj_b.weight", heads}},
                                  hidden);
        mixer.convolution =
            builder.vector(p + "conv1d.weight", {config.conv_dim(), 1, config.linear_conv_kernel},
                           VectorKind::kTaps);
        mixer.a_log = builder.vector(p + "A_log", {heads}, VectorKind::kDecayRate);
        mixer.dt_bias = builder.vector(p + "dt_bias", {heads}, VectorKind::kTimeBias);
        mixer.norm =
            builder.vector(p + "norm.weight", {config.linear_value_head_dim}, VectorKind::kFactor);
        mixer.out = builder.matrix({{p + "out_proj.weight", hidden}}, config.linear_value_dim());
        layer.mixer = mixer;
        layer.index = linear_layers++;
      } else {
        const std::string p = prefix + "self_attn.";
        const std::int64_t queries = config.num_attention_heads * config.head_dim;
        const std::int64_t keys = config.num_key_value_heads * config.head_dim;
        FullMixer mixer{};
        mixer.in =
            builder.matrix({{p + "q_proj.weight", (config.attn_output_gate ? 2 : 1) * queries},
                            {p + "k_proj.weight", keys},
                            {p + "v_proj.weight", keys}},
                           hidden);
        mixer.q_norm = norm(p + "q_norm.weight", config.head_dim);
        mixer.k_norm = norm(p + "k_norm.weight", config.head_dim);
        mixer.out = builder.matrix({{p + "o_proj.weight", hidden}}, queries);
        layer.mixer = mixer;
        layer.index = full_layers++;
      }
      const std::string p = prefix + "mlp.";
      layer.gate_up = builder.matrix({{p + "gate_proj.weight", config.intermediate_size},
                                      {p + "up_proj.weight", config.intermediate_size}},
                                     hidden);
      layer.down = builder.matrix({{p + "down_proj.weight", hidden}}, config.intermediate_size);
      weights.layers_.push_back(layer);
    }
    weights.final_norm_ = norm("model.norm.weight", hidden);
    const std::int64_t before = builder.bytes();
    weights.embedding_ = builder.matrix({{"model.embed_tokens.weight", config.vocab_size}}, hidden);
    weights.bytes_per_step_ = config.tie_word_embeddings ? builder.bytes() : before;
    if (config.tie_word_embeddings) {
      weights.head_ = weights.embedding_;
      return;
    }
    const std::int64_t after = builder.bytes();
    weights.head_ = builder.matrix({{"lm_head.weight", config.vocab_size}}, hidden);
    weights.bytes_per_step_ += builder.bytes() - after;
  };

  Builder counter(element, nullptr, source);
  walk(counter);
  const std::int64_t available = free_device_bytes();
  if (counter.bytes() > available) {
    throw Error(
        fmt::format("The weights take {} in {}, but the device has {} free; use a smaller "
                    "model or the CPU.",
                    describe_bytes(counter.bytes()), element == Element::kFp32 ? "FP32" : "BF16",
                    describe_bytes(available)));
  }
  weights.memory_ = DeviceMemory(counter.bytes());
  Builder filler(element, weights.memory_.data(), source);
  walk(filler);
  check(cudaDeviceSynchronize(), "fill the weights");
  return weights;
}

Weights Weights::load(const Checkpoint& checkpoint, const ModelConfig& config, Element element) {
  CheckpointSource source(checkpoint);
  return build(config, element, source);
}

Weights Weights::random(const ModelConfig& config, Element element, std::uint64_t seed) {
  RandomSource source(seed);
  return build(config, element, source);
}

}  // namespace leapquant::runtime::cuda
