// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as config.json, as generation_config.json and as the index of a checkpoint: refused
// with an Error, or the invariants of the parsed values hold.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/checkpoint.h"
#include "runtime/error.h"
#include "runtime/model_config.h"

namespace {

using namespace leapquant::runtime;

constexpr std::string_view kConfig =
    R"({"model_type":"qwen3_5_text","vocab_size":256,"hidden_size":8,"intermediate_size":8,)"
    R"("num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":8,)"
    R"("linear_num_key_heads":1,"linear_num_value_heads":2,"linear_key_head_dim":4,)"
    R"("linear_value_head_dim":4,"linear_conv_kernel_dim":4,"rms_norm_eps":1e-6,)"
    R"("max_position_embeddings":64,"full_attention_interval":2,)"
    R"("rope_parameters":{"rope_theta":10000.0,"partial_rotary_factor":0.25}})";

void check(const ModelConfig& config) {
  const bool sound = config.vocab_size > 0 && config.hidden_size > 0 && config.num_layers > 0 &&
                     static_cast<std::int64_t>(config.layer_kinds.size()) == config.num_layers &&
                     config.num_attention_heads % config.num_key_value_heads == 0 &&
                     config.linear_num_value_heads % config.linear_num_key_heads == 0 &&
                     config.rotary_dim >= 2 && config.rotary_dim % 2 == 0 &&
                     config.rotary_dim <= config.head_dim && config.conv_dim() > 0;
  if (!sound) std::abort();
  for (const std::int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) std::abort();
  }
}

template <typename Call>
void attempt(const Call& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt([&] { check(parse_model_config(text, "", "fuzz")); });
  attempt([&] { check(parse_model_config(kConfig, text, "fuzz")); });
  attempt([&] {
    for (const auto& [shard, tensors] : parse_checkpoint_index(text, "fuzz")) {
      if (shard.find('/') != shard.npos || tensors.empty()) std::abort();
    }
  });
  return 0;
}
