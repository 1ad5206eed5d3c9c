// SPDX-License-Identifier: Apache-2.0
//
// See cache_plan.h.
#include "tool/cache_plan.h"

#include <algorithm>

#include "lab/evaluation.h"
#include "lab/format_layer.h"

namespace leapquant::tool {

StateCost state_cost(const ModelShape& model, const runtime::StateFormat& format) {
  StateCost cost;
  cost.state = lab::state_name(format);
  cost.policy = lab::policy_name(format);
  for (const runtime::LayerFormat& layer : format.layers) {
    const leapquant_sizes sizes =
        lab::create_layout(model.linear, layer,
                           model.vector_decay ? LEAPQUANT_DECAY_VECTOR : LEAPQUANT_DECAY_SCALAR)
            .sizes();
    cost.bytes.boundary += sizes.state_bytes;
    cost.bytes.window += sizes.window_bytes;
    cost.bytes.metadata += sizes.metadata_bytes;
  }
  return cost;
}

CachePlan plan_cache(const ModelShape& model, const StateCost& cost, const PlanOptions& options) {
  CachePlan plan;
  plan.state = cost;
  const std::int64_t kv_per_token = model.kv_elements_per_token * options.kv_element_bytes;
  plan.kv_bytes = kv_per_token * options.context;
  plan.convolution_bytes = model.convolution_bytes();
  plan.checkpoint_bytes = cost.bytes.boundary + cost.bytes.metadata + plan.convolution_bytes;
  if (options.checkpoint_every > 0) {
    plan.checkpoints = options.context / options.checkpoint_every;
    plan.cached_interval_bytes = kv_per_token * options.checkpoint_every + plan.checkpoint_bytes;
  }
  plan.request_bytes = plan.kv_bytes + plan.convolution_bytes + cost.bytes.total() +
                       plan.checkpoints * plan.checkpoint_bytes;
  const std::int64_t room = options.memory_bytes - model.weight_bytes;
  plan.requests = std::max<std::int64_t>(0, room / plan.request_bytes);
  return plan;
}

double cache_saving(const CachePlan& plan, const CachePlan& reference) {
  if (reference.cached_interval_bytes == 0) return 0;
  return 1 - static_cast<double>(plan.cached_interval_bytes) /
                 static_cast<double>(reference.cached_interval_bytes);
}

}  // namespace leapquant::tool
