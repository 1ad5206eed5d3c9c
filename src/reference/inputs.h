// SPDX-License-Identifier: Apache-2.0
//
// The caller's tensors as FP64 values of one token and value head: gates, normalisation and step
// sizes applied. Also the check of a sequence's inputs and the writing of outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout.h"

namespace leapquant::reference {

// Where tokens lie. Decode: sequence and token in it, tokens = T of the tensors. Prefill: sequence
// 0 and the token's place on the packed axis.
struct TokenAxis {
  int64_t sequence = 0;
  int64_t tokens = 0;
};

// One token as one value head sees it. k, b, v, beta by sub-step.
struct Token {
  std::vector<double> q;               // [K] normalised and scaled
  std::vector<std::vector<double>> k;  // [n][K] write keys
  std::vector<std::vector<double>> b;  // [n][K] read keys as given, or empty: the default
  std::vector<std::vector<double>> v;  // [n][V]
  std::vector<double> beta;            // [n]
  std::vector<double> log_decay;       // [K], <= 0, may be -inf
};

Token load_token(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                 int64_t token, int32_t v_head);

// OK, NON_FINITE_INPUT or POSITIVE_LOG_DECAY for `count` tokens from `first`, all heads. A
// non-finite input anywhere goes before a positive log decay.
Status check_inputs(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                    int64_t first, int64_t count);

// Adds the output hooks (bonus, skip) to o [V].
void add_hooks(const Layout& layout, const leapquant_inputs& inputs, const Token& token,
               int32_t v_head, double* o);

// Rounds o [V] into the output row of one token and head; null writes zeros.
void store_output(const Layout& layout, const leapquant_output& output, const TokenAxis& axis,
                  int64_t token, int32_t v_head, const double* o);

}  // namespace leapquant::reference
