// SPDX-License-Identifier: Apache-2.0
//
// Frequencies and angles of rotary.h.
#include "runtime/rotary.h"

#include <cmath>

namespace leapquant::runtime {

Rotary::Rotary(double theta, std::int64_t rotary_dim) {
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim);
    frequencies_.push_back(std::pow(theta, exponent));
  }
}

void Rotary::angles(std::int64_t position, float* cosines, float* sines) const {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace leapquant::runtime
