// SPDX-License-Identifier: Apache-2.0
//
// One token as a value head sees it: the caller's tensors as FP32 vectors in the block's working
// memory, gates, normalisation and step sizes applied; products of the token's own vectors; reads
// of the state's columns; the output row.
#pragma once

#include "cuda/block.cuh"

namespace leapquant::cuda {

struct Token {
  int32_t reads;      // read vectors: n with the delta rule, and the query
  float* q;           // [K]
  float* log_decay;   // [K]
  float* decay;       // [K] of the boundary state, or of this token
  float* k;           // [n][K]
  float* b;           // [n][K] read keys; those of `k` where none are given
  float* read;        // [n + 1][K] against the state before the token
  float* scaled;      // [n + 1][K] the same times `decay`
  float* v;           // [n][V]
  float* u;           // [n][V] corrections
  float* sums;        // [n + 1][V] what the reads find
  float* beta;        // [8]
  float* key_dots;    // [n][n] <k_i, b_j>, i < j
  float* query_dots;  // [n] <k_j, q>
  float* hook;        // factor of v_0 in the output
  float* partial;     // [2][parts][V]

  __device__ Token(const Call& call, const Block& block) {
    const int32_t n = call.sub_steps;
    const int32_t k_dim = block.k_dim;
    const int32_t v_dim = block.v_dim;
    reads = (call.delta_rule != 0 ? n : 0) + 1;
    float* at = block.tokens;
    const auto take = [&at](int32_t count) {
      float* start = at;
      at += count;
      return start;
    };
    q = take(k_dim);
    log_decay = take(k_dim);
    decay = take(k_dim);
    k = take(n * k_dim);
    b = take(n * k_dim);
    read = take((n + 1) * k_dim);
    scaled = take((n + 1) * k_dim);
    v = take(n * v_dim);
    u = take(n * v_dim);
    sums = take((n + 1) * v_dim);
    beta = take(8);
    key_dots = take(64);
    query_dots = take(8);
    hook = take(48);
    partial = take(2 * kBlockThreads);
    if (call.inputs.read_key.data == nullptr) b = k;
  }
};

__device__ __forceinline__ const char* row_of(const Rows& rows, int64_t sequence, int64_t token,
                                              int32_t sub_step, int32_t head) {
  return rows.data + sequence * rows.sequence + token * rows.token + sub_step * rows.sub_step +
         head * rows.head;
}

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Log decay of one gate input; `bias` is its index in dt_bias. A factor of exactly zero wins over
// an infinite one.
__device__ __forceinline__ float gate_of(const Inputs& in, float x, int32_t v_head, int64_t bias) {
  if (in.gate == LEAPQUANT_GATE_READY) return x;
  const float shifted = x + (in.dt_bias != nullptr ? in.dt_bias[bias] : 0.0f);
  const float rate = expf(in.a_log[v_head]);
  if (in.gate == LEAPQUANT_GATE_SOFTPLUS) {
    const float softplus = shifted > 20.0f ? shifted : log1pf(expf(shifted));
    return softplus == 0.0f || rate == 0.0f ? 0.0f : -rate * softplus;
  }
  const float product = shifted == 0.0f || rate == 0.0f ? 0.0f : rate * shifted;
  return in.lower_bound * sigmoid(product);
}

// Log decay of channel i, which is at most 0.
__device__ __forceinline__ float load_log_decay(const Call& call, int64_t sequence, int64_t token,
                                                int32_t v_head, int32_t i) {
  const Inputs& in = call.inputs;
  if (call.decay == LEAPQUANT_DECAY_NONE) return 0.0f;
  if (call.decay == LEAPQUANT_DECAY_CONSTANT) return call.head_decay[v_head - call.first_head];
  const char* row = row_of(in.log_decay, sequence, token, 0, v_head);
  const bool vector = call.decay == LEAPQUANT_DECAY_VECTOR;
  const float x = load_number(row, in.log_decay.type, vector ? i : 0);
  const int64_t bias = vector ? int64_t{v_head} * call.k_dim + i : int64_t{v_head};
  return gate_of(in, x, v_head, bias);
}

// Loads row `source` into `row` [K], normalised if asked and scaled; by one warp.
__device__ __forceinline__ void load_key_row(const Inputs& in, const Block& block,
                                             const char* source, int32_t type, float scale,
                                             float* row) {
  float squares = 0.0f;
  for (int32_t i = block.lane; i < block.k_dim; i += 32) {
    const float x = load_number(source, type, i);
    row[i] = x;
    squares = fmaf(x, x, squares);
  }
  const float root = in.l2norm != 0 ? sqrtf(sum_of_warp(squares) + in.l2norm_eps) : 1.0f;
  for (int32_t i = block.lane; i < block.k_dim; i += 32) row[i] = row[i] / root * scale;
}

// Fills the token's vectors. Ends with a barrier.
__device__ __noinline__ inline void load_token(const Call& call, const Block& block, const Token& t,
                                               int64_t sequence, int64_t token, int32_t v_head) {
  const Inputs& in = call.inputs;
  const int32_t n = call.sub_steps;
  const int32_t k_head = v_head / call.group;
  const int32_t rows = 1 + n + (in.read_key.data != nullptr ? n : 0);
  for (int32_t r = block.warp; r < rows; r += kBlockWarps) {
    if (r == 0) {
      load_key_row(in, block, row_of(in.q, sequence, token, 0, k_head), in.q.type, in.q_scale, t.q);
    } else if (r <= n) {
      load_key_row(in, block, row_of(in.k, sequence, token, r - 1, k_head), in.k.type, 1.0f,
                   t.k + (r - 1) * block.k_dim);
    } else {
      load_key_row(in, block, row_of(in.read_key, sequence, token, r - 1 - n, k_head),
                   in.read_key.type, 1.0f, t.b + (r - 1 - n) * block.k_dim);
    }
  }
  for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
    t.log_decay[i] = load_log_decay(call, sequence, token, v_head, i);
  }
  for (int32_t j = 0; j < n; ++j) {
    const char* source = row_of(in.v, sequence, token, j, v_head);
    for (int32_t i = block.thread; i < block.v_dim; i += kBlockThreads) {
      t.v[j * block.v_dim + i] = load_number(source, in.v.type, i);
    }
  }
  if (block.thread < n) {
    float beta = 1.0f;
    if (in.beta.data != nullptr) {
      beta = load_number(row_of(in.beta, sequence, token, block.thread, v_head), in.beta.type, 0);
      if (in.sigmoid_beta != 0) beta = in.beta_scale * sigmoid(beta);
    }
    t.beta[block.thread] = beta;
  }
  __syncthreads();
}

__device__ __forceinline__ float dot_of_warp(const Block& block, const float* a, const float* b) {
  float sum = 0.0f;
  for (int32_t i = block.lane; i < block.k_dim; i += 32) sum = fmaf(a[i], b[i], sum);
  return sum_of_warp(sum);
}

// Products of the token's own vectors: <k_i, b_j> (i < j), <k_j, q>, and the factor of v_0 in the
// output. The caller puts a barrier behind it.
__device__ __noinline__ inline void own_products(const Call& call, const Block& block,
                                                 const Token& t, int32_t v_head) {
  const int32_t n = call.sub_steps;
  const int32_t pairs = call.delta_rule != 0 ? n * n : 0;
  for (int32_t r = block.warp; r < pairs + n + 1; r += kBlockWarps) {
    if (r < pairs) {
      const int32_t i = r / n;
      const int32_t j = r - i * n;
      if (i >= j) continue;
      const float x = dot_of_warp(block, t.k + i * block.k_dim, t.b + j * block.k_dim);
      if (block.lane == 0) t.key_dots[r] = x;
    } else if (r < pairs + n) {
      const float x = dot_of_warp(block, t.k + (r - pairs) * block.k_dim, t.q);
      if (block.lane == 0) t.query_dots[r - pairs] = x;
    } else {
      float factor = call.inputs.skip != nullptr ? call.inputs.skip[v_head] : 0.0f;
      if (call.inputs.bonus != nullptr) {
        const float* bonus = call.inputs.bonus + int64_t{v_head} * block.k_dim;
        float sum = 0.0f;
        for (int32_t i = block.lane; i < block.k_dim; i += 32) {
          sum = fmaf(t.q[i] * bonus[i], t.k[i], sum);
        }
        factor += sum_of_warp(sum);
      }
      if (block.lane == 0) *t.hook = factor;
    }
  }
}

// sums[s][j] = sum over i of x[s][i] S[i][j], s < count. Ends with a barrier.
__device__ __noinline__ inline void read_columns(const Block& block, const Token& t,
                                                 const float* state, const float* x, int32_t count,
                                                 float* sums) {
  const int32_t v_dim = block.v_dim;
  for (int32_t s = 0; s < count; s += 2) {
    const bool pair = s + 1 < count;
    const float* first = x + s * block.k_dim;
    const float* second = first + (pair ? block.k_dim : 0);
    float a = 0.0f;
    float b = 0.0f;
    for (int32_t i = block.row_begin; i < block.row_end; ++i) {
      const float entry = state[i * v_dim + block.column];
      a = fmaf(first[i], entry, a);
      b = fmaf(second[i], entry, b);
    }
    if (block.column >= 0) {
      t.partial[block.part * v_dim + block.column] = a;
      t.partial[kBlockThreads + block.part * v_dim + block.column] = b;
    }
    __syncthreads();
    if (block.column >= 0 && block.part < (pair ? 2 : 1) && block.parts > 1) {
      const float* partial = t.partial + block.part * kBlockThreads + block.column;
      float total = partial[0];
      for (int32_t p = 1; p < block.parts; ++p) total += partial[p * v_dim];
      sums[(s + block.part) * v_dim + block.column] = total;
    } else if (block.column >= 0 && block.parts == 1) {
      sums[s * v_dim + block.column] = a;
      if (pair) sums[(s + 1) * v_dim + block.column] = b;
    }
    __syncthreads();
  }
}

// Writes output element j of a row, or zeros where value is null... see zero_output.
__device__ __forceinline__ void store_output(const Call& call, int64_t sequence, int64_t token,
                                             int32_t v_head, int32_t j, float value) {
  store_number(const_cast<char*>(row_of(call.output, sequence, token, 0, v_head)), call.output.type,
               j, value);
}

__device__ __forceinline__ void zero_output(const Call& call, const Block& block, int64_t sequence,
                                            int64_t token, int32_t v_head) {
  for (int32_t j = block.thread; j < block.v_dim; j += kBlockThreads) {
    store_output(call, sequence, token, v_head, j, 0.0f);
  }
}

// Own terms, hooks and output of one token from what its reads found (in t.sums: one row per
// sub-step with the delta rule, then the query's). Leaves the corrections in t.u. Each column is
// one thread's; no barrier inside.
__device__ __noinline__ inline void finish_token(const Call& call, const Block& block,
                                                 const Token& t, int64_t sequence, int64_t token,
                                                 int32_t v_head) {
  const int32_t n = call.sub_steps;
  const int32_t v_dim = block.v_dim;
  for (int32_t c = block.thread; c < v_dim; c += kBlockThreads) {
    for (int32_t j = 0; j < n; ++j) {
      float value = t.v[j * v_dim + c];
      if (call.delta_rule != 0) {
        float old = t.sums[j * v_dim + c];
        for (int32_t i = 0; i < j; ++i) old = fmaf(t.key_dots[i * n + j], t.u[i * v_dim + c], old);
        value = value - old;
      }
      t.u[j * v_dim + c] = t.beta[j] * value;
    }
    float o = t.sums[(t.reads - 1) * v_dim + c];
    for (int32_t j = 0; j < n && call.inputs.read_before_update == 0; ++j) {
      o = fmaf(t.query_dots[j], t.u[j * v_dim + c], o);
    }
    if (call.inputs.bonus != nullptr || call.inputs.skip != nullptr) o = fmaf(*t.hook, t.v[c], o);
    store_output(call, sequence, token, v_head, c, o);
  }
}

}  // namespace leapquant::cuda
