// SPDX-License-Identifier: Apache-2.0
//
// Records as a window stores them: rows of keys and corrections, log decays of a token.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_RECORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_RECORDS_INL_H_
#undef LEAPQUANT_CPU_RECORDS_INL_H_
#else
#define LEAPQUANT_CPU_RECORDS_INL_H_
#endif

#include <cstring>

#include "core/layout.h"
#include "core/numeric.h"
#include "core/pool.h"
#include "cpu/gates-inl.h"
#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"
#include "cpu/packing-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// Log decay of a token; none, constant or scalar.
HWY_INLINE float stored_scalar_decay(const Layout& layout, const WindowView& window, int32_t v_head,
                                     int32_t token) {
  if (layout.shape.decay == LEAPQUANT_DECAY_SCALAR) {
    float value;
    std::memcpy(&value, window.log_decays + int64_t{4} * (token % layout.window.ring_tokens), 4);
    return value;
  }
  return layout.shape.decay == LEAPQUANT_DECAY_CONSTANT ? layout.decays[static_cast<size_t>(v_head)]
                                                        : 0.0f;
}

// Log decays of a token by channel, row [padded(K)], zeros past K.
HWY_INLINE void stored_vector_decay(const Layout& layout, const WindowView& window, int32_t token,
                                    float* row) {
  const FloatTag d;
  const int32_t k_dim = layout.shape.head_k_dim;
  const std::byte* stored = window.log_decays + static_cast<int64_t>(layout.window.decay_bytes) *
                                                    k_dim * (token % layout.window.ring_tokens);
  if (layout.window.decay_bytes == 4) {
    std::memcpy(row, stored, static_cast<size_t>(k_dim) * 4);
    for (int32_t i = k_dim; i % 16 != 0; ++i) row[i] = 0.0f;
    return;
  }
  alignas(64) uint16_t spare[256];
  const uint16_t* half = padded_row(reinterpret_cast<const uint16_t*>(stored), k_dim, spare);
  for (int32_t i = 0; i < k_dim; i += kLanes) hn::Store(load_fp16(half + i), d, row + i);
  for (int32_t i = k_dim; i % 16 != 0; ++i) row[i] = 0.0f;
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
