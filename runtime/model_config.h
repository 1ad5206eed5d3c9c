// SPDX-License-Identifier: Apache-2.0
//
// What config.json and generation_config.json say about a Qwen3.5 dense text model, checked and in
// one flat struct. It holds no weights and does not look at tensors.
#ifndef LEAPQUANT_RUNTIME_MODEL_CONFIG_H_
#define LEAPQUANT_RUNTIME_MODEL_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace leapquant::runtime {

enum class LayerKind { kLinearAttention, kFullAttention };

// The function on z in the gated norm of a linear layer; files say swish or silu, or sigmoid.
enum class OutputGate { kSilu, kSigmoid };

// Sizes count elements. Every field is positive and consistent with the others once parsed:
// num_attention_heads is a multiple of num_key_value_heads, linear_num_value_heads of
// linear_num_key_heads, rotary_dim is even and at most head_dim, layer_kinds has num_layers
// entries.
struct ModelConfig {
  std::string model_type;  // of the text part: "qwen3_5_text"
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // SwiGLU width
  std::int64_t num_layers = 0;
  std::vector<LayerKind> layer_kinds;
  double rms_norm_eps = 0;
  std::int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;  // true: the head is embed_tokens, lm_head.weight is absent

  // Full-attention layers.
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  bool attn_output_gate = true;  // true: q_proj is twice as wide, per head [query | gate]
  double rope_theta = 0;
  std::int64_t rotary_dim = 0;  // leading dims of a head that rotate: head_dim * partial factor

  // Linear (Gated DeltaNet) layers.
  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel = 0;  // taps, the current token included
  OutputGate output_gate = OutputGate::kSilu;

  // Tokens that end a text: those of config.json and of generation_config.json, ascending, each
  // once. May be empty. All are in [0, vocab_size).
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> bos_token_id;

  std::int64_t num_linear_layers() const;
  std::int64_t num_full_layers() const;
  std::int64_t linear_key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  std::int64_t linear_value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  // Channels of the joint convolution: q, k, v.
  std::int64_t conv_dim() const { return 2 * linear_key_dim() + linear_value_dim(); }
  bool is_eos(std::int32_t token) const;
};

// Reads DIR/config.json and, when it exists, DIR/generation_config.json. Throws Error as below.
ModelConfig load_model_config(const std::filesystem::path& folder);

// config_text is the content of config.json, generation_text that of generation_config.json or
// empty. Both layouts are read: flat (model_type qwen3_5_text) and nested (qwen3_5 with
// text_config). Throws Error for malformed JSON, missing keys, wrong types, values out of range or
// in conflict (layer_types against num_hidden_layers or full_attention_interval, the same key with
// two values), rotary types other than default, mixtures of experts, and architectures that this
// runtime does not have; the sentence says which it has.
ModelConfig parse_model_config(std::string_view config_text, std::string_view generation_text,
                               std::string_view label);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MODEL_CONFIG_H_
