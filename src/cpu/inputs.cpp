// SPDX-License-Identifier: Apache-2.0
//
// Strided tensors of three types to padded FP32 rows; the checks look at bits only.
#include "cpu/inputs.h"

#include <cmath>
#include <cstring>

#include "core/numeric.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/inputs.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/gates-inl.h"
#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// Converts `count` numbers of a leapquant_type to FP32, zeros up to a multiple of 16.
void load_row(const void* source, int32_t type, int32_t count, float* row) {
  const FloatTag d;
  const int32_t whole = count / kLanes * kLanes;
  if (type == LEAPQUANT_FP32) {
    std::memcpy(row, source, static_cast<size_t>(count) * sizeof(float));
  } else {
    const auto* half = static_cast<const uint16_t*>(source);
    for (int32_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(type == LEAPQUANT_FP16 ? load_fp16(half + i) : load_bf16(half + i), d, row + i);
    }
    for (int32_t i = whole; i < count; ++i) {
      row[i] = type == LEAPQUANT_FP16 ? fp16_to_float(half[i]) : bf16_to_float(half[i]);
    }
  }
  for (int32_t i = count; i % 16 != 0; ++i) row[i] = 0.0f;
}

// Largest exponent-and-mantissa bits of `count` numbers: at or above the type's infinity where one
// of them is not finite.
uint32_t largest_bits(const void* source, int32_t type, int32_t count) {
  uint32_t largest = 0;
  int32_t i = 0;
  if (type == LEAPQUANT_FP32) {
    const Int32Tag d;
    const auto* word = static_cast<const int32_t*>(source);
    auto maximum = hn::Zero(d);
    for (; i + kLanes <= count; i += kLanes) {
      maximum = hn::Max(maximum, hn::And(hn::LoadU(d, word + i), hn::Set(d, 0x7fffffff)));
    }
    largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, maximum)));
    for (; i < count; ++i) {
      const uint32_t bits = static_cast<uint32_t>(word[i]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
  const hn::CappedTag<int16_t, 32> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto* word = static_cast<const int16_t*>(source);
  auto maximum = hn::Zero(d);
  for (; i + lanes <= count; i += lanes) {
    maximum = hn::Max(maximum, hn::And(hn::LoadU(d, word + i), hn::Set(d, int16_t{0x7fff})));
  }
  alignas(64) int16_t lane[32] = {0};
  hn::StoreU(maximum, d, lane);
  for (const int16_t bits : lane) {
    largest = static_cast<uint32_t>(bits) > largest ? static_cast<uint32_t>(bits) : largest;
  }
  for (; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(word[i]) & 0x7fffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// x /= sqrt(sum x^2 + epsilon), then x *= scale. [stride] with zeros past the row.
void normalise_row(float* row, int32_t stride, bool normalise, float epsilon, float scale) {
  const FloatTag d;
  if (normalise) {
    auto sum = hn::Zero(d);
    for (int32_t i = 0; i < stride; i += kLanes) {
      const auto x = hn::Load(d, row + i);
      sum = hn::MulAdd(x, x, sum);
    }
    const auto root = hn::Sqrt(hn::Set(d, sum_of_lanes(sum) + epsilon));
    for (int32_t i = 0; i < stride; i += kLanes) {
      hn::Store(hn::Div(hn::Load(d, row + i), root), d, row + i);
    }
  }
  if (scale == 1.0f) return;
  for (int32_t i = 0; i < stride; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, row + i), hn::Set(d, scale)), d, row + i);
  }
}

// Raw gates of one row, in place; [stride], whole vectors. bias may be null.
void gate_row(int32_t kind, float a_log, float bound, const float* bias, int32_t count,
              int32_t stride, float* row) {
  const FloatTag d;
  const auto rate = exponential(hn::Set(d, a_log));
  for (int32_t i = 0; i < stride; i += kLanes) {
    auto shift = hn::Zero(d);
    if (bias != nullptr) {
      alignas(64) float padded_bias[16] = {0};
      for (int32_t l = 0; l < kLanes && i + l < count; ++l) padded_bias[l] = bias[i + l];
      shift = hn::Load(d, padded_bias);
    }
    const auto x = hn::LoadU(d, row + i);
    hn::StoreU(kind == LEAPQUANT_GATE_SOFTPLUS ? softplus_gate(x, shift, rate)
                                               : bounded_gate(x, shift, rate, hn::Set(d, bound)),
               d, row + i);
  }
  for (int32_t i = count; i < stride; ++i) row[i] = 0.0f;
}

void sigmoid_row(float scale, int32_t count, float* row) {
  const FloatTag d;
  for (int32_t i = 0; i < count; i += kLanes) {
    alignas(64) float lane[16] = {0};
    const int32_t now = count - i < kLanes ? count - i : kLanes;
    for (int32_t l = 0; l < now; ++l) lane[l] = row[i + l];
    hn::Store(hn::Mul(sigmoid(hn::Load(d, lane)), hn::Set(d, scale)), d, lane);
    for (int32_t l = 0; l < now; ++l) row[i + l] = lane[l];
  }
}

// [V] to the output type; rows of `value` are padded.
void store_row(const float* value, int32_t type, int32_t count, void* destination) {
  const FloatTag d;
  if (type == LEAPQUANT_FP32) {
    std::memcpy(destination, value, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* half = static_cast<uint16_t*>(destination);
  const int32_t whole = count / kLanes * kLanes;
  auto saturated = no_lanes();
  for (int32_t i = 0; i < whole; i += kLanes) {
    const auto x = hn::LoadU(d, value + i);
    if (type == LEAPQUANT_FP16) {
      store_fp16_saturated(x, half + i, &saturated);
    } else {
      store_bf16(x, half + i);
    }
  }
  bool ignored = false;
  for (int32_t i = whole; i < count; ++i) {
    half[i] = type == LEAPQUANT_FP16 ? float_to_fp16_saturated(value[i], &ignored)
                                     : float_to_bf16(value[i]);
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(load_row);
HWY_EXPORT(largest_bits);
HWY_EXPORT(normalise_row);
HWY_EXPORT(gate_row);
HWY_EXPORT(sigmoid_row);
HWY_EXPORT(store_row);

int64_t type_bytes(int32_t type) { return type == LEAPQUANT_FP32 ? 4 : 2; }

// Byte strides of a tensor with packed ones filled in, from the inside out.
struct Strides {
  int64_t head;
  int64_t sub_step;
  int64_t token;
  int64_t sequence;

  Strides(const leapquant_tensor& tensor, int64_t last, int64_t heads, int64_t sub_steps,
          int64_t tokens) {
    const auto given_or = [](int64_t given, int64_t packed) { return given != 0 ? given : packed; };
    head = given_or(tensor.head_stride_bytes, last * type_bytes(tensor.type));
    sub_step = given_or(tensor.sub_step_stride_bytes, heads * head);
    token = given_or(tensor.token_stride_bytes, sub_steps * sub_step);
    sequence = given_or(tensor.sequence_stride_bytes, tokens * token);
  }
  const void* row(const void* data, const InputSpan& span, int32_t t, int32_t step,
                  int32_t head_index) const {
    return static_cast<const std::byte*>(data) + span.sequence * sequence +
           (span.first_token + t) * token + step * sub_step + head_index * head;
  }
};

// Tensors whose heads lie on the contiguous axis have no head stride: beta, scalar gates.
Strides heads_last(leapquant_tensor tensor, int64_t heads, int64_t sub_steps, int64_t tokens) {
  tensor.head_stride_bytes = type_bytes(tensor.type);
  return Strides(tensor, 1, heads, sub_steps, tokens);
}

bool all_finite(const void* row, int32_t type, int32_t count) {
  const uint32_t infinity = type == LEAPQUANT_FP32   ? 0x7f800000u
                            : type == LEAPQUANT_FP16 ? 0x7c00u
                                                     : 0x7f80u;
  return LEAPQUANT_CPU_DISPATCH(largest_bits)(row, type, count) < infinity;
}

// Every value of a tensor of the span is finite. Heads that lie behind one another count as one
// row.
bool tensor_finite(const leapquant_tensor& tensor, const InputSpan& span, int32_t last,
                   int32_t heads, int32_t sub_steps) {
  if (tensor.data == nullptr) return true;
  const Strides strides(tensor, last, heads, sub_steps, span.tokens_axis);
  const bool packed = strides.head == last * type_bytes(tensor.type);
  for (int32_t t = 0; t < span.num_tokens; ++t) {
    for (int32_t step = 0; step < sub_steps; ++step) {
      for (int32_t h = 0; h < (packed ? 1 : heads); ++h) {
        if (!all_finite(strides.row(tensor.data, span, t, step, h), tensor.type,
                        packed ? last * heads : last)) {
          return false;
        }
      }
    }
  }
  return true;
}

float number_at(const void* source, int32_t type) {
  if (type == LEAPQUANT_FP32) {
    float value;
    std::memcpy(&value, source, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, source, sizeof(half));
  return type == LEAPQUANT_FP16 ? fp16_to_float(half) : bf16_to_float(half);
}

// Ready log decays: no NaN, none above zero; -infinity is a decay of 0.
Status check_log_decays(const Layout& layout, const InputSpan& span) {
  const leapquant_tensor& tensor = span.inputs->log_decay;
  const bool vector = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
  const int32_t heads = layout.shape.num_v_heads;
  const int32_t last = vector ? layout.shape.head_k_dim : 1;
  const Strides strides = vector ? Strides(tensor, last, heads, 1, span.tokens_axis)
                                 : heads_last(tensor, heads, 1, span.tokens_axis);
  bool positive = false;
  for (int32_t t = 0; t < span.num_tokens; ++t) {
    for (int32_t h = 0; h < heads; ++h) {
      const auto* row = static_cast<const std::byte*>(strides.row(tensor.data, span, t, 0, h));
      for (int32_t i = 0; i < last; ++i) {
        const float g = number_at(row + i * type_bytes(tensor.type), tensor.type);
        if (std::isnan(g)) return LEAPQUANT_NON_FINITE_INPUT;
        positive = positive || g > 0.0f;
      }
    }
  }
  return positive ? LEAPQUANT_POSITIVE_LOG_DECAY : LEAPQUANT_OK;
}

}  // namespace

Status check_inputs(const Layout& layout, const InputSpan& span) {
  const leapquant_inputs& inputs = *span.inputs;
  const leapquant_shape& shape = layout.shape;
  const int32_t k_heads = shape.num_k_heads;
  const int32_t v_heads = shape.num_v_heads;
  bool finite = tensor_finite(inputs.q, span, shape.head_k_dim, k_heads, 1) &&
                tensor_finite(inputs.k, span, shape.head_k_dim, k_heads, shape.sub_steps) &&
                tensor_finite(inputs.v, span, shape.head_v_dim, v_heads, shape.sub_steps) &&
                tensor_finite(inputs.read_key, span, shape.head_k_dim, k_heads, shape.sub_steps);
  if (finite && inputs.beta.data != nullptr) {
    leapquant_tensor beta = inputs.beta;
    beta.head_stride_bytes = type_bytes(beta.type);
    finite = tensor_finite(beta, span, 1, v_heads, shape.sub_steps);
  }
  if (!finite) return LEAPQUANT_NON_FINITE_INPUT;
  if (shape.decay != LEAPQUANT_DECAY_SCALAR && shape.decay != LEAPQUANT_DECAY_VECTOR) {
    return LEAPQUANT_OK;
  }
  if (inputs.gate == LEAPQUANT_GATE_READY) return check_log_decays(layout, span);
  leapquant_tensor raw = inputs.log_decay;
  const bool vector = shape.decay == LEAPQUANT_DECAY_VECTOR;
  if (!vector) raw.head_stride_bytes = type_bytes(raw.type);
  return tensor_finite(raw, span, vector ? shape.head_k_dim : 1, v_heads, 1)
             ? LEAPQUANT_OK
             : LEAPQUANT_NON_FINITE_INPUT;
}

void prepare_key_head(const Layout& layout, const InputSpan& span, int32_t k_head, int32_t first,
                      int32_t count, float* q, float* k, float* read_key) {
  const leapquant_inputs& inputs = *span.inputs;
  const int32_t k_dim = layout.shape.head_k_dim;
  const int32_t steps = layout.shape.sub_steps;
  const int32_t stride = padded(k_dim);
  const auto load = LEAPQUANT_CPU_DISPATCH(load_row);
  const auto normalise = LEAPQUANT_CPU_DISPATCH(normalise_row);
  const bool norm = inputs.qk_l2norm != 0;
  const float epsilon = inputs.l2norm_eps != 0.0f ? inputs.l2norm_eps : 1e-6f;
  const float q_scale = inputs.q_scale != 0.0f ? inputs.q_scale : 1.0f;

  const int32_t heads = layout.shape.num_k_heads;
  const Strides q_strides(inputs.q, k_dim, heads, 1, span.tokens_axis);
  const Strides k_strides(inputs.k, k_dim, heads, steps, span.tokens_axis);
  for (int32_t t = 0; t < count; ++t) {
    float* q_row = q + static_cast<int64_t>(t) * stride;
    load(q_strides.row(inputs.q.data, span, first + t, 0, k_head), inputs.q.type, k_dim, q_row);
    normalise(q_row, stride, norm, epsilon, q_scale);
    for (int32_t j = 0; j < steps; ++j) {
      float* k_row = k + static_cast<int64_t>(t * steps + j) * stride;
      load(k_strides.row(inputs.k.data, span, first + t, j, k_head), inputs.k.type, k_dim, k_row);
      normalise(k_row, stride, norm, epsilon, 1.0f);
    }
  }
  if (inputs.read_key.data == nullptr || read_key == nullptr) return;
  const Strides r_strides(inputs.read_key, k_dim, heads, steps, span.tokens_axis);
  for (int32_t t = 0; t < count; ++t) {
    for (int32_t j = 0; j < steps; ++j) {
      float* row = read_key + static_cast<int64_t>(t * steps + j) * stride;
      load(r_strides.row(inputs.read_key.data, span, first + t, j, k_head), inputs.read_key.type,
           k_dim, row);
      normalise(row, stride, norm, epsilon, 1.0f);
    }
  }
}

void prepare_value_head(const Layout& layout, const InputSpan& span, int32_t v_head, int32_t first,
                        int32_t count, float* v, float* log_decay, float* beta) {
  const leapquant_inputs& inputs = *span.inputs;
  const leapquant_shape& shape = layout.shape;
  const int32_t steps = shape.sub_steps;
  const int32_t heads = shape.num_v_heads;
  const auto load = LEAPQUANT_CPU_DISPATCH(load_row);

  const Strides v_strides(inputs.v, shape.head_v_dim, heads, steps, span.tokens_axis);
  const int32_t v_stride = padded(shape.head_v_dim);
  for (int32_t row = 0; row < count * steps; ++row) {
    load(v_strides.row(inputs.v.data, span, first + row / steps, row % steps, v_head),
         inputs.v.type, shape.head_v_dim, v + static_cast<int64_t>(row) * v_stride);
  }

  if (inputs.beta.data == nullptr) {
    for (int32_t row = 0; row < count * steps; ++row) beta[row] = 1.0f;
  } else {
    const Strides strides = heads_last(inputs.beta, heads, steps, span.tokens_axis);
    for (int32_t row = 0; row < count * steps; ++row) {
      beta[row] =
          number_at(strides.row(inputs.beta.data, span, first + row / steps, row % steps, v_head),
                    inputs.beta.type);
    }
    if (inputs.beta_kind == LEAPQUANT_BETA_SIGMOID) {
      const float scale = inputs.beta_scale != 0.0f ? inputs.beta_scale : 1.0f;
      LEAPQUANT_CPU_DISPATCH(sigmoid_row)(scale, count * steps, beta);
    }
  }

  const bool raw = inputs.gate != LEAPQUANT_GATE_READY &&
                   (shape.decay == LEAPQUANT_DECAY_SCALAR || shape.decay == LEAPQUANT_DECAY_VECTOR);
  const float a_log = raw ? inputs.a_log[v_head] : 0.0f;
  const auto gate = LEAPQUANT_CPU_DISPATCH(gate_row);
  switch (shape.decay) {
    case LEAPQUANT_DECAY_NONE:
      for (int32_t t = 0; t < count; ++t) log_decay[t] = 0.0f;
      return;
    case LEAPQUANT_DECAY_CONSTANT:
      for (int32_t t = 0; t < count; ++t) {
        log_decay[t] = layout.decays[static_cast<size_t>(v_head)];
      }
      return;
    case LEAPQUANT_DECAY_SCALAR: {
      const Strides strides = heads_last(inputs.log_decay, heads, 1, span.tokens_axis);
      const float* bias = inputs.dt_bias == nullptr ? nullptr : inputs.dt_bias + v_head;
      for (int32_t t = 0; t < count; ++t) {
        alignas(64) float row[16] = {0};
        row[0] = number_at(strides.row(inputs.log_decay.data, span, first + t, 0, v_head),
                           inputs.log_decay.type);
        if (raw) {
          gate(inputs.gate, a_log, inputs.lower_bound, bias, 1, 16, row);
        }
        log_decay[t] = row[0];
      }
      return;
    }
    default: {
      const int32_t k_dim = shape.head_k_dim;
      const int32_t stride = padded(k_dim);
      const Strides strides(inputs.log_decay, k_dim, heads, 1, span.tokens_axis);
      const float* bias = inputs.dt_bias == nullptr
                              ? nullptr
                              : inputs.dt_bias + static_cast<int64_t>(v_head) * k_dim;
      for (int32_t t = 0; t < count; ++t) {
        float* row = log_decay + static_cast<int64_t>(t) * stride;
        load(strides.row(inputs.log_decay.data, span, first + t, 0, v_head), inputs.log_decay.type,
             k_dim, row);
        if (raw) {
          gate(inputs.gate, a_log, inputs.lower_bound, bias, k_dim, stride, row);
        }
      }
    }
  }
}

void store_output(const Layout& layout, const leapquant_output& output, int32_t tokens_axis,
                  int64_t sequence, int64_t token, int32_t v_head, const float* value) {
  const int32_t v_dim = layout.shape.head_v_dim;
  const int64_t row_bytes = v_dim * type_bytes(output.type);
  const int64_t head = output.head_stride_bytes != 0 ? output.head_stride_bytes : row_bytes;
  const int64_t token_stride =
      output.token_stride_bytes != 0 ? output.token_stride_bytes : layout.shape.num_v_heads * head;
  const int64_t sequence_stride =
      output.sequence_stride_bytes != 0 ? output.sequence_stride_bytes : tokens_axis * token_stride;
  std::byte* row = static_cast<std::byte*>(output.data) + sequence * sequence_stride +
                   token * token_stride + v_head * head;
  if (value == nullptr) {
    std::memset(row, 0, static_cast<size_t>(row_bytes));
    return;
  }
  LEAPQUANT_CPU_DISPATCH(store_row)(value, output.type, v_dim, row);
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
