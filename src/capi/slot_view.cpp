// SPDX-License-Identifier: Apache-2.0
//
// Copies of a device's slot: boundary states head by head, since their codes change order, the
// other parts as they lie.
#include "capi/slot_view.h"

#include <cstring>

namespace leapquant::capi {
namespace {

size_t round_up_64(int64_t bytes) { return static_cast<size_t>((bytes + 63) / 64 * 64); }

// Where one slot's parts lie on the device.
struct DeviceSlot {
  std::byte* states;
  std::byte* window;  // null: none
  int32_t* base;
  leapquant_health* health;  // null: none
};

DeviceSlot device_slot(const SlotView& slot) {
  const leapquant_pool& p = slot.device_pool;
  const int64_t heads = int64_t{slot.named_state} * slot.layout->shape.num_v_heads;
  DeviceSlot d = {};
  d.states = static_cast<std::byte*>(p.states) + slot.named_state * p.state_stride_bytes;
  if (slot.window >= 0) {
    d.window = static_cast<std::byte*>(p.windows) + slot.named_window * p.window_stride_bytes;
  }
  d.base = p.base + heads;
  d.health = p.health != nullptr ? p.health + heads : nullptr;
  return d;
}

size_t base_bytes(const SlotView& slot) {
  return sizeof(int32_t) * static_cast<size_t>(slot.layout->shape.num_v_heads);
}
size_t health_bytes(const SlotView& slot) {
  return sizeof(leapquant_health) * static_cast<size_t>(slot.layout->shape.num_v_heads);
}

// Memory for a copy, zeroed, with a second block of states in which codes change their order.
Status make_copy(SlotView* slot) {
  const Layout& layout = *slot->layout;
  const size_t states = round_up_64(layout.state_bytes);
  const size_t windows = round_up_64(layout.window.bytes);
  const size_t bases = round_up_64(static_cast<int64_t>(base_bytes(*slot)));
  const size_t all = 2 * states + windows + bases + health_bytes(*slot);
  slot->copy.reset(
      static_cast<std::byte*>(::operator new(all, std::align_val_t{64}, std::nothrow)));
  if (slot->copy == nullptr) {
    return fail(LEAPQUANT_OUT_OF_MEMORY, "the host refused %zu bytes for a copy of a device's slot",
                all);
  }
  std::byte* at = slot->copy.get();
  std::memset(at, 0, all);
  leapquant_pool& p = slot->pool;
  p.num_state_slots = 1;
  p.num_window_slots = slot->window >= 0 ? 1 : 0;
  p.states = at;
  p.windows = at + 2 * states;
  p.base = reinterpret_cast<int32_t*>(at + 2 * states + windows);
  if (p.health != nullptr) {
    p.health = reinterpret_cast<leapquant_health*>(at + 2 * states + windows + bases);
  }
  return LEAPQUANT_OK;
}

std::byte* device_order(const SlotView& slot) {
  return slot.copy.get() + round_up_64(slot.layout->state_bytes);
}

Status fetch(SlotView* slot, bool contents) {
  const Layout& layout = *slot->layout;
  const DeviceMemory& memory = *slot->memory;
  const DeviceSlot device = device_slot(*slot);
  if (Status s = memory.read(slot->pool.base, device.base, base_bytes(*slot), last_error())) {
    return s;
  }
  if (!contents) return LEAPQUANT_OK;
  std::byte* raw = device_order(*slot);
  if (Status s =
          memory.read(raw, device.states, static_cast<size_t>(layout.state_bytes), last_error())) {
    return s;
  }
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int64_t at = layout.head_offset[static_cast<size_t>(h)];
    memory.to_canonical(layout.head(h), raw + at, boundary_state(layout, slot->pool, 0, h));
  }
  if (device.health != nullptr) {
    if (Status s =
            memory.read(slot->pool.health, device.health, health_bytes(*slot), last_error())) {
      return s;
    }
  }
  if (device.window == nullptr) return LEAPQUANT_OK;
  return memory.read(slot->pool.windows, device.window, static_cast<size_t>(layout.window.bytes),
                     last_error());
}

}  // namespace

Status open_slot(const leapquant_layout* layout, const leapquant_pool* pool, int32_t state_slot,
                 int32_t window_slot, bool contents, SlotView* slot) {
  if (Status s = check_pool(layout, pool, &slot->pool)) return s;
  slot->layout = &layout->layout;
  if (state_slot < 0 || state_slot >= slot->pool.num_state_slots) {
    return fail(LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slot is %d, expected 0 to %d", state_slot,
                slot->pool.num_state_slots - 1);
  }
  const bool windowed = slot->layout->window.bytes > 0;
  if (windowed && window_slot >= slot->pool.num_window_slots) {
    return fail(LEAPQUANT_SLOT_OUT_OF_RANGE, "window_slot is %d, expected below %d", window_slot,
                slot->pool.num_window_slots);
  }
  slot->state = slot->named_state = state_slot;
  slot->window = slot->named_window = windowed ? window_slot : -1;
  slot->memory = layout->backend->memory;
  if (slot->memory == nullptr) return LEAPQUANT_OK;
  slot->device_pool = slot->pool;
  slot->state = 0;
  if (slot->window > 0) slot->window = 0;
  if (Status s = make_copy(slot)) return s;
  return fetch(slot, contents);
}

Status close_slot(const SlotView& slot) {
  if (slot.memory == nullptr) return LEAPQUANT_OK;
  const Layout& layout = *slot.layout;
  const DeviceMemory& memory = *slot.memory;
  const DeviceSlot device = device_slot(slot);
  std::byte* raw = device_order(slot);
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int64_t at = layout.head_offset[static_cast<size_t>(h)];
    memory.from_canonical(layout.head(h), boundary_state(layout, slot.pool, 0, h), raw + at);
  }
  if (Status s =
          memory.write(device.states, raw, static_cast<size_t>(layout.state_bytes), last_error())) {
    return s;
  }
  if (device.health != nullptr) {
    if (Status s =
            memory.write(device.health, slot.pool.health, health_bytes(slot), last_error())) {
      return s;
    }
  }
  if (device.window != nullptr) {
    if (Status s = memory.write(device.window, slot.pool.windows,
                                static_cast<size_t>(layout.window.bytes), last_error())) {
      return s;
    }
  }
  return memory.write(device.base, slot.pool.base, base_bytes(slot), last_error());
}

}  // namespace leapquant::capi
