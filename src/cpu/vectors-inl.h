// SPDX-License-Identifier: Apache-2.0
//
// Compensator vectors: where one lies in a boundary state, its stored bytes to an FP32 row and
// back.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_VECTORS_INL_H_
#undef LEAPQUANT_CPU_VECTORS_INL_H_
#else
#define LEAPQUANT_CPU_VECTORS_INL_H_
#endif

#include <cstring>

#include "core/layout.h"
#include "core/numeric.h"
#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"
#include "cpu/packing-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

enum class Side { kKey, kValue };

// bits 16 (FP16), 8 or 4; offsets from the start of the boundary state.
struct VectorPlace {
  int32_t bits;
  int32_t count;
  int64_t data;
  int64_t scale;  // FP16; unused for FP16 vectors
};

inline VectorPlace vector_place(const BoundaryLayout& layout, Side side, int32_t index) {
  const bool key = side == Side::kKey;
  const int32_t count = key ? layout.k_dim : layout.v_dim;
  const int32_t num_fp16 = layout.format.num_fp16;
  if (index < num_fp16) {
    return {16, count, (key ? layout.fp16_keys : layout.fp16_values) + int64_t{2} * count * index,
            0};
  }
  const int32_t scaled = index - num_fp16;
  const int64_t scale = (key ? layout.key_scales : layout.value_scales) + int64_t{2} * scaled;
  if (scaled < layout.format.num_int8) {
    return {8, count, (key ? layout.int8_keys : layout.int8_values) + int64_t{count} * scaled,
            scale};
  }
  const int64_t row = packed_bytes(count, 4);
  return {4, count,
          (key ? layout.int4_keys : layout.int4_values) + row * (scaled - layout.format.num_int8),
          scale};
}

inline float scale_at(const std::byte* boundary, int64_t offset) {
  uint16_t half;
  std::memcpy(&half, boundary + offset, sizeof(half));
  return fp16_to_float(half);
}

// row [padded(count)], zeros past count. True when the vector is not all zero.
inline bool decode_vector(const VectorPlace& place, const std::byte* boundary, float* row) {
  const FloatTag d;
  const int32_t stride = padded(place.count);
  auto largest = hn::Zero(d);
  if (place.bits == 16) {
    alignas(64) uint16_t spare[256];
    const uint16_t* half =
        padded_row(reinterpret_cast<const uint16_t*>(boundary + place.data), place.count, spare);
    for (int32_t i = 0; i < stride; i += kLanes) {
      const auto x = load_fp16(half + i);
      largest = hn::Max(largest, hn::Abs(x));
      hn::Store(x, d, row + i);
    }
    return max_of_lanes(largest) > 0.0f;
  }
  const float scale = scale_at(boundary, place.scale);
  const auto shift = hn::Set(d, place.bits == 4 ? 0.5f : 0.0f);
  alignas(64) int8_t codes[256 + 32];
  unpack_row(reinterpret_cast<const uint8_t*>(boundary + place.data), place.count, place.bits,
             codes);
  for (int32_t i = place.count; i < stride; ++i) codes[i] = 0;
  for (int32_t i = 0; i < stride; i += kLanes) {
    const auto x = hn::Mul(hn::Add(load_int8(codes + i), shift), hn::Set(d, scale));
    largest = hn::Max(largest, hn::Abs(x));
    hn::Store(x, d, row + i);
  }
  for (int32_t i = place.count; i < stride; ++i) row[i] = 0.0f;
  return max_of_lanes(largest) > 0.0f;
}

// Rounds row [padded(count)], zero past count, to its type and writes it; afterwards row holds what
// decoding gives. Returns LEAPQUANT_HEALTH_* flags.
inline uint32_t encode_vector(const VectorPlace& place, std::byte* boundary, float* row) {
  const FloatTag d;
  const int32_t stride = padded(place.count);
  if (place.bits == 16) {
    alignas(64) uint16_t half[256];
    auto saturated = no_lanes();
    for (int32_t i = 0; i < stride; i += kLanes) {
      store_fp16_saturated(hn::Load(d, row + i), half + i, &saturated);
      hn::Store(load_fp16(half + i), d, row + i);
    }
    std::memcpy(boundary + place.data, half, static_cast<size_t>(place.count) * 2);
    return hn::AllFalse(d, saturated)
               ? 0u
               : static_cast<uint32_t>(LEAPQUANT_HEALTH_COMPENSATOR_SATURATED);
  }
  auto largest = hn::Zero(d);
  for (int32_t i = 0; i < stride; i += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::Load(d, row + i)));
  }
  const float absmax = max_of_lanes(largest);
  bool saturated = false;
  const uint16_t half =
      absmax == 0.0f ? uint16_t{0}
                     : float_to_fp16_up(absmax / (place.bits == 8 ? 127.0f : 8.0f), &saturated);
  std::memcpy(boundary + place.scale, &half, sizeof(half));
  const float scale = fp16_to_float(half);
  const float shift = place.bits == 4 ? 0.5f : 0.0f;
  const float low = place.bits == 8 ? -127.0f : -8.0f;
  const float high = place.bits == 8 ? 127.0f : 7.0f;
  alignas(64) int8_t codes[256];
  if (half != 0) {
    for (int32_t i = 0; i < stride; i += kLanes) {
      const auto steps =
          hn::Sub(hn::Div(hn::Load(d, row + i), hn::Set(d, scale)), hn::Set(d, shift));
      const auto bounded = hn::Min(hn::Max(steps, hn::Set(d, low)), hn::Set(d, high));
      const auto code = nearest_int(bounded);
      hn::StoreU(hn::DemoteTo(ByteTag(), code), ByteTag(), codes + i);
      const auto value = hn::Add(hn::ConvertTo(d, code), hn::Set(d, shift));
      hn::Store(hn::Mul(value, hn::Set(d, scale)), d, row + i);
    }
  } else {
    std::memset(codes, 0, sizeof(codes));
    for (int32_t i = 0; i < stride; i += kLanes) hn::Store(hn::Zero(d), d, row + i);
  }
  for (int32_t i = place.count; i < stride; ++i) row[i] = 0.0f;
  pack_row(codes, place.count, place.bits, reinterpret_cast<uint8_t*>(boundary + place.data));
  return saturated ? static_cast<uint32_t>(LEAPQUANT_HEALTH_COMPENSATOR_SATURATED) : 0u;
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
