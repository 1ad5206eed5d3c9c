// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill with vector decays, the warps that prepare: a team of four loads a chunk, two of
// them make its rows and two its columns, each of 64 channels, then one T and one P. A lane has two
// channels, or a fragment of the matrix units.
#pragma once

#include "cuda/prefill_prepare_128.cuh"
#include "cuda/prefill_vector_stage_128.cuh"

namespace leapquant::cuda::chunks_128 {

// One of the team: warp 0 .. 3, its lane, the team's barrier.
struct TeamPlace {
  int32_t warp, lane, barrier;
};

// Copies kVectorTokens rows of `pieces` x 16 bytes by the team's threads from `first` on; past row
// `last` that one again.
__device__ __forceinline__ void load_team_rows(const Rows& rows, const char* source, int32_t last,
                                               int32_t pieces, const TeamPlace& team, int32_t first,
                                               char* to, int32_t pitch) {
  const bool aligned = rows_aligned(rows);
#pragma unroll 1
  for (int32_t e = 32 * team.warp + team.lane - first; e < kVectorTokens * pieces;
       e += 128 - first) {
    const int32_t row = e / pieces;
    const int32_t at = 16 * (e - row * pieces);
    const char* from = source + min(row, last) * rows.token + at;
    if (aligned) {
      copy_16_async(shared_address(to + row * pitch + at), from);
      continue;
    }
#pragma unroll 1
    for (int32_t i = 0; i < 16; i += 2) {
      *reinterpret_cast<uint16_t*>(to + row * pitch + at + i) =
          *reinterpret_cast<const uint16_t*>(from + i);
    }
  }
}

// Log decays of raw gates, four neighbouring channels.
__device__ __noinline__ inline float4 gates_of(const Inputs& in, float4 x, int32_t v_head,
                                               int64_t bias) {
  return make_float4(gate_of(in, x.x, v_head, bias), gate_of(in, x.y, v_head, bias + 1),
                     gate_of(in, x.z, v_head, bias + 2), gate_of(in, x.w, v_head, bias + 3));
}

// Once in the code.
__device__ __noinline__ inline float2 decay_factors(float2 g) {
  return make_float2(decay_factor(g.x), decay_factor(g.y));
}

// Faults of log decays as they are used, or of what they are made from.
__device__ __forceinline__ uint32_t gate_faults(const Inputs& in, float4 x) {
  if (in.gate == LEAPQUANT_GATE_READY) {
    return log_decay_faults(x.x) | log_decay_faults(x.y) | log_decay_faults(x.z) |
           log_decay_faults(x.w);
  }
  return is_finite(x.x) && is_finite(x.y) && is_finite(x.z) && is_finite(x.w) ? 0u : kNotFinite;
}
// Of the parameters, NaN is a fault; a lane has four channels.
__device__ __noinline__ inline uint32_t parameter_faults(const Inputs& in, int32_t v_head,
                                                         int32_t lane) {
  const float4 g =
      gates_of(in, make_float4(0.0f, 0.0f, 0.0f, 0.0f), v_head, int64_t{v_head} * kDim + 4 * lane);
  return g.x != g.x || g.y != g.y || g.z != g.z || g.w != g.w ? kNotFinite : 0u;
}

// Log decays of half a chunk, tokens from `first` on, zero past the last; a lane has four channels.
// Returns faults.
__device__ __forceinline__ uint32_t load_gates(const Call& call, const ChunkPlace& at,
                                               int64_t token, int32_t count, int32_t first,
                                               int32_t lane, VectorScratch* scratch) {
  constexpr int32_t kHalf = kVectorTokens / 2;
  const Rows& rows = call.inputs.log_decay;
  const auto row = [&](int32_t i) {
    return row_of(rows, 0, token + min(first + i, count - 1), 0, at.v_head);
  };
  const auto gates = [&](int32_t i) -> float4& {
    return reinterpret_cast<float4*>(scratch->gates[first + i])[lane];
  };
  // Numbers of 16 bits go to the front of their places first: a loop that widens is short code.
  const bool narrow = rows_aligned(rows) && rows.type != LEAPQUANT_FP32;
  if (!rows_aligned(rows)) {
#pragma unroll 1
    for (int32_t i = 0; i < kHalf; ++i) {
      const char* from = row(i);
      gates(i) = make_float4(
          load_number(from, rows.type, 4 * lane), load_number(from, rows.type, 4 * lane + 1),
          load_number(from, rows.type, 4 * lane + 2), load_number(from, rows.type, 4 * lane + 3));
    }
  } else if (narrow) {
    uint2 x[kHalf];
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) x[i] = __ldg(reinterpret_cast<const uint2*>(row(i)) + lane);
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) *reinterpret_cast<uint2*>(&gates(i)) = x[i];
  } else {
    float4 x[kHalf];
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i)
      x[i] = __ldg(reinterpret_cast<const float4*>(row(i)) + lane);
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) gates(i) = x[i];
  }
  // Ready ones that are fine are seen at once.
  bool fine = call.inputs.gate == LEAPQUANT_GATE_READY;
  const bool bf16 = rows.type == LEAPQUANT_BF16;
#pragma unroll 2
  for (int32_t i = 0; i < kHalf; ++i) {
    float4 x = gates(i);
    if (narrow) {
      const uint32_t a = __float_as_uint(x.x);
      const uint32_t b = __float_as_uint(x.y);
      x = bf16 ? make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u),
                             __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u))
               : make_float4(fp16_value(static_cast<uint16_t>(a)),
                             fp16_value(static_cast<uint16_t>(a >> 16)),
                             fp16_value(static_cast<uint16_t>(b)),
                             fp16_value(static_cast<uint16_t>(b >> 16)));
      gates(i) = x;
    }
    fine = fine && x.x <= 0.0f && x.y <= 0.0f && x.z <= 0.0f && x.w <= 0.0f;
  }
  uint32_t found = 0;
  if (!fine) {
#pragma unroll 1
    for (int32_t i = 0; i < kHalf; ++i) found |= gate_faults(call.inputs, gates(i));
  }
  if (call.inputs.gate != LEAPQUANT_GATE_READY) {
    if (token == at.token) found |= parameter_faults(call.inputs, at.v_head, lane);
#pragma unroll 1
    for (int32_t i = 0; i < kHalf; ++i) {
      gates(i) = gates_of(call.inputs, gates(i), at.v_head, int64_t{at.v_head} * kDim + 4 * lane);
    }
  }
#pragma unroll 1
  for (int32_t i = max(count - first, 0); i < kHalf; ++i) {
    gates(i) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  return found;
}

// Squares of the rows' norms: the diagonal of their products.
__device__ __forceinline__ float row_square(const char (*rows)[kRawPitch], int32_t lane,
                                            float* squares) {
  float tile[2][4] = {};
  const uint32_t from = shared_address(rows) + static_cast<uint32_t>(lane & 15) * kRawPitch +
                        16 * static_cast<uint32_t>(lane >> 4);
#pragma unroll 2
  for (uint32_t step = 0; step < kDim / 16; ++step) {
    uint32_t x[4];
    load_matrices(x, from + 32 * step);
    mma_bf16(tile[0], x[0], x[1], x[2], x[3], x[0], x[2]);
    mma_bf16(tile[1], x[0], x[1], x[2], x[3], x[1], x[3]);
  }
  const int32_t g = lane >> 2;
  if ((lane & 3) == g >> 1) {
    squares[g] = (g & 1) != 0 ? tile[0][1] : tile[0][0];
    squares[8 + g] = (g & 1) != 0 ? tile[1][3] : tile[1][2];
  }
  __syncwarp();
  return squares[lane & 15];
}

// Faults of rows; a lane has half of one.
__device__ __noinline__ inline uint32_t raw_row_faults(const char (*rows)[kRawPitch],
                                                       int32_t lane) {
  const FiniteTest test = finite_test(LEAPQUANT_BF16);
  const auto* pieces = reinterpret_cast<const uint4*>(rows[lane & 15]) + 8 * (lane >> 4);
  uint32_t seen = 0;
#pragma unroll 1
  for (int32_t e = 0; e < 8; ++e) seen |= seen_in(test, pieces[e]);
  return seen != 0 ? kNotFinite : 0u;
}

// Rows of 64 channels, two a lane: keys and queries times exp of what `reached` becomes.
template <int32_t kColumns>
__device__ __forceinline__ void make_rows(int32_t pair, float2 reached,
                                          const VectorScratch* scratch,
                                          VectorChunk<kColumns>* chunk) {
  uint32_t* high = &chunk->rows[0][pair >> 2][pair & 3];
  uint32_t* low = &chunk->rows[1][pair >> 2][pair & 3];
#pragma unroll 2
  for (int32_t i = 0; i < kVectorTokens; ++i) {
    const float2 g = reinterpret_cast<const float2*>(scratch->gates[i])[pair];
    const uint32_t k = reinterpret_cast<const uint32_t*>(scratch->keys[i])[pair];
    const uint32_t q = reinterpret_cast<const uint32_t*>(scratch->queries[i])[pair];
    reached.x += g.x;
    reached.y += g.y;
    const float a = exp_quick(reached.x);
    const float b = exp_quick(reached.y);
    const Parts key = parts_of(__uint_as_float(k << 16) * a, __uint_as_float(k & 0xffff0000u) * b);
    const Parts query =
        parts_of(__uint_as_float(q << 16) * a, __uint_as_float(q & 0xffff0000u) * b);
    const int32_t to = (i >> 3) * 32 + (i & 7) * 4;
    high[to] = key.high;
    low[to] = key.low;
    high[to + 64] = query.high;
    low[to + 64] = query.low;
  }
}

// Columns of 64 channels, two a lane: keys times exp(left) and, going back, of what it becomes.
template <int32_t kColumns>
__device__ __forceinline__ void make_columns(int32_t pair, float2 left,
                                             const VectorScratch* scratch,
                                             VectorChunk<kColumns>* chunk) {
  const int32_t half = pair >> 5;
  const int32_t piece = (pair & 31) >> 2;
  char* high = chunk->columns[0][half][0] + 4 * (pair & 3);
  char* low = chunk->columns[1][half][0] + 4 * (pair & 3);
#pragma unroll 2
  for (int32_t i = kVectorTokens - 1; i >= 0; --i) {
    const float2 g = reinterpret_cast<const float2*>(scratch->gates[i])[pair];
    const uint32_t k = reinterpret_cast<const uint32_t*>(scratch->keys[i])[pair];
    const Parts key = parts_of(__uint_as_float(k << 16) * exp_quick(left.x),
                               __uint_as_float(k & 0xffff0000u) * exp_quick(left.y));
    const int32_t to = 128 * i + 16 * (piece ^ (i & 7));
    *reinterpret_cast<uint32_t*>(high + to) = key.high;
    *reinterpret_cast<uint32_t*>(low + to) = key.low;
    left.x += g.x;
    left.y += g.y;
  }
}

// Products between tokens where ratios of exponents would not do: pair by pair, a warp every fourth
// column. Four channels a lane.
__device__ __noinline__ inline void products_by_pairs(const TeamPlace team,
                                                      VectorScratch* scratch) {
  const int32_t lane = team.lane;
  const auto unpack = [&](const char (*rows)[kRawPitch], int32_t i) {
    const uint2 raw = reinterpret_cast<const uint2*>(rows[i])[lane];
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
  };
#pragma unroll 1
  for (int32_t j = team.warp; j < kVectorTokens; j += 4) {
    const float4 column = unpack(scratch->keys, j);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int32_t i = j; i < kVectorTokens; ++i) {
      if (i > j) {
        const float4 g = reinterpret_cast<const float4*>(scratch->gates[i])[lane];
        sum = make_float4(sum.x + g.x, sum.y + g.y, sum.z + g.z, sum.w + g.w);
      }
      const float4 x = make_float4(column.x * exp_quick(sum.x), column.y * exp_quick(sum.y),
                                   column.z * exp_quick(sum.z), column.w * exp_quick(sum.w));
      const float4 k = unpack(scratch->keys, i);
      const float4 q = unpack(scratch->queries, i);
      const float kk = sum_of_warp(fmaf(k.w, x.w, fmaf(k.z, x.z, fmaf(k.y, x.y, k.x * x.x))));
      const float qk = sum_of_warp(fmaf(q.w, x.w, fmaf(q.z, x.z, fmaf(q.y, x.y, q.x * x.x))));
      if (lane == 0) {
        scratch->matrix[0][i][j] = kk;
        scratch->matrix[1][i][j] = qk;
      }
    }
  }
}

// The same by the matrix units from rows and columns: products of keys (query = 0) or queries with
// keys, tiles of 16 rows by 8 columns.
template <int32_t kColumns>
__device__ __forceinline__ void products_of_rows(const VectorChunk<kColumns>* chunk, int32_t query,
                                                 int32_t lane, Tiles<2>& d) {
  // Matrices: tokens 0 and 8, then the same of the next eight channels.
  const uint32_t rows = shared_address(chunk->rows[0]) +
                        static_cast<uint32_t>(lane >> 4) * kRowLeading +
                        static_cast<uint32_t>(2 * query + ((lane >> 3) & 1)) * kBlockStride +
                        16 * static_cast<uint32_t>(lane & 7);
  // Matrices: channels 0 and 8 of tokens 0, then of tokens 8.
  const uint32_t columns =
      shared_address(chunk->columns[0]) + static_cast<uint32_t>((lane & 7) + 8 * (lane >> 4)) * 128;
  const uint32_t turn = static_cast<uint32_t>(lane & 7);
#pragma unroll 1
  for (uint32_t step = 0; step < kDim / 16; ++step) {
    const uint32_t from = rows + step * 2 * kRowLeading;
    const uint32_t piece = 2 * (step & 3) + static_cast<uint32_t>((lane >> 3) & 1);
    const uint32_t other = columns +
                           (step >> 2) * static_cast<uint32_t>(sizeof(chunk->columns[0][0])) +
                           ((piece ^ turn) << 4);
    uint32_t a[4], a_low[4], b[4], b_low[4];
    load_matrices(a, from);
    load_matrices(a_low, from + static_cast<uint32_t>(sizeof(RowBlocks)));
    load_matrices(b, other);
    load_matrices(b_low, other + static_cast<uint32_t>(sizeof(chunk->columns[0])));
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      multiply(d[n], a, b[2 * n], b[2 * n + 1]);
      multiply(d[n], a, b_low[2 * n], b_low[2 * n + 1]);
      multiply(d[n], a_low, b[2 * n], b[2 * n + 1]);
    }
  }
}

// Tiles of a matrix of the scratch, as the matrix units would leave them.
__device__ __forceinline__ void load_tiles(const float (*matrix)[kVectorPitch], int32_t lane,
                                           Tiles<2>& d) {
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const float2 x =
          *reinterpret_cast<const float2*>(&matrix[8 * half + (lane >> 2)][8 * n + 2 * (lane & 3)]);
      d[n][2 * half] = x.x;
      d[n][2 * half + 1] = x.y;
    }
  }
}

__device__ __forceinline__ void store_small_pair(SmallBlocks (&to)[2], int32_t i, int32_t j,
                                                 int32_t lane, float x, float y) {
  const Parts parts = parts_of(x, y);
  to[0][j][i][lane] = parts.high;
  to[1][j][i][lane] = parts.low;
}

// T from the products of keys with keys: substitution in the scratch's matrix.
__device__ __forceinline__ void solve_small(const Tiles<2>& kk, bool delta, int32_t lane,
                                            VectorScratch* scratch, SmallBlocks (&solve)[2]) {
  const int32_t g = lane >> 2;
  const int32_t t = lane & 3;
  auto& matrix = scratch->matrix[0];
  __syncwarp();
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = 8 * half + g;
    const float factor = delta ? scratch->beta[row] * scratch->key_scale[row] : 0.0f;
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      const int32_t column = 8 * n + 2 * t;
      const float2 scale = *reinterpret_cast<const float2*>(&scratch->key_scale[column]);
      *reinterpret_cast<float2*>(&matrix[row][column]) =
          make_float2(column < row ? kk[n][2 * half] * factor * scale.x : 0.0f,
                      column + 1 < row ? kk[n][2 * half + 1] * factor * scale.y : 0.0f);
    }
  }
  __syncwarp();
  const int32_t own = lane & 15;  // both halves of the warp do the same
  float x[16];
#pragma unroll
  for (int32_t j = 0; j < 16; ++j) x[j] = j == own ? 1.0f : 0.0f;
#pragma unroll
  for (int32_t row = 15; row > 0; --row) {
    const float factor = -x[row];
#pragma unroll
    for (int32_t j = 0; j < row; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(&matrix[row][j]);
      x[j] = fmaf(factor, quad.x, x[j]);
      if (j + 1 < row) x[j + 1] = fmaf(factor, quad.y, x[j + 1]);
      if (j + 2 < row) x[j + 2] = fmaf(factor, quad.z, x[j + 2]);
      if (j + 3 < row) x[j + 3] = fmaf(factor, quad.w, x[j + 3]);
    }
  }
  __syncwarp();
  if (lane < 16) {
#pragma unroll
    for (int32_t j = 0; j < 16; j += 4) {
      *reinterpret_cast<float4*>(&matrix[lane][j]) =
          make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }
  }
  __syncwarp();
  Tiles<2> inverse;
  load_tiles(matrix, lane, inverse);
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
    const float2 beta = *reinterpret_cast<const float2*>(&scratch->beta[8 * n + 2 * t]);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      store_small_pair(solve, half, n, lane, inverse[n][2 * half] * beta.x,
                       inverse[n][2 * half + 1] * beta.y);
    }
  }
}

// P from the products of queries with keys.
__device__ __forceinline__ void store_weights(const Tiles<2>& qk, int32_t lane,
                                              const VectorScratch* scratch,
                                              SmallBlocks (&weights)[2]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = 8 * half + (lane >> 2);
    const float factor = scratch->query_scale[row];
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      const int32_t column = 8 * n + 2 * (lane & 3);
      const float2 scale = *reinterpret_cast<const float2*>(&scratch->key_scale[column]);
      store_small_pair(weights, half, n, lane,
                       column <= row ? qk[n][2 * half] * factor * scale.x : 0.0f,
                       column < row ? qk[n][2 * half + 1] * factor * scale.y : 0.0f);
    }
  }
}

// Prepares tokens first .. first + count - 1 of the stretch, by the whole team; wait_for_place()
// until the chunk may be written. Returns faults that the lane has found.
template <int32_t kColumns, typename Wait>
__device__ __forceinline__ uint32_t prepare_vector_chunk(
    const Call& call, const ChunkPlace& at, int32_t first, int32_t count, const TeamPlace& team,
    VectorChunk<kColumns>* chunk, VectorScratch* scratch, const Wait& wait_for_place) {
  const Inputs& in = call.inputs;
  const int32_t lane = team.lane;
  const int32_t k_head = at.v_head / call.group;
  const int64_t token = at.token + first;
  uint32_t found = 0;
  // Two warps load: while the others finish the chunk before, they have nothing else to do.
  if (team.warp >= 2) {
    load_team_rows(in.k, row_of(in.k, 0, token, 0, k_head), count - 1, kDim / 8, team, 64,
                   scratch->keys[0], kRawPitch);
    load_team_rows(in.q, row_of(in.q, 0, token, 0, k_head), count - 1, kDim / 8, team, 64,
                   scratch->queries[0], kRawPitch);
    found =
        load_gates(call, at, token, count, (team.warp - 2) * (kVectorTokens / 2), lane, scratch);
    wait_for_copies();
  }
  team_barrier(team.barrier);
  // The lane's channels: how far both halves decay.
  const int32_t pair = 32 * (team.warp & 1) + lane;
  float2 early = make_float2(0.0f, 0.0f);
  float2 late = make_float2(0.0f, 0.0f);
#pragma unroll 2
  for (int32_t i = 0; i < kVectorTokens / 2; ++i) {
    const float2 a = reinterpret_cast<const float2*>(scratch->gates[i])[pair];
    const float2 b = reinterpret_cast<const float2*>(scratch->gates[8 + i])[pair];
    early = make_float2(early.x + a.x, early.y + a.y);
    late = make_float2(late.x + b.x, late.y + b.y);
  }
  const float most = fminf(fminf(early.x, early.y), fminf(late.x, late.y));
  const bool by_pairs = team_any(team.barrier, !(most >= -kMostDecay));
  wait_for_place();
  load_team_rows(in.v, row_of(in.v, 0, token, 0, at.v_head) + 2 * at.first_column, count - 1,
                 kColumns / 8, team, 0, chunk->values[0], VectorChunk<kColumns>::kValuePitch);
  const float2 none = make_float2(0.0f, 0.0f);
  if (team.warp < 2) {
    make_rows(pair, by_pairs ? none : make_float2(-early.x, -early.y), scratch, chunk);
    reinterpret_cast<float2*>(chunk->read)[pair] =
        by_pairs ? make_float2(1.0f, 1.0f) : decay_factors(early);
    reinterpret_cast<float2*>(chunk->keep)[pair] =
        decay_factors(make_float2(early.x + late.x, early.y + late.y));
  } else {
    make_columns(pair, by_pairs ? none : make_float2(-late.x, -late.y), scratch, chunk);
    const float2 add =
        by_pairs ? make_float2(1.0f, 1.0f) : make_float2(exp_quick(late.x), exp_quick(late.y));
    reinterpret_cast<float2*>(chunk->add[0])[pair] = add;
    reinterpret_cast<float2*>(chunk->add[1])[pair] =
        make_float2(add.x * kLargeUnit, add.y * kLargeUnit);
    // Norms and steps; tokens past the end do not write.
    const bool query = team.warp == 3;
    float* scales = query ? scratch->query_scale : scratch->key_scale;
    const float square = row_square(query ? scratch->queries : scratch->keys, lane, scales);
    // Squares are finite only where rows are.
    if (__any_sync(kAllLanes, !is_finite(square)) != 0) {
      found |= raw_row_faults(query ? scratch->queries : scratch->keys, lane);
    }
    const float scale =
        (in.l2norm != 0 ? rsqrtf(square + in.l2norm_eps) : 1.0f) * (query ? in.q_scale : 1.0f);
    __syncwarp();
    if (lane < kVectorTokens) {
      scales[lane] = scale;
      if (query) {
        chunk->query_factor[lane] = scale;
      } else {
        chunk->key_factor[lane] = call.delta_rule != 0 ? scale : 0.0f;
        chunk->write_factor[lane] = scale;
        float beta = 0.0f;
        if (lane < count) {
          beta = 1.0f;
          if (in.beta.data != nullptr) {
            beta = load_number(row_of(in.beta, 0, token + lane, 0, at.v_head), in.beta.type, 0);
            if (!is_finite(beta)) found |= kNotFinite;
            if (in.sigmoid_beta != 0) beta = in.beta_scale * sigmoid(beta);
          }
        }
        scratch->beta[lane] = beta;
      }
    }
  }
  if (by_pairs) products_by_pairs(team, scratch);
  wait_for_copies();
  fence_async_shared();
  team_barrier(team.barrier);
  if (team.warp < 2) {
    Tiles<2> products = {};
    if (by_pairs) {
      load_tiles(scratch->matrix[team.warp], lane, products);
    } else {
      products_of_rows(chunk, team.warp, lane, products);
    }
    if (team.warp == 0) {
      solve_small(products, call.delta_rule != 0, lane, scratch, chunk->solve);
    } else {
      store_weights(products, lane, scratch, chunk->weights);
    }
  }
  fence_async_shared();
  __syncwarp();
  return found;
}

}  // namespace leapquant::cuda::chunks_128
