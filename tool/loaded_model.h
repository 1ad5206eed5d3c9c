// SPDX-License-Identifier: Apache-2.0
//
// A model, its tokenizer and threads to run it: what every verb that computes begins with.
#ifndef LEAPQUANT_TOOL_LOADED_MODEL_H_
#define LEAPQUANT_TOOL_LOADED_MODEL_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/model.h"
#include "runtime/threads.h"
#include "runtime/tokenizer.h"

namespace leapquant::tool {

struct LoadedModel {
  // Throws runtime::Error for a folder that holds no model that this program runs.
  LoadedModel(const std::filesystem::path& folder, std::int32_t num_threads);

  runtime::Model model;
  runtime::Tokenizer tokenizer;
  runtime::Threads threads;
};

// The first token that ends a text. Throws runtime::Error when the model has none.
runtime::TokenId end_token(const runtime::Model& model);

// Adds --model (required) and --threads.
void add_model_options(CLI::App& app, std::string& model, std::int32_t& threads);
void add_threads_option(CLI::App& app, std::int32_t& threads);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_LOADED_MODEL_H_
