// SPDX-License-Identifier: Apache-2.0
//
// Products of activations with weights that stay in memory as the file has them: BF16, F16 or FP32,
// one row per output. One thread's part; linear.h spreads the outputs. It serves one row at memory
// speed and hundreds of rows at arithmetic speed, with the same sums.
#ifndef LEAPQUANT_RUNTIME_KERNELS_PRODUCTS_H_
#define LEAPQUANT_RUNTIME_KERNELS_PRODUCTS_H_

#include <cstdint>

namespace leapquant::runtime::kernels {

enum class WeightType { kBf16, kF16, kF32 };

// y[r, n] = sum over k of x[r, k] * w[n, k] for r in 0..rows-1 and n in first..last-1. w is
// [outputs, inner], dense; rows of x and y begin x_stride and y_stride floats apart. FP32
// throughout.
//
// Every sum is taken over the lanes of one vector accumulator, in ascending k, then over the lanes
// in a fixed order: y[r, n] is bitwise independent of rows, r, first and last.
void multiply_rows(const float* x, std::int64_t x_stride, std::int64_t rows, const void* weights,
                   WeightType type, std::int64_t inner, std::int64_t first, std::int64_t last,
                   float* y, std::int64_t y_stride);

// Row `row` of w [.., inner] as FP32.
void widen_row(const void* weights, WeightType type, std::int64_t row, std::int64_t inner,
               float* values);

}  // namespace leapquant::runtime::kernels

#endif  // LEAPQUANT_RUNTIME_KERNELS_PRODUCTS_H_
