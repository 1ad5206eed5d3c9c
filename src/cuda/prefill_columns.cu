// SPDX-License-Identifier: Apache-2.0
//
// The recurrence of prefill for one write per token and no hooks: a value column of the state needs
// no other, so a block takes 32 columns of a head and a warp eight of them, in registers, through
// all tokens of a stretch. Keys, queries and gates are prepared for sixteen tokens at a time, while
// the sixteen before are at work. FP32 throughout.
#include "cuda/prefill_columns.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

constexpr int32_t kChunk = 16;
constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kLaneColumns = 2;                 // value columns of a lane
constexpr int32_t kWarpColumns = 4 * kLaneColumns;  // eight lanes share a column
constexpr int32_t kBlockColumns = kWarps * kWarpColumns;
constexpr int32_t kWarpTokens = kChunk / kWarps;
static_assert(kBlockColumns == 32, "a lane loads one value of a token");

// What is prepared of one token.
template <int32_t kDim, bool kVector>
struct Chunk {
  float k[kChunk][kDim];
  float q[kChunk][kDim];
  float decay[kVector ? kChunk : 1][kVector ? kDim : 4];
  float v[kChunk][kBlockColumns];
  float output[kChunk][kBlockColumns];
  float scalar_decay[kChunk];
  float beta[kChunk];
  float key_query[kChunk];
};

// A thread's share of a chunk as it lies in memory: kWarpTokens rows a warp, kDim / 32 elements of
// a row a lane. Loading and converting are apart, so that all loads are in flight while the chunk
// before is at work.
template <int32_t kDim, bool kVector>
struct Raw {
  static constexpr int32_t kEach = kDim / 32;
  uint32_t k[kWarpTokens][kEach];
  uint32_t q[kWarpTokens][kEach];
  uint32_t g[kWarpTokens][kVector ? kEach : 1];
  uint32_t v[kWarpTokens];
  uint32_t beta[kWarpTokens];
};

struct Place {
  int32_t sequence, v_head, first_column;
  int32_t lane, warp;
  int64_t token;  // first of the stretch, on the packed axis
  int32_t tokens;
};

__device__ __forceinline__ uint32_t load_word(const char* row, int32_t type, int32_t index) {
  return type == LEAPQUANT_FP32 ? reinterpret_cast<const uint32_t*>(row)[index]
                                : uint32_t{reinterpret_cast<const uint16_t*>(row)[index]};
}
__device__ __forceinline__ float number_of(uint32_t word, int32_t type) {
  if (type == LEAPQUANT_FP32) return __uint_as_float(word);
  return type == LEAPQUANT_FP16 ? fp16_value(static_cast<uint16_t>(word))
                                : bf16_value(static_cast<uint16_t>(word));
}
template <int32_t kEach>
__device__ __forceinline__ void load_words(const char* row, int32_t type, int32_t lane,
                                           uint32_t (&words)[kEach]) {
#pragma unroll
  for (int32_t e = 0; e < kEach; ++e) words[e] = load_word(row, type, lane + 32 * e);
}

template <int32_t kDim, bool kVector>
__device__ __forceinline__ void load_raw(const Call& call, const Place& at, int32_t first,
                                         Raw<kDim, kVector>* raw) {
  const Inputs& in = call.inputs;
  const int32_t k_head = at.v_head / call.group;
#pragma unroll
  for (int32_t w = 0; w < kWarpTokens; ++w) {
    // Past the end the last token stands in; nobody uses what becomes of it.
    const int64_t token = at.token + min(first + at.warp * kWarpTokens + w, at.tokens - 1);
    load_words(row_of(in.k, 0, token, 0, k_head), in.k.type, at.lane, raw->k[w]);
    load_words(row_of(in.q, 0, token, 0, k_head), in.q.type, at.lane, raw->q[w]);
    if (in.log_decay.data != nullptr) {
      const char* row = row_of(in.log_decay, 0, token, 0, at.v_head);
      if constexpr (kVector) {
        load_words(row, in.log_decay.type, at.lane, raw->g[w]);
      } else {
        raw->g[w][0] = load_word(row, in.log_decay.type, 0);
      }
    }
    raw->v[w] =
        load_word(row_of(in.v, 0, token, 0, at.v_head), in.v.type, at.first_column + at.lane);
    if (in.beta.data != nullptr) {
      raw->beta[w] = load_word(row_of(in.beta, 0, token, 0, at.v_head), in.beta.type, 0);
    }
  }
}

template <int32_t kDim, bool kVector>
__device__ __forceinline__ void prepare(const Call& call, const Place& at,
                                        const Raw<kDim, kVector>& raw,
                                        Chunk<kDim, kVector>* chunk) {
  constexpr int32_t kEach = Raw<kDim, kVector>::kEach;
  const Inputs& in = call.inputs;
#pragma unroll
  for (int32_t w = 0; w < kWarpTokens; ++w) {
    const int32_t t = at.warp * kWarpTokens + w;
    float k[kEach];
    float q[kEach];
    float k_squares = 0.0f;
    float q_squares = 0.0f;
#pragma unroll
    for (int32_t e = 0; e < kEach; ++e) {
      k[e] = number_of(raw.k[w][e], in.k.type);
      q[e] = number_of(raw.q[w][e], in.q.type);
      k_squares = fmaf(k[e], k[e], k_squares);
      q_squares = fmaf(q[e], q[e], q_squares);
    }
    const bool norm = in.l2norm != 0;
    const float k_root = norm ? sqrtf(sum_of_warp(k_squares) + in.l2norm_eps) : 1.0f;
    const float q_root = norm ? sqrtf(sum_of_warp(q_squares) + in.l2norm_eps) : 1.0f;
    float dot = 0.0f;
#pragma unroll
    for (int32_t e = 0; e < kEach; ++e) {
      const int32_t i = at.lane + 32 * e;
      k[e] = k[e] / k_root;
      q[e] = q[e] / q_root * in.q_scale;
      chunk->k[t][i] = k[e];
      chunk->q[t][i] = q[e];
      dot = fmaf(k[e], q[e], dot);
      if constexpr (kVector) {
        const float x = number_of(raw.g[w][e], in.log_decay.type);
        chunk->decay[t][i] = decay_factor(gate_of(in, x, at.v_head, int64_t{at.v_head} * kDim + i));
      }
    }
    dot = sum_of_warp(dot);
    chunk->v[t][at.lane] = number_of(raw.v[w], in.v.type);
    if (at.lane != 0) continue;
    float beta = 1.0f;
    if (in.beta.data != nullptr) {
      beta = number_of(raw.beta[w], in.beta.type);
      if (in.sigmoid_beta != 0) beta = in.beta_scale * sigmoid(beta);
    }
    chunk->beta[t] = beta;
    chunk->key_query[t] = dot;
    if constexpr (!kVector) {
      float g = 0.0f;
      if (call.decay == LEAPQUANT_DECAY_CONSTANT) {
        g = call.head_decay[at.v_head - call.first_head];
      } else if (call.decay == LEAPQUANT_DECAY_SCALAR) {
        g = gate_of(in, number_of(raw.g[w][0], in.log_decay.type), at.v_head, at.v_head);
      }
      chunk->scalar_decay[t] = decay_factor(g);
    }
  }
}

// Sum over the eight lanes that share a column.
__device__ __forceinline__ float sum_of_eight(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  x += __shfl_xor_sync(kAllLanes, x, 2);
  x += __shfl_xor_sync(kAllLanes, x, 4);
  return x;
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 add_product(float4 a, float4 b, float4 sum) {
  return make_float4(fmaf(a.x, b.x, sum.x), fmaf(a.y, b.y, sum.y), fmaf(a.z, b.z, sum.z),
                     fmaf(a.w, b.w, sum.w));
}
__device__ __forceinline__ float4 all(float x) { return make_float4(x, x, x, x); }
__device__ __forceinline__ float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

// Advances a lane's entries of the state by `count` tokens of a chunk. Lane 8 p + r of a warp holds
// rows 4 (r + 8 m) + b of the columns 2 p and 2 p + 1, m < kDim / 32, b < 4.
template <int32_t kDim, bool kVector>
__device__ __forceinline__ void advance(const Call& call, const Place& at, int32_t count,
                                        Chunk<kDim, kVector>* chunk,
                                        float4 (&s)[kLaneColumns][kDim / 32]) {
  constexpr int32_t kQuads = kDim / 32;
  const int32_t r = at.lane & 7;
  const int32_t column = kWarpColumns * at.warp + kLaneColumns * (at.lane >> 3);
#pragma unroll 1
  for (int32_t t = 0; t < count; ++t) {
    float4 k[kQuads];
    float4 found[kLaneColumns];
    float4 read[kLaneColumns];
#pragma unroll
    for (int32_t c = 0; c < kLaneColumns; ++c) found[c] = read[c] = all(0.0f);
#pragma unroll
    for (int32_t m = 0; m < kQuads; ++m) {
      k[m] = reinterpret_cast<const float4*>(chunk->k[t])[r + 8 * m];
      const float4 q = reinterpret_cast<const float4*>(chunk->q[t])[r + 8 * m];
      if constexpr (kVector) {
        const float4 a = reinterpret_cast<const float4*>(chunk->decay[t])[r + 8 * m];
#pragma unroll
        for (int32_t c = 0; c < kLaneColumns; ++c) s[c][m] = times(a, s[c][m]);
      }
#pragma unroll
      for (int32_t c = 0; c < kLaneColumns; ++c) {
        found[c] = add_product(k[m], s[c][m], found[c]);
        read[c] = add_product(q, s[c][m], read[c]);
      }
    }
    const float a = kVector ? 1.0f : chunk->scalar_decay[t];
    const float beta = chunk->beta[t];
    const float key_query = chunk->key_query[t];
    const float2 value = *reinterpret_cast<const float2*>(&chunk->v[t][column]);
#pragma unroll
    for (int32_t c = 0; c < kLaneColumns; ++c) {
      const float old = a * sum_of_eight(sum_of(found[c]));
      const float out = a * sum_of_eight(sum_of(read[c]));
      const float v = c == 0 ? value.x : value.y;
      const float u = beta * (call.delta_rule != 0 ? v - old : v);
      if (r == 0) chunk->output[t][column + c] = fmaf(key_query, u, out);
#pragma unroll
      for (int32_t m = 0; m < kQuads; ++m) {
        s[c][m] = add_product(k[m], all(u), kVector ? s[c][m] : times(all(a), s[c][m]));
      }
    }
  }
}

template <int32_t kDim, bool kVector>
__global__ void __launch_bounds__(kThreads, 3)
    columns_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(64) char shared[];
  auto* chunks = reinterpret_cast<Chunk<kDim, kVector>*>(shared);
  constexpr int32_t kQuads = kDim / 32;
  const int32_t pieces = call.v_dim / kBlockColumns;
  const int64_t item = range.first + blockIdx.x / pieces;
  Place at;
  at.sequence = static_cast<int32_t>(item / call.num_heads);
  at.v_head = call.first_head + static_cast<int32_t>(item - int64_t{at.sequence} * call.num_heads);
  at.first_column = static_cast<int32_t>(blockIdx.x) % pieces * kBlockColumns;
  at.lane = static_cast<int32_t>(threadIdx.x) & 31;
  at.warp = static_cast<int32_t>(threadIdx.x) >> 5;
  if (call.state_slots[at.sequence] < 0 || call.status[at.sequence] != LEAPQUANT_OK) return;
  const Stretch stretch = stretch_of(call, at.sequence, range.stretch);
  at.token = call.token_offsets[at.sequence] + stretch.begin;
  at.tokens = stretch.end - stretch.begin;
  if (at.tokens <= 0) return;

  const int32_t r = at.lane & 7;
  float* kept = kept_state(call, blockIdx.x / pieces) + 4 * r * call.v_dim + at.first_column +
                kWarpColumns * at.warp + kLaneColumns * (at.lane >> 3);
  float4 s[kLaneColumns][kQuads];
#pragma unroll
  for (int32_t m = 0; m < kQuads; ++m) {
#pragma unroll
    for (int32_t c = 0; c < kLaneColumns; ++c) {
      const float* entry = kept + 32 * m * call.v_dim + c;
      s[c][m] =
          make_float4(entry[0], entry[call.v_dim], entry[2 * call.v_dim], entry[3 * call.v_dim]);
    }
  }
  Raw<kDim, kVector> raw;
  load_raw<kDim, kVector>(call, at, 0, &raw);
  for (int32_t first = 0, bank = 0; first < at.tokens; first += kChunk, bank ^= 1) {
    // The readers of this bank have all passed the barrier of the chunk before.
    Chunk<kDim, kVector>* chunk = chunks + bank;
    prepare<kDim, kVector>(call, at, raw, chunk);
    __syncthreads();
    if (first + kChunk < at.tokens) load_raw<kDim, kVector>(call, at, first + kChunk, &raw);
    const int32_t count = min(kChunk, at.tokens - first);
    advance<kDim, kVector>(call, at, count, chunk, s);
    __syncwarp();
    // A warp's eight columns of all tokens: lane 8 n + c has tokens n, n + 4, ..., column c.
    const int32_t column = kWarpColumns * at.warp + (at.lane & 7);
    for (int32_t t = at.lane >> 3; t < count; t += 4) {
      store_output(call, 0, at.token + first + t, at.v_head, at.first_column + column,
                   chunk->output[t][column]);
    }
  }
#pragma unroll
  for (int32_t m = 0; m < kQuads; ++m) {
#pragma unroll
    for (int32_t c = 0; c < kLaneColumns; ++c) {
      float* entry = kept + 32 * m * call.v_dim + c;
      entry[0] = s[c][m].x;
      entry[call.v_dim] = s[c][m].y;
      entry[2 * call.v_dim] = s[c][m].z;
      entry[3 * call.v_dim] = s[c][m].w;
    }
  }
}

template <int32_t kDim, bool kVector>
cudaError_t launch(const Call& call, const StretchRange& range, cudaStream_t stream) {
  const auto kernel = columns_kernel<kDim, kVector>;
  constexpr int32_t kBytes = 2 * static_cast<int32_t>(sizeof(Chunk<kDim, kVector>));
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(range.count * (call.v_dim / kBlockColumns));
  kernel<<<blocks, kThreads, kBytes, stream>>>(call, range);
  return cudaGetLastError();
}

}  // namespace

bool columns_serve(const Call& call) {
  const Inputs& in = call.inputs;
  return (call.k_dim == 64 || call.k_dim == 128) && call.v_dim % kBlockColumns == 0 &&
         call.sub_steps == 1 && in.read_key.data == nullptr && in.read_before_update == 0 &&
         in.bonus == nullptr && in.skip == nullptr;
}

cudaError_t launch_columns(const Call& call, const StretchRange& range, cudaStream_t stream) {
  const bool vector = call.decay == LEAPQUANT_DECAY_VECTOR;
  if (call.k_dim == 64) {
    return vector ? launch<64, true>(call, range, stream) : launch<64, false>(call, range, stream);
  }
  return vector ? launch<128, true>(call, range, stream) : launch<128, false>(call, range, stream);
}

}  // namespace leapquant::cuda
