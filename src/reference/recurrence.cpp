// SPDX-License-Identifier: Apache-2.0
//
// S <- Diag(a) S, then per sub-step u = beta (v - S^T b), S <- S + k u^T; o = S^T q.
#include "reference/recurrence.h"

#include <cmath>

namespace leapquant::reference {
namespace {

// state^T x.
std::vector<double> read(const Layout& layout, const double* state, const std::vector<double>& x) {
  const auto v_dim = static_cast<size_t>(layout.shape.head_v_dim);
  std::vector<double> y(v_dim, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t c = 0; c < v_dim; ++c) y[c] += x[i] * state[i * v_dim + c];
  }
  return y;
}

}  // namespace

std::vector<double> advance(const Layout& layout, const leapquant_inputs& inputs,
                            const Token& token, int32_t v_head, double* state) {
  const auto k_dim = static_cast<size_t>(layout.shape.head_k_dim);
  const auto v_dim = static_cast<size_t>(layout.shape.head_v_dim);
  const bool given_reads = !token.b.empty();
  const bool before_update = inputs.read_before_update != 0;

  std::vector<double> o;
  if (before_update) o = read(layout, state, token.q);
  std::vector<double> first_read;  // a given b_0 reads the state before the decay
  if (layout.shape.delta_rule != 0 && given_reads) first_read = read(layout, state, token.b[0]);

  for (size_t i = 0; i < k_dim; ++i) {
    const double a = std::exp(token.log_decay[i]);
    for (size_t c = 0; c < v_dim; ++c) state[i * v_dim + c] *= a;
  }
  for (size_t j = 0; j < token.k.size(); ++j) {
    std::vector<double> u = token.v[j];
    if (layout.shape.delta_rule != 0) {
      const std::vector<double> old =
          j == 0 && given_reads ? first_read
                                : read(layout, state, given_reads ? token.b[j] : token.k[j]);
      for (size_t c = 0; c < v_dim; ++c) u[c] -= old[c];
    }
    for (size_t i = 0; i < k_dim; ++i) {
      const double weight = token.beta[j] * token.k[j][i];
      for (size_t c = 0; c < v_dim; ++c) state[i * v_dim + c] += weight * u[c];
    }
  }

  if (!before_update) o = read(layout, state, token.q);
  add_hooks(layout, inputs, token, v_head, o.data());
  return o;
}

}  // namespace leapquant::reference
