// SPDX-License-Identifier: Apache-2.0
//
// A full-attention layer of Qwen3.5: norm of queries and keys, partial rotary embedding, grouped
// causal attention over the KV cache, sigmoid output gate. It owns no cache.
#ifndef LEAPQUANT_RUNTIME_ATTENTION_H_
#define LEAPQUANT_RUNTIME_ATTENTION_H_

#include <cstdint>
#include <string>

#include "runtime/checkpoint.h"
#include "runtime/linear.h"
#include "runtime/model_config.h"
#include "runtime/norm.h"
#include "runtime/sequence.h"

namespace leapquant::runtime {

class Attention {
 public:
  // prefix: "model.layers.3.self_attn."; full_layer: index among the full-attention layers. Throws
  // Error for missing tensors and wrong shapes.
  Attention(const Checkpoint& checkpoint, const ModelConfig& config, const std::string& prefix,
            std::int32_t full_layer);

  // y [rows, hidden_size] from x [rows, hidden_size]; the rows' keys and values are appended to the
  // sequences' caches, which must have grown.
  void forward(const Pass& pass, const float* x, float* y) const;
  std::int64_t bytes() const;

 private:
  // Consecutive tokens of one segment and the query heads first_head .. of one key-value head.
  struct Task {
    const Segment* segment;
    std::int64_t kv_head;
    std::int64_t first_head;
    std::int64_t num_heads;
    std::int64_t first_token;
    std::int64_t num_tokens;
  };

  std::int64_t query_stride() const { return (gated_ ? 2 : 1) * head_dim_; }
  void prepare_row(const Pass& pass, const Segment& segment, std::int64_t row, float* queries,
                   float* keys, const float* values) const;
  void store(Sequence& sequence, std::int64_t token, std::int64_t head, const float* key,
             const float* value) const;
  void attend(const Pass& pass, const Task& task, std::int32_t worker, const float* queries,
              float* attended) const;

  std::int32_t full_layer_;
  std::int64_t num_heads_;
  std::int64_t num_kv_heads_;
  std::int64_t head_dim_;
  std::int64_t rotary_half_;
  bool gated_;
  Linear q_;
  Linear k_;
  Linear v_;
  RmsNorm q_norm_;
  RmsNorm k_norm_;
  Linear o_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_ATTENTION_H_
