// SPDX-License-Identifier: Apache-2.0
//
// C API, section "Slots": which slots live, what they cost and which checkpoint goes first. The raw
// operations know nothing of this; the memory is slot_memory.h's.
#include <climits>
#include <memory>
#include <mutex>
#include <new>

#include "capi/call.h"
#include "capi/slot_memory.h"
#include "capi/workspace.h"

using leapquant::capi::fail;

namespace {

enum class Use : uint8_t { kFree, kSequence, kCheckpoint };

// One state slot. Free slots form a stack over `next`, checkpoints a ring over both, oldest use
// first.
struct Entry {
  Use use = Use::kFree;
  int32_t window = -1;
  int32_t next = -1;
  int32_t previous = -1;
};

}  // namespace

struct leapquant_slots {
  const leapquant_layout* layout = nullptr;
  int32_t num_layers = 0;
  int64_t budget = 0;
  int64_t checkpoint_bytes = 0;  // of one checkpoint, all layers
  int64_t sequence_bytes = 0;    // of one sequence, all layers
  int32_t num_states = 0;
  int32_t num_windows = 0;
  leapquant::capi::Mapping states;
  leapquant::capi::Mapping windows;
  leapquant::capi::Mapping bases;
  leapquant::capi::Mapping health;
  leapquant::capi::Mapping workspace;  // of reset
  leapquant::capi::Mapping arguments;  // of reset on a device: slot, window, position
  size_t workspace_bytes = 0;

  std::unique_ptr<Entry[]> entries;        // [num_states]
  std::unique_ptr<int32_t[]> window_next;  // [num_windows] stack of free windows
  int32_t free_state = -1;
  int32_t free_window = -1;
  int32_t oldest = -1;  // checkpoints
  int32_t newest = -1;
  int32_t num_sequences = 0;
  int32_t num_checkpoints = 0;
  int64_t num_evictions = 0;
  mutable std::mutex mutex;

  int64_t heads() const { return layout->layout.shape.num_v_heads; }
  const leapquant::DeviceMemory* memory() const { return layout->backend->memory; }
  int64_t resident() const {
    return num_sequences * sequence_bytes + num_checkpoints * checkpoint_bytes;
  }

  leapquant_pool pool(int32_t layer) const {
    const leapquant::Layout& l = layout->layout;
    const int64_t states_before = int64_t{layer} * num_states;
    leapquant_pool p = LEAPQUANT_INIT(leapquant_pool);
    p.num_state_slots = num_states;
    p.num_window_slots = num_windows;
    p.states = states.data() + states_before * l.state_bytes;
    p.state_stride_bytes = l.state_bytes;
    if (num_windows > 0) {
      p.windows = windows.data() + int64_t{layer} * num_windows * l.window.bytes;
      p.window_stride_bytes = l.window.bytes;
    }
    p.base = reinterpret_cast<int32_t*>(bases.data()) + states_before * heads();
    p.health = reinterpret_cast<leapquant_health*>(health.data()) + states_before * heads();
    return p;
  }

  void link_newest(int32_t slot) {
    entries[slot].previous = newest;
    entries[slot].next = -1;
    (newest >= 0 ? entries[newest].next : oldest) = slot;
    newest = slot;
  }
  void unlink(int32_t slot) {
    const Entry& e = entries[slot];
    (e.previous >= 0 ? entries[e.previous].next : oldest) = e.next;
    (e.next >= 0 ? entries[e.next].previous : newest) = e.previous;
  }

  // Gives the pages of a slot back; scrub: also zeroes what shares pages with other slots.
  void drop_memory(int32_t slot, int32_t window, bool scrub) {
    const leapquant::Layout& l = layout->layout;
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      const size_t state_bytes = static_cast<size_t>(l.state_bytes);
      const size_t at = (static_cast<size_t>(layer) * static_cast<size_t>(num_states) +
                         static_cast<size_t>(slot)) *
                        state_bytes;
      states.give_back(at, state_bytes);
      if (scrub) {
        const size_t count = static_cast<size_t>(heads());
        const size_t index = at / state_bytes * count;
        states.clear(at, state_bytes);
        bases.clear(sizeof(int32_t) * index, sizeof(int32_t) * count);
        health.clear(sizeof(leapquant_health) * index, sizeof(leapquant_health) * count);
      }
      if (window < 0 || num_windows == 0) continue;
      const size_t window_bytes = static_cast<size_t>(l.window.bytes);
      const size_t window_at = (static_cast<size_t>(layer) * static_cast<size_t>(num_windows) +
                                static_cast<size_t>(window)) *
                               window_bytes;
      windows.give_back(window_at, window_bytes);
      if (scrub) windows.clear(window_at, window_bytes);
    }
  }

  void free_slot(int32_t slot, bool scrub) {
    Entry& e = entries[slot];
    if (e.use == Use::kCheckpoint) {
      unlink(slot);
      --num_checkpoints;
    } else {
      --num_sequences;
      if (e.window >= 0) {
        window_next[e.window] = free_window;
        free_window = e.window;
      }
    }
    drop_memory(slot, e.window, scrub);
    e = Entry{};
    e.next = free_state;
    free_state = slot;
  }

  // Evicts checkpoints, oldest use first, until `bytes` more fit. Returns the last one evicted or
  // -1.
  int32_t make_room(int64_t bytes) {
    int32_t evicted = -1;
    while (oldest >= 0 && (resident() + bytes > budget || free_state < 0)) {
      evicted = oldest;
      free_slot(evicted, false);
      ++num_evictions;
    }
    return evicted;
  }

  int32_t take_slot(Use use) {
    const int32_t slot = free_state;
    free_state = entries[slot].next;
    entries[slot] = Entry{};
    entries[slot].use = use;
    if (use == Use::kCheckpoint) {
      link_newest(slot);
      ++num_checkpoints;
      return slot;
    }
    ++num_sequences;
    if (num_windows > 0) {
      entries[slot].window = free_window;
      free_window = window_next[free_window];
    }
    return slot;
  }

  leapquant_status clear(int32_t slot) {
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace_bytes;
    const int32_t of_host[] = {slot, entries[slot].window, 0};  // slot, window, position
    const int32_t* values = of_host;
    if (memory() != nullptr) {
      if (leapquant_status s = memory()->write(arguments.data(), of_host, sizeof(of_host),
                                               leapquant::capi::last_error())) {
        return s;
      }
      values = reinterpret_cast<const int32_t*>(arguments.data());
    }
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      const leapquant_pool p = pool(layer);
      const leapquant_status s =
          leapquant_reset(layout, &p, 1, values, values + 1, values + 2, &launch);
      if (s != LEAPQUANT_OK) return s;
    }
    return memory() == nullptr ? LEAPQUANT_OK
                               : memory()->wait(nullptr, leapquant::capi::last_error());
  }
};

namespace {

leapquant_status refuse_memory(int64_t bytes) {
  return fail(LEAPQUANT_OUT_OF_MEMORY,
              "the host refused memory for slots under a budget of %lld bytes",
              static_cast<long long>(bytes));
}

// A device has no address space without memory: all of it is taken at creation.
leapquant_status refuse_device_memory(int64_t budget, size_t bytes, const char* why) {
  return fail(
      LEAPQUANT_OUT_OF_MEMORY,
      "slots under a budget of %lld bytes take %zu bytes of device memory at creation, with "
      "a window for every sequence that fits: %s; give a smaller budget_bytes",
      static_cast<long long>(budget), bytes, why);
}

// Sizes, then memory; *slots is complete on success.
leapquant_status fill(leapquant_slots* slots) {
  const leapquant::Layout& l = slots->layout->layout;
  const int64_t heads = l.shape.num_v_heads;
  const int64_t metadata = heads * static_cast<int64_t>(sizeof(int32_t) + sizeof(leapquant_health));
  slots->checkpoint_bytes = slots->num_layers * (l.state_bytes + metadata);
  slots->sequence_bytes = slots->checkpoint_bytes + slots->num_layers * l.window.bytes;
  if (slots->budget < slots->sequence_bytes) {
    return fail(LEAPQUANT_BUFFER_TOO_SMALL,
                "budget_bytes is %lld, but one sequence of %d layers needs %lld",
                static_cast<long long>(slots->budget), slots->num_layers,
                static_cast<long long>(slots->sequence_bytes));
  }
  const int64_t num_states = slots->budget / slots->checkpoint_bytes;
  const int64_t num_windows = l.window.bytes > 0 ? slots->budget / slots->sequence_bytes : 0;
  if (num_states > INT32_MAX / 2) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "budget_bytes is %lld, which is %lld slots: expected at most %d of them",
                static_cast<long long>(slots->budget), static_cast<long long>(num_states),
                INT32_MAX / 2);
  }
  slots->num_states = static_cast<int32_t>(num_states);
  slots->num_windows = static_cast<int32_t>(num_windows);
  const size_t all_states =
      static_cast<size_t>(num_states) * static_cast<size_t>(slots->num_layers);
  const size_t all_windows =
      static_cast<size_t>(num_windows) * static_cast<size_t>(slots->num_layers);
  const size_t all_heads = all_states * static_cast<size_t>(heads);
  // Address space first: a budget that no host can serve is refused before anything is touched.
  const leapquant::DeviceMemory* device = slots->memory();
  slots->workspace_bytes = leapquant::capi::workspace_bytes(*slots->layout, 1, 1);
  const size_t state_bytes = all_states * static_cast<size_t>(l.state_bytes);
  const size_t window_bytes = all_windows * static_cast<size_t>(l.window.bytes);
  const size_t base_bytes = all_heads * sizeof(int32_t);
  const size_t health_bytes = all_heads * sizeof(leapquant_health);
  leapquant::Sentence why;
  if (!slots->states.reserve(state_bytes, device, &why) ||
      !slots->windows.reserve(window_bytes, device, &why) ||
      !slots->bases.reserve(base_bytes, device, &why) ||
      !slots->health.reserve(health_bytes, device, &why) ||
      !slots->workspace.reserve(slots->workspace_bytes, device, &why) ||
      !slots->arguments.reserve(device != nullptr ? 3 * sizeof(int32_t) : 0, device, &why)) {
    const size_t all =
        state_bytes + window_bytes + base_bytes + health_bytes + slots->workspace_bytes;
    return device == nullptr ? refuse_memory(slots->budget)
                             : refuse_device_memory(slots->budget, all, why.text);
  }
  slots->entries.reset(new (std::nothrow) Entry[static_cast<size_t>(num_states)]);
  slots->window_next.reset(new (std::nothrow) int32_t[static_cast<size_t>(num_windows) + 1]);
  if (slots->entries == nullptr || slots->window_next == nullptr) {
    return refuse_memory(slots->budget);
  }
  for (int32_t i = slots->num_states - 1; i >= 0; --i) {
    slots->entries[i].next = slots->free_state;
    slots->free_state = i;
  }
  for (int32_t i = slots->num_windows - 1; i >= 0; --i) {
    slots->window_next[i] = slots->free_window;
    slots->free_window = i;
  }
  return LEAPQUANT_OK;
}

leapquant_status check_index(const leapquant_slots* slots, int32_t state_slot) {
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (state_slot >= 0 && state_slot < slots->num_states) return LEAPQUANT_OK;
  return fail(LEAPQUANT_SLOT_OUT_OF_RANGE, "state_slot is %d, expected 0 to %d", state_slot,
              slots->num_states - 1);
}

leapquant_status pool_full(const leapquant_slots& slots, int64_t needed, const char* what) {
  return fail(LEAPQUANT_POOL_FULL,
              "no room for a %s of %lld bytes: %d sequences and %d checkpoints hold %lld of %lld "
              "bytes",
              what, static_cast<long long>(needed), slots.num_sequences, slots.num_checkpoints,
              static_cast<long long>(slots.resident()), static_cast<long long>(slots.budget));
}

}  // namespace

extern "C" {

leapquant_status leapquant_slots_create(const leapquant_layout* layout, int32_t num_layers,
                                        int64_t budget_bytes, leapquant_slots** slots) {
  if (layout == nullptr) return fail(LEAPQUANT_NULL_POINTER, "layout is null");
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (num_layers < 1 || num_layers > 65536) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "num_layers is %d, expected 1 to 65536", num_layers);
  }
  if (budget_bytes < 1) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "budget_bytes is %lld, expected at least 1",
                static_cast<long long>(budget_bytes));
  }
  std::unique_ptr<leapquant_slots> created(new (std::nothrow) leapquant_slots);
  if (created == nullptr) return refuse_memory(budget_bytes);
  created->layout = layout;
  created->num_layers = num_layers;
  created->budget = budget_bytes;
  if (leapquant_status s = fill(created.get())) return s;
  *slots = created.release();
  return LEAPQUANT_OK;
}

void leapquant_slots_destroy(leapquant_slots* slots) { delete slots; }

leapquant_status leapquant_slots_pool(const leapquant_slots* slots, int32_t layer,
                                      leapquant_pool* pool) {
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (leapquant_status s = leapquant::capi::check_struct_size(pool, "pool")) return s;
  if (layer < 0 || layer >= slots->num_layers) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "layer is %d, expected 0 to %d", layer,
                slots->num_layers - 1);
  }
  leapquant::capi::give_struct(slots->pool(layer), pool);
  return LEAPQUANT_OK;
}

leapquant_status leapquant_slots_acquire(leapquant_slots* slots, int32_t* state_slot,
                                         int32_t* window_slot) {
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (state_slot == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slot is null");
  if (window_slot == nullptr) return fail(LEAPQUANT_NULL_POINTER, "window_slot is null");
  const std::lock_guard<std::mutex> lock(slots->mutex);
  if ((slots->num_sequences + int64_t{1}) * slots->sequence_bytes > slots->budget) {
    return pool_full(*slots, slots->sequence_bytes, "sequence");
  }
  slots->make_room(slots->sequence_bytes);
  const int32_t slot = slots->take_slot(Use::kSequence);
  if (leapquant_status s = slots->clear(slot)) {
    slots->free_slot(slot, false);
    return s;
  }
  *state_slot = slot;
  *window_slot = slots->entries[slot].window;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_slots_acquire_checkpoint(leapquant_slots* slots, int32_t* state_slot,
                                                    int32_t* evicted) {
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (state_slot == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slot is null");
  const std::lock_guard<std::mutex> lock(slots->mutex);
  const int64_t live = slots->num_sequences * slots->sequence_bytes;
  if (live + slots->checkpoint_bytes > slots->budget) {
    return pool_full(*slots, slots->checkpoint_bytes, "checkpoint");
  }
  const int32_t gone = slots->make_room(slots->checkpoint_bytes);
  const int32_t slot = slots->take_slot(Use::kCheckpoint);
  if (leapquant_status s = slots->clear(slot)) {
    slots->free_slot(slot, false);
    return s;
  }
  *state_slot = slot;
  if (evicted != nullptr) *evicted = gone;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_slots_touch(leapquant_slots* slots, int32_t state_slot) {
  if (leapquant_status s = check_index(slots, state_slot)) return s;
  const std::lock_guard<std::mutex> lock(slots->mutex);
  if (slots->entries[state_slot].use != Use::kCheckpoint) {
    return fail(LEAPQUANT_EMPTY_ENTRY, "state slot %d holds no checkpoint: a miss", state_slot);
  }
  slots->unlink(state_slot);
  slots->link_newest(state_slot);
  return LEAPQUANT_OK;
}

leapquant_status leapquant_slots_release(leapquant_slots* slots, int32_t state_slot,
                                         int32_t scrub) {
  if (leapquant_status s = check_index(slots, state_slot)) return s;
  if (scrub != 0 && scrub != 1) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "scrub is %d, expected 0 or 1", scrub);
  }
  const std::lock_guard<std::mutex> lock(slots->mutex);
  if (slots->entries[state_slot].use == Use::kFree) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "state slot %d is not live", state_slot);
  }
  slots->free_slot(state_slot, scrub == 1);
  return LEAPQUANT_OK;
}

leapquant_status leapquant_slots_get_usage(const leapquant_slots* slots,
                                           leapquant_slots_usage* usage) {
  if (slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "slots is null");
  if (leapquant_status s = leapquant::capi::check_struct_size(usage, "usage")) return s;
  const std::lock_guard<std::mutex> lock(slots->mutex);
  leapquant_slots_usage answer = LEAPQUANT_INIT(leapquant_slots_usage);
  answer.budget_bytes = slots->budget;
  answer.resident_bytes = slots->resident();
  answer.num_sequences = slots->num_sequences;
  answer.num_checkpoints = slots->num_checkpoints;
  answer.num_evictions = slots->num_evictions;
  leapquant::capi::give_struct(answer, usage);
  return LEAPQUANT_OK;
}

}  // extern "C"
