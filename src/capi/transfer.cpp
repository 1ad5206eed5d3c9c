// SPDX-License-Identifier: Apache-2.0
//
// C API: leapquant_export and leapquant_import.
#include "capi/call.h"
#include "capi/tensors.h"

namespace leapquant::capi {
namespace {

Status check_matrices(const leapquant_shape& shape, leapquant_transfer_args* args) {
  if (args->type != LEAPQUANT_FP32 && args->type != LEAPQUANT_BF16) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "args.type is %d, expected LEAPQUANT_FP32 (0) or LEAPQUANT_BF16 (2)", args->type);
  }
  if (args->order != LEAPQUANT_KV && args->order != LEAPQUANT_VK) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "args.order is %d, expected LEAPQUANT_KV (0) or LEAPQUANT_VK (1)", args->order);
  }
  if (args->matrices == nullptr) return fail(LEAPQUANT_NULL_POINTER, "args.matrices is null");
  const int64_t element = type_bytes(args->type);
  Axis axes[] = {{"head_stride_bytes", shape.num_v_heads, &args->head_stride_bytes},
                 {"sequence_stride_bytes", args->batch, &args->sequence_stride_bytes}};
  int64_t extent = 0;
  return check_memory("args", args->matrices, element,
                      element * shape.head_k_dim * shape.head_v_dim, axes, 2, &extent);
}

using Transfer = Status (*)(const Layout&, const leapquant_pool&, const leapquant_transfer_args&,
                            const leapquant_launch&);

Status transfer(const leapquant_layout* layout, const leapquant_pool* pool,
                const leapquant_transfer_args* given, const leapquant_launch* launch,
                bool importing) {
  Call call;
  leapquant_transfer_args args;
  if (Status s = open_operation(layout, pool, given, launch, &call, &args)) return s;
  if (args.batch == 0) return LEAPQUANT_OK;
  if (Status s = check_matrices(call.layout().shape, &args)) return s;
  Sequences sequences = sequences_of(args);
  sequences.writes_slots = importing;
  sequences.reads_records = !importing;
  if (Status s = check_sequences(call, sequences, &args.state_slots)) return s;
  const Transfer run = importing ? call.backend().import_states : call.backend().export_states;
  const Status done = run(call.layout(), call.pool, args, call.launch);
  return close_call(call, sequences, args.state_slots, importing ? "import" : "export", done,
                    args.status, nullptr, nullptr);
}

}  // namespace
}  // namespace leapquant::capi

extern "C" {

leapquant_status leapquant_export(const leapquant_layout* layout, const leapquant_pool* pool,
                                  const leapquant_transfer_args* args,
                                  const leapquant_launch* launch) {
  return leapquant::capi::transfer(layout, pool, args, launch, false);
}

leapquant_status leapquant_import(const leapquant_layout* layout, const leapquant_pool* pool,
                                  const leapquant_transfer_args* args,
                                  const leapquant_launch* launch) {
  return leapquant::capi::transfer(layout, pool, args, launch, true);
}

}  // extern "C"
