// SPDX-License-Identifier: Apache-2.0
//
// The table of the CPU backend's operations and what it accepts: every layout that core can make.
#include "cpu/backend.h"

#include <algorithm>

#include "cpu/decode.h"
#include "cpu/fold.h"
#include "cpu/per_step.h"
#include "cpu/prefill.h"
#include "cpu/targets.h"
#include "cpu/transfer.h"

namespace leapquant::cpu {
namespace {

// Limits of the shapes that kernels are written for, the same as the header's: a layout past them
// could only come from a newer core.
constexpr int32_t kLargestDim = 256;
constexpr int32_t kDimStep = 4;
constexpr int32_t kMostSubSteps = 8;

Status accepts(const Layout& layout, Sentence* why_not) {
  const leapquant_shape& shape = layout.shape;
  if (const char* refusal = target_refusal()) {
    return why_not->say(LEAPQUANT_UNSUPPORTED, "cpu: %s", refusal);
  }
  const struct {
    const char* name;
    int32_t value;
  } dims[] = {{"head_k_dim", shape.head_k_dim}, {"head_v_dim", shape.head_v_dim}};
  for (const auto& dim : dims) {
    if (dim.value >= kDimStep && dim.value <= kLargestDim && dim.value % kDimStep == 0) continue;
    return why_not->say(LEAPQUANT_UNSUPPORTED, "cpu: %s is %d, expected a multiple of %d up to %d",
                        dim.name, dim.value, kDimStep, kLargestDim);
  }
  if (shape.sub_steps > kMostSubSteps) {
    return why_not->say(LEAPQUANT_UNSUPPORTED, "cpu: sub_steps is %d, expected at most %d",
                        shape.sub_steps, kMostSubSteps);
  }
  return LEAPQUANT_OK;
}

size_t workspace_per_worker(const Layout& layout) {
  return std::max({layout.per_step ? per_step_worker_bytes(layout) : decode_worker_bytes(layout),
                   prefill_worker_bytes(layout), transfer_worker_bytes(layout),
                   fold_scratch_bytes(layout)});
}

Status decode_any(const Layout& layout, const leapquant_pool& pool,
                  const leapquant_decode_args& args, const leapquant_launch& launch) {
  return layout.per_step ? decode_per_step(layout, pool, args, launch)
                         : decode(layout, pool, args, launch);
}

}  // namespace

const Backend& cpu_backend() {
  static constexpr Backend table = {
      .name = "cpu",
      .device = LEAPQUANT_CPU,
      .target = target_name,
      .accepts = accepts,
      .workspace_per_worker = workspace_per_worker,
      .workspace_per_sequence = [](const Layout&) { return size_t{0}; },
      .decode = decode_any,
      .prefill = prefill,
      .fold = fold,
      .export_states = export_states,
      .import_states = import_states,
      .copy = copy_slots,
      .reset = reset_slots,
  };
  return table;
}

}  // namespace leapquant::cpu
