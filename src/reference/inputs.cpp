// SPDX-License-Identifier: Apache-2.0
//
// Strides, gates and normalisation. A stride of 0 means packed behind the axis inside it.
#include "reference/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/numeric.h"

namespace leapquant::reference {
namespace {

int64_t element_bytes(int32_t type) { return type == LEAPQUANT_FP32 ? 4 : 2; }

double load_element(const std::byte* at, int32_t type) {
  if (type == LEAPQUANT_FP32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, at, 2);
  return type == LEAPQUANT_FP16 ? fp16_to_float(half) : bf16_to_float(half);
}

int64_t stride_or(int64_t given, int64_t packed) { return given != 0 ? given : packed; }

// `count` elements at (sequence, token, sub-step, head). heads and sub_steps are the axes' lengths,
// for packed strides; heads = 0: the last axis itself holds the heads.
std::vector<double> load_row(const leapquant_tensor& tensor, const TokenAxis& axis, int64_t token,
                             int64_t sub_steps, int64_t sub_step, int64_t heads, int64_t head,
                             int64_t count) {
  const int64_t size = element_bytes(tensor.type);
  const int64_t head_stride = heads == 0 ? 0 : stride_or(tensor.head_stride_bytes, count * size);
  const int64_t inner = heads == 0 ? count * size : heads * head_stride;
  const int64_t sub_step_stride =
      sub_steps == 0 ? 0 : stride_or(tensor.sub_step_stride_bytes, inner);
  const int64_t token_inner = sub_steps == 0 ? inner : sub_steps * sub_step_stride;
  const int64_t token_stride = stride_or(tensor.token_stride_bytes, token_inner);
  const int64_t sequence_stride =
      stride_or(tensor.sequence_stride_bytes, axis.tokens * token_stride);
  const std::byte* row = static_cast<const std::byte*>(tensor.data) +
                         axis.sequence * sequence_stride + token * token_stride +
                         sub_step * sub_step_stride + head * head_stride;
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = load_element(row + i * size, tensor.type);
  }
  return values;
}

std::vector<double> load_q(const Layout& layout, const leapquant_inputs& inputs,
                           const TokenAxis& axis, int64_t token, int32_t k_head) {
  return load_row(inputs.q, axis, token, 0, 0, layout.shape.num_k_heads, k_head,
                  layout.shape.head_k_dim);
}

// k or read_key.
std::vector<double> load_key(const Layout& layout, const leapquant_tensor& tensor,
                             const TokenAxis& axis, int64_t token, int32_t sub_step,
                             int32_t k_head) {
  return load_row(tensor, axis, token, layout.shape.sub_steps, sub_step, layout.shape.num_k_heads,
                  k_head, layout.shape.head_k_dim);
}

std::vector<double> load_v(const Layout& layout, const leapquant_inputs& inputs,
                           const TokenAxis& axis, int64_t token, int32_t sub_step, int32_t v_head) {
  return load_row(inputs.v, axis, token, layout.shape.sub_steps, sub_step, layout.shape.num_v_heads,
                  v_head, layout.shape.head_v_dim);
}

// All heads' raw step sizes of a sub-step.
std::vector<double> load_beta(const Layout& layout, const leapquant_inputs& inputs,
                              const TokenAxis& axis, int64_t token, int32_t sub_step) {
  return load_row(inputs.beta, axis, token, layout.shape.sub_steps, sub_step, 0, 0,
                  layout.shape.num_v_heads);
}

bool has_log_decay(const Layout& layout) {
  return layout.shape.decay == LEAPQUANT_DECAY_SCALAR ||
         layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
}

// Raw gate inputs of one head: one entry, or K.
std::vector<double> load_gate(const Layout& layout, const leapquant_inputs& inputs,
                              const TokenAxis& axis, int64_t token, int32_t v_head) {
  if (layout.shape.decay == LEAPQUANT_DECAY_VECTOR) {
    return load_row(inputs.log_decay, axis, token, 0, 0, layout.shape.num_v_heads, v_head,
                    layout.shape.head_k_dim);
  }
  const std::vector<double> heads =
      load_row(inputs.log_decay, axis, token, 0, 0, 0, 0, layout.shape.num_v_heads);
  return {heads[static_cast<size_t>(v_head)]};
}

// 1 / (1 + e^-x) without overflow.
double sigmoid(double x) {
  if (x >= 0.0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

// Log decay of one raw gate input. A factor of exactly zero wins over an infinite one: a gate that
// is shut stays shut.
double log_decay_of(const Layout& layout, const leapquant_inputs& inputs, double x, int32_t v_head,
                    int32_t channel) {
  if (inputs.gate == LEAPQUANT_GATE_READY) return x;
  const bool vector = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
  const int64_t bias_index =
      vector ? int64_t{v_head} * layout.shape.head_k_dim + channel : int64_t{v_head};
  const double shifted = x + (inputs.dt_bias != nullptr ? inputs.dt_bias[bias_index] : 0.0f);
  const double rate = std::exp(static_cast<double>(inputs.a_log[v_head]));
  if (inputs.gate == LEAPQUANT_GATE_SOFTPLUS) {
    const double softplus = shifted > 20.0 ? shifted : std::log1p(std::exp(shifted));
    if (softplus == 0.0 || rate == 0.0) return 0.0;
    return -rate * softplus;
  }
  const double product = shifted == 0.0 || rate == 0.0 ? 0.0 : rate * shifted;
  return static_cast<double>(inputs.lower_bound) * sigmoid(product);
}

double beta_of(const leapquant_inputs& inputs, double x) {
  if (inputs.beta_kind != LEAPQUANT_BETA_SIGMOID) return x;
  const double scale = inputs.beta_scale == 0.0f ? 1.0 : static_cast<double>(inputs.beta_scale);
  return scale * sigmoid(x);
}

void normalise(const leapquant_inputs& inputs, std::vector<double>* x) {
  if (inputs.qk_l2norm == 0) return;
  double sum = inputs.l2norm_eps == 0.0f ? 1e-6 : static_cast<double>(inputs.l2norm_eps);
  for (double entry : *x) sum += entry * entry;
  for (double& entry : *x) entry /= std::sqrt(sum);
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

Status check_keys(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                  int64_t token) {
  bool finite = true;
  for (int32_t h = 0; h < layout.shape.num_k_heads; ++h) {
    finite = finite && all_finite(load_q(layout, inputs, axis, token, h));
    for (int32_t j = 0; j < layout.shape.sub_steps; ++j) {
      finite = finite && all_finite(load_key(layout, inputs.k, axis, token, j, h));
      if (inputs.read_key.data != nullptr) {
        finite = finite && all_finite(load_key(layout, inputs.read_key, axis, token, j, h));
      }
    }
  }
  return finite ? LEAPQUANT_OK : LEAPQUANT_NON_FINITE_INPUT;
}

Status check_values(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                    int64_t token) {
  bool finite = true;
  for (int32_t j = 0; j < layout.shape.sub_steps; ++j) {
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      finite = finite && all_finite(load_v(layout, inputs, axis, token, j, h));
    }
    if (inputs.beta.data != nullptr) {
      finite = finite && all_finite(load_beta(layout, inputs, axis, token, j));
    }
  }
  return finite ? LEAPQUANT_OK : LEAPQUANT_NON_FINITE_INPUT;
}

Status check_gates(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                   int64_t token) {
  if (!has_log_decay(layout)) return LEAPQUANT_OK;
  Status status = LEAPQUANT_OK;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const std::vector<double> raw = load_gate(layout, inputs, axis, token, h);
    for (size_t c = 0; c < raw.size(); ++c) {
      const bool ready = inputs.gate == LEAPQUANT_GATE_READY;
      if (!ready && !std::isfinite(raw[c])) return LEAPQUANT_NON_FINITE_INPUT;
      const double g = log_decay_of(layout, inputs, raw[c], h, static_cast<int32_t>(c));
      if (std::isnan(g)) return LEAPQUANT_NON_FINITE_INPUT;
      if (g > 0.0) status = LEAPQUANT_POSITIVE_LOG_DECAY;
    }
  }
  return status;
}

}  // namespace

Token load_token(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                 int64_t token, int32_t v_head) {
  const int32_t k_head = v_head / layout.group;
  const auto k_dim = static_cast<size_t>(layout.shape.head_k_dim);
  Token result;
  result.q = load_q(layout, inputs, axis, token, k_head);
  normalise(inputs, &result.q);
  const double q_scale = inputs.q_scale == 0.0f ? 1.0 : static_cast<double>(inputs.q_scale);
  for (double& x : result.q) x *= q_scale;

  for (int32_t j = 0; j < layout.shape.sub_steps; ++j) {
    result.k.push_back(load_key(layout, inputs.k, axis, token, j, k_head));
    normalise(inputs, &result.k.back());
    if (inputs.read_key.data != nullptr) {
      result.b.push_back(load_key(layout, inputs.read_key, axis, token, j, k_head));
      normalise(inputs, &result.b.back());
    }
    result.v.push_back(load_v(layout, inputs, axis, token, j, v_head));
    result.beta.push_back(inputs.beta.data == nullptr
                              ? 1.0
                              : beta_of(inputs, load_beta(layout, inputs, axis, token,
                                                          j)[static_cast<size_t>(v_head)]));
  }

  result.log_decay.assign(k_dim, 0.0);
  if (layout.shape.decay == LEAPQUANT_DECAY_CONSTANT) {
    result.log_decay.assign(k_dim, layout.decays[static_cast<size_t>(v_head)]);
  } else if (has_log_decay(layout)) {
    const std::vector<double> raw = load_gate(layout, inputs, axis, token, v_head);
    for (size_t c = 0; c < k_dim; ++c) {
      result.log_decay[c] = log_decay_of(layout, inputs, raw[raw.size() == 1 ? 0 : c], v_head,
                                         static_cast<int32_t>(c));
    }
  }
  return result;
}

Status check_inputs(const Layout& layout, const leapquant_inputs& inputs, const TokenAxis& axis,
                    int64_t first, int64_t count) {
  Status gates = LEAPQUANT_OK;
  for (int64_t token = first; token < first + count; ++token) {
    if (Status s = check_keys(layout, inputs, axis, token)) return s;
    if (Status s = check_values(layout, inputs, axis, token)) return s;
    const Status s = check_gates(layout, inputs, axis, token);
    if (s == LEAPQUANT_NON_FINITE_INPUT) return s;
    if (s != LEAPQUANT_OK) gates = s;
  }
  return gates;
}

void add_hooks(const Layout& layout, const leapquant_inputs& inputs, const Token& token,
               int32_t v_head, double* o) {
  double weight = inputs.skip != nullptr ? static_cast<double>(inputs.skip[v_head]) : 0.0;
  if (inputs.bonus != nullptr) {
    const float* bonus = inputs.bonus + int64_t{v_head} * layout.shape.head_k_dim;
    for (size_t i = 0; i < token.q.size(); ++i) {
      weight += token.q[i] * static_cast<double>(bonus[i]) * token.k[0][i];
    }
  }
  for (size_t c = 0; c < token.v[0].size(); ++c) o[c] += weight * token.v[0][c];
}

void store_output(const Layout& layout, const leapquant_output& output, const TokenAxis& axis,
                  int64_t token, int32_t v_head, const double* o) {
  const int64_t size = element_bytes(output.type);
  const int64_t count = layout.shape.head_v_dim;
  const int64_t head_stride = stride_or(output.head_stride_bytes, count * size);
  const int64_t token_stride =
      stride_or(output.token_stride_bytes, layout.shape.num_v_heads * head_stride);
  const int64_t sequence_stride =
      stride_or(output.sequence_stride_bytes, axis.tokens * token_stride);
  std::byte* row = static_cast<std::byte*>(output.data) + axis.sequence * sequence_stride +
                   token * token_stride + v_head * head_stride;
  bool saturated = false;
  for (int64_t i = 0; i < count; ++i) {
    const float value = o == nullptr ? 0.0f : static_cast<float>(o[i]);
    if (output.type == LEAPQUANT_FP32) {
      std::memcpy(row + i * size, &value, 4);
    } else {
      const uint16_t half = output.type == LEAPQUANT_FP16
                                ? float_to_fp16_saturated(value, &saturated)
                                : float_to_bf16(value);
      std::memcpy(row + i * size, &half, 2);
    }
  }
}

}  // namespace leapquant::reference
