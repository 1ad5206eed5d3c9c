// SPDX-License-Identifier: Apache-2.0
//
// See format_layer.h.
#include "lab/format_layer.h"

#include <cstdlib>
#include <new>

#include "runtime/error.h"

namespace leapquant::lab {
namespace {

constexpr std::size_t kAlignment = 64;

void* allocate(std::int64_t bytes, int sequences) {
  const std::size_t rounded =
      (static_cast<std::size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw runtime::Error("The system refused " + std::to_string(bytes) +
                         " bytes of memory for recurrent states" +
                         (sequences > 1 ? "; use fewer sequences." : "."));
  }
  return memory;
}

leapquant_tensor fp32(const float* data) {
  leapquant_tensor tensor{};
  tensor.data = data;
  tensor.type = LEAPQUANT_FP32;
  return tensor;
}

}  // namespace

void require_ok(leapquant_status status, const std::string& what) {
  if (status == LEAPQUANT_OK) return;
  const std::string detail = leapquant_last_error();
  throw runtime::Error(what +
                       " failed: " + (detail.empty() ? leapquant_status_string(status) : detail));
}

runtime::StateLayout create_layout(const LayerShape& shape, const runtime::LayerFormat& format,
                                   leapquant_decay decay) {
  leapquant_shape description = LEAPQUANT_INIT(leapquant_shape);
  description.num_k_heads = shape.num_k_heads;
  description.num_v_heads = shape.num_v_heads;
  description.head_k_dim = shape.head_k_dim;
  description.head_v_dim = shape.head_v_dim;
  description.decay = decay;
  description.delta_rule = 1;
  return {description, format};
}

void PoolMemory::Free::operator()(void* memory) const { std::free(memory); }

PoolMemory::PoolMemory(const runtime::StateLayout& layout, int num_v_heads, int slots)
    : num_v_heads_(num_v_heads) {
  const leapquant_sizes sizes = layout.sizes();
  const auto rows = static_cast<std::size_t>(slots) * static_cast<std::size_t>(num_v_heads);
  states_.reset(allocate(sizes.state_bytes * slots, slots));
  windows_.reset(allocate(sizes.window_bytes * slots, slots));
  base_.resize(rows);
  health_.resize(rows);
  bytes_ = (sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes) * slots;
  pool_.struct_size = sizeof(pool_);
  pool_.num_state_slots = slots;
  pool_.num_window_slots = sizes.window_bytes > 0 ? slots : 0;
  pool_.states = states_.get();
  pool_.state_stride_bytes = sizes.state_bytes;
  pool_.windows = sizes.window_bytes > 0 ? windows_.get() : nullptr;
  pool_.window_stride_bytes = sizes.window_bytes;
  pool_.base = base_.data();
  pool_.health = health_.data();
}

const leapquant_health& PoolMemory::health(int slot, int v_head) const {
  return health_[static_cast<std::size_t>(slot * num_v_heads_ + v_head)];
}

Workspace::Workspace(const runtime::StateLayout& layout, int workers, int batch)
    : bytes_(leapquant_workspace_bytes(layout.get(), workers, batch)) {
  memory_.resize(bytes_ + kAlignment);
  void* start = memory_.data();
  std::size_t room = memory_.size();
  aligned_ = std::align(kAlignment, bytes_, start, room);
}

leapquant_launch Workspace::launch(const leapquant_runner* runner) const {
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.runner = runner;
  launch.workspace = aligned_;
  launch.workspace_bytes = bytes_;
  return launch;
}

FormatLayer::FormatLayer(const LayerShape& shape, const runtime::LayerFormat& format)
    : shape_(shape),
      layout_(create_layout(shape, format)),
      memory_(layout_, shape.num_v_heads, 1),
      workspace_(layout_, 1, 1) {
  const std::int32_t slot = 0;
  const std::int32_t start = 0;
  const leapquant_launch launch = workspace_.launch(nullptr);
  require_ok(leapquant_reset(layout_.get(), &memory_.pool(), 1, &slot, nullptr, &start, &launch),
             "Clearing a state");
}

void FormatLayer::advance(const LayerInputs& inputs, std::span<float> outputs) {
  const std::int32_t slot = 0;
  std::int32_t status = 0;
  const leapquant_launch launch = workspace_.launch(nullptr);
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = 1;
  args.tokens = 1;
  args.state_slots = &slot;
  args.positions = &position_;
  args.status = &status;
  args.inputs.struct_size = sizeof(args.inputs);
  args.output.type = LEAPQUANT_FP32;
  for (int t = 0; t < inputs.tokens; ++t) {
    const auto token = static_cast<std::size_t>(t);
    const std::size_t gates = token * static_cast<std::size_t>(shape_.num_v_heads);
    args.inputs.q = fp32(inputs.q.data() + token * shape_.k_row());
    args.inputs.k = fp32(inputs.k.data() + token * shape_.k_row());
    args.inputs.v = fp32(inputs.v.data() + token * shape_.v_row());
    args.inputs.log_decay = fp32(inputs.log_decay.data() + gates);
    args.inputs.beta = fp32(inputs.beta.data() + gates);
    args.output.data = outputs.data() + token * shape_.v_row();
    require_ok(leapquant_decode(layout_.get(), &memory_.pool(), &args, &launch),
               "Decoding recorded layer inputs");
    ++position_;
  }
}

std::vector<float> FormatLayer::matrices() const {
  std::vector<float> result(shape_.v_row() * static_cast<std::size_t>(shape_.head_k_dim));
  const std::int32_t slot = 0;
  std::int32_t status = 0;
  const leapquant_launch launch = workspace_.launch(nullptr);
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = &slot;
  args.positions = &position_;
  args.matrices = result.data();
  args.type = LEAPQUANT_FP32;
  args.order = LEAPQUANT_KV;
  args.status = &status;
  require_ok(leapquant_export(layout_.get(), &memory_.pool(), &args, &launch), "Exporting a state");
  return result;
}

}  // namespace leapquant::lab
