// SPDX-License-Identifier: Apache-2.0
//
// The general form itself, token by token on the expanded state in FP64. Prefill and per-step
// decode are this; windowed decode must agree with it.
#pragma once

#include <vector>

#include "core/layout.h"
#include "reference/inputs.h"

namespace leapquant::reference {

// Advances state [K, V] by one token and returns its output [V], hooks included.
std::vector<double> advance(const Layout& layout, const leapquant_inputs& inputs,
                            const Token& token, int32_t v_head, double* state);

}  // namespace leapquant::reference
