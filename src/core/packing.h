// SPDX-License-Identifier: Apache-2.0
//
// Canonical packing of integer codes along one axis: 8 bits one byte each; 6 bits four codes in
// three bytes, little-endian, stored as code + 32; 4 bits two codes a byte, low nibble = even
// index, stored as code + 8; 3 bits eight codes in three bytes, little-endian, stored as code + 4.
// A short last group is filled with the stored value of code 0.
#pragma once

#include <cstdint>

namespace leapquant {

// Bytes of `count` codes of `bits` (8, 6, 4 or 3).
constexpr int32_t packed_bytes(int32_t count, int32_t bits) {
  switch (bits) {
    case 8:
      return count;
    case 6:
      return (count + 3) / 4 * 3;
    case 4:
      return (count + 1) / 2;
    default:
      return (count + 7) / 8 * 3;
  }
}

// codes [count], each within the signed range of `bits`, to packed [packed_bytes(count, bits)].
inline void pack_codes(const int8_t* codes, int32_t count, int32_t bits, uint8_t* packed) {
  if (bits == 8) {
    for (int32_t i = 0; i < count; ++i) packed[i] = static_cast<uint8_t>(codes[i]);
    return;
  }
  const int32_t per_group = bits == 6 ? 4 : bits == 4 ? 2 : 8;
  const int32_t group_bytes = bits == 4 ? 1 : 3;
  const int32_t offset = 1 << (bits - 1);
  for (int32_t i = 0; i < count; i += per_group) {
    uint32_t word = 0;
    for (int32_t j = 0; j < per_group; ++j) {
      const int32_t code = i + j < count ? codes[i + j] : 0;
      word |= static_cast<uint32_t>(code + offset) << (bits * j);
    }
    for (int32_t b = 0; b < group_bytes; ++b) *packed++ = static_cast<uint8_t>(word >> (8 * b));
  }
}

inline void unpack_codes(const uint8_t* packed, int32_t count, int32_t bits, int8_t* codes) {
  if (bits == 8) {
    for (int32_t i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(packed[i]);
    return;
  }
  const int32_t per_group = bits == 6 ? 4 : bits == 4 ? 2 : 8;
  const int32_t group_bytes = bits == 4 ? 1 : 3;
  const int32_t offset = 1 << (bits - 1);
  const uint32_t mask = (1u << bits) - 1u;
  for (int32_t i = 0; i < count; i += per_group) {
    uint32_t word = 0;
    for (int32_t b = 0; b < group_bytes; ++b) word |= static_cast<uint32_t>(*packed++) << (8 * b);
    for (int32_t j = 0; j < per_group && i + j < count; ++j) {
      codes[i + j] =
          static_cast<int8_t>(static_cast<int32_t>((word >> (bits * j)) & mask) - offset);
    }
  }
}

}  // namespace leapquant
