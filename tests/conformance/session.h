// SPDX-License-Identifier: Apache-2.0
//
// One backend at work on one pool: calls the backend's table directly, with checks of what every
// call owes (return value, padding bytes). Memory starts as garbage: slots must be reset first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/backends.h"
#include "conformance/tokens.h"

namespace leapquant::conformance {

// A pool and the memory behind it. Slots lie `kGap` bytes apart, which nobody may touch.
class PoolMemory {
 public:
  static constexpr int64_t kGap = 48;
  PoolMemory(const Layout& layout, int32_t num_slots);
  leapquant_pool pool();
  // All bytes that a call may change: states, windows, base, health.
  std::vector<std::byte> slot_bytes(int32_t slot);
  std::vector<std::byte> state_bytes(int32_t slot);
  bool gaps_untouched() const;

  int32_t* base(int32_t slot) { return base_.data() + int64_t{slot} * num_v_heads_; }
  leapquant_health* health(int32_t slot) { return health_.data() + int64_t{slot} * num_v_heads_; }

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  int32_t num_slots_;
  int32_t num_v_heads_;
  int64_t state_bytes_, window_bytes_;
  std::vector<Block> states_, windows_;
  std::vector<int32_t> base_;
  std::vector<leapquant_health> health_;
};

// Runs tasks on `num_workers` threads, tasks dealt in turn.
leapquant_runner thread_runner(const int32_t* num_workers);

// One sequence's part of a decode call.
struct Row {
  int32_t slot = 0;
  int32_t position = 0;
  const Tokens* tokens = nullptr;  // null for a padding row
  int32_t first = 0;               // tokens first..first+count-1 are given
  int32_t count = 0;
};

using Outputs = std::vector<float>;  // [tokens, HV, V]

Layout make_test_layout(const leapquant_shape& shape, const std::string& format);
Layout make_test_layout(const leapquant_shape& shape, const leapquant_format& format);

class Session {
 public:
  Session(const TestBackend& backend, const Layout& layout, int32_t num_slots);

  const Layout& layout() const { return layout_; }
  PoolMemory& memory() { return memory_; }
  // Statuses of the last call, one per row.
  const std::vector<int32_t>& status() const { return status_; }
  void set_num_workers(int32_t workers) { num_workers_ = workers; }
  // Decode and prefill calls also run the oracle: the reference on a copy of the pool. See
  // oracle().
  void shadow(bool on) { shadow_ = on; }
  // FP64 outputs of the last shadowed call per row, [count, HV, V].
  const std::vector<std::vector<double>>& oracle() const { return oracle_; }

  void reset(int32_t slot, int32_t position = 0);
  // One call. Returns each row's outputs, [tokens, HV, V] with `tokens` the largest count unless
  // given; tokens past a row's count are NaN in the inputs, and checked to be zero in the outputs.
  std::vector<Outputs> decode(const std::vector<Row>& rows, int32_t tokens = 0);
  // One call for one sequence.
  Outputs decode_one(int32_t slot, int32_t position, const Tokens& tokens, int32_t first,
                     int32_t count);
  // One call with inputs as they are, for one sequence; outputs of any type, converted to FP32.
  Outputs decode_inputs(int32_t slot, int32_t position, const leapquant_inputs& inputs,
                        int32_t tokens, int32_t output_type = LEAPQUANT_FP32);
  // Tokens first..first+count-1 in calls of `step` tokens; all outputs, [count, HV, V].
  Outputs decode_steps(int32_t slot, int32_t position, const Tokens& tokens, int32_t first,
                       int32_t count, int32_t step = 1);
  // Packed varlen prefill; returns each row's outputs.
  std::vector<Outputs> prefill(const std::vector<Row>& rows,
                               const std::vector<leapquant_checkpoint>& checkpoints = {},
                               bool through = false);
  // Forced fold; destination < 0: in place.
  void fold(int32_t slot, int32_t position, int32_t destination = -1);
  // FP32 state [HV, K, V] after `position` tokens.
  std::vector<float> export_state(int32_t slot, int32_t position, int32_t type = LEAPQUANT_FP32,
                                  int32_t order = LEAPQUANT_KV);
  void import_state(int32_t slot, int32_t position, const std::vector<float>& matrices,
                    int32_t order = LEAPQUANT_KV);
  void copy(int32_t from, int32_t to);

  // FP64 state [K, V] of one head: what the stored bytes mean, by the reference.
  std::vector<double> state(int32_t slot, int32_t v_head, int32_t position);

 private:
  leapquant_launch launch(int32_t batch);
  void finish(Status returned);

  TestBackend backend_;
  Layout layout_;
  PoolMemory memory_;
  int32_t num_workers_ = 1;
  leapquant_runner runner_ = {};
  std::vector<std::byte> workspace_;
  std::vector<int32_t> status_;
  bool shadow_ = false;
  std::vector<std::vector<double>> oracle_;
};

// Largest over heads and groups of `group` tokens of |actual - expected|_2 / |expected|_2; both
// [tokens, heads, v_dim]. A group whose expected norm is below `floor` is measured against floor.
double worst_relative_error(const std::vector<float>& actual, const std::vector<double>& expected,
                            int32_t heads, int32_t v_dim, int32_t group = 16, double floor = 1e-30);
// |a - b|_2 / |b|_2.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);
double norm(const std::vector<double>& a);

}  // namespace leapquant::conformance
