// SPDX-License-Identifier: Apache-2.0
//
// Defaults, ranges and the arithmetic of sizes. Nothing here touches a state.
#include "core/layout.h"

#include "core/format.h"
#include "core/packing.h"
#include "core/position.h"

namespace leapquant {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxRank = 32;
constexpr int32_t kMaxFormats = 8;

int64_t round_up_16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

Status range(Sentence* sentence, Status status, const char* name, int32_t value, int32_t low,
             int32_t high) {
  if (value >= low && value <= high) return LEAPQUANT_OK;
  return sentence->say(status, "%s is %d, expected %d to %d", name, value, low, high);
}

int32_t largest_code(const leapquant_format& format) {
  const int32_t half_range = 1 << (format.payload_bits - 1);
  return format.levels == LEAPQUANT_HALF_INTEGERS ? half_range : half_range - 1;
}

// Steps at which a column's largest magnitude lies by default. 4-bit half-integers: 7.75, between
// the two ends of the trade of text error against recall; other half-integers: nothing shrinks.
float default_scale_steps(const leapquant_format& format) {
  const float largest = static_cast<float>(largest_code(format));
  if (format.levels == LEAPQUANT_INTEGERS) return largest;
  return format.payload_bits == 4 ? 7.75f : largest - 0.5f;
}

Status normalise_state_format(const leapquant_format& given, leapquant_format* format,
                              Sentence* sentence) {
  const bool plain = given.levels == LEAPQUANT_INTEGERS && given.num_fp16 == 0 &&
                     given.num_int8 == 0 && given.num_int4 == 0 &&
                     given.smoothing == LEAPQUANT_SMOOTHING_NONE;
  if (!plain) {
    return sentence->say(LEAPQUANT_INVALID_FORMAT,
                         "payload_bits is %d (a plain state): levels, compensators and smoothing "
                         "must be zero",
                         given.payload_bits);
  }
  format->value_scale_type = LEAPQUANT_FP32;
  format->fit_start = LEAPQUANT_FIT_DEFAULT;
  format->fit_rounds = 0;
  format->scale_steps = 0.0f;
  return LEAPQUANT_OK;
}

Status normalise_fit(leapquant_format* format, Sentence* sentence) {
  const Status bad = LEAPQUANT_INVALID_FORMAT;
  if (Status s = range(sentence, bad, "fit_start", format->fit_start, 0, 2)) return s;
  if (Status s = range(sentence, bad, "fit_rounds (rounds=)", format->fit_rounds, 0, 4)) return s;
  const bool mixed = format->num_int8 + format->num_int4 > 0;
  const bool none = !mixed && format->num_fp16 == 0;
  if (none) {
    format->fit_start = LEAPQUANT_FIT_DEFAULT;
    format->fit_rounds = 0;
  } else {
    if (format->fit_start == LEAPQUANT_FIT_DEFAULT) format->fit_start = LEAPQUANT_FIT_WARM;
    if (format->fit_rounds == 0) format->fit_rounds = mixed ? 1 : 2;
  }
  const float largest = static_cast<float>(largest_code(*format));
  if (format->scale_steps == 0.0f) format->scale_steps = default_scale_steps(*format);
  if (!(format->scale_steps >= largest * 0.5f && format->scale_steps <= largest * 2.0f)) {
    return sentence->say(bad, "scale_steps (steps=) is %g, expected 0 (default) or %g to %g",
                         static_cast<double>(format->scale_steps),
                         static_cast<double>(largest) * 0.5, static_cast<double>(largest) * 2.0);
  }
  return LEAPQUANT_OK;
}

}  // namespace

Status normalise_format(const leapquant_format& given, leapquant_format* format,
                        Sentence* sentence) {
  const Status bad = LEAPQUANT_INVALID_FORMAT;
  leapquant_format f = given;
  f.struct_size = sizeof(leapquant_format);
  const int32_t bits = f.payload_bits;
  if (bits != 3 && bits != 4 && bits != 6 && bits != 8 && bits != 16 && bits != 32) {
    return sentence->say(bad, "payload_bits is %d, expected 8, 6, 4, 3, 16 (BF16) or 32 (FP32)",
                         bits);
  }
  if (Status s = range(sentence, bad, "levels", f.levels, 0, 1)) return s;
  if (Status s = range(sentence, bad, "smoothing", f.smoothing, 0, 2)) return s;
  if (Status s = range(sentence, bad, "value_scale_type", f.value_scale_type, 0, 1)) return s;
  if (Status s = range(sentence, bad, "log_decay_type", f.log_decay_type, 0, 1)) return s;
  if (Status s = range(sentence, bad, "num_fp16 (r=)", f.num_fp16, 0, kMaxRank)) return s;
  if (Status s = range(sentence, bad, "num_int8 (i8=)", f.num_int8, 0, kMaxRank)) return s;
  if (Status s = range(sentence, bad, "num_int4 (i4=)", f.num_int4, 0, kMaxRank)) return s;
  if (Status s = range(sentence, bad, "num_fp16 + num_int8 + num_int4",
                       f.num_fp16 + f.num_int8 + f.num_int4, 0, kMaxRank)) {
    return s;
  }
  if (Status s = range(sentence, bad, "policy", f.policy, 0, 1)) return s;
  if (Status s = range(sentence, bad, "stagger", f.stagger, 0, 1)) return s;
  const bool per_step = f.policy == LEAPQUANT_PER_STEP;
  if (f.window == 0) f.window = per_step ? 1 : 16;
  if (per_step && f.window != 1) {
    return sentence->say(bad, "window is %d, but a state kept per step has a window of 1",
                         f.window);
  }
  if (Status s = range(sentence, bad, "window", f.window, 1, 64)) return s;
  if (per_step) {
    f.stagger = 0;
    f.log_decay_type = LEAPQUANT_FP32;
  }
  if (bits >= 16) {
    if (Status s = normalise_state_format(given, &f, sentence)) return s;
  } else if (Status s = normalise_fit(&f, sentence)) {
    return s;
  }
  *format = f;
  return LEAPQUANT_OK;
}

Status normalise_shape(const leapquant_shape& given, leapquant_shape* shape, Sentence* sentence) {
  const Status bad = LEAPQUANT_INVALID_SHAPE;
  leapquant_shape s = given;
  s.struct_size = sizeof(leapquant_shape);
  if (s.sub_steps == 0) s.sub_steps = 1;
  if (s.max_tokens == 0) s.max_tokens = 1;
  if (s.total_k_heads == 0) s.total_k_heads = s.num_k_heads;
  if (Status e = range(sentence, bad, "num_k_heads", s.num_k_heads, 1, 65536)) return e;
  if (Status e = range(sentence, bad, "num_v_heads", s.num_v_heads, 1, 65536)) return e;
  if (s.num_v_heads % s.num_k_heads != 0) {
    return sentence->say(bad, "num_v_heads is %d, expected a multiple of num_k_heads, %d",
                         s.num_v_heads, s.num_k_heads);
  }
  const int32_t dims[2] = {s.head_k_dim, s.head_v_dim};
  for (int i = 0; i < 2; ++i) {
    if (dims[i] < 4 || dims[i] > kMaxHeadDim || dims[i] % 4 != 0) {
      return sentence->say(bad, "%s is %d, expected a multiple of 4 from 4 to %d",
                           i == 0 ? "head_k_dim" : "head_v_dim", dims[i], kMaxHeadDim);
    }
  }
  if (Status e = range(sentence, bad, "decay", s.decay, 0, 3)) return e;
  if (Status e = range(sentence, bad, "delta_rule", s.delta_rule, 0, 1)) return e;
  if (Status e = range(sentence, bad, "sub_steps", s.sub_steps, 1, 8)) return e;
  if (Status e = range(sentence, bad, "max_tokens", s.max_tokens, 1, 8)) return e;
  if (Status e = range(sentence, bad, "total_k_heads", s.total_k_heads, s.num_k_heads, 1 << 20)) {
    return e;
  }
  if (Status e = range(sentence, bad, "first_k_head", s.first_k_head, 0,
                       s.total_k_heads - s.num_k_heads)) {
    return e;
  }
  if (s.decay == LEAPQUANT_DECAY_CONSTANT) {
    if (s.constant_log_decay == nullptr) {
      return sentence->say(LEAPQUANT_NULL_POINTER,
                           "constant_log_decay is null, but decay is constant: give [num_v_heads]");
    }
    for (int32_t h = 0; h < s.num_v_heads; ++h) {
      if (!(s.constant_log_decay[h] <= 0.0f)) {
        return sentence->say(bad, "constant_log_decay[%d] is %g, expected at most 0", h,
                             static_cast<double>(s.constant_log_decay[h]));
      }
    }
  } else {
    s.constant_log_decay = nullptr;
  }
  *shape = s;
  return LEAPQUANT_OK;
}

BoundaryLayout make_boundary_layout(const leapquant_format& format, int32_t k_dim, int32_t v_dim) {
  BoundaryLayout b;
  b.format = format;
  b.k_dim = k_dim;
  b.v_dim = v_dim;
  if (!b.quantised()) {
    b.row_bytes = v_dim * format.payload_bits / 8;
    b.bytes = round_up_16(static_cast<int64_t>(k_dim) * b.row_bytes);
    b.value_scale = b.smoothing = b.fp16_keys = b.fp16_values = b.int8_keys = b.int8_values =
        b.int4_keys = b.int4_values = b.key_scales = b.value_scales =
            static_cast<int64_t>(k_dim) * b.row_bytes;
    return b;
  }
  b.rank = format.num_fp16 + format.num_int8 + format.num_int4;
  b.q_max = largest_code(format);
  b.scale_steps = format.scale_steps;
  b.row_bytes = packed_bytes(v_dim, format.payload_bits);
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t start = at;
    at += bytes;
    return start;
  };
  const int64_t scale_bytes = format.value_scale_type == LEAPQUANT_FP16 ? 2 : 4;
  const int64_t smoothing_bytes = format.smoothing == LEAPQUANT_SMOOTHING_FP32   ? 4
                                  : format.smoothing == LEAPQUANT_SMOOTHING_LOG8 ? 1
                                                                                 : 0;
  const int64_t num_scaled = format.num_int8 + format.num_int4;
  b.payload = take(static_cast<int64_t>(k_dim) * b.row_bytes);
  b.value_scale = take(v_dim * scale_bytes);
  b.smoothing = take(k_dim * smoothing_bytes);
  b.fp16_keys = take(2ll * format.num_fp16 * k_dim);
  b.fp16_values = take(2ll * format.num_fp16 * v_dim);
  b.key_scales = take(2 * num_scaled);
  b.value_scales = take(2 * num_scaled);
  b.int8_keys = take(static_cast<int64_t>(format.num_int8) * k_dim);
  b.int8_values = take(static_cast<int64_t>(format.num_int8) * v_dim);
  b.int4_keys = take(static_cast<int64_t>(format.num_int4) * packed_bytes(k_dim, 4));
  b.int4_values = take(static_cast<int64_t>(format.num_int4) * packed_bytes(v_dim, 4));
  b.bytes = round_up_16(at);
  return b;
}

namespace {

WindowLayout make_window_layout(const Layout& layout) {
  WindowLayout w;
  if (layout.per_step) return w;
  const leapquant_shape& shape = layout.shape;
  w.ring_tokens = ring_tokens(layout.window_tokens, shape.max_tokens, layout.group > 1);
  w.records = w.ring_tokens * shape.sub_steps;
  const bool stored =
      shape.decay == LEAPQUANT_DECAY_SCALAR || shape.decay == LEAPQUANT_DECAY_VECTOR;
  if (stored) {
    const bool vector = shape.decay == LEAPQUANT_DECAY_VECTOR;
    // A scalar decay is one number a record: always FP32. Only vectors are worth FP16.
    const bool half = vector && layout.classes[0].format.log_decay_type == LEAPQUANT_FP16;
    w.decay_bytes = half ? 2 : 4;
    w.decay_count = vector ? shape.head_k_dim : 1;
  }
  w.key_head_stride = 2ll * w.records * shape.head_k_dim;
  w.correction_head_stride = 2ll * w.records * shape.head_v_dim;
  w.decay_head_stride = static_cast<int64_t>(w.ring_tokens) * w.decay_count * w.decay_bytes;
  w.keys = 0;
  w.corrections = round_up_16(w.keys + w.key_head_stride * shape.num_k_heads);
  w.log_decays = round_up_16(w.corrections + w.correction_head_stride * shape.num_v_heads);
  w.bytes = round_up_16(w.log_decays + w.decay_head_stride * shape.num_v_heads);
  return w;
}

Status check_formats_agree(const leapquant_format& a, const leapquant_format& b, int32_t index,
                           Sentence* sentence) {
  if (a.policy == b.policy && a.window == b.window && a.stagger == b.stagger &&
      a.log_decay_type == b.log_decay_type) {
    return LEAPQUANT_OK;
  }
  return sentence->say(LEAPQUANT_INVALID_FORMAT,
                       "formats[%d] differs from formats[0] in policy, window, stagger or "
                       "log_decay_type; formats of one layer share these",
                       index);
}

}  // namespace

Status make_layout(const leapquant_shape& shape, const leapquant_format* formats,
                   int32_t num_formats, const uint8_t* head_format, Layout* layout,
                   Sentence* sentence) {
  Layout l;
  if (Status s = normalise_shape(shape, &l.shape, sentence)) return s;
  if (Status s =
          range(sentence, LEAPQUANT_INVALID_ARGUMENT, "num_formats", num_formats, 1, kMaxFormats)) {
    return s;
  }
  const size_t heads = static_cast<size_t>(l.shape.num_v_heads);
  const bool constant = l.shape.decay == LEAPQUANT_DECAY_CONSTANT;
  if (!l.classes.allocate(static_cast<size_t>(num_formats)) || !l.head_class.allocate(heads) ||
      !l.head_offset.allocate(heads) || !l.head_boundary.allocate(heads) ||
      !l.decays.allocate(constant ? heads : 0)) {
    return sentence->say(LEAPQUANT_OUT_OF_MEMORY,
                         "the host refused memory for a layout of %d heads", l.shape.num_v_heads);
  }
  for (int32_t i = 0; i < num_formats; ++i) {
    leapquant_format normalised;
    if (Status s = normalise_format(formats[i], &normalised, sentence)) return s;
    l.classes[static_cast<size_t>(i)] =
        make_boundary_layout(normalised, l.shape.head_k_dim, l.shape.head_v_dim);
    if (Status s = check_formats_agree(l.classes[0].format, normalised, i, sentence)) return s;
  }
  for (size_t h = 0; h < l.decays.size(); ++h) l.decays[h] = l.shape.constant_log_decay[h];
  l.shape.constant_log_decay = nullptr;  // callers read `decays`; a moved layout stays valid
  l.group = l.shape.num_v_heads / l.shape.num_k_heads;
  const leapquant_format& common = l.classes[0].format;
  l.per_step = common.policy == LEAPQUANT_PER_STEP;
  l.window_tokens = common.window;
  for (size_t at = 0; at < heads; ++at) {
    const int32_t h = static_cast<int32_t>(at);
    const uint8_t index = head_format != nullptr ? head_format[h] : 0;
    if (index >= num_formats) {
      return sentence->say(LEAPQUANT_INVALID_ARGUMENT,
                           "head_format[%d] is %d, expected an index below num_formats, %d", h,
                           index, num_formats);
    }
    l.head_class[at] = index;
    l.head_offset[at] = l.state_bytes;
    l.state_bytes += l.classes[index].bytes;
    l.head_boundary[at] = boundary_offset(l.shape.first_k_head + h / l.group, l.shape.total_k_heads,
                                          l.window_tokens, common.stagger != 0);
  }
  l.window = make_window_layout(l);
  *layout = std::move(l);
  return LEAPQUANT_OK;
}

}  // namespace leapquant
