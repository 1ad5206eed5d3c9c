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
  FloatVec sum[2] = {hn::Zero(d), hn::Zero(d)};
  constexpr int32_t kStep = kLanes < 16 ? 2 * kLanes : kLanes;
  for (int32_t i = 0; i < stride; i += kStep) {
    for (int32_t p = 0; p < kStep / kLanes; ++p) {
      const int32_t at = i + p * kLanes;
      sum[p] = hn::MulAdd(hn::Load(d, a + at), hn::Load(d, b + at), sum[p]);
    }
  }
  return sum_of_lanes(hn::Add(sum[0], sum[1]));
}

inline void scale_row(float factor, int32_t stride, float* row) {
  const FloatTag d;
  for (int32_t i = 0; i < stride; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, row + i), hn::Set(d, factor)), d, row + i);
  }
}

// share[k] = <block[k], column> for kRows rows of the block.
template <int32_t kRows>
HWY_INLINE void dots_of_rows(const float* block, const float* column, int32_t stride,
                             float* share) {
  const FloatTag d;
  const hn::FixedTag<float, 4> four;
  FloatVec sum[kRows];
  HWY_UNROLL(8)
  for (int32_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  for (int32_t i = 0; i < stride; i += kLanes) {
    const auto x = hn::Load(d, column + i);
    HWY_UNROLL(8)
    for (int32_t r = 0; r < kRows; ++r) {
      sum[r] = hn::MulAdd(hn::Load(d, block + r * stride + i), x, sum[r]);
    }
  }
  HWY_UNROLL(8)
  for (int32_t r = 0; r < kRows; r += 4) {
    hn::StoreU(sum_four(sum[r], sum[r + 1], sum[r + 2], sum[r + 3]), four, share + r);
  }
}

// share[k] = <block[k], column> for k < count.
inline void dots_with(const float* block, const float* column, int32_t count, int32_t stride,
                      float* share) {
  int32_t k = 0;
  for (; k + 8 <= count; k += 8) dots_of_rows<8>(block + k * stride, column, stride, share + k);
  for (; k + 4 <= count; k += 4) dots_of_rows<4>(block + k * stride, column, stride, share + k);
  if (k < count && count >= 4) {  // the last four again rather than one by one
    dots_of_rows<4>(block + (count - 4) * stride, column, stride, share + count - 4);
    return;
  }
  for (; k < count; ++k) share[k] = dot(block + k * stride, column, stride);
}

// row -= sum over k < count of share[k * share_stride] block[k], eight vectors at a time: as many
// independent sums as hide the latency.
inline void subtract_rows(const float* block, const float* share, int32_t share_stride,
                          int32_t count, int32_t stride, float* row) {
  const FloatTag d;
  constexpr int32_t kVectors = 8;
  int32_t i = 0;
  for (; i + kVectors * kLanes <= stride; i += kVectors * kLanes) {
    FloatVec x[kVectors];
    HWY_UNROLL(8)
    for (int32_t v = 0; v < kVectors; ++v) x[v] = hn::Load(d, row + i + v * kLanes);
    for (int32_t k = 0; k < count; ++k) {
      const auto factor = hn::Set(d, share[k * share_stride]);
      HWY_UNROLL(8)
      for (int32_t v = 0; v < kVectors; ++v) {
        x[v] = hn::NegMulAdd(factor, hn::Load(d, block + k * stride + i + v * kLanes), x[v]);
      }
    }
    HWY_UNROLL(8)
    for (int32_t v = 0; v < kVectors; ++v) hn::Store(x[v], d, row + i + v * kLanes);
  }
  for (; i < stride; i += kLanes) {
    auto x = hn::Load(d, row + i);
    for (int32_t k = 0; k < count; ++k) {
      x = hn::NegMulAdd(hn::Set(d, share[k * share_stride]), hn::Load(d, block + k * stride + i),
                        x);
    }
    hn::Store(x, d, row + i);
  }
}

// Columns of block [rank][stride] made orthonormal; dependent or zero ones become zero (dead). The
// second projection is left out where the first one took little away: it would change nothing
// (Kahan and Parlett's criterion).
inline void orthonormalise(int32_t rank, int32_t stride, float* block) {
  for (int32_t c = 0; c < rank; ++c) {
    float* column = block + c * stride;
    const float before = std::sqrt(dot(column, column, stride));
    float norm = before;
    float start = before;
    for (int32_t pass = 0; pass < 2 && c > 0; ++pass) {
      float share[kMaxRank + 4];
      dots_with(block, column, c, stride, share);
      subtract_rows(block, share, 1, c, stride, column);
      norm = std::sqrt(dot(column, column, stride));
      if (norm > 0.7f * start) break;
      start = norm;
    }
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
      alive[r] =
          decode_vector(vector_place(layout, Side::kValue, r), previous, values + r * stride);
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

// keys [rank][padded(K)] <- keys (U^T U + 1e-7 I)^-1 by Cholesky: R^T R, R in the rows of `upper`.
inline void least_squares(int32_t rank, int32_t stride, const float* values, int32_t key_stride,
                          float* keys) {
  const FloatTag d;
  alignas(64) float upper[kMaxRank][kMaxRank + 16];
  float inverse[kMaxRank];
  const int32_t width = padded(rank);
  for (int32_t i = 0; i < rank; ++i) {
    float share[kMaxRank + 4];
    dots_with(values, values + i * stride, i + 1, stride, share);
    for (int32_t j = 0; j <= i; ++j) upper[j][i] = share[j];
    upper[i][i] += 1e-7f;
  }
  for (int32_t i = 0; i < rank; ++i) {
    for (int32_t j = rank; j < width; ++j) upper[i][j] = 0.0f;
    for (int32_t j = 0; j < i; ++j) upper[i][j] = 0.0f;
  }
  for (int32_t j = 0; j < rank; ++j) {
    // Rounding may eat the 1e-7 of a nearly dependent column; it then counts as dead.
    inverse[j] = 1.0f / std::sqrt(std::max(upper[j][j], 1e-7f));
    const int32_t start = j / kLanes * kLanes;
    for (int32_t l = start; l < width; l += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, upper[j] + l), hn::Set(d, inverse[j])), d, upper[j] + l);
    }
    for (int32_t i = j + 1; i < rank; ++i) {
      const auto factor = hn::Set(d, upper[j][i]);
      for (int32_t l = i / kLanes * kLanes; l < width; l += kLanes) {
        hn::Store(hn::NegMulAdd(factor, hn::Load(d, upper[j] + l), hn::Load(d, upper[i] + l)), d,
                  upper[i] + l);
      }
    }
  }
  constexpr int32_t kColumn = kMaxRank + 16;
  for (int32_t i = 0; i < rank; ++i) {  // R^T y = b
    float* key = keys + i * key_stride;
    subtract_rows(keys, &upper[0][i], kColumn, i, key_stride, key);
    scale_row(inverse[i], key_stride, key);
  }
  for (int32_t i = rank - 1; i >= 0; --i) {  // R x = y
    float* key = keys + i * key_stride;
    subtract_rows(key + key_stride, &upper[i][i + 1], 1, rank - 1 - i, key_stride, key);
    scale_row(inverse[i], key_stride, key);
  }
}

// Fits the compensators of a finite state [K][padded(V)] whose largest magnitude is `largest`,
// writes them into boundary and leaves them decoded in scratch.keys and scratch.values. previous
// may equal boundary. Returns LEAPQUANT_HEALTH_* flags.
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
    const bool cold = start_values(layout, kind == FitKind::kCold, previous, scratch.values);
    const int32_t rounds = cold                           ? 3
                           : layout.format.fit_rounds > 0 ? layout.format.fit_rounds
                           : mixed                        ? 1
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
    flags |=
        encode_vector(vector_place(layout, Side::kValue, r), boundary, scratch.values + r * stride);
  }
  if (mixed && largest != 0.0f) {
    state_times(state, k_dim, stride, scratch.values, rank, scratch.keys);
    least_squares(rank, stride, scratch.values, key_stride, scratch.keys);
  }
  for (int32_t r = 0; r < rank; ++r) {
    flags |=
        encode_vector(vector_place(layout, Side::kKey, r), boundary, scratch.keys + r * key_stride);
  }
  return flags;
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
