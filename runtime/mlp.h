// SPDX-License-Identifier: Apache-2.0
//
// The SwiGLU feed-forward part: down(silu(gate(x)) * up(x)).
#ifndef LEAPQUANT_RUNTIME_MLP_H_
#define LEAPQUANT_RUNTIME_MLP_H_

#include <cstdint>
#include <string>

#include "runtime/checkpoint.h"
#include "runtime/linear.h"
#include "runtime/model_config.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

namespace leapquant::runtime {

class Mlp {
 public:
  Mlp() = default;
  // prefix: "model.layers.3.mlp.". Throws Error for missing tensors and wrong shapes.
  Mlp(const Checkpoint& checkpoint, const ModelConfig& config, const std::string& prefix);

  // y [rows, hidden_size] from x [rows, hidden_size].
  void forward(const Threads& threads, Scratch& scratch, const float* x, std::int64_t rows,
               float* y) const;
  std::int64_t bytes() const { return gate_.bytes() + up_.bytes() + down_.bytes(); }

 private:
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MLP_H_
