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

#include <type_traits>

#include "cpu/inputs.h"
#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

#if HWY_COMPILER_GCC_ACTUAL
#define LEAPQUANT_CPU_UNROLL_TWICE _Pragma("GCC unroll 2")
#else
#define LEAPQUANT_CPU_UNROLL_TWICE
#endif

// kVectors vectors of columns of update_rows.
template <int32_t kVectors>
HWY_INLINE void update_block(const float* HWY_RESTRICT left, int32_t left_stride,
                             const float* HWY_RESTRICT right, int32_t count, int32_t stride,
                             float* HWY_RESTRICT rows) {
  const FloatTag d;
  FloatVec sum[4][kVectors];
  HWY_UNROLL(4)
  for (int32_t i = 0; i < 4; ++i) {
    for (int32_t v = 0; v < kVectors; ++v) {
      sum[i][v] = hn::Load(d, rows + i * stride + v * kLanes);
    }
  }
  LEAPQUANT_CPU_UNROLL_TWICE
  for (int32_t m = 0; m < count; ++m) {
    FloatVec u[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) u[v] = in_register(hn::Load(d, right + v * kLanes));
    HWY_UNROLL(4)
    for (int32_t i = 0; i < 4; ++i) {
      const auto k = hn::Set(d, left[i]);
      for (int32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(k, u[v], sum[i][v]);
    }
    left += left_stride;
    right += stride;
  }
  HWY_UNROLL(4)
  for (int32_t i = 0; i < 4; ++i) {
    for (int32_t v = 0; v < kVectors; ++v) {
      hn::Store(sum[i][v], d, rows + i * stride + v * kLanes);
    }
  }
}

// rows [4][stride] += sum over m of left[m][0..3] right[m]. left advances by left_stride per m.
inline void update_rows(const float* HWY_RESTRICT left, int32_t left_stride,
                        const float* HWY_RESTRICT right, int32_t count, int32_t stride,
                        float* HWY_RESTRICT rows) {
  int32_t vectors = stride / kLanes;
  while (vectors > 4 || vectors == 3) {  // three and a rest of twos use the registers best
    update_block<3>(left, left_stride, right, count, stride, rows);
    right += 3 * kLanes;
    rows += 3 * kLanes;
    vectors -= 3;
  }
  for (; vectors >= 2; vectors -= 2) {
    update_block<2>(left, left_stride, right, count, stride, rows);
    right += 2 * kLanes;
    rows += 2 * kLanes;
  }
  if (vectors == 1) update_block<1>(left, left_stride, right, count, stride, rows);
}

// keys[c][i] = sum_j state[i][j] values[c][j] for kCount vectors c and k_dim rows, kRows at a time:
// four rows by up to three vectors, or two by four.
template <int32_t kRows, int32_t kCount>
HWY_INLINE void times_group(const float* HWY_RESTRICT state, int32_t k_dim, int32_t stride,
                            const float* HWY_RESTRICT values, int32_t key_stride,
                            float* HWY_RESTRICT keys) {
  static_assert(kRows == 4 || (kRows == 2 && kCount % 2 == 0));
  const FloatTag d;
  const hn::FixedTag<float, 4> block;
  for (int32_t i = 0; i < k_dim; i += kRows) {
    const float* row = state + static_cast<int64_t>(i) * stride;
    const float* value = values;
    FloatVec sum[kCount][kRows];
    HWY_UNROLL(4)
    for (int32_t c = 0; c < kCount; ++c) {
      for (int32_t r = 0; r < kRows; ++r) sum[c][r] = hn::Zero(d);
    }
    LEAPQUANT_CPU_UNROLL_TWICE
    for (int32_t j = 0; j < stride; j += kLanes) {
      FloatVec u[kCount];
      HWY_UNROLL(4)
      for (int32_t c = 0; c < kCount; ++c) {
        u[c] = in_register(hn::Load(d, value + c * stride));
      }
      HWY_UNROLL(4)
      for (int32_t r = 0; r < kRows; ++r) {
        const auto x = in_register(hn::Load(d, row + r * stride));
        HWY_UNROLL(4)
        for (int32_t c = 0; c < kCount; ++c) sum[c][r] = hn::MulAdd(x, u[c], sum[c][r]);
      }
      row += kLanes;
      value += kLanes;
    }
    if constexpr (kRows == 4) {
      HWY_UNROLL(4)
      for (int32_t c = 0; c < kCount; ++c) {
        hn::Store(sum_four(sum[c][0], sum[c][1], sum[c][2], sum[c][3]), block,
                  keys + c * key_stride + i);
      }
    } else {
      const hn::FixedTag<float, 2> pair;
      HWY_UNROLL(2)
      for (int32_t c = 0; c < kCount; c += 2) {
        const auto four = sum_four(sum[c][0], sum[c][1], sum[c + 1][0], sum[c + 1][1]);
        hn::StoreU(hn::LowerHalf(pair, four), pair, keys + c * key_stride + i);
        hn::StoreU(hn::UpperHalf(pair, four), pair, keys + (c + 1) * key_stride + i);
      }
    }
  }
}

// values[c][j] = sum_i state[i][j] keys[c][i] for kCount vectors c.
template <int32_t kCount, int32_t kVectors>
HWY_INLINE void transposed_group(const float* HWY_RESTRICT state, int32_t k_dim, int32_t stride,
                                 const float* HWY_RESTRICT keys, int32_t key_stride,
                                 float* HWY_RESTRICT values) {
  const FloatTag d;
  FloatVec sum[kCount][kVectors];
  HWY_UNROLL(8)
  for (int32_t c = 0; c < kCount; ++c) {
    for (int32_t v = 0; v < kVectors; ++v) sum[c][v] = hn::Zero(d);
  }
  LEAPQUANT_CPU_UNROLL_TWICE
  for (int32_t i = 0; i < k_dim; ++i) {
    FloatVec x[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) x[v] = in_register(hn::Load(d, state + v * kLanes));
    HWY_UNROLL(8)
    for (int32_t c = 0; c < kCount; ++c) {
      const auto k = hn::Set(d, keys[c * key_stride + i]);
      for (int32_t v = 0; v < kVectors; ++v) sum[c][v] = hn::MulAdd(k, x[v], sum[c][v]);
    }
    state += stride;
  }
  HWY_UNROLL(8)
  for (int32_t c = 0; c < kCount; ++c) {
    for (int32_t v = 0; v < kVectors; ++v) {
      hn::Store(sum[c][v], d, values + c * stride + v * kLanes);
    }
  }
}

// Splits `rank` vectors into groups of at most kMost, as even as they come, and calls the group
// kernel of that many: kernel(first vector, std::integral_constant of the size).
template <int32_t kMost, class Kernel>
HWY_INLINE void for_groups(int32_t rank, const Kernel& kernel) {
  const int32_t groups = (rank + kMost - 1) / kMost;
  int32_t first = 0;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t last = (g + 1) * rank / groups;
    switch (last - first) {
      case 1:
        kernel(first, std::integral_constant<int32_t, 1>());
        break;
      case 2:
        kernel(first, std::integral_constant<int32_t, 2>());
        break;
      case 3:
        kernel(first, std::integral_constant<int32_t, 3>());
        break;
      default:
        if constexpr (kMost > 3) {
          if (last - first == 4) kernel(first, std::integral_constant<int32_t, 4>());
        }
        if constexpr (kMost > 4) {
          if (last - first == 5) kernel(first, std::integral_constant<int32_t, 5>());
        }
    }
    first = last;
  }
}

// Rows of the state that stay in the first cache level while all vectors pass over them.
inline constexpr int32_t kRowBlock = 16;

// keys [rank][padded(K)] = state values, values [rank][stride].
inline void state_times(const float* state, int32_t k_dim, int32_t stride, const float* values,
                        int32_t rank, float* keys) {
  const int32_t key_stride = padded(k_dim);
  for (int32_t i = 0; i < k_dim; i += kRowBlock) {
    const int32_t rows = k_dim - i < kRowBlock ? k_dim - i : kRowBlock;
    const float* part = state + static_cast<int64_t>(i) * stride;
    if (rank % 4 == 0) {
      for (int32_t c = 0; c < rank; c += 4) {
        times_group<2, 4>(part, rows, stride, values + c * stride, key_stride,
                          keys + c * key_stride + i);
      }
      continue;
    }
    for_groups<3>(rank, [&](int32_t first, auto size) {
      times_group<4, decltype(size)::value>(part, rows, stride, values + first * stride, key_stride,
                                            keys + first * key_stride + i);
    });
  }
}

// kVectors vectors of columns of transposed_times.
template <int32_t kVectors>
HWY_INLINE void transposed_columns(const float* state, int32_t k_dim, int32_t stride,
                                   const float* keys, int32_t rank, float* values) {
  const int32_t key_stride = padded(k_dim);
  constexpr int32_t kMost = kVectors == 3 ? 4 : 5;
  for_groups<kMost>(rank, [&](int32_t first, auto size) {
    transposed_group<decltype(size)::value, kVectors>(
        state, k_dim, stride, keys + first * key_stride, key_stride, values + first * stride);
  });
}

// values [rank][stride] = state^T keys. Columns outside: their part of the state stays in the first
// cache level.
inline void transposed_times(const float* state, int32_t k_dim, int32_t stride, const float* keys,
                             int32_t rank, float* values) {
  int32_t j = 0;
  int32_t vectors = stride / kLanes;
  // Three by four where the rank divides by four, else two by five.
  for (; rank % 4 == 0 && (vectors > 4 || vectors == 3); vectors -= 3, j += 3 * kLanes) {
    transposed_columns<3>(state + j, k_dim, stride, keys, rank, values + j);
  }
  for (; vectors >= 2; vectors -= 2, j += 2 * kLanes) {
    transposed_columns<2>(state + j, k_dim, stride, keys, rank, values + j);
  }
  if (vectors == 1) transposed_columns<1>(state + j, k_dim, stride, keys, rank, values + j);
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
