// SPDX-License-Identifier: Apache-2.0
//
// The recurrence of Gated DeltaNet in FP64, straight from its definition: the truth that formats
// are measured against. It knows no windows and no formats.
#ifndef LEAPQUANT_LAB_EXACT_STATE_H_
#define LEAPQUANT_LAB_EXACT_STATE_H_

#include <span>
#include <vector>

#include "lab/layer_inputs.h"

namespace leapquant::lab {

// The state of one layer, zero at first. Per token and value head:
//   u = beta (v - exp(g) S^T k),  S <- exp(g) S + k u^T,  o = S^T q.
// Columns of S do not see each other, so the work goes through many tokens for a block of columns
// that stays in the first-level cache.
class ExactState {
 public:
  explicit ExactState(const LayerShape& shape);

  // Advances by all tokens of the inputs. outputs [tokens, num_v_heads, head_v_dim] in FP64.
  void advance(const LayerInputs& inputs, std::span<double> outputs, int threads);

  // Value head h as [head_k_dim, head_v_dim], rows of keys.
  std::vector<double> matrix(int v_head) const;
  const LayerShape& shape() const { return shape_; }

 private:
  static constexpr int kColumns = 16;  // 128 keys x 16 columns x 8 bytes = 16 KiB

  int blocks() const { return (shape_.head_v_dim + kColumns - 1) / kColumns; }
  void advance_block(const LayerInputs& inputs, std::span<double> outputs, int v_head, int block);

  LayerShape shape_;
  // [num_v_heads, blocks, head_k_dim, kColumns]; columns past head_v_dim stay zero.
  std::vector<double> state_;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_EXACT_STATE_H_
