// SPDX-License-Identifier: Apache-2.0
//
// Memory of the slot allocator: address space for every mix of slots, of which only slots in use
// take pages. One mapping per part: states, windows, bases, health; within a part layer by layer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace leapquant::capi {

// A range of zeroed pages.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // False when the host refuses. bytes may be 0.
  bool reserve(size_t bytes);
  std::byte* data() const { return data_; }
  // Gives the whole pages of a range back to the host; what they held is gone, the rest of the
  // range keeps its bytes.
  void give_back(size_t offset, size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace leapquant::capi
