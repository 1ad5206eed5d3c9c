// SPDX-License-Identifier: Apache-2.0
//
// A bitmap over slot indices in blocks of fixed size, so that finding a repeated slot needs neither
// memory of the caller nor time that grows with the square of the batch: one pass over the indices
// for every 32,768 slots of the pool.
#pragma once

#include <cstdint>
#include <cstring>

namespace leapquant::capi {

class SlotMarks {
 public:
  static constexpr int32_t kSlots = 32768;

  // Starts over with the slots first .. first + kSlots - 1.
  void clear(int32_t first) {
    first_ = first;
    std::memset(bits_, 0, sizeof(bits_));
  }
  bool covers(int32_t slot) const { return slot >= first_ && slot - first_ < kSlots; }
  bool marked(int32_t slot) const { return (bits_[word(slot)] & bit(slot)) != 0; }
  void mark(int32_t slot) { bits_[word(slot)] |= bit(slot); }

 private:
  int32_t word(int32_t slot) const { return (slot - first_) / 64; }
  uint64_t bit(int32_t slot) const { return uint64_t{1} << ((slot - first_) % 64); }

  int32_t first_ = 0;
  uint64_t bits_[kSlots / 64];
};

// Calls visit(i) for every i whose slot (>= 0 and below num_slots) came before; stops when it
// answers false.
template <typename Visit>
void for_each_repeated(const int32_t* slots, int32_t count, int32_t num_slots, Visit visit) {
  SlotMarks marks;
  for (int64_t first = 0; first < num_slots; first += SlotMarks::kSlots) {
    marks.clear(static_cast<int32_t>(first));
    for (int32_t i = 0; i < count; ++i) {
      if (slots[i] < 0 || slots[i] >= num_slots || !marks.covers(slots[i])) continue;
      if (marks.marked(slots[i])) {
        if (!visit(i)) return;
      }
      marks.mark(slots[i]);
    }
  }
}

}  // namespace leapquant::capi
