// SPDX-License-Identifier: Apache-2.0
//
// Loading of models: prefixes, types of weights, tied heads, missing and wrong tensors.
#include "runtime/model.h"

#include "runtime/batch.h"
#include "unit/runtime/tiny_model.h"

namespace leapquant::runtime {
namespace {

std::vector<float> logits_of(const Model& model) {
  const Threads threads(1);
  StateOptions options;
  options.state = "fp32";
  Batch batch(model, resolve_state(options, model.config()), threads);
  const std::vector<TokenId> tokens = random_tokens(20, 3);
  const SequenceId sequence = *batch.open(20);
  std::vector<float> logits(static_cast<std::size_t>(20 * kTinyVocab));
  batch.prefill_with_all_logits({sequence, tokens}, logits);
  return logits;
}

TEST(Model, TypesAndPrefixesOfTheSameWeightsGiveTheSameLogits) {
  const TinyModel bf16;
  const std::vector<float> expected = logits_of(bf16.load());
  for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    TinyOptions options;
    options.dtype = dtype;
    EXPECT_EQ(logits_of(TinyModel(options).load()), expected);
  }
  TinyOptions options;
  options.prefix = "model.language_model.";
  const TinyModel prefixed(options);
  EXPECT_EQ(logits_of(prefixed.load()), expected);
  EXPECT_EQ(prefixed.load().fingerprint(), bf16.load().fingerprint());
}

TEST(Model, FingerprintTellsModelsApart) {
  TinyOptions other;
  other.seed = 2;
  EXPECT_NE(TinyModel(other).load().fingerprint(), TinyModel().load().fingerprint());
}

TEST(Model, ATiedHeadIsTheEmbedding) {
  TinyOptions options;
  options.tied = true;
  const TinyModel tiny(options);
  const Model model = tiny.load();
  EXPECT_EQ(model.head().data(), model.embedding().table().data());
  for (const float logit : logits_of(model)) EXPECT_TRUE(std::isfinite(logit));
}

TEST(Model, WeightBytesOfAStepAreAllMatricesButTheEmbedding) {
  const Model model = TinyModel().load();
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    if (tensor.shape.size() == 2 && name != "model.embed_tokens.weight") {
      bytes += static_cast<std::int64_t>(tensor.bytes);
    }
  }
  EXPECT_EQ(model.weight_bytes_per_step(), bytes);
}

TEST(Model, MissingTensorsAreNamed) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.0.linear_attn.A_log", "model.layers.1.linear_attn.conv1d.weight",
        "model.layers.2.self_attn.q_norm.weight", "model.layers.2.mlp.down_proj.weight"}) {
    TinyOptions options;
    options.leave_out = name;
    const TinyModel tiny(options);
    EXPECT_ERROR(tiny.load(), name);
  }
}

TEST(Model, ANonFiniteVectorIsNamed) {
  TinyOptions options;
  options.broken = "A_log";
  const TinyModel tiny(options);
  EXPECT_ERROR(tiny.load(), "layers.1.linear_attn.A_log");
}

}  // namespace
}  // namespace leapquant::runtime
