// SPDX-License-Identifier: Apache-2.0
//
// Raw copies between slots and the zero state; no arithmetic on states.
#include <algorithm>
#include <cstring>

#include "core/pool.h"
#include "cpu/codec.h"
#include "cpu/fold.h"
#include "cpu/transfer.h"

namespace leapquant::cpu {
namespace {

struct CopyCall {
  const Layout& layout;
  const leapquant_pool& pool;
  const int32_t* source_states;
  const int32_t* source_windows;
  const int32_t* destination_states;
  const int32_t* destination_windows;
};

std::byte* ring_of(const leapquant_pool& pool, int32_t window_slot) {
  return static_cast<std::byte*>(pool.windows) + int64_t{window_slot} * pool.window_stride_bytes;
}

std::byte* states_of(const leapquant_pool& pool, int32_t state_slot) {
  return static_cast<std::byte*>(pool.states) + int64_t{state_slot} * pool.state_stride_bytes;
}

// The window slot beside state slot `slot`, -1 for none; a null array stands for the state's index.
int32_t window_beside(const Layout& layout, const leapquant_pool& pool, const int32_t* windows,
                      int32_t index, int32_t slot) {
  if (layout.window.bytes == 0) return -1;
  const int32_t window = windows == nullptr ? slot : windows[index];
  return window < pool.num_window_slots ? window : -1;
}

void copy_slot(void* argument, int32_t i, int32_t) {
  const CopyCall& call = *static_cast<const CopyCall*>(argument);
  const Layout& layout = call.layout;
  const leapquant_pool& pool = call.pool;
  const int32_t from = call.source_states[i];
  const int32_t to = call.destination_states[i];
  if (from < 0 || to < 0) return;
  std::memcpy(states_of(pool, to), states_of(pool, from), static_cast<size_t>(layout.state_bytes));
  const int32_t heads = layout.shape.num_v_heads;
  std::copy_n(&base_of(layout, pool, from, 0), heads, &base_of(layout, pool, to, 0));
  if (pool.health != nullptr) {
    std::copy_n(health_of(layout, pool, from, 0), heads, health_of(layout, pool, to, 0));
  }
  const int32_t window_from = window_beside(layout, pool, call.source_windows, i, from);
  const int32_t window_to = window_beside(layout, pool, call.destination_windows, i, to);
  if (window_from < 0 || window_to < 0) return;
  std::memcpy(ring_of(pool, window_to), ring_of(pool, window_from),
              static_cast<size_t>(layout.window.bytes));
}

struct ResetCall {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_launch& launch;
  const int32_t* states;
  const int32_t* windows;
  const int32_t* positions;
};

// The zero state is encoded once per class and copied to the other heads of the class.
void reset_slot(void* argument, int32_t i, int32_t worker) {
  const ResetCall& call = *static_cast<const ResetCall*>(argument);
  const Layout& layout = call.layout;
  const leapquant_pool& pool = call.pool;
  const int32_t slot = call.states[i];
  if (slot < 0) return;
  std::byte* scratch = worker_scratch(call.launch, transfer_worker_bytes(layout), worker);
  float* zero = reinterpret_cast<float*>(scratch);
  const size_t entries =
      static_cast<size_t>(layout.shape.head_k_dim) * static_cast<size_t>(layout.shape.head_v_dim);
  float* rest = reinterpret_cast<float*>(scratch + (entries * sizeof(float) + 63) / 64 * 64);
  for (size_t c = 0; c < layout.classes.size(); ++c) {
    const std::byte* encoded = nullptr;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      if (layout.head_class[static_cast<size_t>(h)] != c) continue;
      std::byte* boundary = boundary_state(layout, pool, slot, h);
      if (encoded == nullptr) {
        std::fill_n(zero, entries, 0.0f);
        encode_boundary(layout.classes[c], FitKind::kCold, nullptr, zero, boundary, nullptr, rest);
        encoded = boundary;
      } else {
        std::memcpy(boundary, encoded, static_cast<size_t>(layout.classes[c].bytes));
      }
    }
  }
  const int32_t heads = layout.shape.num_v_heads;
  std::fill_n(&base_of(layout, pool, slot, 0), heads, call.positions[i]);
  if (pool.health != nullptr) {
    std::fill_n(health_of(layout, pool, slot, 0), heads, leapquant_health{});
  }
  const int32_t window = window_beside(layout, pool, call.windows, i, slot);
  if (window < 0) return;
  std::memset(ring_of(pool, window), 0, static_cast<size_t>(layout.window.bytes));
}

}  // namespace

Status copy_slots(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                  const int32_t* source_states, const int32_t* source_windows,
                  const int32_t* destination_states, const int32_t* destination_windows,
                  const leapquant_launch& launch) {
  CopyCall call = {
      layout, pool, source_states, source_windows, destination_states, destination_windows};
  run_tasks(launch, batch, copy_slot, &call);
  return LEAPQUANT_OK;
}

Status reset_slots(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                   const int32_t* states, const int32_t* windows, const int32_t* positions,
                   const leapquant_launch& launch) {
  ResetCall call = {layout, pool, launch, states, windows, positions};
  run_tasks(launch, batch, reset_slot, &call);
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
