// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a boundary state: residual codec and compensator vectors, as plain loops. The codec's
// arithmetic is part of the format: every backend must give the same bytes for the same residual.
// What to encode is decided elsewhere (fit, fold).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout.h"

namespace leapquant::reference {

// Writes payload, value scales and key smoothing of `residual` [K, V] into `boundary`; returns
// LEAPQUANT_HEALTH_* flags. Quantised formats only.
uint32_t encode_residual(const BoundaryLayout& layout, const float* residual, std::byte* boundary);

// Decoded residual [K, V] in FP64; quantised formats only.
void decode_residual(const BoundaryLayout& layout, const std::byte* boundary, double* residual);

enum class Side { kKey, kValue };

// Rounds one compensator vector (K or V entries) to the type of compensator `index` and writes it
// with its scale. Order: FP16 ones, INT8 ones, INT4 ones. Returns LEAPQUANT_HEALTH_* flags.
uint32_t encode_vector(const BoundaryLayout& layout, Side side, int32_t index, const double* vector,
                       std::byte* boundary);
// The vector as decoding sees it, in FP64.
void decode_vector(const BoundaryLayout& layout, Side side, int32_t index,
                   const std::byte* boundary, double* vector);

// The state [K, V] that a boundary state stands for, in FP64: residual plus compensators, or the
// plain BF16 / FP32 payload.
void decode_boundary(const BoundaryLayout& layout, const std::byte* boundary, double* state);
std::vector<double> decode_boundary(const BoundaryLayout& layout, const std::byte* boundary);

}  // namespace leapquant::reference
