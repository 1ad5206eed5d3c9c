// SPDX-License-Identifier: Apache-2.0
//
// See exact_state.h.
#include "lab/exact_state.h"

#include <algorithm>
#include <cmath>

#include "lab/parallel.h"
#include "lab/simd_clones.h"

namespace leapquant::lab {
namespace {

constexpr int kWidth = 16;

// One token for kWidth columns. state [keys, kWidth]; k, q [keys]; v, out [kWidth].
LEAPQUANT_LAB_CLONES
void step_columns(double* __restrict state, int keys, const float* __restrict k,
                  const float* __restrict q, const double* __restrict v, double decay, double beta,
                  double* __restrict out) {
  double read[kWidth] = {};
  for (int i = 0; i < keys; ++i) {
    const double key = k[i];
    for (int j = 0; j < kWidth; ++j) read[j] += state[i * kWidth + j] * key;
  }
  double u[kWidth];
  double sum[kWidth] = {};
  for (int j = 0; j < kWidth; ++j) u[j] = beta * (v[j] - decay * read[j]);
  for (int i = 0; i < keys; ++i) {
    const double key = k[i];
    const double query = q[i];
    for (int j = 0; j < kWidth; ++j) {
      const double s = decay * state[i * kWidth + j] + key * u[j];
      state[i * kWidth + j] = s;
      sum[j] += s * query;
    }
  }
  for (int j = 0; j < kWidth; ++j) out[j] = sum[j];
}

}  // namespace

ExactState::ExactState(const LayerShape& shape) : shape_(shape) {
  static_assert(kColumns == kWidth);
  state_.resize(static_cast<std::size_t>(shape.num_v_heads) * blocks() * shape.head_k_dim *
                kColumns);
}

void ExactState::advance_block(const LayerInputs& inputs, std::span<double> outputs, int v_head,
                               int block) {
  const int keys = shape_.head_k_dim;
  const int k_head = v_head / (shape_.num_v_heads / shape_.num_k_heads);
  const int first = block * kColumns;
  const int width = std::min(kColumns, shape_.head_v_dim - first);
  double* state =
      state_.data() + (static_cast<std::size_t>(v_head) * blocks() + block) * keys * kColumns;
  for (int t = 0; t < inputs.tokens; ++t) {
    const auto token = static_cast<std::size_t>(t);
    const float* k =
        inputs.k.data() + token * shape_.k_row() + static_cast<std::size_t>(k_head) * keys;
    const float* q =
        inputs.q.data() + token * shape_.k_row() + static_cast<std::size_t>(k_head) * keys;
    const std::size_t column = token * shape_.v_row() +
                               static_cast<std::size_t>(v_head) * shape_.head_v_dim +
                               static_cast<std::size_t>(first);
    const std::size_t gate =
        token * static_cast<std::size_t>(shape_.num_v_heads) + static_cast<std::size_t>(v_head);
    double v[kColumns] = {};
    double out[kColumns];
    for (int j = 0; j < width; ++j) v[j] = inputs.v[column + static_cast<std::size_t>(j)];
    step_columns(state, keys, k, q, v, std::exp(static_cast<double>(inputs.log_decay[gate])),
                 static_cast<double>(inputs.beta[gate]), out);
    std::copy_n(out, width, outputs.begin() + static_cast<std::ptrdiff_t>(column));
  }
}

void ExactState::advance(const LayerInputs& inputs, std::span<double> outputs, int threads) {
  for_each_index(shape_.num_v_heads * blocks(), threads, [&](int task) {
    advance_block(inputs, outputs, task / blocks(), task % blocks());
  });
}

std::vector<double> ExactState::matrix(int v_head) const {
  const auto columns = static_cast<std::size_t>(shape_.head_v_dim);
  std::vector<double> dense(static_cast<std::size_t>(shape_.head_k_dim) * columns);
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape_.head_k_dim); ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      const std::size_t block = static_cast<std::size_t>(v_head) * blocks() + j / kColumns;
      dense[i * columns + j] = state_[(block * shape_.head_k_dim + i) * kColumns + j % kColumns];
    }
  }
  return dense;
}

}  // namespace leapquant::lab
