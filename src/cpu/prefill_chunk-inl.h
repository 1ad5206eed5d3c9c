// SPDX-License-Identifier: Apache-2.0
//
// One chunk of one head in the parallel form: weights of the chunk's rows, then per strip of value
// columns the reads of the state before the chunk, a triangular solve for the corrections, the
// outputs and the state after the chunk. Knows nothing of slots, formats or raw inputs.
//
// Row r = token * sub_steps + sub-step. With D(t, s) the decay of the tokens s + 1 .. t (s = -1: of
// all tokens up to t), the corrections U solve
//   u_r + beta_r sum_{i < r} D(t_r, t_i) <b_r, k_i> u_i = beta_r (v_r - S^T D(t_r, -1) b_r),
// the outputs are o_t = S^T D(t, -1) q_t + sum_{i of tokens <= t} D(t, t_i) <q_t, k_i> u_i, and
// S <- D(C - 1, -1) S + sum_i D(C - 1, t_i) k_i u_i^T; where a read precedes its token's decay, t -
// 1 stands for t. (WY / UT form: Yang et al., arXiv 2406.06484; with decays: arXiv 2412.06464.)
// Decays are products of factors <= 1: nothing is divided by one, and a factor of 0 is an ordinary
// value.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_PREFILL_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_PREFILL_CHUNK_INL_H_
#undef LEAPQUANT_CPU_PREFILL_CHUNK_INL_H_
#else
#define LEAPQUANT_CPU_PREFILL_CHUNK_INL_H_
#endif

#include <cstring>

#include "cpu/gemm-inl.h"
#include "cpu/prefill_chunk.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// y[i] = factor * x[i] over count (any) floats.
HWY_INLINE void scale_row(const float* HWY_RESTRICT x, float factor, int32_t count,
                          float* HWY_RESTRICT y) {
  for (int32_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

HWY_INLINE void multiply_row(const float* HWY_RESTRICT x, int32_t count, float* HWY_RESTRICT y) {
  for (int32_t i = 0; i < count; ++i) y[i] *= x[i];
}

// A product with a decay factor that has vanished is zero, also where the other side overflowed.
HWY_INLINE float decayed(float factor, float value) {
  return factor == 0.0f ? 0.0f : factor * value;
}

// keys [rows, K] to strips of key indices: keys_transposed [ceil(rows / kStrip)][K][kStrip].
HWY_INLINE void transpose_keys(const float* HWY_RESTRICT keys, int32_t rows, int32_t k_dim,
                               size_t key_stride, float* HWY_RESTRICT keys_transposed) {
  for (int32_t first = 0; first < rows; first += kStrip) {
    const int32_t count = rows - first < kStrip ? rows - first : kStrip;
    float* strip = keys_transposed + static_cast<size_t>(first) * k_dim;
    for (int32_t k = 0; k < k_dim; ++k) {
      for (int32_t i = 0; i < count; ++i) {
        strip[k * kStrip + i] = keys[static_cast<size_t>(first + i) * key_stride + k];
      }
      for (int32_t i = count; i < kStrip; ++i) strip[k * kStrip + i] = 0.0f;
    }
  }
}

// D(t, s) of one scalar decay per token: spans[t][s + 1], t = -1 at spans[-1] being the single 1.
HWY_INLINE void fill_spans(const ChunkShape& shape, int32_t tokens, const ChunkScratch& scratch) {
  const int32_t stride = shape.chunk_tokens + 1;
  scratch.spans[0] = 1.0f;  // row of t = -1
  for (int32_t t = 0; t < tokens; ++t) {
    const float* previous = scratch.spans + static_cast<size_t>(t) * stride;
    float* row = scratch.spans + static_cast<size_t>(t + 1) * stride;
    scale_row(previous, scratch.decays[t], t + 1, row);
    row[t + 1] = 1.0f;
  }
}

// Weights of a chunk whose decay is one number per token.
HWY_INLINE void weigh_scalar(const ChunkShape& shape, int32_t tokens, const ChunkScratch& scratch) {
  const int32_t k_dim = shape.k_dim;
  const int32_t n = shape.sub_steps;
  const int32_t rows = tokens * n;
  const int32_t stride = shape.chunk_tokens + 1;
  const auto span = [&](int32_t t) { return scratch.spans + static_cast<size_t>(t + 1) * stride; };
  const size_t depth = static_cast<size_t>(shape.key_stride);
  fill_spans(shape, tokens, scratch);
  transpose_keys(scratch.keys, rows, k_dim, depth, scratch.keys_transposed);

  // Pairs [strip][row_capacity rows of reads, then chunk_tokens of q][kStrip], lower part only.
  const float* reads = shape.read_keys_given ? scratch.read_keys : scratch.keys;
  for (int32_t first = 0; first < rows; first += kStrip) {
    const float* right = scratch.keys_transposed + static_cast<size_t>(first) * k_dim;
    if (shape.delta_rule) {
      strip_product<Accumulate::kSet>({reads + first * depth, depth, 1}, rows - first, k_dim, right,
                                      nullptr, scratch.read_pairs);
      for (int32_t r = first; r < rows; ++r) {
        const int32_t t = r / n;
        const float* decay = span(shape.read_keys_given && r % n == 0 ? t - 1 : t);
        const float* pairs = scratch.read_pairs + (r - first) * kStrip;
        float* lower = scratch.lower + static_cast<size_t>(r) * shape.row_capacity;
        const int32_t end = r < first + kStrip ? r : first + kStrip;
        for (int32_t i = first; i < end; ++i) {
          lower[i] = scratch.betas[r] * decayed(decay[i / n + 1], pairs[i - first]);
        }
      }
    }
    const int32_t t0 = first / n;  // the first token whose output can see this strip
    strip_product<Accumulate::kSet>({scratch.queries + t0 * depth, depth, 1}, tokens - t0, k_dim,
                                    right, nullptr, scratch.read_pairs);
    for (int32_t t = t0; t < tokens; ++t) {
      const int32_t seen = shape.read_before_update ? t : t + 1;
      const float* decay = span(seen - 1);
      const float* pairs = scratch.read_pairs + (t - t0) * kStrip;
      float* weights = scratch.weights + static_cast<size_t>(t) * shape.row_capacity;
      const int32_t end = seen * n < first + kStrip ? seen * n : first + kStrip;
      for (int32_t i = first; i < end; ++i) {
        weights[i] = decayed(decay[i / n + 1], pairs[i - first]);
      }
    }
  }

  // Reads of the state before the chunk, keys as the state after the chunk sees them.
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t t = r / n;
    if (shape.delta_rule) {
      const float decay = span(shape.read_keys_given && r % n == 0 ? t - 1 : t)[0];
      scale_row(reads + r * depth, scratch.betas[r] * decay, shape.key_stride,
                scratch.scaled_reads + r * depth);
    }
    scale_row(scratch.keys + r * depth, span(tokens - 1)[t + 1], shape.key_stride,
              scratch.scaled_keys + r * depth);
  }
  for (int32_t t = 0; t < tokens; ++t) {
    scale_row(scratch.queries + t * depth, span(shape.read_before_update ? t - 1 : t)[0],
              shape.key_stride, scratch.scaled_queries + t * depth);
  }
  for (int32_t k = 0; k < shape.key_stride; ++k) scratch.state_decay[k] = span(tokens - 1)[0];
}

// A read vector of token `t`, changed in place into D(t, -1) times itself while its weights against
// the keys of rows 0 .. seen - 1 are collected on the way back through the tokens. after_decay: the
// read follows its own token's decay.
HWY_INLINE void walk_back(const ChunkShape& shape, int32_t t, int32_t seen, bool after_decay,
                          const ChunkScratch& scratch, float factor, float* HWY_RESTRICT read,
                          float* HWY_RESTRICT weights) {
  const int32_t depth = shape.key_stride;
  for (int32_t i = seen - 1, token = t; token >= 0; --token) {
    for (; i >= token * shape.sub_steps; --i) {
      weights[i] = factor * dot_product(read, scratch.keys + static_cast<size_t>(i) * depth, depth);
    }
    if (token < t || after_decay) {
      multiply_row(scratch.decays + static_cast<size_t>(token) * depth, depth, read);
    }
  }
}

// Weights of a chunk with one decay per key channel: every pair needs its own product over
// channels.
HWY_INLINE void weigh_vector(const ChunkShape& shape, int32_t tokens, const ChunkScratch& scratch) {
  const int32_t n = shape.sub_steps;
  const int32_t rows = tokens * n;
  const size_t depth = static_cast<size_t>(shape.key_stride);
  const size_t row_bytes = depth * sizeof(float);
  const float* reads = shape.read_keys_given ? scratch.read_keys : scratch.keys;
  for (int32_t r = 0; shape.delta_rule && r < rows; ++r) {
    float* read = scratch.scaled_reads + r * depth;
    std::memcpy(read, reads + r * depth, row_bytes);
    walk_back(shape, r / n, r, !(shape.read_keys_given && r % n == 0), scratch, scratch.betas[r],
              read, scratch.lower + static_cast<size_t>(r) * shape.row_capacity);
    for (size_t k = 0; k < depth; ++k) read[k] *= scratch.betas[r];
  }
  for (int32_t t = 0; t < tokens; ++t) {
    float* read = scratch.scaled_queries + t * depth;
    std::memcpy(read, scratch.queries + t * depth, row_bytes);
    walk_back(shape, t, (shape.read_before_update ? t : t + 1) * n, !shape.read_before_update,
              scratch, 1.0f, read, scratch.weights + static_cast<size_t>(t) * shape.row_capacity);
  }
  for (size_t k = 0; k < depth; ++k) scratch.state_decay[k] = 1.0f;
  for (int32_t t = tokens - 1; t >= 0; --t) {
    for (int32_t r = t * n; r < (t + 1) * n; ++r) {
      float* key = scratch.scaled_keys + r * depth;
      std::memcpy(key, scratch.keys + r * depth, row_bytes);
      multiply_row(scratch.state_decay, shape.key_stride, key);
    }
    multiply_row(scratch.decays + t * depth, shape.key_stride, scratch.state_decay);
  }
}

// beta times values, columns first .. first + kStrip - 1; past the last value column these are
// zero.
HWY_INLINE void load_corrections(const ChunkShape& shape, int32_t rows, int32_t first,
                                 const ChunkScratch& scratch) {
  for (int32_t r = 0; r < rows; ++r) {
    scale_row(scratch.values + static_cast<size_t>(r) * shape.value_stride + first,
              scratch.betas[r], kStrip, scratch.corrections + r * kStrip);
  }
}

// Adds what the hooks ask for (value_weights of v_0) and writes the strip's columns of the output.
HWY_INLINE void store_outputs(const ChunkShape& shape, int32_t tokens, int32_t first,
                              const ChunkScratch& scratch) {
  const size_t stride = static_cast<size_t>(shape.value_stride);
  for (int32_t t = 0; t < tokens; ++t) {
    const float* HWY_RESTRICT strip = scratch.strip_outputs + t * kStrip;
    float* HWY_RESTRICT row = scratch.outputs + t * stride + first;
    std::memcpy(row, strip, kStrip * sizeof(float));
    if (!shape.value_hooks) continue;
    const float* HWY_RESTRICT values = scratch.values + t * shape.sub_steps * stride + first;
    for (int32_t c = 0; c < kStrip; ++c) row[c] += scratch.value_weights[t] * values[c];
  }
}

// Runs `tokens` (1 .. chunk_tokens) prepared tokens: scratch.state becomes the state after them,
// scratch.outputs [tokens] their outputs.
HWY_INLINE void run_chunk(const ChunkShape& shape, int32_t tokens, const ChunkScratch& scratch) {
  const int32_t k_dim = shape.k_dim;
  const size_t depth = static_cast<size_t>(shape.key_stride);
  const int32_t n = shape.sub_steps;
  const int32_t rows = tokens * n;
  if (shape.vector_decay) {
    weigh_vector(shape, tokens, scratch);
  } else {
    weigh_scalar(shape, tokens, scratch);
  }
  const size_t stride = static_cast<size_t>(shape.row_capacity);
  const auto all_before = [](int32_t r) { return r; };
  const int32_t own = shape.read_before_update ? 0 : 1;
  const auto seen = [&](int32_t t) { return (t + own) * n; };
  for (int32_t first = 0; first < shape.v_dim; first += kStrip) {
    float* state = scratch.state + static_cast<size_t>(first) * k_dim;
    load_corrections(shape, rows, first, scratch);
    if (shape.delta_rule) {
      strip_product<Accumulate::kSubtract>({scratch.scaled_reads, depth, 1}, rows, k_dim, state,
                                           nullptr, scratch.corrections);
      strip_lower_product<Accumulate::kSubtract>(scratch.lower, stride, rows, all_before,
                                                 scratch.corrections, scratch.corrections);
    }
    strip_product<Accumulate::kSet>({scratch.scaled_queries, depth, 1}, tokens, k_dim, state,
                                    nullptr, scratch.strip_outputs);
    strip_lower_product<Accumulate::kAdd>(scratch.weights, stride, tokens, seen,
                                          scratch.corrections, scratch.strip_outputs);
    store_outputs(shape, tokens, first, scratch);
    strip_product<Accumulate::kScaleAndAdd>({scratch.scaled_keys, 1, depth}, k_dim, rows,
                                            scratch.corrections, scratch.state_decay, state);
  }
}

// A state [K, V] to strips [ceil(V / kStrip)][K][kStrip] and back; columns past V are zero.
HWY_INLINE void state_to_strips(const float* HWY_RESTRICT state, int32_t k_dim, int32_t v_dim,
                                float* HWY_RESTRICT strips) {
  for (int32_t first = 0; first < v_dim; first += kStrip) {
    const int32_t count = v_dim - first < kStrip ? v_dim - first : kStrip;
    for (int32_t k = 0; k < k_dim; ++k, strips += kStrip) {
      std::memcpy(strips, state + static_cast<size_t>(k) * v_dim + first,
                  static_cast<size_t>(count) * sizeof(float));
      for (int32_t c = count; c < kStrip; ++c) strips[c] = 0.0f;
    }
  }
}

HWY_INLINE void strips_to_state(const float* HWY_RESTRICT strips, int32_t k_dim, int32_t v_dim,
                                float* HWY_RESTRICT state) {
  for (int32_t first = 0; first < v_dim; first += kStrip) {
    const int32_t count = v_dim - first < kStrip ? v_dim - first : kStrip;
    for (int32_t k = 0; k < k_dim; ++k, strips += kStrip) {
      std::memcpy(state + static_cast<size_t>(k) * v_dim + first, strips,
                  static_cast<size_t>(count) * sizeof(float));
    }
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LEAPQUANT_CPU_PREFILL_CHUNK_INL_H_
