// SPDX-License-Identifier: Apache-2.0
//
// Read vectors against the payload of a boundary state: codes become floats in registers, once for
// up to three vectors, and never reach memory. Each output is one chain of fused multiply-adds over
// the key rows in rising order, whatever vectors it is computed together with.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_DECODE_PAYLOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_DECODE_PAYLOAD_INL_H_
#undef LEAPQUANT_CPU_DECODE_PAYLOAD_INL_H_
#else
#define LEAPQUANT_CPU_DECODE_PAYLOAD_INL_H_
#endif

#include <cstring>

#include "core/layout.h"
#include "core/numeric.h"
#include "core/packing.h"
#include "cpu/decode_ahead.h"
#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// Columns of a block: four vectors of sums per read vector.
inline constexpr int32_t kBlockVectors4 = 4;
inline constexpr int32_t kPayloadBlock = kBlockVectors4 * kLanes;
using ByteBlock = hn::Repartition<uint8_t, FloatTag>;

// A kind of payload. load() fetches a block's row, number<v>() makes its v-th vector of numbers,
// times kScale; store() writes four vectors of sums in the order of the columns. Vectors hold every
// second or fourth column where that saves shuffles: the units that shuffle also multiply.
inline constexpr int32_t kTopByte = static_cast<int32_t>(0xff000000u);

// Eight bits: every 32-bit lane holds four codes; each moves to the top of the lane: code * 2^24.
struct Int8Codes {
  static constexpr float kScale = 16777216.0f;
  static constexpr int32_t block_bytes = kPayloadBlock;
  using Row = hn::Vec<Int32Tag>;
  HWY_INLINE Row load(const uint8_t* row) const {
    return hn::BitCast(Int32Tag(), hn::LoadU(ByteBlock(), row));
  }
  template <int32_t v>
  HWY_INLINE FloatVec number(const Row& codes) const {
    const FloatTag d;
    const auto mask = hn::Set(Int32Tag(), kTopByte);
    if constexpr (v == 0) return hn::ConvertTo(d, hn::ShiftLeft<24>(codes));
    if constexpr (v == 1) return hn::ConvertTo(d, hn::And(hn::ShiftLeft<16>(codes), mask));
    if constexpr (v == 2) return hn::ConvertTo(d, hn::And(hn::ShiftLeft<8>(codes), mask));
    if constexpr (v == 3) return hn::ConvertTo(d, hn::And(codes, mask));
  }
  HWY_INLINE static void store(const FloatVec* sum, float* to) {
    hn::StoreInterleaved4(sum[0], sum[1], sum[2], sum[3], FloatTag(), to);
  }
};

// Four bits: a byte goes to the top of a 32-bit lane, its nibbles (two's complement after the flip
// of their top bits) to the top of a lane each: code * 2^28, exact.
struct Int4Codes {
  static constexpr float kScale = 268435456.0f;
  static constexpr int32_t block_bytes = kPayloadBlock / 2;
  hn::Vec<ByteBlock> table[2];
  Int4Codes() {
    alignas(64) uint8_t index[64];
    for (int32_t pair = 0; pair < 2; ++pair) {
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        for (int32_t b = 0; b < 3; ++b) index[lane * 4 + b] = 0x80;
        index[lane * 4 + 3] = static_cast<uint8_t>((pair * kLanes + lane) & 15);
      }
      table[pair] = hn::Load(ByteBlock(), index);
    }
  }
  struct Row {
    hn::Vec<Int32Tag> pair[2];
  };
  HWY_INLINE Row load(const uint8_t* row) const {
    const ByteBlock bytes;
    Row codes;
    for (int32_t pair = 0; pair < 2; ++pair) {
      const auto stored = hn::LoadDup128(bytes, row + (pair * kLanes & ~15));
      const auto flipped = hn::Xor(stored, hn::Set(bytes, uint8_t{0x88}));
      codes.pair[pair] = hn::BitCast(Int32Tag(), hn::TableLookupBytesOr0(flipped, table[pair]));
    }
    return codes;
  }
  template <int32_t v>
  HWY_INLINE FloatVec number(const Row& codes) const {
    const auto top = codes.pair[v / 2];
    return hn::ConvertTo(
        FloatTag(), v % 2 == 0
                        ? hn::ShiftLeft<4>(top)
                        : hn::And(top, hn::Set(Int32Tag(), static_cast<int32_t>(0xf0000000u))));
  }
  HWY_INLINE static void store(const FloatVec* sum, float* to) {
    hn::StoreInterleaved2(sum[0], sum[1], FloatTag(), to);
    hn::StoreInterleaved2(sum[2], sum[3], FloatTag(), to + 2 * kLanes);
  }
};

// Six bits: three bytes go to the upper three of a 32-bit lane; field by field to its top.
struct Int6Codes {
  static constexpr float kScale = 67108864.0f;
  static constexpr int32_t block_bytes = kPayloadBlock / 4 * 3;
  hn::Vec<ByteBlock> table;
  Int6Codes() {
    alignas(64) uint8_t index[64];
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      index[lane * 4] = 0x80;
      for (int32_t b = 0; b < 3; ++b) {
        index[lane * 4 + b + 1] = static_cast<uint8_t>(3 * (lane & 3) + b);
      }
    }
    table = hn::Load(ByteBlock(), index);
  }
  // Twelve bytes in every 128-bit block; the last block's load passes the row by four bytes, inside
  // the boundary state since the value scales follow.
  template <class D>
  HWY_INLINE static hn::Vec<D> spread(D d, const uint8_t* row) {
    if constexpr (hn::MaxLanes(D()) == 16) {
      return hn::LoadU(d, row);
    } else {
      const hn::Half<D> half;
      return hn::Combine(d, spread(half, row + 12 * (hn::MaxLanes(half) / 16)), spread(half, row));
    }
  }
  using Row = hn::Vec<Int32Tag>;
  HWY_INLINE Row load(const uint8_t* row) const {
    const auto stored = hn::TableLookupBytesOr0(spread(ByteBlock(), row), table);
    return hn::Xor(hn::BitCast(Int32Tag(), stored),
                   hn::Set(Int32Tag(), static_cast<int32_t>(0x82082000u)));
  }
  template <int32_t v>
  HWY_INLINE FloatVec number(const Row& codes) const {
    const FloatTag d;
    const auto mask = hn::Set(Int32Tag(), static_cast<int32_t>(0xfc000000u));
    if constexpr (v == 0) return hn::ConvertTo(d, hn::ShiftLeft<18>(codes));
    if constexpr (v == 1) return hn::ConvertTo(d, hn::And(hn::ShiftLeft<12>(codes), mask));
    if constexpr (v == 2) return hn::ConvertTo(d, hn::And(hn::ShiftLeft<6>(codes), mask));
    if constexpr (v == 3) return hn::ConvertTo(d, hn::And(codes, mask));
  }
  HWY_INLINE static void store(const FloatVec* sum, float* to) {
    hn::StoreInterleaved4(sum[0], sum[1], sum[2], sum[3], FloatTag(), to);
  }
};

// Two numbers in every 32-bit lane: the upper one needs its lower half cleared, the lower one a
// shift.
struct Bf16Numbers {
  static constexpr float kScale = 1.0f;
  static constexpr int32_t block_bytes = kPayloadBlock * 2;
  struct Row {
    hn::Vec<Uint32Tag> pair[2];
  };
  HWY_INLINE Row load(const uint8_t* row) const {
    const ByteBlock bytes;
    const Uint32Tag du;
    return {{hn::BitCast(du, hn::LoadU(bytes, row)),
             hn::BitCast(du, hn::LoadU(bytes, row + 4 * kLanes))}};
  }
  template <int32_t v>
  HWY_INLINE FloatVec number(const Row& row) const {
    const auto pair = row.pair[v / 2];
    return hn::BitCast(FloatTag(), v % 2 == 0 ? hn::ShiftLeft<16>(pair)
                                              : hn::And(pair, hn::Set(Uint32Tag(), 0xffff0000u)));
  }
  HWY_INLINE static void store(const FloatVec* sum, float* to) { Int4Codes::store(sum, to); }
};

struct Fp32Numbers {
  static constexpr float kScale = 1.0f;
  static constexpr int32_t block_bytes = kPayloadBlock * 4;
  using Row = const float*;
  HWY_INLINE Row load(const uint8_t* row) const { return reinterpret_cast<const float*>(row); }
  template <int32_t v>
  HWY_INLINE FloatVec number(Row row) const {
    return in_register(hn::LoadU(FloatTag(), row + v * kLanes));
  }
  HWY_INLINE static void store(const FloatVec* sum, float* to) {
    for (int32_t v = 0; v < 4; ++v) hn::StoreU(sum[v], FloatTag(), to + v * kLanes);
  }
};

// sums[n][v] += factors[n] numbers[v] for one vector of a row.
template <int32_t v, int32_t kCount, class Codes>
HWY_INLINE void add_number(const Codes& codes, const typename Codes::Row& row,
                           const FloatVec* factor, FloatVec (*sum)[4]) {
  const auto number = codes.template number<v>(row);
  HWY_UNROLL(4)
  for (int32_t n = 0; n < kCount; ++n) sum[n][v] = hn::MulAdd(factor[n], number, sum[n][v]);
}

// Sums of vectors kFirst .. kFirst + kVectors - 1 of one block, over all key rows.
template <int32_t kCount, int32_t kFirst, int32_t kVectors, class Codes>
HWY_INLINE void sum_rows(const Codes& codes, const uint8_t* HWY_RESTRICT row, int64_t row_step,
                         int32_t k_dim, const float* HWY_RESTRICT x, int32_t x_stride, Ahead* ahead,
                         FloatVec (*result)[4]) {
  const FloatTag d;
  FloatVec sum[kCount][4];
  HWY_UNROLL(4)
  for (int32_t n = 0; n < kCount; ++n) {
    for (int32_t v = kFirst; v < kFirst + kVectors; ++v) sum[n][v] = hn::Zero(d);
  }
  Ahead::Stretch fetch = ahead->stretch();
  for (int32_t i = 0; i < k_dim; i += 2) {  // K is a multiple of four
    HWY_UNROLL(2)
    for (int32_t half = 0; half < 2; ++half) {
      FloatVec factor[kCount];
      HWY_UNROLL(4)
      for (int32_t n = 0; n < kCount; ++n) factor[n] = hn::Set(d, x[n * x_stride + i + half]);
      const typename Codes::Row numbers = codes.load(row);
      if constexpr (kFirst == 0) {
        add_number<0, kCount>(codes, numbers, factor, sum);
        add_number<1, kCount>(codes, numbers, factor, sum);
      }
      if constexpr (kFirst + kVectors == 4) {
        add_number<2, kCount>(codes, numbers, factor, sum);
        add_number<3, kCount>(codes, numbers, factor, sum);
      }
      row += row_step;
    }
    // Two rows' worth of lines: the next head's payload comes as fast as this one's is used.
    constexpr int32_t kLines = Codes::block_bytes <= 32 ? 1 : Codes::block_bytes / 32;
    for (int32_t line = 0; line < kLines; ++line) fetch.step();
  }
  ahead->pass(fetch);
  HWY_UNROLL(4)
  for (int32_t n = 0; n < kCount; ++n) {
    for (int32_t v = kFirst; v < kFirst + kVectors; ++v) result[n][v] = sum[n][v];
  }
}

// sums [kCount][kPayloadBlock] of one block of columns; row_step bytes from key row to key row.
template <int32_t kCount, class Codes>
HWY_INLINE void read_block(const Codes& codes, const uint8_t* HWY_RESTRICT row, int64_t row_step,
                           int32_t k_dim, const float* HWY_RESTRICT x, int32_t x_stride,
                           Ahead* ahead, float* HWY_RESTRICT sums, int32_t sum_stride) {
  FloatVec sum[kCount][4];
  if constexpr (kCount <= 2) {
    sum_rows<kCount, 0, 4>(codes, row, row_step, k_dim, x, x_stride, ahead, sum);
  } else {  // sixteen registers hold half of the sums
    sum_rows<kCount, 0, 2>(codes, row, row_step, k_dim, x, x_stride, ahead, sum);
    sum_rows<kCount, 2, 2>(codes, row, row_step, k_dim, x, x_stride, ahead, sum);
  }
  for (int32_t n = 0; n < kCount; ++n) Codes::store(sum[n], sums + n * sum_stride);
}

// Columns from `first` on that make no whole block, or whose packing has no kernel of its own.
template <int32_t kCount>
void read_tile(const BoundaryLayout& layout, const uint8_t* payload, int32_t first, const float* x,
               int32_t x_stride, float scale, Ahead* ahead, float* sums, int32_t sum_stride) {
  const FloatTag d;
  const int32_t bits = layout.format.payload_bits;
  const int32_t left = layout.v_dim - first;
  const int32_t columns = left < kPayloadBlock ? left : kPayloadBlock;
  const int32_t stored = padded(columns);
  alignas(64) float block[kCount * kPayloadBlock];
  if (bits <= 8) {
    alignas(64) int8_t tile[256 * kPayloadBlock];
    for (int32_t i = 0; i < layout.k_dim; ++i) {
      int8_t* row = tile + i * kPayloadBlock;
      unpack_codes(payload + static_cast<int64_t>(i) * layout.row_bytes + packed_bytes(first, bits),
                   columns, bits, row);
      for (int32_t j = columns; j < kPayloadBlock; ++j) row[j] = 0;
    }
    read_block<kCount>(Int8Codes(), reinterpret_cast<const uint8_t*>(tile), kPayloadBlock,
                       layout.k_dim, x, x_stride, ahead, block, kPayloadBlock);
  } else {
    for (int32_t n = 0; n < kCount; ++n) {
      for (int32_t j = 0; j < kPayloadBlock; ++j) block[n * kPayloadBlock + j] = 0.0f;
    }
    alignas(64) float row[kPayloadBlock];
    for (int32_t j = 0; j < kPayloadBlock; ++j) row[j] = 0.0f;
    for (int32_t i = 0; i < layout.k_dim; ++i) {
      const uint8_t* packed = payload + static_cast<int64_t>(i) * layout.row_bytes +
                              static_cast<int64_t>(first) * bits / 8;
      for (int32_t j = 0; j < columns; ++j) {
        if (bits == 32) {
          std::memcpy(&row[j], packed + 4 * j, 4);
        } else {
          uint16_t half;
          std::memcpy(&half, packed + 2 * j, 2);
          row[j] = bf16_to_float(half);
        }
      }
      for (int32_t n = 0; n < kCount; ++n) {
        const auto factor = hn::Set(d, x[n * x_stride + i]);
        for (int32_t j = 0; j < kPayloadBlock; j += kLanes) {
          float* at = block + n * kPayloadBlock + j;
          hn::Store(hn::MulAdd(factor, hn::Load(d, row + j), hn::Load(d, at)), d, at);
        }
      }
    }
  }
  // Where the tile held plain codes, their kernel divided by its own factor.
  const float unit = bits <= 8 ? scale / Int8Codes::kScale : scale;
  for (int32_t n = 0; n < kCount; ++n) {
    for (int32_t j = 0; j < stored && j < kPayloadBlock; j += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, block + n * kPayloadBlock + j), hn::Set(d, unit)), d,
                sums + n * sum_stride + first + j);
    }
  }
}

template <int32_t kCount, class Codes>
void read_codes(const BoundaryLayout& layout, const uint8_t* payload, const float* x,
                int32_t x_stride, Ahead* ahead, float* sums, int32_t sum_stride) {
  const Codes codes;
  int32_t j = 0;
  for (; j + kPayloadBlock <= layout.v_dim; j += kPayloadBlock) {
    read_block<kCount>(codes, payload + j / kPayloadBlock * Codes::block_bytes, layout.row_bytes,
                       layout.k_dim, x, x_stride, ahead, sums + j, sum_stride);
  }
  if (j < layout.v_dim) {
    read_tile<kCount>(layout, payload, j, x, x_stride, Codes::kScale, ahead, sums, sum_stride);
  }
}

// The factor that the payload's numbers carry: read vectors are divided by it beforehand.
inline float payload_scale(const BoundaryLayout& layout) {
  switch (layout.format.payload_bits) {
    case 8:
      return Int8Codes::kScale;
    case 6:
      return Int6Codes::kScale;
    case 4:
      return Int4Codes::kScale;
    default:
      return 1.0f;
  }
}

// sums [kCount][padded(V)] = sum over key rows of x[n][i] code[i][j] payload_scale.
template <int32_t kCount>
void read_payload(const BoundaryLayout& layout, const std::byte* boundary, const float* x,
                  int32_t x_stride, Ahead* ahead, float* sums, int32_t sum_stride) {
  const auto* payload = reinterpret_cast<const uint8_t*>(boundary + layout.payload);
  switch (layout.format.payload_bits) {
    case 8:
      read_codes<kCount, Int8Codes>(layout, payload, x, x_stride, ahead, sums, sum_stride);
      return;
    case 6:
      read_codes<kCount, Int6Codes>(layout, payload, x, x_stride, ahead, sums, sum_stride);
      return;
    case 4:
      read_codes<kCount, Int4Codes>(layout, payload, x, x_stride, ahead, sums, sum_stride);
      return;
    case 16:
      read_codes<kCount, Bf16Numbers>(layout, payload, x, x_stride, ahead, sums, sum_stride);
      return;
    case 32:
      read_codes<kCount, Fp32Numbers>(layout, payload, x, x_stride, ahead, sums, sum_stride);
      return;
    default:
      for (int32_t j = 0; j < layout.v_dim; j += kPayloadBlock) {
        read_tile<kCount>(layout, payload, j, x, x_stride, 1.0f, ahead, sums, sum_stride);
      }
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
