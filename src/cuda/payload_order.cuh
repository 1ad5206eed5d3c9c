// SPDX-License-Identifier: Apache-2.0
//
// The order of residual codes inside a head's payload on the device. Sizes and offsets of all parts
// are core/layout's; only the place of code (key, value) within the payload differs from the
// canonical order, so that a warp's 16-byte loads are operands of the integer matrix units as they
// lie. Everything on the device that touches codes, and everything that exports, saves or loads
// them, goes through this file. Host and device; no CUDA header needed.
//
// Permuted order (payload bits 8, 6, 4; K a multiple of 64, V a multiple of 32; else canonical).
// Codes of one key and four values v, v + 8, v + 16, v + 24 (a group, part p = 0..3) lie together.
// With value = 32 vb + 8 p + g (g < 8) and key = 16 kb + 4 t + b (t, b < 4), lane = 4 g + t is the
// lane that holds the code in an m16n8k32 operand (and, with columns so ordered, as an m16n8
// accumulator).
// 8 bits: two's complement, byte ((vb K/16 + kb) 32 + lane) 16 + 4 p + b.
// 4 bits: code + 8 in nibble p mod 2 (0 is the low one) of byte
//   (vb K/32 + kb / 2) 512 + 16 lane + 8 (kb mod 2) + 4 (p / 2) + b.
// 6 bits: code + 32; its low four bits as for 4 bits; then, K V / 2 bytes further, its high two
//   bits at bit 2 p of byte (vb K/64 + kb / 4) 512 + 16 lane + 4 (kb mod 4) + b.
// The bytes of 32 values are contiguous (6 bits: in each of the two planes).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LEAPQUANT_HOST_DEVICE __host__ __device__
#else
#define LEAPQUANT_HOST_DEVICE
#endif

namespace leapquant::cuda {

// Which order a payload has, and its dimensions. From a BoundaryLayout: {format.payload_bits,
// k_dim, v_dim, row_bytes}.
struct PayloadOrder {
  int32_t bits = 8;  // 8, 6, 4 or 3
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t row_bytes = 0;  // canonical bytes of a key row

  LEAPQUANT_HOST_DEVICE constexpr bool permuted() const {
    return bits != 3 && k_dim % 64 == 0 && v_dim % 32 == 0;
  }
  // Codes that share bytes form a group: store_group writes whole bytes, no two groups overlap.
  LEAPQUANT_HOST_DEVICE constexpr int32_t group_size() const { return bits == 3 ? 8 : 4; }
  LEAPQUANT_HOST_DEVICE constexpr int32_t groups_per_key() const {
    return (v_dim + group_size() - 1) / group_size();
  }
  // Value index of member `part` of a group; may be >= v_dim in the last group of 3 bits.
  LEAPQUANT_HOST_DEVICE constexpr int32_t group_value(int32_t group, int32_t part) const {
    return permuted() ? 32 * (group / 8) + group % 8 + 8 * part : group * group_size() + part;
  }
};

namespace payload_detail {

LEAPQUANT_HOST_DEVICE constexpr int32_t lane_of(int32_t key, int32_t value) {
  return 4 * (value % 8) + (key / 4) % 4;
}
LEAPQUANT_HOST_DEVICE constexpr int32_t byte_of(int32_t key) { return key % 4; }
// Byte of an 8-bit code; values of part p lie 4 p bytes after those of part 0.
LEAPQUANT_HOST_DEVICE constexpr int32_t byte_place(int32_t k_dim, int32_t key, int32_t value) {
  return ((value / 32 * (k_dim / 16) + key / 16) * 32 + lane_of(key, value)) * 16 +
         4 * ((value / 8) % 4) + byte_of(key);
}
LEAPQUANT_HOST_DEVICE constexpr int32_t nibble_place(int32_t k_dim, int32_t key, int32_t value) {
  return (value / 32 * (k_dim / 32) + key / 32) * 512 + 16 * lane_of(key, value) +
         8 * ((key / 16) % 2) + 4 * ((value / 16) % 2) + byte_of(key);
}
LEAPQUANT_HOST_DEVICE constexpr int32_t high_place(int32_t k_dim, int32_t v_dim, int32_t key,
                                                   int32_t value) {
  return k_dim * v_dim / 2 + (value / 32 * (k_dim / 64) + key / 64) * 512 +
         16 * lane_of(key, value) + 4 * ((key / 16) % 4) + byte_of(key);
}

}  // namespace payload_detail

// Signed code (key, value) of a payload.
LEAPQUANT_HOST_DEVICE constexpr int32_t load_code(const PayloadOrder& order, const uint8_t* payload,
                                                  int32_t key, int32_t value) {
  if (order.permuted()) {
    if (order.bits == 8) {
      const int32_t byte = payload[payload_detail::byte_place(order.k_dim, key, value)];
      return byte < 128 ? byte : byte - 256;
    }
    const int32_t low = (payload[payload_detail::nibble_place(order.k_dim, key, value)] >>
                         (4 * ((value / 8) % 2))) &
                        15;
    if (order.bits == 4) return low - 8;
    const int32_t high =
        (payload[payload_detail::high_place(order.k_dim, order.v_dim, key, value)] >>
         (2 * ((value / 8) % 4))) &
        3;
    return low + 16 * high - 32;
  }
  const uint8_t* row = payload + static_cast<int64_t>(key) * order.row_bytes;
  if (order.bits == 8) return row[value] < 128 ? row[value] : row[value] - 256;
  if (order.bits == 4) return ((row[value / 2] >> (4 * (value % 2))) & 15) - 8;
  const int32_t per_group = order.bits == 6 ? 4 : 8;
  const uint8_t* group = row + value / per_group * 3;
  const uint32_t word =
      group[0] | static_cast<uint32_t>(group[1]) << 8 | static_cast<uint32_t>(group[2]) << 16;
  const uint32_t mask = (1u << order.bits) - 1u;
  return static_cast<int32_t>((word >> (order.bits * (value % per_group))) & mask) -
         (1 << (order.bits - 1));
}

// Stores the codes [group_size] of one group: codes[part] belongs to value group_value(group,
// part). Members past v_dim (3 bits) must be 0.
LEAPQUANT_HOST_DEVICE constexpr void store_group(const PayloadOrder& order, uint8_t* payload,
                                                 int32_t key, int32_t group, const int32_t* codes) {
  if (order.permuted()) {
    const int32_t value = order.group_value(group, 0);
    if (order.bits == 8) {
      for (int32_t p = 0; p < 4; ++p) {
        payload[payload_detail::byte_place(order.k_dim, key, value + 8 * p)] =
            static_cast<uint8_t>(codes[p]);
      }
      return;
    }
    const int32_t offset = 1 << (order.bits - 1);
    uint32_t high = 0;
    for (int32_t p = 0; p < 4; p += 2) {
      const uint32_t even = static_cast<uint32_t>(codes[p] + offset);
      const uint32_t odd = static_cast<uint32_t>(codes[p + 1] + offset);
      payload[payload_detail::nibble_place(order.k_dim, key, value + 8 * p)] =
          static_cast<uint8_t>((even & 15u) | (odd & 15u) << 4);
      high |= (even >> 4 | odd >> 4 << 2) << (2 * p);
    }
    if (order.bits == 6) {
      payload[payload_detail::high_place(order.k_dim, order.v_dim, key, value)] =
          static_cast<uint8_t>(high);
    }
    return;
  }
  uint8_t* row = payload + static_cast<int64_t>(key) * order.row_bytes;
  const int32_t size = order.group_size();
  if (order.bits == 8) {
    for (int32_t p = 0; p < size; ++p) row[group * size + p] = static_cast<uint8_t>(codes[p]);
    return;
  }
  uint32_t word = 0;
  for (int32_t p = 0; p < size; ++p) {
    word |= static_cast<uint32_t>(codes[p] + (1 << (order.bits - 1))) << (order.bits * p);
  }
  const int32_t bytes = order.bits == 4 ? 2 : 3;
  for (int32_t b = 0; b < bytes; ++b) {
    row[group * bytes + b] = static_cast<uint8_t>(word >> (8 * b));
  }
}

}  // namespace leapquant::cuda
