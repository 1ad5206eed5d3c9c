// SPDX-License-Identifier: Apache-2.0
//
// The joint short convolution of a linear layer: depthwise and causal over the channels of q, k and
// v, without bias, SiLU after it. Its state is the last kernel - 1 inputs.
#ifndef LEAPQUANT_RUNTIME_SHORT_CONVOLUTION_H_
#define LEAPQUANT_RUNTIME_SHORT_CONVOLUTION_H_

#include <cstdint>
#include <vector>

#include "runtime/safetensors.h"
#include "runtime/sequence.h"

namespace leapquant::runtime {

class ShortConvolution {
 public:
  ShortConvolution() = default;
  // weight: [channels, 1, taps]; the last tap multiplies the current token.
  explicit ShortConvolution(const TensorView& weight);

  std::int64_t channels() const { return channels_; }
  std::int64_t taps() const { return taps_; }

  // y [rows, channels] from x [rows, channels], the sequences' histories being those of
  // linear_layer; these are brought up to date.
  void forward(const Pass& pass, std::int64_t linear_layer, const float* x, float* y) const;

 private:
  void forward_channels(const Segment& segment, std::int64_t linear_layer, std::int64_t first,
                        std::int64_t last, const float* x, float* y) const;

  std::vector<float> weights_;  // [taps, channels]
  std::int64_t channels_ = 0;
  std::int64_t taps_ = 0;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SHORT_CONVOLUTION_H_
