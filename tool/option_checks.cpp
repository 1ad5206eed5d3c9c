// SPDX-License-Identifier: Apache-2.0
//
// See option_checks.h.
#include "tool/option_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "runtime/error.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

template <typename Number>
bool parse_all(const std::string& text, Number& value) {
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last && !text.empty();
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  return CLI::Validator(
      [least, most, range](std::string& text) {
        std::int64_t value = 0;
        // The parser that comes next would take a leading zero for octal.
        const bool plain = parse_all(text, value) && std::to_string(value) == text;
        if (!plain || value < least || value > most) {
          return fmt::format("must be a whole number {}, found '{}'", range, text);
        }
        return std::string();
      },
      range);
}

CLI::Validator number(double least, Least bound, double most) {
  const std::string range = bound == Least::kIncluded
                                ? fmt::format("from {} to {}", least, most)
                                : fmt::format("above {} and at most {}", least, most);
  return CLI::Validator(
      [least, bound, most, range](std::string& text) {
        double value = 0;
        const bool inside = parse_all(text, value) && value <= most &&
                            (bound == Least::kIncluded ? value >= least : value > least);
        return inside ? std::string() : fmt::format("must be a number {}, found '{}'", range, text);
      },
      range);
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("must be {}, found '{}'", fmt::join(words, " or "), text);
      },
      fmt::format("{}", fmt::join(words, "|")));
}

void refuse_options(const CLI::App& verb, const std::vector<std::string>& names,
                    const std::string& why) {
  for (const std::string& name : names) {
    if (verb.get_option(name)->count() > 0) throw UsageError(name + " " + why + ".");
  }
}

void refuse_repeated_files(const std::string& option, const std::vector<std::string>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      // Files that cannot be looked at are told about by those who read them.
      std::error_code error;
      if (std::filesystem::equivalent(paths[i], paths[j], error) && !error) {
        throw UsageError(option + " names " + runtime::in_quotes(paths[i], 400) + " twice.");
      }
    }
  }
}

void refuse_repeated_numbers(const std::string& option, const std::vector<std::int32_t>& numbers) {
  std::set<std::int32_t> seen;
  for (const std::int32_t number : numbers) {
    if (!seen.insert(number).second) {
      throw UsageError(fmt::format("{} names {} twice.", option, number));
    }
  }
}

void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--prompt" || name == "--system") continue;
    const auto& values = option->results();
    if (std::any_of(values.begin(), values.end(), [](const auto& text) { return text.empty(); })) {
      throw CLI::ValidationError(name, "must not be empty");
    }
  }
  for (const CLI::App* verb : app.get_subcommands()) refuse_empty_values(*verb);
}

}  // namespace leapquant::tool
