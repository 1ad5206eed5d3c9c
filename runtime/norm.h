// SPDX-License-Identifier: Apache-2.0
//
// Root-mean-square norms. Those of the residual stream and of queries and keys store weight - 1
// ("zero-centred"), the gated one of linear layers its plain weight.
#ifndef LEAPQUANT_RUNTIME_NORM_H_
#define LEAPQUANT_RUNTIME_NORM_H_

#include <cstdint>
#include <vector>

#include "runtime/safetensors.h"
#include "runtime/threads.h"

namespace leapquant::runtime {

enum class NormWeight { kPlain, kZeroCentred };

class RmsNorm {
 public:
  RmsNorm() = default;
  RmsNorm(const TensorView& weight, double eps, NormWeight kind);

  std::int64_t size() const { return static_cast<std::int64_t>(factor_.size()); }
  float eps() const { return eps_; }
  // What multiplies the normalised value, [size].
  const float* factor() const { return factor_.data(); }

  // y = x / sqrt(mean(x^2) + eps) * factor for one row; y may be x.
  void apply_row(const float* x, float* y) const;
  void apply(const Threads& threads, const float* x, std::int64_t rows, float* y) const;

 private:
  std::vector<float> factor_;
  float eps_ = 0;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_NORM_H_
