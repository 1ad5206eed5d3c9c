// SPDX-License-Identifier: Apache-2.0
//
// What every keeper of recurrent states, on the CPU or a device, derives from a state format:
// which layers share a layout, and how prompts of several passes are carried. No memory here.
#ifndef LEAPQUANT_RUNTIME_LAYER_GROUPS_H_
#define LEAPQUANT_RUNTIME_LAYER_GROUPS_H_

#include <cstdint>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/state_options.h"

namespace leapquant::runtime {

// Layers with equal formats form a group, which has one layout and one pool of slots.
struct LayerGroups {
  struct Place {
    std::size_t group = 0;
    std::size_t index = 0;  // among the group's layers
  };
  std::vector<LayerFormat> formats;      // [groups]
  std::vector<std::int32_t> num_layers;  // [groups]
  std::vector<Place> layers;             // [linear layers]
};
LayerGroups group_layers(const StateFormat& format);

// FP32 states for prompts in several passes at the same time.
inline constexpr std::int32_t kCarrySlots = 4;
// FP32 per step, for every head: loses nothing between passes.
LayerFormat carry_format(std::int32_t num_v_heads);
// All but FP32 per step.
bool format_needs_carry(const StateFormat& format);

// Tokens from position on until the next boundary of any head, at least 1, at most `most`.
std::int32_t tokens_to_boundary(const leapquant_layout* layout, std::int32_t num_v_heads,
                                std::int32_t position, std::int32_t most);

// Throws Error "The library refused to <what>: ...".
void require_ok(leapquant_status status, const char* what);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_LAYER_GROUPS_H_
