// SPDX-License-Identifier: Apache-2.0
//
// What happens to rows of activations between the products: embedding, norms, SwiGLU. Pointers are
// device memory; `element` is the type of the activations, the residual stream is FP32. A row's
// values do not depend on the rows beside it.
#ifndef LEAPQUANT_RUNTIME_CUDA_ROWS_H_
#define LEAPQUANT_RUNTIME_CUDA_ROWS_H_

#include <cstdint>

#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

// Whether the current device has code of this program: the error of asking for it.
cudaError_t find_kernels();

// hidden [rows, size]: rows of the table [.., size] by token.
void look_up(cudaStream_t stream, const void* table, Element element, const std::int32_t* tokens,
             std::int64_t rows, std::int64_t size, float* hidden);

// y [rows, size] = x / sqrt(mean(x^2) + eps) * factor. Row r is picked[r] of x, or r where picked
// is null.
void rms_norm(cudaStream_t stream, const float* x, const std::int32_t* picked, std::int64_t rows,
              std::int64_t size, const float* factor, float eps, void* y, Element element);

// y [rows, heads, size] = rms_norm(o) gate(z), head by head; z's rows begin z_stride elements
// apart. gate is silu, or sigmoid.
struct GatedNorm {
  const void* o;  // [rows, heads, size]
  const void* z;
  std::int64_t z_stride;
  std::int64_t rows, heads, size;
  const float* factor;  // [size]
  float eps;
  bool sigmoid_gate;
  void* y;
};
void gated_rms_norm(cudaStream_t stream, const GatedNorm& norm, Element element);

// What a layer's recurrence takes, [rows, heads] each, from inputs whose rows begin `stride`
// elements apart: log_decay = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b).
struct Gates {
  const void* a;
  const void* b;
  std::int64_t stride;
  std::int64_t rows, heads;
  const float* a_log;    // [heads]
  const float* dt_bias;  // [heads]
  float* log_decay;
  float* beta;
};
void form_gates(cudaStream_t stream, const Gates& gates, Element element);

// y [rows, width] = silu(gate) up, from rows [gate | up].
void swiglu(cudaStream_t stream, const void* gate_up, std::int64_t rows, std::int64_t width,
            void* y, Element element);

// Even values in (-scale, scale) around `centre`, by a counter: the same for a seed everywhere.
void fill_random(cudaStream_t stream, void* values, Element element, std::int64_t count,
                 std::uint64_t seed, float centre, float scale);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_ROWS_H_
