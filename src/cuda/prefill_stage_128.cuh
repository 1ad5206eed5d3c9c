// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels: what lies in shared memory between the warps that
// prepare a chunk and the groups of four that carry the state, in the order in which the matrix
// units read it. The algebra is told in prefill_chunk_shared.cuh.
#pragma once

#include "cuda/input_faults.cuh"
#include "cuda/prefill_chunk_shared.cuh"
#include "cuda/prefill_columns.cuh"

namespace leapquant::cuda::chunks_128 {

inline constexpr int32_t kDim = 128;
inline constexpr int32_t kGroupColumns = 64;  // value columns of a group of four warps
inline constexpr int32_t kPitch = 40;         // floats of a row of a preparer's own matrix

// A 32 x 32 matrix in blocks of 8 x 8: entry (i, j) in block [j / 8][i / 8], a word for two
// neighbouring j. Blocks above the diagonal are zero; those of late j and early i always.
using Blocks = uint32_t[4][4][32];
inline constexpr uint32_t kBlockStride = 128;   // bytes from i to i + 8
inline constexpr uint32_t kBlockLeading = 512;  // bytes from j to j + 8

// One prepared chunk for kColumns value columns.
template <int32_t kColumns>
struct alignas(1024) PreparedChunk {
  static constexpr int32_t kValuePitch = 2 * kColumns + 16;
  // Keys, then queries: 64 channels of a token in a row of 128 bytes, 16-byte pieces exchanged.
  char rows[2][2 * kChunkTokens][128];
  Blocks solve[2];    // T, high and low parts
  Blocks weights[2];  // P
  char values[kChunkTokens][kValuePitch];
  float key_factor[kChunkTokens];    // |k|^-1 exp G
  float query_factor[kChunkTokens];  // |q|^-1 exp G, times the scale of queries
  float write_factor[kChunkTokens];  // |k|^-1 exp(G_31 - G)
  float decay[4];                    // exp G_31
};

// Zeros in blocks that no preparer writes; by the whole block of threads.
template <int32_t kColumns>
__device__ __forceinline__ void clear_corner(PreparedChunk<kColumns>* stage) {
  for (auto e = static_cast<int32_t>(threadIdx.x); e < 256; e += static_cast<int32_t>(blockDim.x)) {
    Blocks& to = e < 128 ? stage->solve[(e >> 6) & 1] : stage->weights[(e >> 6) & 1];
    const int32_t pair = e & 63;
    to[2 + (pair >> 5)][0][pair & 31] = 0;
    to[2 + (pair >> 5)][1][pair & 31] = 0;
  }
}

// Where a block of kColumns value columns works, and the index of its head in the range. False
// where it has nothing to do, the same in all threads: faults of inputs do not count here, they may
// be told while the block starts.
__device__ __forceinline__ bool find_place(const Call& call, const StretchRange& range,
                                           int32_t columns, ChunkPlace* at, int32_t* index) {
  const int32_t pieces = call.v_dim / columns;
  *index = static_cast<int32_t>(blockIdx.x) / pieces;
  const int64_t item = range.first + *index;
  at->sequence = static_cast<int32_t>(item / call.num_heads);
  at->v_head =
      call.first_head + static_cast<int32_t>(item - int64_t{at->sequence} * call.num_heads);
  at->first_column = (static_cast<int32_t>(blockIdx.x) - *index * pieces) * columns;
  at->lane = static_cast<int32_t>(threadIdx.x) & 31;
  const int32_t status = call.status[at->sequence];
  const bool settled = status != LEAPQUANT_OK && status < LEAPQUANT_NON_FINITE_INPUT;
  if (call.state_slots[at->sequence] < 0 || settled) return false;
  const Stretch stretch = stretch_of(call, at->sequence, range.stretch);
  at->token = call.token_offsets[at->sequence] + stretch.begin;
  at->tokens = stretch.end - stretch.begin;
  return at->tokens > 0;
}

// By the whole warp: what its lanes have found.
__device__ __forceinline__ void tell_faults_of_warp(const Call& call, const ChunkPlace& at,
                                                    uint32_t found) {
  found = __reduce_or_sync(kAllLanes, found);
  if (at.lane == 0) tell_faults(call, at.sequence, found);
}

// What a preparing warp works in.
struct alignas(16) Scratch {
  float matrix[kChunkTokens][kPitch];
  double reached[kChunkTokens];  // G
  float beta[kChunkTokens];
  float key_scale[kChunkTokens];
  float query_scale[kChunkTokens];
};

}  // namespace leapquant::cuda::chunks_128
