// SPDX-License-Identifier: Apache-2.0
//
// See byte_size.h.
#include "tool/byte_size.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr double kLargest = 9e18;  // below 2^63

constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{
    {"", 1},
    {"B", 1},
    {"K", 1024.0},
    {"KiB", 1024.0},
    {"M", 1048576.0},
    {"MiB", 1048576.0},
    {"G", 1073741824.0},
    {"GiB", 1073741824.0},
    {"T", 1099511627776.0},
    {"TiB", 1099511627776.0},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
}};

}  // namespace

std::int64_t parse_byte_size(std::string_view text, std::string_view option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error == std::errc() && std::isfinite(number) && number >= 0) {
    for (const auto& [name, factor] : kUnits) {
      if (unit != name) continue;
      if (number * factor < kLargest) {
        return static_cast<std::int64_t>(std::llround(number * factor));
      }
      throw UsageError(
          fmt::format("{} {} is more than any memory holds; at most {:.0f} bytes are taken.",
                      option, text, kLargest));
    }
  }
  throw UsageError(fmt::format(
      "{} {} is no amount of memory; write it like 24GiB, 512MiB, 80GB or a number of bytes.",
      option, text));
}

std::string show_byte_size(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kNames[unit]);
}

std::string show_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, ",");
  return digits;
}

}  // namespace leapquant::tool
