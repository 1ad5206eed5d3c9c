// SPDX-License-Identifier: Apache-2.0
//
// See loaded_model.h.
#include "tool/loaded_model.h"

#include "runtime/error.h"
#include "tool/option_checks.h"

namespace leapquant::tool {

LoadedModel::LoadedModel(const std::filesystem::path& folder, std::int32_t num_threads)
    : model(runtime::Model::load(folder)),
      tokenizer(runtime::Tokenizer::load(folder)),
      threads(num_threads) {
  tokenizer.require_vocab_size(model.config().vocab_size);
}

runtime::TokenId end_token(const runtime::Model& model) {
  const auto& tokens = model.config().eos_token_ids;
  if (tokens.empty()) throw runtime::Error("The model names no token that ends a text.");
  return tokens.front();
}

void add_model_options(CLI::App& app, std::string& model, std::int32_t& threads) {
  app.add_option("--model", model, "folder of a checkpoint in the Hugging Face layout")->required();
  add_threads_option(app, threads);
}

void add_threads_option(CLI::App& app, std::int32_t& threads) {
  app.add_option("--threads", threads, "threads; 0: all cores")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
}

}  // namespace leapquant::tool
