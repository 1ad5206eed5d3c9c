// SPDX-License-Identifier: Apache-2.0
//
// What every verb is: a subcommand with its options and what it does after they are parsed. Each
// verb lives in a file of its own in verbs/ and is added here by name.
#ifndef LEAPQUANT_TOOL_VERB_H_
#define LEAPQUANT_TOOL_VERB_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace leapquant::tool {

// Wrong usage that the option parser cannot see, such as options that exclude each other: exit
// code 2.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(const std::string& sentence) : std::runtime_error(sentence) {}
};

// The work of each subcommand; throws runtime::Error (exit code 1) or UsageError (2).
using Verbs = std::map<const CLI::App*, std::function<void()>>;

void add_bench(CLI::App& app, Verbs& verbs);
void add_drift(CLI::App& app, Verbs& verbs);
void add_eval(CLI::App& app, Verbs& verbs);
void add_generate(CLI::App& app, Verbs& verbs);
void add_inspect(CLI::App& app, Verbs& verbs);
void add_plan(CLI::App& app, Verbs& verbs);
void add_record(CLI::App& app, Verbs& verbs);
void add_run(CLI::App& app, Verbs& verbs);
void add_state(CLI::App& app, Verbs& verbs);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_VERB_H_
