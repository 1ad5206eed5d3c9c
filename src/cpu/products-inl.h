// SPDX-License-Identifier: Apache-2.0
//
// The three products of a fold over a state [K][stride] (stride = padded(V), zeros past V): state
// plus thin factors, state times vectors, transposed state times vectors. Blocks of vectors are
// stored one vector after another, each padded to 16. Register tiles; the state lies in L1 or L2.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_PRODUCTS_INL_H_
#undef LEAPQUANT_CPU_PRODUCTS_INL_H_
#else
#define LEAPQUANT_CPU_PRODUCTS_INL_H_
#endif

#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// rows [4][stride] += sum over m of left[m][0..3] right[m]. left advances by left_stride per m.
inline void update_rows(const float* HWY_RESTRICT left, int32_t left_stride,
                        const float* HWY_RESTRICT right, int32_t count, int32_t stride,
                        float* HWY_RESTRICT rows) {
  const FloatTag d;
  constexpr int32_t kVectors = kLanes >= 16 ? 1 : 2;
  for (int32_t j = 0; j < stride; j += kVectors * kLanes) {
    FloatVec sum[4][kVectors];
    HWY_UNROLL(4)
    for (int32_t i = 0; i < 4; ++i) {
      for (int32_t v = 0; v < kVectors; ++v) {
        sum[i][v] = hn::Load(d, rows + i * stride + j + v * kLanes);
      }
    }
    const float* factor = left;
    const float* vector = right + j;
    for (int32_t m = 0; m < count; ++m) {
      FloatVec u[kVectors];
      for (int32_t v = 0; v < kVectors; ++v) u[v] = hn::Load(d, vector + v * kLanes);
      HWY_UNROLL(4)
      for (int32_t i = 0; i < 4; ++i) {
        const auto k = hn::Set(d, factor[i]);
        for (int32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(k, u[v], sum[i][v]);
      }
      factor += left_stride;
      vector += stride;
    }
    HWY_UNROLL(4)
    for (int32_t i = 0; i < 4; ++i) {
      for (int32_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[i][v], d, rows + i * stride + j + v * kLanes);
      }
    }
  }
}

// keys[c][i] = sum_j state[i][j] values[c][j] for kCount vectors c and rows i, i + 1 .. of a tile.
template <int32_t kCount>
HWY_INLINE void times_group(const float* HWY_RESTRICT state, int32_t k_dim, int32_t stride,
                            const float* HWY_RESTRICT values, int32_t key_stride,
                            float* HWY_RESTRICT keys) {
  const FloatTag d;
  const hn::FixedTag<float, 4> block;
  for (int32_t i = 0; i < k_dim; i += 4) {
    for (int32_t pair = 0; pair < 4; pair += 2) {
      const float* row0 = state + static_cast<int64_t>(i + pair) * stride;
      const float* row1 = row0 + stride;
      FloatVec sum0[kCount];
      FloatVec sum1[kCount];
      HWY_UNROLL(8)
      for (int32_t c = 0; c < kCount; ++c) sum0[c] = sum1[c] = hn::Zero(d);
      for (int32_t j = 0; j < stride; j += kLanes) {
        const auto x0 = hn::Load(d, row0 + j);
        const auto x1 = hn::Load(d, row1 + j);
        HWY_UNROLL(8)
        for (int32_t c = 0; c < kCount; ++c) {
          const auto u = hn::Load(d, values + c * stride + j);
          sum0[c] = hn::MulAdd(x0, u, sum0[c]);
          sum1[c] = hn::MulAdd(x1, u, sum1[c]);
        }
      }
      HWY_UNROLL(4)
      for (int32_t c = 0; c < kCount; c += 2) {
        const int32_t next = c + 1 < kCount ? c + 1 : c;
        alignas(16) float lane[4];
        hn::Store(sum_four(sum0[c], sum1[c], sum0[next], sum1[next]), block, lane);
        keys[c * key_stride + i + pair] = lane[0];
        keys[c * key_stride + i + pair + 1] = lane[1];
        keys[next * key_stride + i + pair] = lane[2];
        keys[next * key_stride + i + pair + 1] = lane[3];
      }
    }
  }
}

// values[c][j] = sum_i state[i][j] keys[c][i] for kCount vectors c.
template <int32_t kCount>
HWY_INLINE void transposed_group(const float* HWY_RESTRICT state, int32_t k_dim, int32_t stride,
                                 const float* HWY_RESTRICT keys, int32_t key_stride,
                                 float* HWY_RESTRICT values) {
  const FloatTag d;
  constexpr int32_t kVectors = kLanes >= 16 ? 1 : 2;
  for (int32_t j = 0; j < stride; j += kVectors * kLanes) {
    FloatVec sum[kCount][kVectors];
    HWY_UNROLL(8)
    for (int32_t c = 0; c < kCount; ++c) {
      for (int32_t v = 0; v < kVectors; ++v) sum[c][v] = hn::Zero(d);
    }
    const float* row = state + j;
    for (int32_t i = 0; i < k_dim; ++i) {
      FloatVec x[kVectors];
      for (int32_t v = 0; v < kVectors; ++v) x[v] = hn::Load(d, row + v * kLanes);
      HWY_UNROLL(8)
      for (int32_t c = 0; c < kCount; ++c) {
        const auto k = hn::Set(d, keys[c * key_stride + i]);
        for (int32_t v = 0; v < kVectors; ++v) sum[c][v] = hn::MulAdd(k, x[v], sum[c][v]);
      }
      row += stride;
    }
    HWY_UNROLL(8)
    for (int32_t c = 0; c < kCount; ++c) {
      for (int32_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[c][v], d, values + c * stride + j + v * kLanes);
      }
    }
  }
}

// Splits `rank` vectors into groups of at most five, as even as they come, and calls the group
// kernel of that many: kernel(first vector, std::integral_constant of the size).
template <class Kernel>
HWY_INLINE void for_groups(int32_t rank, const Kernel& kernel) {
  constexpr int32_t kMost = 5;
  const int32_t groups = (rank + kMost - 1) / kMost;
  int32_t first = 0;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t last = (g + 1) * rank / groups;
    switch (last - first) {
      case 5:
        kernel(first, std::integral_constant<int32_t, 5>());
        break;
      case 4:
        kernel(first, std::integral_constant<int32_t, 4>());
        break;
      case 3:
        kernel(first, std::integral_constant<int32_t, 3>());
        break;
      case 2:
        kernel(first, std::integral_constant<int32_t, 2>());
        break;
      default:
        kernel(first, std::integral_constant<int32_t, 1>());
        break;
    }
    first = last;
  }
}

// keys [rank][padded(K)] = state values, values [rank][stride].
inline void state_times(const float* state, int32_t k_dim, int32_t stride, const float* values,
                        int32_t rank, float* keys) {
  const int32_t key_stride = padded(k_dim);
  for_groups(rank, [&](int32_t first, auto size) {
    times_group<decltype(size)::value>(state, k_dim, stride, values + first * stride, key_stride,
                                       keys + first * key_stride);
  });
}

// values [rank][stride] = state^T keys.
inline void transposed_times(const float* state, int32_t k_dim, int32_t stride, const float* keys,
                             int32_t rank, float* values) {
  const int32_t key_stride = padded(k_dim);
  for_groups(rank, [&](int32_t first, auto size) {
    transposed_group<decltype(size)::value>(state, k_dim, stride, keys + first * key_stride,
                                            key_stride, values + first * stride);
  });
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
