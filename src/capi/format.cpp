// SPDX-License-Identifier: Apache-2.0
//
// C API, section "Format of a state": text to formats and back.
#include "core/format.h"

#include "capi/structs.h"
#include "core/layout.h"

using leapquant::capi::fail;
using leapquant::capi::last_error;

extern "C" {

leapquant_status leapquant_format_from_string(const char* text, leapquant_format* format) {
  if (text == nullptr) return fail(LEAPQUANT_NULL_POINTER, "text is null");
  if (format == nullptr) return fail(LEAPQUANT_NULL_POINTER, "format is null");
  leapquant_format parsed = LEAPQUANT_INIT(leapquant_format);
  if (leapquant_status s = leapquant::parse_format(text, &parsed, last_error())) return s;
  *format = parsed;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_formats_from_string(const char* text, int32_t layer, int32_t num_v_heads,
                                               leapquant_format* formats, int32_t max_formats,
                                               int32_t* num_formats, uint8_t* head_format) {
  if (text == nullptr) return fail(LEAPQUANT_NULL_POINTER, "text is null");
  if (formats == nullptr) return fail(LEAPQUANT_NULL_POINTER, "formats is null");
  if (num_formats == nullptr) return fail(LEAPQUANT_NULL_POINTER, "num_formats is null");
  if (head_format == nullptr) return fail(LEAPQUANT_NULL_POINTER, "head_format is null");
  if (layer < 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "layer is %d, expected at least 0", layer);
  }
  if (num_v_heads < 1 || num_v_heads > 65536) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "num_v_heads is %d, expected 1 to 65536", num_v_heads);
  }
  return leapquant::parse_formats(text, layer, num_v_heads, formats, max_formats, num_formats,
                                  head_format, last_error());
}

leapquant_status leapquant_format_to_string(const leapquant_format* format, char* buffer,
                                            size_t bytes) {
  if (buffer == nullptr) return fail(LEAPQUANT_NULL_POINTER, "buffer is null");
  leapquant_format given;
  if (leapquant_status s = leapquant::capi::take_struct(format, "format", &given)) return s;
  if (leapquant_status s =
          leapquant::capi::check_reserved(given.reserved, "format", LEAPQUANT_INVALID_FORMAT)) {
    return s;
  }
  leapquant_format normalised;
  if (leapquant_status s = leapquant::normalise_format(given, &normalised, last_error())) return s;
  char text[256];
  if (!leapquant::print_format(normalised, text, sizeof(text))) {
    return fail(LEAPQUANT_INTERNAL, "the text of a format passed %zu bytes", sizeof(text));
  }
  const size_t needed = std::strlen(text) + 1;
  if (bytes < needed) {
    return fail(LEAPQUANT_BUFFER_TOO_SMALL, "bytes is %zu, but the text '%s' needs %zu", bytes,
                text, needed);
  }
  std::memcpy(buffer, text, needed);
  return LEAPQUANT_OK;
}

const char* leapquant_preset_name(int32_t i) { return leapquant::preset_name(i); }

}  // extern "C"
