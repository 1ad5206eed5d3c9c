// SPDX-License-Identifier: Apache-2.0
//
// Activations of a sequence, as FP32 arrays in the packed order of leapquant_inputs, and random
// ones.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/layout.h"

namespace leapquant::conformance {

// `count` tokens of one layer shape. Empty read_key, log_decay or beta: a null tensor.
struct Tokens {
  leapquant_shape shape = {};
  int32_t count = 0;
  std::vector<float> q;                                         // [count, HK, K]
  std::vector<float> k;                                         // [count, n, HK, K]
  std::vector<float> v;                                         // [count, n, HV, V]
  std::vector<float> read_key;                                  // [count, n, HK, K]
  std::vector<float> log_decay;                                 // [count, HV] or [count, HV, K]
  std::vector<float> beta;                                      // [count, n, HV]
  leapquant_inputs options = LEAPQUANT_INIT(leapquant_inputs);  // gates, hooks: no tensors
  std::vector<float> a_log, dt_bias, bonus, skip;

  int32_t decay_width() const;  // log decays per token: 0, HV or HV * K
  // Arguments that point into this object.
  leapquant_inputs inputs() const;
};

// Tokens first..first+count-1.
Tokens slice(const Tokens& tokens, int32_t first, int32_t count);
// Appends tokens of the same kind; `to` may be empty.
void append(Tokens* to, const Tokens& from);
// Appends `count` tokens whose every entry is NaN: what a backend must not read.
void append_poison(Tokens* to, const Tokens& like, int32_t count);

enum class Kind {
  kPlain,     // q, v ~ N(0,1), unit k, g ~ U(-0.1, 0), beta ~ U(0,1)
  kSlow,      // the same with g = -1e-4: a state that hardly forgets
  kOutliers,  // two value channels x20, keys with a common mean: a state of few large values
  kStrong,    // g in {0, -3, -5.5, -27.63, -90, -1000, -inf}, differing by channel
};

Tokens random_tokens(const leapquant_shape& shape, int32_t count, uint32_t seed,
                     Kind kind = Kind::kPlain);

// A normalised shape. group value heads per key head.
leapquant_shape make_shape(int32_t num_k_heads, int32_t num_v_heads, int32_t k_dim, int32_t v_dim,
                           leapquant_decay decay, bool delta_rule = true, int32_t sub_steps = 1,
                           int32_t max_tokens = 8);

}  // namespace leapquant::conformance
