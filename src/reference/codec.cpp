// SPDX-License-Identifier: Apache-2.0
//
// The residual codec, one operation per line and every one rounded to FP32, and the three types of
// compensator vectors. Compiled without contraction.
#include "reference/codec.h"

#include <algorithm>
#include <cmath>

#include "core/numeric.h"
#include "core/packing.h"

namespace leapquant::reference {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// sqrt of the mean magnitude of a row. Sixteen interleaved partial sums, combined pairwise: the
// order in which SIMD units of any width can add.
float row_magnitude(const float* row, int32_t v_dim) {
  float lane[16] = {};
  for (int32_t j = 0; j < v_dim; ++j) lane[j % 16] += std::fabs(row[j]);
  for (int32_t step = 8; step >= 1; step /= 2) {
    for (int32_t l = 0; l < step; ++l) lane[l] += lane[l + step];
  }
  // A sum past the largest number counts as that: c stays finite, and entries divided by it do.
  return std::sqrt((lane[0] > kLargestFloat ? kLargestFloat : lane[0]) / static_cast<float>(v_dim));
}

// Key smoothing c [K], written as the format stores it and returned as decoding sees it.
uint32_t encode_smoothing(const BoundaryLayout& layout, const float* residual, float* c,
                          std::byte* boundary) {
  const int32_t k_dim = layout.k_dim;
  if (layout.format.smoothing == LEAPQUANT_SMOOTHING_NONE) {
    std::fill(c, c + k_dim, 1.0f);
    return 0;
  }
  float largest = 0.0f;
  for (int32_t i = 0; i < k_dim; ++i) {
    c[i] = row_magnitude(residual + static_cast<int64_t>(i) * layout.v_dim, layout.v_dim);
    largest = std::max(largest, c[i]);
  }
  uint32_t flags = 0;
  for (int32_t i = 0; i < k_dim; ++i) {
    if (layout.format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      c[i] = std::max(c[i], std::max(1e-6f * largest, 1e-12f));
      store<float>(boundary + layout.smoothing + 4 * i, c[i]);
    } else {
      const uint8_t byte = float_to_log8(c[i]);
      const float top = log8_table().value[255];
      if (byte == 255 && c[i] > top * 1.05f) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
      store<uint8_t>(boundary + layout.smoothing + i, byte);
      c[i] = log8_table().value[byte];
    }
  }
  return flags;
}

// Value scale B of a column whose largest magnitude is `largest`, as stored; 0 for a zero column.
float encode_value_scale(const BoundaryLayout& layout, float largest, int32_t column,
                         std::byte* boundary, uint32_t* flags) {
  const bool fp16 = layout.format.value_scale_type == LEAPQUANT_FP16;
  float scale = 0.0f;
  if (largest >= 1e-30f) {
    const float steps = static_cast<float>(layout.q_max);  // Q, or H for half-integers
    scale = layout.scale_steps == steps ? largest : largest * (steps / layout.scale_steps);
  }
  if (!fp16) {
    if (scale > kLargestFloat) {
      *flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
      scale = kLargestFloat;
    }
    store<float>(boundary + layout.value_scale + 4 * column, scale);
    return scale;
  }
  bool saturated = false;
  const uint16_t half = scale == 0.0f ? uint16_t{0} : float_to_fp16_up(scale, &saturated);
  if (saturated) *flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
  store<uint16_t>(boundary + layout.value_scale + 2 * column, half);
  return fp16_to_float(half);
}

int8_t encode_value(const BoundaryLayout& layout, float x, float inverse, uint32_t* flags) {
  const float q = static_cast<float>(layout.q_max);
  const float y = x * inverse;
  if (std::isnan(y)) {
    *flags |= LEAPQUANT_HEALTH_NON_FINITE;
    return 0;
  }
  const float bounded = std::min(std::max(y, -q - 1.0f), q + 1.0f);
  if (layout.format.levels == LEAPQUANT_HALF_INTEGERS) {
    const float code = round_half_even(bounded - 0.5f);
    return static_cast<int8_t>(std::min(std::max(code, -q), q - 1.0f));
  }
  const float code = round_half_even(bounded);
  return static_cast<int8_t>(std::min(std::max(code, -q), q));
}

// Where a compensator vector lies: its type by index, its bytes, its scale.
struct VectorPlace {
  int32_t bits = 16;  // 16 (FP16), 8 or 4
  int32_t count = 0;  // entries
  int64_t data = 0;   // offset in the boundary state
  int64_t scale = 0;  // offset of the FP16 scale; unused for FP16 vectors
};

VectorPlace place_of(const BoundaryLayout& layout, Side side, int32_t index) {
  const bool key = side == Side::kKey;
  const leapquant_format& format = layout.format;
  VectorPlace place;
  place.count = key ? layout.k_dim : layout.v_dim;
  if (index < format.num_fp16) {
    place.data = (key ? layout.fp16_keys : layout.fp16_values) + int64_t{2} * place.count * index;
    return place;
  }
  const int32_t quantised = index - format.num_fp16;
  place.scale = (key ? layout.key_scales : layout.value_scales) + 2 * quantised;
  if (quantised < format.num_int8) {
    place.bits = 8;
    place.data = (key ? layout.int8_keys : layout.int8_values) + int64_t{place.count} * quantised;
  } else {
    place.bits = 4;
    place.data = (key ? layout.int4_keys : layout.int4_values) +
                 int64_t{packed_bytes(place.count, 4)} * (quantised - format.num_int8);
  }
  return place;
}

}  // namespace

uint32_t encode_residual(const BoundaryLayout& layout, const float* residual, std::byte* boundary) {
  const int32_t k_dim = layout.k_dim;
  const int32_t v_dim = layout.v_dim;
  std::vector<float> c(static_cast<size_t>(k_dim));
  uint32_t flags = encode_smoothing(layout, residual, c.data(), boundary);

  const bool divide = layout.format.smoothing != LEAPQUANT_SMOOTHING_NONE;
  std::vector<float> x(residual, residual + static_cast<int64_t>(k_dim) * v_dim);
  std::vector<float> largest(static_cast<size_t>(v_dim), 0.0f);
  for (int32_t i = 0; i < k_dim; ++i) {
    for (int32_t j = 0; j < v_dim; ++j) {
      float& entry = x[static_cast<size_t>(i * v_dim + j)];
      if (divide) entry = entry / c[static_cast<size_t>(i)];
      if (std::fabs(entry) > largest[static_cast<size_t>(j)]) {
        largest[static_cast<size_t>(j)] = std::fabs(entry);
      }
    }
  }

  std::vector<float> inverse(static_cast<size_t>(v_dim), 0.0f);  // 0: a zero column
  for (int32_t j = 0; j < v_dim; ++j) {
    const float scale =
        encode_value_scale(layout, largest[static_cast<size_t>(j)], j, boundary, &flags);
    if (scale != 0.0f) {
      inverse[static_cast<size_t>(j)] = static_cast<float>(layout.q_max) / scale;
    }
  }

  std::vector<int8_t> codes(static_cast<size_t>(v_dim));
  for (int32_t i = 0; i < k_dim; ++i) {
    for (int32_t j = 0; j < v_dim; ++j) {
      const auto column = static_cast<size_t>(j);
      const float entry = x[static_cast<size_t>(i * v_dim + j)];
      codes[column] = inverse[column] == 0.0f
                          ? int8_t{0}
                          : encode_value(layout, entry, inverse[column], &flags);
    }
    pack_codes(codes.data(), v_dim, layout.format.payload_bits,
               reinterpret_cast<uint8_t*>(boundary + layout.payload) +
                   static_cast<int64_t>(i) * layout.row_bytes);
  }
  return flags;
}

void decode_residual(const BoundaryLayout& layout, const std::byte* boundary, double* residual) {
  const int32_t k_dim = layout.k_dim;
  const int32_t v_dim = layout.v_dim;
  const double shift = layout.format.levels == LEAPQUANT_HALF_INTEGERS ? 0.5 : 0.0;
  std::vector<double> step(static_cast<size_t>(v_dim));
  for (int32_t j = 0; j < v_dim; ++j) {
    const double scale = layout.format.value_scale_type == LEAPQUANT_FP16
                             ? fp16_to_float(load<uint16_t>(boundary + layout.value_scale + 2 * j))
                             : load<float>(boundary + layout.value_scale + 4 * j);
    step[static_cast<size_t>(j)] = scale / layout.q_max;
  }
  std::vector<int8_t> codes(static_cast<size_t>(v_dim));
  for (int32_t i = 0; i < k_dim; ++i) {
    double c = 1.0;
    if (layout.format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      c = load<float>(boundary + layout.smoothing + 4 * i);
    } else if (layout.format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
      c = log8_table().value[load<uint8_t>(boundary + layout.smoothing + i)];
    }
    unpack_codes(reinterpret_cast<const uint8_t*>(boundary + layout.payload) +
                     static_cast<int64_t>(i) * layout.row_bytes,
                 v_dim, layout.format.payload_bits, codes.data());
    for (int32_t j = 0; j < v_dim; ++j) {
      const auto column = static_cast<size_t>(j);
      residual[static_cast<int64_t>(i) * v_dim + j] = c * (codes[column] + shift) * step[column];
    }
  }
}

uint32_t encode_vector(const BoundaryLayout& layout, Side side, int32_t index, const double* vector,
                       std::byte* boundary) {
  const VectorPlace place = place_of(layout, side, index);
  bool saturated = false;
  if (place.bits == 16) {
    for (int32_t i = 0; i < place.count; ++i) {
      const uint16_t half = float_to_fp16_saturated(static_cast<float>(vector[i]), &saturated);
      store<uint16_t>(boundary + place.data + 2 * i, half);
    }
    return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }
  float largest = 0.0f;
  for (int32_t i = 0; i < place.count; ++i) {
    largest = std::max(largest, std::fabs(static_cast<float>(vector[i])));
  }
  const float steps = place.bits == 8 ? 127.0f : 8.0f;
  const uint16_t half =
      largest == 0.0f ? uint16_t{0} : float_to_fp16_up(largest / steps, &saturated);
  const float scale = fp16_to_float(half);
  store<uint16_t>(boundary + place.scale, half);
  std::vector<int8_t> codes(static_cast<size_t>(place.count), 0);
  for (int32_t i = 0; i < place.count && scale != 0.0f; ++i) {
    const float x = static_cast<float>(vector[i]) / scale;
    // A saturated scale lets x pass the codes' range, even the range of round_half_even.
    const float bounded = std::min(std::max(x, -steps - 1.0f), steps + 1.0f);
    const float code = round_half_even(place.bits == 8 ? bounded : bounded - 0.5f);
    const float low = place.bits == 8 ? -127.0f : -8.0f;
    const float high = place.bits == 8 ? 127.0f : 7.0f;
    codes[static_cast<size_t>(i)] = static_cast<int8_t>(std::min(std::max(code, low), high));
  }
  pack_codes(codes.data(), place.count, place.bits,
             reinterpret_cast<uint8_t*>(boundary + place.data));
  return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
}

void decode_vector(const BoundaryLayout& layout, Side side, int32_t index,
                   const std::byte* boundary, double* vector) {
  const VectorPlace place = place_of(layout, side, index);
  if (place.bits == 16) {
    for (int32_t i = 0; i < place.count; ++i) {
      vector[i] = fp16_to_float(load<uint16_t>(boundary + place.data + 2 * i));
    }
    return;
  }
  const double scale = fp16_to_float(load<uint16_t>(boundary + place.scale));
  std::vector<int8_t> codes(static_cast<size_t>(place.count));
  unpack_codes(reinterpret_cast<const uint8_t*>(boundary + place.data), place.count, place.bits,
               codes.data());
  const double shift = place.bits == 4 ? 0.5 : 0.0;
  for (int32_t i = 0; i < place.count; ++i) {
    vector[i] = (codes[static_cast<size_t>(i)] + shift) * scale;
  }
}

void decode_boundary(const BoundaryLayout& layout, const std::byte* boundary, double* state) {
  const int64_t count = static_cast<int64_t>(layout.k_dim) * layout.v_dim;
  if (layout.format.payload_bits == 32) {
    for (int64_t i = 0; i < count; ++i) state[i] = load<float>(boundary + layout.payload + 4 * i);
    return;
  }
  if (layout.format.payload_bits == 16) {
    for (int64_t i = 0; i < count; ++i) {
      state[i] = bf16_to_float(load<uint16_t>(boundary + layout.payload + 2 * i));
    }
    return;
  }
  decode_residual(layout, boundary, state);
  std::vector<double> key(static_cast<size_t>(layout.k_dim));
  std::vector<double> value(static_cast<size_t>(layout.v_dim));
  for (int32_t r = 0; r < layout.rank; ++r) {
    decode_vector(layout, Side::kKey, r, boundary, key.data());
    decode_vector(layout, Side::kValue, r, boundary, value.data());
    for (int32_t i = 0; i < layout.k_dim; ++i) {
      for (int32_t j = 0; j < layout.v_dim; ++j) {
        state[static_cast<int64_t>(i) * layout.v_dim + j] +=
            key[static_cast<size_t>(i)] * value[static_cast<size_t>(j)];
      }
    }
  }
}

std::vector<double> decode_boundary(const BoundaryLayout& layout, const std::byte* boundary) {
  std::vector<double> state(static_cast<size_t>(layout.k_dim) * static_cast<size_t>(layout.v_dim));
  decode_boundary(layout, boundary, state.data());
  return state;
}

}  // namespace leapquant::reference
