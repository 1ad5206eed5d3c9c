// SPDX-License-Identifier: Apache-2.0
//
// See model_config.h. Key names and their defaults are those of the Qwen3.5 configuration of
// Hugging Face Transformers.
#include "runtime/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/strict_json.h"

namespace leapquant::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxConfigBytes = 4'000'000;
constexpr std::string_view kSupported =
    "supported are Qwen3.5 dense text models (model_type qwen3_5_text, or qwen3_5 with "
    "text_config)";

// Upper limits far above every published model; they keep products of sizes within 64 bits.
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;

// The object that holds the text model's keys, after deciding that this runtime has its kind.
JsonObject text_object(const json& root, const JsonObject& top, const std::string& label) {
  const std::string model_type = top.string("model_type");
  const bool nested = root.contains("text_config");
  const std::string text_type = nested ? top.object("text_config").contains("model_type")
                                             ? top.object("text_config").string("model_type")
                                             : std::string("qwen3_5_text")
                                       : model_type;
  if (model_type.find("moe") != std::string::npos || text_type.find("moe") != std::string::npos) {
    throw Error(label + ": the model type " + in_quotes(model_type) +
                " is a mixture of experts, which this runtime does not support yet; " +
                std::string(kSupported) + ".");
  }
  const bool known = nested ? model_type == "qwen3_5" && text_type == "qwen3_5_text"
                            : model_type == "qwen3_5_text";
  if (!known) {
    throw Error(label + ": the architecture " +
                in_quotes(nested ? model_type + " / " + text_type : model_type) +
                " is unknown to this runtime; " + std::string(kSupported) + ".");
  }
  return nested ? top.object("text_config") : top;
}

void refuse_unsupported(const JsonObject& top, const JsonObject& text) {
  for (const JsonObject* object : {&top, &text}) {
    if (object->contains("quantization_config")) {
      throw Error(object->where("quantization_config") +
                  " marks quantised weights; this runtime reads BF16, F16 and F32 weights.");
    }
  }
  if (text.contains("num_experts") && text.integer("num_experts", 0, kMaxWidth) > 0) {
    throw Error(text.where("num_experts") +
                " marks a mixture of experts, which this runtime does not support yet; " +
                std::string(kSupported) + ".");
  }
  if (text.contains("attention_bias") && text.boolean("attention_bias")) {
    throw Error(text.where("attention_bias") +
                " is true; this runtime has no biases in attention.");
  }
  if (text.contains("hidden_act") && text.string("hidden_act") != "silu") {
    throw Error(text.where("hidden_act") + " must be \"silu\", found " +
                in_quotes(text.string("hidden_act")) + ".");
  }
}

LayerKind layer_kind(const json& value, const std::string& where) {
  if (value == "linear_attention") return LayerKind::kLinearAttention;
  if (value == "full_attention") return LayerKind::kFullAttention;
  throw Error(where + " may hold \"linear_attention\" and \"full_attention\", found " +
              (value.is_string() ? in_quotes(value.get<std::string>()) : value.type_name()) + ".");
}

std::vector<LayerKind> parse_layers(const JsonObject& text, std::int64_t num_layers) {
  std::vector<LayerKind> by_interval;
  if (text.contains("full_attention_interval")) {
    const std::int64_t interval = text.integer("full_attention_interval", 1, kMaxLayers);
    for (std::int64_t i = 0; i < num_layers; ++i) {
      by_interval.push_back((i + 1) % interval == 0 ? LayerKind::kFullAttention
                                                    : LayerKind::kLinearAttention);
    }
  }
  if (!text.contains("layer_types")) {
    if (by_interval.empty()) {
      throw Error(text.where("layer_types") +
                  " is missing, and so is full_attention_interval; one of them is needed.");
    }
    return by_interval;
  }
  std::vector<LayerKind> layers;
  const json& types = text.array("layer_types");
  if (static_cast<std::int64_t>(types.size()) != num_layers) {
    throw Error(text.where("layer_types") + " has " + std::to_string(types.size()) +
                " entries, but num_hidden_layers is " + std::to_string(num_layers) + ".");
  }
  for (const json& type : types) layers.push_back(layer_kind(type, text.where("layer_types")));
  if (!by_interval.empty() && layers != by_interval) {
    throw Error(text.where("layer_types") + " contradicts full_attention_interval.");
  }
  return layers;
}

// A number that older files keep beside rope_parameters; stating it twice with two values is an
// error.
double rope_number(const JsonObject& text, std::string_view key, double low, double high) {
  std::optional<double> value;
  for (const std::string_view holder : {"rope_parameters", "rope_scaling", ""}) {
    if (!holder.empty() && !text.contains(holder)) continue;
    const JsonObject object = holder.empty() ? text : text.object(holder);
    if (!object.contains(key)) continue;
    const double found = object.number(key, low, high);
    if (value && *value != found) {
      throw Error(object.where(key) + " is " + json(found).dump() + ", but another place says " +
                  json(*value).dump() + ".");
    }
    value = found;
  }
  if (!value) {
    throw Error(text.where("rope_parameters." + std::string(key)) + " is missing.");
  }
  return *value;
}

void parse_rope(const JsonObject& text, ModelConfig& config) {
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    if (!text.contains(holder)) continue;
    const JsonObject rope = text.object(holder);
    for (const std::string_view key : {"rope_type", "type"}) {
      // "mrope" is the older word for positions in three rows, which are equal for text.
      if (rope.contains(key) && rope.string(key) != "default" && rope.string(key) != "mrope") {
        throw Error(rope.where(key) + " must be \"default\", found " + in_quotes(rope.string(key)) +
                    "; scaled rotary positions are not supported.");
      }
    }
  }
  config.rope_theta = rope_number(text, "rope_theta", 1, 1e12);
  const double factor = rope_number(text, "partial_rotary_factor", 1e-3, 1);
  const double dims = factor * static_cast<double>(config.head_dim);
  config.rotary_dim = static_cast<std::int64_t>(std::floor(dims + 1e-9));
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 ||
      std::abs(dims - static_cast<double>(config.rotary_dim)) > 1e-6) {
    throw Error(text.where("partial_rotary_factor") + " times head_dim must be an even number of " +
                "at least 2, found " + json(dims).dump() + ".");
  }
}

OutputGate parse_output_gate(const JsonObject& text) {
  if (!text.contains("output_gate_type")) return OutputGate::kSilu;
  const std::string name = text.string("output_gate_type");
  if (name == "silu" || name == "swish") return OutputGate::kSilu;
  if (name == "sigmoid") return OutputGate::kSigmoid;
  throw Error(text.where("output_gate_type") +
              " must be \"silu\", \"swish\" or \"sigmoid\", found " + in_quotes(name) + ".");
}

// Nested files may state this key at the top, in text_config, or in both.
bool parse_tie(const JsonObject& top, const JsonObject& text) {
  constexpr std::string_view kKey = "tie_word_embeddings";
  if (top.contains(kKey) && text.contains(kKey) && top.boolean(kKey) != text.boolean(kKey)) {
    throw Error(text.where(kKey) + " contradicts the key of that name at the top.");
  }
  if (text.contains(kKey)) return text.boolean(kKey);
  return top.contains(kKey) && top.boolean(kKey);
}

void add_eos(const JsonObject& object, std::int64_t vocab_size, std::set<std::int32_t>& ids) {
  constexpr std::string_view kKey = "eos_token_id";
  const json* value = object.find(kKey);
  if (value == nullptr) return;
  const auto add = [&](const json& id) {
    ids.insert(static_cast<std::int32_t>(json_integer(id, object.where(kKey), 0, vocab_size - 1)));
  };
  if (value->is_array()) {
    for (const json& id : *value) add(id);
  } else {
    add(*value);
  }
}

void check_consistency(const ModelConfig& config, const JsonObject& text) {
  const auto multiple = [&](std::int64_t many, std::string_view many_key, std::int64_t few,
                            std::string_view few_key) {
    if (many % few == 0) return;
    throw Error(text.where(many_key) + " is " + std::to_string(many) +
                ", which is no multiple of " + std::string(few_key) + " " + std::to_string(few) +
                ".");
  };
  multiple(config.num_attention_heads, "num_attention_heads", config.num_key_value_heads,
           "num_key_value_heads");
  multiple(config.linear_num_value_heads, "linear_num_value_heads", config.linear_num_key_heads,
           "linear_num_key_heads");
}

}  // namespace

std::int64_t ModelConfig::num_linear_layers() const {
  return std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::kLinearAttention);
}

std::int64_t ModelConfig::num_full_layers() const { return num_layers - num_linear_layers(); }

bool ModelConfig::is_eos(std::int32_t token) const {
  return std::binary_search(eos_token_ids.begin(), eos_token_ids.end(), token);
}

ModelConfig load_model_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error("There is no model folder " + in_quotes(folder.string(), 400) + ".");
  }
  const auto generation = folder / "generation_config.json";
  const std::string generation_text = std::filesystem::exists(generation, ignored)
                                          ? read_text_file(generation, kMaxConfigBytes)
                                          : std::string();
  const auto path = folder / "config.json";
  return parse_model_config(read_text_file(path, kMaxConfigBytes), generation_text, path.string());
}

ModelConfig parse_model_config(std::string_view config_text, std::string_view generation_text,
                               std::string_view label_view) {
  const std::string label(label_view);
  const json root = parse_strict_json(config_text, label);
  const JsonObject top(root, label);
  const JsonObject text = text_object(root, top, label);
  refuse_unsupported(top, text);

  ModelConfig config;
  config.model_type = "qwen3_5_text";
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = text.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = text.integer("intermediate_size", 1, kMaxWidth);
  config.num_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.layer_kinds = parse_layers(text, config.num_layers);
  config.rms_norm_eps = text.number("rms_norm_eps", 0, 1);
  config.max_position_embeddings = text.integer("max_position_embeddings", 1, kMaxPositions);
  config.tie_word_embeddings = parse_tie(top, text);
  config.num_attention_heads = text.integer("num_attention_heads", 1, kMaxHeads);
  config.num_key_value_heads = text.integer("num_key_value_heads", 1, kMaxHeads);
  config.head_dim = text.integer("head_dim", 2, kMaxHeadDim);
  config.attn_output_gate =
      text.contains("attn_output_gate") ? text.boolean("attn_output_gate") : true;
  parse_rope(text, config);
  config.linear_num_key_heads = text.integer("linear_num_key_heads", 1, kMaxHeads);
  config.linear_num_value_heads = text.integer("linear_num_value_heads", 1, kMaxHeads);
  config.linear_key_head_dim = text.integer("linear_key_head_dim", 1, kMaxHeadDim);
  config.linear_value_head_dim = text.integer("linear_value_head_dim", 1, kMaxHeadDim);
  config.linear_conv_kernel = text.integer("linear_conv_kernel_dim", 2, 16);
  config.output_gate = parse_output_gate(text);
  check_consistency(config, text);

  std::set<std::int32_t> eos;
  add_eos(text, config.vocab_size, eos);
  add_eos(top, config.vocab_size, eos);
  if (text.contains("bos_token_id")) {
    config.bos_token_id =
        static_cast<std::int32_t>(text.integer("bos_token_id", 0, config.vocab_size - 1));
  }
  if (!generation_text.empty()) {
    const std::string generation_label =
        (std::filesystem::path(label).parent_path() / "generation_config.json").string();
    const json generation = parse_strict_json(generation_text, generation_label);
    add_eos(JsonObject(generation, generation_label), config.vocab_size, eos);
  }
  config.eos_token_ids.assign(eos.begin(), eos.end());
  return config;
}

}  // namespace leapquant::runtime
