// SPDX-License-Identifier: Apache-2.0
//
// Builds argument structs, calls, checks what every call owes.
#include "conformance/session.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "core/format.h"
#include "core/numeric.h"
#include "reference/decode.h"
#include "reference/fold.h"
#include "reference/prefill.h"

namespace leapquant::conformance {
namespace {

constexpr std::byte kGarbage{0xff};  // a NaN in every float type

int64_t blocks(int64_t bytes) { return (bytes + 63) / 64; }

template <typename T>
std::vector<std::byte> bytes_of(const T* data, int64_t count) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return std::vector<std::byte>(begin, begin + count * static_cast<int64_t>(sizeof(T)));
}

[[noreturn]] void stop(const char* text) {
  std::fprintf(stderr, "test set-up: %s\n", text);
  std::abort();
}

// Layouts do not copy: this makes the same one again.
Layout same_layout(const Layout& from) {
  std::vector<leapquant_format> formats;
  for (const BoundaryLayout& head : from.classes) formats.push_back(head.format);
  leapquant_shape shape = from.shape;
  shape.constant_log_decay = from.decays.data();
  Layout layout;
  Sentence sentence;
  if (make_layout(shape, formats.data(), static_cast<int32_t>(formats.size()),
                  from.head_class.data(), &layout, &sentence) != LEAPQUANT_OK) {
    stop(sentence.text);
  }
  return layout;
}

}  // namespace

PoolMemory::PoolMemory(const Layout& layout, int32_t num_slots)
    : num_slots_(num_slots),
      num_v_heads_(layout.shape.num_v_heads),
      state_bytes_(layout.state_bytes),
      window_bytes_(layout.window.bytes),
      states_(static_cast<size_t>(blocks((state_bytes_ + kGap) * num_slots))),
      windows_(static_cast<size_t>(blocks((window_bytes_ + kGap) * num_slots))),
      base_(static_cast<size_t>(num_slots * num_v_heads_), -7777),
      health_(static_cast<size_t>(num_slots * num_v_heads_)) {
  std::memset(states_.data(), static_cast<int>(kGarbage), states_.size() * sizeof(Block));
  std::memset(windows_.data(), static_cast<int>(kGarbage), windows_.size() * sizeof(Block));
  std::memset(health_.data(), static_cast<int>(kGarbage), health_.size() * sizeof(health_[0]));
}

leapquant_pool PoolMemory::pool() {
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  pool.num_state_slots = num_slots_;
  pool.num_window_slots = window_bytes_ > 0 ? num_slots_ : 0;
  pool.states = states_.data();
  pool.state_stride_bytes = state_bytes_ + kGap;
  pool.windows = window_bytes_ > 0 ? windows_.data() : nullptr;
  pool.window_stride_bytes = window_bytes_ + kGap;
  pool.base = base_.data();
  pool.health = health_.data();
  return pool;
}

std::vector<std::byte> PoolMemory::state_bytes(int32_t slot) {
  const auto* start = reinterpret_cast<std::byte*>(states_.data()) + slot * (state_bytes_ + kGap);
  return bytes_of(start, state_bytes_);
}

std::vector<std::byte> PoolMemory::slot_bytes(int32_t slot) {
  std::vector<std::byte> all = state_bytes(slot);
  const auto add = [&all](const std::vector<std::byte>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  add(bytes_of(reinterpret_cast<std::byte*>(windows_.data()) + slot * (window_bytes_ + kGap),
               window_bytes_));
  add(bytes_of(base(slot), num_v_heads_));
  add(bytes_of(health(slot), num_v_heads_));
  return all;
}

bool PoolMemory::gaps_untouched() const {
  const auto clean = [this](const std::vector<Block>& memory, int64_t used) {
    const auto* start = reinterpret_cast<const std::byte*>(memory.data());
    for (int32_t slot = 0; slot < num_slots_; ++slot) {
      const std::byte* gap = start + slot * (used + kGap) + used;
      if (!std::all_of(gap, gap + kGap, [](std::byte b) { return b == kGarbage; })) return false;
    }
    return true;
  };
  return clean(states_, state_bytes_) && clean(windows_, window_bytes_);
}

leapquant_runner thread_runner(const int32_t* num_workers) {
  leapquant_runner runner = {};
  runner.context = const_cast<int32_t*>(num_workers);
  runner.num_workers = *num_workers;
  runner.run = [](void* context, int32_t num_tasks, leapquant_task task, void* argument) {
    const int32_t workers = *static_cast<const int32_t*>(context);
    std::atomic<int32_t> next{0};
    const auto work = [&](int32_t worker) {
      for (int32_t i = next++; i < num_tasks; i = next++) task(argument, i, worker);
    };
    std::vector<std::thread> threads;
    for (int32_t w = 1; w < workers; ++w) threads.emplace_back(work, w);
    work(0);
    for (std::thread& thread : threads) thread.join();
  };
  return runner;
}

Layout make_test_layout(const leapquant_shape& shape, const leapquant_format& format) {
  Layout layout;
  Sentence sentence;
  if (make_layout(shape, &format, 1, nullptr, &layout, &sentence) != LEAPQUANT_OK) {
    stop(sentence.text);
  }
  return layout;
}

Layout make_test_layout(const leapquant_shape& shape, const std::string& text) {
  std::vector<leapquant_format> formats(8);
  std::vector<uint8_t> head_format(static_cast<size_t>(shape.num_v_heads));
  int32_t num_formats = 0;
  Sentence sentence;
  Layout layout;
  if (parse_formats(text.c_str(), 0, shape.num_v_heads, formats.data(), 8, &num_formats,
                    head_format.data(), &sentence) != LEAPQUANT_OK ||
      make_layout(shape, formats.data(), num_formats, head_format.data(), &layout, &sentence) !=
          LEAPQUANT_OK) {
    stop(sentence.text);
  }
  return layout;
}

Session::Session(const TestBackend& backend, const Layout& layout, int32_t num_slots)
    : backend_(backend), layout_(same_layout(layout)), memory_(layout, num_slots) {
  Sentence why_not;
  if (backend_.table->accepts(layout_, &why_not) != LEAPQUANT_OK) stop(why_not.text);
}

leapquant_launch Session::launch(int32_t batch) {
  const size_t per_worker = (backend_.table->workspace_per_worker(layout_) + 63) / 64 * 64;
  const size_t per_sequence = (backend_.table->workspace_per_sequence(layout_) + 63) / 64 * 64;
  const size_t bytes =
      per_worker * static_cast<size_t>(num_workers_) + per_sequence * static_cast<size_t>(batch);
  if (workspace_.size() < bytes + 64) workspace_.assign(bytes + 64, kGarbage);
  leapquant_launch result = LEAPQUANT_INIT(leapquant_launch);
  result.check = LEAPQUANT_CHECK_OFF;
  const auto address = reinterpret_cast<uintptr_t>(workspace_.data());
  result.workspace = workspace_.data() + (64 - address % 64) % 64;
  result.workspace_bytes = bytes;
  if (num_workers_ > 1) {
    runner_ = thread_runner(&num_workers_);
    result.runner = &runner_;
  }
  status_.assign(static_cast<size_t>(batch), -1);
  return result;
}

void Session::finish(Status returned) {
  EXPECT_EQ(returned, LEAPQUANT_OK);
  EXPECT_TRUE(memory_.gaps_untouched()) << "a call wrote between the slots";
  for (int32_t status : status_) EXPECT_GE(status, 0) << "a row was left without a status";
}

void Session::reset(int32_t slot, int32_t position) {
  const leapquant_launch call = launch(1);
  status_[0] = 0;
  finish(backend_.table->reset(layout_, memory_.pool(), 1, &slot, nullptr, &position, call));
}

std::vector<Outputs> Session::decode(const std::vector<Row>& rows, int32_t tokens) {
  const auto batch = static_cast<int32_t>(rows.size());
  const Tokens* like = nullptr;
  for (const Row& row : rows) {
    tokens = std::max(tokens, row.count);
    if (row.tokens != nullptr) like = row.tokens;
  }
  if (like == nullptr) stop("no row has tokens");
  tokens = std::max(tokens, 1);
  Tokens packed;
  std::vector<int32_t> slots, positions, counts;
  for (const Row& row : rows) {
    if (row.count > 0) append(&packed, slice(*row.tokens, row.first, row.count));
    append_poison(&packed, *like, tokens - row.count);
    slots.push_back(row.slot);
    positions.push_back(row.position);
    counts.push_back(row.count);
  }
  const size_t sequence_size = static_cast<size_t>(tokens) *
                               static_cast<size_t>(layout_.shape.num_v_heads) *
                               static_cast<size_t>(layout_.shape.head_v_dim);
  std::vector<float> outputs(rows.size() * sequence_size, std::numeric_limits<float>::quiet_NaN());

  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  const leapquant_launch call = launch(batch);
  args.batch = batch;
  args.tokens = tokens;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.num_tokens = counts.data();
  args.inputs = packed.inputs();
  args.output.data = outputs.data();
  args.output.type = LEAPQUANT_FP32;
  args.status = status_.data();

  oracle_.clear();
  if (shadow_) {
    PoolMemory other = memory_;
    std::vector<int32_t> other_status(rows.size());
    leapquant_decode_args other_args = args;
    other_args.status = other_status.data();
    std::vector<double> expected(outputs.size());
    reference::decode_fp64(layout_, other.pool(), other_args, expected.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin = expected.begin() + static_cast<int64_t>(i * sequence_size);
      oracle_.emplace_back(begin, begin + static_cast<int64_t>(sequence_size));
    }
  }
  finish(backend_.table->decode(layout_, memory_.pool(), args, call));

  std::vector<Outputs> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto begin = outputs.begin() + static_cast<int64_t>(i * sequence_size);
    result.emplace_back(begin, begin + static_cast<int64_t>(sequence_size));
    const size_t used =
        rows[i].slot < 0 || status_[i] != LEAPQUANT_OK
            ? 0
            : sequence_size / static_cast<size_t>(tokens) * static_cast<size_t>(rows[i].count);
    for (size_t e = used; e < sequence_size; ++e) {
      if (result[i][e] != 0.0f) {
        ADD_FAILURE() << "row " << i << ": an output that must be zero is " << result[i][e];
        break;
      }
    }
  }
  return result;
}

Outputs Session::decode_one(int32_t slot, int32_t position, const Tokens& tokens, int32_t first,
                            int32_t count) {
  return decode({{slot, position, &tokens, first, count}})[0];
}

Outputs Session::decode_inputs(int32_t slot, int32_t position, const leapquant_inputs& inputs,
                               int32_t tokens, int32_t output_type) {
  const size_t count = static_cast<size_t>(tokens) *
                       static_cast<size_t>(layout_.shape.num_v_heads) *
                       static_cast<size_t>(layout_.shape.head_v_dim);
  std::vector<float> wide(count, std::numeric_limits<float>::quiet_NaN());
  std::vector<uint16_t> narrow(count, 0x7fff);
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  const leapquant_launch call = launch(1);
  args.batch = 1;
  args.tokens = tokens;
  args.state_slots = &slot;
  args.positions = &position;
  args.inputs = inputs;
  args.output.type = output_type;
  args.output.data = output_type == LEAPQUANT_FP32 ? static_cast<void*>(wide.data())
                                                   : static_cast<void*>(narrow.data());
  args.status = status_.data();
  finish(backend_.table->decode(layout_, memory_.pool(), args, call));
  for (size_t i = 0; i < count && output_type != LEAPQUANT_FP32; ++i) {
    wide[i] = output_type == LEAPQUANT_FP16 ? fp16_to_float(narrow[i]) : bf16_to_float(narrow[i]);
  }
  return wide;
}

Outputs Session::decode_steps(int32_t slot, int32_t position, const Tokens& tokens, int32_t first,
                              int32_t count, int32_t step) {
  Outputs all;
  std::vector<double> expected;
  for (int32_t done = 0; done < count; done += step) {
    const int32_t now = std::min(step, count - done);
    const Outputs part = decode_one(slot, position + done, tokens, first + done, now);
    EXPECT_EQ(status_[0], LEAPQUANT_OK) << "token " << position + done;
    all.insert(all.end(), part.begin(), part.end());
    if (shadow_) expected.insert(expected.end(), oracle_[0].begin(), oracle_[0].end());
  }
  if (shadow_) oracle_ = {expected};
  return all;
}

std::vector<Outputs> Session::prefill(const std::vector<Row>& rows,
                                      const std::vector<leapquant_checkpoint>& checkpoints,
                                      bool through) {
  const auto batch = static_cast<int32_t>(rows.size());
  Tokens packed;
  std::vector<int32_t> slots, positions, offsets = {0};
  for (const Row& row : rows) {
    if (row.count > 0) append(&packed, slice(*row.tokens, row.first, row.count));
    slots.push_back(row.slot);
    positions.push_back(row.position);
    offsets.push_back(offsets.back() + row.count);
  }
  const size_t token_size = static_cast<size_t>(layout_.shape.num_v_heads) *
                            static_cast<size_t>(layout_.shape.head_v_dim);
  std::vector<float> outputs(static_cast<size_t>(offsets.back()) * token_size,
                             std::numeric_limits<float>::quiet_NaN());
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  const leapquant_launch call = launch(batch);
  args.batch = batch;
  args.state_slots = slots.data();
  args.positions = positions.data();
  args.token_offsets = offsets.data();
  args.inputs = packed.inputs();
  args.output.data = outputs.data();
  args.output.type = LEAPQUANT_FP32;
  args.num_checkpoints = static_cast<int32_t>(checkpoints.size());
  args.checkpoints = checkpoints.data();
  args.through = through ? 1 : 0;
  args.status = status_.data();

  oracle_.clear();
  if (shadow_) {
    PoolMemory other = memory_;
    std::vector<int32_t> other_status(rows.size());
    leapquant_prefill_args other_args = args;
    other_args.status = other_status.data();
    std::vector<double> expected(outputs.size());
    reference::prefill_fp64(layout_, other.pool(), other_args, expected.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin =
          expected.begin() + static_cast<int64_t>(static_cast<size_t>(offsets[i]) * token_size);
      oracle_.emplace_back(
          begin, begin + static_cast<int64_t>(static_cast<size_t>(rows[i].count) * token_size));
    }
  }
  finish(backend_.table->prefill(layout_, memory_.pool(), args, call));

  std::vector<Outputs> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto begin =
        outputs.begin() + static_cast<int64_t>(static_cast<size_t>(offsets[i]) * token_size);
    result.emplace_back(
        begin, begin + static_cast<int64_t>(static_cast<size_t>(rows[i].count) * token_size));
  }
  return result;
}

void Session::fold(int32_t slot, int32_t position, int32_t destination) {
  leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
  const leapquant_launch call = launch(1);
  args.batch = 1;
  args.state_slots = &slot;
  args.positions = &position;
  args.destination_slots = destination < 0 ? nullptr : &destination;
  args.status = status_.data();
  finish(backend_.table->fold(layout_, memory_.pool(), args, call));
}

std::vector<float> Session::export_state(int32_t slot, int32_t position, int32_t type,
                                         int32_t order) {
  const size_t count = static_cast<size_t>(layout_.shape.num_v_heads) *
                       static_cast<size_t>(layout_.shape.head_k_dim) *
                       static_cast<size_t>(layout_.shape.head_v_dim);
  std::vector<float> matrices(count, std::numeric_limits<float>::quiet_NaN());
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  const leapquant_launch call = launch(1);
  args.batch = 1;
  args.state_slots = &slot;
  args.positions = &position;
  args.matrices = matrices.data();
  args.type = type;
  args.order = order;
  args.status = status_.data();
  finish(backend_.table->export_states(layout_, memory_.pool(), args, call));
  return matrices;
}

void Session::import_state(int32_t slot, int32_t position, const std::vector<float>& matrices,
                           int32_t order) {
  std::vector<float> data = matrices;
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  const leapquant_launch call = launch(1);
  args.batch = 1;
  args.state_slots = &slot;
  args.positions = &position;
  args.matrices = data.data();
  args.type = LEAPQUANT_FP32;
  args.order = order;
  args.status = status_.data();
  finish(backend_.table->import_states(layout_, memory_.pool(), args, call));
}

void Session::copy(int32_t from, int32_t to) {
  const leapquant_launch call = launch(1);
  status_[0] = 0;
  finish(backend_.table->copy(layout_, memory_.pool(), 1, &from, nullptr, &to, nullptr, call));
}

std::vector<double> Session::state(int32_t slot, int32_t v_head, int32_t position) {
  return reference::rebuild(layout_, memory_.pool(), slot, slot, v_head, position);
}

double norm(const std::vector<double>& a) {
  double sum = 0.0;
  for (double x : a) sum += x * x;
  return std::sqrt(sum);
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

double worst_relative_error(const std::vector<float>& actual, const std::vector<double>& expected,
                            int32_t heads, int32_t v_dim, int32_t group, double floor) {
  EXPECT_EQ(actual.size(), expected.size());
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  const size_t head_size = static_cast<size_t>(v_dim);
  const size_t token_size = head_size * static_cast<size_t>(heads);
  const size_t group_size = token_size * static_cast<size_t>(group);
  double worst = 0.0;
  for (size_t start = 0; start < actual.size(); start += group_size) {
    for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
      double error = 0.0;
      double total = 0.0;
      for (size_t t = start; t < std::min(start + group_size, actual.size()); t += token_size) {
        for (size_t c = 0; c < head_size; ++c) {
          const size_t e = t + h * head_size + c;
          const double difference = static_cast<double>(actual[e]) - expected[e];
          error += difference * difference;
          total += expected[e] * expected[e];
        }
      }
      const double ratio = std::sqrt(error) / std::max(std::sqrt(total), floor);
      worst =
          std::isfinite(ratio) ? std::max(worst, ratio) : std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

}  // namespace leapquant::conformance
