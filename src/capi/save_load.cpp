// SPDX-License-Identifier: Apache-2.0
//
// C API, section "Saved states": between one slot of a pool and a blob.
#include <climits>

#include "capi/blob.h"
#include "capi/slot_view.h"
#include "core/position.h"

namespace leapquant::capi {
namespace {

Status check_position(const SlotView& slot, int32_t position) {
  const int32_t room = slot.window >= 0 ? slot.layout->window.ring_tokens : 0;
  for (int32_t h = 0; h < slot.layout->shape.num_v_heads; ++h) {
    const int32_t base = slot.base(h);
    if (position < base || base < 0) {
      return fail(LEAPQUANT_POSITION_BELOW_BASE,
                  "position is %d, but the base of value head %d in state slot %d is %d", position,
                  h, slot.named_state, base);
    }
    if (position - base > room) {
      return fail(
          LEAPQUANT_POSITION_PAST_WINDOW,
          "position is %d, but value head %d in state slot %d stands at %d and only %d records "
          "after it can be in the window (window_slot %d)",
          position, h, slot.named_state, base, room, slot.named_window);
    }
  }
  return LEAPQUANT_OK;
}

struct BlobSize {
  HeaderLayout header;
  int64_t window = 0;
  size_t total = 0;
};

BlobSize blob_size(const SlotView& slot, int32_t position) {
  const Layout& layout = *slot.layout;
  BlobSize size;
  size.header = header_layout(static_cast<int32_t>(layout.classes.size()), layout.shape.num_v_heads,
                              layout.shape.decay == LEAPQUANT_DECAY_CONSTANT);
  size.window =
      window_section_bytes(layout.shape, window_bytes(layout.shape, layout.classes[0].format),
                           position, [&slot](int32_t h) { return slot.base(h); });
  size.total = size.header.bytes + static_cast<size_t>(layout.state_bytes + size.window);
  return size;
}

void write_formats(const Layout& layout, uint8_t* at) {
  for (const BoundaryLayout& c : layout.classes) {
    const leapquant_format& f = c.format;
    const int32_t fields[] = {f.payload_bits, f.levels,   f.value_scale_type, f.smoothing,
                              f.num_fp16,     f.num_int8, f.num_int4,         f.policy,
                              f.window,       f.stagger,  f.log_decay_type,   f.fit_start,
                              f.fit_rounds};
    std::memcpy(at, fields, sizeof(fields));
    store_number(at + sizeof(fields), f.scale_steps);
    at += kSavedFormatBytes;
  }
}

void write_tables(const SlotView& slot, const HeaderLayout& header, uint8_t* blob) {
  const Layout& layout = *slot.layout;
  write_formats(layout, blob + header.formats);
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const size_t head = static_cast<size_t>(h);
    store_number(blob + header.bases + 4 * head, slot.base(h));
    if (!layout.decays.empty()) {
      store_number(blob + header.constant_decays + 4 * head, layout.decays[head]);
    }
    if (const leapquant_health* health = health_of(layout, slot.pool, slot.state, h)) {
      store_number(blob + header.health + sizeof(*health) * head, *health);
    }
    blob[header.head_formats + head] = layout.head_class[head];
  }
}

// Calls move(saved, ring, bytes) for every record's part, in the order of the window section.
template <typename BaseOf, typename Move>
void for_each_record(const SlotView& slot, int32_t position, BaseOf base_of_head,
                     const Move& move) {
  const Layout& layout = *slot.layout;
  const WindowLayout& w = layout.window;
  const WindowBytes row = window_bytes(layout.shape, layout.classes[0].format);
  const auto ring_row = [&w](int32_t t) { return int64_t{t % w.ring_tokens}; };
  for (int32_t k = 0; k < layout.shape.num_k_heads; ++k) {
    const WindowView view = window_view(layout, slot.pool, slot.window, k * layout.group);
    std::byte* keys = reinterpret_cast<std::byte*>(view.keys);
    for (int32_t t = first_record(k, layout.group, base_of_head); t < position; ++t) {
      move(keys + ring_row(t) * row.key_row, row.key_row);
    }
  }
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const WindowView view = window_view(layout, slot.pool, slot.window, h);
    std::byte* corrections = reinterpret_cast<std::byte*>(view.corrections);
    for (int32_t t = base_of_head(h); t < position; ++t) {
      move(corrections + ring_row(t) * row.correction_row, row.correction_row);
    }
  }
  if (row.decay_row == 0) return;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const WindowView view = window_view(layout, slot.pool, slot.window, h);
    for (int32_t t = base_of_head(h); t < position; ++t) {
      move(view.log_decays + ring_row(t) * row.decay_row, row.decay_row);
    }
  }
}

void write_prefix(const SlotView& slot, const BlobSize& size, int32_t position,
                  uint64_t fingerprint, uint8_t* blob) {
  const Layout& layout = *slot.layout;
  const leapquant_shape& s = layout.shape;
  int32_t smallest = position;
  for (int32_t h = 0; h < s.num_v_heads; ++h) {
    if (slot.base(h) < smallest) smallest = slot.base(h);
  }
  std::memcpy(blob + prefix::kMagic, kBlobMagic, sizeof(kBlobMagic));
  store_number(blob + prefix::kVersion, kBlobVersion);
  store_number(blob + prefix::kHeaderBytes, static_cast<uint32_t>(size.header.bytes));
  store_number(blob + prefix::kBlobBytes, static_cast<uint64_t>(size.total));
  store_number(blob + prefix::kFingerprint, fingerprint);
  store_number(blob + prefix::kPosition, position);
  store_number(blob + prefix::kNumRecords, position - smallest);
  store_number(blob + prefix::kStatesBytes, static_cast<uint64_t>(layout.state_bytes));
  store_number(blob + prefix::kWindowBytes, static_cast<uint64_t>(size.window));
  const int32_t shape[] = {s.num_k_heads, s.num_v_heads, s.head_k_dim,   s.head_v_dim,   s.decay,
                           s.delta_rule,  s.sub_steps,   s.first_k_head, s.total_k_heads};
  std::memcpy(blob + prefix::kShape, shape, sizeof(shape));
  store_number(blob + prefix::kNumFormats, static_cast<int32_t>(layout.classes.size()));
  const uint8_t* states = blob + size.header.bytes;
  const size_t states_bytes = static_cast<size_t>(layout.state_bytes);
  store_number(blob + prefix::kTablesChecksum,
               checksum(blob + prefix::kBytes, size.header.bytes - prefix::kBytes));
  store_number(blob + prefix::kStatesChecksum, checksum(states, states_bytes));
  store_number(blob + prefix::kWindowChecksum,
               checksum(states + states_bytes, static_cast<size_t>(size.window)));
  store_number(blob + prefix::kPrefixChecksum, prefix_checksum(blob));
}

void write_blob(const SlotView& slot, const BlobSize& size, int32_t position, uint64_t fingerprint,
                uint8_t* blob) {
  const Layout& layout = *slot.layout;
  std::memset(blob, 0, size.header.bytes);
  write_tables(slot, size.header, blob);
  uint8_t* at = blob + size.header.bytes;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const size_t bytes = static_cast<size_t>(layout.head(h).bytes);
    std::memcpy(at, boundary_state(layout, slot.pool, slot.state, h), bytes);
    at += bytes;
  }
  uint8_t* const end = blob + size.total;
  if (size.window > 0) {
    for_each_record(
        slot, position, [&slot](int32_t h) { return slot.base(h); },
        [&at](const std::byte* record, int64_t bytes) {
          std::memcpy(at, record, static_cast<size_t>(bytes));
          at += bytes;
        });
  }
  std::memset(at, 0, static_cast<size_t>(end - at));
  write_prefix(slot, size, position, fingerprint, blob);
}

bool same_bytes(const leapquant_format& a, const leapquant_format& b) {
  return std::memcmp(
             &a.payload_bits, &b.payload_bits,
             offsetof(leapquant_format, fit_start) - offsetof(leapquant_format, payload_bits)) == 0;
}

Status check_same_shape(const SavedBlob& blob, const Layout& layout) {
  const leapquant_shape& a = blob.shape;
  const leapquant_shape& b = layout.shape;
  const struct {
    const char* name;
    int32_t saved;
    int32_t own;
  } fields[] = {{"num_k_heads", a.num_k_heads, b.num_k_heads},
                {"num_v_heads", a.num_v_heads, b.num_v_heads},
                {"head_k_dim", a.head_k_dim, b.head_k_dim},
                {"head_v_dim", a.head_v_dim, b.head_v_dim},
                {"decay", a.decay, b.decay},
                {"delta_rule", a.delta_rule, b.delta_rule},
                {"sub_steps", a.sub_steps, b.sub_steps},
                {"first_k_head", a.first_k_head, b.first_k_head},
                {"total_k_heads", a.total_k_heads, b.total_k_heads}};
  for (const auto& field : fields) {
    if (field.saved == field.own) continue;
    return fail(LEAPQUANT_SHAPE_MISMATCH, "the saved state has %s %d, but the layout has %d",
                field.name, field.saved, field.own);
  }
  for (int32_t h = 0; h < b.num_v_heads && b.decay == LEAPQUANT_DECAY_CONSTANT; ++h) {
    const float own = layout.decays[static_cast<size_t>(h)];
    if (blob.constant_decay(h) == own) continue;
    return fail(LEAPQUANT_SHAPE_MISMATCH,
                "the saved state has the constant log decay %.9g for value head %d, but the layout "
                "has %.9g",
                static_cast<double>(blob.constant_decay(h)), h, static_cast<double>(own));
  }
  return LEAPQUANT_OK;
}

Status check_same_formats(const SavedBlob& blob, const Layout& layout) {
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const leapquant_format& saved = blob.head(h).format;
    const leapquant_format& own = layout.head(h).format;
    if (same_bytes(saved, own)) continue;
    char saved_text[160] = "?";
    char own_text[160] = "?";
    leapquant_format_to_string(&saved, saved_text, sizeof(saved_text));
    leapquant_format_to_string(&own, own_text, sizeof(own_text));
    return fail(LEAPQUANT_FORMAT_MISMATCH,
                "value head %d was saved in format '%s', but the layout has '%s'", h, saved_text,
                own_text);
  }
  return LEAPQUANT_OK;
}

Status check_fits(const SavedBlob& blob, const SlotView& slot) {
  if (blob.num_records == 0) return LEAPQUANT_OK;
  if (slot.window < 0) {
    return fail(LEAPQUANT_POSITION_PAST_WINDOW,
                "the saved state has %d tokens in its window, but window_slot is negative",
                blob.num_records);
  }
  if (blob.num_records > slot.layout->window.ring_tokens) {
    return fail(
        LEAPQUANT_SHAPE_MISMATCH,
        "the saved state has %d tokens in its window, but the layout's ring holds %d (a larger "
        "max_tokens makes room)",
        blob.num_records, slot.layout->window.ring_tokens);
  }
  return LEAPQUANT_OK;
}

void read_blob(const SavedBlob& blob, const SlotView& slot) {
  const Layout& layout = *slot.layout;
  const uint8_t* at = blob.states();
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const size_t bytes = static_cast<size_t>(layout.head(h).bytes);
    std::memcpy(boundary_state(layout, slot.pool, slot.state, h), at, bytes);
    at += bytes;
    base_of(layout, slot.pool, slot.state, h) = blob.base(h);
    if (leapquant_health* health = health_of(layout, slot.pool, slot.state, h)) {
      *health = blob.health(h);
    }
  }
  if (blob.num_records == 0) return;
  at = blob.window();
  for_each_record(
      slot, blob.position, [&blob](int32_t h) { return blob.base(h); },
      [&at](std::byte* record, int64_t bytes) {
        std::memcpy(record, at, static_cast<size_t>(bytes));
        at += bytes;
      });
}

// Smallest max_tokens whose ring holds the saved records.
int32_t needed_max_tokens(const SavedBlob& blob) {
  const int32_t window = blob.classes[0].format.window;
  const bool shared = blob.shape.num_v_heads > blob.shape.num_k_heads;
  int32_t tokens = 1;
  while (tokens < 8 && ring_tokens(window, tokens, shared) < blob.num_records) ++tokens;
  return tokens;
}

}  // namespace
}  // namespace leapquant::capi

using namespace leapquant::capi;

extern "C" {

leapquant_status leapquant_saved_bytes(const leapquant_layout* layout, const leapquant_pool* pool,
                                       int32_t state_slot, int32_t window_slot, int32_t position,
                                       size_t* bytes) {
  SlotView slot;
  if (leapquant_status s = open_slot(layout, pool, state_slot, window_slot, false, &slot)) return s;
  if (bytes == nullptr) return fail(LEAPQUANT_NULL_POINTER, "bytes is null");
  if (leapquant_status s = check_position(slot, position)) return s;
  *bytes = blob_size(slot, position).total;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_save(const leapquant_layout* layout, const leapquant_pool* pool,
                                int32_t state_slot, int32_t window_slot, int32_t position,
                                uint64_t fingerprint, void* buffer, size_t bytes, size_t* written) {
  SlotView slot;
  if (leapquant_status s = open_slot(layout, pool, state_slot, window_slot, true, &slot)) return s;
  if (buffer == nullptr) return fail(LEAPQUANT_NULL_POINTER, "buffer is null");
  if (written == nullptr) return fail(LEAPQUANT_NULL_POINTER, "written is null");
  if (leapquant_status s = check_position(slot, position)) return s;
  const BlobSize size = blob_size(slot, position);
  if (bytes < size.total) {
    return fail(LEAPQUANT_BUFFER_TOO_SMALL,
                "bytes is %zu, but the blob needs %zu (leapquant_saved_bytes)", bytes, size.total);
  }
  write_blob(slot, size, position, fingerprint, static_cast<uint8_t*>(buffer));
  *written = size.total;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_load(const leapquant_layout* layout, const leapquant_pool* pool,
                                int32_t state_slot, int32_t window_slot, uint64_t fingerprint,
                                const void* buffer, size_t bytes, int32_t* position) {
  SlotView slot;
  if (leapquant_status s = open_slot(layout, pool, state_slot, window_slot, false, &slot)) return s;
  if (buffer == nullptr) return fail(LEAPQUANT_NULL_POINTER, "buffer is null");
  if (position == nullptr) return fail(LEAPQUANT_NULL_POINTER, "position is null");
  SavedBlob blob;
  if (leapquant_status s = verify_blob(buffer, bytes, &blob, last_error())) return s;
  if (leapquant_status s = check_same_shape(blob, *slot.layout)) return s;
  if (leapquant_status s = check_same_formats(blob, *slot.layout)) return s;
  if (blob.fingerprint != fingerprint) {
    return fail(LEAPQUANT_FINGERPRINT_MISMATCH,
                "the saved state has the fingerprint %016llx, expected %016llx",
                static_cast<unsigned long long>(blob.fingerprint),
                static_cast<unsigned long long>(fingerprint));
  }
  if (leapquant_status s = check_fits(blob, slot)) return s;
  read_blob(blob, slot);
  if (leapquant_status s = close_slot(slot)) return s;
  *position = blob.position;
  return LEAPQUANT_OK;
}

leapquant_status leapquant_inspect(const void* buffer, size_t bytes, leapquant_saved_info* info,
                                   uint8_t* head_format, int32_t head_format_capacity) {
  if (buffer == nullptr) return fail(LEAPQUANT_NULL_POINTER, "buffer is null");
  if (leapquant_status s = check_struct_size(info, "info")) return s;
  SavedBlob blob;
  if (leapquant_status s = verify_blob(buffer, bytes, &blob, last_error())) return s;
  const int32_t heads = blob.shape.num_v_heads;
  if (head_format != nullptr && head_format_capacity < heads) {
    return fail(LEAPQUANT_BUFFER_TOO_SMALL,
                "head_format_capacity is %d, but the saved state has %d value heads",
                head_format_capacity, heads);
  }
  leapquant_saved_info answer = LEAPQUANT_INIT(leapquant_saved_info);
  answer.version = kBlobVersion;
  answer.position = blob.position;
  answer.num_records = blob.num_records;
  answer.fingerprint = blob.fingerprint;
  answer.blob_bytes = blob.blob_bytes;
  answer.shape = blob.shape;
  answer.shape.max_tokens = needed_max_tokens(blob);
  answer.num_formats = blob.num_formats;
  for (int32_t i = 0; i < blob.num_formats; ++i) answer.formats[i] = blob.classes[i].format;
  give_struct(answer, info);
  for (int32_t h = 0; h < heads && head_format != nullptr; ++h) {
    head_format[h] = blob.head_format(h);
  }
  return LEAPQUANT_OK;
}

}  // extern "C"
