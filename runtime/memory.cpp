// SPDX-License-Identifier: Apache-2.0
//
// Reads /proc/meminfo and the control group's limit, where there is one.
#include "runtime/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

namespace leapquant::runtime {
namespace {

std::int64_t from_meminfo() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kibibytes = 0;
  std::string rest;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, rest);
  }
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
}

std::int64_t number_in(const char* path, std::int64_t otherwise) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : otherwise;
}

}  // namespace

std::int64_t available_memory_bytes() {
  // The limit reads "max" where there is none.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", kNone);
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
  const std::int64_t allowed = limit == kNone ? kNone : std::max<std::int64_t>(limit - used, 0);
  return std::min(from_meminfo(), allowed);
}

std::string describe_bytes(std::int64_t bytes) {
  const std::string digits = std::to_string(bytes);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') grouped += ',';
    grouped += digits[i];
  }
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return grouped + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {} ({} bytes)", value, kUnits[unit], grouped);
}

}  // namespace leapquant::runtime
