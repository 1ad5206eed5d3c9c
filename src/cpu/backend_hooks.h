// SPDX-License-Identifier: Apache-2.0
//
// The output hooks: what lies outside the general form, reduced to one number per token and head.
#pragma once

#include <cstdint>

#include "core/layout.h"

namespace leapquant::cpu {

inline bool has_value_hooks(const leapquant_inputs& inputs) {
  return inputs.bonus != nullptr || inputs.skip != nullptr;
}

// The factor of v_0 (without beta) in the output: <q . bonus, k_0> + skip. q [K] and k_0 [K] as
// prepared.
inline float hook_weight(const leapquant_inputs& inputs, int32_t v_head, int32_t k_dim,
                         const float* q, const float* first_key) {
  float weight = inputs.skip != nullptr ? inputs.skip[v_head] : 0.0f;
  if (inputs.bonus != nullptr) {
    const float* bonus = inputs.bonus + static_cast<int64_t>(v_head) * k_dim;
    float sum = 0.0f;
    for (int32_t i = 0; i < k_dim; ++i) sum += q[i] * bonus[i] * first_key[i];
    weight += sum;
  }
  return weight;
}

}  // namespace leapquant::cpu
