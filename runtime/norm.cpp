// SPDX-License-Identifier: Apache-2.0
//
// Norms over rows; the arithmetic is in kernels/rows.cpp.
#include "runtime/norm.h"

#include "runtime/kernels/rows.h"
#include "runtime/linear.h"

namespace leapquant::runtime {

RmsNorm::RmsNorm(const TensorView& weight, double eps, NormWeight kind)
    : factor_(to_floats(weight)), eps_(static_cast<float>(eps)) {
  if (kind == NormWeight::kZeroCentred) {
    for (float& value : factor_) value += 1.0f;
  }
}

void RmsNorm::apply_row(const float* x, float* y) const {
  kernels::rms_norm(x, factor_.data(), eps_, size(), y);
}

void RmsNorm::apply(const Threads& threads, const float* x, std::int64_t rows, float* y) const {
  const std::int64_t grain = 64 * 1024 / size() + 1;
  threads.run_rows(rows, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      apply_row(x + row * size(), y + row * size());
    }
  });
}

}  // namespace leapquant::runtime
