// SPDX-License-Identifier: Apache-2.0
//
// What the next head will read, fetched a line at a time while this head computes: hardware follows
// streams of some 16 KB, scattered over a pool, too late.
#pragma once

#include <cstddef>
#include <cstdint>

namespace leapquant::cpu {

// More than any head has.
inline constexpr int32_t kAllLines = 1 << 20;

class Ahead {
 public:
  // Adds the bytes [start, start + bytes).
  void add(const void* start, int64_t bytes) {
    if (bytes <= 0 || count_ == kMost) return;
    const auto* from = static_cast<const std::byte*>(start);
    ranges_[count_++] = {from, from + bytes};
    if (count_ == 1) current_ = ranges_[0];
  }

  // What is left of the range at hand: two pointers that a loop keeps in registers.
  struct Stretch {
    const std::byte* at;
    const std::byte* end;
    // Fetches the next line, if any is left.
    void step() {
      if (at >= end) return;
      __builtin_prefetch(at, 0, 2);  // the second cache level: the first one holds this head
      at += 64;
    }
  };
  Stretch stretch() const { return current_; }
  // Takes a stretch back, used; the next range follows where it is used up.
  void pass(const Stretch& used) {
    current_ = used;
    if (current_.at >= current_.end && next_ < count_) current_ = ranges_[next_++];
  }
  // Fetches `lines` lines.
  void fetch(int32_t lines) {
    while (lines > 0 && current_.at < current_.end) {
      const std::byte* at = current_.at;
      for (; lines > 0 && at < current_.end; --lines, at += 64) __builtin_prefetch(at, 0, 2);
      pass({at, current_.end});
    }
  }

 private:
  static constexpr int32_t kMost = 8;
  Stretch current_ = {nullptr, nullptr};
  int32_t next_ = 1;
  int32_t count_ = 0;
  Stretch ranges_[kMost];
};

}  // namespace leapquant::cpu
