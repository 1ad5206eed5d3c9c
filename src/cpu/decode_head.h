// SPDX-License-Identifier: Apache-2.0
//
// Scratch of one value head's decode and what is handed from call to head: the same for every SIMD
// target. What is computed with them is in decode_head-inl.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/layout.h"
#include "core/pool.h"
#include "cpu/decode_ahead.h"
#include "cpu/inputs.h"

namespace leapquant::cpu {

// Sizes of a decode call of a layout: T tokens, n sub-steps, K' and V' padded to 16.
inline constexpr int32_t kMaxDecodeRank = 32;

struct DecodeShape {
  int32_t tokens;   // most tokens of a call
  int32_t steps;    // n
  int32_t reads;    // read vectors per token: n + 1
  int32_t key;      // K'
  int32_t value;    // V'
  int32_t records;  // most records that a token reads, ring and call, a multiple of 4
  int32_t rank;     // most compensators of a head, a multiple of 4

  explicit DecodeShape(const Layout& layout)
      : tokens(layout.shape.max_tokens),
        steps(layout.shape.sub_steps),
        reads(layout.shape.sub_steps + 1),
        key(padded(layout.shape.head_k_dim)),
        value(padded(layout.shape.head_v_dim)),
        records((layout.window.records + tokens * steps + 3) / 4 * 4),
        rank(0) {
    for (const BoundaryLayout& head : layout.classes) rank = std::max(rank, head.rank);
    rank = (rank + 3) / 4 * 4;
  }
};

// A worker's scratch, carved in this order; every part is 64-byte aligned.
struct DecodeScratch {
  // Of a key head.
  float* q;               // [T][K']
  float* k;               // [T n][K']
  float* read_key;        // [T n][K']
  uint16_t* stored_keys;  // [T n][K'] FP16, as the window will hold them
  uint16_t* ring_keys;    // [records][K'] padded copies, only where K is no multiple of 16
  const uint16_t** keys;  // [records] rows: ring, then this call's
  // Of a value head.
  float* v;                      // [T n][V']
  float* log_decay;              // [T] or [T][K'], unrounded
  float* stored_decay;           // the same as the window will hold it
  float* beta;                   // [T n]
  float* read;                   // [T reads][K'] read vectors r
  float* scaled;                 // [T reads][K'] exp(H) r, then times smoothing
  float* sums;                   // [T reads][V'] payload sums, then the reads
  float* record_factors;         // [T reads][records]
  float* rank_factors;           // [T reads][rank]
  float* rank_offsets;           // [T reads]
  float* payload_offsets;        // [T reads]
  uint16_t* stored_u;            // [T n][V'] FP16
  uint16_t* ring_u;              // [records][V'] padded copies, only where V is no multiple of 16
  const uint16_t** corrections;  // [records]
  uint16_t* rank_halves;         // [rank][max(K', V')] padded copies of FP16 sides
  int8_t* rank_codes;            // [rank][max(K', V')] INT4 sides, or padded copies of INT8 ones
  float* correction;             // [n][V'] u before rounding
  float* output;                 // [V']
  float* step;                   // [V']
  float* smoothing;              // [K']
  float* later;                  // [K']
  float* weight;                 // [K']
  float* weighted;               // [reads][K']
  std::byte* fold;
  size_t bytes;  // up to `fold`

  DecodeScratch(const Layout& layout, std::byte* memory) {
    const DecodeShape s(layout);
    std::byte* at = memory;
    const auto take = [&at](auto** part, int64_t count) {
      *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(at);
      const int64_t size = count * static_cast<int64_t>(sizeof(**part));
      at += (size + 63) / 64 * 64;
    };
    const int64_t rows = static_cast<int64_t>(s.tokens) * s.steps;
    const int64_t reads = static_cast<int64_t>(s.tokens) * s.reads;
    const bool vector = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
    const int64_t side = std::max(s.key, s.value);
    take(&q, int64_t{s.tokens} * s.key);
    take(&k, rows * s.key);
    take(&read_key, rows * s.key);
    take(&stored_keys, rows * s.key);
    take(&ring_keys, layout.shape.head_k_dim % 16 == 0 ? 0 : int64_t{s.records} * s.key);
    take(&keys, s.records);
    take(&v, rows * s.value);
    take(&log_decay, vector ? int64_t{s.tokens} * s.key : s.tokens);
    take(&stored_decay, vector ? int64_t{s.tokens} * s.key : s.tokens);
    take(&beta, rows);
    take(&read, reads * s.key);
    take(&scaled, reads * s.key);
    take(&sums, reads * s.value);
    take(&record_factors, reads * s.records);
    take(&rank_factors, reads * s.rank);
    take(&rank_offsets, reads);
    take(&payload_offsets, reads);
    take(&stored_u, rows * s.value);
    take(&ring_u, layout.shape.head_v_dim % 16 == 0 ? 0 : int64_t{s.records} * s.value);
    take(&corrections, s.records);
    take(&rank_halves, s.rank * side);
    take(&rank_codes, s.rank * side);
    take(&correction, int64_t{s.steps} * s.value);
    take(&output, s.value);
    take(&step, s.value);
    take(&smoothing, s.key);
    take(&later, s.key);
    take(&weight, s.key);
    take(&weighted, int64_t{s.reads} * s.key);
    fold = at;
    bytes = static_cast<size_t>(at - memory);
  }
};

// One value head of one sequence in a decode call.
struct HeadCall {
  const Layout& layout;
  const leapquant_inputs& inputs;
  int32_t v_head;
  int32_t base;      // after folding
  int32_t position;  // t0
  int32_t tokens;    // T of this sequence
  const std::byte* boundary;
  WindowView window;
  bool write_keys;  // this head writes its group's key records
  uint32_t flags;   // LEAPQUANT_HEALTH_* raised
};

}  // namespace leapquant::cpu
