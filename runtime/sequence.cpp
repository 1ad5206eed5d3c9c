// SPDX-License-Identifier: Apache-2.0
//
// See sequence.h.
#include "runtime/sequence.h"

#include <fmt/format.h>

namespace leapquant::runtime {

void note_fault(Sequence& sequence, std::int32_t linear_layer, std::int32_t status) {
  if (status == LEAPQUANT_OK || !sequence.fault.empty()) return;
  sequence.fault =
      fmt::format("The sequence stopped after {} tokens in linear layer {}. {}", sequence.position,
                  linear_layer, leapquant_status_string(static_cast<leapquant_status>(status)));
}

}  // namespace leapquant::runtime
