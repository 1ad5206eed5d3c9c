// SPDX-License-Identifier: Apache-2.0
//
// Products of activations with weight matrices in device memory, through cuBLASLt: BF16 or FP32
// operands, FP32 sums (never TF32). The kernel for a shape is the first that cuBLASLt's own
// heuristic names, so a run repeats bit by bit on the same device and library.
#ifndef LEAPQUANT_RUNTIME_CUDA_PRODUCTS_H_
#define LEAPQUANT_RUNTIME_CUDA_PRODUCTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

// [outputs, inner] in device memory, in the model's element type; a view.
struct Matrix {
  const void* data = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inner = 0;
};

// Products of one stream; one call at a time.
class Products {
 public:
  // element: of weights and activations.
  Products(const Stream& stream, Element element);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // y [rows, outputs] = x [rows, inner] times the transposed weights; y in `type`.
  void multiply(const Matrix& weights, const void* x, std::int64_t rows, void* y, Element type);
  // y += the same; y is FP32.
  void multiply_add(const Matrix& weights, const void* x, std::int64_t rows, float* y);

 private:
  struct Plan;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, Element>;
  const Plan& plan(const Matrix& weights, std::int64_t rows, Element type);
  void run(const Matrix& weights, const void* x, std::int64_t rows, void* y, Element type,
           float old_share);

  const Stream& stream_;
  Element element_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_PRODUCTS_H_
