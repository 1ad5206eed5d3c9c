// SPDX-License-Identifier: Apache-2.0
//
// Keeps what the linear layers hand to the library during a run, for replay in other formats and in
// FP64. It changes nothing of the run.
#ifndef LEAPQUANT_RUNTIME_RECORDER_H_
#define LEAPQUANT_RUNTIME_RECORDER_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/model_config.h"

namespace leapquant::runtime {

// Inputs of one linear layer, tokens in order, FP32. q, k and v come out of the convolution: the
// library divides q and k by sqrt(sum x^2 + 1e-6) and multiplies q by head_k_dim^-1/2.
// log_decay and beta are final: -exp(A_log) softplus(a + dt_bias) and sigmoid(b).
struct LayerInputs {
  std::vector<float> q;          // [tokens, num_k_heads, head_k_dim]
  std::vector<float> k;          // [tokens, num_k_heads, head_k_dim]
  std::vector<float> v;          // [tokens, num_v_heads, head_v_dim]
  std::vector<float> log_decay;  // [tokens, num_v_heads]
  std::vector<float> beta;       // [tokens, num_v_heads]
};

// Records one sequence: a batch with a recorder feeds one sequence at a time.
class Recorder {
 public:
  explicit Recorder(const ModelConfig& config);

  std::int64_t num_tokens() const { return num_tokens_; }
  const std::vector<LayerInputs>& layers() const { return layers_; }
  // FP32 bytes kept per token over all linear layers.
  std::int64_t bytes_per_token() const;

  // Called by the linear layers. q_k_v: rows [q | k | v] of conv_dim; log_decay and beta
  // [tokens, num_v_heads].
  void append(std::int32_t linear_layer, std::int64_t tokens, std::span<const float> q_k_v,
              std::span<const float> log_decay, std::span<const float> beta);

  // A safetensors file with tensors `layers.I.q` and so on, I counted among all layers of the model
  // as in golden.safetensors, and the facts above as metadata. Throws Error.
  void write(const std::filesystem::path& path) const;

 private:
  ModelConfig config_;
  std::vector<std::int32_t> model_layer_;  // of each linear layer
  std::vector<LayerInputs> layers_;
  std::int64_t num_tokens_ = 0;
};

// Reads a file that write() made. model_layers receives the layers' numbers in the model; sizes are
// checked against each other. Throws Error.
struct Recording {
  std::int32_t num_k_heads = 0;
  std::int32_t num_v_heads = 0;
  std::int32_t head_k_dim = 0;
  std::int32_t head_v_dim = 0;
  std::int64_t num_tokens = 0;
  std::vector<std::int32_t> model_layers;
  std::vector<LayerInputs> layers;
};
Recording read_recording(const std::filesystem::path& path);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_RECORDER_H_
