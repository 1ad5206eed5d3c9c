// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backends: the same operations on the general kernels, which serve every layout, and with
// the specialised decode for heads of 128 x 128 in front. No CUDA header needed.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant::cuda {

// Serves every layout.
const Backend& general_backend();

// Decodes what the kernels of decode_128 serve with them, all else as the general backend. Accepts
// layouts of these kernels on devices of compute capability 9.0 only.
const Backend& backend_128();

// The same for plain BF16 and FP32 states of heads of 128 x 128.
const Backend& backend_plain_128();

}  // namespace leapquant::cuda
