// SPDX-License-Identifier: Apache-2.0
//
// Boundary states to FP32 matrices and back. The residual codec gives the same bytes on every
// backend and SIMD target; the fit of the compensators (fit.h) need not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant::cpu {

// kCold: first fold of a zero, imported or prefilled state, three rounds from the table. kFormat:
// the format's start and rounds (cold nevertheless when the previous value sides are all zero).
enum class FitKind { kCold, kFormat };

// state [K, V] FP32, row-major and packed, from a boundary state of any format. Both 16-byte
// aligned.
void decode_boundary(const BoundaryLayout& layout, const std::byte* boundary, float* state);

// Bytes of scratch, 64-byte aligned, that encode_boundary needs.
size_t encode_scratch_bytes(const BoundaryLayout& layout);

// Encodes state [K, V] (consumed: its contents afterwards are undefined) into boundary, padding
// included. previous: the boundary state whose value sides start a warm fit; may equal boundary,
// may be null (cold). health (may be null) receives residual_max, compensator_energy and
// fold_error; flags are or-ed in. Non-finite entries of state are encoded as 0. Returns
// LEAPQUANT_HEALTH_* flags raised by this call. Nothing else is touched.
uint32_t encode_boundary(const BoundaryLayout& layout, FitKind kind, const std::byte* previous,
                         float* state, std::byte* boundary, leapquant_health* health,
                         float* scratch);

// The residual codec alone: residual [K, V] (consumed) to payload, value scales and smoothing of
// boundary; other parts are not touched. scratch as encode_scratch_bytes. Returns flags.
uint32_t encode_residual(const BoundaryLayout& layout, float* residual, std::byte* boundary,
                         float* scratch);

// The same over states whose rows are padded to 16 (inputs.h), what folds work on. state
// [K][padded(V)] 64-byte aligned, zeros past V; scratch as encode_scratch_bytes.
uint32_t encode_padded(const BoundaryLayout& layout, FitKind kind, const std::byte* previous,
                       float* state, std::byte* boundary, leapquant_health* health, float* scratch);

// state [K][padded(V)] = Diag(factor) decoded boundary state + sum over rows m of left[m]
// right[m]^T. factor [padded(K)], null for ones. left [rank + num_records][padded(K)] and right
// [rank + num_records][padded(V)]: rows from `rank` on are given, those before are scratch.
void compose_state(const BoundaryLayout& layout, const std::byte* boundary, const float* factor,
                   int32_t num_records, float* left, float* right, float* state);

}  // namespace leapquant::cpu
