// SPDX-License-Identifier: Apache-2.0
//
// Sizes of a saved blob and the order in which its parts are verified: magic, version, prefix,
// length, checksums, then the meaning of every field. Nothing is believed before its checksum has
// been seen.
#include "capi/blob.h"

#include <xxhash.h>

#include "capi/blob_contents.h"

namespace leapquant::capi {
namespace {

constexpr int32_t kMaxHeads = 65536;
// A ring never holds more: window 64, eight tokens a call, twice where heads share keys.
constexpr int32_t kMaxRecords = 64 + 2 * 8 - 1;

size_t round_up_16(size_t bytes) { return (bytes + 15) / 16 * 16; }

bool all_zero(const uint8_t* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

Status truncated(Sentence* sentence, size_t bytes, size_t needed, const char* what) {
  return sentence->say(LEAPQUANT_TRUNCATED, "the saved state has %zu bytes, but %s needs %zu",
                       bytes, what, needed);
}

Status check_prefix(const uint8_t* at, size_t bytes, Sentence* sentence) {
  const size_t seen = bytes < sizeof(kBlobMagic) ? bytes : sizeof(kBlobMagic);
  if (bytes > 0 && all_zero(at, seen) && all_zero(at, bytes)) {
    return sentence->say(LEAPQUANT_EMPTY_ENTRY,
                         "all %zu bytes are zero: this entry was never written", bytes);
  }
  if (std::memcmp(at, kBlobMagic, seen) != 0) {
    return sentence->say(LEAPQUANT_BAD_MAGIC,
                         "the first bytes are not those of a saved state ('LQSTATE')");
  }
  if (bytes < prefix::kVersion + 4) return truncated(sentence, bytes, prefix::kBytes, "its prefix");
  const uint32_t version = load_number<uint32_t>(at + prefix::kVersion);
  if (version != kBlobVersion) {
    return sentence->say(LEAPQUANT_VERSION_MISMATCH,
                         "the saved state has version %u, this library (%s) reads version %u",
                         version, leapquant_version_string(), kBlobVersion);
  }
  if (bytes < prefix::kBytes) return truncated(sentence, bytes, prefix::kBytes, "its prefix");
  if (prefix_checksum(at) != load_number<uint64_t>(at + prefix::kPrefixChecksum)) {
    return sentence->say(
        LEAPQUANT_CHECKSUM_MISMATCH,
        "the first 128 bytes of the saved state have changed since it was written");
  }
  return LEAPQUANT_OK;
}

// Shape of the prefix: everything that sizes are computed from, so ranges come before sizes.
Status read_shape(const uint8_t* at, SavedBlob* blob, Sentence* sentence) {
  int32_t fields[9];
  for (size_t i = 0; i < 9; ++i) fields[i] = load_number<int32_t>(at + prefix::kShape + 4 * i);
  leapquant_shape saved = LEAPQUANT_INIT(leapquant_shape);
  saved.num_k_heads = fields[0];
  saved.num_v_heads = fields[1];
  saved.head_k_dim = fields[2];
  saved.head_v_dim = fields[3];
  saved.decay = fields[4];
  saved.delta_rule = fields[5];
  saved.sub_steps = fields[6];
  saved.first_k_head = fields[7];
  saved.total_k_heads = fields[8];
  // normalise_shape wants the constants of a constant decay; these are checked with the tables.
  leapquant_shape checked = saved;
  if (saved.decay == LEAPQUANT_DECAY_CONSTANT) checked.decay = LEAPQUANT_DECAY_NONE;
  Sentence reason;
  const bool zero = saved.sub_steps == 0 || saved.total_k_heads == 0;
  if (zero || normalise_shape(checked, &checked, &reason) != LEAPQUANT_OK) {
    return sentence->say(LEAPQUANT_CORRUPT, "the saved shape is none that a save writes: %.200s",
                         zero ? "sub_steps or total_k_heads is 0" : reason.text);
  }
  blob->shape = saved;
  blob->num_formats = load_number<int32_t>(at + prefix::kNumFormats);
  if (blob->num_formats < 1 || blob->num_formats > kBlobMaxFormats) {
    return sentence->say(LEAPQUANT_CORRUPT, "the saved state names %d formats, expected 1 to %d",
                         blob->num_formats, kBlobMaxFormats);
  }
  blob->header =
      header_layout(blob->num_formats, saved.num_v_heads, saved.decay == LEAPQUANT_DECAY_CONSTANT);
  return LEAPQUANT_OK;
}

Status check_checksum(const SavedBlob& blob, size_t field, const uint8_t* start, size_t count,
                      const char* what, Sentence* sentence) {
  if (checksum(start, count) == load_number<uint64_t>(blob.bytes + field)) return LEAPQUANT_OK;
  return sentence->say(LEAPQUANT_CHECKSUM_MISMATCH,
                       "the %s of the saved state (%zu bytes) have changed since it was written",
                       what, count);
}

// Length of the blob and all checksums.
Status check_sections(const uint8_t* at, size_t bytes, SavedBlob* blob, Sentence* sentence) {
  const uint32_t header_bytes = load_number<uint32_t>(at + prefix::kHeaderBytes);
  const uint64_t blob_bytes = load_number<uint64_t>(at + prefix::kBlobBytes);
  const uint64_t states_bytes = load_number<uint64_t>(at + prefix::kStatesBytes);
  const uint64_t window_section = load_number<uint64_t>(at + prefix::kWindowBytes);
  constexpr uint64_t kLargest = uint64_t{1} << 40;
  const bool sound = header_bytes == blob->header.bytes && states_bytes < kLargest &&
                     window_section < kLargest &&
                     blob_bytes == header_bytes + states_bytes + window_section;
  if (!sound) {
    return sentence->say(LEAPQUANT_CORRUPT,
                         "the sizes in the saved state do not add up: header %u (expected %zu), "
                         "states %llu, window %llu, blob %llu",
                         header_bytes, blob->header.bytes,
                         static_cast<unsigned long long>(states_bytes),
                         static_cast<unsigned long long>(window_section),
                         static_cast<unsigned long long>(blob_bytes));
  }
  if (bytes < blob_bytes) {
    return truncated(sentence, bytes, static_cast<size_t>(blob_bytes), "the whole of it");
  }
  blob->bytes = at;
  blob->blob_bytes = static_cast<int64_t>(blob_bytes);
  blob->states_bytes = static_cast<int64_t>(states_bytes);
  blob->window_section_bytes = static_cast<int64_t>(window_section);
  blob->position = load_number<int32_t>(at + prefix::kPosition);
  blob->num_records = load_number<int32_t>(at + prefix::kNumRecords);
  blob->fingerprint = load_number<uint64_t>(at + prefix::kFingerprint);
  if (Status s = check_checksum(*blob, prefix::kTablesChecksum, at + prefix::kBytes,
                                blob->header.bytes - prefix::kBytes, "header's tables", sentence)) {
    return s;
  }
  if (Status s = check_checksum(*blob, prefix::kStatesChecksum, blob->states(),
                                static_cast<size_t>(states_bytes), "boundary states", sentence)) {
    return s;
  }
  return check_checksum(*blob, prefix::kWindowChecksum, blob->window(),
                        static_cast<size_t>(window_section), "window records", sentence);
}

Status read_formats(SavedBlob* blob, Sentence* sentence) {
  for (int32_t i = 0; i < blob->num_formats; ++i) {
    const uint8_t* at =
        blob->bytes + blob->header.formats + kSavedFormatBytes * static_cast<size_t>(i);
    leapquant_format saved = LEAPQUANT_INIT(leapquant_format);
    int32_t* const fields[] = {&saved.payload_bits, &saved.levels,         &saved.value_scale_type,
                               &saved.smoothing,    &saved.num_fp16,       &saved.num_int8,
                               &saved.num_int4,     &saved.policy,         &saved.window,
                               &saved.stagger,      &saved.log_decay_type, &saved.fit_start,
                               &saved.fit_rounds};
    size_t offset = 0;
    for (int32_t* field : fields) {
      *field = load_number<int32_t>(at + offset);
      offset += 4;
    }
    saved.scale_steps = load_number<float>(at + offset);
    offset += 4;
    leapquant_format normalised;
    Sentence reason;
    if (normalise_format(saved, &normalised, &reason) != LEAPQUANT_OK ||
        std::memcmp(&saved, &normalised, sizeof(saved)) != 0 ||
        !all_zero(at + offset, kSavedFormatBytes - offset)) {
      return sentence->say(LEAPQUANT_CORRUPT,
                           "format %d of the saved state is none that a save writes: %.200s", i,
                           reason.text);
    }
    const leapquant_format& first = blob->classes[0].format;
    blob->classes[i] =
        make_boundary_layout(normalised, blob->shape.head_k_dim, blob->shape.head_v_dim);
    if (first.policy != saved.policy || first.window != saved.window ||
        first.stagger != saved.stagger || first.log_decay_type != saved.log_decay_type) {
      return sentence->say(
          LEAPQUANT_CORRUPT,
          "formats 0 and %d of the saved state differ in policy, window, stagger or "
          "log_decay_type",
          i);
    }
  }
  return LEAPQUANT_OK;
}

Status check_heads(const SavedBlob& blob, Sentence* sentence) {
  const bool per_step = blob.classes[0].format.policy == LEAPQUANT_PER_STEP;
  const int64_t most = per_step ? 0 : kMaxRecords;
  int64_t states = 0;
  int32_t smallest = blob.position;
  for (int32_t h = 0; h < blob.shape.num_v_heads; ++h) {
    if (blob.head_format(h) >= blob.num_formats) {
      return sentence->say(LEAPQUANT_CORRUPT, "value head %d names format %d of %d", h,
                           blob.head_format(h), blob.num_formats);
    }
    const int32_t base = blob.base(h);
    if (base < 0 || base > blob.position || int64_t{blob.position} - base > most) {
      return sentence->say(LEAPQUANT_CORRUPT,
                           "value head %d has base %d at position %d, expected 0 to %lld records",
                           h, base, blob.position, static_cast<long long>(most));
    }
    const bool constant = blob.shape.decay == LEAPQUANT_DECAY_CONSTANT;
    if (constant && !(blob.constant_decay(h) <= 0.0f)) {
      return sentence->say(LEAPQUANT_CORRUPT, "value head %d has the constant log decay %g", h,
                           static_cast<double>(blob.constant_decay(h)));
    }
    if (blob.health(h).flags > 15u) {
      return sentence->say(LEAPQUANT_CORRUPT, "value head %d has the health flags 0x%x", h,
                           blob.health(h).flags);
    }
    if (base < smallest) smallest = base;
    states += blob.head(h).bytes;
  }
  const int64_t window =
      window_section_bytes(blob.shape, window_bytes(blob.shape, blob.classes[0].format),
                           blob.position, [&blob](int32_t h) { return blob.base(h); });
  if (blob.num_records != blob.position - smallest || states != blob.states_bytes ||
      window != blob.window_section_bytes ||
      !all_zero(blob.bytes + blob.header.end_of_tables,
                blob.header.bytes - blob.header.end_of_tables)) {
    return sentence->say(
        LEAPQUANT_CORRUPT,
        "the saved state's records (%d, expected %d), states (%lld bytes, expected "
        "%lld), window (%lld, expected %lld) or padding disagree with its heads",
        blob.num_records, blob.position - smallest, static_cast<long long>(blob.states_bytes),
        static_cast<long long>(states), static_cast<long long>(blob.window_section_bytes),
        static_cast<long long>(window));
  }
  return LEAPQUANT_OK;
}

}  // namespace

HeaderLayout header_layout(int32_t num_formats, int32_t num_v_heads, bool constant_decay) {
  const size_t heads = static_cast<size_t>(num_v_heads);
  HeaderLayout h;
  h.bases = h.formats + kSavedFormatBytes * static_cast<size_t>(num_formats);
  h.constant_decays = h.bases + 4 * heads;
  h.health = h.constant_decays + (constant_decay ? 4 * heads : 0);
  h.head_formats = h.health + sizeof(leapquant_health) * heads;
  h.end_of_tables = h.head_formats + heads;
  h.bytes = round_up_16(h.end_of_tables);
  return h;
}

WindowBytes window_bytes(const leapquant_shape& shape, const leapquant_format& format) {
  WindowBytes row;
  row.key_row = 2ll * shape.sub_steps * shape.head_k_dim;
  row.correction_row = 2ll * shape.sub_steps * shape.head_v_dim;
  if (shape.decay == LEAPQUANT_DECAY_SCALAR) row.decay_row = 4;
  if (shape.decay == LEAPQUANT_DECAY_VECTOR) {
    row.decay_row = (format.log_decay_type == LEAPQUANT_FP16 ? 2ll : 4ll) * shape.head_k_dim;
  }
  return row;
}

int64_t largest_blob_bytes(const Layout& layout) {
  const HeaderLayout header =
      header_layout(static_cast<int32_t>(layout.classes.size()), layout.shape.num_v_heads,
                    layout.shape.decay == LEAPQUANT_DECAY_CONSTANT);
  const int64_t window =
      window_section_bytes(layout.shape, window_bytes(layout.shape, layout.classes[0].format),
                           layout.window.ring_tokens, [](int32_t) { return 0; });
  return static_cast<int64_t>(header.bytes) + layout.state_bytes + window;
}

uint64_t checksum(const uint8_t* bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t prefix_checksum(const uint8_t* bytes) {
  uint8_t copy[prefix::kBytes];
  std::memcpy(copy, bytes, sizeof(copy));
  std::memset(copy + prefix::kPrefixChecksum, 0, 8);
  return checksum(copy, sizeof(copy));
}

Status verify_blob(const void* buffer, size_t bytes, SavedBlob* blob, Sentence* sentence) {
  const uint8_t* at = static_cast<const uint8_t*>(buffer);
  if (Status s = check_prefix(at, bytes, sentence)) return s;
  if (Status s = read_shape(at, blob, sentence)) return s;
  if (Status s = check_sections(at, bytes, blob, sentence)) return s;
  if (Status s = read_formats(blob, sentence)) return s;
  if (Status s = check_heads(*blob, sentence)) return s;
  return check_contents(*blob, sentence);
}

}  // namespace leapquant::capi
