// SPDX-License-Identifier: Apache-2.0
//
// What happens to activations between the products: norms, activation functions, the short
// convolution, rotation. Row by row, FP32, one thread; every element is bitwise independent of how
// many elements or rows stand beside it.
#ifndef LEAPQUANT_RUNTIME_KERNELS_ROWS_H_
#define LEAPQUANT_RUNTIME_KERNELS_ROWS_H_

#include <cstdint>

namespace leapquant::runtime::kernels {

// y = x / sqrt(mean(x^2) + eps) * factor, over `size` elements. y may be x.
void rms_norm(const float* x, const float* factor, float eps, std::int64_t size, float* y);

// o = rms_norm(o) * gate(z), elementwise; gate is silu, or sigmoid.
void gated_rms_norm(float* o, const float* z, const float* factor, float eps, std::int64_t size,
                    bool sigmoid_gate);

// x += y
void add(float* x, const float* y, std::int64_t size);
// gate = silu(gate) * up
void silu_multiply(float* gate, const float* up, std::int64_t size);
// x = x * sigmoid(gate)
void sigmoid_multiply(float* x, const float* gate, std::int64_t size);

// y[c] = silu(sum over j of taps[j * taps_stride + c] * inputs[j][c]), j ascending, for one token;
// inputs[num_taps - 1] is the token itself.
void convolve(const float* const* inputs, const float* taps, std::int64_t taps_stride,
              std::int64_t num_taps, std::int64_t channels, float* y);

// Turns pairs (x[i], x[i + half]), i < half, by the angles whose cosines and sines are given.
void rotate(float* x, const float* cosines, const float* sines, std::int64_t half);

// Rounds to BF16, nearest even; NaN stays NaN.
void narrow_to_bf16(const float* x, std::int64_t size, std::uint16_t* y);

}  // namespace leapquant::runtime::kernels

#endif  // LEAPQUANT_RUNTIME_KERNELS_ROWS_H_
