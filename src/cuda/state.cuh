// SPDX-License-Identifier: Apache-2.0
//
// The state of a head in FP32 from its bytes: compensator vectors, residual, plain payloads; the
// records of the window as factors; rebuild at a position. Suffix sums of log decays run from the
// newest record backwards: no difference of sums, no exponent above zero.
#pragma once

#include "cuda/block.cuh"
#include "cuda/payload_order.cuh"

namespace leapquant::cuda {

__device__ __forceinline__ PayloadOrder payload_order(const Block& block, const HeadFormat& f) {
  return PayloadOrder{f.bits, block.k_dim, block.v_dim, f.row_bytes};
}

// A compensator vector in the bytes of a head.
struct VectorPlace {
  int32_t bits;   // 16, 8 or 4
  int32_t count;  // entries
  int32_t data, scale;
};

__device__ __forceinline__ VectorPlace vector_place(const Block& block, const HeadFormat& f,
                                                    bool key, int32_t index) {
  VectorPlace place = {};
  place.count = key ? block.k_dim : block.v_dim;
  if (index < f.num_fp16) {
    place.bits = 16;
    place.data = (key ? f.fp16_keys : f.fp16_values) + 2 * place.count * index;
    return place;
  }
  index -= f.num_fp16;
  place.scale = (key ? f.key_scales : f.value_scales) + 2 * index;
  if (index < f.num_int8) {
    place.bits = 8;
    place.data = (key ? f.int8_keys : f.int8_values) + place.count * index;
  } else {
    place.bits = 4;
    place.data = (key ? f.int4_keys : f.int4_values) + place.count / 2 * (index - f.num_int8);
  }
  return place;
}

// Entry i of a stored vector.
__device__ __forceinline__ float vector_entry(const VectorPlace& place, const char* bytes,
                                              float scale, int32_t i) {
  if (place.bits == 16) {
    return fp16_value(reinterpret_cast<const uint16_t*>(bytes + place.data)[i]);
  }
  if (place.bits == 8) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(bytes + place.data)[i]) * scale;
  }
  const int32_t pair = reinterpret_cast<const uint8_t*>(bytes + place.data)[i / 2];
  return (static_cast<float>(((pair >> (4 * (i & 1))) & 15) - 8) + 0.5f) * scale;
}

// Decodes one side's vectors, [rank][K or V]; a warp has a vector. The caller puts a barrier behind
// it. Returns a mask of the vectors of this warp that are not zero, the same in all its lanes.
__device__ inline uint32_t decode_vectors(const Block& block, const HeadFormat& f,
                                          const char* bytes, bool key, float* vectors) {
  uint32_t alive = 0;
  for (int32_t r = block.warp; r < f.rank; r += kBlockWarps) {
    const VectorPlace place = vector_place(block, f, key, r);
    const float scale = place.bits == 16
                            ? 1.0f
                            : fp16_value(*reinterpret_cast<const uint16_t*>(bytes + place.scale));
    bool any = false;
    for (int32_t i = block.lane; i < place.count; i += 32) {
      const float x = vector_entry(place, bytes, scale, i);
      vectors[r * place.count + i] = x;
      any = any || x != 0.0f;
    }
    if (__any_sync(kAllLanes, any)) alive |= 1u << r;
  }
  return alive;
}

// Smoothing factors [K] and steps B / Q [V]. The caller puts a barrier behind it.
__device__ inline void decode_scales(const Block& block, const HeadFormat& f, const char* bytes) {
  for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
    float c = 1.0f;
    if (f.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      c = reinterpret_cast<const float*>(bytes + f.smoothing_at)[i];
    } else if (f.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
      c = log8_value(reinterpret_cast<const uint8_t*>(bytes + f.smoothing_at)[i]);
    }
    block.smoothing[i] = c;
  }
  for (int32_t j = block.thread; j < block.v_dim; j += kBlockThreads) {
    const float scale =
        f.fp16_scale != 0 ? fp16_value(reinterpret_cast<const uint16_t*>(bytes + f.value_scale)[j])
                          : reinterpret_cast<const float*>(bytes + f.value_scale)[j];
    block.steps[j] = scale / f.q_max;
  }
}

// Entry (i, j) of the decoded residual, scales in the block's arrays.
__device__ __forceinline__ float residual_entry(const Block& block, const HeadFormat& f,
                                                const PayloadOrder& order, const char* bytes,
                                                int32_t i, int32_t j) {
  const auto* payload = reinterpret_cast<const uint8_t*>(bytes);
  const float level =
      static_cast<float>(load_code(order, payload, i, j)) + (f.half_levels != 0 ? 0.5f : 0.0f);
  return block.smoothing[i] * level * block.steps[j];
}

// The state that `bytes` stand for, into block.state; leaves the compensators decoded in keys and
// values. Ends with a barrier.
__device__ __noinline__ inline void compose_state(const Block& block, const HeadFormat& f,
                                                  const char* bytes) {
  const int32_t v_dim = block.v_dim;
  float* state = block.state;
  const int32_t j = block.column;
  if (f.bits >= 16) {
    __syncthreads();
    for (int32_t i = block.row_begin; i < block.row_end; ++i) {
      const char* row = bytes + int64_t{i} * f.row_bytes;
      state[i * v_dim + j] = f.bits == 32 ? reinterpret_cast<const float*>(row)[j]
                                          : bf16_value(reinterpret_cast<const uint16_t*>(row)[j]);
    }
    __syncthreads();
    return;
  }
  __syncthreads();  // earlier readers of the arrays
  decode_scales(block, f, bytes);
  decode_vectors(block, f, bytes, true, block.keys);
  decode_vectors(block, f, bytes, false, block.values);
  __syncthreads();
  const PayloadOrder order = payload_order(block, f);
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    float x = residual_entry(block, f, order, bytes, i, j);
    for (int32_t r = 0; r < f.rank; ++r) {
      x = fmaf(block.keys[r * block.k_dim + i], block.values[r * v_dim + j], x);
    }
    state[i * v_dim + j] = x;
  }
  __syncthreads();
}

// Log decay of record token `token`, channel i, as the window holds it.
__device__ __forceinline__ float record_log_decay(const Call& call, const Window& window,
                                                  int32_t v_head, int32_t ring, int32_t i) {
  if (call.decay == LEAPQUANT_DECAY_NONE) return 0.0f;
  if (call.decay == LEAPQUANT_DECAY_CONSTANT) return call.head_decay[v_head - call.first_head];
  const int64_t index = int64_t{ring} * call.decay_count + (call.decay_count == 1 ? 0 : i);
  if (call.decay_bytes == 2) {
    return fp16_value(reinterpret_cast<const uint16_t*>(window.log_decays)[index]);
  }
  return reinterpret_cast<const float*>(window.log_decays)[index];
}

// Factors of the records of tokens base .. position - 1: block.left row m (oldest first, sub-steps
// inner) = key times the decay of the later tokens, and decay [K] of all of them. A thread has
// channels. Ends with a barrier.
__device__ __noinline__ inline void expand_records(const Call& call, const Block& block,
                                                   const Window& window, int32_t v_head,
                                                   int32_t base, int32_t position, float* decay) {
  const int32_t n = call.sub_steps;
  const int32_t k_dim = block.k_dim;
  for (int32_t i = block.thread; i < k_dim; i += kBlockThreads) {
    float later = 0.0f;
    float factor = 1.0f;
    for (int32_t token = position - 1; token >= base; --token) {
      const int32_t ring = token % call.ring_tokens;
      for (int32_t j = 0; j < n; ++j) {
        const float key = fp16_value(window.keys[(int64_t{ring} * n + j) * k_dim + i]);
        block.left[((token - base) * n + j) * k_dim + i] = key * factor;
      }
      later += record_log_decay(call, window, v_head, ring, i);
      factor = expf(later);
    }
    decay[i] = factor;
  }
  __syncthreads();
}

// Correction j of record m, counted from base.
__device__ __forceinline__ float correction(const Call& call, const Window& window, int32_t v_dim,
                                            int32_t base, int32_t m, int32_t j) {
  const int32_t n = call.sub_steps;
  const int32_t token = base + m / n;
  const int64_t row = int64_t{token % call.ring_tokens} * n + m % n;
  return fp16_value(window.corrections[row * v_dim + j]);
}

// The state after `position` tokens, from the bytes of `boundary` that stand for `base`, into
// block.state. Ends with a barrier.
__device__ __noinline__ inline void rebuild_state(const Call& call, const Block& block,
                                                  const HeadFormat& f, const char* boundary,
                                                  const Window& window, int32_t v_head,
                                                  int32_t base, int32_t position) {
  compose_state(block, f, boundary);
  if (position == base) return;
  float* decay = block.smoothing;  // [K], read no more once the state is composed
  expand_records(call, block, window, v_head, base, position, decay);
  const int32_t records = (position - base) * call.sub_steps;
  const int32_t j = block.column;
  constexpr int32_t kRows = 8;
  for (int32_t first = block.row_begin; first < block.row_end; first += kRows) {
    float sum[kRows];
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) sum[r] = 0.0f;
    const int32_t count = min(kRows, block.row_end - first);
    for (int32_t m = 0; m < records; ++m) {
      const float u = correction(call, window, block.v_dim, base, m, j);
      const float* left = block.left + m * block.k_dim + first;
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
        if (r < count) sum[r] = fmaf(left[r], u, sum[r]);
      }
    }
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) {
      if (r < count) {
        float& entry = block.state[(first + r) * block.v_dim + j];
        entry = fmaf(decay[first + r], entry, sum[r]);
      }
    }
  }
  __syncthreads();
}

}  // namespace leapquant::cuda
