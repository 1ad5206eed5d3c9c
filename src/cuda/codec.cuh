// SPDX-License-Identifier: Apache-2.0
//
// A state into a head's bytes: fit, residual codec, health. Given the residual, the bytes are those
// of every backend: each operation of the codec is rounded to FP32 by itself.
#pragma once

#include "core/numeric.h"
#include "cuda/fit.cuh"

namespace leapquant::cuda {

// Key smoothing of the residual in block.state: into the bytes and, as decoding sees it, into
// block.smoothing. Ends with a barrier. Returns this thread's flags.
__device__ inline uint32_t encode_smoothing(const Block& block, const HeadFormat& f, char* bytes) {
  const int32_t v_dim = block.v_dim;
  __syncthreads();
  if (f.smoothing == LEAPQUANT_SMOOTHING_NONE) {
    for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) block.smoothing[i] = 1.0f;
    __syncthreads();
    return 0;
  }
  for (int32_t i = block.warp; i < block.k_dim; i += kBlockWarps) {
    float sum = 0.0f;
    for (int32_t j = block.lane; j < v_dim && block.lane < 16; j += 16) {
      sum = __fadd_rn(sum, fabsf(block.state[i * v_dim + j]));
    }
#pragma unroll
    for (int32_t step = 8; step >= 1; step >>= 1) {
      sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, step));
    }
    if (block.lane == 0) {
      // A sum past the largest number counts as that; a NaN stays one.
      sum = sum > kLargestFloat ? kLargestFloat : sum;
      block.smoothing[i] = __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(v_dim)));
    }
  }
  __syncthreads();
  float largest = 0.0f;
  for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
    largest = fmaxf(largest, block.smoothing[i]);
  }
  largest = block.max(largest);
  uint32_t flags = 0;
  const float least = fmaxf(__fmul_rn(1e-6f, largest), 1e-12f);
  for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
    float c = block.smoothing[i];
    if (f.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      c = fmaxf(c, least);
      reinterpret_cast<float*>(bytes + f.smoothing_at)[i] = c;
    } else {
      const int32_t n = to_log8(c);
      if (n == 255 && c > __fmul_rn(log8_value(255), 1.05f)) {
        flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
      }
      reinterpret_cast<uint8_t*>(bytes + f.smoothing_at)[i] = static_cast<uint8_t>(n);
      c = log8_value(n);
    }
    block.smoothing[i] = c;
  }
  __syncthreads();
  return flags;
}

__device__ __forceinline__ float smoothed(const Block& block, const HeadFormat& f, int32_t i,
                                          int32_t j) {
  const float x = block.state[i * block.v_dim + j];
  return f.smoothing == LEAPQUANT_SMOOTHING_NONE ? x : __fdiv_rn(x, block.smoothing[i]);
}

// Value scales: into the bytes, their inverses and steps into the block's arrays. Ends with a
// barrier. Returns this thread's flags.
__device__ inline uint32_t encode_value_scales(const Block& block, const HeadFormat& f,
                                               char* bytes) {
  auto* largest = reinterpret_cast<int32_t*>(block.column_max);  // magnitudes order like integers
  for (int32_t j = block.thread; j < block.v_dim; j += kBlockThreads) largest[j] = 0;
  __syncthreads();
  float most = 0.0f;
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    most = fmaxf(most, fabsf(smoothed(block, f, i, block.column)));
  }
  if (block.column >= 0) atomicMax(&largest[block.column], __float_as_int(most));
  __syncthreads();
  uint32_t flags = 0;
  for (int32_t j = block.thread; j < block.v_dim; j += kBlockThreads) {
    const float magnitude = __int_as_float(largest[j]);
    float scale = 0.0f;
    if (magnitude >= 1e-30f) {
      scale = f.scale_steps == f.q_max ? magnitude
                                       : __fmul_rn(magnitude, __fdiv_rn(f.q_max, f.scale_steps));
    }
    if (f.fp16_scale != 0) {
      bool saturated = false;
      const uint16_t half = scale == 0.0f ? uint16_t{0} : to_fp16_up(scale, &saturated);
      if (saturated) flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
      reinterpret_cast<uint16_t*>(bytes + f.value_scale)[j] = half;
      scale = fp16_value(half);
    } else {
      if (scale > kLargestFloat) {
        flags |= LEAPQUANT_HEALTH_SCALE_SATURATED;
        scale = kLargestFloat;
      }
      reinterpret_cast<float*>(bytes + f.value_scale)[j] = scale;
    }
    block.inverses[j] = scale == 0.0f ? 0.0f : __fdiv_rn(f.q_max, scale);
    block.steps[j] = __fdiv_rn(scale, f.q_max);
  }
  __syncthreads();
  return flags;
}

// Codes of the residual in block.state. *lost: this thread's part of the squares of what rounding
// takes away, times unit^2. Returns this thread's flags.
__device__ inline uint32_t encode_codes(const Block& block, const HeadFormat& f, float unit,
                                        char* bytes, float* lost) {
  const PayloadOrder order = payload_order(block, f);
  auto* payload = reinterpret_cast<uint8_t*>(bytes);
  const int32_t groups = order.groups_per_key();
  const float shift = f.half_levels != 0 ? 0.5f : 0.0f;
  const float high = f.half_levels != 0 ? f.q_max - 1.0f : f.q_max;
  uint32_t flags = 0;
  float sum = 0.0f;
  for (int32_t item = block.thread; item < block.k_dim * groups; item += kBlockThreads) {
    const int32_t i = item / groups;
    const int32_t group = item - i * groups;
    int32_t codes[8];
    for (int32_t p = 0; p < order.group_size(); ++p) {
      const int32_t j = order.group_value(group, p);
      codes[p] = 0;
      if (j >= block.v_dim) continue;
      const float inverse = block.inverses[j];
      const float x = smoothed(block, f, i, j);
      float level = 0.0f;
      if (inverse != 0.0f) {
        const float y = __fmul_rn(x, inverse);
        if (y != y) {
          flags |= LEAPQUANT_HEALTH_NON_FINITE;
        } else {
          const float bounded = fminf(fmaxf(y, -f.q_max - 1.0f), f.q_max + 1.0f);
          const float code =
              fminf(fmaxf(round_half_even(__fsub_rn(bounded, shift)), -f.q_max), high);
          codes[p] = static_cast<int32_t>(code);
        }
        level = static_cast<float>(codes[p]) + shift;
      }
      const float miss = block.smoothing[i] * fmaf(-level, block.steps[j], x) * unit;
      sum = fmaf(miss, miss, sum);
    }
    store_group(order, payload, i, group, codes);
  }
  *lost = sum;
  return flags;
}

// A state that is stored as it is. Returns nothing to flag; *lost as above.
__device__ inline void encode_plain(const Block& block, const HeadFormat& f, float unit,
                                    char* bytes, float* lost) {
  float sum = 0.0f;
  const int32_t j = block.column;
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    const float x = block.state[i * block.v_dim + j];
    char* row = bytes + int64_t{i} * f.row_bytes;
    if (f.bits == 32) {
      reinterpret_cast<float*>(row)[j] = x;
    } else {
      const uint16_t half = to_bf16(x);
      reinterpret_cast<uint16_t*>(row)[j] = half;
      const float miss = (bf16_value(half) - x) * unit;
      sum = fmaf(miss, miss, sum);
    }
  }
  *lost = sum;
}

__device__ __forceinline__ float squares_of_state(const Block& block, float unit) {
  float sum = 0.0f;
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    const float x = block.state[i * block.v_dim + block.column] * unit;
    sum = fmaf(x, x, sum);
  }
  return sum;
}

// Writes the state in block.state, which is lost, as a head's bytes. `previous`: bytes whose value
// sides may start the fit (may equal `bytes`), null for a cold one. Health, unless null, receives
// the fold's figures; its flags stay and new ones are added. Ends with a barrier.
__device__ __noinline__ inline void encode_state(const Block& block, const HeadFormat& f,
                                                 const char* previous, char* bytes,
                                                 leapquant_health* health) {
  __syncthreads();
  uint32_t flags = 0;
  float largest = 0.0f;
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    float& entry = block.state[i * block.v_dim + block.column];
    if (!is_finite(entry)) {
      entry = 0.0f;
      flags |= LEAPQUANT_HEALTH_NON_FINITE;
    }
    largest = fmaxf(largest, fabsf(entry));
  }
  largest = block.max(largest);
  // Sums of squares are taken in units of the largest entry, so that none of them overflows.
  const float unit = largest > 0.0f ? power_of_two(-min(max(ilogbf(largest), -126), 126)) : 1.0f;
  const float energy = block.sum(squares_of_state(block, unit));
  float residual_max = 0.0f;
  float left = energy;
  float lost = 0.0f;
  if (f.bits >= 16) {
    encode_plain(block, f, unit, bytes, &lost);
  } else {
    flags |= fit_compensators(block, f, previous, largest, bytes);
    for (int32_t i = block.row_begin; i < block.row_end; ++i) {
      float& entry = block.state[i * block.v_dim + block.column];
      float x = entry;
      for (int32_t r = 0; r < f.rank; ++r) {
        x = fmaf(-block.keys[r * block.k_dim + i], block.values[r * block.v_dim + block.column], x);
      }
      entry = x;
      residual_max = fmaxf(residual_max, fabsf(x));
    }
    residual_max = block.max(residual_max);
    left = block.sum(squares_of_state(block, unit));
    flags |= encode_smoothing(block, f, bytes);
    flags |= encode_value_scales(block, f, bytes);
    flags |= encode_codes(block, f, unit, bytes, &lost);
  }
  for (int32_t at = f.end + block.thread; at < f.bytes; at += kBlockThreads) bytes[at] = 0;
  lost = block.sum(lost);
  flags = block.any_bits(flags);
  if (health != nullptr && block.thread == 0) {
    health->residual_max = residual_max;
    health->compensator_energy =
        energy > 0.0f ? fminf(fmaxf(1.0f - left / energy, 0.0f), 1.0f) : 0.0f;
    health->fold_error = energy > 0.0f ? sqrtf(lost / energy) : 0.0f;
    health->flags |= flags;
  }
  __syncthreads();
}

}  // namespace leapquant::cuda
