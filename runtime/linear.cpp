// SPDX-License-Identifier: Apache-2.0
//
// How products are cut into tasks. The arithmetic is in kernels/products.cpp.
#include "runtime/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

// The kernel takes outputs in groups whose size divides this.
constexpr std::int64_t kOutputGroup = 24;
// Weights of a task, at least: below it, handing out tasks costs more than they do.
constexpr std::int64_t kLeastWeights = 32 * 1024;

kernels::WeightType weight_type(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kBF16:
      return kernels::WeightType::kBf16;
    case DType::kF16:
      return kernels::WeightType::kF16;
    case DType::kF32:
      return kernels::WeightType::kF32;
    default:
      throw Error(fmt::format("Tensor {} is {}; weights must be BF16, F16 or F32.",
                              in_quotes(tensor.name), describe(tensor.dtype, tensor.shape)));
  }
}

}  // namespace

Linear::Linear(const TensorView& tensor)
    : data_(tensor.data),
      type_(weight_type(tensor)),
      bytes_(static_cast<std::int64_t>(tensor.bytes)) {
  if (tensor.shape.size() != 2) {
    throw Error(fmt::format("Tensor {} is {}; a matrix was expected.", in_quotes(tensor.name),
                            describe(tensor.dtype, tensor.shape)));
  }
  outputs_ = tensor.shape[0];
  inner_ = tensor.shape[1];
}

std::int64_t outputs_per_task(const Threads& threads, std::int64_t outputs, std::int64_t inner) {
  if (threads.count() == 1) return std::max<std::int64_t>(outputs, 1);
  const std::int64_t even = (outputs + 4 * threads.count() - 1) / (4 * threads.count());
  const std::int64_t least = kLeastWeights / std::max<std::int64_t>(inner, 1) + 1;
  return (std::max(even, least) + kOutputGroup - 1) / kOutputGroup * kOutputGroup;
}

void multiply(const Threads& threads, const float* x, std::int64_t rows,
              std::span<const Product> products) {
  std::int64_t outputs = 0;
  for (const Product& product : products) outputs += product.weights->outputs();
  const std::int64_t part = outputs_per_task(threads, outputs, products.front().weights->inner());
  const auto parts_of = [part](const Product& product) {
    return (product.weights->outputs() + part - 1) / part;
  };
  std::int64_t tasks = 0;
  for (const Product& product : products) tasks += parts_of(product);
  threads.run(static_cast<std::int32_t>(tasks), [&](std::int32_t task, std::int32_t) {
    std::int64_t index = task;
    for (const Product& product : products) {
      const std::int64_t parts = parts_of(product);
      if (index < parts) {
        const std::int64_t first = index * part;
        const std::int64_t last = std::min(product.weights->outputs(), first + part);
        product.weights->multiply_part(x, rows, first, last, product.y);
        return;
      }
      index -= parts;
    }
  });
}

void Embedding::look_up(std::span<const TokenId> tokens, float* hidden) const {
  for (const TokenId token : tokens) {
    kernels::widen_row(table_.data(), table_.type(), token, table_.inner(), hidden);
    hidden += table_.inner();
  }
}

std::vector<float> to_floats(const TensorView& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  kernels::widen_row(tensor.data, weight_type(tensor), 0, tensor.elements(), values.data());
  for (const float value : values) {
    if (!std::isfinite(value)) {
      throw Error(fmt::format("Tensor {} holds {}; the file is damaged or the model diverged.",
                              in_quotes(tensor.name), value));
    }
  }
  return values;
}

}  // namespace leapquant::runtime
