// SPDX-License-Identifier: Apache-2.0
//
// Boundary states in the order that the emulated kernels have them in, and back.
#ifndef LEAPQUANT_TESTS_EMULATOR_PAYLOAD_ORDER_H_
#define LEAPQUANT_TESTS_EMULATOR_PAYLOAD_ORDER_H_

#include <cstddef>
#include <vector>

#include "backend/registry.h"

namespace leapquant::emulator {

// The built-in backend's that has device memory.
inline const DeviceMemory& memory_of_cuda() {
  size_t count = 0;
  const Backend* const* tables = built_in_backends(&count);
  size_t i = 0;
  while (i + 1 < count && tables[i]->memory == nullptr) ++i;
  return *tables[i]->memory;
}

// Applies memory_of_cuda().to_canonical or .from_canonical to every head of the states, which lie
// `stride` bytes apart.
template <typename Order>
void reorder(const Layout& layout, int64_t stride, std::vector<std::byte>* states, Order order) {
  for (size_t at = 0; at < states->size(); at += static_cast<size_t>(stride)) {
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      std::byte* to = states->data() + at + layout.head_offset[static_cast<size_t>(h)];
      const std::vector<std::byte> head(to, to + layout.head(h).bytes);
      order(layout.head(h), head.data(), to);
    }
  }
}

}  // namespace leapquant::emulator

#endif  // LEAPQUANT_TESTS_EMULATOR_PAYLOAD_ORDER_H_
