// SPDX-License-Identifier: Apache-2.0
//
// Where the working arrays of a block of the general kernels lie: in shared memory in order of
// need, what does not fit in the call's workspace. Planned on the host from the layout alone, so
// that the workspace is known before a call. Host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace leapquant::cuda {

inline constexpr int32_t kBlockThreads = 256;
inline constexpr int32_t kBlockWarps = kBlockThreads / 32;
// Shared memory that every architecture from sm_80 on grants a block.
inline constexpr int32_t kSharedBytes = 96 * 1024;
// Blocks of a launch that has scratch in the workspace; further items wait for them.
inline constexpr int32_t kScratchBlocks = 264;
// FP32 states of heads in the workspace of a prefill.
inline constexpr int32_t kKeptStates = 512;
static_assert(kKeptStates >= kScratchBlocks);

// One array: a byte offset into shared memory, or into the block's part of the workspace.
struct ScratchPart {
  int32_t at;
  int32_t in_workspace;
};

struct ScratchPlan {
  ScratchPart tokens;   // vectors of a token, see token.cuh
  ScratchPart state;    // [K][V] FP32
  ScratchPart left;     // [records][K] keys times the decay of the later tokens
  ScratchPart keys;     // [rank][K] compensators, decoded
  ScratchPart values;   // [rank][V]
  ScratchPart spare;    // [rank][V]
  ScratchPart weights;  // [reads][records]
  ScratchPart columns;  // codec: smoothing [K], then 3 [V]; then the fit's Gram matrix
  int32_t shared_bytes;
  int32_t block_bytes;  // of the workspace, a multiple of 64
  int64_t kept_at;      // of the workspace: [kKeptStates][K][V]
  char* workspace;      // of the device; filled in per call
};

// Floats of the token vectors.
inline int64_t token_floats(const Layout& layout) {
  const int64_t k = layout.shape.head_k_dim;
  const int64_t v = layout.shape.head_v_dim;
  const int64_t n = layout.shape.sub_steps;
  const int64_t reads = n + 1;
  // q, log decay, decay, k, b, reads and scaled reads; v, u, sums; beta, dots; partial sums.
  return k * (3 + 2 * n + 2 * reads) + v * (2 * n + reads) + 128 + 2 * kBlockThreads;
}

inline ScratchPlan plan_scratch(const Layout& layout) {
  const int64_t k = layout.shape.head_k_dim;
  const int64_t v = layout.shape.head_v_dim;
  int64_t rank = 0;
  for (const BoundaryLayout& head : layout.classes) rank = head.rank > rank ? head.rank : rank;
  const int64_t records = layout.window.records;
  ScratchPlan plan = {};
  int64_t shared = 1024;  // reductions and flags, see block.cuh
  int64_t workspace = 0;
  const auto take = [&](ScratchPart* part, int64_t floats) {
    const int64_t bytes = (4 * floats + 63) / 64 * 64;
    int64_t* at = shared + bytes <= kSharedBytes ? &shared : &workspace;
    part->at = static_cast<int32_t>(*at);
    part->in_workspace = at == &workspace ? 1 : 0;
    *at += bytes;
  };
  take(&plan.tokens, token_floats(layout));
  take(&plan.columns, k + 3 * v + (rank + 1) * (rank + 1));
  take(&plan.state, k * v);
  take(&plan.keys, rank * k);
  take(&plan.values, rank * v);
  take(&plan.left, records * k);
  take(&plan.weights, (layout.shape.sub_steps + 1) * records);
  take(&plan.spare, rank * v);
  plan.shared_bytes = static_cast<int32_t>(shared);
  plan.block_bytes = static_cast<int32_t>(workspace);
  plan.kept_at = workspace * kScratchBlocks;
  return plan;
}

// Bytes of the workspace, whatever the batch.
inline size_t scratch_bytes(const Layout& layout) {
  const int64_t kept = int64_t{4} * layout.shape.head_k_dim * layout.shape.head_v_dim;
  return static_cast<size_t>(plan_scratch(layout).kept_at + kept * kKeptStates);
}

}  // namespace leapquant::cuda
