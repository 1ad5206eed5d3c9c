// SPDX-License-Identifier: Apache-2.0
//
// Layout, pool, launch, slots and positions of a call. Every sentence says which argument, which
// index, what was expected and what came.
#include "capi/call.h"

#include <climits>

#include "capi/slot_marks.h"
#include "capi/workspace.h"
#include "core/pool.h"

namespace leapquant::capi {
namespace {

bool aligned(const void* pointer, size_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

Status check_part(const char* pointer_name, const void* pointer, const char* stride_name,
                  int64_t stride, const char* bytes_name, int64_t slot_bytes,
                  const char* count_name, int32_t num_slots) {
  if (num_slots < 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "pool.%s is %d, expected at least 0", count_name,
                num_slots);
  }
  if (num_slots == 0 || slot_bytes == 0) return LEAPQUANT_OK;
  if (pointer == nullptr) return fail(LEAPQUANT_NULL_POINTER, "pool.%s is null", pointer_name);
  if (!aligned(pointer, 16)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "pool.%s is %p, expected a multiple of 16 bytes",
                pointer_name, pointer);
  }
  int64_t end = 0;
  if (stride < slot_bytes || stride % 16 != 0 || __builtin_mul_overflow(stride, num_slots, &end)) {
    return fail(LEAPQUANT_INVALID_STRIDE,
                "pool.%s is %lld, expected a multiple of 16 of at least %s, %lld, that times the "
                "number of slots fits 63 bits",
                stride_name, static_cast<long long>(stride), bytes_name,
                static_cast<long long>(slot_bytes));
  }
  return LEAPQUANT_OK;
}

Status check_launch(const leapquant_launch* given, leapquant_launch* launch) {
  if (Status s = take_struct(given, "launch", launch)) return s;
  if (launch->check < LEAPQUANT_CHECK_DEFAULT || launch->check > LEAPQUANT_CHECK_OFF) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "launch.check is %d, expected 0 to 2", launch->check);
  }
  if (launch->runner == nullptr) return LEAPQUANT_OK;
  if (launch->runner->run == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER, "launch.runner->run is null");
  }
  if (launch->runner->num_workers < 1) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "launch.runner->num_workers is %d, expected at least 1",
                launch->runner->num_workers);
  }
  return LEAPQUANT_OK;
}

// Door's own part of the workspace, behind the backend's.
int32_t* own_workspace(const Call& call, int32_t batch) {
  const int32_t workers = call.launch.runner != nullptr ? call.launch.runner->num_workers : 1;
  return reinterpret_cast<int32_t*>(static_cast<std::byte*>(call.launch.workspace) +
                                    backend_workspace_bytes(*call.handle, workers, batch));
}

Status window_fault(const Call& call, const Sequences& q, int32_t i, Sentence* text) {
  const int32_t window = q.windows != nullptr ? q.windows[i] : q.states[i];
  if (window >= call.pool.num_window_slots) {
    if (q.windows == nullptr) {
      return text->say(LEAPQUANT_SLOT_OUT_OF_RANGE,
                       "window_slots is null, so state_slots[%d], %d, names the window too, but "
                       "pool.num_window_slots is %d",
                       i, window, call.pool.num_window_slots);
    }
    return text->say(LEAPQUANT_SLOT_OUT_OF_RANGE,
                     "window_slots[%d] is %d, expected below pool.num_window_slots, %d", i, window,
                     call.pool.num_window_slots);
  }
  if (window < 0 && q.needs_window && q.tokens_of(i) > 0) {
    return text->say(
        LEAPQUANT_SLOT_OUT_OF_RANGE,
        "window_slots[%d] is %d, but state_slots[%d] is %d and a windowed decode needs a "
        "window for it",
        i, window, i, q.states[i]);
  }
  return LEAPQUANT_OK;
}

// Slots and the range of the position: what is wrong whatever the pool holds.
Status slot_fault(const Call& call, const Sequences& q, int32_t i, Sentence* text) {
  if (q.states[i] < 0) return LEAPQUANT_OK;
  if (q.states[i] >= call.pool.num_state_slots) {
    return text->say(LEAPQUANT_SLOT_OUT_OF_RANGE,
                     "state_slots[%d] is %d, expected below pool.num_state_slots, %d", i,
                     q.states[i], call.pool.num_state_slots);
  }
  if (call.windowed()) {
    if (Status s = window_fault(call, q, i, text)) return s;
  }
  const int32_t position = q.positions[i];
  const int32_t tokens = q.tokens_of(i);
  if (position < 0 || position > INT32_MAX - tokens) {
    return text->say(LEAPQUANT_INVALID_ARGUMENT,
                     "positions[%d] is %d, expected at least 0 and, with %d tokens, at most %d", i,
                     position, tokens, INT32_MAX - tokens);
  }
  return LEAPQUANT_OK;
}

// Position against the bases of the heads.
Status position_fault(const Call& call, const Sequences& q, int32_t i, Sentence* text) {
  const Layout& layout = call.layout();
  const int32_t position = q.positions[i];
  const int32_t window = q.windows != nullptr ? q.windows[i] : q.states[i];
  // Where value heads share key records, a head may write the newest while another has yet to fold
  // the oldest: the call's own tokens need room too.
  const int32_t own = layout.group > 1 && q.needs_window ? q.tokens_of(i) : 0;
  const int32_t room = call.windowed() && window >= 0 ? layout.window.ring_tokens - own : 0;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int32_t base = base_of(layout, call.pool, q.states[i], h);
    if (position < base) {
      return text->say(LEAPQUANT_POSITION_BELOW_BASE,
                       "positions[%d] is %d, but the base of value head %d in state slot %d is %d: "
                       "at least that is expected",
                       i, position, h, q.states[i], base);
    }
    if (static_cast<int64_t>(position) - base > room) {
      return text->say(LEAPQUANT_POSITION_PAST_WINDOW,
                       "positions[%d] is %d, but value head %d in state slot %d stands at %d and "
                       "only %d records after it can be in the window",
                       i, position, h, q.states[i], base, room);
    }
  }
  return LEAPQUANT_OK;
}

Status repeated_fault(const char* name, const int32_t* slots, int32_t i, Sentence* text) {
  int32_t first = 0;
  while (slots[first] != slots[i]) ++first;
  return text->say(LEAPQUANT_SLOT_REPEATED,
                   "%s[%d] is %d, as is %s[%d]: a call that writes a slot may name it once", name,
                   i, slots[i], name, first);
}

// Window slots count only where a live row names them.
bool live_window(const Sequences& q, int32_t i) { return q.states[i] >= 0 && q.windows[i] >= 0; }

// The same for windows, where padding rows may hold any index.
int32_t first_with_window(const Sequences& q, int32_t i) {
  int32_t first = 0;
  while (!live_window(q, first) || q.windows[first] != q.windows[i]) ++first;
  return first;
}

// Calls visit(i) for every live row whose window slot came before.
template <typename Visit>
void for_each_repeated_window(const Call& call, const Sequences& q, Visit visit) {
  SlotMarks marks;
  const int32_t num_slots = call.pool.num_window_slots;
  for (int64_t first = 0; first < num_slots; first += SlotMarks::kSlots) {
    marks.clear(static_cast<int32_t>(first));
    for (int32_t i = 0; i < q.batch; ++i) {
      if (!live_window(q, i) || q.windows[i] >= num_slots || !marks.covers(q.windows[i])) continue;
      if (marks.marked(q.windows[i]) && !visit(i)) return;
      marks.mark(q.windows[i]);
    }
  }
}

Status refuse_repeated(const Call& call, const Sequences& q) {
  Status found = LEAPQUANT_OK;
  for_each_repeated(q.states, q.batch, call.pool.num_state_slots, [&](int32_t i) {
    found = repeated_fault("state_slots", q.states, i, last_error());
    return false;
  });
  if (found != LEAPQUANT_OK || q.windows == nullptr || !call.windowed()) return found;
  for_each_repeated_window(call, q, [&](int32_t i) {
    found =
        fail(LEAPQUANT_SLOT_REPEATED,
             "window_slots[%d] is %d, as is window_slots[%d]: a call that writes a slot may name "
             "it once",
             i, q.windows[i], first_with_window(q, i));
    return false;
  });
  return found;
}

// Checks off: faults into the door's workspace, masked copies of the state slots beside them.
const int32_t* mask_faulty(const Call& call, const Sequences& q) {
  int32_t* faults = own_workspace(call, q.batch);
  int32_t* masked = faults + q.batch;
  Sentence ignored;
  bool any = false;
  for (int32_t i = 0; i < q.batch; ++i) {
    faults[i] = slot_fault(call, q, i, &ignored);
    any = any || faults[i] != LEAPQUANT_OK;
  }
  const auto repeated = [&](int32_t i) {
    if (faults[i] == LEAPQUANT_OK) faults[i] = LEAPQUANT_SLOT_REPEATED;
    any = true;
    return true;
  };
  if (q.writes_slots) {
    for_each_repeated(q.states, q.batch, call.pool.num_state_slots, repeated);
    if (q.windows != nullptr && call.windowed()) for_each_repeated_window(call, q, repeated);
  }
  if (!any) return q.states;
  for (int32_t i = 0; i < q.batch; ++i) masked[i] = faults[i] == LEAPQUANT_OK ? q.states[i] : -1;
  return masked;
}

}  // namespace

Status check_pool(const leapquant_layout* handle, const leapquant_pool* given,
                  leapquant_pool* pool) {
  if (handle == nullptr) return fail(LEAPQUANT_NULL_POINTER, "layout is null");
  if (Status s = take_struct(given, "pool", pool)) return s;
  const Layout& layout = handle->layout;
  if (Status s =
          check_part("states", pool->states, "state_stride_bytes", pool->state_stride_bytes,
                     "state_bytes", layout.state_bytes, "num_state_slots", pool->num_state_slots)) {
    return s;
  }
  if (Status s = check_part("windows", pool->windows, "window_stride_bytes",
                            pool->window_stride_bytes, "window_bytes", layout.window.bytes,
                            "num_window_slots", pool->num_window_slots)) {
    return s;
  }
  if (pool->num_state_slots == 0) return LEAPQUANT_OK;
  if (pool->base == nullptr) return fail(LEAPQUANT_NULL_POINTER, "pool.base is null");
  if (!aligned(pool->base, alignof(int32_t)) || !aligned(pool->health, alignof(leapquant_health))) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "pool.base is %p and pool.health %p, expected multiples of 4 bytes",
                static_cast<void*>(pool->base), static_cast<void*>(pool->health));
  }
  return LEAPQUANT_OK;
}

Status open_call(const leapquant_layout* layout, const leapquant_pool* pool,
                 const leapquant_launch* launch, Call* call) {
  call->handle = layout;
  if (Status s = check_pool(layout, pool, &call->pool)) return s;
  if (Status s = check_launch(launch, &call->launch)) return s;
  call->full = call->launch.check == LEAPQUANT_CHECK_FULL ||
               (call->launch.check == LEAPQUANT_CHECK_DEFAULT && !call->on_device());
  return LEAPQUANT_OK;
}

Status check_workspace(const Call& call, int32_t batch) {
  if (batch < 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "batch is %d, expected at least 0", batch);
  }
  const int32_t workers = call.launch.runner != nullptr ? call.launch.runner->num_workers : 1;
  const size_t needed = workspace_bytes(*call.handle, workers, batch);
  if (call.launch.workspace_bytes < needed) {
    return fail(LEAPQUANT_BUFFER_TOO_SMALL,
                "launch.workspace_bytes is %zu, but %d workers and %d sequences need %zu "
                "(leapquant_workspace_bytes)",
                call.launch.workspace_bytes, workers, batch, needed);
  }
  if (needed == 0) return LEAPQUANT_OK;
  if (call.launch.workspace == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER, "launch.workspace is null");
  }
  if (!aligned(call.launch.workspace, 64)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "launch.workspace is %p, expected a multiple of 64",
                call.launch.workspace);
  }
  return LEAPQUANT_OK;
}

Status check_sequences(const Call& call, const Sequences& q, const int32_t** states) {
  *states = q.states;
  if (q.batch == 0) return LEAPQUANT_OK;
  if (q.states == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slots is null");
  if (q.positions == nullptr) return fail(LEAPQUANT_NULL_POINTER, "positions is null");
  if (call.on_device()) return LEAPQUANT_OK;
  if (!call.full) {
    *states = mask_faulty(call, q);
    return LEAPQUANT_OK;
  }
  for (int32_t i = 0; i < q.batch; ++i) {
    if (Status s = slot_fault(call, q, i, last_error())) return s;
  }
  if (q.writes_slots) {
    if (Status s = refuse_repeated(call, q)) return s;
  }
  if (!q.reads_records) return LEAPQUANT_OK;
  for (int32_t i = 0; i < q.batch; ++i) {
    if (q.states[i] < 0 || (q.skips_empty && q.tokens_of(i) == 0)) continue;
    if (Status s = position_fault(call, q, i, last_error())) return s;
  }
  return LEAPQUANT_OK;
}

Status close_call(const Call& call, const Sequences& q, const int32_t* states,
                  const char* operation, Status backend_status, int32_t* status,
                  DescribeFault describe, const void* describe_context) {
  if (backend_status != LEAPQUANT_OK) {
    return fail(backend_status, "backend %s failed in %s: %s", call.handle->name, operation,
                leapquant_status_string(backend_status));
  }
  if (states != q.states) {
    const int32_t* faults = own_workspace(call, q.batch);
    for (int32_t i = 0; i < q.batch; ++i) {
      if (faults[i] != LEAPQUANT_OK) status[i] = faults[i];
    }
  }
  if (!call.full) return LEAPQUANT_OK;
  if (call.on_device()) return close_device_call(call, q.batch, operation, status);
  for (int32_t i = 0; i < q.batch; ++i) {
    if (status[i] == LEAPQUANT_OK) continue;
    const Status fault = static_cast<Status>(status[i]);
    fail(fault, "sequence %d of %s (state slot %d) was left unchanged: %s", i, operation,
         q.states[i], leapquant_status_string(fault));
    if (describe != nullptr) describe(describe_context, i, fault, last_error());
    return fault;
  }
  return LEAPQUANT_OK;
}

Status close_device_call(const Call& call, int32_t batch, const char* operation,
                         const int32_t* status) {
  constexpr int32_t kPart = 256;
  const DeviceMemory& memory = *call.backend().memory;
  if (Status s = memory.wait(call.launch.stream, last_error())) return s;
  for (int32_t first = 0; first < batch; first += kPart) {
    int32_t part[kPart];
    const int32_t count = batch - first < kPart ? batch - first : kPart;
    if (Status s = memory.read(part, status + first, sizeof(int32_t) * static_cast<size_t>(count),
                               last_error())) {
      return s;
    }
    for (int32_t i = 0; i < count; ++i) {
      if (part[i] == LEAPQUANT_OK) continue;
      const Status fault = static_cast<Status>(part[i]);
      return fail(fault, "sequence %d of %s was left unchanged: %s", first + i, operation,
                  leapquant_status_string(fault));
    }
  }
  return LEAPQUANT_OK;
}

Status check_slot_range(const char* name, const int32_t* slots, int32_t batch, int32_t count) {
  for (int32_t i = 0; i < batch; ++i) {
    if (slots[i] >= count) {
      return fail(LEAPQUANT_SLOT_OUT_OF_RANGE, "%s[%d] is %d, expected below %d, the pool's slots",
                  name, i, slots[i], count);
    }
  }
  return LEAPQUANT_OK;
}

Status check_slots_differ(const char* name, const int32_t* slots, int32_t batch, int32_t count) {
  Status found = LEAPQUANT_OK;
  for_each_repeated(slots, batch, count, [&](int32_t i) {
    found = repeated_fault(name, slots, i, last_error());
    return false;
  });
  return found;
}

Status check_slots_apart(const char* a_name, const int32_t* a, int32_t a_count, const char* b_name,
                         const int32_t* b, int32_t b_count, int32_t num_slots, bool same_row) {
  SlotMarks marks;
  for (int64_t first = 0; first < num_slots; first += SlotMarks::kSlots) {
    marks.clear(static_cast<int32_t>(first));
    for (int32_t i = 0; i < a_count; ++i) {
      if (a[i] >= 0 && marks.covers(a[i])) marks.mark(a[i]);
    }
    for (int32_t j = 0; j < b_count; ++j) {
      if (b[j] < 0 || !marks.covers(b[j]) || !marks.marked(b[j])) continue;
      for (int32_t i = 0; i < a_count; ++i) {
        if (a[i] != b[j] || (same_row && i == j)) continue;
        return fail(LEAPQUANT_SLOT_REPEATED,
                    "%s[%d] is %d, as is %s[%d]: a slot is read or written by a call, not both",
                    b_name, j, b[j], a_name, i);
      }
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::capi
