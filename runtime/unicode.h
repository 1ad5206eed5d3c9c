// SPDX-License-Identifier: Apache-2.0
//
// What the runtime needs to know of Unicode: whether bytes are UTF-8, where a stream of bytes may
// be cut, and normalisation form C (through utf8proc). Tokens are tokenizer.h's business.
#ifndef LEAPQUANT_RUNTIME_UNICODE_H_
#define LEAPQUANT_RUNTIME_UNICODE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace leapquant::runtime {

// Offset of the first byte that does not start or continue well-formed UTF-8 (overlong forms,
// surrogates, values above U+10FFFF and truncated sequences are ill-formed); nullopt when all is.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Throws Error that names `what` and the offset when the text is not UTF-8.
void require_utf8(std::string_view text, std::string_view what);

// Number of bytes (0..3) at the end that could be the beginning of one more character.
std::size_t incomplete_utf8_suffix(std::string_view bytes);

// The bytes with every maximal ill-formed part replaced by U+FFFD, for places that must hold text.
std::string replace_invalid_utf8(std::string_view bytes);

// Normalisation form C. The text must be UTF-8 (require_utf8 first), else Error.
std::string to_nfc(std::string_view text);

// Appends one code point (below 0x110000, no surrogate) as UTF-8.
void append_utf8(std::string& text, char32_t code_point);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_UNICODE_H_
