// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of the leading dims of a head, in half-rotation form: dim i turns with
// dim i + rotary_dim / 2 by position * theta^(-2 i / rotary_dim). For text, the three position rows
// of the multimodal form are equal and it reduces to this.
#ifndef LEAPQUANT_RUNTIME_ROTARY_H_
#define LEAPQUANT_RUNTIME_ROTARY_H_

#include <cstdint>
#include <vector>

namespace leapquant::runtime {

class Rotary {
 public:
  Rotary() = default;
  Rotary(double theta, std::int64_t rotary_dim);

  std::int64_t half() const { return static_cast<std::int64_t>(frequencies_.size()); }
  // Cosines and sines of one position, [half] each; angles are formed in FP64.
  void angles(std::int64_t position, float* cosines, float* sines) const;

 private:
  std::vector<double> frequencies_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_ROTARY_H_
