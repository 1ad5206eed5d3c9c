// SPDX-License-Identifier: Apache-2.0
//
// Memory of the device for the door: blocking copies, and the order of the codes in it.
#pragma once

#include "core/operations.h"

namespace leapquant::cuda {

extern const DeviceMemory kDeviceMemory;

}  // namespace leapquant::cuda
