// SPDX-License-Identifier: Apache-2.0
//
// Shape and scratch of one chunk of prefill: the same for every SIMD target, carved out of a
// worker's workspace. What is computed with them is in prefill_chunk-inl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant::cpu {

// Columns of a strip, the unit in which prefill walks the value axis (gemm-inl.h says the same).
inline constexpr int32_t kStripColumns = 16;

struct ChunkShape {
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t key_stride = 0;    // padded(K): elements of a row of keys, reads, q and vector decays
  int32_t value_stride = 0;  // padded(V): elements of a row of values and outputs
  int32_t sub_steps = 1;
  int32_t chunk_tokens = 0;  // most tokens of a chunk
  int32_t row_capacity = 0;  // chunk_tokens * sub_steps, rounded up to whole strips
  bool delta_rule = false;
  bool vector_decay = false;
  bool read_keys_given = false;     // b_0 reads before the decay
  bool read_before_update = false;  // the output reads before decay and update
  bool value_hooks = false;         // value_weights are to be added
};

// C = chunk_tokens, R = row_capacity, K' = key_stride, V' = value_stride. All FP32; what lies past
// K or V in a prepared row is zero.
struct ChunkScratch {
  float* state = nullptr;  // [V' / 16][K][16], the running state
  // Prepared inputs of the chunk: keys and q after normalisation and scale.
  float* queries = nullptr;        // [C][K']
  float* keys = nullptr;           // [R][K']
  float* read_keys = nullptr;      // [R][K']
  float* values = nullptr;         // [R][V']
  float* betas = nullptr;          // [R]
  float* decays = nullptr;         // factors: [C], or [C][K']
  float* value_weights = nullptr;  // [C]: what the hooks add of v_0 to the output
  float* outputs = nullptr;        // [C][V']
  // What run_chunk derives.
  float* spans = nullptr;            // [C + 1][C + 1] scalar D(t, s)
  float* keys_transposed = nullptr;  // [R / 16][K][16]
  float* read_pairs = nullptr;       // [R][16]
  float* lower = nullptr;            // [R][R]
  float* weights = nullptr;          // [C][R]
  float* scaled_reads = nullptr;     // [R][K']
  float* scaled_queries = nullptr;   // [C][K']
  float* scaled_keys = nullptr;      // [R][K']
  float* state_decay = nullptr;      // [K']
  float* corrections = nullptr;      // [R][16]
  float* strip_outputs = nullptr;    // [C][16]
};

// Chunk sizes for a layer; the flags that depend on a call's inputs are false.
ChunkShape chunk_shape(const Layout& layout);
// Bytes of the scratch, a multiple of 64, and the pointers into it. `start` is 64-byte aligned.
size_t chunk_scratch_bytes(const Layout& layout);
ChunkScratch chunk_scratch(const Layout& layout, std::byte* start);

}  // namespace leapquant::cpu
