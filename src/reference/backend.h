// SPDX-License-Identifier: Apache-2.0
//
// The reference as a backend: the meaning of every operation, for tests. It allocates and runs on
// the calling thread alone, so it is no fallback for anyone.
#pragma once

#include "core/operations.h"

namespace leapquant::reference {

const Backend& backend();

}  // namespace leapquant::reference
