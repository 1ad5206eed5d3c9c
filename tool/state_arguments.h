// SPDX-License-Identifier: Apache-2.0
//
// The options of every verb that says in which format recurrent states are kept. What they mean is
// runtime/state_options.h's business.
#ifndef LEAPQUANT_TOOL_STATE_ARGUMENTS_H_
#define LEAPQUANT_TOOL_STATE_ARGUMENTS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/state_options.h"

namespace leapquant::tool {

class StateArguments {
 public:
  // Adds --state, --policy, --window, --rank, --no-smoothing, --stagger. several: --state takes a
  // list. default_state must outlive the parse.
  void add_to(CLI::App& app, const std::string& default_state, bool several);

  // The formats, one per entry of --state. Throws UsageError for text that names no format (it
  // lists what is allowed) and for options that contradict each other. Of a default list only those
  // remain that the other options can apply to, each once.
  std::vector<runtime::StateFormat> resolve(std::int64_t num_v_heads,
                                            std::int64_t num_linear_layers) const;
  std::vector<runtime::StateFormat> resolve(const runtime::ModelConfig& config) const;
  runtime::StateFormat resolve_one(const runtime::ModelConfig& config) const;
  // The same with another default than the one of the help.
  runtime::StateFormat resolve_one(const runtime::ModelConfig& config,
                                   const std::string& default_state) const;
  const std::string& text() const { return state_; }

 private:
  std::vector<runtime::StateFormat> resolve(const std::string& states, std::int64_t num_v_heads,
                                            std::int64_t num_linear_layers) const;
  void refuse_unused_options(const std::vector<runtime::StateFormat>& formats) const;

  std::string state_;
  std::string policy_;
  std::int32_t window_ = 0;
  std::int32_t rank_ = 0;
  bool no_smoothing_ = false;
  bool stagger_ = false;
  const CLI::Option* state_option_ = nullptr;
  const CLI::Option* window_option_ = nullptr;
  const CLI::Option* rank_option_ = nullptr;
  const CLI::Option* stagger_option_ = nullptr;
};

// Entries of "fp32,int8:step,mix(int8+@0-1,int4+)": commas inside brackets do not part. Throws
// UsageError for empty entries.
std::vector<std::string> split_states(std::string_view text);

// Throws UsageError when two formats are the same: their rows could not be told apart.
void refuse_repeated_states(const std::vector<runtime::StateFormat>& formats);

// The formats that tables of sizes show: every preset as it is used by default.
std::vector<std::string> preset_names();

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_STATE_ARGUMENTS_H_
