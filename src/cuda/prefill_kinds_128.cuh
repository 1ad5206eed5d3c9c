// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels: the kinds with scalar (or no) and with vector decays,
// one name for what differs. A unit of warps prepares a chunk; a warp of a group of four takes its
// columns of the state through it.
#pragma once

#include "cuda/prefill_prepare_128.cuh"
#include "cuda/prefill_vector_prepare_128.cuh"
#include "cuda/prefill_vector_state_128.cuh"

namespace leapquant::cuda::chunks_128 {

struct ScalarKind {
  static constexpr int32_t kTokens = kChunkTokens;
  static constexpr int32_t kUnitWarps = 1;
  template <int32_t kColumns>
  using Chunk = PreparedChunk<kColumns>;
  using Space = Scratch;

  // Before chunks are prepared in a place; by the whole block.
  template <int32_t kColumns>
  static __device__ __forceinline__ void clear(Chunk<kColumns>* chunk) {
    clear_corner(chunk);
  }
  // By warp `warp` of a unit; wait_for_place() until the chunk may be written.
  template <int32_t kColumns, typename Wait>
  static __device__ __forceinline__ uint32_t prepare(const Call& call, const ChunkPlace& at,
                                                     int32_t index, int32_t, int32_t,
                                                     Chunk<kColumns>* chunk, Space* space,
                                                     const Wait& wait_for_place) {
    wait_for_place();
    const int32_t first = index * kTokens;
    return prepare_chunk(call, at, first, min(kTokens, at.tokens - first), chunk, space);
  }
  template <int32_t kColumns>
  static __device__ __forceinline__ void advance(const Call& call, const ChunkPlace& at,
                                                 int32_t index, int32_t column,
                                                 Chunk<kColumns>* chunk, Tiles<kDim / 8>& s,
                                                 uint32_t* faults) {
    const int32_t first = index * kTokens;
    advance_chunk(call, at, first, min(kTokens, at.tokens - first), column, chunk, s, faults);
  }
};

struct VectorKind {
  static constexpr int32_t kTokens = kVectorTokens;
  static constexpr int32_t kUnitWarps = 4;
  template <int32_t kColumns>
  using Chunk = VectorChunk<kColumns>;
  using Space = VectorScratch;

  template <int32_t kColumns>
  static __device__ __forceinline__ void clear(Chunk<kColumns>*) {}
  template <int32_t kColumns, typename Wait>
  static __device__ __forceinline__ uint32_t prepare(const Call& call, const ChunkPlace& at,
                                                     int32_t index, int32_t warp, int32_t barrier,
                                                     Chunk<kColumns>* chunk, Space* space,
                                                     const Wait& wait_for_place) {
    const int32_t first = index * kTokens;
    return prepare_vector_chunk(call, at, first, min(kTokens, at.tokens - first),
                                {warp, at.lane, barrier}, chunk, space, wait_for_place);
  }
  template <int32_t kColumns>
  static __device__ __forceinline__ void advance(const Call& call, const ChunkPlace& at,
                                                 int32_t index, int32_t column,
                                                 Chunk<kColumns>* chunk, Tiles<kDim / 8>& s,
                                                 uint32_t* faults) {
    const int32_t first = index * kTokens;
    advance_vector_chunk(call, at, first, min(kTokens, at.tokens - first), column, chunk, s,
                         faults);
  }
};

}  // namespace leapquant::cuda::chunks_128
