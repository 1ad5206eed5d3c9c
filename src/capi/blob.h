// SPDX-License-Identifier: Apache-2.0
//
// The saved blob: where its bytes lie and whether they are sound. Moving states between a blob and
// a pool is save_load.cpp's work. docs/FORMAT.md, "Saved blob", draws the same in tables.
//
// Buffers may have any alignment, so every number goes through memcpy. Memory order is blob order:
// both are little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/layout.h"

namespace leapquant::capi {

static_assert(std::endian::native == std::endian::little,
              "the blob is little-endian, as is memory");

inline constexpr uint32_t kBlobVersion = 1;
inline constexpr uint8_t kBlobMagic[8] = {'L', 'Q', 'S', 'T', 'A', 'T', 'E', 0x1a};
inline constexpr int32_t kBlobMaxFormats = 8;

// Offsets of the prefix, the first 128 bytes.
namespace prefix {
inline constexpr size_t kMagic = 0;
inline constexpr size_t kVersion = 8;
inline constexpr size_t kHeaderBytes = 12;
inline constexpr size_t kBlobBytes = 16;
inline constexpr size_t kFingerprint = 24;
inline constexpr size_t kPosition = 32;
inline constexpr size_t kNumRecords = 36;
inline constexpr size_t kStatesBytes = 40;
inline constexpr size_t kWindowBytes = 48;
inline constexpr size_t kPrefixChecksum = 56;  // of the prefix with this field zero
inline constexpr size_t kTablesChecksum = 64;
inline constexpr size_t kStatesChecksum = 72;
inline constexpr size_t kWindowChecksum = 80;
inline constexpr size_t kShape = 88;  // nine int32 in the order of leapquant_shape, no max_tokens
inline constexpr size_t kNumFormats = 124;
inline constexpr size_t kBytes = 128;
}  // namespace prefix

inline constexpr size_t kSavedFormatBytes = 64;  // fourteen numbers of leapquant_format, zeros

template <typename Number>
Number load_number(const uint8_t* at) {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

template <typename Number>
void store_number(uint8_t* at, Number number) {
  std::memcpy(at, &number, sizeof(number));
}

// The tables behind the prefix: formats, bases, constant log decays, health, formats of heads,
// zeros up to a multiple of 16. Offsets from the start of the blob.
struct HeaderLayout {
  size_t formats = prefix::kBytes;
  size_t bases = 0;
  size_t constant_decays = 0;
  size_t health = 0;
  size_t head_formats = 0;
  size_t end_of_tables = 0;  // zeros from here to `bytes`
  size_t bytes = 0;
};
HeaderLayout header_layout(int32_t num_formats, int32_t num_v_heads, bool constant_decay);

// The window section: per key head its records from the smallest base of its value heads on, then
// per value head its corrections from its base on, then its log decays; zeros up to a multiple
// of 16.
struct WindowBytes {
  int64_t key_row = 0;         // bytes of one token: sub_steps keys
  int64_t correction_row = 0;  // sub_steps corrections
  int64_t decay_row = 0;       // log decays of one token and value head
};
WindowBytes window_bytes(const leapquant_shape& shape, const leapquant_format& format);

// Bytes of the largest blob of a layout: a full ring.
int64_t largest_blob_bytes(const Layout& layout);

// A verified blob: pointers into the caller's buffer.
struct SavedBlob {
  const uint8_t* bytes = nullptr;
  HeaderLayout header;
  leapquant_shape shape;  // max_tokens = 0
  int32_t num_formats = 0;
  BoundaryLayout classes[kBlobMaxFormats];
  int32_t position = 0;
  int32_t num_records = 0;
  uint64_t fingerprint = 0;
  int64_t blob_bytes = 0;
  int64_t states_bytes = 0;
  int64_t window_section_bytes = 0;

  int32_t base(int32_t v_head) const {
    return load_number<int32_t>(bytes + header.bases + 4 * static_cast<size_t>(v_head));
  }
  float constant_decay(int32_t v_head) const {
    return load_number<float>(bytes + header.constant_decays + 4 * static_cast<size_t>(v_head));
  }
  leapquant_health health(int32_t v_head) const {
    return load_number<leapquant_health>(bytes + header.health +
                                         sizeof(leapquant_health) * static_cast<size_t>(v_head));
  }
  uint8_t head_format(int32_t v_head) const {
    return bytes[header.head_formats + static_cast<size_t>(v_head)];
  }
  const BoundaryLayout& head(int32_t v_head) const { return classes[head_format(v_head)]; }
  const uint8_t* states() const { return bytes + header.bytes; }
  const uint8_t* window() const { return states() + states_bytes; }
};

// Smallest base of the value heads of a key head: where its records start.
template <typename BaseOf>
int32_t first_record(int32_t k_head, int32_t group, BaseOf base_of_head) {
  int32_t first = base_of_head(k_head * group);
  for (int32_t h = k_head * group + 1; h < (k_head + 1) * group; ++h) {
    if (base_of_head(h) < first) first = base_of_head(h);
  }
  return first;
}

// Bytes of the window section, a multiple of 16.
template <typename BaseOf>
int64_t window_section_bytes(const leapquant_shape& shape, const WindowBytes& row, int32_t position,
                             BaseOf base_of_head) {
  const int32_t group = shape.num_v_heads / shape.num_k_heads;
  int64_t bytes = 0;
  for (int32_t k = 0; k < shape.num_k_heads; ++k) {
    bytes += (position - first_record(k, group, base_of_head)) * row.key_row;
  }
  for (int32_t h = 0; h < shape.num_v_heads; ++h) {
    bytes += (position - base_of_head(h)) * (row.correction_row + row.decay_row);
  }
  return (bytes + 15) / 16 * 16;
}

uint64_t checksum(const uint8_t* bytes, size_t count);
// Checksum of a prefix, its own field taken as zero.
uint64_t prefix_checksum(const uint8_t* bytes);

// Verifies everything that can be known without a layout: sizes, versions, checksums, ranges,
// zeros.
Status verify_blob(const void* buffer, size_t bytes, SavedBlob* blob, Sentence* sentence);

}  // namespace leapquant::capi
