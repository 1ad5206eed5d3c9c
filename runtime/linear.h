// SPDX-License-Identifier: Apache-2.0
//
// Weight matrices and the embedding, read in place from the mapped files, and products with them
// spread over threads. There are no biases in this family of models.
#ifndef LEAPQUANT_RUNTIME_LINEAR_H_
#define LEAPQUANT_RUNTIME_LINEAR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kernels/products.h"
#include "runtime/safetensors.h"
#include "runtime/threads.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

// [outputs, inner] as BF16, F16 or F32; a view.
class Linear {
 public:
  Linear() = default;
  // The tensor must have two dimensions and one of these types. Throws Error.
  explicit Linear(const TensorView& tensor);

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inner() const { return inner_; }
  std::int64_t bytes() const { return bytes_; }
  const void* data() const { return data_; }
  kernels::WeightType type() const { return type_; }

  // y[r, n] for n in first..last-1 of all rows, on the calling thread; y has outputs() per row.
  void multiply_part(const float* x, std::int64_t rows, std::int64_t first, std::int64_t last,
                     float* y) const {
    kernels::multiply_rows(x, inner_, rows, data_, type_, inner_, first, last, y, outputs_);
  }

 private:
  const void* data_ = nullptr;
  kernels::WeightType type_ = kernels::WeightType::kBf16;
  std::int64_t outputs_ = 0;
  std::int64_t inner_ = 0;
  std::int64_t bytes_ = 0;
};

// y [rows, weights->outputs()] = x [rows, inner] times the transposed weights.
struct Product {
  const Linear* weights = nullptr;
  float* y = nullptr;
};

// Products of one x with several matrices of the same inner size, in one go over the threads. Every
// value is bitwise independent of rows and threads (kernels/products.h).
void multiply(const Threads& threads, const float* x, std::int64_t rows,
              std::span<const Product> products);
inline void multiply(const Threads& threads, const float* x, std::int64_t rows,
                     const Linear& weights, float* y) {
  const Product product{&weights, y};
  multiply(threads, x, rows, std::span(&product, 1));
}

// Outputs per task when `outputs` outputs of `inner` weights each are spread over threads.
std::int64_t outputs_per_task(const Threads& threads, std::int64_t outputs, std::int64_t inner);

// Rows of a [vocab_size, hidden_size] matrix by token.
class Embedding {
 public:
  Embedding() = default;
  explicit Embedding(const TensorView& tensor) : table_(tensor) {}
  std::int64_t vocab_size() const { return table_.outputs(); }
  const Linear& table() const { return table_; }
  // ids must lie in [0, vocab_size); hidden: [tokens, hidden_size].
  void look_up(std::span<const TokenId> tokens, float* hidden) const;

 private:
  Linear table_;
};

// A small tensor as FP32, for vectors that every row needs. Throws Error when a value is not
// finite.
std::vector<float> to_floats(const TensorView& tensor);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_LINEAR_H_
