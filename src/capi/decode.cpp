// SPDX-License-Identifier: Apache-2.0
//
// C API: leapquant_decode.
#include "capi/call.h"
#include "capi/tensors.h"

namespace leapquant::capi {
namespace {

Status check_token_counts(const Call& call, const leapquant_decode_args& args) {
  const int32_t max_tokens = call.layout().shape.max_tokens;
  if (args.tokens < 1 || args.tokens > max_tokens) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "args.tokens is %d, expected 1 to shape.max_tokens, %d (a call of no tokens has "
                "nothing to decode)",
                args.tokens, max_tokens);
  }
  if (args.num_tokens == nullptr || call.on_device()) return LEAPQUANT_OK;
  for (int32_t i = 0; i < args.batch; ++i) {
    if (args.num_tokens[i] < 0 || args.num_tokens[i] > args.tokens) {
      return fail(LEAPQUANT_INVALID_ARGUMENT,
                  "args.num_tokens[%d] is %d, expected 0 to args.tokens, %d", i, args.num_tokens[i],
                  args.tokens);
    }
  }
  return LEAPQUANT_OK;
}

struct Described {
  const Layout* layout;
  const leapquant_decode_args* args;
};

void describe(const void* context, int32_t sequence, Status fault, Sentence* text) {
  const Described& d = *static_cast<const Described*>(context);
  const int32_t count =
      d.args->num_tokens != nullptr ? d.args->num_tokens[sequence] : d.args->tokens;
  describe_numeric_fault(*d.layout, d.args->inputs, sequence, sequence, 0, count, fault, text);
}

Status decode(const leapquant_layout* layout, const leapquant_pool* pool,
              const leapquant_decode_args* given, const leapquant_launch* launch) {
  Call call;
  leapquant_decode_args args;
  if (Status s = open_operation(layout, pool, given, launch, &call, &args)) return s;
  if (Status s = check_token_counts(call, args)) return s;
  if (args.batch == 0) return LEAPQUANT_OK;
  const Leading leading = {.sequences = args.batch, .tokens = args.tokens};
  if (Status s = check_tensors(call, leading, &args.inputs, &args.output)) return s;

  Sequences sequences = sequences_of(args);
  sequences.tokens = args.num_tokens;
  sequences.all_tokens = args.tokens;
  sequences.needs_window = true;
  sequences.skips_empty = true;
  if (Status s = check_sequences(call, sequences, &args.state_slots)) return s;
  const Status done = call.backend().decode(call.layout(), call.pool, args, call.launch);
  const Described described = {&call.layout(), &args};
  return close_call(call, sequences, args.state_slots, "decode", done, args.status, describe,
                    &described);
}

}  // namespace
}  // namespace leapquant::capi

extern "C" leapquant_status leapquant_decode(const leapquant_layout* layout,
                                             const leapquant_pool* pool,
                                             const leapquant_decode_args* args,
                                             const leapquant_launch* launch) {
  return leapquant::capi::decode(layout, pool, args, launch);
}
