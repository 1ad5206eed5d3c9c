// SPDX-License-Identifier: Apache-2.0
//
// Passes over one head's state [K, V] in FP32 or BF16, in place: reads by one or two vectors, and
// the rank-one update with a read of what it leaves. Four rows at a time, so that the sums over
// rows stay in L1 and the state streams. Knows nothing of tokens, slots or formats.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#undef LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#else
#define LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

inline constexpr int32_t kPassRows = 4;  // K is a multiple of it

// Rows of 4 entries and more are walked in whole vectors, the rest in vectors of 4.
using TailTag = hn::CappedTag<float, 4>;

template <class D>
HWY_INLINE hn::Vec<D> load_state(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_state(D d, const uint16_t* p) {
  const hn::RebindToUnsigned<D> bits;
  const hn::Rebind<uint16_t, D> half;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(half, p))));
}

// Stores and returns what was stored. BF16: round half to even; NaN is not kept (the caller finds
// non-finite values in the sums).
template <class D>
HWY_INLINE hn::Vec<D> store_state(D d, hn::Vec<D> value, float* p) {
  hn::StoreU(value, d, p);
  return value;
}
template <class D>
HWY_INLINE hn::Vec<D> store_state(D d, hn::Vec<D> value, uint16_t* p) {
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> integers;
  const hn::Rebind<uint16_t, D> half;
  const auto raw = hn::BitCast(bits, value);
  const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(bits, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(raw, hn::Set(bits, 0x7fffu)), odd));
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(integers, rounded)), half, p);
  return hn::BitCast(d, hn::ShiftLeft<16>(rounded));
}

// Memory that will be needed next, touched a little with every vector of a pass.
struct Ahead {
  const char* at = nullptr;
  size_t step = 0;  // bytes per vector of four rows

  HWY_INLINE void touch() {
    for (size_t offset = 0; offset < step; offset += 64) __builtin_prefetch(at + offset, 1, 2);
    at += step;
  }
};

// sums[r] [V] += S^T x[r] for the four rows from `row`; kReads is 1 or 2.
template <int32_t kReads, class D, class T>
HWY_INLINE void read_columns(D d, const T* HWY_RESTRICT rows, int32_t v_dim, int32_t& column,
                             const float* const* x, float* const* sums, Ahead& ahead) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  hn::Vec<D> weight[kReads][kPassRows];
  for (int32_t r = 0; r < kReads; ++r) {
    for (int32_t i = 0; i < kPassRows; ++i) weight[r][i] = hn::Set(d, x[r][i]);
  }
  for (; column + lanes <= v_dim; column += lanes) {
    ahead.touch();
    hn::Vec<D> sum[kReads];
    for (int32_t r = 0; r < kReads; ++r) sum[r] = hn::LoadU(d, sums[r] + column);
    for (int32_t i = 0; i < kPassRows; ++i) {
      const hn::Vec<D> s = load_state(d, rows + static_cast<size_t>(i) * v_dim + column);
      for (int32_t r = 0; r < kReads; ++r) sum[r] = hn::MulAdd(weight[r][i], s, sum[r]);
    }
    for (int32_t r = 0; r < kReads; ++r) hn::StoreU(sum[r], d, sums[r] + column);
  }
}

// sums[r] [V] = state^T x[r], x[r] [K].
template <int32_t kReads, class T>
HWY_INLINE void read_pass(const T* state, int32_t k_dim, int32_t v_dim, const float* const* x,
                          float* const* sums, Ahead& ahead) {
  for (int32_t r = 0; r < kReads; ++r) {
    for (int32_t c = 0; c < v_dim; ++c) sums[r][c] = 0.0f;
  }
  for (int32_t row = 0; row < k_dim; row += kPassRows) {
    const T* rows = state + static_cast<size_t>(row) * v_dim;
    const float* weights[kReads];
    for (int32_t r = 0; r < kReads; ++r) weights[r] = x[r] + row;
    int32_t column = 0;
    read_columns<kReads>(FloatTag(), rows, v_dim, column, weights, sums, ahead);
    read_columns<kReads>(TailTag(), rows, v_dim, column, weights, sums, ahead);
  }
}

// What an update leaves to know about the state, lane by lane.
struct UpdateSums {
  alignas(64) float energy[16] = {};  // squares; not finite when an entry is not (or its square)
  alignas(64) float error[16] = {};   // squared roundings to BF16
};

template <bool kRead, class D, class T>
HWY_INLINE void update_columns(D d, T* HWY_RESTRICT rows, int32_t v_dim, int32_t& column,
                               const float* decay, const float* key, const float* x,
                               const float* HWY_RESTRICT correction, float* HWY_RESTRICT sums,
                               UpdateSums& figures, Ahead& ahead) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  hn::Vec<D> factor[kPassRows];
  hn::Vec<D> weight[kPassRows];
  hn::Vec<D> read[kPassRows];
  for (int32_t i = 0; i < kPassRows; ++i) {
    factor[i] = hn::Set(d, decay[i]);
    weight[i] = hn::Set(d, key[i]);
    if constexpr (kRead) read[i] = hn::Set(d, x[i]);
  }
  hn::Vec<D> energy = hn::Load(d, figures.energy);
  hn::Vec<D> error = hn::Load(d, figures.error);
  for (; column + lanes <= v_dim; column += lanes) {
    ahead.touch();
    const hn::Vec<D> u = hn::LoadU(d, correction + column);
    hn::Vec<D> sum = hn::Zero(d);
    if constexpr (kRead) sum = hn::LoadU(d, sums + column);
    for (int32_t i = 0; i < kPassRows; ++i) {
      T* at = rows + static_cast<size_t>(i) * v_dim + column;
      const hn::Vec<D> s = hn::MulAdd(weight[i], u, hn::Mul(factor[i], load_state(d, at)));
      if constexpr (kRead) sum = hn::MulAdd(read[i], s, sum);
      energy = hn::MulAdd(s, s, energy);
      const hn::Vec<D> stored = store_state(d, s, at);
      if constexpr (sizeof(T) == 2) {
        const hn::Vec<D> rounding = hn::Sub(s, stored);
        error = hn::MulAdd(rounding, rounding, error);
      }
    }
    if constexpr (kRead) hn::StoreU(sum, d, sums + column);
  }
  hn::Store(energy, d, figures.energy);
  if constexpr (sizeof(T) == 2) hn::Store(error, d, figures.error);
}

// state = diag(decay) state + key correction^T, in place; with kRead then sums [V] = state^T x, of
// the state before it is rounded. decay, key, x [K], correction [V].
template <bool kRead, class T>
HWY_INLINE void update_pass(T* state, int32_t k_dim, int32_t v_dim, const float* decay,
                            const float* key, const float* correction, const float* x, float* sums,
                            UpdateSums& figures, Ahead& ahead) {
  if constexpr (kRead) {
    for (int32_t c = 0; c < v_dim; ++c) sums[c] = 0.0f;
  }
  for (int32_t row = 0; row < k_dim; row += kPassRows) {
    T* rows = state + static_cast<size_t>(row) * v_dim;
    const float* weights = kRead ? x + row : nullptr;
    int32_t column = 0;
    update_columns<kRead>(FloatTag(), rows, v_dim, column, decay + row, key + row, weights,
                          correction, sums, figures, ahead);
    update_columns<kRead>(TailTag(), rows, v_dim, column, decay + row, key + row, weights,
                          correction, sums, figures, ahead);
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
