// SPDX-License-Identifier: Apache-2.0
//
// A Qwen3.5 model's weights in device memory, laid out for few and large products: matrices that
// take the same input lie behind one another as one. It computes nothing.
#ifndef LEAPQUANT_RUNTIME_CUDA_WEIGHTS_H_
#define LEAPQUANT_RUNTIME_CUDA_WEIGHTS_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/checkpoint.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/products.h"
#include "runtime/model_config.h"

namespace leapquant::runtime::cuda {

class WeightSource;

struct LinearMixer {
  Matrix in;                 // [q, k, v | z | a | b]
  const float* convolution;  // [taps, conv_dim]
  const float* a_log;        // [num_v_heads]
  const float* dt_bias;      // [num_v_heads]
  const float* norm;         // [head_v_dim]
  Matrix out;
};

struct FullMixer {
  Matrix in;            // [queries (with gates) | keys | values]
  const float* q_norm;  // [head_dim]
  const float* k_norm;
  Matrix out;
};

struct Layer {
  const float* input_norm;
  const float* post_norm;
  std::variant<LinearMixer, FullMixer> mixer;
  std::int32_t index = 0;  // among the layers of its kind
  Matrix gate_up;          // [gate | up]
  Matrix down;
};

class Weights {
 public:
  // Throws Error when they do not fit, with the bytes, or the checkpoint lacks a tensor.
  static Weights load(const Checkpoint& checkpoint, const ModelConfig& config, Element element);
  // Values of a trained model's magnitude, made on the device: for measuring speed.
  static Weights random(const ModelConfig& config, Element element, std::uint64_t seed);

  Element element() const { return element_; }
  std::int64_t bytes() const { return memory_.bytes(); }
  // What one decode step reads: all but the embedding, of which only rows are looked up, unless it
  // is the head too.
  std::int64_t bytes_per_step() const { return bytes_per_step_; }
  const Matrix& embedding() const { return embedding_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }
  const Matrix& head() const { return head_; }

 private:
  class Builder;
  static Weights build(const ModelConfig& config, Element element, WeightSource& source);

  Element element_ = Element::kBf16;
  std::int64_t bytes_per_step_ = 0;
  DeviceMemory memory_;
  Matrix embedding_;
  std::vector<Layer> layers_;
  const float* final_norm_ = nullptr;
  Matrix head_;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_WEIGHTS_H_
