// SPDX-License-Identifier: Apache-2.0
//
// A device's backend behind host pointers, so that tests written for host memory run on it: every
// call copies pool, arrays and tensors to the device, runs there, and copies back what it may have
// written, gaps between slots included. Codes are put into the device's order and back. No CUDA
// header needed.
#pragma once

#include "core/operations.h"

namespace leapquant::conformance {

// `device` is a built-in backend with memory of its own; at most four different ones in a program.
const Backend& mirrored(const Backend& device);

}  // namespace leapquant::conformance
