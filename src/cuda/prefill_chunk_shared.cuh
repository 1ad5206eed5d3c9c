// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill: what lies in shared memory between the warps that prepare a chunk and those that
// carry the state, and the numbers both use.
//
// One head, a chunk of tokens i = 0 .. 31, state S before it, log decays g, G_i = g_0 + .. + g_i:
//   A_ij = beta_i exp(G_i - G_j) <k_i, k_j>, j < i        T = (I + A)^-1 Diag(beta)
//   u    = T (v - Diag(exp G) K S)                        corrections of the chunk
//   o_i  = exp(G_i) S^T q_i + sum over j <= i of P_ij u_j, P_ij = exp(G_i - G_j) <q_i, k_j>
//   S'   = exp(G_31) S + sum over j of exp(G_31 - G_j) k_j u_j^T
// (parallel form of the gated delta rule, arXiv 2412.06464, section 3.3). Exponents are sums over
// the tokens between, never differences, so none is above zero and -inf is exact.
//
// Keys, queries and values stay as they came: BF16 numbers are exact operands. Their norms and
// decays are factors of rows and columns. The other operand of a product is always FP32 in two BF16
// parts (16 bits; three products where both are split), sums are FP32.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {

inline constexpr int32_t kChunkTokens = 32;
// Operands of T and P: blocks of 8 rows by 16 columns that are not above the diagonal, rows 0, 8,
// 16, 24 of columns 0 to 15, then rows 16, 24 of columns 16 to 31. A lane has 16 bytes of each:
// two words of high parts, two of low parts.
inline constexpr int32_t kTriangleBlocks = 6;
inline constexpr int32_t kTriangleBytes = kTriangleBlocks * 32 * 16;
inline constexpr int32_t kMatrixPitch = 36;  // floats of a row of a preparer's own matrix

// One prepared chunk for kColumns value columns. Rows of keys, queries and values are 16 bytes
// apart from a multiple of 128: eight rows lie in different banks.
template <int32_t kDim, int32_t kColumns>
struct Stage {
  static constexpr int32_t kKeyPitch = 2 * kDim + 16;
  static constexpr int32_t kValuePitch = 2 * kColumns + 16;
  uint4 solve[kTriangleBlocks][32];    // T
  uint4 weights[kTriangleBlocks][32];  // P
  char keys[kChunkTokens][kKeyPitch];
  char queries[kChunkTokens][kKeyPitch];
  char values[kChunkTokens][kValuePitch];
  float key_factor[kChunkTokens];    // |k|^-1 exp G
  float query_factor[kChunkTokens];  // |q|^-1 exp G, times the scale of queries
  float write_factor[kChunkTokens];  // |k|^-1 exp(G_31 - G)
  float decay[4];                    // exp G_31
};

// What a preparing warp works in.
struct PrepareScratch {
  float matrix[kChunkTokens][kMatrixPitch];
  float log_decay[kChunkTokens];
  float beta[kChunkTokens];
  float key_scale[kChunkTokens];
  float query_scale[kChunkTokens];
};

// Products of a chunk's keys with keys, of queries with keys, and of queries with themselves, over
// sixteen channels more; k, q: operands of rows 0 and 16. Tiles of 16 rows by 8 columns: rows 0
// with columns 0, 8, then rows 16 with columns 0, 8, 16, 24; of the queries' own only those on the
// diagonal.
__device__ __forceinline__ void add_products(const uint32_t (&k)[2][4], const uint32_t (&q)[2][4],
                                             float (&kk)[6][4], float (&qk)[6][4],
                                             float (&qq)[4][4]) {
#pragma unroll
  for (int32_t tile = 0; tile < 6; ++tile) {
    const int32_t m = tile < 2 ? 0 : 1;
    const int32_t n = tile < 2 ? tile : tile - 2;
    const uint32_t (&b)[4] = k[n >> 1];
    mma_bf16(kk[tile], k[m][0], k[m][1], k[m][2], k[m][3], b[n & 1], b[2 + (n & 1)]);
    mma_bf16(qk[tile], q[m][0], q[m][1], q[m][2], q[m][3], b[n & 1], b[2 + (n & 1)]);
  }
#pragma unroll
  for (int32_t n = 0; n < 4; ++n) {
    const uint32_t (&b)[4] = q[n >> 1];
    mma_bf16(qq[n], b[0], b[1], b[2], b[3], b[n & 1], b[2 + (n & 1)]);
  }
}

struct ChunkPlace {
  int32_t sequence, v_head, first_column;
  int32_t lane;
  int64_t token;   // first of the stretch, on the packed axis
  int32_t tokens;  // of the stretch
};

// Whether 16 bytes of a row can be copied at once.
__device__ __forceinline__ bool rows_aligned(const Rows& rows) {
  return ((reinterpret_cast<uintptr_t>(rows.data) | static_cast<uint64_t>(rows.token) |
           static_cast<uint64_t>(rows.head)) &
          15) == 0;
}

// Two numbers as two BF16 parts each, which lack at most 2^-17 of them. The largest finite numbers
// have finite parts, infinite ones a low part that is.
struct Parts {
  uint32_t high, low;
};
__device__ __forceinline__ Parts parts_of(float x, float y) {
  Parts parts;
  parts.high = pack_bf16_finite(x, y);
  parts.low = pack_bf16(x - __uint_as_float(parts.high << 16),
                        y - __uint_as_float(parts.high & 0xffff0000u));
  return parts;
}

}  // namespace leapquant::cuda
