// SPDX-License-Identifier: Apache-2.0
//
// See layer_groups.h.
#include "runtime/layer_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/error.h"

namespace leapquant::runtime {

void require_ok(leapquant_status status, const char* what) {
  if (status == LEAPQUANT_OK) return;
  throw Error(fmt::format("The library refused to {}: {}.", what, leapquant_last_error()));
}

LayerGroups group_layers(const StateFormat& format) {
  LayerGroups groups;
  for (const LayerFormat& layer : format.layers) {
    const auto same = std::find(groups.formats.begin(), groups.formats.end(), layer);
    const auto group = static_cast<std::size_t>(same - groups.formats.begin());
    if (same == groups.formats.end()) {
      groups.formats.push_back(layer);
      groups.num_layers.push_back(0);
    }
    groups.layers.push_back({group, static_cast<std::size_t>(groups.num_layers[group]++)});
  }
  return groups;
}

LayerFormat carry_format(std::int32_t num_v_heads) {
  LayerFormat format;
  format.formats.push_back(LEAPQUANT_INIT(leapquant_format));
  require_ok(leapquant_format_from_string("fp32:step", &format.formats.front()),
             "keep FP32 states");
  format.head_format.assign(static_cast<std::size_t>(num_v_heads), 0);
  return format;
}

bool format_needs_carry(const StateFormat& format) {
  return !(format.is_fp32() && format.per_step());
}

std::int32_t tokens_to_boundary(const leapquant_layout* layout, std::int32_t num_v_heads,
                                std::int32_t position, std::int32_t most) {
  for (std::int32_t tokens = 1; tokens < most; ++tokens) {
    for (std::int32_t head = 0; head < num_v_heads; ++head) {
      if (leapquant_last_boundary(layout, head, position + tokens) == position + tokens) {
        return tokens;
      }
    }
  }
  return std::max(most, 1);
}

}  // namespace leapquant::runtime
