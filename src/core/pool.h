// SPDX-License-Identifier: Apache-2.0
//
// Pointers into the caller's pools: one head's boundary state, one head's records, base and health.
// No checks here; the door has made them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant {

// A head's records in one window slot. Row r of keys is key_stride bytes after row r - 1.
struct WindowView {
  uint16_t* keys = nullptr;         // [records][K] FP16, shared by the value heads of a key head
  uint16_t* corrections = nullptr;  // [records][V] FP16
  std::byte* log_decays = nullptr;  // [R][decay_count] FP32 or FP16
};

inline std::byte* boundary_state(const Layout& layout, const leapquant_pool& pool, int32_t slot,
                                 int32_t v_head) {
  return static_cast<std::byte*>(pool.states) +
         static_cast<int64_t>(slot) * pool.state_stride_bytes +
         layout.head_offset[static_cast<size_t>(v_head)];
}

inline WindowView window_view(const Layout& layout, const leapquant_pool& pool, int32_t window_slot,
                              int32_t v_head) {
  WindowView view;
  if (layout.window.bytes == 0) return view;
  std::byte* start = static_cast<std::byte*>(pool.windows) +
                     static_cast<int64_t>(window_slot) * pool.window_stride_bytes;
  const int64_t k_head = v_head / layout.group;
  view.keys = reinterpret_cast<uint16_t*>(start + layout.window.keys +
                                          k_head * layout.window.key_head_stride);
  view.corrections = reinterpret_cast<uint16_t*>(start + layout.window.corrections +
                                                 v_head * layout.window.correction_head_stride);
  view.log_decays = start + layout.window.log_decays + v_head * layout.window.decay_head_stride;
  return view;
}

inline int32_t& base_of(const Layout& layout, const leapquant_pool& pool, int32_t slot,
                        int32_t v_head) {
  return pool.base[static_cast<int64_t>(slot) * layout.shape.num_v_heads + v_head];
}

inline leapquant_health* health_of(const Layout& layout, const leapquant_pool& pool, int32_t slot,
                                   int32_t v_head) {
  if (pool.health == nullptr) return nullptr;
  return pool.health + static_cast<int64_t>(slot) * layout.shape.num_v_heads + v_head;
}

}  // namespace leapquant
