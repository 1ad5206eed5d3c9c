// SPDX-License-Identifier: Apache-2.0
//
// Rows as they are stored: packed codes to int8 and back, sixteen at a time (what core/packing.h
// says, faster), and rows that end between two vectors.
// Decoding for the read path is payload-inl.h's; it keeps codes in registers.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_PACKING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_PACKING_INL_H_
#undef LEAPQUANT_CPU_PACKING_INL_H_
#else
#define LEAPQUANT_CPU_PACKING_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/packing.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Bytes16 = hn::FixedTag<uint8_t, 16>;
using Words4 = hn::FixedTag<uint32_t, 4>;

// The row itself when whole vectors can be read from it, else a copy in spare [256] with zeros.
HWY_INLINE const uint16_t* padded_row(const uint16_t* row, int32_t count, uint16_t* spare) {
  if (count % 16 == 0) [[likely]] {
    return row;
  }
  std::memcpy(spare, row, static_cast<size_t>(count) * 2);
  for (int32_t i = count; i % 16 != 0; ++i) spare[i] = 0;
  return spare;
}

// 32 codes of four bits from 16 bytes.
HWY_INLINE void unpack_4(const uint8_t* packed, int8_t* codes) {
  const Bytes16 d;
  const hn::RebindToSigned<Bytes16> di;
  const hn::Repartition<uint16_t, Bytes16> d16;
  const auto bytes = hn::LoadU(d, packed);
  const auto mask = hn::Set(d, uint8_t{15});
  const auto low = hn::And(bytes, mask);
  const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), mask);
  const auto eight = hn::Set(d, uint8_t{8});
  const auto first = hn::Sub(hn::InterleaveLower(d, low, high), eight);
  const auto second = hn::Sub(hn::InterleaveUpper(d, low, high), eight);
  hn::StoreU(hn::BitCast(di, first), di, codes);
  hn::StoreU(hn::BitCast(di, second), di, codes + 16);
}

// 16 codes of six bits from 12 bytes; reads 16.
HWY_INLINE void unpack_6(const uint8_t* packed, int8_t* codes) {
  const Bytes16 d;
  const Words4 dw;
  const hn::RebindToSigned<Bytes16> di;
  alignas(16) static constexpr uint8_t kSpread[16] = {0, 1, 2, 0x80, 3, 4,  5,  0x80,
                                                      6, 7, 8, 0x80, 9, 10, 11, 0x80};
  const auto words =
      hn::BitCast(dw, hn::TableLookupBytesOr0(hn::LoadU(d, packed), hn::Load(d, kSpread)));
  const auto field0 = hn::And(words, hn::Set(dw, 0x3fu));
  const auto field1 = hn::And(hn::ShiftLeft<2>(words), hn::Set(dw, 0x3f00u));
  const auto field2 = hn::And(hn::ShiftLeft<4>(words), hn::Set(dw, 0x3f0000u));
  const auto field3 = hn::And(hn::ShiftLeft<6>(words), hn::Set(dw, 0x3f000000u));
  const auto stored = hn::BitCast(d, hn::Or(hn::Or(field0, field1), hn::Or(field2, field3)));
  hn::StoreU(hn::BitCast(di, hn::Sub(stored, hn::Set(d, uint8_t{32}))), di, codes);
}

// codes [count rounded up to 32]: what lies past count is undefined. Six-bit rows are read four
// bytes past their end, which lie inside the boundary state since the value scales follow the
// payload.
inline void unpack_row(const uint8_t* packed, int32_t count, int32_t bits, int8_t* codes) {
  int32_t done = 0;
  switch (bits) {
    case 8:
      std::memcpy(codes, packed, static_cast<size_t>(count));
      return;
    case 6:
      for (; done + 16 <= count; done += 16) unpack_6(packed + done / 4 * 3, codes + done);
      break;
    case 4:
      for (; done + 32 <= count; done += 32) unpack_4(packed + done / 2, codes + done);
      break;
    default:
      break;
  }
  unpack_codes(packed + packed_bytes(done, bits), count - done, bits, codes + done);
}

// packed [packed_bytes(count, bits)]; codes may be read up to the next multiple of 16.
inline void pack_row(const int8_t* codes, int32_t count, int32_t bits, uint8_t* packed) {
  const Bytes16 d;
  const hn::RebindToSigned<Bytes16> di;
  int32_t done = 0;
  if (bits == 8) {
    std::memcpy(packed, codes, static_cast<size_t>(count));
    return;
  }
  if (bits == 6) {
    const Words4 dw;
    alignas(16) static constexpr uint8_t kGather[16] = {0,  1,  2,  4,  5,    6,    8,    9,
                                                        10, 12, 13, 14, 0x80, 0x80, 0x80, 0x80};
    for (; done + 16 <= count; done += 16) {
      const auto stored =
          hn::Add(hn::BitCast(d, hn::LoadU(di, codes + done)), hn::Set(d, uint8_t{32}));
      const auto words = hn::BitCast(dw, stored);
      const auto field0 = hn::And(words, hn::Set(dw, 0x3fu));
      const auto field1 = hn::ShiftRight<2>(hn::And(words, hn::Set(dw, 0x3f00u)));
      const auto field2 = hn::ShiftRight<4>(hn::And(words, hn::Set(dw, 0x3f0000u)));
      const auto field3 = hn::ShiftRight<6>(hn::And(words, hn::Set(dw, 0x3f000000u)));
      const auto joined = hn::Or(hn::Or(field0, field1), hn::Or(field2, field3));
      const auto group = hn::TableLookupBytesOr0(hn::BitCast(d, joined), hn::Load(d, kGather));
      if (done + 32 <= count) {
        hn::StoreU(group, d, packed + done / 4 * 3);  // the next group overwrites the last four
      } else {
        alignas(16) uint8_t last[16];
        hn::Store(group, d, last);
        std::memcpy(packed + done / 4 * 3, last, 12);
      }
    }
  } else if (bits == 4) {
    const hn::Repartition<uint16_t, Bytes16> d16;
    const hn::FixedTag<uint8_t, 8> half;
    const hn::RebindToSigned<decltype(d16)> di16;
    for (; done + 16 <= count; done += 16) {
      const auto stored =
          hn::Add(hn::BitCast(d, hn::LoadU(di, codes + done)), hn::Set(d, uint8_t{8}));
      const auto words = hn::BitCast(d16, stored);
      const auto joined =
          hn::And(hn::Or(words, hn::ShiftRight<4>(words)), hn::Set(d16, uint16_t{0xff}));
      hn::StoreU(hn::DemoteTo(half, hn::BitCast(di16, joined)), half, packed + done / 2);
    }
  }
  pack_codes(codes + done, count - done, bits, packed + packed_bytes(done, bits));
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
