// SPDX-License-Identifier: Apache-2.0
//
// What values of options must be, told in one short sentence each. The option parser alone wraps
// negative numbers, reads 010 as eight, takes nan and turns empty text into zero.
#ifndef LEAPQUANT_TOOL_OPTION_CHECKS_H_
#define LEAPQUANT_TOOL_OPTION_CHECKS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace leapquant::tool {

// A decimal whole number from least to most, both included.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);

// Most tokens, prompts or bytes that an option may count: far above every machine and far below
// where sums of them overflow.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 40;

enum class Least { kIncluded, kExcluded };

// A finite number from least (or above it) to most, which is included.
CLI::Validator number(double least, Least bound, double most);

// One of these words.
CLI::Validator one_of(const std::vector<std::string>& words);

// Throws UsageError, "--name <why>.", for the first of these options of a verb that was given: what
// would be left aside is refused.
void refuse_options(const CLI::App& verb, const std::vector<std::string>& names,
                    const std::string& why);

// Throws UsageError when an option names the same file or folder twice, under whatever names: it
// would count twice.
void refuse_repeated_files(const std::string& option, const std::vector<std::string>& paths);
// The same for a number, whose rows would be measured twice.
void refuse_repeated_numbers(const std::string& option, const std::vector<std::int32_t>& numbers);

// Throws CLI::ValidationError for an option that was given empty text, in the application and the
// verbs that were chosen. Empty text is a value of its own for options of plain text only: --prompt
// and --system.
void refuse_empty_values(const CLI::App& app);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_OPTION_CHECKS_H_
