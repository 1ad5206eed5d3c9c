// SPDX-License-Identifier: Apache-2.0
//
// Amounts of memory as people write and read them: "24GiB", "1.5 MiB". Exact numbers of bytes go to
// JSON.
#ifndef LEAPQUANT_TOOL_BYTE_SIZE_H_
#define LEAPQUANT_TOOL_BYTE_SIZE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace leapquant::tool {

// "24GiB", "24G", "512MiB", "80GB", "1000": B, KiB, MiB, GiB, TiB (also K, M, G, T alone) are
// powers of 1,024; KB, MB, GB, TB are powers of 1,000. Fractions are allowed. Throws UsageError
// that names the option.
std::int64_t parse_byte_size(std::string_view text, std::string_view option);
// Three digits or more and a binary unit: "512 B", "18.6 KiB", "14.2 MiB".
std::string show_byte_size(std::int64_t bytes);
// With commas between groups of three digits: "14,942,208".
std::string show_count(std::int64_t count);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_BYTE_SIZE_H_
