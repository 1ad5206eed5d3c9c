// SPDX-License-Identifier: Apache-2.0
//
// Prefill in three kinds of launches: states into the workspace, the recurrence over a stretch of
// tokens by value columns, states into slots; a sequence's checkpoints cut it into stretches. Which
// launches there are depends on sizes only.
#pragma once

#include "cuda/block.cuh"

namespace leapquant::cuda {

// Items (pairs of sequence and head of the launch) whose states are in the workspace, and which of
// their stretches is meant.
struct StretchRange {
  int64_t first;
  int32_t count;
  int32_t stretch;
};

// First checkpoint whose sequence is not below `sequence`.
__device__ __forceinline__ int32_t first_checkpoint(const Call& call, int32_t sequence) {
  int32_t low = 0;
  int32_t high = call.num_checkpoints;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (call.checkpoints[middle].sequence < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Tokens begin .. end - 1 of a sequence; begin = end where it has no such stretch. checkpoint: the
// one at the end, -1 for the sequence's own end, -2 for no stretch.
struct Stretch {
  int32_t begin, end, checkpoint;
};

__device__ __forceinline__ Stretch stretch_of(const Call& call, int32_t sequence, int32_t index) {
  const int32_t start = call.positions[sequence];
  const int32_t tokens = call.token_offsets[sequence + 1] - call.token_offsets[sequence];
  const int32_t first = first_checkpoint(call, sequence);
  const int32_t own = first_checkpoint(call, sequence + 1) - first;
  if (index > own) return {0, 0, -2};
  const int32_t begin = index == 0 ? 0 : call.checkpoints[first + index - 1].position - start;
  if (index == own) return {begin, tokens, -1};
  return {begin, call.checkpoints[first + index].position - start, first + index};
}

__device__ __forceinline__ float* kept_state(const Call& call, int64_t index) {
  return reinterpret_cast<float*>(call.scratch.workspace + call.scratch.kept_at) +
         index * call.k_dim * call.v_dim;
}

// Whether the recurrence by columns serves this call.
bool columns_serve(const Call& call);
cudaError_t launch_columns(const Call& call, const StretchRange& range, cudaStream_t stream);

}  // namespace leapquant::cuda
