// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a boundary state and of a window: what lies where. The one source of every size and
// offset; the codec, the backends, the saved blob and the planner all read these structs.
// docs/FORMAT.md draws the same in tables.
#pragma once

#include <cstdint>

#include "core/array.h"
#include "core/sentence.h"
#include "leapquant/leapquant.h"

namespace leapquant {

// One head's boundary state. Offsets in bytes from its start; parts that are absent have size 0.
// For payload_bits 16 / 32 only the payload exists: the state [K, V], value index contiguous.
struct BoundaryLayout {
  leapquant_format format;   // normalised: no zero stands for a default any more
  int32_t k_dim = 0;         // K
  int32_t v_dim = 0;         // V
  int32_t row_bytes = 0;     // packed payload bytes of one key row
  int32_t rank = 0;          // num_fp16 + num_int8 + num_int4
  int32_t q_max = 0;         // Q: largest integer code (integers); 2^(bits-1) for half-integers
  float scale_steps = 0;     // steps at which a column's largest magnitude lies
  int64_t payload = 0;       // codes [K][row_bytes], packed along the value index
  int64_t value_scale = 0;   // B [V] FP32 or FP16
  int64_t smoothing = 0;     // c [K] FP32 or log8
  int64_t fp16_keys = 0;     // [num_fp16][K] FP16
  int64_t fp16_values = 0;   // [num_fp16][V] FP16
  int64_t int8_keys = 0;     // [num_int8][K] int8
  int64_t int8_values = 0;   // [num_int8][V] int8
  int64_t int4_keys = 0;     // [num_int4][(K + 1) / 2] packed 4 bits
  int64_t int4_values = 0;   // [num_int4][(V + 1) / 2]
  int64_t key_scales = 0;    // [num_int8 + num_int4] FP16
  int64_t value_scales = 0;  // [num_int8 + num_int4] FP16 (of the compensators' value sides)
  int64_t bytes = 0;         // multiple of 16; the padding is zero
  bool quantised() const { return format.payload_bits <= 8; }
};

// One sequence's window in a window slot. A token t lies at ring index r = t mod ring_tokens; its
// sub-step j at record r * sub_steps + j.
struct WindowLayout {
  int32_t ring_tokens = 0;  // R
  int32_t records = 0;      // R * sub_steps
  int32_t decay_bytes = 0;  // bytes of one log decay: 4, or 2 (FP16 vector decays); 0: not stored
  int32_t decay_count = 0;  // log decays per token and value head: 0, 1 or K
  int64_t keys = 0;         // [HK][records][K] FP16
  int64_t corrections = 0;  // [HV][records][V] FP16
  int64_t log_decays = 0;   // [HV][R][decay_count]
  int64_t bytes = 0;        // multiple of 16
  int64_t key_head_stride = 0;
  int64_t correction_head_stride = 0;
  int64_t decay_head_stride = 0;
};

// A whole layer: shape, the classes of its heads and where each head lies in a state slot.
struct Layout {
  leapquant_shape shape;          // normalised; constant_log_decay is null, see `decays`
  Array<float> decays;            // [HV] constant log decays, else empty
  Array<BoundaryLayout> classes;  // distinct formats
  Array<uint8_t> head_class;      // [HV]
  Array<int64_t> head_offset;     // [HV] offset of the head's boundary state in a slot
  Array<int32_t> head_boundary;   // [HV] boundary offset s of the head
  WindowLayout window;
  int64_t state_bytes = 0;    // of a slot, multiple of 16
  int32_t group = 0;          // value heads per key head
  bool per_step = false;      // policy of all classes
  int32_t window_tokens = 0;  // p

  const BoundaryLayout& head(int32_t v_head) const {
    return classes[head_class[static_cast<size_t>(v_head)]];
  }
};

// Fills in defaults (zeros) of a format and checks its ranges; the sentence names the field.
Status normalise_format(const leapquant_format& given, leapquant_format* format,
                        Sentence* sentence);
Status normalise_shape(const leapquant_shape& given, leapquant_shape* shape, Sentence* sentence);

BoundaryLayout make_boundary_layout(const leapquant_format& normalised, int32_t k_dim,
                                    int32_t v_dim);
// OUT_OF_MEMORY when the host refuses the arrays; on any failure *layout is as it was.
Status make_layout(const leapquant_shape& shape, const leapquant_format* formats,
                   int32_t num_formats, const uint8_t* head_format, Layout* layout,
                   Sentence* sentence);

}  // namespace leapquant
