// SPDX-License-Identifier: Apache-2.0
//
// The forward pass in the order of the published layer (Hugging Face Transformers, qwen3_5).
#include "runtime/gated_delta_net.h"

#include <cmath>

#include "runtime/kernels/rows.h"
#include "runtime/recorder.h"

namespace leapquant::runtime {
namespace {

// The gates as the library forms them, for the recorder only.
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

std::vector<StateRow> state_rows(std::span<const Segment> segments) {
  std::vector<StateRow> rows;
  for (const Segment& segment : segments) {
    rows.push_back({&segment.sequence->place, static_cast<std::int32_t>(segment.sequence->position),
                    static_cast<std::int32_t>(segment.rows)});
  }
  return rows;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const Checkpoint& checkpoint, const ModelConfig& config,
                             const std::string& prefix, std::int32_t linear_layer)
    : linear_layer_(linear_layer),
      key_dim_(config.linear_key_dim()),
      num_v_heads_(config.linear_num_value_heads),
      head_v_dim_(config.linear_value_head_dim),
      sigmoid_gate_(config.output_gate == OutputGate::kSigmoid),
      q_k_v_(checkpoint.require(prefix + "in_proj_qkv.weight",
                                {config.conv_dim(), config.hidden_size})),
      z_(checkpoint.require(prefix + "in_proj_z.weight",
                            {config.linear_value_dim(), config.hidden_size})),
      b_(checkpoint.require(prefix + "in_proj_b.weight",
                            {config.linear_num_value_heads, config.hidden_size})),
      a_(checkpoint.require(prefix + "in_proj_a.weight",
                            {config.linear_num_value_heads, config.hidden_size})),
      convolution_(checkpoint.require(prefix + "conv1d.weight",
                                      {config.conv_dim(), 1, config.linear_conv_kernel})),
      a_log_(to_floats(checkpoint.require(prefix + "A_log", {config.linear_num_value_heads}))),
      dt_bias_(to_floats(checkpoint.require(prefix + "dt_bias", {config.linear_num_value_heads}))),
      norm_(checkpoint.require(prefix + "norm.weight", {config.linear_value_head_dim}),
            config.rms_norm_eps, NormWeight::kPlain),
      out_(checkpoint.require(prefix + "out_proj.weight",
                              {config.hidden_size, config.linear_value_dim()})) {}

std::int64_t GatedDeltaNet::bytes() const {
  return q_k_v_.bytes() + z_.bytes() + b_.bytes() + a_.bytes() + out_.bytes();
}

void GatedDeltaNet::recur(const Pass& pass, const StateInputs& inputs) const {
  const std::int64_t conv_dim = convolution_.channels();
  const std::int64_t value_dim = num_v_heads_ * head_v_dim_;
  // The same inputs from the first row of a run of segments on.
  const auto from_row = [&](std::int64_t row) {
    StateInputs moved = inputs;
    moved.q_k_v += row * conv_dim;
    moved.decay_input += row * num_v_heads_;
    moved.beta_input += row * num_v_heads_;
    moved.output += row * value_dim;
    return moved;
  };
  std::size_t first = 0;
  while (first < pass.segments.size()) {
    std::size_t last = first + 1;
    const bool decode = pass.kind == PassKind::kDecode;
    const auto num_direct = static_cast<std::size_t>(pass.num_direct);
    const bool carried = !decode && first >= num_direct;
    if (decode) {
      while (last < pass.segments.size() && pass.segments[last].rows == pass.segments[first].rows) {
        ++last;
      }
    } else {
      last = carried ? pass.segments.size() : num_direct;
    }
    const auto run = pass.segments.subspan(first, last - first);
    const std::vector<StateRow> rows = state_rows(run);
    std::vector<std::int32_t> status(run.size(), LEAPQUANT_OK);
    const StateInputs moved = from_row(run.front().first_row);
    if (decode) {
      pass.states->decode(linear_layer_, rows, moved, status);
    } else {
      pass.states->prefill(linear_layer_, rows, moved, carried, status);
    }
    for (std::size_t i = 0; i < run.size(); ++i) {
      note_fault(*run[i].sequence, linear_layer_, status[i]);
    }
    first = last;
  }
}

void GatedDeltaNet::record(const Pass& pass, const StateInputs& inputs) const {
  const auto count = static_cast<std::size_t>(pass.rows * num_v_heads_);
  std::vector<float> log_decay(count);
  std::vector<float> beta(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t head = i % static_cast<std::size_t>(num_v_heads_);
    log_decay[i] = -std::exp(a_log_[head]) * softplus(inputs.decay_input[i] + dt_bias_[head]);
    beta[i] = sigmoid(inputs.beta_input[i]);
  }
  const std::span q_k_v(inputs.q_k_v,
                        static_cast<std::size_t>(pass.rows * convolution_.channels()));
  pass.recorder->append(linear_layer_, pass.rows, q_k_v, log_decay, beta);
}

void GatedDeltaNet::gate(const Pass& pass, float* o, const float* z) const {
  const std::int64_t heads = pass.rows * num_v_heads_;
  const std::int64_t grain = 8 * 1024 / head_v_dim_ + 1;
  pass.threads->run_rows(heads, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t head = first; head < last; ++head) {
      const std::int64_t at = head * head_v_dim_;
      kernels::gated_rms_norm(o + at, z + at, norm_.factor(), norm_.eps(), head_v_dim_,
                              sigmoid_gate_);
    }
  });
}

void GatedDeltaNet::forward(const Pass& pass, const float* x, float* y) const {
  Scratch& scratch = *pass.scratch;
  const std::int64_t rows = pass.rows;
  float* projected = scratch.projected.floats(rows * q_k_v_.outputs());
  float* z = scratch.gate_input.floats(rows * z_.outputs());
  float* b = scratch.beta_input.floats(rows * b_.outputs());
  float* a = scratch.decay_input.floats(rows * a_.outputs());
  const Product products[] = {{&q_k_v_, projected}, {&z_, z}, {&b_, b}, {&a_, a}};
  multiply(*pass.threads, x, rows, products);

  StateInputs inputs;
  float* convolved = scratch.convolved.floats(rows * q_k_v_.outputs());
  convolution_.forward(pass, linear_layer_, projected, convolved);
  inputs.q_k_v = convolved;
  inputs.decay_input = a;
  inputs.beta_input = b;
  inputs.a_log = a_log_.data();
  inputs.dt_bias = dt_bias_.data();
  inputs.output = scratch.read_out.floats(rows * z_.outputs());
  if (pass.recorder != nullptr) record(pass, inputs);
  recur(pass, inputs);

  gate(pass, inputs.output, z);
  multiply(*pass.threads, inputs.output, rows, out_, y);
}

}  // namespace leapquant::runtime
