// SPDX-License-Identifier: Apache-2.0
//
// Types, strides, gates and parameters of a call's tensors.
#include "capi/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace leapquant::capi {
namespace {

constexpr int32_t kMaxAxes = 4;

Status overlap(const char* name, const Axis& axis, int64_t expected) {
  return fail(LEAPQUANT_INVALID_STRIDE, "%s.%s is %lld, expected at least %lld: rows would overlap",
              name, axis.name, static_cast<long long>(*axis.stride),
              static_cast<long long>(expected));
}

// Rows do not overlap when, from the smallest stride to the largest, each stride spans all that the
// smaller ones reach.
Status check_rows_apart(const char* name, const Axis* axes, int32_t num_axes, int64_t row_bytes,
                        int64_t* extent) {
  const Axis* sorted[kMaxAxes];
  int32_t count = 0;
  for (int32_t i = 0; i < num_axes; ++i) {
    if (axes[i].count <= 1) continue;
    int32_t at = count++;
    for (; at > 0 && *sorted[at - 1]->stride > *axes[i].stride; --at) sorted[at] = sorted[at - 1];
    sorted[at] = &axes[i];
  }
  int64_t reach = row_bytes;
  for (int32_t i = 0; i < count; ++i) {
    if (*sorted[i]->stride < reach) return overlap(name, *sorted[i], reach);
    int64_t span = 0;
    if (__builtin_mul_overflow(*sorted[i]->stride, sorted[i]->count - 1, &span) ||
        __builtin_add_overflow(span, reach, &reach)) {
      return fail(LEAPQUANT_INVALID_STRIDE, "%s.%s is %lld, which times %lld rows passes 63 bits",
                  name, sorted[i]->name, static_cast<long long>(*sorted[i]->stride),
                  static_cast<long long>(sorted[i]->count));
    }
  }
  *extent = reach;
  return LEAPQUANT_OK;
}

// One tensor of the inputs. heads = 0: no head axis (heads are contiguous, `row` of them).
Status check_input(const char* name, leapquant_tensor* tensor, const Leading& leading,
                   int64_t sub_steps, int64_t heads, int64_t row) {
  const int64_t element = type_bytes(tensor->type);
  if (element == 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "%s.type is %d, expected LEAPQUANT_FP32 (0), FP16 (1) or BF16 (2)", name,
                tensor->type);
  }
  int64_t unused = 0;
  Axis axes[kMaxAxes] = {
      {"head_stride_bytes", heads > 0 ? heads : 1,
       heads > 0 ? &tensor->head_stride_bytes : &unused},
      {"sub_step_stride_bytes", sub_steps > 0 ? sub_steps : 1,
       sub_steps > 0 ? &tensor->sub_step_stride_bytes : &unused},
      {"token_stride_bytes", leading.tokens, &tensor->token_stride_bytes},
      {"sequence_stride_bytes", leading.sequences,
       leading.has_sequences ? &tensor->sequence_stride_bytes : &unused},
  };
  int64_t extent = 0;
  return check_memory(name, tensor->data, element, row * element, axes, kMaxAxes, &extent);
}

Status require_flag(const char* name, int32_t value) {
  if (value == 0 || value == 1) return LEAPQUANT_OK;
  return fail(LEAPQUANT_INVALID_ARGUMENT, "%s is %d, expected 0 or 1", name, value);
}

Status check_gate(const leapquant_shape& shape, leapquant_inputs* inputs) {
  const bool given = shape.decay == LEAPQUANT_DECAY_SCALAR || shape.decay == LEAPQUANT_DECAY_VECTOR;
  if (inputs->gate < LEAPQUANT_GATE_READY || inputs->gate > LEAPQUANT_GATE_BOUNDED) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "inputs.gate is %d, expected 0 to 2", inputs->gate);
  }
  if (!given) {
    if (inputs->log_decay.data != nullptr || inputs->gate != LEAPQUANT_GATE_READY) {
      return fail(LEAPQUANT_INVALID_ARGUMENT,
                  "inputs.log_decay.data must be null and inputs.gate 0: the layout's decay is %s",
                  shape.decay == LEAPQUANT_DECAY_NONE ? "none" : "constant");
    }
    return LEAPQUANT_OK;
  }
  if (inputs->gate != LEAPQUANT_GATE_READY && inputs->a_log == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER,
                "inputs.a_log is null, but inputs.gate is %d: expected [%d]", inputs->gate,
                shape.num_v_heads);
  }
  if (inputs->gate == LEAPQUANT_GATE_BOUNDED &&
      !(inputs->lower_bound < 0.0f && std::isfinite(inputs->lower_bound))) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "inputs.lower_bound is %g, expected a finite number below 0 (usually -5)",
                static_cast<double>(inputs->lower_bound));
  }
  return LEAPQUANT_OK;
}

// Parameters of the model, one for all sequences of a call: a number that is not finite is refused
// like any other argument. `decayless`: minus infinity is a number here, exp(-infinity) = 0.
Status check_parameters(const char* name, const float* data, int64_t count, bool decayless) {
  if (data == nullptr) return LEAPQUANT_OK;
  // Without branches, as there may be HV K of them in every call: infinities and NaN are the
  // largest.
  constexpr uint32_t kInfinity = 0x7f800000u;
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(data[i]) & 0x7fffffffu);
  }
  if (largest < kInfinity) return LEAPQUANT_OK;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(data[i]) || (decayless && std::isinf(data[i]) && data[i] < 0.0f)) continue;
    return fail(LEAPQUANT_INVALID_ARGUMENT, "inputs.%s[%lld] is %g, expected a finite number%s",
                name, static_cast<long long>(i), static_cast<double>(data[i]),
                decayless ? " or -inf" : "");
  }
  return LEAPQUANT_OK;
}

Status check_all_parameters(const leapquant_shape& shape, const leapquant_inputs& inputs) {
  const int64_t heads = shape.num_v_heads;
  const int64_t rows = heads * shape.head_k_dim;
  if (inputs.gate != LEAPQUANT_GATE_READY) {
    const int64_t biases = shape.decay == LEAPQUANT_DECAY_VECTOR ? rows : heads;
    if (Status s = check_parameters("a_log", inputs.a_log, heads, true)) return s;
    if (Status s = check_parameters("dt_bias", inputs.dt_bias, biases, false)) return s;
  }
  if (Status s = check_parameters("bonus", inputs.bonus, rows, false)) return s;
  return check_parameters("skip", inputs.skip, heads, false);
}

Status check_beta(leapquant_inputs* inputs) {
  if (inputs->beta_kind != LEAPQUANT_BETA_READY && inputs->beta_kind != LEAPQUANT_BETA_SIGMOID) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "inputs.beta_kind is %d, expected 0 or 1",
                inputs->beta_kind);
  }
  if (inputs->beta_kind == LEAPQUANT_BETA_SIGMOID && inputs->beta.data == nullptr) {
    return fail(LEAPQUANT_NULL_POINTER,
                "inputs.beta.data is null, but inputs.beta_kind is LEAPQUANT_BETA_SIGMOID");
  }
  if (!(std::isfinite(inputs->beta_scale) && inputs->beta_scale >= 0.0f)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "inputs.beta_scale is %g, expected a finite number of at least 0",
                static_cast<double>(inputs->beta_scale));
  }
  if (inputs->beta_scale == 0.0f) inputs->beta_scale = 1.0f;
  return LEAPQUANT_OK;
}

Status check_scalars(leapquant_inputs* inputs) {
  if (Status s = require_flag("inputs.qk_l2norm", inputs->qk_l2norm)) return s;
  if (Status s = require_flag("inputs.read_before_update", inputs->read_before_update)) return s;
  if (!(std::isfinite(inputs->l2norm_eps) && inputs->l2norm_eps >= 0.0f)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "inputs.l2norm_eps is %g, expected a finite number of at least 0",
                static_cast<double>(inputs->l2norm_eps));
  }
  if (!std::isfinite(inputs->q_scale)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "inputs.q_scale is %g, expected a finite number",
                static_cast<double>(inputs->q_scale));
  }
  if (inputs->l2norm_eps == 0.0f) inputs->l2norm_eps = 1e-6f;
  if (inputs->q_scale == 0.0f) inputs->q_scale = 1.0f;
  return LEAPQUANT_OK;
}

Status check_inputs(const leapquant_shape& shape, const Leading& leading,
                    leapquant_inputs* inputs) {
  if (inputs->struct_size != 0 && inputs->struct_size != sizeof(leapquant_inputs)) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "inputs.struct_size is %u, expected 0 or %zu",
                inputs->struct_size, sizeof(leapquant_inputs));
  }
  if (Status s = check_reserved(inputs->reserved, "inputs", LEAPQUANT_INVALID_ARGUMENT)) return s;
  if (Status s = check_scalars(inputs)) return s;
  if (Status s = check_gate(shape, inputs)) return s;
  if (Status s = check_beta(inputs)) return s;
  const int64_t k_heads = shape.num_k_heads;
  const int64_t v_heads = shape.num_v_heads;
  const int64_t n = shape.sub_steps;
  if (Status s = check_input("inputs.q", &inputs->q, leading, 0, k_heads, shape.head_k_dim)) {
    return s;
  }
  if (Status s = check_input("inputs.k", &inputs->k, leading, n, k_heads, shape.head_k_dim)) {
    return s;
  }
  if (Status s = check_input("inputs.v", &inputs->v, leading, n, v_heads, shape.head_v_dim)) {
    return s;
  }
  if (inputs->read_key.data != nullptr) {
    if (Status s = check_input("inputs.read_key", &inputs->read_key, leading, n, k_heads,
                               shape.head_k_dim)) {
      return s;
    }
  }
  if (inputs->beta.data != nullptr) {
    if (Status s = check_input("inputs.beta", &inputs->beta, leading, n, 0, v_heads)) return s;
  }
  if (shape.decay == LEAPQUANT_DECAY_SCALAR) {
    return check_input("inputs.log_decay", &inputs->log_decay, leading, 0, 0, v_heads);
  }
  if (shape.decay == LEAPQUANT_DECAY_VECTOR) {
    return check_input("inputs.log_decay", &inputs->log_decay, leading, 0, v_heads,
                       shape.head_k_dim);
  }
  return LEAPQUANT_OK;
}

Status check_not_aliased(const leapquant_inputs& inputs, const leapquant_output& output) {
  const struct {
    const char* name;
    const void* data;
  } tensors[] = {{"q", inputs.q.data},       {"k", inputs.k.data},
                 {"v", inputs.v.data},       {"read_key", inputs.read_key.data},
                 {"beta", inputs.beta.data}, {"log_decay", inputs.log_decay.data}};
  for (const auto& tensor : tensors) {
    if (tensor.data != output.data) continue;
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "output.data is inputs.%s.data: the output may not share memory with an input",
                tensor.name);
  }
  return LEAPQUANT_OK;
}

}  // namespace

int64_t type_bytes(int32_t type) {
  switch (type) {
    case LEAPQUANT_FP32:
      return 4;
    case LEAPQUANT_FP16:
    case LEAPQUANT_BF16:
      return 2;
    default:
      return 0;
  }
}

Status check_memory(const char* name, const void* data, int64_t element, int64_t row_bytes,
                    Axis* axes, int32_t num_axes, int64_t* extent) {
  if (data == nullptr) return fail(LEAPQUANT_NULL_POINTER, "%s.data is null", name);
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element) != 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "%s.data is %p, expected a multiple of %lld bytes",
                name, data, static_cast<long long>(element));
  }
  int64_t packed = row_bytes;
  for (int32_t i = 0; i < num_axes; ++i) {
    int64_t* stride = axes[i].stride;
    if (*stride == 0) *stride = packed;
    if (*stride < 0 || *stride % element != 0) {
      return fail(LEAPQUANT_INVALID_STRIDE,
                  "%s.%s is %lld, expected 0 (packed) or a positive multiple of %lld", name,
                  axes[i].name, static_cast<long long>(*stride), static_cast<long long>(element));
    }
    if (__builtin_mul_overflow(*stride, axes[i].count, &packed)) {
      return fail(LEAPQUANT_INVALID_STRIDE, "%s.%s is %lld, which times %lld rows passes 63 bits",
                  name, axes[i].name, static_cast<long long>(*stride),
                  static_cast<long long>(axes[i].count));
    }
  }
  return check_rows_apart(name, axes, num_axes, row_bytes, extent);
}

Status check_tensors(const Call& call, const Leading& leading, leapquant_inputs* inputs,
                     leapquant_output* output) {
  const leapquant_shape& shape = call.layout().shape;
  if (Status s = check_inputs(shape, leading, inputs)) return s;
  // A device's parameters lie where the host may not look.
  if (call.handle->backend->device == LEAPQUANT_CPU) {
    if (Status s = check_all_parameters(shape, *inputs)) return s;
  }
  const int64_t element = type_bytes(output->type);
  if (element == 0) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "output.type is %d, expected LEAPQUANT_FP32 (0), FP16 (1) or BF16 (2)",
                output->type);
  }
  int64_t unused = 0;
  Axis axes[] = {
      {"head_stride_bytes", shape.num_v_heads, &output->head_stride_bytes},
      {"token_stride_bytes", leading.tokens, &output->token_stride_bytes},
      {"sequence_stride_bytes", leading.sequences,
       leading.has_sequences ? &output->sequence_stride_bytes : &unused},
  };
  int64_t extent = 0;
  if (Status s = check_memory("output", output->data, element, element * shape.head_v_dim, axes, 3,
                              &extent)) {
    return s;
  }
  return check_not_aliased(*inputs, *output);
}

}  // namespace leapquant::capi
