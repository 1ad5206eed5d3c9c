// SPDX-License-Identifier: Apache-2.0
//
// config.json of Qwen3.5 dense text models: both layouts, and everything that must be refused.
#include "runtime/model_config.h"

#include <nlohmann/json.hpp>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

using nlohmann::json;

json flat() {
  return json::parse(R"({
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 256,
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-06,
    "hidden_act": "silu", "attn_output_gate": true, "max_position_embeddings": 32768,
    "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0,
                        "partial_rotary_factor": 0.25}})");
}

json nested() {
  json text = flat();
  text.erase("architectures");
  return {{"model_type", "qwen3_5"},
          {"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"vision_config", {{"depth", 27}}},
          {"text_config", text}};
}

ModelConfig parse(const json& config, const std::string& generation = "") {
  return parse_model_config(config.dump(), generation, "m/config.json");
}

// The sentence for the flat configuration with one key changed; JSON null removes it.
void expect_refused(const std::string& key, const json& value, const char* part) {
  json config = flat();
  if (value.is_null()) {
    config.erase(key);
  } else {
    config[key] = value;
  }
  EXPECT_ERROR(parse(config), part) << key << " = " << value;
}

TEST(ModelConfig, ReadsTheFlatLayout) {
  const ModelConfig config = parse(flat());
  EXPECT_EQ(config.model_type, "qwen3_5_text");
  EXPECT_EQ(config.vocab_size, 256);
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.intermediate_size, 1024);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_EQ(config.num_linear_layers(), 3);
  EXPECT_EQ(config.num_full_layers(), 1);
  EXPECT_EQ(config.layer_kinds[3], LayerKind::kFullAttention);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.attn_output_gate);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_EQ(config.rotary_dim, 32);
  EXPECT_EQ(config.linear_num_key_heads, 2);
  EXPECT_EQ(config.linear_num_value_heads, 4);
  EXPECT_EQ(config.linear_key_dim(), 128);
  EXPECT_EQ(config.linear_value_dim(), 512);
  EXPECT_EQ(config.conv_dim(), 768);
  EXPECT_EQ(config.linear_conv_kernel, 4);
  EXPECT_EQ(config.output_gate, OutputGate::kSilu);
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int32_t>{0});
  EXPECT_TRUE(config.is_eos(0));
  EXPECT_FALSE(config.is_eos(1));
  EXPECT_EQ(config.bos_token_id, std::nullopt);
}

TEST(ModelConfig, ReadsTheNestedLayout) {
  json config = nested();
  EXPECT_EQ(parse(config).hidden_size, 384);
  config["text_config"].erase("tie_word_embeddings");
  EXPECT_FALSE(parse(config).tie_word_embeddings);
  config["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(config).tie_word_embeddings);
  config["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(config).tie_word_embeddings);
  config["tie_word_embeddings"] = false;
  EXPECT_ERROR(parse(config), "\"text_config.tie_word_embeddings\" contradicts");
  config = nested();
  config["text_config"].erase("model_type");
  EXPECT_EQ(parse(config).model_type, "qwen3_5_text");
}

TEST(ModelConfig, TakesLayersFromEitherKey) {
  json config = flat();
  config.erase("layer_types");
  EXPECT_EQ(parse(config).layer_kinds, parse(flat()).layer_kinds);
  config = flat();
  config.erase("full_attention_interval");
  config["layer_types"] = {"full_attention", "linear_attention", "full_attention",
                           "full_attention"};
  EXPECT_EQ(parse(config).num_full_layers(), 3);
  config.erase("layer_types");
  EXPECT_ERROR(parse(config), "\"layer_types\" is missing, and so is full_attention_interval");
}

TEST(ModelConfig, RefusesLayersInConflict) {
  json config = flat();
  config["num_hidden_layers"] = 5;
  EXPECT_ERROR(parse(config), "has 4 entries, but num_hidden_layers is 5");
  expect_refused("full_attention_interval", 2,
                 "\"layer_types\" contradicts full_attention_interval");
  expect_refused("layer_types", {"linear_attention", "full_attention", 7, "x"}, "found number");
  expect_refused("layer_types", {"a", "b", "sliding_attention", "x"}, "found \"a\"");
  expect_refused("layer_types", "linear_attention", "must be an array");
}

TEST(ModelConfig, ReadsRotaryKeysOfOlderFiles) {
  json config = flat();
  config.erase("rope_parameters");
  EXPECT_ERROR(parse(config), "\"rope_parameters.rope_theta\" is missing");
  config["rope_theta"] = 1e6;
  EXPECT_ERROR(parse(config), "\"rope_parameters.partial_rotary_factor\" is missing");
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(parse(config).rope_theta, 1e6);
  EXPECT_EQ(parse(config).rotary_dim, 64);
  config["rope_scaling"] = {{"type", "mrope"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(config).rope_theta, 1e6);
  config["rope_scaling"]["rope_theta"] = 1e5;
  EXPECT_ERROR(parse(config), "but another place says 100000.0");
}

TEST(ModelConfig, RefusesRotaryKindsItDoesNotHave) {
  json config = flat();
  config["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_ERROR(parse(config), "must be \"default\", found \"yarn\"");
  config = flat();
  config["rope_parameters"]["partial_rotary_factor"] = 0.3;  // 38.4 dims
  EXPECT_ERROR(parse(config), "must be an even number");
  config["rope_parameters"]["partial_rotary_factor"] = 0.0234375;  // 3 dims
  EXPECT_ERROR(parse(config), "must be an even number");
  config["rope_parameters"]["partial_rotary_factor"] = 1.5;
  EXPECT_ERROR(parse(config), "must be from 0.001 to 1.0, found 1.5");
  config["rope_parameters"]["partial_rotary_factor"] = "0.25";
  EXPECT_ERROR(parse(config), "must be a number, found string");
}

TEST(ModelConfig, ReadsTheOutputGate) {
  json config = flat();
  config["output_gate_type"] = "swish";
  EXPECT_EQ(parse(config).output_gate, OutputGate::kSilu);
  config["output_gate_type"] = "sigmoid";
  EXPECT_EQ(parse(config).output_gate, OutputGate::kSigmoid);
  expect_refused("output_gate_type", "tanh", "found \"tanh\"");
}

TEST(ModelConfig, CollectsEndTokens) {
  json config = flat();
  config["eos_token_id"] = {7, 3};
  config["bos_token_id"] = 9;
  const ModelConfig parsed = parse(config, R"({"eos_token_id": [3, 5]})");
  EXPECT_EQ(parsed.eos_token_ids, (std::vector<std::int32_t>{3, 5, 7}));
  EXPECT_EQ(parsed.bos_token_id, 9);
  config.erase("eos_token_id");
  EXPECT_TRUE(parse(config).eos_token_ids.empty());
  EXPECT_ERROR(parse(config, R"({"eos_token_id": 256})"), "m/generation_config.json: key");
  EXPECT_ERROR(parse(config, "{"), "m/generation_config.json: the JSON is malformed");
  EXPECT_ERROR(parse(config, "[]"), "must be a JSON object");
  expect_refused("eos_token_id", -1, "from 0 to 255, found -1");
  expect_refused("eos_token_id", {0, "x"}, "must be an integer, found string");
}

TEST(ModelConfig, NamesArchitecturesItDoesNotHave) {
  const char* supported = "supported are Qwen3.5 dense text models";
  expect_refused("model_type", "llama", "the architecture \"llama\" is unknown");
  expect_refused("model_type", "llama", supported);
  expect_refused("model_type", "qwen3_5", "is unknown");  // without text_config
  expect_refused("model_type", 7, "must be a string");
  expect_refused("model_type", nullptr, "\"model_type\" is missing");
  expect_refused("model_type", "qwen3_5_moe_text",
                 "mixture of experts, which this runtime does not");
  expect_refused("num_experts", 8, "mixture of experts");
  expect_refused("attention_bias", true, "no biases");
  expect_refused("hidden_act", "gelu", "must be \"silu\", found \"gelu\"");
  expect_refused("quantization_config", json::object(), "quantised weights");
  json config = nested();
  config["model_type"] = "qwen3_5_moe";
  EXPECT_ERROR(parse(config), "mixture of experts");
  config = nested();
  config["text_config"]["model_type"] = "qwen3_next";
  EXPECT_ERROR(parse(config), "\"qwen3_5 / qwen3_next\" is unknown");
  config["text_config"] = 3;
  EXPECT_ERROR(parse(config), "\"text_config\" must be a JSON object");
}

TEST(ModelConfig, EverySizeIsNeededAndBounded) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "max_position_embeddings"}) {
    const std::string name = std::string("\"") + key + "\"";
    expect_refused(key, nullptr, (name + " is missing").c_str());
    expect_refused(key, 0, (name + " must be an integer from").c_str());
    expect_refused(key, -4, (name + " must be an integer from").c_str());
    expect_refused(key, 4.5, (name + " must be an integer from").c_str());
    expect_refused(key, "4", (name + " must be an integer, found string").c_str());
    expect_refused(key, std::uint64_t{1} << 63, (name + " must be an integer from").c_str());
    expect_refused(key, json::array(), (name + " must be an integer, found array").c_str());
  }
  expect_refused("rms_norm_eps", nullptr, "\"rms_norm_eps\" is missing");
  expect_refused("rms_norm_eps", -1e-6, "must be from");
}

TEST(ModelConfig, HeadsMustDivide) {
  expect_refused("num_key_value_heads", 3, "no multiple of num_key_value_heads 3");
  expect_refused("linear_num_value_heads", 5, "no multiple of linear_num_key_heads 2");
}

TEST(ModelConfig, RefusesBrokenFiles) {
  EXPECT_ERROR(parse_model_config("", "", "c"), "c: the JSON is malformed");
  EXPECT_ERROR(parse_model_config("[]", "", "c"), "the file must be a JSON object");
  EXPECT_ERROR(parse_model_config(R"({"model_type":"a","model_type":"b"})", "", "c"), "twice");
  const TemporaryFolder folder;
  EXPECT_ERROR(load_model_config(folder.path() / "none"), "There is no model folder");
  EXPECT_ERROR(load_model_config(folder.path()), "config.json");
}

TEST(ModelConfig, LoadsTheReferenceModel) {
  const ModelConfig config =
      load_model_config(std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m");
  EXPECT_EQ(config.num_layers, 8);
  EXPECT_EQ(config.num_linear_layers(), 6);
  EXPECT_EQ(config.rotary_dim, 32);
  EXPECT_EQ(config.conv_dim(), 1024);
  EXPECT_TRUE(config.is_eos(0));
}

}  // namespace
}  // namespace leapquant::runtime
