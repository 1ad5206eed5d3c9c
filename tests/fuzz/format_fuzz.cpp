// SPDX-License-Identifier: Apache-2.0
//
// Format strings from flags and files: any text parses or is refused with a sentence, and what
// parses is a format whose canonical text parses to the same again and for which a layout exists.
#include <cstdlib>
#include <cstring>
#include <string>

#include "leapquant/leapquant.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_one(const std::string& text) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  const leapquant_format untouched = format;
  if (leapquant_format_from_string(text.c_str(), &format) != LEAPQUANT_OK) {
    require(leapquant_last_error()[0] != '\0');
    require(std::memcmp(&format, &untouched, sizeof(format)) == 0);
    return;
  }
  char canonical[128];
  leapquant_format again = LEAPQUANT_INIT(leapquant_format);
  require(leapquant_format_to_string(&format, canonical, sizeof(canonical)) == LEAPQUANT_OK);
  require(leapquant_format_from_string(canonical, &again) == LEAPQUANT_OK);
  require(std::memcmp(&format, &again, sizeof(format)) == 0);
}

void check_mix(const std::string& text) {
  constexpr int32_t kHeads = 6;
  leapquant_format formats[8];
  int32_t num_formats = 0;
  uint8_t heads[kHeads];
  if (leapquant_formats_from_string(text.c_str(), 2, kHeads, formats, 8, &num_formats, heads) !=
      LEAPQUANT_OK) {
    require(leapquant_last_error()[0] != '\0');
    return;
  }
  require(num_formats >= 1 && num_formats <= 8);
  for (const uint8_t head : heads) require(head < num_formats);
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = 3;
  shape.num_v_heads = kHeads;
  shape.head_k_dim = 8;
  shape.head_v_dim = 12;
  leapquant_layout* layout = nullptr;
  const leapquant_status made =
      leapquant_layout_create(&shape, formats, num_formats, heads, LEAPQUANT_CPU, &layout);
  // Formats of one mix may still disagree about the window they share.
  require(made == LEAPQUANT_OK || (made == LEAPQUANT_INVALID_FORMAT && num_formats > 1));
  leapquant_layout_destroy(layout);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_one(text);
  check_mix(text);
  return 0;
}
