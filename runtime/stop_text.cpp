// SPDX-License-Identifier: Apache-2.0
//
// Plain search: stop texts are few and short.
#include "runtime/stop_text.h"

#include <algorithm>
#include <utility>

namespace leapquant::runtime {

std::string StopText::push(std::string_view bytes) {
  if (found_) return {};
  pending_ += bytes;
  std::size_t first = std::string::npos;
  for (const std::string& stop : *stops_) first = std::min(first, pending_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    std::string certain = pending_.substr(0, first);
    pending_.clear();
    return certain;
  }
  // The longest end that begins a stop text stays.
  std::size_t kept = 0;
  for (const std::string& stop : *stops_) {
    for (std::size_t size = std::min(stop.size() - 1, pending_.size()); size > kept; --size) {
      if (pending_.ends_with(std::string_view(stop).substr(0, size))) kept = size;
    }
  }
  std::string certain = pending_.substr(0, pending_.size() - kept);
  pending_.erase(0, certain.size());
  return certain;
}

std::string StopText::finish() { return std::exchange(pending_, {}); }

}  // namespace leapquant::runtime
