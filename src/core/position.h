// SPDX-License-Identifier: Apache-2.0
//
// Positions, boundaries and ring indices: pure arithmetic that host and device share. No counter
// exists anywhere; everything follows from `position` and `base`.
#pragma once

#include <cstdint>

namespace leapquant {

// First boundary of key head `k_head` (global index) of `total_k_heads`: floor(k p / total) when
// staggered, else 0.
constexpr int32_t boundary_offset(int32_t k_head, int32_t total_k_heads, int32_t window,
                                  bool stagger) {
  return stagger ? static_cast<int32_t>(static_cast<int64_t>(k_head) * window / total_k_heads) : 0;
}

// Largest t <= position with (t - offset) mod window = 0; negative when position lies before the
// first boundary that is >= 0.
constexpr int32_t last_boundary(int32_t position, int32_t offset, int32_t window) {
  const int32_t distance = position - offset;
  const int32_t remainder = ((distance % window) + window) % window;
  return position - remainder;
}

// Tokens a ring holds: p + T - 1, or p + 2 T - 1 where several value heads share a key record.
constexpr int32_t ring_tokens(int32_t window, int32_t max_tokens, bool shared_keys) {
  return window + (shared_keys ? 2 : 1) * max_tokens - 1;
}

}  // namespace leapquant
