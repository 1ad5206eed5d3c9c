// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend as core/operations.h asks for it; src/backend lists it.
#pragma once

#include "core/operations.h"

namespace leapquant::cpu {

const Backend& cpu_backend();

}  // namespace leapquant::cpu
