// SPDX-License-Identifier: Apache-2.0
//
// Memory of the slot allocator: address space for every mix of slots, of which only slots in use
// take pages. One mapping per part: states, windows, bases, health; within a part layer by layer.
// On a device there is no address space without memory: a mapping is all there from the start.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/operations.h"

namespace leapquant::capi {

// A range of zeroed memory.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // False when the host, or the device unless it is null, refuses; a device says why. bytes may be
  // 0.
  bool reserve(size_t bytes, const DeviceMemory* device, Sentence* why_not);
  std::byte* data() const { return data_; }
  // Gives the whole pages of a range back to the host; what they held is gone, the rest of the
  // range keeps its bytes.
  void give_back(size_t offset, size_t bytes);
  // Overwrites a range with zero.
  void clear(size_t offset, size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  const DeviceMemory* device_ = nullptr;
};

}  // namespace leapquant::capi
