// SPDX-License-Identifier: Apache-2.0
//
// A pool, random inputs and calls on any backend table, for the unit tests of prefill, per-step
// decode and transfers. Not a suite: what every backend owes is tested in tests/conformance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/format.h"
#include "core/operations.h"
#include "core/pool.h"

namespace leapquant::cpu_bed {

inline leapquant_shape shape_of(int32_t k_heads, int32_t v_heads, int32_t k_dim, int32_t v_dim,
                                leapquant_decay decay, int32_t delta_rule, int32_t sub_steps) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = k_heads;
  shape.num_v_heads = v_heads;
  shape.head_k_dim = k_dim;
  shape.head_v_dim = v_dim;
  shape.decay = decay;
  shape.delta_rule = delta_rule;
  shape.sub_steps = sub_steps;
  shape.max_tokens = 8;
  return shape;
}

inline leapquant_format format_of(int32_t bits, leapquant_policy policy) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  format.payload_bits = bits;
  format.policy = policy;
  if (bits <= 8) format.smoothing = LEAPQUANT_SMOOTHING_FP32;
  if (bits <= 8 && policy == LEAPQUANT_WINDOWED) format.num_fp16 = 4;
  return format;
}

inline Layout layout_of(const leapquant_shape& shape, const leapquant_format& format) {
  Layout layout;
  Sentence sentence;
  const Status status = make_layout(shape, &format, 1, nullptr, &layout, &sentence);
  EXPECT_EQ(status, LEAPQUANT_OK) << sentence.text;
  return layout;
}

// Unit keys, v ~ N(0, 1), decays and betas as given by the caller's ranges.
struct Tokens {
  std::vector<float> q, k, v, read_key, log_decay, beta, bonus, skip;
  leapquant_inputs options = LEAPQUANT_INIT(leapquant_inputs);

  leapquant_inputs inputs() const {
    leapquant_inputs inputs = options;
    inputs.q.data = q.data();
    inputs.k.data = k.data();
    inputs.v.data = v.data();
    inputs.read_key.data = read_key.empty() ? nullptr : read_key.data();
    inputs.log_decay.data = log_decay.empty() ? nullptr : log_decay.data();
    inputs.beta.data = beta.data();
    inputs.bonus = bonus.empty() ? nullptr : bonus.data();
    inputs.skip = skip.empty() ? nullptr : skip.data();
    return inputs;
  }
};

inline std::vector<float> normal(std::mt19937* random, size_t count, float scale) {
  std::normal_distribution<float> distribution(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(*random);
  return values;
}

inline void normalise_rows(std::vector<float>* values, size_t width) {
  for (size_t row = 0; row < values->size(); row += width) {
    double sum = 0.0;
    for (size_t i = 0; i < width; ++i) sum += double{(*values)[row + i]} * (*values)[row + i];
    for (size_t i = 0; i < width; ++i) (*values)[row + i] /= static_cast<float>(std::sqrt(sum));
  }
}

inline Tokens random_tokens(const Layout& layout, int32_t count, uint32_t seed,
                            float deepest_decay = -0.2f, float largest_beta = 1.0f) {
  const leapquant_shape& shape = layout.shape;
  std::mt19937 random(seed);
  const auto size = [&](int64_t a, int64_t b) { return static_cast<size_t>(count * a * b); };
  const int32_t n = shape.sub_steps;
  Tokens tokens;
  tokens.q = normal(&random, size(shape.num_k_heads, shape.head_k_dim), 0.1f);
  tokens.k = normal(&random, size(n * shape.num_k_heads, shape.head_k_dim), 1.0f);
  normalise_rows(&tokens.k, static_cast<size_t>(shape.head_k_dim));
  tokens.v = normal(&random, size(n * shape.num_v_heads, shape.head_v_dim), 1.0f);
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  if (shape.decay == LEAPQUANT_DECAY_SCALAR || shape.decay == LEAPQUANT_DECAY_VECTOR) {
    const int32_t width = shape.decay == LEAPQUANT_DECAY_VECTOR ? shape.head_k_dim : 1;
    tokens.log_decay.resize(size(shape.num_v_heads, width));
    for (float& g : tokens.log_decay) g = deepest_decay * unit(random);
  }
  tokens.beta.resize(size(n, shape.num_v_heads));
  for (float& beta : tokens.beta) beta = largest_beta * unit(random);
  return tokens;
}

inline void run_threads(void* context, int32_t num_tasks, leapquant_task task, void* argument) {
  const int32_t workers = *static_cast<int32_t*>(context);
  std::vector<std::thread> threads;
  for (int32_t w = 0; w < workers; ++w) {
    threads.emplace_back([=] {
      for (int32_t i = w; i < num_tasks; i += workers) task(argument, i, w);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Pool memory of one backend; slots hold garbage until reset.
class Bed {
 public:
  Bed(const Backend& backend, const Layout& layout, int32_t slots, int32_t workers = 1)
      : backend_(backend), layout_(layout), workers_(workers), slots_(slots) {
    states_.resize(aligned(layout.state_bytes * slots), Block{});
    windows_.resize(aligned(layout.window.bytes * slots), Block{});
    std::memset(states_.data(), 0x5c, states_.size() * sizeof(Block));
    std::memset(windows_.data(), 0x5c, windows_.size() * sizeof(Block));
    base_.resize(static_cast<size_t>(slots * layout.shape.num_v_heads), -7);
    health_.resize(base_.size());
    workspace_.resize(aligned(static_cast<int64_t>((backend.workspace_per_worker(layout) + 128) *
                                                   static_cast<size_t>(workers))));
    for (int32_t s = 0; s < slots; ++s) reset(s, 0);
  }

  leapquant_pool pool() {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    pool.num_state_slots = slots_;
    pool.num_window_slots = layout_.window.bytes == 0 ? 0 : slots_;
    pool.states = states_.data();
    pool.state_stride_bytes = layout_.state_bytes;
    pool.windows = windows_.data();
    pool.window_stride_bytes = layout_.window.bytes;
    pool.base = base_.data();
    pool.health = health_.data();
    return pool;
  }
  leapquant_launch launch() {
    runner_ = {&workers_, workers_, run_threads};
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.runner = workers_ > 1 ? &runner_ : nullptr;
    launch.workspace = workspace_.data();
    launch.workspace_bytes = workspace_.size() * sizeof(Block);
    return launch;
  }
  void reset(int32_t slot, int32_t position) {
    EXPECT_EQ(backend_.reset(layout_, pool(), 1, &slot, nullptr, &position, launch()),
              LEAPQUANT_OK);
  }

  // Tokens offsets[i]..offsets[i + 1] - 1 of the packed inputs go to slots[i]. FP32 [total, HV, V].
  std::vector<float> prefill(const Tokens& tokens, const std::vector<int32_t>& slots,
                             const std::vector<int32_t>& positions,
                             const std::vector<int32_t>& offsets,
                             const std::vector<leapquant_checkpoint>& checkpoints = {},
                             bool through = false) {
    const size_t row = static_cast<size_t>(layout_.shape.num_v_heads * layout_.shape.head_v_dim);
    std::vector<float> outputs(static_cast<size_t>(offsets.back()) * row, NAN);
    status.assign(slots.size(), -1);
    leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
    args.batch = static_cast<int32_t>(slots.size());
    args.state_slots = slots.data();
    args.positions = positions.data();
    args.token_offsets = offsets.data();
    args.inputs = tokens.inputs();
    args.output.data = outputs.data();
    args.num_checkpoints = static_cast<int32_t>(checkpoints.size());
    args.checkpoints = checkpoints.data();
    args.through = through ? 1 : 0;
    args.status = status.data();
    EXPECT_EQ(backend_.prefill(layout_, pool(), args, launch()), LEAPQUANT_OK);
    return outputs;
  }

  // One decode call of `count` tokens per sequence, from token `first` of inputs that are laid out
  // [batch, total, ..].
  std::vector<float> decode(const Tokens& tokens, const std::vector<int32_t>& slots,
                            const std::vector<int32_t>& positions, int32_t count,
                            const std::vector<int32_t>& num_tokens = {}) {
    const size_t row = static_cast<size_t>(layout_.shape.num_v_heads * layout_.shape.head_v_dim);
    std::vector<float> outputs(slots.size() * static_cast<size_t>(count) * row, NAN);
    status.assign(slots.size(), -1);
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = static_cast<int32_t>(slots.size());
    args.tokens = count;
    args.state_slots = slots.data();
    args.positions = positions.data();
    args.num_tokens = num_tokens.empty() ? nullptr : num_tokens.data();
    args.inputs = tokens.inputs();
    args.output.data = outputs.data();
    args.status = status.data();
    EXPECT_EQ(backend_.decode(layout_, pool(), args, launch()), LEAPQUANT_OK);
    return outputs;
  }

  // FP32 [HV, K, V] unless asked otherwise.
  std::vector<float> state(int32_t slot, int32_t position, leapquant_order order = LEAPQUANT_KV) {
    const leapquant_shape& shape = layout_.shape;
    std::vector<float> matrices(
        static_cast<size_t>(shape.num_v_heads * shape.head_k_dim * shape.head_v_dim), NAN);
    status.assign(1, -1);
    leapquant_transfer_args args = transfer(&slot, &position, matrices.data());
    args.order = order;
    EXPECT_EQ(backend_.export_states(layout_, pool(), args, launch()), LEAPQUANT_OK);
    return matrices;
  }
  void import(int32_t slot, int32_t position, std::vector<float> matrices,
              leapquant_order order = LEAPQUANT_KV) {
    status.assign(1, -1);
    leapquant_transfer_args args = transfer(&slot, &position, matrices.data());
    args.order = order;
    EXPECT_EQ(backend_.import_states(layout_, pool(), args, launch()), LEAPQUANT_OK);
  }
  void copy(int32_t from, int32_t to) {
    EXPECT_EQ(backend_.copy(layout_, pool(), 1, &from, nullptr, &to, nullptr, launch()),
              LEAPQUANT_OK);
  }

  // Everything that a call may change in a slot.
  std::vector<std::byte> bytes(int32_t slot) {
    const leapquant_pool p = pool();
    std::vector<std::byte> all;
    const auto add = [&](const void* from, int64_t count) {
      const std::byte* begin = static_cast<const std::byte*>(from);
      all.insert(all.end(), begin, begin + count);
    };
    add(static_cast<std::byte*>(p.states) + slot * layout_.state_bytes, layout_.state_bytes);
    add(static_cast<std::byte*>(p.windows) + slot * layout_.window.bytes, layout_.window.bytes);
    add(&base_of(layout_, p, slot, 0), layout_.shape.num_v_heads * int64_t{sizeof(int32_t)});
    add(health_of(layout_, p, slot, 0),
        layout_.shape.num_v_heads * int64_t{sizeof(leapquant_health)});
    return all;
  }

  std::vector<int32_t> status;

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  static size_t aligned(int64_t bytes) { return static_cast<size_t>(bytes / 64 + 1); }
  leapquant_transfer_args transfer(const int32_t* slot, const int32_t* position, float* matrices) {
    leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
    args.batch = 1;
    args.state_slots = slot;
    args.positions = position;
    args.matrices = matrices;
    args.type = LEAPQUANT_FP32;
    args.status = status.data();
    return args;
  }

  const Backend& backend_;
  const Layout& layout_;
  int32_t workers_;
  int32_t slots_;
  leapquant_runner runner_ = {};
  std::vector<Block> states_, windows_, workspace_;
  std::vector<int32_t> base_;
  std::vector<leapquant_health> health_;
};

// Largest difference over the largest expected magnitude; infinite where a value is not finite.
inline double relative_difference(const std::vector<float>& actual,
                                  const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0.0;
  double scale = 1e-30;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) return INFINITY;
    difference = std::max(difference, std::fabs(double{actual[i]} - expected[i]));
    scale = std::max(scale, std::fabs(double{expected[i]}));
  }
  return difference / scale;
}

}  // namespace leapquant::cpu_bed
