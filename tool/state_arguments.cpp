// SPDX-License-Identifier: Apache-2.0
//
// See state_arguments.h.
#include "tool/state_arguments.h"

#include <algorithm>
#include <set>
#include <utility>

#include "leapquant/leapquant.h"
#include "runtime/error.h"
#include "tool/option_checks.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

bool has_compensators(const runtime::StateFormat& state) {
  for (const runtime::LayerFormat& layer : state.layers) {
    for (const leapquant_format& format : layer.formats) {
      if (format.num_fp16 + format.num_int8 + format.num_int4 > 0) return true;
    }
  }
  return false;
}

}  // namespace

void StateArguments::add_to(CLI::App& app, const std::string& default_state, bool several) {
  state_ = default_state;
  const char* list = several ? "formats, separated by commas: " : "format of the recurrent state: ";
  state_option_ =
      app.add_option(
             "--state", state_,
             std::string(list) +
                 "fp32, bf16, int8, int6, int4, int8+, int6+, int4+, int4-compact, a format "
                 "string such as int8:r=8:window=32 or int8:step, or a mix by head such as "
                 "mix(int8+@0-1,int4-compact)")
          ->capture_default_str();
  app.add_option("--policy", policy_,
                 "window: the state is rounded once per window; step: after every token, without "
                 "compensators and smoothing (default: fp32 and bf16 step, others window)")
      ->check(one_of({"window", "step"}));
  window_option_ =
      app.add_option("--window", window_, "tokens per window")->check(whole_number(1, 64));
  rank_option_ =
      app.add_option("--rank", rank_, "compensators, where they are FP16 (int8, int6, int4)")
          ->check(whole_number(0, 32));
  app.add_flag("--no-smoothing", no_smoothing_, "no smoothing factor per key row");
  stagger_option_ = app.add_flag("--stagger,!--no-stagger", stagger_,
                                 "spread the ends of the windows over the key heads");
}

std::vector<runtime::StateFormat> StateArguments::resolve(std::int64_t num_v_heads,
                                                          std::int64_t num_linear_layers) const {
  return resolve(state_, num_v_heads, num_linear_layers);
}

std::vector<runtime::StateFormat> StateArguments::resolve(const std::string& states,
                                                          std::int64_t num_v_heads,
                                                          std::int64_t num_linear_layers) const {
  const bool is_default = state_option_->count() == 0;
  const auto resolve_entry = [&](const runtime::StateOptions& options) {
    return runtime::resolve_state(options, static_cast<std::int32_t>(num_v_heads),
                                  static_cast<std::int32_t>(num_linear_layers));
  };
  std::vector<runtime::StateFormat> formats;
  bool smoothing_matters = false;
  bool rank_matters = false;
  std::string first_refusal;
  for (const std::string& entry : split_states(states)) {
    runtime::StateOptions options;
    options.state = entry;
    if (policy_ == "window") options.policy = runtime::StatePolicy::kWindow;
    if (policy_ == "step") options.policy = runtime::StatePolicy::kStep;
    if (window_option_->count() > 0) options.window = window_;
    if (stagger_option_->count() > 0) options.stagger = stagger_;
    options.smoothing = !no_smoothing_;
    try {
      // Plain formats of a given list are left as they are; the list that nobody gave loses them.
      if (rank_option_->count() > 0 && (is_default || has_compensators(resolve_entry(options)))) {
        options.rank = rank_;
        rank_matters = true;
      }
      runtime::StateFormat format = resolve_entry(options);
      const auto changes = [&](auto unset) {
        runtime::StateOptions without = options;
        unset(without);
        return resolve_entry(without).text != format.text;
      };
      const auto refuse_twice = [&](const char* option, const char* key, bool is_changed) {
        if (is_default || !is_changed || entry.find(key) == entry.npos) return;
        throw UsageError(std::string(option) + " contradicts the format " +
                         runtime::in_quotes(entry) + ", which says that itself; give one of both.");
      };
      const bool steps =
          policy_ == "step" && changes([](auto& o) { o.policy = runtime::StatePolicy::kDefault; });
      for (const char* key :
           {":window=", ":stagger=", ":smooth=", ":r=", ":f16=", ":i8=", ":i4="}) {
        refuse_twice("--policy step", key, steps);
      }
      refuse_twice("--window", ":window=", changes([](auto& o) { o.window.reset(); }));
      refuse_twice("--rank", ":r=", changes([](auto& o) { o.rank.reset(); }));
      refuse_twice("--stagger", ":stagger=", changes([](auto& o) { o.stagger.reset(); }));
      const bool smooths = changes([](auto& o) { o.smoothing = true; });
      refuse_twice("--no-smoothing", ":smooth=", smooths);
      smoothing_matters = smoothing_matters || smooths;
      const bool is_there =
          std::any_of(formats.begin(), formats.end(),
                      [&](const runtime::StateFormat& other) { return other.text == format.text; });
      if (!is_default || !is_there) formats.push_back(std::move(format));
    } catch (const runtime::Error& error) {
      if (!is_default) throw UsageError(error.what());
      if (first_refusal.empty()) first_refusal = error.what();
    }
  }
  if (formats.empty()) throw UsageError(first_refusal);
  refuse_repeated_states(formats);
  refuse_unused_options(formats);
  if (rank_option_->count() > 0 && !rank_matters) {
    throw UsageError(
        "--rank has no meaning for formats that have no compensators, as fp32, bf16 and all at "
        "--policy step.");
  }
  if (no_smoothing_ && !smoothing_matters) {
    throw UsageError(
        "--no-smoothing has no meaning for formats that have no smoothing factors, as fp32, bf16 "
        "and all at --policy step.");
  }
  return formats;
}

void StateArguments::refuse_unused_options(const std::vector<runtime::StateFormat>& formats) const {
  if (!std::all_of(formats.begin(), formats.end(),
                   [](const runtime::StateFormat& format) { return format.per_step(); })) {
    return;
  }
  constexpr char kWhy[] =
      " has no meaning for a state that is kept per step, as fp32 and bf16 are where --policy does "
      "not say otherwise.";
  if (window_option_->count() > 0) throw UsageError(std::string("--window") + kWhy);
  if (stagger_) throw UsageError(std::string("--stagger") + kWhy);
}

std::vector<runtime::StateFormat> StateArguments::resolve(
    const runtime::ModelConfig& config) const {
  return resolve(config.linear_num_value_heads, config.num_linear_layers());
}

runtime::StateFormat StateArguments::resolve_one(const runtime::ModelConfig& config) const {
  return resolve_one(config, state_);
}

runtime::StateFormat StateArguments::resolve_one(const runtime::ModelConfig& config,
                                                 const std::string& default_state) const {
  const std::vector<runtime::StateFormat> formats =
      resolve(state_option_->count() > 0 ? state_ : default_state, config.linear_num_value_heads,
              config.num_linear_layers());
  if (formats.size() != 1) throw UsageError("--state must name one format here, not several.");
  return formats.front();
}

std::vector<std::string> split_states(std::string_view text) {
  std::vector<std::string> entries(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (c == ',' && depth == 0) {
      entries.emplace_back();
    } else {
      entries.back() += c;
    }
  }
  for (const std::string& entry : entries) {
    if (entry.empty()) throw UsageError("--state has an empty entry between its commas.");
  }
  return entries;
}

void refuse_repeated_states(const std::vector<runtime::StateFormat>& formats) {
  std::set<std::string> seen;
  for (const runtime::StateFormat& format : formats) {
    if (!seen.insert(format.text).second) {
      throw UsageError("--state names the format " + format.text + " twice.");
    }
  }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (std::int32_t i = 0; leapquant_preset_name(i) != nullptr; ++i) {
    names.emplace_back(leapquant_preset_name(i));
  }
  return names;
}

}  // namespace leapquant::tool
