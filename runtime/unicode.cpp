// SPDX-License-Identifier: Apache-2.0
//
// See unicode.h. The table of well-formed byte sequences is table 3-7 of the Unicode standard.
#include "runtime/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

struct Scan {
  std::size_t
      length;      // bytes of the sequence, or of its longest well-formed beginning (at least 1)
  bool complete;   // a whole character
  bool truncated;  // the text ends inside a beginning that is well-formed so far
};

Scan scan_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  std::size_t length = 0;
  std::uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // nothing above U+10FFFF
  } else {
    return {1, false, false};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<std::uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Scan scan = scan_character(text.substr(at));
    if (!scan.complete) return at;
    at += scan.length;
  }
  return std::nullopt;
}

void require_utf8(std::string_view text, std::string_view what) {
  if (const auto at = find_invalid_utf8(text)) {
    throw Error(std::string(what) + " is not valid UTF-8 at byte " + std::to_string(*at) +
                "; convert it to UTF-8 first.");
  }
}

std::size_t incomplete_utf8_suffix(std::string_view bytes) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, bytes.size()); ++length) {
    const Scan scan = scan_character(bytes.substr(bytes.size() - length));
    if (scan.truncated && scan.length == length) return length;
    if ((static_cast<std::uint8_t>(bytes[bytes.size() - length]) & 0xC0) != 0x80) return 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Scan scan = scan_character(bytes);
    if (scan.complete) {
      text += bytes.substr(0, scan.length);
    } else {
      text += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(scan.length);
  }
  return text;
}

std::string to_nfc(std::string_view text) {
  // ASCII is its own normal form, and so is the common case.
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<std::uint8_t>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) {
    throw Error(std::string("The text cannot be brought into Unicode normal form C: ") +
                utf8proc_errmsg(length) + ".");
  }
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
}

void append_utf8(std::string& text, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

}  // namespace leapquant::runtime
