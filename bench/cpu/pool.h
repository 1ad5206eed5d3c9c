// SPDX-License-Identifier: Apache-2.0
//
// One layer's pool and the inputs of one token for the CPU benchmarks, through the C API.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "leapquant/leapquant.h"

namespace leapquant::bench {

inline void require(leapquant_status status) {
  if (status == LEAPQUANT_OK) return;
  std::fprintf(stderr, "%s\n", leapquant_last_error());
  std::exit(1);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;
inline Memory allocate(size_t bytes) {
  Memory memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  std::memset(memory.get(), 0, (bytes + 63) / 64 * 64);
  return memory;
}

// 32 value heads of 128x128, 16 key heads (grouped) or 32; scalar or vector decays.
class Pool {
 public:
  Pool(const char* text, leapquant_decay decay, int32_t k_heads, int32_t sequences, int32_t workers)
      : sequences_(sequences) {
    leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
    shape.num_k_heads = k_heads;
    shape.num_v_heads = kHeads;
    shape.head_k_dim = kDim;
    shape.head_v_dim = kDim;
    shape.decay = decay;
    shape.delta_rule = 1;
    leapquant_format format = LEAPQUANT_INIT(leapquant_format);
    require(leapquant_format_from_string(text, &format));
    require(leapquant_layout_create(&shape, &format, 1, nullptr, LEAPQUANT_CPU, &layout_));
    require(leapquant_bytes_per_slot(layout_, &sizes_));
    states_ = allocate(static_cast<size_t>(sizes_.state_bytes * sequences));
    windows_ = allocate(static_cast<size_t>(sizes_.window_bytes * sequences) + 64);
    base_.resize(static_cast<size_t>(sequences) * kHeads);
    health_.resize(base_.size());
    workspace_bytes_ = leapquant_workspace_bytes(layout_, workers, sequences);
    workspace_ = allocate(workspace_bytes_);
    require(leapquant_threads_create(workers, &threads_));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> unit(0.0f, 1.0f);
    const auto fill = [&](std::vector<float>* values, size_t count, float scale) {
      values->resize(count);
      for (float& x : *values) x = scale * normal(random);
    };
    const size_t n = static_cast<size_t>(sequences);
    fill(&q_, n * static_cast<size_t>(k_heads) * kDim, 0.08f);
    fill(&k_, q_.size(), 0.088f);
    fill(&v_, n * kHeads * kDim, 1.0f);
    g_.resize(n * kHeads * (decay == LEAPQUANT_DECAY_VECTOR ? kDim : 1));
    for (float& g : g_) g = -0.05f * unit(random);
    beta_.resize(n * kHeads);
    for (float& beta : beta_) beta = unit(random);
    output_.resize(v_.size());
    slots_.resize(n);
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), random);
    positions_.resize(n);
    status_.resize(n);
    pool_.num_state_slots = pool_.num_window_slots = sequences;
    pool_.states = states_.get();
    pool_.state_stride_bytes = sizes_.state_bytes;
    pool_.windows = windows_.get();
    pool_.window_stride_bytes = sizes_.window_bytes;
    pool_.base = base_.data();
    pool_.health = health_.data();
    launch_.runner = leapquant_threads_runner(threads_);
    launch_.workspace = workspace_.get();
    launch_.workspace_bytes = workspace_bytes_;
    require(leapquant_reset(layout_, &pool_, sequences, slots_.data(), nullptr, positions_.data(),
                            &launch_));
  }
  ~Pool() {
    leapquant_threads_destroy(threads_);
    leapquant_layout_destroy(layout_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // One token of every sequence, or of `count` of them from `first` on.
  void step() { step(0, sequences_); }
  void step(int32_t first, int32_t count) {
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = count;
    args.tokens = 1;
    args.state_slots = slots_.data() + first;
    args.positions = positions_.data() + first;
    args.status = status_.data();
    args.inputs.q.data = q_.data();
    args.inputs.k.data = k_.data();
    args.inputs.v.data = v_.data();
    args.inputs.log_decay.data = g_.data();
    args.inputs.beta.data = beta_.data();
    args.output.data = output_.data();
    require(leapquant_decode(layout_, &pool_, &args, &launch_));
    for (int32_t i = first; i < first + count; ++i) ++positions_[static_cast<size_t>(i)];
  }
  // Folds every head at the position.
  void fold() {
    leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
    args.batch = sequences_;
    args.state_slots = slots_.data();
    args.positions = positions_.data();
    args.status = status_.data();
    require(leapquant_fold(layout_, &pool_, &args, &launch_));
  }

  const leapquant_sizes& sizes() const { return sizes_; }
  static constexpr int32_t kHeads = 32;
  static constexpr int32_t kDim = 128;

 private:
  int32_t sequences_;
  leapquant_layout* layout_ = nullptr;
  leapquant_sizes sizes_ = LEAPQUANT_INIT(leapquant_sizes);
  leapquant_threads* threads_ = nullptr;
  Memory states_, windows_, workspace_;
  size_t workspace_bytes_ = 0;
  std::vector<int32_t> base_, slots_, positions_, status_;
  std::vector<leapquant_health> health_;
  std::vector<float> q_, k_, v_, g_, beta_, output_;
  leapquant_pool pool_ = LEAPQUANT_INIT(leapquant_pool);
  leapquant_launch launch_ = LEAPQUANT_INIT(leapquant_launch);
};

}  // namespace leapquant::bench
