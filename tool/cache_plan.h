// SPDX-License-Identifier: Apache-2.0
//
// How much memory requests take with their recurrent state in a format, and how many fit. Sizes of
// states are the library's; everything else is plain sums.
#ifndef LEAPQUANT_TOOL_CACHE_PLAN_H_
#define LEAPQUANT_TOOL_CACHE_PLAN_H_

#include <cstdint>
#include <string>

#include "runtime/state_options.h"
#include "tool/model_shapes.h"

namespace leapquant::tool {

// Bytes of one sequence over all recurrent layers.
struct StateCost {
  std::string state;   // canonical text without the policy
  std::string policy;  // "window" or "step"
  runtime::StateBytes bytes;
};
// format must have been resolved for the model's layers.
StateCost state_cost(const ModelShape& model, const runtime::StateFormat& format);

struct PlanOptions {
  std::int64_t memory_bytes = 0;
  std::int64_t context = 0;           // tokens of each request
  std::int64_t checkpoint_every = 0;  // tokens between kept states of a prefix; 0: none
  std::int64_t kv_element_bytes = 2;
};

struct CachePlan {
  StateCost state;
  std::int64_t kv_bytes = 0;           // of one request at full context
  std::int64_t convolution_bytes = 0;  // of one state
  std::int64_t checkpoints = 0;        // per request: context / checkpoint_every, rounded down
  // One checkpoint: boundary states, their metadata and the convolution state; no window.
  std::int64_t checkpoint_bytes = 0;
  std::int64_t request_bytes = 0;  // KV, convolution, state, window, metadata, all checkpoints
  std::int64_t requests = 0;       // that fit beside the weights
  // KV cache of the tokens between two checkpoints and one checkpoint.
  std::int64_t cached_interval_bytes = 0;
};
CachePlan plan_cache(const ModelShape& model, const StateCost& cost, const PlanOptions& options);

// 1 - plan / reference of cached_interval_bytes, the share of cache memory that the format saves.
double cache_saving(const CachePlan& plan, const CachePlan& reference);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_CACHE_PLAN_H_
