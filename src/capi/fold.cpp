// SPDX-License-Identifier: Apache-2.0
//
// C API: leapquant_fold.
#include "capi/call.h"

namespace leapquant::capi {
namespace {

Status check_destinations(const Call& call, const leapquant_fold_args& args) {
  const int32_t num_slots = call.pool.num_state_slots;
  const char* name = "args.destination_slots";
  if (Status s = check_slot_range(name, args.destination_slots, args.batch, num_slots)) return s;
  for (int32_t i = 0; i < args.batch; ++i) {
    if (args.state_slots[i] >= 0 && args.destination_slots[i] < 0) {
      return fail(
          LEAPQUANT_SLOT_OUT_OF_RANGE,
          "args.destination_slots[%d] is %d, but args.state_slots[%d] is %d: a live row needs a "
          "destination",
          i, args.destination_slots[i], i, args.state_slots[i]);
    }
  }
  if (Status s = check_slots_differ(name, args.destination_slots, args.batch, num_slots)) return s;
  return check_slots_apart("args.state_slots", args.state_slots, args.batch, name,
                           args.destination_slots, args.batch, num_slots, true);
}

Status fold(const leapquant_layout* layout, const leapquant_pool* pool,
            const leapquant_fold_args* given, const leapquant_launch* launch) {
  Call call;
  leapquant_fold_args args;
  if (Status s = open_operation(layout, pool, given, launch, &call, &args)) return s;
  if (args.batch == 0) return LEAPQUANT_OK;
  if (args.state_slots == nullptr) return fail(LEAPQUANT_NULL_POINTER, "state_slots is null");
  if (args.destination_slots != nullptr && !call.on_device()) {
    if (Status s = check_destinations(call, args)) return s;
  }
  Sequences sequences = sequences_of(args);
  sequences.writes_slots = args.destination_slots == nullptr;
  if (Status s = check_sequences(call, sequences, &args.state_slots)) return s;
  const Status done = call.backend().fold(call.layout(), call.pool, args, call.launch);
  return close_call(call, sequences, args.state_slots, "fold", done, args.status, nullptr, nullptr);
}

}  // namespace
}  // namespace leapquant::capi

extern "C" leapquant_status leapquant_fold(const leapquant_layout* layout,
                                           const leapquant_pool* pool,
                                           const leapquant_fold_args* args,
                                           const leapquant_launch* launch) {
  return leapquant::capi::fold(layout, pool, args, launch);
}
