// SPDX-License-Identifier: Apache-2.0
//
// Export rebuilds in FP64 and rounds once; import is a cold fold of the given matrix.
#include "reference/transfer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/numeric.h"
#include "core/pool.h"
#include "reference/codec.h"
#include "reference/fold.h"

namespace leapquant::reference {
namespace {

// Address of entry (i, j) of one head's matrix in the caller's buffer.
std::byte* matrix_entry(const Layout& layout, const leapquant_transfer_args& args, int32_t sequence,
                        int32_t v_head, int64_t i, int64_t j) {
  const int64_t k_dim = layout.shape.head_k_dim;
  const int64_t v_dim = layout.shape.head_v_dim;
  const int64_t size = args.type == LEAPQUANT_FP32 ? 4 : 2;
  const int64_t head_stride =
      args.head_stride_bytes != 0 ? args.head_stride_bytes : k_dim * v_dim * size;
  const int64_t sequence_stride = args.sequence_stride_bytes != 0
                                      ? args.sequence_stride_bytes
                                      : layout.shape.num_v_heads * head_stride;
  const int64_t index = args.order == LEAPQUANT_KV ? i * v_dim + j : j * k_dim + i;
  return static_cast<std::byte*>(args.matrices) + sequence * sequence_stride +
         v_head * head_stride + index * size;
}

void write_matrix(const Layout& layout, const leapquant_transfer_args& args, int32_t sequence,
                  int32_t v_head, const double* state) {
  for (int32_t i = 0; i < layout.shape.head_k_dim; ++i) {
    for (int32_t j = 0; j < layout.shape.head_v_dim; ++j) {
      const float value =
          state == nullptr ? 0.0f : static_cast<float>(state[i * layout.shape.head_v_dim + j]);
      std::byte* at = matrix_entry(layout, args, sequence, v_head, i, j);
      if (args.type == LEAPQUANT_FP32) {
        std::memcpy(at, &value, 4);
      } else {
        const uint16_t half = float_to_bf16(value);
        std::memcpy(at, &half, 2);
      }
    }
  }
}

std::vector<double> read_matrix(const Layout& layout, const leapquant_transfer_args& args,
                                int32_t sequence, int32_t v_head) {
  std::vector<double> state;
  for (int32_t i = 0; i < layout.shape.head_k_dim; ++i) {
    for (int32_t j = 0; j < layout.shape.head_v_dim; ++j) {
      const std::byte* at = matrix_entry(layout, args, sequence, v_head, i, j);
      float value;
      if (args.type == LEAPQUANT_FP32) {
        std::memcpy(&value, at, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, at, 2);
        value = bf16_to_float(half);
      }
      state.push_back(value);
    }
  }
  return state;
}

}  // namespace

Status export_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch&) {
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    const int32_t slot = args.state_slots[i];
    const int32_t window = args.window_slots == nullptr ? slot : args.window_slots[i];
    if (slot >= 0) {
      args.status[i] = check_position(layout, pool, slot, window, args.positions[i], 0);
    }
    const bool nothing = slot < 0 || args.status[i] != LEAPQUANT_OK;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      std::vector<double> state;
      if (!nothing) state = rebuild(layout, pool, slot, window, h, args.positions[i]);
      write_matrix(layout, args, i, h, nothing ? nullptr : state.data());
    }
  }
  return LEAPQUANT_OK;
}

Status import_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch&) {
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    const int32_t slot = args.state_slots[i];
    if (slot < 0) continue;
    std::vector<std::vector<double>> heads;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      heads.push_back(read_matrix(layout, args, i, h));
      if (!std::all_of(heads.back().begin(), heads.back().end(),
                       [](double x) { return std::isfinite(x); })) {
        args.status[i] = LEAPQUANT_NON_FINITE_INPUT;
      }
    }
    if (args.status[i] != LEAPQUANT_OK) continue;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      const BoundaryLayout& head = layout.head(h);
      std::byte* boundary = boundary_state(layout, pool, slot, h);
      std::fill(boundary, boundary + head.bytes, std::byte{0});
      leapquant_health* health = health_of(layout, pool, slot, h);
      if (health != nullptr) *health = {};
      encode_state(head, heads[static_cast<size_t>(h)].data(), true, boundary, health);
      base_of(layout, pool, slot, h) = args.positions[i];
    }
  }
  return LEAPQUANT_OK;
}

Status copy(const Layout& layout, const leapquant_pool& pool, int32_t batch,
            const int32_t* source_states, const int32_t* source_windows,
            const int32_t* destination_states, const int32_t* destination_windows,
            const leapquant_launch&) {
  std::byte* states = static_cast<std::byte*>(pool.states);
  std::byte* windows = static_cast<std::byte*>(pool.windows);
  for (int32_t i = 0; i < batch; ++i) {
    const int32_t from = source_states[i];
    const int32_t to = destination_states[i];
    if (from < 0 || to < 0) continue;
    std::memcpy(states + to * pool.state_stride_bytes, states + from * pool.state_stride_bytes,
                static_cast<size_t>(layout.state_bytes));
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      base_of(layout, pool, to, h) = base_of(layout, pool, from, h);
      if (pool.health != nullptr) {
        *health_of(layout, pool, to, h) = *health_of(layout, pool, from, h);
      }
    }
    const int32_t window_from = source_windows == nullptr ? from : source_windows[i];
    const int32_t window_to = destination_windows == nullptr ? to : destination_windows[i];
    if (window_from < 0 || window_to < 0 || layout.window.bytes == 0) continue;
    std::memcpy(windows + window_to * pool.window_stride_bytes,
                windows + window_from * pool.window_stride_bytes,
                static_cast<size_t>(layout.window.bytes));
  }
  return LEAPQUANT_OK;
}

Status reset(const Layout& layout, const leapquant_pool& pool, int32_t batch, const int32_t* states,
             const int32_t* windows, const int32_t* positions, const leapquant_launch&) {
  for (int32_t i = 0; i < batch; ++i) {
    const int32_t slot = states[i];
    if (slot < 0) continue;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      const BoundaryLayout& head = layout.head(h);
      std::byte* boundary = boundary_state(layout, pool, slot, h);
      std::fill(boundary, boundary + head.bytes, std::byte{0});
      const std::vector<double> zero(static_cast<size_t>(head.k_dim) *
                                     static_cast<size_t>(head.v_dim));
      encode_state(head, zero.data(), true, boundary, nullptr);
      base_of(layout, pool, slot, h) = positions[i];
      if (pool.health != nullptr) *health_of(layout, pool, slot, h) = {};
    }
    const int32_t window = windows == nullptr ? slot : windows[i];
    if (window < 0 || layout.window.bytes == 0) continue;
    std::byte* ring = static_cast<std::byte*>(pool.windows) + window * pool.window_stride_bytes;
    std::fill(ring, ring + layout.window.bytes, std::byte{0});
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::reference
