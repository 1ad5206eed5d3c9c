// SPDX-License-Identifier: Apache-2.0
//
// See prompt_file.h.
#include "tool/prompt_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <string_view>

#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/strict_json.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

}  // namespace

std::vector<NamedPrompt> read_prompt_file(const std::string& path) {
  const std::string text = runtime::read_text_file(path, kMaxFileBytes);
  std::vector<NamedPrompt> prompts;
  std::map<std::string, std::size_t> line_of;  // by id, which alone tells the answers apart
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string label = path + " line " + std::to_string(number);
    const nlohmann::json value = runtime::parse_strict_json(line, label);
    const runtime::JsonObject object(value, label);
    NamedPrompt& prompt = prompts.emplace_back();
    prompt.text = object.string("prompt");
    prompt.id = object.contains("id") ? object.string("id") : std::to_string(number);
    const auto [first, is_new] = line_of.emplace(prompt.id, number);
    if (!is_new) {
      throw runtime::Error(label + " has the id " + runtime::in_quotes(prompt.id) + " of line " +
                           std::to_string(first->second) +
                           "; give every prompt its own. A line without one has its number.");
    }
    prompt.name = "The prompt in " + label;
    if (object.contains("max_tokens")) {
      prompt.max_tokens = object.integer("max_tokens", 0, kMaxTokens);
    }
  }
  if (prompts.empty()) {
    throw runtime::Error("The file " + runtime::in_quotes(path, 400) + " holds no prompts.");
  }
  return prompts;
}

std::string read_standard_input() {
  if (::isatty(STDIN_FILENO) == 1) {
    throw UsageError("There is no prompt: give --prompt, --prompts or text on standard input.");
  }
  std::string text;
  std::array<char, 65536> buffer;
  std::size_t count = 0;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), stdin)) > 0) {
    text.append(buffer.data(), count);
    if (text.size() > kMaxFileBytes) {
      throw runtime::Error("Standard input holds more than 1 GiB, which is no prompt.");
    }
  }
  if (std::ferror(stdin) != 0) {
    throw runtime::Error("Cannot read standard input" + runtime::reason_of_errno(errno) + ".");
  }
  return text;
}

}  // namespace leapquant::tool
