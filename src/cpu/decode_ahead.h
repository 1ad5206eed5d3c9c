// SPDX-License-Identifier: Apache-2.0
//
// What the next head will read, fetched a line at a time while this head computes: hardware follows
// streams of some 16 KB, scattered over a pool, too late.
#pragma once

#include <cstddef>
#include <cstdint>

namespace leapquant::cpu {

class Ahead {
 public:
  // Adds the bytes [start, start + bytes).
  void add(const void* start, int64_t bytes) {
    if (bytes <= 0 || count_ == kMost) return;
    const auto* from = static_cast<const std::byte*>(start);
    ranges_[count_++] = {from, from + bytes};
  }
  // Fetches the next line, if any is left.
  void step() {
    if (at_ < end_) [[likely]] {
      fetch();
    } else if (next_ < count_) {
      at_ = ranges_[next_].start;
      end_ = ranges_[next_].end;
      ++next_;
      fetch();
    }
  }
  // Fetches all that is left.
  void finish() {
    while (at_ < end_ || next_ < count_) step();
  }

 private:
  static constexpr int32_t kMost = 8;
  struct Range {
    const std::byte* start;
    const std::byte* end;
  };
  void fetch() {
    __builtin_prefetch(at_, 0, 2);  // the second cache level: the first one holds this head
    at_ += 64;
  }
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  int32_t next_ = 0;
  int32_t count_ = 0;
  Range ranges_[kMost];
};

}  // namespace leapquant::cpu
