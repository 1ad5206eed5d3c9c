// SPDX-License-Identifier: Apache-2.0
//
// Prompts from a JSONL file or from standard input. It reads text; tokens are the tokenizer's.
#ifndef LEAPQUANT_TOOL_PROMPT_FILE_H_
#define LEAPQUANT_TOOL_PROMPT_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace leapquant::tool {

struct NamedPrompt {
  std::string id = "1";
  std::string text;
  std::optional<std::int64_t> max_tokens;
  std::string name = "The prompt";  // how sentences call it: with file and line
};

// One object per line: "prompt" is required; "id" (default: the line's number) and "max_tokens" are
// optional, other keys are ignored. Throws runtime::Error with the line.
std::vector<NamedPrompt> read_prompt_file(const std::string& path);

// All of standard input. Throws UsageError when it is a terminal.
std::string read_standard_input();

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_PROMPT_FILE_H_
