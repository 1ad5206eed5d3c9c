// SPDX-License-Identifier: Apache-2.0
//
// The compensator fit in FP64: block subspace iteration with modified Gram-Schmidt. Same algorithm
// on every backend, but not the same bits; decoded states are what is compared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant::reference {

// Fits the compensators of `state` [K, V] (finite) and writes them, rounded, into `boundary`, whose
// old value sides serve as start vectors. cold: three rounds from the table, whatever is stored.
// Returns LEAPQUANT_HEALTH_* flags.
uint32_t fit_compensators(const BoundaryLayout& layout, const double* state, bool cold,
                          std::byte* boundary);

}  // namespace leapquant::reference
