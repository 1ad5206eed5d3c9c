// SPDX-License-Identifier: Apache-2.0
//
// See error.h.
#include "runtime/error.h"

#include <system_error>

#include "runtime/unicode.h"

namespace leapquant::runtime {

std::string printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto append_escaped = [&](std::string& out, char byte) {
    const auto value = static_cast<unsigned char>(byte);
    out += "\\x";
    out += kHex[value >> 4];
    out += kHex[value & 15];
  };
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = find_invalid_utf8(text).value_or(text.size());
    for (std::size_t i = 0; i < valid; ++i) {
      const auto value = static_cast<unsigned char>(text[i]);
      // C0, DEL, and C1 (C2 80..9F), which terminals obey as well.
      const bool c1 = value == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
      if (value < 0x20 || value == 0x7F) {
        append_escaped(out, text[i]);
      } else if (c1) {
        append_escaped(out, text[i]);
        append_escaped(out, text[++i]);
      } else {
        out += text[i];
      }
    }
    if (valid < text.size()) append_escaped(out, text[valid]);
    text.remove_prefix(valid < text.size() ? valid + 1 : valid);
  }
  return out;
}

std::string in_quotes(std::string_view text, std::size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) {
    text = text.substr(0, max_bytes);
    text.remove_suffix(incomplete_utf8_suffix(text));
  }
  return '"' + printable(text) + (cut ? "...\"" : "\"");
}

std::string reason_of_errno(int saved_errno) {
  return " (" + std::generic_category().message(saved_errno) + ")";
}

}  // namespace leapquant::runtime
