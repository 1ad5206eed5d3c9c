// SPDX-License-Identifier: Apache-2.0
//
// A Qwen3.5 dense text model: its weights as typed layers over the mapped files. It holds no state
// of any sequence and computes nothing by itself; batch.h runs it.
#ifndef LEAPQUANT_RUNTIME_MODEL_H_
#define LEAPQUANT_RUNTIME_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <variant>
#include <vector>

#include "runtime/attention.h"
#include "runtime/checkpoint.h"
#include "runtime/gated_delta_net.h"
#include "runtime/linear.h"
#include "runtime/mlp.h"
#include "runtime/model_config.h"
#include "runtime/norm.h"

namespace leapquant::runtime {

// h += mixer(input_norm(h)); h += mlp(post_norm(h)).
struct DecoderLayer {
  RmsNorm input_norm;
  std::variant<GatedDeltaNet, Attention> mixer;
  RmsNorm post_norm;
  Mlp mlp;
};

// Immutable; may be shared by several batches and threads.
class Model {
 public:
  // Maps the checkpoint in the folder and checks that every tensor the configuration needs is there
  // with the right shape and as BF16, F16 or F32. Matrices stay in the mapped files in the type
  // they have; vectors (norms, A_log, dt_bias, convolution taps) are copied to FP32. Throws Error.
  static Model load(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::filesystem::path& folder() const { return checkpoint_->folder(); }

  const Embedding& embedding() const { return embedding_; }
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const RmsNorm& final_norm() const { return final_norm_; }
  const Linear& head() const { return head_; }

  // Identifies the model in saved states and sessions: XXH3 over names, types, shapes and samples
  // of the bytes of all tensors of the text model, in name order. It does not depend on the split
  // into files or the prefix of the names.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // Bytes of weights that one decode step reads: all matrices and vectors once; of the embedding
  // only the rows that are looked up, unless it is also the head.
  std::int64_t weight_bytes_per_step() const { return weight_bytes_per_step_; }

 private:
  Model() = default;

  ModelConfig config_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  Embedding embedding_;
  std::vector<DecoderLayer> layers_;
  RmsNorm final_norm_;
  Linear head_;
  std::uint64_t fingerprint_ = 0;
  std::int64_t weight_bytes_per_step_ = 0;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MODEL_H_
