// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels, the warps that prepare: a warp loads a chunk's rows
// into a stage and computes all that does not need the state: norms, decays, T by substitution in
// halves of 16 tokens, P. Written for little code: these warps and those of the state share an
// instruction cache.
#pragma once

#include "cuda/finite.cuh"
#include "cuda/prefill_chunk_state.cuh"
#include "cuda/prefill_stage_128.cuh"

namespace leapquant::cuda::chunks_128 {

// Copies kChunkTokens rows of kPieces x 16 bytes, past row `last` that one again; `place` gives a
// piece's address. Does not wait.
template <int32_t kPieces, typename Place>
__device__ __forceinline__ void load_rows(const Rows& rows, const char* source, int32_t last,
                                          int32_t lane, const Place& place) {
  constexpr int32_t kEach = 32 / kPieces;  // rows at a time
  const int32_t piece = lane % kPieces;
  const char* from = source + 16 * piece;
  if (rows_aligned(rows)) {
#pragma unroll 4
    for (int32_t row = lane / kPieces; row < kChunkTokens; row += kEach) {
      copy_16_async(shared_address(place(row, piece)), from + min(row, last) * rows.token);
    }
    return;
  }
#pragma unroll 1
  for (int32_t row = lane / kPieces; row < kChunkTokens; row += kEach) {
    const auto* words = reinterpret_cast<const uint16_t*>(from + min(row, last) * rows.token);
    auto* to = reinterpret_cast<uint16_t*>(place(row, piece));
#pragma unroll 1
    for (int32_t i = 0; i < 8; ++i) to[i] = words[i];
  }
}
// Rows of 128 channels, keys or queries.
__device__ __forceinline__ void load_key_rows(const Rows& rows, const char* source, int32_t last,
                                              int32_t lane, char* to) {
  load_rows<16>(rows, source, last, lane, [&](int32_t row, int32_t piece) {
    return to + (piece >> 3) * (2 * kChunkTokens * 128) + row * 128 + 16 * ((piece ^ row) & 7);
  });
}

// Row `lane` % 16 of the inverse of I + A for the half lane / 16 of the tokens, into the matrix in
// place of A.
__device__ __forceinline__ void invert_halves(float (&matrix)[kChunkTokens][kPitch], int32_t lane) {
  const int32_t half = lane & 16;
  const int32_t own = lane & 15;
  float x[16];
#pragma unroll
  for (int32_t j = 0; j < 16; ++j) x[j] = j == own ? 1.0f : 0.0f;
#pragma unroll
  for (int32_t row = 15; row > 0; --row) {
    const float factor = -x[row];
#pragma unroll
    for (int32_t j = 0; j < row; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(&matrix[half + row][half + j]);
      x[j] = fmaf(factor, quad.x, x[j]);
      if (j + 1 < row) x[j + 1] = fmaf(factor, quad.y, x[j + 1]);
      if (j + 2 < row) x[j + 2] = fmaf(factor, quad.z, x[j + 2]);
      if (j + 3 < row) x[j + 3] = fmaf(factor, quad.w, x[j + 3]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int32_t j = 0; j < 16; j += 4) {
    *reinterpret_cast<float4*>(&matrix[lane][half + j]) =
        make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
  }
  __syncwarp();
}

__device__ __forceinline__ void store_pair(Blocks (&to)[2], int32_t i, int32_t j, int32_t lane,
                                           float x, float y) {
  const Parts parts = parts_of(x, y);
  to[0][j][i][lane] = parts.high;
  to[1][j][i][lane] = parts.low;
}

// Two numbers as they are where the parts of a pair will be, and back; by the same lane.
__device__ __forceinline__ void put_pair(Blocks (&to)[2], int32_t i, int32_t j, int32_t lane,
                                         float x, float y) {
  to[0][j][i][lane] = __float_as_uint(x);
  to[1][j][i][lane] = __float_as_uint(y);
}
__device__ __forceinline__ float2 taken_pair(const Blocks (&from)[2], int32_t i, int32_t j,
                                             int32_t lane) {
  return make_float2(__uint_as_float(from[0][j][i][lane]), __uint_as_float(from[1][j][i][lane]));
}

// 16 rows and columns of the matrix from (row, column) as the first operand.
__device__ __forceinline__ OperandParts first_operand(const float (&matrix)[kChunkTokens][kPitch],
                                                      int32_t row, int32_t column, int32_t lane) {
  OperandParts o;
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const float2 x = *reinterpret_cast<const float2*>(
        &matrix[row + (lane >> 2) + 8 * (i & 1)][column + 2 * (lane & 3) + 8 * (i >> 1)]);
    const Parts parts = parts_of(x.x, x.y);
    o.high[i] = parts.high;
    o.low[i] = parts.low;
  }
  return o;
}
// d[16][16] = a times 16 rows and columns of the matrix from (row, column).
__device__ __forceinline__ void multiply_halves(const OperandParts& a,
                                                const float (&matrix)[kChunkTokens][kPitch],
                                                int32_t row, int32_t column, int32_t lane,
                                                Tiles<2>& d) {
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
    const float* at = &matrix[row + 2 * (lane & 3)][column + 8 * n + (lane >> 2)];
    const Parts b0 = parts_of(at[0], at[kPitch]);
    const Parts b1 = parts_of(at[8 * kPitch], at[9 * kPitch]);
    multiply(d[n], a.high, b0.high, b1.high);
    multiply(d[n], a.high, b0.low, b1.low);
    multiply(d[n], a.low, b0.high, b1.high);
  }
}

// T = (I + A)^-1 Diag(beta) from A in the matrix: both halves by substitution, the corner from
// them.
__device__ __forceinline__ void solve_chunk(Scratch* scratch, int32_t lane, Blocks (&solve)[2]) {
  invert_halves(scratch->matrix, lane);
  const int32_t t = lane & 3;
#pragma unroll 2
  for (int32_t block = 0; block < 8; ++block) {
    const int32_t i = 2 * (block >> 2) + (block & 1);
    const int32_t j = 2 * (block >> 2) + ((block >> 1) & 1);
    const float2 x =
        *reinterpret_cast<const float2*>(&scratch->matrix[8 * i + (lane >> 2)][8 * j + 2 * t]);
    const float2 beta = *reinterpret_cast<const float2*>(&scratch->beta[8 * j + 2 * t]);
    store_pair(solve, i, j, lane, x.x * beta.x, x.y * beta.y);
  }
  Tiles<2> inner = {};
  multiply_halves(first_operand(scratch->matrix, 16, 16, lane), scratch->matrix, 16, 0, lane,
                  inner);
  Tiles<2> corner = {};
  multiply_halves(operand_of(inner[0], inner[1]), scratch->matrix, 0, 0, lane, corner);
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const float2 beta = *reinterpret_cast<const float2*>(&scratch->beta[8 * j + 2 * t]);
    store_pair(solve, 2, j, lane, -corner[j][0] * beta.x, -corner[j][1] * beta.y);
    store_pair(solve, 3, j, lane, -corner[j][2] * beta.x, -corner[j][3] * beta.y);
  }
}

// Sum of the lane's log decay and all before it. No decay is told from another one below -1e4.
__device__ __forceinline__ double sum_up_to_lane(float log_decay, int32_t lane) {
  double sum = static_cast<double>(fmaxf(log_decay, -1e4f));
#pragma unroll
  for (int32_t step = 1; step < 32; step <<= 1) {
    const double other = __shfl_up_sync(kAllLanes, sum, static_cast<uint32_t>(step));
    if (lane >= step) sum += other;
  }
  return sum;
}
// exp(x) for x <= 0, relative error 2^-22 + |x| 2^-24.
__device__ __forceinline__ float exp_quick(float x) { return exp2_fast(x * 1.4426950408889634f); }

// Of the lane's token; those past the end neither decay nor write. found: faults.
struct TokenGates {
  float log_decay, beta;
  uint32_t found;
};
// Of raw gates, from one number; with `parameters`, NaN in these is a fault too.
__device__ __noinline__ inline TokenGates raw_token_gates(const Inputs& in, int32_t v_head, float x,
                                                          bool parameters) {
  TokenGates gates = {gate_of(in, x, v_head, v_head), 0.0f, is_finite(x) ? 0u : kNotFinite};
  if (parameters) {
    const float g = gate_of(in, 0.0f, v_head, v_head);
    if (g != g) gates.found = kNotFinite;
  }
  return gates;
}
__device__ __noinline__ inline float raw_beta(const Inputs& in, float x) {
  return in.beta_scale * sigmoid(x);
}
__device__ __forceinline__ TokenGates load_token_gates(const Call& call, const ChunkPlace& at,
                                                       int32_t first, int32_t count) {
  const Inputs& in = call.inputs;
  TokenGates gates = {0.0f, 0.0f, 0};
  if (at.lane >= count) return gates;
  const int64_t token = at.token + first + at.lane;
  if (call.decay == LEAPQUANT_DECAY_SCALAR) {
    const float x = load_number(row_of(in.log_decay, 0, token, 0, at.v_head), in.log_decay.type, 0);
    if (in.gate == LEAPQUANT_GATE_READY) {
      gates.log_decay = x;
      gates.found = log_decay_faults(x);
    } else {
      gates = raw_token_gates(in, at.v_head, x, first == 0);
    }
  } else {
    gates.log_decay = call.decay == LEAPQUANT_DECAY_CONSTANT
                          ? call.head_decay[at.v_head - call.first_head]
                          : 0.0f;
  }
  gates.beta = 1.0f;
  if (in.beta.data != nullptr) {
    gates.beta = load_number(row_of(in.beta, 0, token, 0, at.v_head), in.beta.type, 0);
    if (!is_finite(gates.beta)) gates.found |= kNotFinite;
    if (in.sigmoid_beta != 0) gates.beta = raw_beta(in, gates.beta);
  }
  return gates;
}

// Faults of the lane's key and query.
__device__ __noinline__ inline uint32_t row_faults(const char (&rows)[2][2 * kChunkTokens][128],
                                                   int32_t lane) {
  const FiniteTest test = finite_test(LEAPQUANT_BF16);
  uint32_t seen = 0;
#pragma unroll 1
  for (int32_t e = 0; e < 32; ++e) {
    const char* row = rows[e & 1][lane + kChunkTokens * ((e >> 1) & 1)];
    seen |= seen_in(test, reinterpret_cast<const uint4*>(row)[e >> 2]);
  }
  return seen != 0 ? kNotFinite : 0u;
}

// Prepares tokens first .. first + count - 1 of the stretch. Returns faults that the
// lane has found.
template <int32_t kColumns>
__device__ __forceinline__ uint32_t prepare_chunk(const Call& call, const ChunkPlace& at,
                                                  int32_t first, int32_t count,
                                                  PreparedChunk<kColumns>* stage,
                                                  Scratch* scratch) {
  const Inputs& in = call.inputs;
  const int32_t lane = at.lane;
  const int32_t k_head = at.v_head / call.group;
  const int64_t token = at.token + first;
  load_key_rows(in.k, row_of(in.k, 0, token, 0, k_head), count - 1, lane, stage->rows[0][0]);
  load_key_rows(in.q, row_of(in.q, 0, token, 0, k_head), count - 1, lane,
                stage->rows[0][kChunkTokens]);
  load_rows<kColumns / 8>(
      in.v, row_of(in.v, 0, token, 0, at.v_head) + 2 * at.first_column, count - 1, lane,
      [&](int32_t row, int32_t piece) { return &stage->values[row][16 * piece]; });
  const TokenGates gates = load_token_gates(call, at, first, count);
  const double reached = sum_up_to_lane(gates.log_decay, lane);
  scratch->reached[lane] = reached;
  scratch->beta[lane] = gates.beta;
  wait_for_copies();
  __syncwarp();

  float kk[6][4] = {};
  float qk[6][4] = {};
  float qq[4][4] = {};
  {
    const uint32_t row = shared_address(stage->rows) + static_cast<uint32_t>(lane & 15) * 128;
    const uint32_t turn = static_cast<uint32_t>(lane & 7);
    constexpr uint32_t kSixteenRows = 16 * 128;
#pragma unroll 2
    for (uint32_t step = 0; step < kDim / 16; ++step) {
      const uint32_t piece = 2 * (step & 3) + static_cast<uint32_t>(lane >> 4);
      const uint32_t from = row + (step >> 2) * sizeof(stage->rows[0]) + ((piece ^ turn) << 4);
      uint32_t k[2][4], q[2][4];
      load_matrices(k[0], from);
      load_matrices(k[1], from + kSixteenRows);
      load_matrices(q[0], from + 2 * kSixteenRows);
      load_matrices(q[1], from + 3 * kSixteenRows);
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
  // Squares are finite only where rows are.
  uint32_t found = gates.found;
  const float key_square = scratch->key_scale[lane];
  const float query_square = scratch->query_scale[lane];
  if (__any_sync(kAllLanes, !is_finite(key_square) || !is_finite(query_square)) != 0) {
    found |= row_faults(stage->rows, lane);
  }
  float key_scale = 1.0f;
  float query_scale = in.q_scale;
  if (in.l2norm != 0) {
    key_scale = rsqrtf(key_square + in.l2norm_eps);
    query_scale *= rsqrtf(query_square + in.l2norm_eps);
  }
  const bool delta = call.delta_rule != 0;
  const float decay = exp_quick(static_cast<float>(reached));
  stage->key_factor[lane] = delta ? key_scale * decay : 0.0f;
  stage->query_factor[lane] = query_scale * decay;
  const double last = __shfl_sync(kAllLanes, reached, 31);
  stage->write_factor[lane] = key_scale * exp_quick(static_cast<float>(last - reached));
  stage->decay[0] = decay_factor(static_cast<float>(last));
  __syncwarp();
  scratch->key_scale[lane] = key_scale;
  scratch->query_scale[lane] = query_scale;
  __syncwarp();

  // The products to where T and P will be, so that a loop can take them from there: unrolled it is
  // 10 KB of code, and these warps' and the groups' must fit an instruction cache together.
#pragma unroll
  for (int32_t m = 0; m < 2; ++m) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (int32_t n = 0; n < 2 * m + 2; ++n) {
        const int32_t tile = m == 0 ? n : n + 2;
        put_pair(stage->solve, 2 * m + half, n, lane, kk[tile][2 * half], kk[tile][2 * half + 1]);
        put_pair(stage->weights, 2 * m + half, n, lane, qk[tile][2 * half], qk[tile][2 * half + 1]);
      }
    }
  }
  // A into the matrix, P into its blocks.
#pragma unroll 1
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t row = 8 * i + g;
    const double row_reached = scratch->reached[row];
    const float query_row = scratch->query_scale[row];
    const float key_row = delta ? scratch->beta[row] * scratch->key_scale[row] : 0.0f;
#pragma unroll 1
    for (int32_t first_n = 0; first_n < 2 * (i >> 1) + 2; first_n += 2) {
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        const int32_t n = first_n + e;
        const int32_t column = 8 * n + 2 * t;
        const float2 key = taken_pair(stage->solve, i, n, lane);
        const float2 query = taken_pair(stage->weights, i, n, lane);
        const double2 from = *reinterpret_cast<const double2*>(&scratch->reached[column]);
        const float2 scale = *reinterpret_cast<const float2*>(&scratch->key_scale[column]);
        const float d0 =
            column <= row ? exp_quick(static_cast<float>(row_reached - from.x)) * scale.x : 0.0f;
        const float d1 =
            column < row ? exp_quick(static_cast<float>(row_reached - from.y)) * scale.y : 0.0f;
        *reinterpret_cast<float2*>(&scratch->matrix[row][column]) =
            make_float2(key.x * key_row * d0, key.y * key_row * d1);
        store_pair(stage->weights, i, n, lane, query.x * query_row * d0, query.y * query_row * d1);
      }
    }
  }
  __syncwarp();
  solve_chunk(scratch, lane, stage->solve);
  fence_async_shared();
  __syncwarp();
  return found;
}

}  // namespace leapquant::cuda::chunks_128
