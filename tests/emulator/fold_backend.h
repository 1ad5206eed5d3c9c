// SPDX-License-Identifier: Apache-2.0
//
// A backend for heads of 128 x 128 whose decode folds by the CUDA kernel, emulated, and does the
// rest by the reference, as it does all other operations.
#pragma once

#include "conformance/backends.h"

namespace leapquant::emulator {

// Every fold runs twice, with another order of threads, another number of blocks, other bytes where
// nothing has been written, and the second time as the common call (BF16 inputs): the bits must be
// the same. What goes wrong is said on standard error, and the call returns INTERNAL.
const conformance::TestBackend& fold_backend();

}  // namespace leapquant::emulator
