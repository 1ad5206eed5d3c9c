// SPDX-License-Identifier: Apache-2.0
//
// The part of the door that all operations share: layout, pool and launch of a call, the slots and
// positions of its sequences, and what becomes of faults. Tensors are checked in capi/tensors.h.
#pragma once

#include "capi/layout_handle.h"
#include "capi/structs.h"

namespace leapquant::capi {

// A call past its first checks, with copies of the caller's structs.
struct Call {
  const leapquant_layout* handle = nullptr;
  leapquant_pool pool;
  leapquant_launch launch;
  bool full = true;  // checks are on: faults refuse the call or become its status

  const Layout& layout() const { return handle->layout; }
  const Backend& backend() const { return *handle->backend; }
  bool windowed() const { return handle->layout.window.bytes > 0; }
  // Arrays, tensors and pool lie where the host may not look: the backend checks them.
  bool on_device() const { return handle->backend->memory != nullptr; }
};

Status check_pool(const leapquant_layout* handle, const leapquant_pool* given,
                  leapquant_pool* pool);

// Layout, pool and launch, and a workspace that is large enough for `batch` sequences.
Status open_call(const leapquant_layout* layout, const leapquant_pool* pool,
                 const leapquant_launch* launch, Call* call);
Status check_workspace(const Call& call, int32_t batch);

// The first checks of every operation on a batch: those above, a copy of the arguments, and the
// status array of a batch that is not empty.
template <typename Args>
Status open_operation(const leapquant_layout* layout, const leapquant_pool* pool, const Args* given,
                      const leapquant_launch* launch, Call* call, Args* args) {
  if (Status s = open_call(layout, pool, launch, call)) return s;
  if (Status s = take_struct(given, "args", args)) return s;
  if (Status s = check_workspace(*call, args->batch)) return s;
  if (args->batch > 0 && args->status == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER, "args.status is null");
  }
  return LEAPQUANT_OK;
}

// What the sequences of a call name. Arrays [batch]; null where the header allows it.
struct Sequences {
  int32_t batch = 0;
  const int32_t* states = nullptr;
  const int32_t* windows = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* tokens = nullptr;         // tokens each sequence feeds; null: all_tokens
  const int32_t* token_offsets = nullptr;  // prefill: instead of `tokens`
  int32_t all_tokens = 0;
  bool writes_slots = true;   // a slot may not appear twice
  bool needs_window = false;  // a live row of a windowed layout must have a window slot
  bool reads_records = true;  // position must lie between base and the end of the ring
  bool skips_empty = false;   // a sequence without tokens is left alone, whatever its position

  int32_t tokens_of(int32_t i) const {
    if (token_offsets != nullptr) return token_offsets[i + 1] - token_offsets[i];
    return tokens != nullptr ? tokens[i] : all_tokens;
  }
};

// The common arguments of an operation, with the defaults of the rest.
template <typename Args>
Sequences sequences_of(const Args& args) {
  Sequences sequences;
  sequences.batch = args.batch;
  sequences.states = args.state_slots;
  sequences.windows = args.window_slots;
  sequences.positions = args.positions;
  return sequences;
}

// Finds faults that the host can see; on a device there are none. With checks on, the first one is
// the answer and nothing is done. With checks off, faulty sequences are turned into padding rows:
// *states becomes the array to hand to the backend, and close_call writes their faults into the
// status array.
Status check_sequences(const Call& call, const Sequences& sequences, const int32_t** states);

// After the backend: its own failure, or with checks on the first faulty sequence as the call's
// status. `describe` may refine the sentence of a numeric fault; `describe_context` is its own.
using DescribeFault = void (*)(const void* context, int32_t sequence, Status fault, Sentence* text);
Status close_call(const Call& call, const Sequences& sequences, const int32_t* states,
                  const char* operation, Status backend_status, int32_t* status,
                  DescribeFault describe, const void* describe_context);

// Checks on a device: waits for the call and looks for the first faulty sequence. status [batch]
// lies in device memory.
Status close_device_call(const Call& call, int32_t batch, const char* operation,
                         const int32_t* status);

// Slots of an array without status, such as those of copy: each is negative or below `count`.
Status check_slot_range(const char* name, const int32_t* slots, int32_t batch, int32_t count);
// No slot >= 0 appears twice.
Status check_slots_differ(const char* name, const int32_t* slots, int32_t batch, int32_t count);
// No slot >= 0 of `a` is one of `b`, rows with the same index aside when `same_row` is set.
Status check_slots_apart(const char* a_name, const int32_t* a, int32_t a_count, const char* b_name,
                         const int32_t* b, int32_t b_count, int32_t num_slots, bool same_row);

}  // namespace leapquant::capi
