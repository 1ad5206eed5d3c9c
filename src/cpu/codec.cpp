// SPDX-License-Identifier: Apache-2.0
//
// Whole boundary states: composing a state from one, and fit, subtraction and residual codec in
// turn.
#include "cpu/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/numeric.h"
#include "cpu/inputs.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/codec.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/fit-inl.h"
#include "cpu/residual-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// Floats of each part of the scratch of an encoding, in this order.
struct EncodeScratch {
  FitScratch fit;
  float* magnitudes;  // [padded(K)]
  float* columns;     // [4][padded(V)]

  EncodeScratch(const BoundaryLayout& layout, float* scratch) {
    const int32_t k = padded(layout.k_dim);
    const int32_t v = padded(layout.v_dim);
    const auto take = [&scratch](int32_t count) {
      float* start = scratch;
      scratch += count;
      return start;
    };
    magnitudes = take(k);
    columns = take(4 * v);
    fit.keys = take(layout.rank * k);
    fit.values = take(layout.rank * v);
    fit.spare = take(layout.rank * std::max(k, v));
  }
};

// Size of a state [count]: its largest magnitude, and |S|^2 times scale^2, where scale is the power
// of two that brings the largest magnitude into [1, 2). Squares then stay in range.
struct StateSize {
  float largest = 0.0f;
  float scale = 1.0f;
  double energy = 0.0;
  bool clean = true;  // no entry was NaN or infinite
};

double energy_of(const float* state, int64_t count, float scale) {
  const FloatTag d;
  double energy = 0.0;
  for (int64_t i = 0; i < count;) {
    auto sum = hn::Zero(d);
    for (const int64_t end = std::min(i + 512, count); i < end; i += kLanes) {
      const auto x = hn::Mul(hn::Load(d, state + i), hn::Set(d, scale));
      sum = hn::MulAdd(x, x, sum);
    }
    energy += static_cast<double>(sum_of_lanes(sum));
  }
  return energy;
}

float power_of_two_scale(float largest) {
  return largest == 0.0f ? 1.0f : std::ldexp(1.0f, -std::clamp(std::ilogb(largest), -126, 126));
}

// Entries that are not finite become 0.
StateSize state_size(float* state, int64_t count) {
  const FloatTag d;
  StateSize size;
  constexpr int32_t kSums = 4;  // rows are a multiple of 64 numbers: four of padded(V)
  FloatVec largest[kSums];
  for (auto& most : largest) most = hn::Zero(d);
  for (int64_t i = 0; i < count;) {
    FloatVec sum[kSums];
    for (auto& one : sum) one = hn::Zero(d);
    for (const int64_t end = std::min(i + 1024, count); i < end; i += kSums * kLanes) {
      HWY_UNROLL(4)
      for (int32_t p = 0; p < kSums; ++p) {
        const auto x = hn::Load(d, state + i + p * kLanes);
        largest[p] = hn::Max(largest[p], hn::Abs(x));
        sum[p] = hn::MulAdd(x, x, sum[p]);
      }
    }
    size.energy += static_cast<double>(
        sum_of_lanes(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
  }
  size.largest =
      max_of_lanes(hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3])));
  // Within these bounds no square over- or underflowed, and nothing is NaN (the sum would be).
  if (size.energy > 1e-20 && size.energy < 1e30) {
    size.scale = power_of_two_scale(size.largest);
    size.energy *= static_cast<double>(size.scale) * size.scale;
    return size;
  }
  size.largest = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(state[i])) {
      state[i] = 0.0f;
      size.clean = false;
    }
    size.largest = std::max(size.largest, std::fabs(state[i]));
  }
  size.scale = power_of_two_scale(size.largest);
  size.energy = energy_of(state, count, size.scale);
  return size;
}

// state -= sum of keys[r] values[r]; row magnitudes of what is left, and its sums for telemetry.
struct ResidualSize {
  double energy = 0.0;  // times scale^2
  float largest = 0.0f;
};
ResidualSize subtract_compensators(const BoundaryLayout& layout, const EncodeScratch& scratch,
                                   float scale, float* state) {
  const int32_t stride = padded(layout.v_dim);
  const int32_t key_stride = padded(layout.k_dim);
  ResidualSize size;
  ResidualSums sums;
  for (int32_t r = 0; r < layout.rank; ++r) {
    scale_row(-1.0f, key_stride, scratch.fit.keys + r * key_stride);
  }
  for (int32_t i = 0; i < layout.k_dim; i += 4) {
    float* rows = state + static_cast<int64_t>(i) * stride;
    update_rows(scratch.fit.keys + i, key_stride, scratch.fit.values, layout.rank, stride, rows);
    row_magnitudes(rows, layout.v_dim, stride, &sums, scratch.magnitudes + i);
    size.energy += sums.take_squared();
  }
  size.largest = sums.most();
  if (size.energy > 1e-20 && size.energy < 1e30) {
    size.energy *= static_cast<double>(scale) * scale;
  } else {
    size.energy = energy_of(state, static_cast<int64_t>(layout.k_dim) * stride, scale);
  }
  return size;
}

// BF16 or FP32 payload; returns |S - decoded S|^2 times scale^2 for telemetry.
double store_plain(const BoundaryLayout& layout, const float* state, float scale,
                   std::byte* boundary) {
  const FloatTag d;
  const int32_t stride = padded(layout.v_dim);
  const auto weight = hn::Set(d, scale);
  double energy = 0.0;
  for (int32_t i = 0; i < layout.k_dim; ++i) {
    const float* row = state + static_cast<int64_t>(i) * stride;
    std::byte* packed = boundary + layout.payload + static_cast<int64_t>(i) * layout.row_bytes;
    alignas(64) uint16_t half[256];
    auto missing = hn::Zero(d);
    for (int32_t j = 0; j < stride && layout.format.payload_bits == 16; j += kLanes) {
      const auto x = hn::Load(d, row + j);
      store_bf16(x, half + j);
      const auto miss = hn::Mul(hn::Sub(x, load_bf16(half + j)), weight);
      missing = hn::MulAdd(miss, miss, missing);
    }
    std::memcpy(packed,
                layout.format.payload_bits == 32 ? static_cast<const void*>(row)
                                                 : static_cast<const void*>(half),
                static_cast<size_t>(layout.row_bytes));
    energy += static_cast<double>(sum_of_lanes(missing));
  }
  return energy;
}

uint32_t encode_target(const BoundaryLayout& layout, FitKind kind, const std::byte* previous,
                       float* state, std::byte* boundary, leapquant_health* health,
                       float* scratch_memory) {
  const int32_t stride = padded(layout.v_dim);
  const StateSize size = state_size(state, static_cast<int64_t>(layout.k_dim) * stride);
  uint32_t flags = size.clean ? 0u : static_cast<uint32_t>(LEAPQUANT_HEALTH_NON_FINITE);
  leapquant_health figures = {};
  if (!layout.quantised()) {
    const double missed = store_plain(layout, state, size.scale, boundary);
    if (size.energy > 0.0) {
      figures.fold_error = static_cast<float>(std::sqrt(missed / size.energy));
    }
  } else {
    const EncodeScratch scratch(layout, scratch_memory);
    flags |= fit_compensators(layout, kind, previous, state, size.largest, boundary, scratch.fit);
    const ResidualSize residual = subtract_compensators(layout, scratch, size.scale, state);
    ResidualError error;
    flags |= encode_residual_rows(layout, scratch.magnitudes, state, scratch.columns, size.scale,
                                  boundary, &error);
    figures.residual_max = residual.largest;
    if (size.energy > 0.0) {
      const double share = 1.0 - residual.energy / size.energy;
      figures.compensator_energy = static_cast<float>(std::clamp(share, 0.0, 1.0));
      figures.fold_error = static_cast<float>(std::sqrt(error.squared / size.energy));
    }
  }
  const int64_t used = !layout.quantised()
                           ? static_cast<int64_t>(layout.k_dim) * layout.row_bytes
                           : layout.int4_values + static_cast<int64_t>(layout.format.num_int4) *
                                                      packed_bytes(layout.v_dim, 4);
  std::memset(boundary + used, 0, static_cast<size_t>(layout.bytes - used));
  if (health != nullptr) {
    figures.flags = health->flags | flags;
    *health = figures;
  }
  return flags;
}

uint32_t encode_residual_target(const BoundaryLayout& layout, float* residual, std::byte* boundary,
                                float* scratch_memory) {
  const EncodeScratch scratch(layout, scratch_memory);
  const int32_t stride = padded(layout.v_dim);
  ResidualSums sums;
  for (int32_t i = 0; i < layout.k_dim; i += 4) {
    row_magnitudes(residual + static_cast<int64_t>(i) * stride, layout.v_dim, stride, &sums,
                   scratch.magnitudes + i);
  }
  return encode_residual_rows(layout, scratch.magnitudes, residual, scratch.columns, 1.0f, boundary,
                              nullptr);
}

// Row i of the payload, times its factors.
void load_plain_row(const BoundaryLayout& layout, const std::byte* packed, float factor,
                    float* row) {
  const FloatTag d;
  const int32_t stride = padded(layout.v_dim);
  if (layout.format.payload_bits == 32) {
    std::memcpy(row, packed, static_cast<size_t>(layout.row_bytes));
    for (int32_t j = layout.v_dim; j < stride; ++j) row[j] = 0.0f;
    if (factor != 1.0f) scale_row(factor, stride, row);
    return;
  }
  alignas(64) uint16_t half[256] = {0};
  std::memcpy(half, packed, static_cast<size_t>(layout.row_bytes));
  for (int32_t j = 0; j < stride; j += kLanes) {
    hn::Store(hn::Mul(load_bf16(half + j), hn::Set(d, factor)), d, row + j);
  }
}

// row [stride] = weight * step * level.
template <bool kHalf>
HWY_INLINE void levels_to_row(const int8_t* codes, const float* step, float weight, int32_t stride,
                              float* row) {
  const FloatTag d;
  const auto factor = hn::Set(d, weight);
  for (int32_t j = 0; j < stride; j += kLanes) {
    auto level = load_int8(codes + j);
    if constexpr (kHalf) level = hn::Add(level, hn::Set(d, 0.5f));
    hn::Store(hn::Mul(hn::Mul(level, hn::Load(d, step + j)), factor), d, row + j);
  }
}

// packed: rows of state lie V apart and need no alignment; otherwise padded(V) and 64 bytes.
void compose_target(const BoundaryLayout& layout, const std::byte* boundary, const float* factor,
                    int32_t num_records, float* left, float* right, bool packed_rows,
                    float* state) {
  const FloatTag d;
  const int32_t k_dim = layout.k_dim;
  const int32_t stride = padded(layout.v_dim);
  const int32_t key_stride = padded(k_dim);
  alignas(64) float step[256];
  alignas(64) float c[256];
  const bool quantised = layout.quantised();
  if (quantised) decode_scales(layout, boundary, step, c);
  for (int32_t r = 0; r < layout.rank; ++r) {
    float* key = left + r * key_stride;
    decode_vector(vector_place(layout, Side::kKey, r), boundary, key);
    decode_vector(vector_place(layout, Side::kValue, r), boundary, right + r * stride);
    for (int32_t i = 0; factor != nullptr && i < key_stride; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, key + i), hn::Load(d, factor + i)), d, key + i);
    }
  }
  const int32_t bits = layout.format.payload_bits;
  const bool half = layout.format.levels == LEAPQUANT_HALF_INTEGERS;
  const int32_t count = layout.rank + num_records;
  alignas(64) int8_t unpacked[256 + 64];
  std::memset(unpacked, 0, sizeof(unpacked));
  alignas(64) float four_rows[4 * 256];
  for (int32_t i = 0; i < k_dim; i += 4) {
    float* rows = packed_rows ? four_rows : state + static_cast<int64_t>(i) * stride;
    for (int32_t row = 0; row < 4; ++row) {
      const std::byte* packed =
          boundary + layout.payload + static_cast<int64_t>(i + row) * layout.row_bytes;
      const float decay = factor == nullptr ? 1.0f : factor[i + row];
      if (!quantised) {
        load_plain_row(layout, packed, decay, rows + row * stride);
        continue;
      }
      const int8_t* codes = unpacked;
      if (bits == 8 && layout.v_dim % 16 == 0) {
        codes = reinterpret_cast<const int8_t*>(packed);
      } else {
        unpack_row(reinterpret_cast<const uint8_t*>(packed), layout.v_dim, bits, unpacked);
      }
      if (half) {
        levels_to_row<true>(codes, step, c[i + row] * decay, stride, rows + row * stride);
      } else {
        levels_to_row<false>(codes, step, c[i + row] * decay, stride, rows + row * stride);
      }
    }
    update_rows(left + i, key_stride, right, count, stride, rows);
    for (int32_t row = 0; packed_rows && row < 4; ++row) {
      std::memcpy(state + static_cast<int64_t>(i + row) * layout.v_dim, rows + row * stride,
                  static_cast<size_t>(layout.v_dim) * sizeof(float));
    }
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(encode_target);
HWY_EXPORT(encode_residual_target);
HWY_EXPORT(compose_target);

// Between packed rows [V] and padded ones, for V that is no multiple of 16.
void pad_rows(const float* packed, int32_t k_dim, int32_t v_dim, float* rows) {
  const int32_t stride = padded(v_dim);
  for (int32_t i = 0; i < k_dim; ++i) {
    float* row = rows + static_cast<int64_t>(i) * stride;
    std::memcpy(row, packed + static_cast<int64_t>(i) * v_dim,
                static_cast<size_t>(v_dim) * sizeof(float));
    std::fill(row + v_dim, row + stride, 0.0f);
  }
}

// Floats that an encoding takes besides a padded copy of the state.
int64_t encode_floats(const BoundaryLayout& layout) {
  const int64_t k = padded(layout.k_dim);
  const int64_t v = padded(layout.v_dim);
  return k + 4 * v + layout.rank * (k + v + std::max(k, v));
}

bool needs_padding(const BoundaryLayout& layout, const float* state) {
  return layout.v_dim % 16 != 0 || reinterpret_cast<uintptr_t>(state) % 64 != 0;
}

}  // namespace

size_t encode_scratch_bytes(const BoundaryLayout& layout) {
  const int64_t copy = static_cast<int64_t>(layout.k_dim) * padded(layout.v_dim);
  return static_cast<size_t>(encode_floats(layout) + copy) * sizeof(float);
}

uint32_t encode_padded(const BoundaryLayout& layout, FitKind kind, const std::byte* previous,
                       float* state, std::byte* boundary, leapquant_health* health,
                       float* scratch) {
  return LEAPQUANT_CPU_DISPATCH(encode_target)(layout, kind, previous, state, boundary, health,
                                               scratch);
}

uint32_t encode_boundary(const BoundaryLayout& layout, FitKind kind, const std::byte* previous,
                         float* state, std::byte* boundary, leapquant_health* health,
                         float* scratch) {
  if (needs_padding(layout, state)) {
    float* rows = scratch + encode_floats(layout);
    pad_rows(state, layout.k_dim, layout.v_dim, rows);
    state = rows;
  }
  return encode_padded(layout, kind, previous, state, boundary, health, scratch);
}

uint32_t encode_residual(const BoundaryLayout& layout, float* residual, std::byte* boundary,
                         float* scratch) {
  if (needs_padding(layout, residual)) {
    float* rows = scratch + encode_floats(layout);
    pad_rows(residual, layout.k_dim, layout.v_dim, rows);
    residual = rows;
  }
  return LEAPQUANT_CPU_DISPATCH(encode_residual_target)(layout, residual, boundary, scratch);
}

void compose_state(const BoundaryLayout& layout, const std::byte* boundary, const float* factor,
                   int32_t num_records, float* left, float* right, float* state) {
  LEAPQUANT_CPU_DISPATCH(compose_target)(layout, boundary, factor, num_records, left, right, false,
                                         state);
}

void decode_boundary(const BoundaryLayout& layout, const std::byte* boundary, float* state) {
  alignas(64) float left[32 * 256];
  alignas(64) float right[32 * 256];
  LEAPQUANT_CPU_DISPATCH(compose_target)(layout, boundary, nullptr, 0, left, right,
                                         needs_padding(layout, state), state);
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
