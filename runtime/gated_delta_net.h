// SPDX-License-Identifier: Apache-2.0
//
// A linear-attention layer of Qwen3.5: projections, short convolution, the Gated DeltaNet
// recurrence (in the library), gated norm, output projection. It owns no state.
#ifndef LEAPQUANT_RUNTIME_GATED_DELTA_NET_H_
#define LEAPQUANT_RUNTIME_GATED_DELTA_NET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint.h"
#include "runtime/linear.h"
#include "runtime/model_config.h"
#include "runtime/norm.h"
#include "runtime/sequence.h"
#include "runtime/short_convolution.h"

namespace leapquant::runtime {

class GatedDeltaNet {
 public:
  // prefix: "model.layers.3.linear_attn."; linear_layer: index among the linear layers. Throws
  // Error for missing tensors and wrong shapes.
  GatedDeltaNet(const Checkpoint& checkpoint, const ModelConfig& config, const std::string& prefix,
                std::int32_t linear_layer);

  // y [rows, hidden_size] from x [rows, hidden_size]. Faults of single sequences are noted in them.
  void forward(const Pass& pass, const float* x, float* y) const;
  std::int64_t bytes() const;
  const ShortConvolution& convolution() const { return convolution_; }

 private:
  void recur(const Pass& pass, const StateInputs& inputs) const;
  void record(const Pass& pass, const StateInputs& inputs) const;
  void gate(const Pass& pass, float* o, const float* z) const;

  std::int32_t linear_layer_;
  std::int64_t key_dim_;
  std::int64_t num_v_heads_;
  std::int64_t head_v_dim_;
  bool sigmoid_gate_;
  Linear q_k_v_;
  Linear z_;
  Linear b_;
  Linear a_;
  ShortConvolution convolution_;
  std::vector<float> a_log_;
  std::vector<float> dt_bias_;
  RmsNorm norm_;
  Linear out_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_GATED_DELTA_NET_H_
