// SPDX-License-Identifier: Apache-2.0
//
// Presets and the parser and printer of format strings. Bytes and ranges are layout.cpp's business.
#include "core/format.h"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/layout.h"

namespace leapquant {
namespace {

struct Preset {
  const char* name;
  leapquant_format format;
};

constexpr leapquant_format make(int32_t bits, int32_t levels, int32_t scale, int32_t smoothing,
                                int32_t fp16, int32_t int8, int32_t int4) {
  leapquant_format format{};
  format.struct_size = sizeof(leapquant_format);
  format.payload_bits = bits;
  format.levels = levels;
  format.value_scale_type = scale;
  format.smoothing = smoothing;
  format.num_fp16 = fp16;
  format.num_int8 = int8;
  format.num_int4 = int4;
  format.policy = LEAPQUANT_WINDOWED;
  format.window = 16;
  return format;
}

constexpr int32_t kInt = LEAPQUANT_INTEGERS;
constexpr int32_t kHalf = LEAPQUANT_HALF_INTEGERS;
constexpr Preset kPresets[] = {
    {"fp32", make(32, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_NONE, 0, 0, 0)},
    {"bf16", make(16, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_NONE, 0, 0, 0)},
    {"int8", make(8, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 4, 0, 0)},
    {"int6", make(6, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 4, 0, 0)},
    {"int4", make(4, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 8, 0, 0)},
    {"int8+", make(8, kInt, LEAPQUANT_FP16, LEAPQUANT_SMOOTHING_LOG8, 0, 4, 7)},
    {"int6+", make(6, kInt, LEAPQUANT_FP16, LEAPQUANT_SMOOTHING_LOG8, 0, 4, 8)},
    {"int4+", make(4, kHalf, LEAPQUANT_FP16, LEAPQUANT_SMOOTHING_LOG8, 0, 8, 18)},
    {"int4-compact", make(4, kHalf, LEAPQUANT_FP16, LEAPQUANT_SMOOTHING_LOG8, 0, 4, 11)},
};

// Raw payloads: no compensators, FP32 scales and smoothing; options add the rest.
constexpr Preset kPayloads[] = {
    {"8", make(8, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"6", make(6, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"4", make(4, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"3", make(3, kInt, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"8h", make(8, kHalf, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"6h", make(6, kHalf, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"4h", make(4, kHalf, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
    {"3h", make(3, kHalf, LEAPQUANT_FP32, LEAPQUANT_SMOOTHING_FP32, 0, 0, 0)},
};

constexpr const char* kAllowedFormats =
    "fp32, bf16, int8, int6, int4, int8+, int6+, int4+, int4-compact, or a payload 8, 6, 4, 3 "
    "(8h, 6h, 4h, 3h for half-integers)";
constexpr const char* kAllowedOptions =
    "step, r=0..32 or f16=0..32, i8=0..32, i4=0..32 (together at most 32), scale=fp32|fp16, "
    "smooth=none|fp32|log8, window=1..64, stagger=0|1, decay=fp32|fp16, fit=default|fixed|warm, "
    "rounds=0..4, steps=NUMBER";

int width(std::string_view text) { return static_cast<int>(text.size()); }

Status bad(Sentence* sentence, std::string_view where, std::string_view part, const char* allowed) {
  return sentence->say(
      LEAPQUANT_INVALID_FORMAT, "format string '%.*s': '%.*s' is not known here; allowed: %s",
      width(where.substr(0, 80)), where.data(), width(part.substr(0, 40)), part.data(), allowed);
}

bool parse_int(std::string_view text, int32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

struct Choice {
  std::string_view name;
  int32_t value;
};

template <size_t N>
bool choose(std::string_view text, const Choice (&choices)[N], int32_t* value) {
  for (const Choice& choice : choices) {
    if (choice.name == text) {
      *value = choice.value;
      return true;
    }
  }
  return false;
}

constexpr Choice kScales[] = {{"fp32", LEAPQUANT_FP32}, {"fp16", LEAPQUANT_FP16}};
constexpr Choice kSmoothings[] = {{"none", LEAPQUANT_SMOOTHING_NONE},
                                  {"fp32", LEAPQUANT_SMOOTHING_FP32},
                                  {"log8", LEAPQUANT_SMOOTHING_LOG8}};
constexpr Choice kStarts[] = {{"default", LEAPQUANT_FIT_DEFAULT},
                              {"fixed", LEAPQUANT_FIT_FIXED},
                              {"warm", LEAPQUANT_FIT_WARM}};

// steps= takes a plain decimal such as 7.75; the locale has no say in it.
bool parse_steps(std::string_view text, float* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value > 0.0f;
}

bool apply_option(std::string_view option, leapquant_format* format) {
  if (option == "step") {
    format->policy = LEAPQUANT_PER_STEP;
    format->window = 1;
    format->num_fp16 = format->num_int8 = format->num_int4 = 0;
    format->smoothing = LEAPQUANT_SMOOTHING_NONE;
    return true;
  }
  const size_t equals = option.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = option.substr(0, equals);
  const std::string_view text = option.substr(equals + 1);
  if (key == "r" || key == "f16") return parse_int(text, &format->num_fp16);
  if (key == "i8") return parse_int(text, &format->num_int8);
  if (key == "i4") return parse_int(text, &format->num_int4);
  if (key == "scale") return choose(text, kScales, &format->value_scale_type);
  if (key == "smooth") return choose(text, kSmoothings, &format->smoothing);
  if (key == "window") return parse_int(text, &format->window) && format->window > 0;
  if (key == "stagger") return parse_int(text, &format->stagger);
  if (key == "decay") return choose(text, kScales, &format->log_decay_type);
  if (key == "fit") return choose(text, kStarts, &format->fit_start);
  if (key == "rounds") return parse_int(text, &format->fit_rounds);
  if (key == "steps") return parse_steps(text, &format->scale_steps);
  return false;
}

Status parse_one(std::string_view text, leapquant_format* format, Sentence* sentence) {
  size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const leapquant_format* found = nullptr;
  for (const Preset& preset : kPresets) {
    if (name == preset.name) found = &preset.format;
  }
  for (const Preset& payload : kPayloads) {
    if (name == payload.name) found = &payload.format;
  }
  if (found == nullptr) return bad(sentence, text, name, kAllowedFormats);
  leapquant_format parsed = *found;
  while (colon != std::string_view::npos) {
    const size_t start = colon + 1;
    colon = text.find(':', start);
    const std::string_view option =
        text.substr(start, colon == std::string_view::npos ? colon : colon - start);
    if (!apply_option(option, &parsed)) return bad(sentence, text, option, kAllowedOptions);
  }
  return normalise_format(parsed, format, sentence);
}

// Does the selection "0-1&7" or "3.0-1" name `head` of `layer`? Sets *valid to false when malformed
// or beyond the layer's heads.
bool selects(std::string_view selection, int32_t layer, int32_t num_heads, int32_t head,
             bool* valid) {
  bool named = false;
  while (true) {
    const size_t join = selection.find('&');
    std::string_view item = selection.substr(0, join);
    int32_t item_layer = layer;
    if (const size_t dot = item.find('.'); dot != std::string_view::npos) {
      if (!parse_int(item.substr(0, dot), &item_layer)) *valid = false;
      item = item.substr(dot + 1);
    }
    const size_t dash = item.find('-');
    int32_t first = 0;
    int32_t last = 0;
    if (!parse_int(item.substr(0, dash), &first)) *valid = false;
    last = first;
    if (dash != std::string_view::npos && !parse_int(item.substr(dash + 1), &last)) *valid = false;
    if (first < 0 || last < first || last >= num_heads) *valid = false;
    if (item_layer == layer && head >= first && head <= last) named = true;
    if (join == std::string_view::npos) return named;
    selection = selection.substr(join + 1);
  }
}

Status add_format(const leapquant_format& format, leapquant_format* formats, int32_t max_formats,
                  int32_t* num_formats, int32_t* index, Sentence* sentence) {
  for (*index = 0; *index < *num_formats; ++*index) {
    if (same_format(formats[*index], format)) return LEAPQUANT_OK;
  }
  if (*num_formats >= max_formats) {
    return sentence->say(LEAPQUANT_BUFFER_TOO_SMALL,
                         "format string: more than %d distinct formats in one mix", max_formats);
  }
  formats[(*num_formats)++] = format;
  return LEAPQUANT_OK;
}

Status parse_mix(std::string_view text, std::string_view entries, int32_t layer,
                 int32_t num_v_heads, leapquant_format* formats, int32_t max_formats,
                 int32_t* num_formats, uint8_t* head_format, Sentence* sentence) {
  constexpr uint8_t kOpen = 0xff;
  std::memset(head_format, kOpen, static_cast<size_t>(num_v_heads));
  *num_formats = 0;
  bool rest_taken = false;
  while (true) {
    const size_t comma = entries.find(',');
    const std::string_view entry = entries.substr(0, comma);
    if (rest_taken) {
      return sentence->say(LEAPQUANT_INVALID_FORMAT,
                           "format string '%.*s': only the last entry of a mix may lack @HEADS",
                           width(text.substr(0, 120)), text.data());
    }
    const size_t at = entry.find('@');
    leapquant_format format;
    if (Status s = parse_one(entry.substr(0, at), &format, sentence); s != LEAPQUANT_OK) return s;
    int32_t index = 0;
    bool used = false;
    for (int32_t h = 0; h < num_v_heads; ++h) {
      bool valid = true;
      const bool named = at == std::string_view::npos ||
                         selects(entry.substr(at + 1), layer, num_v_heads, h, &valid);
      if (!valid) {
        return sentence->say(
            LEAPQUANT_INVALID_ARGUMENT, "format string: heads '%.*s' are not ranges within 0-%d",
            width(entry.substr(at + 1, 40)), entry.data() + at + 1, num_v_heads - 1);
      }
      if (!named || head_format[h] != kOpen) continue;
      if (!used) {
        const Status s = add_format(format, formats, max_formats, num_formats, &index, sentence);
        if (s != LEAPQUANT_OK) return s;
        used = true;
      }
      head_format[h] = static_cast<uint8_t>(index);
    }
    rest_taken = at == std::string_view::npos;
    if (comma == std::string_view::npos) break;
    entries = entries.substr(comma + 1);
  }
  for (int32_t h = 0; h < num_v_heads; ++h) {
    if (head_format[h] == kOpen) {
      return sentence->say(LEAPQUANT_INVALID_FORMAT,
                           "format string '%.*s': value head %d of layer %d has no format; end the "
                           "mix with an entry without @",
                           width(text.substr(0, 120)), text.data(), h, layer);
    }
  }
  return LEAPQUANT_OK;
}

const char* name_of(const Choice* choices, size_t count, int32_t value) {
  for (size_t i = 0; i < count; ++i) {
    if (choices[i].value == value) return choices[i].name.data();
  }
  return "?";
}

// Appends to a bounded buffer; remembers whether it ever overflowed.
struct Printer {
  char* buffer;
  size_t bytes;
  size_t used = 0;
  bool fits = true;
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = std::vsnprintf(buffer + used, bytes - used, format, arguments);
    va_end(arguments);
    if (n < 0 || static_cast<size_t>(n) >= bytes - used) {
      fits = false;
    } else {
      used += static_cast<size_t>(n);
    }
  }
};

int differences(const leapquant_format& a, const leapquant_format& b) {
  return (a.value_scale_type != b.value_scale_type) + (a.smoothing != b.smoothing) +
         (a.num_fp16 != b.num_fp16) + (a.num_int8 != b.num_int8) + (a.num_int4 != b.num_int4);
}

}  // namespace

const char* preset_name(int32_t i) {
  const int32_t count = static_cast<int32_t>(sizeof(kPresets) / sizeof(kPresets[0]));
  return i >= 0 && i < count ? kPresets[i].name : nullptr;
}

bool same_format(const leapquant_format& a, const leapquant_format& b) {
  return a.payload_bits == b.payload_bits && a.levels == b.levels &&
         a.value_scale_type == b.value_scale_type && a.smoothing == b.smoothing &&
         a.num_fp16 == b.num_fp16 && a.num_int8 == b.num_int8 && a.num_int4 == b.num_int4 &&
         a.policy == b.policy && a.window == b.window && a.stagger == b.stagger &&
         a.log_decay_type == b.log_decay_type && a.fit_start == b.fit_start &&
         a.fit_rounds == b.fit_rounds && a.scale_steps == b.scale_steps;
}

Status parse_format(const char* text, leapquant_format* format, Sentence* sentence) {
  return parse_one(text, format, sentence);
}

Status parse_formats(const char* text, int32_t layer, int32_t num_v_heads,
                     leapquant_format* formats, int32_t max_formats, int32_t* num_formats,
                     uint8_t* head_format, Sentence* sentence) {
  const std::string_view view(text);
  if (view.starts_with("mix(")) {
    if (!view.ends_with(")")) {
      return sentence->say(LEAPQUANT_INVALID_FORMAT, "format string '%.120s': ')' is missing",
                           text);
    }
    return parse_mix(view, view.substr(4, view.size() - 5), layer, num_v_heads, formats,
                     max_formats, num_formats, head_format, sentence);
  }
  if (max_formats < 1) {
    return sentence->say(LEAPQUANT_BUFFER_TOO_SMALL, "max_formats is %d, at least 1 is needed",
                         max_formats);
  }
  if (Status s = parse_one(view, &formats[0], sentence); s != LEAPQUANT_OK) return s;
  *num_formats = 1;
  std::memset(head_format, 0, static_cast<size_t>(num_v_heads));
  return LEAPQUANT_OK;
}

bool print_format(const leapquant_format& format, char* buffer, size_t bytes) {
  if (bytes == 0) return false;
  // The nearest preset or payload with the same bits and levels; "step" first resets what it
  // resets.
  const Preset* best = nullptr;
  leapquant_format reference{};
  const auto consider = [&](const Preset& preset) {
    if (preset.format.payload_bits != format.payload_bits ||
        preset.format.levels != format.levels) {
      return;
    }
    leapquant_format candidate = preset.format;
    if (format.policy == LEAPQUANT_PER_STEP) apply_option("step", &candidate);
    if (best == nullptr || differences(candidate, format) < differences(reference, format)) {
      best = &preset;
      reference = candidate;
    }
  };
  for (const Preset& preset : kPresets) consider(preset);
  for (const Preset& payload : kPayloads) consider(payload);
  Printer out{buffer, bytes};
  out.add("%s", best != nullptr ? best->name : "?");
  if (format.policy == LEAPQUANT_PER_STEP) out.add(":step");
  if (format.value_scale_type != reference.value_scale_type) {
    out.add(":scale=%s", name_of(kScales, 2, format.value_scale_type));
  }
  if (format.smoothing != reference.smoothing) {
    out.add(":smooth=%s", name_of(kSmoothings, 3, format.smoothing));
  }
  if (format.num_fp16 != reference.num_fp16) out.add(":r=%d", format.num_fp16);
  if (format.num_int8 != reference.num_int8) out.add(":i8=%d", format.num_int8);
  if (format.num_int4 != reference.num_int4) out.add(":i4=%d", format.num_int4);
  leapquant_format plain;
  Sentence ignored;
  if (normalise_format(reference, &plain, &ignored) != LEAPQUANT_OK) return false;
  if (format.window != plain.window) out.add(":window=%d", format.window);
  if (format.stagger != 0) out.add(":stagger=1");
  if (format.log_decay_type != LEAPQUANT_FP32) out.add(":decay=fp16");
  // The encoder's defaults depend on the compensators, so compare against this format's own.
  leapquant_format defaults = format;
  defaults.fit_start = LEAPQUANT_FIT_DEFAULT;
  defaults.fit_rounds = 0;
  defaults.scale_steps = 0;
  if (normalise_format(defaults, &plain, &ignored) != LEAPQUANT_OK) return false;
  if (format.fit_start != plain.fit_start) {
    out.add(":fit=%s", name_of(kStarts, 3, format.fit_start));
  }
  if (format.fit_rounds != plain.fit_rounds) out.add(":rounds=%d", format.fit_rounds);
  if (format.scale_steps != plain.scale_steps) {
    char number[32];
    const auto [end, error] =
        std::to_chars(number, number + sizeof(number) - 1, format.scale_steps);
    if (error != std::errc()) return false;
    *end = '\0';
    out.add(":steps=%s", number);
  }
  return out.fits;
}

}  // namespace leapquant
