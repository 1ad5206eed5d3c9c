// SPDX-License-Identifier: Apache-2.0
//
// Passes over one head's state [K, V] in FP32 or BF16, in place: reads by one or two vectors, and
// the rank-one update with a read of what it leaves. Knows nothing of tokens, slots or formats.
//
// Rows are walked four (or two) at a time, so that the sums over rows stay in L1; the rows of a
// group lie K / 4 apart, so that each is a stream of its own through memory. Hardware prefetchers
// follow such streams; they do not follow four neighbouring rows.
//
// Columns are walked in units of one or two vectors. The two of a BF16 state are
// the even and the odd columns of a stretch, which are the low and the high halves of 32-bit words
// and so need no shuffling. Vectors over columns (corrections, sums) are handed over in that order,
// the "column order" of the state's type; what is left of a row comes in vectors of four, in plain
// order.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#undef LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#else
#define LEAPQUANT_CPU_PER_STEP_PASSES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

inline constexpr int32_t kPassRows = 4;  // K is a multiple of it

using TailTag = hn::CappedTag<float, 4>;

template <class D>
using Words = hn::RebindToUnsigned<D>;

// float_to_bf16 of numbers, in the low 16 bits; NaN is not kept (the caller finds it otherwise).
template <class D>
HWY_INLINE hn::Vec<Words<D>> rounded_bits(D d, hn::Vec<D> value) {
  const Words<D> words;
  const auto raw = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(words, 1u));
  (void)d;
  return hn::Add(hn::Add(raw, hn::Set(words, 0x7fffu)), odd);
}

// Keeps a loaded vector in its register: GCC would rather load it again for every sum that it
// enters, and the reads are bound by loads.
template <class V>
HWY_INLINE void keep_in_register(V& value) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(value.raw));
#else
  (void)value;
#endif
}

// One unit of columns: how it is read and written, and how many columns and vectors it has. store
// leaves in `value` what was stored.
struct Fp32Unit {
  using Element = float;
  using Tag = FloatTag;
  static constexpr int32_t kVectors = kLanes < 16 ? 2 : 1;
  static constexpr int32_t kColumns = kVectors * kLanes;
  static HWY_INLINE void load(const float* p, FloatVec* value) {
    for (int32_t v = 0; v < kVectors; ++v) value[v] = hn::LoadU(FloatTag(), p + v * kLanes);
  }
  static HWY_INLINE void store(FloatVec* value, float* p) {
    for (int32_t v = 0; v < kVectors; ++v) hn::StoreU(value[v], FloatTag(), p + v * kLanes);
  }
};

struct Bf16Unit {
  using Element = uint16_t;
  using Tag = FloatTag;
  static constexpr int32_t kVectors = 2;
  static constexpr int32_t kColumns = 2 * kLanes;
  static HWY_INLINE void load(const uint16_t* p, FloatVec* value) {
    const FloatTag d;
    const Words<FloatTag> words;
    const auto pairs = hn::BitCast(words, hn::LoadU(hn::Repartition<uint16_t, FloatTag>(), p));
    value[0] = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    value[1] = hn::BitCast(d, hn::And(pairs, hn::Set(words, 0xffff0000u)));
  }
  static HWY_INLINE void store(FloatVec* value, uint16_t* p) {
    const FloatTag d;
    const Words<FloatTag> words;
    const auto even = hn::ShiftRight<16>(rounded_bits(d, value[0]));
    const auto odd = hn::And(rounded_bits(d, value[1]), hn::Set(words, 0xffff0000u));
    const hn::Repartition<uint16_t, FloatTag> halves;
    hn::StoreU(hn::BitCast(halves, hn::Or(even, odd)), halves, p);
    value[0] = hn::BitCast(d, hn::ShiftLeft<16>(even));
    value[1] = hn::BitCast(d, odd);
  }
};

struct Fp32Tail {
  using Element = float;
  using Tag = TailTag;
  static constexpr int32_t kVectors = 1;
  static constexpr int32_t kColumns = static_cast<int32_t>(hn::MaxLanes(TailTag()));
  static HWY_INLINE void load(const float* p, hn::Vec<TailTag>* value) {
    value[0] = hn::LoadU(TailTag(), p);
  }
  static HWY_INLINE void store(hn::Vec<TailTag>* value, float* p) {
    hn::StoreU(value[0], TailTag(), p);
  }
};

struct Bf16Tail {
  using Element = uint16_t;
  using Tag = TailTag;
  static constexpr int32_t kVectors = 1;
  static constexpr int32_t kColumns = static_cast<int32_t>(hn::MaxLanes(TailTag()));
  static HWY_INLINE void load(const uint16_t* p, hn::Vec<TailTag>* value) {
    const hn::Rebind<uint16_t, TailTag> half;
    const Words<TailTag> words;
    value[0] = hn::BitCast(TailTag(), hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(half, p))));
  }
  static HWY_INLINE void store(hn::Vec<TailTag>* value, uint16_t* p) {
    const hn::Rebind<uint16_t, TailTag> half;
    const auto bits = hn::ShiftRight<16>(rounded_bits(TailTag(), value[0]));
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<TailTag>(), bits)), half, p);
    value[0] = hn::BitCast(TailTag(), hn::ShiftLeft<16>(bits));
  }
};

template <class T>
struct UnitsOf {
  using Unit = Fp32Unit;
  using Tail = Fp32Tail;
};
template <>
struct UnitsOf<uint16_t> {
  using Unit = Bf16Unit;
  using Tail = Bf16Tail;
};

// Plain order [V] to the column order of BF16 states, and back; `to` has room for padded(V).
HWY_INLINE void to_column_order(const float* HWY_RESTRICT plain, int32_t v_dim,
                                float* HWY_RESTRICT to) {
  const FloatTag d;
  int32_t c = 0;
  for (; c + 2 * kLanes <= v_dim; c += 2 * kLanes) {
    FloatVec even;
    FloatVec odd;
    hn::LoadInterleaved2(d, plain + c, even, odd);
    hn::StoreU(even, d, to + c);
    hn::StoreU(odd, d, to + c + kLanes);
  }
  std::memcpy(to + c, plain + c, static_cast<size_t>(v_dim - c) * sizeof(float));
}

HWY_INLINE void from_column_order(const float* HWY_RESTRICT ordered, int32_t v_dim,
                                  float* HWY_RESTRICT plain) {
  const FloatTag d;
  int32_t c = 0;
  for (; c + 2 * kLanes <= v_dim; c += 2 * kLanes) {
    hn::StoreInterleaved2(hn::LoadU(d, ordered + c), hn::LoadU(d, ordered + c + kLanes), d,
                          plain + c);
  }
  std::memcpy(plain + c, ordered + c, static_cast<size_t>(v_dim - c) * sizeof(float));
}

// The beginnings of the next state's streams, asked for line by line during an update, while memory
// has little else to read.
struct Ahead {
  const char* at = nullptr;
  size_t left = 0;       // lines left of the segment at hand
  size_t segment = 0;    // lines of a segment
  size_t skip = 0;       // bytes from a segment's end to the next one's start
  int32_t segments = 0;  // 0: nothing to ask for

  HWY_INLINE void touch() {
    if (segments == 0) return;
    __builtin_prefetch(at, 1, 2);
    at += 64;
    if (--left != 0) return;
    left = segment;
    at += skip;
    --segments;
  }
};

// The first quarter of each of the kPassRows streams of a state.
HWY_INLINE Ahead ahead_of_state(const std::byte* state, int64_t bytes) {
  Ahead ahead;
  const size_t stream = static_cast<size_t>(bytes) / kPassRows;
  ahead.segment = stream / 4 / 64;
  if (state == nullptr || ahead.segment == 0) return ahead;
  ahead.at = reinterpret_cast<const char*>(state);
  ahead.left = ahead.segment;
  ahead.skip = stream - ahead.segment * 64;
  ahead.segments = kPassRows;
  return ahead;
}

// sums[r] += S^T x[r] over four rows, the first at `rows`, each `step` rows after the one before,
// from `column` on; x[r] points to the first row's entry.
template <class Unit, int32_t kReads>
HWY_INLINE void read_columns(const typename Unit::Element* HWY_RESTRICT rows, int32_t step,
                             int32_t v_dim, int32_t& column, const float* const* x,
                             float* const* sums) {
  const typename Unit::Tag d;
  using V = hn::Vec<typename Unit::Tag>;
  constexpr int32_t kVectors = Unit::kVectors;
  constexpr int32_t kWidth = Unit::kColumns / kVectors;
  V weight[kReads][kPassRows];
  for (int32_t r = 0; r < kReads; ++r) {
    for (int32_t i = 0; i < kPassRows; ++i) weight[r][i] = hn::Set(d, x[r][i * step]);
  }
  for (; column + Unit::kColumns <= v_dim; column += Unit::kColumns) {
    V sum[kReads][kVectors];
    for (int32_t r = 0; r < kReads; ++r) {
      for (int32_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::LoadU(d, sums[r] + column + v * kWidth);
      }
    }
    for (int32_t i = 0; i < kPassRows; ++i) {
      V s[kVectors];
      Unit::load(rows + static_cast<size_t>(i) * step * v_dim + column, s);
      for (int32_t v = 0; v < kVectors; ++v) keep_in_register(s[v]);
      for (int32_t r = 0; r < kReads; ++r) {
        for (int32_t v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::MulAdd(weight[r][i], s[v], sum[r][v]);
        }
      }
    }
    for (int32_t r = 0; r < kReads; ++r) {
      for (int32_t v = 0; v < kVectors; ++v) {
        hn::StoreU(sum[r][v], d, sums[r] + column + v * kWidth);
      }
    }
  }
}

// sums[r] [V] = state^T x[r] in column order; x[r] [K].
template <int32_t kReads, class T>
HWY_INLINE void read_pass(const T* state, int32_t k_dim, int32_t v_dim, const float* const* x,
                          float* const* sums) {
  for (int32_t r = 0; r < kReads; ++r) {
    for (int32_t c = 0; c < v_dim; ++c) sums[r][c] = 0.0f;
  }
  const int32_t step = k_dim / kPassRows;
  for (int32_t row = 0; row < step; ++row) {
    const T* rows = state + static_cast<size_t>(row) * v_dim;
    const float* weights[kReads];
    for (int32_t r = 0; r < kReads; ++r) weights[r] = x[r] + row;
    int32_t column = 0;
    read_columns<typename UnitsOf<T>::Unit, kReads>(rows, step, v_dim, column, weights, sums);
    read_columns<typename UnitsOf<T>::Tail, kReads>(rows, step, v_dim, column, weights, sums);
  }
}

// What an update leaves to know about the state, lane by lane. A sum over the rows of a unit is
// made first, so that only one addition per unit waits for the one before.
struct UpdateSums {
  alignas(64) float total[16] = {};   // FP32 without a read: entries; not finite when one is not
  alignas(64) float energy[16] = {};  // BF16: squares; not finite when an entry is not
  alignas(64) float error[16] = {};   // BF16: squared roundings
};

template <class Unit, bool kRead, int32_t kRows>
HWY_INLINE void update_columns(typename Unit::Element* HWY_RESTRICT rows, int32_t step,
                               int32_t v_dim, int32_t& column, const float* decay, const float* key,
                               const float* x, const float* HWY_RESTRICT correction,
                               float* HWY_RESTRICT sums, UpdateSums& figures, Ahead& ahead) {
  const typename Unit::Tag d;
  using V = hn::Vec<typename Unit::Tag>;
  constexpr bool kRounds = sizeof(typename Unit::Element) == 2;
  constexpr int32_t kVectors = Unit::kVectors;
  constexpr int32_t kWidth = Unit::kColumns / kVectors;
  V factor[kRows];
  V weight[kRows];
  V read[kRows];
  for (int32_t i = 0; i < kRows; ++i) {
    factor[i] = hn::Set(d, decay[i * step]);
    weight[i] = hn::Set(d, key[i * step]);
    if constexpr (kRead) read[i] = hn::Set(d, x[i * step]);
  }
  Ahead touching = ahead;  // a copy, so that it stays in registers
  V total = hn::Load(d, figures.total);
  V energy = hn::Load(d, figures.energy);
  V error = hn::Load(d, figures.error);
  for (; column + Unit::kColumns <= v_dim; column += Unit::kColumns) {
    touching.touch();
    V u[kVectors];
    V sum[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) {
      u[v] = hn::LoadU(d, correction + column + v * kWidth);
      if constexpr (kRead) sum[v] = hn::LoadU(d, sums + column + v * kWidth);
    }
    V entries = hn::Zero(d);
    V squares = hn::Zero(d);
    V roundings = hn::Zero(d);
    for (int32_t i = 0; i < kRows; ++i) {
      typename Unit::Element* at = rows + static_cast<size_t>(i) * step * v_dim + column;
      V s[kVectors];
      V exact[kVectors];
      Unit::load(at, s);
      for (int32_t v = 0; v < kVectors; ++v) {
        s[v] = hn::MulAdd(weight[i], u[v], hn::Mul(factor[i], s[v]));
        exact[v] = s[v];
        if constexpr (kRead) sum[v] = hn::MulAdd(read[i], s[v], sum[v]);
        if constexpr (kRounds) {
          squares = hn::MulAdd(s[v], s[v], squares);
        } else if constexpr (!kRead) {
          entries = hn::Add(s[v], entries);
        }
      }
      Unit::store(s, at);
      for (int32_t v = 0; kRounds && v < kVectors; ++v) {
        const V rounding = hn::Sub(exact[v], s[v]);
        roundings = hn::MulAdd(rounding, rounding, roundings);
      }
    }
    if constexpr (kRounds) {
      energy = hn::Add(energy, squares);
      error = hn::Add(error, roundings);
    } else if constexpr (!kRead) {
      total = hn::Add(total, entries);
    }
    for (int32_t v = 0; kRead && v < kVectors; ++v) {
      hn::StoreU(sum[v], d, sums + column + v * kWidth);
    }
  }
  ahead = touching;
  if constexpr (kRounds) {
    hn::Store(energy, d, figures.energy);
    hn::Store(error, d, figures.error);
  } else if constexpr (!kRead) {
    hn::Store(total, d, figures.total);
  }
}

// state = diag(decay) state + key correction^T, in place; with kRead then sums [V] = state^T x, of
// the state before it is rounded. decay, key, x [K]; correction, sums [V] in column order.
template <bool kRead, class T>
HWY_INLINE void update_pass(T* state, int32_t k_dim, int32_t v_dim, const float* decay,
                            const float* key, const float* correction, const float* x, float* sums,
                            UpdateSums& figures, Ahead& ahead) {
  if constexpr (kRead) {
    for (int32_t c = 0; c < v_dim; ++c) sums[c] = 0.0f;
  }
  // Fewer rows where more has to be kept in registers.
  constexpr int32_t kRows = kRead || sizeof(T) == 2 ? kPassRows / 2 : kPassRows;
  const int32_t step = k_dim / kRows;
  for (int32_t row = 0; row < step; ++row) {
    T* rows = state + static_cast<size_t>(row) * v_dim;
    const float* weights = kRead ? x + row : nullptr;
    int32_t column = 0;
    update_columns<typename UnitsOf<T>::Unit, kRead, kRows>(rows, step, v_dim, column, decay + row,
                                                            key + row, weights, correction, sums,
                                                            figures, ahead);
    update_columns<typename UnitsOf<T>::Tail, kRead, kRows>(rows, step, v_dim, column, decay + row,
                                                            key + row, weights, correction, sums,
                                                            figures, ahead);
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
