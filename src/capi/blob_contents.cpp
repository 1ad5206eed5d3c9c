// SPDX-License-Identifier: Apache-2.0
//
// Value checks of boundary states and records in a blob. Everything is read in place by memcpy.
#include "capi/blob_contents.h"

#include <cmath>

#include "core/numeric.h"
#include "core/packing.h"

namespace leapquant::capi {
namespace {

constexpr int32_t kMaxHeadDim = 256;

bool finite_halves(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if ((load_number<uint16_t>(at + 2 * i) & 0x7c00u) == 0x7c00u) return false;
  }
  return true;
}

bool finite_bf16(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if ((load_number<uint16_t>(at + 2 * i) & 0x7f80u) == 0x7f80u) return false;
  }
  return true;
}

bool finite_floats(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(load_number<float>(at + 4 * i))) return false;
  }
  return true;
}

// Finite and not negative; a scale of zero marks a zero column or vector.
bool sound_scales(const uint8_t* at, int64_t count, bool half) {
  for (int64_t i = 0; i < count; ++i) {
    const float scale =
        half ? fp16_to_float(load_number<uint16_t>(at + 2 * i)) : load_number<float>(at + 4 * i);
    if (!(std::isfinite(scale) && !std::signbit(scale))) return false;
  }
  return true;
}

// Not above zero, not NaN; -infinity forgets everything.
bool sound_decays(const uint8_t* at, int64_t count, bool half) {
  for (int64_t i = 0; i < count; ++i) {
    const float decay =
        half ? fp16_to_float(load_number<uint16_t>(at + 2 * i)) : load_number<float>(at + 4 * i);
    if (!(decay <= 0.0f)) return false;
  }
  return true;
}

// Codes of packed rows: none below -largest, filler as the packing says.
bool sound_codes(const uint8_t* at, int64_t rows, int32_t count, int32_t bits, int32_t smallest) {
  int8_t codes[kMaxHeadDim];
  uint8_t packed[kMaxHeadDim];
  const int32_t row_bytes = packed_bytes(count, bits);
  for (int64_t row = 0; row < rows; ++row, at += row_bytes) {
    unpack_codes(at, count, bits, codes);
    for (int32_t i = 0; i < count; ++i) {
      if (codes[i] < smallest) return false;
    }
    pack_codes(codes, count, bits, packed);
    if (std::memcmp(packed, at, static_cast<size_t>(row_bytes)) != 0) return false;
  }
  return true;
}

// The first part of a head's boundary state that no fold writes, or null.
const char* unsound_part(const BoundaryLayout& b, const uint8_t* at) {
  const leapquant_format& f = b.format;
  const int64_t entries = int64_t{b.k_dim} * b.v_dim;
  if (f.payload_bits == 32) return finite_floats(at, entries) ? nullptr : "state";
  if (f.payload_bits == 16) return finite_bf16(at, entries) ? nullptr : "state";
  const bool half_scales = f.value_scale_type == LEAPQUANT_FP16;
  const int32_t smallest = f.levels == LEAPQUANT_INTEGERS ? -b.q_max : -128;
  if (!sound_codes(at + b.payload, b.k_dim, b.v_dim, f.payload_bits, smallest)) return "codes";
  if (!sound_scales(at + b.value_scale, b.v_dim, half_scales)) return "value scales";
  if (f.smoothing == LEAPQUANT_SMOOTHING_FP32 && !sound_scales(at + b.smoothing, b.k_dim, false)) {
    return "smoothing factors";
  }
  const int64_t scaled = f.num_int8 + f.num_int4;
  if (!finite_halves(at + b.fp16_keys, int64_t{f.num_fp16} * b.k_dim) ||
      !finite_halves(at + b.fp16_values, int64_t{f.num_fp16} * b.v_dim)) {
    return "FP16 compensators";
  }
  if (!sound_scales(at + b.key_scales, scaled, true) ||
      !sound_scales(at + b.value_scales, scaled, true)) {
    return "compensators' scales";
  }
  if (!sound_codes(at + b.int8_keys, f.num_int8, b.k_dim, 8, -127) ||
      !sound_codes(at + b.int8_values, f.num_int8, b.v_dim, 8, -127)) {
    return "INT8 compensators";
  }
  return nullptr;
}

Status check_states(const SavedBlob& blob, Sentence* sentence) {
  const uint8_t* at = blob.states();
  for (int32_t h = 0; h < blob.shape.num_v_heads; ++h) {
    const BoundaryLayout& head = blob.head(h);
    if (const char* part = unsound_part(head, at)) {
      return sentence->say(LEAPQUANT_CORRUPT,
                           "the %s of value head %d in the saved state are none that a fold writes",
                           part, h);
    }
    at += head.bytes;
  }
  return LEAPQUANT_OK;
}

Status check_window(const SavedBlob& blob, Sentence* sentence) {
  const leapquant_format& format = blob.classes[0].format;
  const WindowBytes row = window_bytes(blob.shape, format);
  const int32_t group = blob.shape.num_v_heads / blob.shape.num_k_heads;
  const auto base = [&blob](int32_t h) { return blob.base(h); };
  const bool half =
      blob.shape.decay == LEAPQUANT_DECAY_VECTOR && format.log_decay_type == LEAPQUANT_FP16;
  int64_t halves = 0;
  for (int32_t k = 0; k < blob.shape.num_k_heads; ++k) {
    halves += (blob.position - first_record(k, group, base)) * row.key_row / 2;
  }
  int64_t decays = 0;
  for (int32_t h = 0; h < blob.shape.num_v_heads; ++h) {
    halves += (blob.position - base(h)) * row.correction_row / 2;
    decays += (blob.position - base(h)) * row.decay_row / (half ? 2 : 4);
  }
  const uint8_t* at = blob.window();
  if (!finite_halves(at, halves)) {
    return sentence->say(LEAPQUANT_CORRUPT,
                         "a saved record holds a key or correction that is not finite");
  }
  at += 2 * halves;
  if (!sound_decays(at, decays, half)) {
    return sentence->say(LEAPQUANT_CORRUPT, "a saved record holds a log decay above 0 or NaN");
  }
  at += decays * (half ? 2 : 4);
  for (const uint8_t* end = blob.window() + blob.window_section_bytes; at < end; ++at) {
    if (*at != 0) {
      return sentence->say(LEAPQUANT_CORRUPT, "the padding behind the saved records is not zero");
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace

Status check_contents(const SavedBlob& blob, Sentence* sentence) {
  if (Status s = check_states(blob, sentence)) return s;
  return check_window(blob, sentence);
}

}  // namespace leapquant::capi
