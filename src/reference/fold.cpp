// SPDX-License-Identifier: Apache-2.0
//
// Rebuild, encode, fold. Suffix sums of log decays are built from the newest record backwards: no
// difference of sums, no division by a decay, no exponent above zero.
#include "reference/fold.h"

#include <algorithm>
#include <cmath>

#include "core/numeric.h"
#include "reference/codec.h"
#include "reference/fit.h"

namespace leapquant::reference {
namespace {

double squared_norm(const std::vector<double>& entries) {
  double sum = 0.0;
  for (double x : entries) sum += x * x;
  return sum;
}

void encode_plain(const BoundaryLayout& layout, const std::vector<double>& state,
                  std::byte* boundary) {
  for (size_t i = 0; i < state.size(); ++i) {
    const float value = static_cast<float>(state[i]);
    if (layout.format.payload_bits == 32) {
      std::memcpy(boundary + layout.payload + 4 * i, &value, 4);
    } else {
      const uint16_t half = float_to_bf16(value);
      std::memcpy(boundary + layout.payload + 2 * i, &half, 2);
    }
  }
}

}  // namespace

void encode_state(const BoundaryLayout& layout, const double* given, bool cold, std::byte* boundary,
                  leapquant_health* health) {
  const size_t count = static_cast<size_t>(layout.k_dim) * static_cast<size_t>(layout.v_dim);
  std::vector<double> state(given, given + count);
  leapquant_health figures = {};
  for (double& x : state) {
    if (std::isfinite(static_cast<float>(x))) continue;
    x = 0.0;
    figures.flags |= LEAPQUANT_HEALTH_NON_FINITE;
  }

  std::vector<double> residual = state;
  if (!layout.quantised()) {
    encode_plain(layout, state, boundary);
  } else {
    figures.flags |= fit_compensators(layout, state.data(), cold, boundary);
    std::vector<double> key(static_cast<size_t>(layout.k_dim));
    std::vector<double> value(static_cast<size_t>(layout.v_dim));
    for (int32_t r = 0; r < layout.rank; ++r) {
      decode_vector(layout, Side::kKey, r, boundary, key.data());
      decode_vector(layout, Side::kValue, r, boundary, value.data());
      for (size_t i = 0; i < key.size(); ++i) {
        for (size_t j = 0; j < value.size(); ++j)
          residual[i * value.size() + j] -= key[i] * value[j];
      }
    }
    std::vector<float> rounded(residual.begin(), residual.end());
    figures.flags |= encode_residual(layout, rounded.data(), boundary);
    for (float x : rounded) figures.residual_max = std::max(figures.residual_max, std::fabs(x));
  }

  if (health == nullptr) return;
  const double energy = squared_norm(state);
  if (energy > 0.0) {
    std::vector<double> error = decode_boundary(layout, boundary);
    for (size_t i = 0; i < count; ++i) error[i] -= state[i];
    figures.fold_error = static_cast<float>(std::sqrt(squared_norm(error) / energy));
    const double share = 1.0 - squared_norm(residual) / energy;
    figures.compensator_energy = static_cast<float>(std::clamp(share, 0.0, 1.0));
  }
  figures.flags |= health->flags;
  *health = figures;
}

double record_log_decay(const Layout& layout, const WindowView& window, int32_t v_head,
                        int32_t token, int32_t channel) {
  if (layout.shape.decay == LEAPQUANT_DECAY_NONE) return 0.0;
  if (layout.shape.decay == LEAPQUANT_DECAY_CONSTANT) {
    return layout.decays[static_cast<size_t>(v_head)];
  }
  const WindowLayout& where = layout.window;
  const int64_t row = token % where.ring_tokens;
  const int64_t index = row * where.decay_count + (where.decay_count == 1 ? 0 : channel);
  if (where.decay_bytes == 2) {
    uint16_t half;
    std::memcpy(&half, window.log_decays + 2 * index, 2);
    return fp16_to_float(half);
  }
  float value;
  std::memcpy(&value, window.log_decays + 4 * index, 4);
  return value;
}

std::vector<double> rebuild(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                            int32_t window_slot, int32_t v_head, int32_t position) {
  const int32_t k_dim = layout.shape.head_k_dim;
  const int32_t v_dim = layout.shape.head_v_dim;
  const int32_t base = base_of(layout, pool, state_slot, v_head);
  std::vector<double> state =
      decode_boundary(layout.head(v_head), boundary_state(layout, pool, state_slot, v_head));
  if (position == base) return state;

  const WindowView window = window_view(layout, pool, window_slot, v_head);
  std::vector<double> later(static_cast<size_t>(k_dim), 0.0);  // sum of g over the later tokens
  std::vector<double> records(state.size(), 0.0);
  for (int32_t token = position - 1; token >= base; --token) {
    for (int32_t j = 0; j < layout.shape.sub_steps; ++j) {
      const int64_t row = int64_t{token % layout.window.ring_tokens} * layout.shape.sub_steps + j;
      for (int32_t i = 0; i < k_dim; ++i) {
        const double weight =
            fp16_to_float(window.keys[row * k_dim + i]) * std::exp(later[static_cast<size_t>(i)]);
        for (int32_t c = 0; c < v_dim; ++c) {
          records[static_cast<size_t>(i * v_dim + c)] +=
              weight * fp16_to_float(window.corrections[row * v_dim + c]);
        }
      }
    }
    for (int32_t i = 0; i < k_dim; ++i) {
      later[static_cast<size_t>(i)] += record_log_decay(layout, window, v_head, token, i);
    }
  }
  for (int32_t i = 0; i < k_dim; ++i) {
    const double decay = std::exp(later[static_cast<size_t>(i)]);
    for (int32_t c = 0; c < v_dim; ++c) {
      const auto entry = static_cast<size_t>(i * v_dim + c);
      state[entry] = decay * state[entry] + records[entry];
    }
  }
  return state;
}

Status check_position(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
                      int32_t window_slot, int32_t position, int32_t new_tokens) {
  const bool no_records = layout.per_step || window_slot < 0;
  const int32_t room = no_records ? 0 : layout.window.ring_tokens;
  const int32_t shared = !no_records && layout.group > 1 ? new_tokens : 0;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    if (position < base_of(layout, pool, state_slot, h)) return LEAPQUANT_POSITION_BELOW_BASE;
  }
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const int64_t records = int64_t{position} - base_of(layout, pool, state_slot, h);
    if (records + shared > room) return LEAPQUANT_POSITION_PAST_WINDOW;
  }
  return LEAPQUANT_OK;
}

void fold_head(const Layout& layout, const leapquant_pool& pool, int32_t state_slot,
               int32_t window_slot, int32_t destination_slot, int32_t v_head, int32_t position) {
  const BoundaryLayout& head = layout.head(v_head);
  const std::byte* source = boundary_state(layout, pool, state_slot, v_head);
  std::byte* destination = boundary_state(layout, pool, destination_slot, v_head);
  const bool nothing = base_of(layout, pool, state_slot, v_head) == position;
  std::vector<double> state;
  if (!nothing) state = rebuild(layout, pool, state_slot, window_slot, v_head, position);
  if (destination != source) {
    std::memcpy(destination, source, static_cast<size_t>(head.bytes));
    if (pool.health != nullptr) {
      *health_of(layout, pool, destination_slot, v_head) =
          *health_of(layout, pool, state_slot, v_head);
    }
  }
  if (!nothing) {
    encode_state(head, state.data(), false, destination,
                 health_of(layout, pool, destination_slot, v_head));
  }
  base_of(layout, pool, destination_slot, v_head) = position;
}

Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_fold_args& args,
            const leapquant_launch&) {
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    const int32_t slot = args.state_slots[i];
    const int32_t destination =
        args.destination_slots == nullptr ? slot : args.destination_slots[i];
    if (slot < 0 || destination < 0) continue;
    const int32_t window = args.window_slots == nullptr ? slot : args.window_slots[i];
    args.status[i] = check_position(layout, pool, slot, window, args.positions[i], 0);
    if (args.status[i] != LEAPQUANT_OK) continue;
    for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
      fold_head(layout, pool, slot, window, destination, h, args.positions[i]);
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::reference
