// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill with vector decays for keys of 128 channels: what lies in shared memory between
// the warps that prepare a chunk of 16 tokens and the groups that carry the state.
//
// G_i: sums of log decays up to token i, by channel; M = G_7. Decays of a chunk are ratios of
// exponents around its middle, rows exp(G_i - M), columns exp(M - G_j), so that a product of two
// never leaves the range of floats as long as either half of a chunk decays by less than
// exp(-kMostDecay). Where a channel decays faster, rows are exp(G_i), columns exp(G_15 - G_j), the
// products between tokens are summed pair by pair, and nothing exceeds one.
//   A_ij = beta_i sum_c k_i k_j exp(G_i - G_j), j < i     T = (I + A)^-1 Diag(beta)
//   u    = T (v - K_rows Diag(read) S)
//   o    = Q_rows Diag(read) S + P u, P_ij = sum_c q_i k_j exp(G_i - G_j), j <= i
//   S'   = Diag(keep) S + Diag(add) K_columns^T u
#pragma once

#include "cuda/prefill_stage_128.cuh"

namespace leapquant::cuda::chunks_128 {

inline constexpr int32_t kVectorTokens = 16;
inline constexpr float kMostDecay = 41.0f;  // eight tokens at the usual lower bound of -5
// Corrections above kLarge go to the matrix units as parts of kLargeUnit: times exp(kMostDecay)
// they would leave the range.
inline constexpr float kLarge = 0x1p60f;
inline constexpr float kLargeUnit = 0x1p72f;
inline constexpr int32_t kVectorPitch = 20;  // floats of a row of the preparers' matrix
inline constexpr int32_t kRawPitch = 2 * kDim + 16;

// A 16 x 16 matrix in blocks of 8 x 8, as Blocks.
using SmallBlocks = uint32_t[2][2][32];
inline constexpr uint32_t kSmallLeading = 256;
// Rows in blocks of 8 tokens by 8 channels: [channels / 8][keys, keys, queries, queries]; 16 bytes
// more bring neighbours into different banks.
inline constexpr int32_t kRowWords = 4 * 32 + 4;
using RowBlocks = uint32_t[kDim / 8][kRowWords];
inline constexpr uint32_t kRowLeading = 4 * kRowWords;

// One prepared chunk for kColumns value columns; [2]: high and low parts.
template <int32_t kColumns>
struct alignas(1024) VectorChunk {
  static constexpr int32_t kValuePitch = 2 * kColumns + 16;
  // 64 channels of a token in 128 bytes, 16-byte pieces exchanged: [part][half].
  char columns[2][2][kVectorTokens][128];
  RowBlocks rows[2];
  SmallBlocks solve[2];
  SmallBlocks weights[2];
  char values[kVectorTokens][kValuePitch];
  float read[kDim];
  float keep[kDim];
  float add[2][kDim];                 // for corrections as they are, in parts of kLargeUnit
  float key_factor[kVectorTokens];    // |k|^-1, or 0 without the delta rule
  float query_factor[kVectorTokens];  // |q|^-1 times the scale of queries
  float write_factor[kVectorTokens];  // |k|^-1
};

// What a team of four preparing warps works in.
struct alignas(16) VectorScratch {
  float gates[kVectorTokens][kDim];
  char keys[kVectorTokens][kRawPitch];
  char queries[kVectorTokens][kRawPitch];
  float matrix[2][kVectorTokens][kVectorPitch];  // keys with keys, queries with keys
  float beta[kVectorTokens];
  float key_scale[kVectorTokens];
  float query_scale[kVectorTokens];
};

}  // namespace leapquant::cuda::chunks_128
