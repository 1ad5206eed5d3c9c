// SPDX-License-Identifier: Apache-2.0
//
// The part of the door that looks at strided memory: inputs, outputs, matrices. Strides of 0 are
// replaced by the packed ones and gate defaults filled in, so that nothing below needs to know
// them.
#pragma once

#include "capi/call.h"

namespace leapquant::capi {

// An axis outside the contiguous one. stride is in bytes, in and out; name for sentences.
struct Axis {
  const char* name;
  int64_t count;
  int64_t* stride;
};

// Bytes of a leapquant_type, 0 for an unknown one.
int64_t type_bytes(int32_t type);

// Memory [axes.., row_bytes] at `data`: not null, aligned to `element` bytes; fills packed strides
// (innermost first), refuses strides that are negative, unaligned or let rows overlap. *extent
// receives the bytes from `data` to the end of the last row. Axes of one element have no stride.
Status check_memory(const char* name, const void* data, int64_t element, int64_t row_bytes,
                    Axis* axes, int32_t num_axes, int64_t* extent);

// Leading axes of a call's tensors: decode [batch, tokens], prefill [total tokens] (sequences = 1).
struct Leading {
  int64_t sequences = 1;
  int64_t tokens = 0;
  bool has_sequences = true;  // false: strides of sequences are not looked at
};

// Checks inputs and output for the layout and completes them in place. Nothing is read from
// tensors; the gates' and hooks' parameters (a_log, dt_bias, bonus, skip) are, on the CPU.
Status check_tensors(const Call& call, const Leading& leading, leapquant_inputs* inputs,
                     leapquant_output* output);

// Names the first input that explains a numeric fault of tokens first .. first + count - 1 of one
// sequence; leaves the sentence alone where it finds none.
void describe_numeric_fault(const Layout& layout, const leapquant_inputs& inputs, int32_t sequence,
                            int64_t sequence_index, int64_t first, int64_t count, Status fault,
                            Sentence* text);

}  // namespace leapquant::capi
