// SPDX-License-Identifier: Apache-2.0
//
// C API: leapquant_copy and leapquant_reset. Neither has a status per sequence: every fault refuses
// the call, with checks on or off. A device leaves faulty rows alone and notes why in the
// workspace; with checks on the first of them becomes the call's status.
#include "capi/call.h"

namespace leapquant::capi {
namespace {

// The state's index stands for a window that is not named; the pool must have it then.
Status check_implied_windows(const Call& call, const char* name, const int32_t* states,
                             const char* windows_name, int32_t batch) {
  for (int32_t i = 0; i < batch; ++i) {
    if (states[i] >= call.pool.num_window_slots) {
      return fail(
          LEAPQUANT_SLOT_OUT_OF_RANGE,
          "%s is null, so %s[%d], %d, names the window too, but pool.num_window_slots is %d",
          windows_name, name, i, states[i], call.pool.num_window_slots);
    }
  }
  return LEAPQUANT_OK;
}

Status check_windows(const Call& call, const char* name, const int32_t* states,
                     const char* windows_name, const int32_t* windows, int32_t batch) {
  if (!call.windowed()) return LEAPQUANT_OK;
  if (windows == nullptr) return check_implied_windows(call, name, states, windows_name, batch);
  return check_slot_range(windows_name, windows, batch, call.pool.num_window_slots);
}

// After the backend of copy or reset.
Status close_rows(const Call& call, int32_t batch, const char* operation, Status done) {
  if (done != LEAPQUANT_OK) {
    return fail(done, "backend %s failed in %s: %s", call.handle->name, operation,
                leapquant_status_string(done));
  }
  if (!call.on_device() || !call.full) return LEAPQUANT_OK;
  const size_t per_worker = call.backend().workspace_per_worker(call.layout());
  return close_device_call(
      call, batch, operation,
      reinterpret_cast<const int32_t*>(sequence_scratch(call.launch, per_worker)));
}

struct CopyArrays {
  const int32_t* source_states;
  const int32_t* source_windows;
  const int32_t* destination_states;
  const int32_t* destination_windows;
};

Status check_copy(const Call& call, int32_t batch, const CopyArrays& arrays) {
  const char* from = "source_state_slots";
  const char* to = "destination_state_slots";
  const int32_t slots = call.pool.num_state_slots;
  if (Status s = check_slot_range(from, arrays.source_states, batch, slots)) return s;
  if (Status s = check_slot_range(to, arrays.destination_states, batch, slots)) return s;
  for (int32_t i = 0; i < batch; ++i) {
    if ((arrays.source_states[i] < 0) != (arrays.destination_states[i] < 0)) {
      return fail(LEAPQUANT_SLOT_OUT_OF_RANGE,
                  "%s[%d] is %d and %s[%d] is %d: expected both to be slots, or both negative",
                  from, i, arrays.source_states[i], to, i, arrays.destination_states[i]);
    }
  }
  if (Status s = check_slots_differ(to, arrays.destination_states, batch, slots)) return s;
  if (Status s = check_slots_apart(from, arrays.source_states, batch, to, arrays.destination_states,
                                   batch, slots, false)) {
    return s;
  }
  const char* from_window = "source_window_slots";
  const char* to_window = "destination_window_slots";
  if (Status s = check_windows(call, from, arrays.source_states, from_window, arrays.source_windows,
                               batch)) {
    return s;
  }
  if (Status s = check_windows(call, to, arrays.destination_states, to_window,
                               arrays.destination_windows, batch)) {
    return s;
  }
  if (call.windowed()) {
    // An array that is not given is the states', and these have been compared already.
    const int32_t windows = call.pool.num_window_slots;
    const int32_t* from_slots =
        arrays.source_windows != nullptr ? arrays.source_windows : arrays.source_states;
    const int32_t* to_slots = arrays.destination_windows != nullptr ? arrays.destination_windows
                                                                    : arrays.destination_states;
    if (Status s = check_slots_differ(to_window, to_slots, batch, windows)) return s;
    if (Status s = check_slots_apart(from_window, from_slots, batch, to_window, to_slots, batch,
                                     windows, false)) {
      return s;
    }
  }
  return LEAPQUANT_OK;
}

Status copy(const leapquant_layout* layout, const leapquant_pool* pool, int32_t batch,
            const int32_t* source_states, const int32_t* source_windows,
            const int32_t* destination_states, const int32_t* destination_windows,
            const leapquant_launch* launch) {
  Call call;
  if (Status s = open_call(layout, pool, launch, &call)) return s;
  if (Status s = check_workspace(call, batch)) return s;
  if (batch == 0) return LEAPQUANT_OK;
  const char* from = "source_state_slots";
  const char* to = "destination_state_slots";
  if (source_states == nullptr) return fail(LEAPQUANT_NULL_POINTER, "%s is null", from);
  if (destination_states == nullptr) return fail(LEAPQUANT_NULL_POINTER, "%s is null", to);
  if (!call.on_device()) {
    const CopyArrays arrays = {source_states, source_windows, destination_states,
                               destination_windows};
    if (Status s = check_copy(call, batch, arrays)) return s;
  }
  const Status done =
      call.backend().copy(call.layout(), call.pool, batch, source_states, source_windows,
                          destination_states, destination_windows, call.launch);
  return close_rows(call, batch, "copy", done);
}

Status check_reset(const Call& call, int32_t batch, const int32_t* states, const int32_t* windows,
                   const int32_t* positions) {
  const int32_t slots = call.pool.num_state_slots;
  if (Status s = check_slot_range("state_slots", states, batch, slots)) return s;
  if (Status s = check_slots_differ("state_slots", states, batch, slots)) return s;
  if (Status s = check_windows(call, "state_slots", states, "window_slots", windows, batch)) {
    return s;
  }
  if (call.windowed() && windows != nullptr) {
    if (Status s = check_slots_differ("window_slots", windows, batch, call.pool.num_window_slots)) {
      return s;
    }
  }
  for (int32_t i = 0; i < batch; ++i) {
    if (states[i] >= 0 && positions[i] < 0) {
      return fail(LEAPQUANT_INVALID_ARGUMENT, "positions[%d] is %d, expected at least 0", i,
                  positions[i]);
    }
  }
  return LEAPQUANT_OK;
}

Status reset(const leapquant_layout* layout, const leapquant_pool* pool, int32_t batch,
             const int32_t* states, const int32_t* windows, const int32_t* positions,
             const leapquant_launch* launch) {
  Call call;
  if (Status s = open_call(layout, pool, launch, &call)) return s;
  if (Status s = check_workspace(call, batch)) return s;
  if (batch == 0) return LEAPQUANT_OK;
  if (states == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slots is null");
  if (positions == nullptr) return fail(LEAPQUANT_NULL_POINTER, "positions is null");
  if (!call.on_device()) {
    if (Status s = check_reset(call, batch, states, windows, positions)) return s;
  }
  const Status done = call.backend().reset(call.layout(), call.pool, batch, states, windows,
                                           positions, call.launch);
  return close_rows(call, batch, "reset", done);
}

}  // namespace
}  // namespace leapquant::capi

extern "C" {

leapquant_status leapquant_copy(const leapquant_layout* layout, const leapquant_pool* pool,
                                int32_t batch, const int32_t* source_state_slots,
                                const int32_t* source_window_slots,
                                const int32_t* destination_state_slots,
                                const int32_t* destination_window_slots,
                                const leapquant_launch* launch) {
  return leapquant::capi::copy(layout, pool, batch, source_state_slots, source_window_slots,
                               destination_state_slots, destination_window_slots, launch);
}

leapquant_status leapquant_reset(const leapquant_layout* layout, const leapquant_pool* pool,
                                 int32_t batch, const int32_t* state_slots,
                                 const int32_t* window_slots, const int32_t* positions,
                                 const leapquant_launch* launch) {
  return leapquant::capi::reset(layout, pool, batch, state_slots, window_slots, positions, launch);
}

}  // extern "C"
