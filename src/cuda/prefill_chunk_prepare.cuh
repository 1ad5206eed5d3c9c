// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill, the warps that prepare: a warp loads a chunk's rows into a stage and computes
// all that does not need the state: norms, decays, T by substitution in FP32, P.
#pragma once

#include "cuda/prefill_chunk_shared.cuh"

namespace leapquant::cuda {

// Copies 32 rows of kPieces x 16 bytes; rows past the last repeat it. Does not wait.
template <int32_t kPieces>
__device__ __forceinline__ void load_chunk_rows(const char* source, int64_t stride, int32_t last,
                                                bool aligned, int32_t lane, char* target,
                                                int32_t pitch) {
  if (aligned) {
#pragma unroll
    for (int32_t n = 0; n < kPieces; ++n) {
      const int32_t piece = lane + 32 * n;
      const int32_t row = piece / kPieces;
      const int32_t at = 16 * (piece % kPieces);
      copy_16_async(shared_address(target + row * pitch + at),
                    source + min(row, last) * stride + at);
    }
    return;
  }
  for (int32_t row = 0; row < kChunkTokens; ++row) {
    const auto* from = reinterpret_cast<const uint16_t*>(source + min(row, last) * stride);
    auto* to = reinterpret_cast<uint16_t*>(target + row * pitch);
    for (int32_t e = lane; e < 8 * kPieces; e += 32) to[e] = from[e];
  }
}

// Substitution: row `lane` of (I + A)^-1 from the rows of A below the diagonal.
__device__ __forceinline__ void invert_row(const float (&a)[kChunkTokens][kMatrixPitch],
                                           int32_t lane, float (&x)[kChunkTokens]) {
#pragma unroll
  for (int32_t j = 0; j < kChunkTokens; ++j) x[j] = j == lane ? 1.0f : 0.0f;
#pragma unroll
  for (int32_t row = kChunkTokens - 1; row > 0; --row) {
    const float factor = -x[row];
#pragma unroll
    for (int32_t j = 0; j < row; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(&a[row][j]);
      x[j] = fmaf(factor, quad.x, x[j]);
      if (j + 1 < row) x[j + 1] = fmaf(factor, quad.y, x[j + 1]);
      if (j + 2 < row) x[j + 2] = fmaf(factor, quad.z, x[j + 2]);
      if (j + 3 < row) x[j + 3] = fmaf(factor, quad.w, x[j + 3]);
    }
  }
}

// The blocks of T from rows in `x` of all lanes, through the scratch's matrix.
__device__ __forceinline__ void store_solve(const float (&x)[kChunkTokens], int32_t lane,
                                            PrepareScratch* scratch,
                                            uint4 (&solve)[kTriangleBlocks][32]) {
#pragma unroll
  for (int32_t j = 0; j < kChunkTokens; j += 4) {
    const float4 beta = *reinterpret_cast<const float4*>(&scratch->beta[j]);
    *reinterpret_cast<float4*>(&scratch->matrix[lane][j]) =
        make_float4(x[j] * beta.x, x[j + 1] * beta.y, x[j + 2] * beta.z, x[j + 3] * beta.w);
  }
  __syncwarp();
  const int32_t g = lane >> 2;
  const int32_t pair = 2 * (lane & 3);
#pragma unroll
  for (int32_t block = 0; block < kTriangleBlocks; ++block) {
    const int32_t row = 8 * (block < 4 ? block : block - 2) + g;
    const float* at = &scratch->matrix[row][(block < 4 ? 0 : 16) + pair];
    const Parts a = parts_of(at[0], at[1]);
    const Parts b = parts_of(at[8], at[9]);
    solve[block][lane] = make_uint4(a.high, b.high, a.low, b.low);
  }
}

// Prepares tokens first .. first + count - 1 of the stretch.
template <int32_t kDim, int32_t kColumns>
__device__ __forceinline__ void prepare_chunk(const Call& call, const ChunkPlace& at, int32_t first,
                                              int32_t count, Stage<kDim, kColumns>* stage,
                                              PrepareScratch* scratch) {
  using Layout = Stage<kDim, kColumns>;
  const Inputs& in = call.inputs;
  const int32_t lane = at.lane;
  const int32_t k_head = at.v_head / call.group;
  const int64_t token = at.token + first;
  load_chunk_rows<kDim / 8>(row_of(in.k, 0, token, 0, k_head), in.k.token, count - 1,
                            rows_aligned(in.k), lane, stage->keys[0], Layout::kKeyPitch);
  load_chunk_rows<kDim / 8>(row_of(in.q, 0, token, 0, k_head), in.q.token, count - 1,
                            rows_aligned(in.q), lane, stage->queries[0], Layout::kKeyPitch);
  load_chunk_rows<kColumns / 8>(row_of(in.v, 0, token, 0, at.v_head) + 2 * at.first_column,
                                in.v.token, count - 1, rows_aligned(in.v), lane, stage->values[0],
                                Layout::kValuePitch);
  // A lane's token; those past the end neither decay nor write.
  float log_decay = 0.0f;
  float beta = 0.0f;
  if (lane < count) {
    log_decay = load_log_decay(call, 0, token + lane, at.v_head, 0);
    beta = 1.0f;
    if (in.beta.data != nullptr) {
      beta = load_number(row_of(in.beta, 0, token + lane, 0, at.v_head), in.beta.type, 0);
      if (in.sigmoid_beta != 0) beta = in.beta_scale * sigmoid(beta);
    }
  }
  scratch->log_decay[lane] = log_decay;
  scratch->beta[lane] = beta;
  wait_for_copies();
  __syncwarp();

  float kk[6][4] = {};
  float qk[6][4] = {};
  float qq[4][4] = {};
  {
    const uint32_t row = static_cast<uint32_t>((lane & 15) * Layout::kKeyPitch + 16 * (lane >> 4));
    const uint32_t keys = shared_address(stage->keys) + row;
    const uint32_t queries = shared_address(stage->queries) + row;
    constexpr uint32_t kSixteenRows = 16 * Layout::kKeyPitch;
#pragma unroll
    for (uint32_t step = 0; step < kDim / 16; ++step) {
      uint32_t k[2][4], q[2][4];
      load_matrices(k[0], keys + 32 * step);
      load_matrices(k[1], keys + kSixteenRows + 32 * step);
      load_matrices(q[0], queries + 32 * step);
      load_matrices(q[1], queries + kSixteenRows + 32 * step);
      add_products(k, q, kk, qk, qq);
    }
  }

  // Norms: the diagonals. Row g of a tile lies in lane 4 g + t as columns 2 t, 2 t + 1.
  const int32_t g = lane >> 2;
  const int32_t t = lane & 3;
  if (t == g >> 1) {
#pragma unroll
    for (int32_t n = 0; n < 4; ++n) {
      const int32_t tile = n < 2 ? n : n + 2;
      const int32_t half = 2 * (n & 1);
      scratch->key_scale[8 * n + g] = (g & 1) != 0 ? kk[tile][half + 1] : kk[tile][half];
      scratch->query_scale[8 * n + g] = (g & 1) != 0 ? qq[n][half + 1] : qq[n][half];
    }
  }
  __syncwarp();
  float key_scale = 1.0f;
  float query_scale = in.q_scale;
  if (in.l2norm != 0) {
    key_scale = 1.0f / sqrtf(scratch->key_scale[lane] + in.l2norm_eps);
    query_scale = in.q_scale / sqrtf(scratch->query_scale[lane] + in.l2norm_eps);
  }
  __syncwarp();
  scratch->key_scale[lane] = key_scale;
  scratch->query_scale[lane] = query_scale;

  // Column `lane` of exp(G_i - G_lane), i >= lane; sums up to the lane's token and past it.
  float before = 0.0f;
  float after = 0.0f;
#pragma unroll 8
  for (int32_t i = 0; i < kChunkTokens; ++i) {
    const float x = scratch->log_decay[i];
    if (i <= lane) {
      before += x;
    } else {
      after += x;
    }
    scratch->matrix[i][lane] = i < lane ? 0.0f : expf(after);
  }
  const float reached = decay_factor(before);
  stage->key_factor[lane] = call.delta_rule != 0 ? key_scale * reached : 0.0f;
  stage->query_factor[lane] = query_scale * reached;
  stage->write_factor[lane] = key_scale * expf(after);
  if (lane == 31) stage->decay[0] = reached;
  __syncwarp();

  // A into the matrix, in place of the decays; P into its blocks.
#pragma unroll
  for (int32_t tile = 0; tile < 6; ++tile) {
    const int32_t m = tile < 2 ? 0 : 1;
    const int32_t n = tile < 2 ? tile : tile - 2;
    const float2 column = *reinterpret_cast<const float2*>(&scratch->key_scale[8 * n + 2 * t]);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t row = 16 * m + 8 * half + g;
      auto* place = reinterpret_cast<float2*>(&scratch->matrix[row][8 * n + 2 * t]);
      const float2 decay = *place;
      const float query_row = scratch->query_scale[row];
      const float key_row =
          call.delta_rule != 0 ? scratch->beta[row] * scratch->key_scale[row] : 0.0f;
      float& a0 = kk[tile][2 * half];
      float& a1 = kk[tile][2 * half + 1];
      float& p0 = qk[tile][2 * half];
      float& p1 = qk[tile][2 * half + 1];
      *place =
          make_float2(a0 * key_row * (column.x * decay.x), a1 * key_row * (column.y * decay.y));
      p0 = p0 * query_row * (column.x * decay.x);
      p1 = p1 * query_row * (column.y * decay.y);
    }
  }
#pragma unroll
  for (int32_t block = 0; block < kTriangleBlocks; ++block) {
    const int32_t rows = block < 4 ? block : block - 2;  // in eights
    const int32_t tile = (rows < 2 ? 0 : 2) + (block < 4 ? 0 : 2);
    const int32_t half = 2 * (rows & 1);
    const Parts a = parts_of(qk[tile][half], qk[tile][half + 1]);
    const Parts b = parts_of(qk[tile + 1][half], qk[tile + 1][half + 1]);
    stage->weights[block][lane] = make_uint4(a.high, b.high, a.low, b.low);
  }
  __syncwarp();
  float x[kChunkTokens];
  invert_row(scratch->matrix, lane, x);
  __syncwarp();
  store_solve(x, lane, scratch, stage->solve);
  __syncwarp();
}

}  // namespace leapquant::cuda
