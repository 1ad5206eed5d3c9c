// SPDX-License-Identifier: Apache-2.0
//
// Presets and format strings: names for leapquant_format values. The grammar is documented in
// docs/FORMAT.md; nothing else in the library knows a preset's name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/sentence.h"
#include "leapquant/leapquant.h"

namespace leapquant {

// Name of preset i, or nullptr past the last.
const char* preset_name(int32_t i);

Status parse_format(const char* text, leapquant_format* format, Sentence* sentence);

// A format or "mix(...)"; see leapquant_formats_from_string.
Status parse_formats(const char* text, int32_t layer, int32_t num_v_heads,
                     leapquant_format* formats, int32_t max_formats, int32_t* num_formats,
                     uint8_t* head_format, Sentence* sentence);

// Canonical text: a preset's name where one fits, then the options that differ from it. `format` is
// normalised. False when `bytes` is too small.
bool print_format(const leapquant_format& format, char* buffer, size_t bytes);

// Equal in every field that decides bytes or the encoder (struct_size aside).
bool same_format(const leapquant_format& a, const leapquant_format& b);

}  // namespace leapquant
