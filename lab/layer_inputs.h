// SPDX-License-Identifier: Apache-2.0
//
// What a recurrent layer was given, token by token: the trace that drift replays in FP64 and in
// formats. It says nothing of where the trace comes from (a file or a running model).
#ifndef LEAPQUANT_LAB_LAYER_INPUTS_H_
#define LEAPQUANT_LAB_LAYER_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace leapquant::lab {

// One Gated DeltaNet layer: value head h uses key head h / (num_v_heads / num_k_heads).
struct LayerShape {
  int num_k_heads = 0;
  int num_v_heads = 0;
  int head_k_dim = 0;
  int head_v_dim = 0;
  bool operator==(const LayerShape&) const = default;
  std::size_t k_row() const { return static_cast<std::size_t>(num_k_heads) * head_k_dim; }
  std::size_t v_row() const { return static_cast<std::size_t>(num_v_heads) * head_v_dim; }
};

// Inputs of `tokens` consecutive tokens, FP32, packed. q and k as the recurrence uses them: l2
// normalised per head, q also scaled by head_k_dim^-1/2. log_decay is a natural log <= 0; beta is
// in 0..2.
struct LayerInputs {
  int tokens = 0;
  std::vector<float> q;          // [tokens, num_k_heads, head_k_dim]
  std::vector<float> k;          // [tokens, num_k_heads, head_k_dim]
  std::vector<float> v;          // [tokens, num_v_heads, head_v_dim]
  std::vector<float> log_decay;  // [tokens, num_v_heads]
  std::vector<float> beta;       // [tokens, num_v_heads]

  void resize(const LayerShape& shape, int num_tokens) {
    tokens = num_tokens;
    const auto n = static_cast<std::size_t>(num_tokens);
    q.resize(n * shape.k_row());
    k.resize(n * shape.k_row());
    v.resize(n * shape.v_row());
    log_decay.resize(n * static_cast<std::size_t>(shape.num_v_heads));
    beta.resize(n * static_cast<std::size_t>(shape.num_v_heads));
  }
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_LAYER_INPUTS_H_
