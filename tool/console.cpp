// SPDX-License-Identifier: Apache-2.0
//
// See console.h.
#include "tool/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "runtime/error.h"

namespace leapquant::tool {
namespace {

[[noreturn]] void fail(int saved_errno) {
  throw runtime::Error("Cannot write to standard output" + runtime::reason_of_errno(saved_errno) +
                       "; what is there is not complete.");
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail(errno);
}

// Names of files may be any bytes; JSON is UTF-8.
void print_json(const nlohmann::ordered_json& value) {
  print(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail(errno);
}

void note(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
}

void complain(std::string_view sentence) {
  std::fputs("leapquant: ", stderr);
  note(runtime::printable(sentence));
}

bool output_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

}  // namespace leapquant::tool
