// SPDX-License-Identifier: Apache-2.0
//
// Reads of a windowed token never form the state: boundary part and record parts are added, with
// suffix sums of log decays from the newest record backwards.
#include "reference/decode.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/numeric.h"
#include "core/pool.h"
#include "core/position.h"
#include "reference/codec.h"
#include "reference/fold.h"
#include "reference/inputs.h"
#include "reference/recurrence.h"

namespace leapquant::reference {
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One head of one sequence at work on a windowed call.
struct HeadWindow {
  const Layout& layout;
  int32_t v_head;
  int32_t base;
  Vector boundary;  // [K, V] decoded
  WindowView window;
  leapquant_health* health;

  int32_t k_dim() const { return layout.shape.head_k_dim; }
  int32_t v_dim() const { return layout.shape.head_v_dim; }
  int64_t row_of(int32_t token, int32_t sub_step) const {
    return int64_t{token % layout.window.ring_tokens} * layout.shape.sub_steps + sub_step;
  }
};

// S_{token-1}^T r for every r of `reads` ([K] each): one pass over the records.
std::vector<Vector> read_before(const HeadWindow& head, int32_t token,
                                const std::vector<Vector>& reads) {
  const auto k_dim = static_cast<size_t>(head.k_dim());
  const auto v_dim = static_cast<size_t>(head.v_dim());
  std::vector<Vector> results(reads.size(), Vector(v_dim, 0.0));
  Vector later(k_dim, 0.0);  // sum of log decays of the tokens after the record
  Vector key(k_dim);
  for (int32_t past = token - 1; past >= head.base; --past) {
    for (int32_t j = 0; j < head.layout.shape.sub_steps; ++j) {
      const uint16_t* key_row = head.window.keys + head.row_of(past, j) * head.k_dim();
      const uint16_t* u = head.window.corrections + head.row_of(past, j) * head.v_dim();
      for (size_t i = 0; i < k_dim; ++i) key[i] = fp16_to_float(key_row[i]) * std::exp(later[i]);
      for (size_t r = 0; r < reads.size(); ++r) {
        const double weight = dot(key, reads[r]);
        for (size_t c = 0; c < v_dim; ++c) results[r][c] += weight * fp16_to_float(u[c]);
      }
    }
    for (size_t i = 0; i < k_dim; ++i) {
      later[i] +=
          record_log_decay(head.layout, head.window, head.v_head, past, static_cast<int32_t>(i));
    }
  }
  for (size_t r = 0; r < reads.size(); ++r) {
    for (size_t i = 0; i < k_dim; ++i) {
      const double x = std::exp(later[i]) * reads[r][i];
      for (size_t c = 0; c < v_dim; ++c) results[r][c] += x * head.boundary[i * v_dim + c];
    }
  }
  return results;
}

void store_log_decays(const HeadWindow& head, int32_t token, const Vector& log_decay) {
  const WindowLayout& where = head.layout.window;
  const int64_t row = int64_t{token % where.ring_tokens} * where.decay_count;
  for (int32_t i = 0; i < where.decay_count; ++i) {
    const float g = static_cast<float>(log_decay[static_cast<size_t>(i)]);
    if (where.decay_bytes == 4) {
      std::memcpy(head.window.log_decays + 4 * (row + i), &g, 4);
      continue;
    }
    // A finite decay below the FP16 range stays a finite, very small one.
    const uint16_t half = std::isinf(g) ? uint16_t{0xfc00} : float_to_fp16(std::max(g, -kFp16Max));
    std::memcpy(head.window.log_decays + 2 * (row + i), &half, 2);
  }
}

void store_record(const HeadWindow& head, int32_t token, int32_t sub_step, const Vector& key,
                  const Vector& u) {
  const int64_t row = head.row_of(token, sub_step);
  bool saturated = false;
  for (int32_t i = 0; i < head.k_dim(); ++i) {
    head.window.keys[row * head.k_dim() + i] =
        float_to_fp16_saturated(static_cast<float>(key[static_cast<size_t>(i)]), &saturated);
  }
  for (int32_t c = 0; c < head.v_dim(); ++c) {
    head.window.corrections[row * head.v_dim() + c] =
        float_to_fp16_saturated(static_cast<float>(u[static_cast<size_t>(c)]), &saturated);
  }
  if (saturated && head.health != nullptr) {
    head.health->flags |= LEAPQUANT_HEALTH_RECORD_SATURATED;
  }
}

// Output [V] of token number `position` (tokens before it), and its records.
Vector decode_token(const HeadWindow& head, const leapquant_inputs& inputs, const Token& token,
                    int32_t position) {
  const auto v_dim = static_cast<size_t>(head.v_dim());
  const auto sub_steps = token.k.size();
  const bool delta_rule = head.layout.shape.delta_rule != 0;
  const bool given_reads = !token.b.empty();
  const bool before_update = inputs.read_before_update != 0;

  // Read vectors against the state before this token: its own decay is in them.
  const auto decayed = [&](const Vector& x) {
    Vector result = x;
    for (size_t i = 0; i < x.size(); ++i) result[i] *= std::exp(token.log_decay[i]);
    return result;
  };
  std::vector<Vector> read_keys;  // b_j as the sub-steps' own terms see it
  std::vector<Vector> reads;
  for (size_t j = 0; j < sub_steps && delta_rule; ++j) {
    read_keys.push_back(given_reads ? token.b[j] : token.k[j]);
    reads.push_back(j == 0 && given_reads ? token.b[0] : decayed(read_keys[j]));
  }
  reads.push_back(before_update ? token.q : decayed(token.q));
  const std::vector<Vector> results = read_before(head, position, reads);

  std::vector<Vector> u = token.v;
  for (size_t j = 0; j < sub_steps; ++j) {
    for (size_t c = 0; c < v_dim && delta_rule; ++c) u[j][c] -= results[j][c];
    for (size_t earlier = 0; earlier < j && delta_rule; ++earlier) {
      const double weight = dot(token.k[earlier], read_keys[j]);
      for (size_t c = 0; c < v_dim; ++c) u[j][c] -= weight * u[earlier][c];
    }
    for (double& x : u[j]) x *= token.beta[j];
  }

  Vector o = results.back();
  for (size_t j = 0; j < sub_steps && !before_update; ++j) {
    const double weight = dot(token.k[j], token.q);
    for (size_t c = 0; c < v_dim; ++c) o[c] += weight * u[j][c];
  }
  add_hooks(head.layout, inputs, token, head.v_head, o.data());

  for (size_t j = 0; j < sub_steps; ++j) {
    store_record(head, position, static_cast<int32_t>(j), token.k[j], u[j]);
  }
  store_log_decays(head, position, token.log_decay);
  return o;
}

// Where the outputs of one sequence go, [tokens, HV, V].
struct Outputs {
  const Layout& layout;
  double* data;
  double* row(int32_t token, int32_t v_head) const {
    return data + (int64_t{token} * layout.shape.num_v_heads + v_head) * layout.shape.head_v_dim;
  }
};

void decode_windowed(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                     int32_t window_slot, const leapquant_decode_args& args, int32_t sequence,
                     int32_t num_tokens, const Outputs& outputs) {
  const int32_t position = args.positions[sequence];
  const TokenAxis axis = {sequence, args.tokens};
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int32_t boundary =
        last_boundary(position, layout.head_boundary[static_cast<size_t>(h)], layout.window_tokens);
    if (boundary > base_of(layout, pool, state_slot, h)) {
      fold_head(layout, pool, state_slot, window_slot, state_slot, h, boundary);
    }
    const HeadWindow head = {
        layout,
        h,
        base_of(layout, pool, state_slot, h),
        decode_boundary(layout.head(h), boundary_state(layout, pool, state_slot, h)),
        window_view(layout, pool, window_slot, h),
        health_of(layout, pool, state_slot, h)};
    for (int32_t t = 0; t < num_tokens; ++t) {
      const Token token = load_token(layout, args.inputs, axis, t, h);
      const Vector o = decode_token(head, args.inputs, token, position + t);
      std::copy(o.begin(), o.end(), outputs.row(t, h));
    }
  }
}

void decode_per_step(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                     const leapquant_decode_args& args, int32_t sequence, int32_t num_tokens,
                     const Outputs& outputs) {
  const TokenAxis axis = {sequence, args.tokens};
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const BoundaryLayout& head = layout.head(h);
    std::byte* boundary = boundary_state(layout, pool, state_slot, h);
    for (int32_t t = 0; t < num_tokens; ++t) {
      Vector state = decode_boundary(head, boundary);
      const Token token = load_token(layout, args.inputs, axis, t, h);
      const Vector o = advance(layout, args.inputs, token, h, state.data());
      std::copy(o.begin(), o.end(), outputs.row(t, h));
      encode_state(head, state.data(), false, boundary, health_of(layout, pool, state_slot, h));
    }
    base_of(layout, pool, state_slot, h) = args.positions[sequence] + num_tokens;
  }
}

}  // namespace

void decode_fp64(const Layout& layout, const leapquant_pool& pool,
                 const leapquant_decode_args& args, double* outputs) {
  const int64_t sequence_size =
      int64_t{args.tokens} * layout.shape.num_v_heads * layout.shape.head_v_dim;
  std::fill(outputs, outputs + args.batch * sequence_size, 0.0);
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    const int32_t slot = args.state_slots[i];
    const int32_t window = layout.per_step                ? 0
                           : args.window_slots == nullptr ? slot
                                                          : args.window_slots[i];
    const int32_t num_tokens = args.num_tokens == nullptr ? args.tokens : args.num_tokens[i];
    if (slot < 0 || window < 0 || num_tokens == 0) continue;
    args.status[i] = check_position(layout, pool, slot, window, args.positions[i], num_tokens);
    if (args.status[i] != LEAPQUANT_OK) continue;
    args.status[i] = check_inputs(layout, args.inputs, {i, args.tokens}, 0, num_tokens);
    if (args.status[i] != LEAPQUANT_OK) continue;
    const Outputs rows = {layout, outputs + i * sequence_size};
    if (layout.per_step) {
      decode_per_step(layout, pool, slot, args, i, num_tokens, rows);
    } else {
      decode_windowed(layout, pool, slot, window, args, i, num_tokens, rows);
    }
  }
}

Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch&) {
  const int64_t row = layout.shape.head_v_dim;
  const int64_t rows = int64_t{args.batch} * args.tokens * layout.shape.num_v_heads;
  Vector outputs(static_cast<size_t>(rows * row));
  decode_fp64(layout, pool, args, outputs.data());
  const double* o = outputs.data();
  for (int32_t i = 0; i < args.batch; ++i) {
    for (int32_t t = 0; t < args.tokens; ++t) {
      for (int32_t h = 0; h < layout.shape.num_v_heads; ++h, o += row) {
        store_output(layout, args.output, {i, args.tokens}, t, h, o);
      }
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::reference
