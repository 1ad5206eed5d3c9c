// SPDX-License-Identifier: Apache-2.0
//
// After a fault: which value of which input caused it. Only the sentence depends on this; the fault
// itself was found by the backend.
#include <cmath>

#include "capi/tensors.h"
#include "core/numeric.h"

namespace leapquant::capi {
namespace {

double load(const std::byte* at, int32_t type) {
  if (type == LEAPQUANT_FP32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return static_cast<double>(type == LEAPQUANT_FP16 ? fp16_to_float(half) : bf16_to_float(half));
}

// One tensor with the axes that it has.
struct Named {
  const char* name;
  const leapquant_tensor* tensor;
  int64_t sub_steps;
  int64_t heads;  // 1: heads lie on the contiguous axis
  int64_t row;
  bool is_log_decay;
};

// Where values lie: sequence, first token and number of tokens.
struct Span {
  int64_t sequence;
  int64_t first;
  int64_t count;
};

bool at_fault(double value, Status fault, bool is_log_decay) {
  if (fault == LEAPQUANT_POSITIVE_LOG_DECAY) return is_log_decay && value > 0.0;
  return is_log_decay ? std::isnan(value) : !std::isfinite(value);
}

bool find(const Named& named, const Span& span, int32_t sequence, Status fault, Sentence* text) {
  const leapquant_tensor& tensor = *named.tensor;
  if (tensor.data == nullptr) return false;
  const int64_t element = type_bytes(tensor.type);
  for (int64_t t = span.first; t < span.first + span.count; ++t) {
    for (int64_t j = 0; j < named.sub_steps; ++j) {
      for (int64_t h = 0; h < named.heads; ++h) {
        const std::byte* row = static_cast<const std::byte*>(tensor.data) +
                               span.sequence * tensor.sequence_stride_bytes +
                               t * tensor.token_stride_bytes +
                               (named.sub_steps > 1 ? j * tensor.sub_step_stride_bytes : 0) +
                               (named.heads > 1 ? h * tensor.head_stride_bytes : 0);
        for (int64_t x = 0; x < named.row; ++x) {
          const double value = load(row + x * element, tensor.type);
          if (!at_fault(value, fault, named.is_log_decay)) continue;
          text->say(fault,
                    "sequence %d was left unchanged: inputs.%s holds %g at token %lld, sub-step "
                    "%lld, head %lld, channel %lld",
                    sequence, named.name, value, static_cast<long long>(t - span.first),
                    static_cast<long long>(j), static_cast<long long>(named.heads > 1 ? h : x),
                    static_cast<long long>(named.heads > 1 ? x : 0));
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

void describe_numeric_fault(const Layout& layout, const leapquant_inputs& inputs, int32_t sequence,
                            int64_t sequence_index, int64_t first, int64_t count, Status fault,
                            Sentence* text) {
  if (fault != LEAPQUANT_NON_FINITE_INPUT && fault != LEAPQUANT_POSITIVE_LOG_DECAY) return;
  const leapquant_shape& s = layout.shape;
  const bool vector = s.decay == LEAPQUANT_DECAY_VECTOR;
  const bool raw_gate = inputs.gate != LEAPQUANT_GATE_READY;
  const Named tensors[] = {
      {"q", &inputs.q, 1, s.num_k_heads, s.head_k_dim, false},
      {"k", &inputs.k, s.sub_steps, s.num_k_heads, s.head_k_dim, false},
      {"v", &inputs.v, s.sub_steps, s.num_v_heads, s.head_v_dim, false},
      {"read_key", &inputs.read_key, s.sub_steps, s.num_k_heads, s.head_k_dim, false},
      {"beta", &inputs.beta, s.sub_steps, 1, s.num_v_heads, false},
      {"log_decay", &inputs.log_decay, 1, vector ? s.num_v_heads : 1,
       vector ? s.head_k_dim : s.num_v_heads, !raw_gate},
  };
  const Span span = {sequence_index, first, count};
  for (const Named& named : tensors) {
    if (find(named, span, sequence, fault, text)) return;
  }
}

}  // namespace leapquant::capi
