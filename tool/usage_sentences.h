// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a call that the option parser refused, in sentences as the other ones are: the
// parser's own name neither the word at fault nor what belongs there.
#ifndef LEAPQUANT_TOOL_USAGE_SENTENCES_H_
#define LEAPQUANT_TOOL_USAGE_SENTENCES_H_

#include <CLI/CLI.hpp>
#include <string>

namespace leapquant::tool {

// The verb that was chosen, or the application where none was.
const CLI::App& deepest(const CLI::App& app);

// "see 'leapquant bench model --help'."
std::string help_hint(const CLI::App& app);

// What the error says of this call; without an end, which is the hint's.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_USAGE_SENTENCES_H_
