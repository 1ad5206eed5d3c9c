// SPDX-License-Identifier: Apache-2.0
//
// Standard output of the tool: text and JSON lines, with every failure to write noticed. Notes for
// the person at the terminal go to standard error and never mix with results.
#ifndef LEAPQUANT_TOOL_CONSOLE_H_
#define LEAPQUANT_TOOL_CONSOLE_H_

#include <nlohmann/json.hpp>
#include <string_view>

namespace leapquant::tool {

// Writes to standard output. Throws runtime::Error when it is closed or full.
void print(std::string_view text);
// One JSON value on one line. Text that is not UTF-8 has been replaced by the caller.
void print_json(const nlohmann::ordered_json& value);
// Hands everything to the system; throws when it does not take it. main calls it at the end.
void flush_output();

// A line on standard error.
void note(std::string_view line);
// "leapquant: SENTENCE" on standard error, one line whatever names and words it repeats.
void complain(std::string_view sentence);

bool output_is_terminal();

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_CONSOLE_H_
