// SPDX-License-Identifier: Apache-2.0
//
// One layer on the device through the C API: pool, workspace and the arrays of calls in device
// memory. Tensors are packed FP32, or q, k and v one behind the other in BF16 rows, as models have
// them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "capi/layout_handle.h"
#include "conformance/tokens.h"
#include "core/numeric.h"
#include "leapquant/leapquant.h"

namespace leapquant::cuda_test {

using conformance::Tokens;

inline void require(cudaError_t error) {
  ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}
inline void require(leapquant_status status) {
  ASSERT_EQ(status, LEAPQUANT_OK) << leapquant_last_error();
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count = 0) { resize(count); }
  explicit DeviceArray(const std::vector<T>& values) { put(values); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void resize(size_t count) {
    if (count <= count_) return;
    cudaFree(data_);
    data_ = nullptr;
    require(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    require(cudaMemset(data_, 0xff, count * sizeof(T)));
    count_ = count;
  }
  void put(const std::vector<T>& values) {
    resize(values.size());
    require(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get(size_t first, size_t count) const {
    std::vector<T> values(count);
    require(cudaMemcpy(values.data(), data_ + first, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// A layout of the C API; destroyed with the object.
class LayoutHandle {
 public:
  LayoutHandle(const leapquant_shape& shape, const std::string& text, leapquant_device device) {
    leapquant_format formats[8];
    std::vector<uint8_t> head_format(static_cast<size_t>(shape.num_v_heads));
    int32_t num_formats = 0;
    require(leapquant_formats_from_string(text.c_str(), 0, shape.num_v_heads, formats, 8,
                                          &num_formats, head_format.data()));
    require(leapquant_layout_create(&shape, formats, num_formats, head_format.data(), device,
                                    &layout_));
    sizes_ = LEAPQUANT_INIT(leapquant_sizes);
    require(leapquant_bytes_per_slot(layout_, &sizes_));
  }
  ~LayoutHandle() { leapquant_layout_destroy(layout_); }
  // From now on this built-in backend serves the layout, not the first that accepts it.
  void serve_with(const std::string& backend) {
    size_t count = 0;
    const Backend* const* tables = built_in_backends(&count);
    for (size_t i = 0; i < count; ++i) {
      if (backend == tables[i]->name) layout_->backend = tables[i];
    }
    ASSERT_EQ(backend, layout_->backend->name);
  }
  LayoutHandle(const LayoutHandle&) = delete;
  LayoutHandle& operator=(const LayoutHandle&) = delete;
  const leapquant_layout* get() const { return layout_; }
  const leapquant_sizes& sizes() const { return sizes_; }

 private:
  leapquant_layout* layout_ = nullptr;
  leapquant_sizes sizes_ = {};
};

// One sequence of a call.
struct Row {
  int32_t slot = 0;
  int32_t position = 0;
  int32_t count = 1;
};

class DeviceLayer {
 public:
  // state_gap, window_gap: bytes between slots, multiples of 16. backend: a name, or the first that
  // accepts.
  DeviceLayer(const leapquant_shape& shape, const std::string& format, int32_t num_slots,
              int32_t max_batch, int64_t state_gap = 0, int64_t window_gap = 0,
              const std::string& backend = "")
      : shape_(shape), layout_(shape, format, LEAPQUANT_CUDA), num_slots_(num_slots) {
    if (!backend.empty()) layout_.serve_with(backend);
    state_stride_ = layout_.sizes().state_bytes + state_gap;
    window_stride_ = layout_.sizes().window_bytes + window_gap;
    const auto slots = static_cast<size_t>(num_slots);
    states_.resize(slots * static_cast<size_t>(state_stride_));
    windows_.resize(slots * static_cast<size_t>(window_stride_));
    base_.resize(slots * static_cast<size_t>(shape.num_v_heads));
    health_.resize(slots * static_cast<size_t>(shape.num_v_heads));
    workspace_.resize(leapquant_workspace_bytes(layout_.get(), 1, max_batch));
    const auto batch = static_cast<size_t>(max_batch);
    slots_.resize(batch);
    positions_.resize(batch);
    counts_.resize(batch);
    status_.resize(batch);
  }

  const LayoutHandle& layout() const { return layout_; }
  const leapquant_shape& shape() const { return shape_; }
  // Activations from the next put_rows on are BF16, a row [q | k | v] a token; outputs are BF16.
  void use_bf16_rows() { bf16_ = true; }
  int64_t state_stride() const { return state_stride_; }
  size_t token_size() const {
    return static_cast<size_t>(shape_.num_v_heads) * static_cast<size_t>(shape_.head_v_dim);
  }

  leapquant_pool pool() const {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    pool.num_state_slots = num_slots_;
    pool.num_window_slots = layout_.sizes().window_bytes > 0 ? num_slots_ : 0;
    pool.states = states_.data();
    pool.state_stride_bytes = state_stride_;
    pool.windows = windows_.data();
    pool.window_stride_bytes = window_stride_;
    pool.base = base_.data();
    pool.health = health_.data();
    return pool;
  }
  leapquant_launch launch(cudaStream_t stream = nullptr,
                          int32_t check = LEAPQUANT_CHECK_DEFAULT) const {
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.check = check;
    launch.stream = stream;
    launch.workspace = workspace_.data();
    launch.workspace_bytes = leapquant_workspace_bytes(layout_.get(), 1, 1 << 20);
    return launch;
  }

  void reset(const std::vector<int32_t>& slots, int32_t position = 0) {
    slots_.put(slots);
    positions_.put(std::vector<int32_t>(slots.size(), position));
    const leapquant_pool p = pool();
    const leapquant_launch l = launch();
    require(leapquant_reset(layout_.get(), &p, static_cast<int32_t>(slots.size()), slots_.data(),
                            nullptr, positions_.data(), &l));
  }

  // Puts the rows and their tokens (packed, `tokens` a row) where decode_call reads them.
  void put_rows(const std::vector<Row>& rows, const Tokens& packed) {
    std::vector<int32_t> slots, positions, counts;
    for (const Row& row : rows) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
      counts.push_back(row.count);
    }
    slots_.put(slots);
    positions_.put(positions);
    counts_.put(counts);
    output_.resize(packed.v.size() / static_cast<size_t>(shape_.sub_steps));
    if (bf16_) {
      q_k_v_.put(bf16_rows(packed));
    } else {
      q_.put(packed.q);
      k_.put(packed.k);
      v_.put(packed.v);
    }
    if (!packed.log_decay.empty()) log_decay_.put(packed.log_decay);
    if (!packed.beta.empty()) beta_.put(packed.beta);
  }
  // The call on what was put. Outputs [batch, tokens, HV, V] stay on the device.
  leapquant_status decode_call(int32_t batch, int32_t tokens, cudaStream_t stream = nullptr,
                               int32_t check = LEAPQUANT_CHECK_DEFAULT,
                               const int32_t* windows = nullptr) {
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = batch;
    args.tokens = tokens;
    args.state_slots = slots_.data();
    args.window_slots = windows;
    args.positions = positions_.data();
    args.num_tokens = counts_.data();
    set_tensors(tokens, &args.inputs, &args.output);
    args.status = status_.data();
    const leapquant_pool p = pool();
    const leapquant_launch l = launch(stream, check);
    return leapquant_decode(layout_.get(), &p, &args, &l);
  }
  std::vector<float> decode(const std::vector<Row>& rows, const Tokens& packed,
                            int32_t tokens = 1) {
    put_rows(rows, packed);
    require(decode_call(static_cast<int32_t>(rows.size()), tokens));
    return outputs(rows.size() * static_cast<size_t>(tokens));
  }
  // The same for sequences of any lengths, packed one behind the other, and checkpoints in them.
  void put_sequences(const std::vector<Row>& rows, const Tokens& packed,
                     const std::vector<leapquant_checkpoint>& checkpoints = {}) {
    put_rows(rows, packed);
    std::vector<int32_t> offsets = {0};
    for (const Row& row : rows) offsets.push_back(offsets.back() + row.count);
    offsets_.put(offsets);
    checkpoints_.put(checkpoints);
  }
  leapquant_status prefill_call(int32_t batch, int32_t num_checkpoints = 0, bool through = false,
                                cudaStream_t stream = nullptr) {
    leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
    args.batch = batch;
    args.state_slots = slots_.data();
    args.positions = positions_.data();
    args.token_offsets = offsets_.data();
    args.num_checkpoints = num_checkpoints;
    args.checkpoints = num_checkpoints > 0 ? checkpoints_.data() : nullptr;
    args.through = through ? 1 : 0;
    set_tensors(1, &args.inputs, &args.output);
    args.status = status_.data();
    const leapquant_pool p = pool();
    const leapquant_launch l = launch(stream);
    return leapquant_prefill(layout_.get(), &p, &args, &l);
  }
  std::vector<float> outputs(size_t rows) const {
    std::vector<float> values = output_.get(0, rows * token_size());
    if (!bf16_) return values;
    std::vector<uint16_t> narrow(values.size());
    std::memcpy(narrow.data(), values.data(), narrow.size() * sizeof(uint16_t));
    for (size_t i = 0; i < narrow.size(); ++i) values[i] = bf16_to_float(narrow[i]);
    return values;
  }
  std::vector<int32_t> status(size_t batch) const { return status_.get(0, batch); }

  void fold(int32_t slot, int32_t position) {
    slots_.put({slot});
    positions_.put({position});
    leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
    args.batch = 1;
    args.state_slots = slots_.data();
    args.positions = positions_.data();
    args.status = status_.data();
    const leapquant_pool p = pool();
    const leapquant_launch l = launch();
    require(leapquant_fold(layout_.get(), &p, &args, &l));
    ASSERT_EQ(status(1)[0], LEAPQUANT_OK);
  }
  // FP32 state [HV, K, V].
  std::vector<float> export_state(int32_t slot, int32_t position) {
    const size_t count = token_size() * static_cast<size_t>(shape_.head_k_dim);
    matrices_.resize(count);
    slots_.put({slot});
    positions_.put({position});
    leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
    args.batch = 1;
    args.state_slots = slots_.data();
    args.positions = positions_.data();
    args.matrices = matrices_.data();
    args.type = LEAPQUANT_FP32;
    args.status = status_.data();
    const leapquant_pool p = pool();
    const leapquant_launch l = launch();
    require(leapquant_export(layout_.get(), &p, &args, &l));
    return matrices_.get(0, count);
  }

  // Everything that calls may change of a slot.
  std::vector<uint8_t> slot_bytes(int32_t slot) const {
    std::vector<uint8_t> all = state_bytes(slot);
    const auto window = windows_.get(static_cast<size_t>(slot * window_stride_),
                                     static_cast<size_t>(layout_.sizes().window_bytes));
    all.insert(all.end(), window.begin(), window.end());
    const auto heads = static_cast<size_t>(shape_.num_v_heads);
    const auto add = [&all](const auto& values) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      all.insert(all.end(), bytes, bytes + values.size() * sizeof(values[0]));
    };
    add(base_.get(static_cast<size_t>(slot) * heads, heads));
    add(health_.get(static_cast<size_t>(slot) * heads, heads));
    return all;
  }
  std::vector<uint8_t> state_bytes(int32_t slot) const {
    return states_.get(static_cast<size_t>(slot) * static_cast<size_t>(state_stride_),
                       static_cast<size_t>(layout_.sizes().state_bytes));
  }
  // Bytes between the states of a slot and the next.
  std::vector<uint8_t> gap_bytes(int32_t slot) const {
    const auto used = static_cast<size_t>(layout_.sizes().state_bytes);
    return states_.get(static_cast<size_t>(slot) * static_cast<size_t>(state_stride_) + used,
                       static_cast<size_t>(state_stride_) - used);
  }

  DeviceArray<int32_t>& slots() { return slots_; }
  DeviceArray<int32_t>& positions() { return positions_; }

 private:
  // tokens: of a sequence of the tensors.
  void set_tensors(int32_t tokens, leapquant_inputs* inputs, leapquant_output* output) const {
    inputs->q.data = q_.data();
    inputs->k.data = k_.data();
    inputs->v.data = v_.data();
    inputs->log_decay.data = log_decay_.data();
    inputs->beta.data = beta_.data();
    output->data = output_.data();
    output->type = bf16_ ? LEAPQUANT_BF16 : LEAPQUANT_FP32;
    if (bf16_) view_bf16_rows(tokens, inputs);
  }
  size_t key_row() const {
    return static_cast<size_t>(shape_.num_k_heads) * static_cast<size_t>(shape_.head_k_dim);
  }
  std::vector<uint16_t> bf16_rows(const Tokens& packed) const {
    std::vector<uint16_t> rows;
    const auto add = [&rows](const std::vector<float>& from, size_t row, size_t width) {
      for (size_t i = 0; i < width; ++i) rows.push_back(float_to_bf16(from[row * width + i]));
    };
    for (size_t row = 0; row < packed.q.size() / key_row(); ++row) {
      add(packed.q, row, key_row());
      add(packed.k, row, key_row());
      add(packed.v, row, token_size());
    }
    return rows;
  }
  void view_bf16_rows(int32_t tokens, leapquant_inputs* inputs) const {
    const auto row = static_cast<int64_t>((2 * key_row() + token_size()) * sizeof(uint16_t));
    leapquant_tensor* const views[] = {&inputs->q, &inputs->k, &inputs->v};
    for (size_t i = 0; i < 3; ++i) {
      views[i]->data = q_k_v_.data() + i * key_row();
      views[i]->type = LEAPQUANT_BF16;
      views[i]->token_stride_bytes = row;
      views[i]->sequence_stride_bytes = tokens * row;
    }
  }

  leapquant_shape shape_;
  LayoutHandle layout_;
  bool bf16_ = false;
  int32_t num_slots_;
  int64_t state_stride_ = 0;
  int64_t window_stride_ = 0;
  DeviceArray<uint8_t> states_, windows_, workspace_;
  DeviceArray<int32_t> base_, slots_, positions_, counts_, offsets_, status_;
  DeviceArray<leapquant_checkpoint> checkpoints_;
  DeviceArray<leapquant_health> health_;
  DeviceArray<float> q_, k_, v_, log_decay_, beta_, output_, matrices_;
  DeviceArray<uint16_t> q_k_v_;
};

// Token `index` of every sequence, packed one behind the other.
inline Tokens tokens_at(const std::vector<const Tokens*>& sequences,
                        const std::vector<int32_t>& index, int32_t count = 1) {
  Tokens packed;
  for (size_t i = 0; i < sequences.size(); ++i) {
    conformance::append(&packed, conformance::slice(*sequences[i], index[i], count));
  }
  return packed;
}

}  // namespace leapquant::cuda_test
