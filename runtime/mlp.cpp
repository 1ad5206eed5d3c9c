// SPDX-License-Identifier: Apache-2.0
//
// A task computes the same outputs of gate and up and joins them while they are in the cache.
#include "runtime/mlp.h"

#include <algorithm>

#include "runtime/kernels/rows.h"

namespace leapquant::runtime {

Mlp::Mlp(const Checkpoint& checkpoint, const ModelConfig& config, const std::string& prefix)
    : gate_(checkpoint.require(prefix + "gate_proj.weight",
                               {config.intermediate_size, config.hidden_size})),
      up_(checkpoint.require(prefix + "up_proj.weight",
                             {config.intermediate_size, config.hidden_size})),
      down_(checkpoint.require(prefix + "down_proj.weight",
                               {config.hidden_size, config.intermediate_size})) {}

void Mlp::forward(const Threads& threads, Scratch& scratch, const float* x, std::int64_t rows,
                  float* y) const {
  const std::int64_t width = gate_.outputs();
  float* gate = scratch.mlp_gate.floats(rows * width);
  float* up = scratch.mlp_up.floats(rows * width);
  const std::int64_t part = outputs_per_task(threads, width, 2 * gate_.inner());
  const auto tasks = static_cast<std::int32_t>((width + part - 1) / part);
  threads.run(tasks, [&](std::int32_t task, std::int32_t) {
    const std::int64_t first = task * part;
    const std::int64_t last = std::min(width, first + part);
    gate_.multiply_part(x, rows, first, last, gate);
    up_.multiply_part(x, rows, first, last, up);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row * width + first;
      kernels::silu_multiply(gate + at, up + at, last - first);
    }
  });
  multiply(threads, gate, rows, down_, y);
}

}  // namespace leapquant::runtime
