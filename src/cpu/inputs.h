// SPDX-License-Identifier: Apache-2.0
//
// From the caller's tensors to what the recurrence uses: the check of a sequence's inputs, and the
// FP32 vectors and gates of a head. Decode, per-step decode and prefill share these, so that a
// token is the same bits whichever operation takes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant::cpu {

// Elements of a vector of `count` with zeros up to a multiple of 16: rows of all FP32 scratch.
constexpr int32_t padded(int32_t count) { return (count + 15) / 16 * 16; }

// One sequence's tokens of a call: `sequence` indexes the outermost axis (0 in prefill, where the
// token axis is packed), token t of the sequence lies at index first_token + t of the token axis.
struct InputSpan {
  const leapquant_inputs* inputs = nullptr;
  int32_t tokens_axis = 0;  // length T of the token axis, for packed strides
  int64_t sequence = 0;
  int64_t first_token = 0;
  int32_t num_tokens = 0;
};

// OK, NON_FINITE_INPUT or POSITIVE_LOG_DECAY: looks at every value of every head of the span.
Status check_inputs(const Layout& layout, const InputSpan& span);

// Keys of tokens first..first+count-1 (relative to the span) of one key head, FP32, l2-normalised
// and scaled as the inputs ask. Rows have padded(K) elements, zero past K, 64-byte aligned.
// q [count], k [count][n], read_key [count][n] (may be null when inputs.read_key.data is null).
void prepare_key_head(const Layout& layout, const InputSpan& span, int32_t k_head, int32_t first,
                      int32_t count, float* q, float* k, float* read_key);

// Values and gates of one value head. v [count][n] rows of padded(V); log_decay [count] (decay
// none: zeros; constant: the constant) or, vector decays, [count] rows of padded(K) (zero past K);
// beta [count][n] unpadded. log_decay is never NaN and never above zero.
void prepare_value_head(const Layout& layout, const InputSpan& span, int32_t v_head, int32_t first,
                        int32_t count, float* v, float* log_decay, float* beta);

// Writes `value` [V] as row `token` (index on the token axis) of one value head into the output.
// FP16 saturates at 65504. Null value: zeros.
void store_output(const Layout& layout, const leapquant_output& output, int32_t tokens_axis,
                  int64_t sequence, int64_t token, int32_t v_head, const float* value);

}  // namespace leapquant::cpu
