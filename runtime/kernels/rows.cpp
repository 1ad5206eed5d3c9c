// SPDX-License-Identifier: Apache-2.0
//
// rows.h through Highway. Elements past the last whole vector are computed in a vector filled up
// with zeros, so that an element's value never depends on where it stands.
#include "runtime/kernels/rows.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace leapquant::runtime::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Vector = hn::Vec<FloatTag>;

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(FloatTag())); }

// The first count elements at from, then zeros.
HWY_INLINE Vector load_some(const float* from, std::int64_t count) {
  HWY_ALIGN float values[hn::MaxLanes(FloatTag())] = {};
  std::memcpy(values, from, static_cast<std::size_t>(count) * sizeof(float));
  return hn::Load(FloatTag(), values);
}

HWY_INLINE void store_some(Vector vector, float* to, std::int64_t count) {
  HWY_ALIGN float values[hn::MaxLanes(FloatTag())];
  hn::Store(vector, FloatTag(), values);
  std::memcpy(to, values, static_cast<std::size_t>(count) * sizeof(float));
}

// y[i] = function(a[i], b[i]) for all i.
template <class Function>
HWY_INLINE void for_each_pair(const float* a, const float* b, std::int64_t size, float* y,
                              Function function) {
  const FloatTag tag;
  std::int64_t i = 0;
  for (; i + lanes() <= size; i += lanes()) {
    hn::StoreU(function(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i)), tag, y + i);
  }
  if (i < size) {
    const std::int64_t rest = size - i;
    store_some(function(load_some(a + i, rest), load_some(b + i, rest)), y + i, rest);
  }
}

// NaN and infinity give NaN, so that a fault further up does not vanish in a gate.
HWY_INLINE Vector sigmoid(Vector x) {
  const FloatTag tag;
  const Vector one = hn::Set(tag, 1.0f);
  // Exp is garbage above 104; from 88 on the result is below 1e-38 anyway.
  const Vector exponent = hn::Min(hn::Neg(x), hn::Set(tag, 88.0f));
  const Vector zero_or_nan = hn::Sub(x, x);
  return hn::Div(one, hn::Add(hn::Add(one, zero_or_nan), hn::Exp(tag, exponent)));
}

HWY_INLINE Vector silu(Vector x) { return hn::Mul(x, sigmoid(x)); }

// 1 / sqrt(mean(x^2) + eps)
HWY_INLINE float inverse_norm(const float* x, float eps, std::int64_t size) {
  const FloatTag tag;
  Vector sum = hn::Zero(tag);
  std::int64_t i = 0;
  for (; i + lanes() <= size; i += lanes()) {
    const Vector value = hn::LoadU(tag, x + i);
    sum = hn::MulAdd(value, value, sum);
  }
  if (i < size) {
    const Vector value = load_some(x + i, size - i);
    sum = hn::MulAdd(value, value, sum);
  }
  const float mean = hn::GetLane(hn::SumOfLanes(tag, sum)) / static_cast<float>(size);
  return 1.0f / std::sqrt(mean + eps);
}

void rms_norm(const float* x, const float* factor, float eps, std::int64_t size, float* y) {
  const Vector scale = hn::Set(FloatTag(), inverse_norm(x, eps, size));
  for_each_pair(x, factor, size, y, [scale](Vector value, Vector weight) HWY_ATTR {
    return hn::Mul(hn::Mul(value, scale), weight);
  });
}

void gated_rms_norm(float* o, const float* z, const float* factor, float eps, std::int64_t size,
                    bool sigmoid_gate) {
  rms_norm(o, factor, eps, size, o);
  if (sigmoid_gate) {
    for_each_pair(o, z, size, o,
                  [](Vector a, Vector b) HWY_ATTR { return hn::Mul(a, sigmoid(b)); });
  } else {
    for_each_pair(o, z, size, o, [](Vector a, Vector b) HWY_ATTR { return hn::Mul(a, silu(b)); });
  }
}

void add(float* x, const float* y, std::int64_t size) {
  for_each_pair(x, y, size, x, [](Vector a, Vector b) HWY_ATTR { return hn::Add(a, b); });
}

void silu_multiply(float* gate, const float* up, std::int64_t size) {
  for_each_pair(gate, up, size, gate,
                [](Vector a, Vector b) HWY_ATTR { return hn::Mul(silu(a), b); });
}

void sigmoid_multiply(float* x, const float* gate, std::int64_t size) {
  for_each_pair(x, gate, size, x,
                [](Vector a, Vector b) HWY_ATTR { return hn::Mul(a, sigmoid(b)); });
}

void convolve(const float* const* inputs, const float* taps, std::int64_t taps_stride,
              std::int64_t num_taps, std::int64_t channels, float* y) {
  const FloatTag tag;
  std::int64_t c = 0;
  for (; c + lanes() <= channels; c += lanes()) {
    Vector sum = hn::Zero(tag);
    for (std::int64_t j = 0; j < num_taps; ++j) {
      sum = hn::MulAdd(hn::LoadU(tag, taps + j * taps_stride + c), hn::LoadU(tag, inputs[j] + c),
                       sum);
    }
    hn::StoreU(silu(sum), tag, y + c);
  }
  if (c < channels) {
    const std::int64_t rest = channels - c;
    Vector sum = hn::Zero(tag);
    for (std::int64_t j = 0; j < num_taps; ++j) {
      sum = hn::MulAdd(load_some(taps + j * taps_stride + c, rest), load_some(inputs[j] + c, rest),
                       sum);
    }
    store_some(silu(sum), y + c, rest);
  }
}

void rotate(float* x, const float* cosines, const float* sines, std::int64_t half) {
  const FloatTag tag;
  const auto turn = [](Vector low, Vector high, Vector cosine, Vector sine, Vector* new_low,
                       Vector* new_high) HWY_ATTR {
    *new_low = hn::Sub(hn::Mul(low, cosine), hn::Mul(high, sine));
    *new_high = hn::Add(hn::Mul(high, cosine), hn::Mul(low, sine));
  };
  Vector low;
  Vector high;
  std::int64_t i = 0;
  for (; i + lanes() <= half; i += lanes()) {
    turn(hn::LoadU(tag, x + i), hn::LoadU(tag, x + half + i), hn::LoadU(tag, cosines + i),
         hn::LoadU(tag, sines + i), &low, &high);
    hn::StoreU(low, tag, x + i);
    hn::StoreU(high, tag, x + half + i);
  }
  if (i < half) {
    const std::int64_t rest = half - i;
    turn(load_some(x + i, rest), load_some(x + half + i, rest), load_some(cosines + i, rest),
         load_some(sines + i, rest), &low, &high);
    store_some(low, x + i, rest);
    store_some(high, x + half + i, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace leapquant::runtime::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::runtime::kernels {

HWY_EXPORT(rms_norm);
HWY_EXPORT(gated_rms_norm);
HWY_EXPORT(add);
HWY_EXPORT(silu_multiply);
HWY_EXPORT(sigmoid_multiply);
HWY_EXPORT(convolve);
HWY_EXPORT(rotate);

void rms_norm(const float* x, const float* factor, float eps, std::int64_t size, float* y) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(x, factor, eps, size, y);
}

void gated_rms_norm(float* o, const float* z, const float* factor, float eps, std::int64_t size,
                    bool sigmoid_gate) {
  HWY_DYNAMIC_DISPATCH(gated_rms_norm)(o, z, factor, eps, size, sigmoid_gate);
}

void add(float* x, const float* y, std::int64_t size) { HWY_DYNAMIC_DISPATCH(add)(x, y, size); }

void silu_multiply(float* gate, const float* up, std::int64_t size) {
  HWY_DYNAMIC_DISPATCH(silu_multiply)(gate, up, size);
}

void sigmoid_multiply(float* x, const float* gate, std::int64_t size) {
  HWY_DYNAMIC_DISPATCH(sigmoid_multiply)(x, gate, size);
}

void convolve(const float* const* inputs, const float* taps, std::int64_t taps_stride,
              std::int64_t num_taps, std::int64_t channels, float* y) {
  HWY_DYNAMIC_DISPATCH(convolve)(inputs, taps, taps_stride, num_taps, channels, y);
}

void rotate(float* x, const float* cosines, const float* sines, std::int64_t half) {
  HWY_DYNAMIC_DISPATCH(rotate)(x, cosines, sines, half);
}

void narrow_to_bf16(const float* x, std::int64_t size, std::uint16_t* y) {
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    y[i] = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded >> 16);
  }
}

}  // namespace leapquant::runtime::kernels
#endif
