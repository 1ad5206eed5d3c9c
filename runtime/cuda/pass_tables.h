// SPDX-License-Identifier: Apache-2.0
//
// A pass as kernels see it: which rows belong to which sequence, at which positions. Filled on the
// host in one piece and copied in one piece; kernels find everything in device memory, so that a
// recorded graph serves every step of its shape.
#ifndef LEAPQUANT_RUNTIME_CUDA_PASS_TABLES_H_
#define LEAPQUANT_RUNTIME_CUDA_PASS_TABLES_H_

#include <cstdint>

#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

// Query rows of one segment that an attention block takes together.
inline constexpr std::int32_t kQueriesPerChunk = 4;

// Numbers of rows and so on that fix the layout of the tables.
struct PassSize {
  std::int32_t segments = 0;
  std::int32_t rows = 0;
  std::int32_t chunks = 0;  // of queries, see attention.h
  std::int32_t picked = 0;  // rows whose logits are wanted
};

// Pointers into one block, on the host or on the device.
struct PassTables {
  std::int32_t* slots = nullptr;           // [segments] place of the sequence; negative: padding
  std::int32_t* carry_slots = nullptr;     // [segments] FP32 state of a carried prompt
  std::int32_t* positions = nullptr;       // [segments] tokens before the pass
  std::int32_t* tokens = nullptr;          // [segments] tokens in the pass
  std::int32_t* first_rows = nullptr;      // [segments]
  std::int32_t* offsets = nullptr;         // [segments + 2] token offsets of the direct segments,
                                           // then of the carried ones, each from 0
  std::int32_t* row_segments = nullptr;    // [rows]
  std::int32_t* token_ids = nullptr;       // [rows]
  std::int32_t* chunk_segments = nullptr;  // [chunks]
  std::int32_t* chunk_queries = nullptr;   // [chunks] first query of the chunk in its segment
  std::int32_t* picked = nullptr;          // [picked]
};

inline std::int64_t pass_tables_bytes(const PassSize& size) {
  const std::int64_t numbers = std::int64_t{6} * size.segments + 2 + std::int64_t{2} * size.rows +
                               std::int64_t{2} * size.chunks + size.picked;
  return numbers * std::int64_t{sizeof(std::int32_t)};
}

inline PassTables lay_out_pass_tables(const PassSize& size, std::byte* block) {
  auto* next = reinterpret_cast<std::int32_t*>(block);
  const auto take = [&](std::int32_t count) {
    std::int32_t* taken = next;
    next += count;
    return taken;
  };
  PassTables tables;
  tables.slots = take(size.segments);
  tables.carry_slots = take(size.segments);
  tables.positions = take(size.segments);
  tables.tokens = take(size.segments);
  tables.first_rows = take(size.segments);
  tables.offsets = take(size.segments + 2);
  tables.row_segments = take(size.rows);
  tables.token_ids = take(size.rows);
  tables.chunk_segments = take(size.chunks);
  tables.chunk_queries = take(size.chunks);
  tables.picked = take(size.picked);
  return tables;
}

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_PASS_TABLES_H_
