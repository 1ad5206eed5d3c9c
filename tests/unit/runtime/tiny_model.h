// SPDX-License-Identifier: Apache-2.0
//
// For tests of the runtime: a Qwen3.5 folder with random weights, small enough for many runs: two
// linear layers, one full-attention layer, grouped heads in both.
#ifndef LEAPQUANT_TESTS_UNIT_RUNTIME_TINY_MODEL_H_
#define LEAPQUANT_TESTS_UNIT_RUNTIME_TINY_MODEL_H_

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "runtime/model.h"
#include "runtime/safetensors.h"
#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {

struct TinyOptions {
  std::string prefix = "model.";  // or "model.language_model."
  DType dtype = DType::kBF16;     // or kF16, kF32; the values are the same
  bool tied = false;
  unsigned seed = 1;
  std::string leave_out;  // name of a tensor that is missing
  // "in_proj_qkv.weight" or "A_log": this tensor of layer 1 holds one NaN.
  std::string broken;
};

constexpr std::int64_t kTinyVocab = 40;

class TinyModel {
 public:
  explicit TinyModel(const TinyOptions& options = {}) : options_(options), engine_(options.seed) {
    folder_.write(
        "config.json",
        R"({"architectures":["Qwen3_5ForCausalLM"],)"
        R"("model_type":"qwen3_5_text","vocab_size":40,"hidden_size":24,"intermediate_size":40,)"
        R"("num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,)"
        R"("linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,)"
        R"("linear_value_head_dim":8,"linear_conv_kernel_dim":4,"rms_norm_eps":1e-06,)"
        R"("hidden_act":"silu","attn_output_gate":true,"max_position_embeddings":4096,)"
        R"("tie_word_embeddings":)" +
            std::string(options.tied ? "true" : "false") +
            R"(,"eos_token_id":0,"layer_types":["linear_attention","linear_attention",)"
            R"("full_attention"],"rope_parameters":{"rope_type":"default","rope_theta":10000.0,)"
            R"("partial_rotary_factor":0.5}})");
    const std::string& p = options_.prefix;
    add(p + "embed_tokens.weight", {kTinyVocab, 24}, 1);
    add(p + "norm.weight", {24}, 0.1);
    if (!options.tied) add("lm_head.weight", {kTinyVocab, 24}, 0.5);
    for (int layer = 0; layer < 3; ++layer) {
      const std::string l = p + "layers." + std::to_string(layer) + ".";
      add(l + "input_layernorm.weight", {24}, 0.1);
      add(l + "post_attention_layernorm.weight", {24}, 0.1);
      add(l + "mlp.gate_proj.weight", {40, 24}, 0.2);
      add(l + "mlp.up_proj.weight", {40, 24}, 0.2);
      add(l + "mlp.down_proj.weight", {24, 40}, 0.15);
      if (layer == 2) {
        add(l + "self_attn.q_proj.weight", {128, 24}, 0.2);
        add(l + "self_attn.k_proj.weight", {32, 24}, 0.2);
        add(l + "self_attn.v_proj.weight", {32, 24}, 0.2);
        add(l + "self_attn.o_proj.weight", {24, 64}, 0.15);
        add(l + "self_attn.q_norm.weight", {16}, 0.1);
        add(l + "self_attn.k_norm.weight", {16}, 0.1);
        continue;
      }
      const std::string m = l + "linear_attn.";
      add(m + "in_proj_qkv.weight", {96, 24}, 0.3);
      add(m + "in_proj_z.weight", {32, 24}, 0.2);
      add(m + "in_proj_b.weight", {4, 24}, 0.2);
      add(m + "in_proj_a.weight", {4, 24}, 0.2);
      add(m + "conv1d.weight", {96, 1, 4}, 0.5);
      add(m + "A_log", {4}, 0.5);
      add(m + "dt_bias", {4}, 0.5);
      add(m + "norm.weight", {8}, 0.3);
      add(m + "out_proj.weight", {24, 32}, 0.2);
    }
    write();
  }

  const std::filesystem::path& folder() const { return folder_.path(); }
  Model load() const { return Model::load(folder()); }

 private:
  // Multiples of 2^-6 below 2 are exact in all three types.
  void add(const std::string& name, std::vector<std::int64_t> shape, double scale) {
    if (name == options_.leave_out) return;
    std::normal_distribution<double> normal(0, scale);
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(
          std::fmax(-1.875, std::fmin(1.875, std::round(normal(engine_) * 64) / 64))));
    }
    if (!options_.broken.empty() && name.find("layers.1.") != std::string::npos &&
        name.ends_with(options_.broken)) {
      values.front() = NAN;
    }
    names_.push_back(name);
    shapes_.push_back(std::move(shape));
    values_.push_back(std::move(values));
  }

  void write() {
    std::vector<std::vector<std::byte>> bytes;
    for (const std::vector<float>& values : values_) {
      std::vector<std::byte> stored;
      for (const float value : values) {
        std::uint32_t word = 0;
        std::memcpy(&word, &value, 4);
        std::uint16_t half = static_cast<std::uint16_t>(word >> 16);
        if (options_.dtype == DType::kF16) {
          const _Float16 narrow = static_cast<_Float16>(value);
          std::memcpy(&half, &narrow, 2);
        }
        const auto* from = options_.dtype == DType::kF32
                               ? reinterpret_cast<const std::byte*>(&word)
                               : reinterpret_cast<const std::byte*>(&half);
        stored.insert(stored.end(), from, from + dtype_bytes(options_.dtype));
      }
      bytes.push_back(std::move(stored));
    }
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      tensors.push_back({names_[i], options_.dtype, shapes_[i], bytes[i]});
    }
    write_safetensors(folder_.path() / "model.safetensors", tensors);
  }

  TinyOptions options_;
  std::mt19937 engine_;
  TemporaryFolder folder_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::vector<float>> values_;
};

// Tokens without the end token.
inline std::vector<TokenId> random_tokens(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<TokenId> token(1, kTinyVocab - 1);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(token(engine));
  return tokens;
}

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_TESTS_UNIT_RUNTIME_TINY_MODEL_H_
