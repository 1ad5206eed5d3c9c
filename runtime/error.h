// SPDX-License-Identifier: Apache-2.0
//
// The one exception of everything outside the library: runtime, lab and tool. It carries a sentence
// for a person: what is wrong, where, and what to do. It is no part of the library, which reports
// through status codes and never throws.
#ifndef LEAPQUANT_RUNTIME_ERROR_H_
#define LEAPQUANT_RUNTIME_ERROR_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace leapquant::runtime {

// Thrown for everything that a user can cause: bad files, bad options, full disks. The tool prints
// what() and leaves with exit code 1.
class Error : public std::runtime_error {
 public:
  // sentence: one full sentence that ends in a full stop. Text from a file goes through
  // in_quotes().
  explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

// Text of unknown origin that cannot steer a terminal: control characters, line breaks among them,
// and bytes that are not valid UTF-8 as \xHH.
std::string printable(std::string_view text);
// The same made fit for a sentence: in double quotes, and cut after max_bytes bytes (at a
// character) with "..." so that a hostile file cannot fill the terminal either.
std::string in_quotes(std::string_view text, std::size_t max_bytes = 80);

// " (reason of errno)" for the current value of a saved errno; never empty.
std::string reason_of_errno(int saved_errno);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_ERROR_H_
