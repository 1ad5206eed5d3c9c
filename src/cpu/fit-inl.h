// SPDX-License-Identifier: Apache-2.0
//
// The compensator fit: block subspace iteration over the rebuilt state, then rounded vectors in the
// boundary state. The state is never scaled; the thin products are, by a power of two, which gives
// the same bits. Orthogonalisation projects onto all earlier columns at once, twice.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_FIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_FIT_INL_H_
#undef LEAPQUANT_CPU_FIT_INL_H_
#else
#define LEAPQUANT_CPU_FIT_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/start_vectors.h"
#include "cpu/codec.h"
#include "cpu/products-inl.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

inline constexpr int32_t kMaxRank = 32;

// Scratch of a fit; keys and values hold the decoded compensators afterwards.
struct FitScratch {
  float* keys;    // [rank][padded(K)]
  float* values;  // [rank][padded(V)]
  float* spare;   // [rank][max of both]
};

inline float dot(const float* a, const float* b, int32_t stride) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < stride; i += kLanes) {
    sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
  }
  return sum_of_lanes(sum);
}

inline void scale_row(float factor, int32_t stride, float* row) {
  const FloatTag d;
  for (int32_t i = 0; i < stride; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, row + i), hn::Set(d, factor)), d, row + i);
  }
}

// share[k] = <block[k], column> for k < count; rows of the block up to a multiple of four are read.
inline void dots_with(const float* block, const float* column, int32_t count, int32_t stride,
                      float* share) {
  const FloatTag d;
  const hn::FixedTag<float, 4> four;
  int32_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const float* row = block + k * stride;
    FloatVec sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int32_t i = 0; i < stride; i += kLanes) {
      const auto x = hn::Load(d, column + i);
      for (int32_t r = 0; r < 4; ++r) {
        sum[r] = hn::MulAdd(hn::Load(d, row + r * stride + i), x, sum[r]);
      }
    }
    hn::StoreU(sum_four(sum[0], sum[1], sum[2], sum[3]), four, share + k);
  }
  for (; k < count; ++k) share[k] = dot(block + k * stride, column, stride);
}

// Columns of block [rank][stride] made orthonormal; dependent or zero ones become zero (dead).
inline void orthonormalise(int32_t rank, int32_t stride, float* block) {
  const FloatTag d;
  for (int32_t c = 0; c < rank; ++c) {
    float* column = block + c * stride;
    const float before = std::sqrt(dot(column, column, stride));
    for (int32_t pass = 0; pass < 2 && c > 0; ++pass) {
      float share[kMaxRank + 4];
      dots_with(block, column, c, stride, share);
      for (int32_t i = 0; i < stride; i += kLanes) {
        auto x = hn::Load(d, column + i);
        for (int32_t k = 0; k < c; ++k) {
          x = hn::NegMulAdd(hn::Set(d, share[k]), hn::Load(d, block + k * stride + i), x);
        }
        hn::Store(x, d, column + i);
      }
    }
    const float norm = c > 0 ? std::sqrt(dot(column, column, stride)) : before;
    const bool dead = !(before > 0.0f) || norm < 1e-6f * before;
    scale_row(dead ? 0.0f : 1.0f / norm, stride, column);
  }
}

// Start vectors in values; true when the fit is to be cold.
inline bool start_values(const BoundaryLayout& layout, bool cold, const std::byte* previous,
                         float* values) {
  const int32_t stride = padded(layout.v_dim);
  bool alive[kMaxRank] = {false};
  bool any = false;
  if (!cold && previous != nullptr) {
    for (int32_t r = 0; r < layout.rank; ++r) {
      alive[r] = decode_vector(vector_place(layout, Side::kValue, r), previous,
                               values + r * stride);
      any = any || alive[r];
    }
  }
  cold = !any;
  const bool warm = !cold && layout.format.fit_start != LEAPQUANT_FIT_FIXED;
  for (int32_t r = 0; r < layout.rank; ++r) {
    if (warm && alive[r]) continue;
    for (int32_t j = 0; j < stride; ++j) {
      values[r * stride + j] = j < layout.v_dim ? start_vector(r, j) : 0.0f;
    }
  }
  return cold;
}

// Sorts values by falling |S v|, equal ones in their old order.
inline void sort_by_strength(const BoundaryLayout& layout, const float* state,
                             const FitScratch& scratch, float inverse_scale) {
  const int32_t stride = padded(layout.v_dim);
  const int32_t key_stride = padded(layout.k_dim);
  state_times(state, layout.k_dim, stride, scratch.values, layout.rank, scratch.keys);
  float strength[kMaxRank];
  int32_t order[kMaxRank];
  for (int32_t r = 0; r < layout.rank; ++r) {
    float* key = scratch.keys + r * key_stride;
    scale_row(inverse_scale, key_stride, key);
    strength[r] = dot(key, key, key_stride);
    order[r] = r;
  }
  for (int32_t r = 1; r < layout.rank; ++r) {  // insertion: stable, and std::stable_sort allocates
    const int32_t moving = order[r];
    int32_t at = r;
    for (; at > 0 && strength[order[at - 1]] < strength[moving]; --at) order[at] = order[at - 1];
    order[at] = moving;
  }
  const size_t row = static_cast<size_t>(stride) * sizeof(float);
  std::memcpy(scratch.spare, scratch.values, row * static_cast<size_t>(layout.rank));
  for (int32_t r = 0; r < layout.rank; ++r) {
    std::memcpy(scratch.values + r * stride, scratch.spare + order[r] * stride, row);
  }
}

// keys [rank][padded(K)] <- keys (U^T U + 1e-7 I)^-1 by Cholesky.
inline void least_squares(int32_t rank, int32_t stride, const float* values, int32_t key_stride,
                          float* keys) {
  const FloatTag d;
  float lower[kMaxRank][kMaxRank + 4];
  float inverse[kMaxRank];
  for (int32_t i = 0; i < rank; ++i) {
    dots_with(values, values + i * stride, i + 1, stride, lower[i]);
    lower[i][i] += 1e-7f;
  }
  for (int32_t i = 0; i < rank; ++i) {
    for (int32_t j = 0; j <= i; ++j) {
      float sum = lower[i][j];
      for (int32_t l = 0; l < j; ++l) sum -= lower[i][l] * lower[j][l];
      if (i == j) {
        // Rounding may eat the 1e-7 of a nearly dependent column; it then counts as dead.
        inverse[i] = 1.0f / std::sqrt(std::max(sum, 1e-7f));
      } else {
        lower[i][j] = sum * inverse[j];
      }
    }
  }
  for (int32_t e = 0; e < key_stride; e += 2 * kLanes) {
    const int32_t second = e + kLanes < key_stride ? kLanes : 0;
    for (int32_t i = 0; i < rank; ++i) {
      auto x0 = hn::Load(d, keys + i * key_stride + e);
      auto x1 = hn::Load(d, keys + i * key_stride + e + second);
      for (int32_t j = 0; j < i; ++j) {
        const auto factor = hn::Set(d, lower[i][j]);
        x0 = hn::NegMulAdd(factor, hn::Load(d, keys + j * key_stride + e), x0);
        x1 = hn::NegMulAdd(factor, hn::Load(d, keys + j * key_stride + e + second), x1);
      }
      hn::Store(hn::Mul(x0, hn::Set(d, inverse[i])), d, keys + i * key_stride + e);
      hn::Store(hn::Mul(x1, hn::Set(d, inverse[i])), d, keys + i * key_stride + e + second);
    }
    for (int32_t i = rank - 1; i >= 0; --i) {
      auto x0 = hn::Load(d, keys + i * key_stride + e);
      auto x1 = hn::Load(d, keys + i * key_stride + e + second);
      for (int32_t j = i + 1; j < rank; ++j) {
        const auto factor = hn::Set(d, lower[j][i]);
        x0 = hn::NegMulAdd(factor, hn::Load(d, keys + j * key_stride + e), x0);
        x1 = hn::NegMulAdd(factor, hn::Load(d, keys + j * key_stride + e + second), x1);
      }
      hn::Store(hn::Mul(x0, hn::Set(d, inverse[i])), d, keys + i * key_stride + e);
      hn::Store(hn::Mul(x1, hn::Set(d, inverse[i])), d, keys + i * key_stride + e + second);
    }
  }
}

// Fits the compensators of a finite state [K][padded(V)] whose largest magnitude is `largest`, writes
// them into boundary and leaves them decoded in scratch.keys and scratch.values. previous may equal
// boundary. Returns LEAPQUANT_HEALTH_* flags.
inline uint32_t fit_compensators(const BoundaryLayout& layout, FitKind kind,
                                 const std::byte* previous, const float* state, float largest,
                                 std::byte* boundary, const FitScratch& scratch) {
  const int32_t rank = layout.rank;
  const int32_t k_dim = layout.k_dim;
  const int32_t stride = padded(layout.v_dim);
  const int32_t key_stride = padded(k_dim);
  const bool mixed = layout.format.num_int8 + layout.format.num_int4 > 0;
  uint32_t flags = 0;
  if (rank == 0) return flags;

  // What lies past K in a row of keys is never written, but norms and products read it.
  std::fill(scratch.keys, scratch.keys + rank * key_stride, 0.0f);
  if (largest == 0.0f) {
    std::fill(scratch.values, scratch.values + rank * stride, 0.0f);
  } else {
    // 2^-e with max |S| 2^-e in [1, 2), kept a normal number at both ends of the range.
    const int32_t exponent = std::clamp(std::ilogb(largest), -126, 126);
    const float inverse_scale = std::ldexp(1.0f, -exponent);
    const bool cold =
        start_values(layout, kind == FitKind::kCold, previous, scratch.values);
    const int32_t rounds = cold                            ? 3
                           : layout.format.fit_rounds > 0 ? layout.format.fit_rounds
                           : mixed                         ? 1
                                                           : 2;
    for (int32_t round = 0; round < rounds; ++round) {
      state_times(state, k_dim, stride, scratch.values, rank, scratch.keys);
      for (int32_t r = 0; r < rank; ++r) {
        scale_row(inverse_scale, key_stride, scratch.keys + r * key_stride);
      }
      if (!mixed) orthonormalise(rank, key_stride, scratch.keys);
      transposed_times(state, k_dim, stride, scratch.keys, rank, scratch.values);
      for (int32_t r = 0; r < rank; ++r) {
        scale_row(inverse_scale, stride, scratch.values + r * stride);
      }
      orthonormalise(rank, stride, scratch.values);
    }
    if (mixed && cold) sort_by_strength(layout, state, scratch, inverse_scale);
    if (!mixed) state_times(state, k_dim, stride, scratch.values, rank, scratch.keys);
  }
  for (int32_t r = 0; r < rank; ++r) {
    flags |= encode_vector(vector_place(layout, Side::kValue, r), boundary,
                           scratch.values + r * stride);
  }
  if (mixed && largest != 0.0f) {
    state_times(state, k_dim, stride, scratch.values, rank, scratch.keys);
    least_squares(rank, stride, scratch.values, key_stride, scratch.keys);
  }
  for (int32_t r = 0; r < rank; ++r) {
    flags |= encode_vector(vector_place(layout, Side::kKey, r), boundary,
                           scratch.keys + r * key_stride);
  }
  return flags;
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
