// SPDX-License-Identifier: Apache-2.0
//
// See pool_decode.h.
#include "lab/pool_decode.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace leapquant::lab {
namespace {

using Clock = std::chrono::steady_clock;

bool is_quantised(const leapquant_format& format) { return format.payload_bits <= 8; }

int window_of(const leapquant_format& format) {
  if (format.policy == LEAPQUANT_PER_STEP) return 1;
  return format.window > 0 ? format.window : 16;
}

// Rounds of the fit where the format leaves them to the library: see docs/FORMAT.md, "Fit".
int fit_rounds(const leapquant_format& format) {
  if (format.fit_rounds > 0) return format.fit_rounds;
  return format.num_int8 + format.num_int4 > 0 ? 1 : 2;
}

int count_sequences(std::int64_t pool_bytes, const leapquant_sizes& sizes) {
  return static_cast<int>((pool_bytes + sizes.state_bytes - 1) / sizes.state_bytes);
}

leapquant_tensor fp32(const std::vector<float>& data) {
  leapquant_tensor tensor{};
  tensor.data = data.data();
  tensor.type = LEAPQUANT_FP32;
  return tensor;
}

void normalise_rows(std::vector<float>& rows, int dim, float length) {
  for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(dim)) {
    float sum = 0;
    for (int i = 0; i < dim; ++i) sum += rows[row + i] * rows[row + i];
    for (int i = 0; i < dim; ++i) rows[row + i] *= length / std::sqrt(sum);
  }
}

// Activations of the size that trained layers see: unit keys, gates near those of slow heads.
void fill_inputs(const LayerShape& shape, LayerInputs& inputs) {
  std::mt19937 random(20260727);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  for (auto* rows : {&inputs.q, &inputs.k, &inputs.v}) {
    for (float& x : *rows) x = normal(random);
  }
  normalise_rows(inputs.k, shape.head_k_dim, 1);
  normalise_rows(inputs.q, shape.head_k_dim, 1 / std::sqrt(static_cast<float>(shape.head_k_dim)));
  for (float& g : inputs.log_decay) g = -0.05F * uniform(random);
  for (float& beta : inputs.beta) beta = uniform(random);
}

}  // namespace

DecodeWork decode_work(const LayerShape& shape, const leapquant_format& format,
                       const leapquant_sizes& sizes) {
  const double k_heads = shape.num_k_heads;
  const double v_heads = shape.num_v_heads;
  const double k_dim = shape.head_k_dim;
  const double v_dim = shape.head_v_dim;
  const double elements = v_heads * k_dim * v_dim;
  const double window = window_of(format);
  const bool per_step = format.policy == LEAPQUANT_PER_STEP;
  DecodeWork work;
  // FP32 activations: q, k per key head, v, output, decay and beta per value head.
  work.bytes = 4 * (2 * k_heads * k_dim + v_heads * (2 * v_dim + 2));
  work.bytes += static_cast<double>(sizes.state_bytes) * (1 + 1 / window);
  if (!per_step) {
    // FP16 write key per key head; FP16 correction and FP32 log decay per value head.
    const double record = 2 * k_heads * k_dim + v_heads * (2 * v_dim + 4);
    work.bytes += record * ((window + 1) / 2 + 1);
    work.multiply_adds += elements;
  }
  if (is_quantised(format)) {
    const double rank = format.num_fp16 + format.num_int8 + format.num_int4;
    // Decode the compensators, two products per round, the key side, subtract.
    work.multiply_adds += elements * rank * (3 + 2 * fit_rounds(format)) / window;
  }
  return work;
}

std::int64_t PoolDecode::memory_bytes(const LayerShape& shape, const runtime::StateFormat& state,
                                      std::int64_t pool_bytes) {
  const leapquant_sizes sizes = create_layout(shape, state.layers.front()).sizes();
  return count_sequences(pool_bytes, sizes) *
         (sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes);
}

PoolDecode::PoolDecode(const LayerShape& shape, const runtime::StateFormat& state,
                       std::int64_t pool_bytes, int workers)
    : shape_(shape),
      format_(state.first()),
      layout_(create_layout(shape, state.layers.front())),
      sizes_(layout_.sizes()),
      work_(decode_work(shape, format_, sizes_)),
      sequences_(count_sequences(pool_bytes, sizes_)),
      memory_(std::make_unique<PoolMemory>(layout_, shape.num_v_heads, sequences_)),
      workspace_(std::make_unique<Workspace>(layout_, workers, sequences_)),
      window_(std::max(16, window_of(format_))),
      slots_(static_cast<std::size_t>(sequences_)),
      positions_(static_cast<std::size_t>(sequences_)),
      statuses_(static_cast<std::size_t>(sequences_)) {
  inputs_.resize(shape, sequences_);
  fill_inputs(shape, inputs_);
  outputs_.resize(inputs_.v.size());
  // Neighbours in a call do not lie side by side in the pool: slots are taken in a scattered order.
  for (int i = 0; i < sequences_; ++i) slots_[static_cast<std::size_t>(i)] = i;
  std::shuffle(slots_.begin(), slots_.end(), std::mt19937(1));
  const leapquant_launch launch = workspace_->launch(nullptr);
  require_ok(leapquant_reset(layout_.get(), &memory_->pool(), sequences_, slots_.data(), nullptr,
                             positions_.data(), &launch),
             "Clearing the pool of the benchmark");
}

double PoolDecode::run_window(const leapquant_runner* runner) {
  const leapquant_launch launch = workspace_->launch(runner);
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = sequences_;
  args.tokens = 1;
  args.state_slots = slots_.data();
  args.positions = positions_.data();
  args.status = statuses_.data();
  args.inputs.q = fp32(inputs_.q);
  args.inputs.k = fp32(inputs_.k);
  args.inputs.v = fp32(inputs_.v);
  args.inputs.log_decay = fp32(inputs_.log_decay);
  args.inputs.beta = fp32(inputs_.beta);
  args.output.data = outputs_.data();
  args.output.type = LEAPQUANT_FP32;
  const Clock::time_point start = Clock::now();
  for (int step = 0; step < window_; ++step) {
    require_ok(leapquant_decode(layout_.get(), &memory_->pool(), &args, &launch), "Decoding");
    for (std::int32_t& position : positions_) ++position;
  }
  return std::chrono::duration<double>(Clock::now() - start).count() / window_;
}

}  // namespace leapquant::lab
