// SPDX-License-Identifier: Apache-2.0
//
// A decode call as the kernels for heads of 128 x 128 see it: one struct by value in the kernel's
// parameters, filled on the host, and the device's view of sequences: slots, positions, faults.
// Nothing here reads a state.
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "cuda/finite.cuh"
#include "cuda/ptx.cuh"
#include "cuda/stamps.cuh"

namespace leapquant::cuda {

inline constexpr int32_t kMaxHeads128 = 256;  // heads whose class and offset fit the parameters

// What the kernels need of a BoundaryLayout (offsets in bytes from the head's start).
struct HeadFormat128 {
  int32_t bits, half_levels, fp16_scale, smoothing;
  int32_t num_fp16, num_int8, num_int4, bytes;
  int32_t value_scale, smoothing_at, fp16_keys, fp16_values;
  int32_t key_scales, value_scales, int8_keys, int8_values, int4_keys, int4_values;
  float q_max, inverse_q, scale_steps;
  int32_t fit_fixed, fit_rounds;
};

// Rows of an input or output tensor with every stride resolved.
struct Rows128 {
  char* data;
  int32_t type;
  int64_t sequence_stride, token_stride, head_stride;
};

struct Call128 {
  HeadFormat128 classes[8];
  uint8_t head_class[kMaxHeads128];
  int32_t head_offset[kMaxHeads128];  // in 16 bytes
  int32_t num_classes;                // 1: class 0 for all, offsets are multiples of its bytes
  // Shape.
  int32_t k_heads, v_heads, group, ring_tokens, window, stagger, first_k_head, total_k_heads;
  int32_t stored_decay;  // 1: the window holds log decays
  int32_t decay_bytes, delta_rule;
  int64_t corrections, log_decays, key_head_stride, correction_head_stride, decay_head_stride;
  // Pool.
  char* states;
  char* windows;
  int32_t* base;
  leapquant_health* health;
  int64_t state_stride, window_stride;
  int32_t num_state_slots, num_window_slots;
  // Call.
  int32_t batch, tokens, capacity;  // capacity: records that fit the kernel's shared memory
  const int32_t* state_slots;
  const int32_t* window_slots;
  const int32_t* positions;
  const int32_t* num_tokens;
  int32_t* status;
  Rows128 q, k, v, log_decay, beta, output;  // beta.data may be null
  int32_t gate, beta_kind, l2norm;
  int32_t dense;  // 1: q, k, v of one type, heads of a token one behind the other
  int32_t plain;  // 1: the common call, see make_call_128
  // 1: folds need not check inputs: a kernel before does, and may still be at it, or the block has.
  int32_t checked;
  const float* a_log;
  const float* dt_bias;
  float lower_bound, beta_scale, l2norm_eps, q_scale;
  int32_t boundary_bytes;  // largest head's, a multiple of 16
  int32_t weight_rows;     // records and compensators in tiles of sixteen, of any format
#ifdef LEAPQUANT_STAMPS
  StampTime* stamps;  // [kStampsOfCall] in device memory, or null
#endif
};

namespace device_128 {

// exp(x) for x <= 0; relative error about 2^-22 + |x| 2^-24, exactly 0 for -inf and 1 for 0.
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

__device__ __forceinline__ float4 widen(uint2 raw, int32_t type) {
  if (type == LEAPQUANT_BF16) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
  }
  const float2 low = widen_halves(raw.x);
  const float2 high = widen_halves(raw.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ const char* row_of(const Rows128& rows, int64_t sequence, int32_t token,
                                              int32_t head) {
  return rows.data + sequence * rows.sequence_stride + token * rows.token_stride +
         head * rows.head_stride;
}

// One element of a row.
__device__ __forceinline__ float load_one(const char* row, int32_t type, int32_t index) {
  if (type == LEAPQUANT_FP32) return __ldg(reinterpret_cast<const float*>(row) + index);
  const uint32_t raw = __ldg(reinterpret_cast<const unsigned short*>(row) + index);
  return widen(make_uint2(raw, 0), type).x;
}

// Elements 4 `index` .. 4 `index` + 3 as they lie; rows are 16-byte aligned. Loading and widening
// are apart so that all loads of a token are in flight before the first is waited for.
__device__ __forceinline__ uint4 load_raw(const char* row, int32_t type, int32_t index) {
  uint4 raw;
  if (type == LEAPQUANT_FP32) {
    raw = __ldg(reinterpret_cast<const uint4*>(row) + index);
  } else {
    const uint2 half = __ldg(reinterpret_cast<const uint2*>(row) + index);
    raw.x = half.x;
    raw.y = half.y;
  }
  return raw;
}
__device__ __forceinline__ float4 widen_raw(const uint4& raw, int32_t type) {
  if (type == LEAPQUANT_FP32) {
    return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                       __uint_as_float(raw.w));
  }
  return widen(make_uint2(raw.x, raw.y), type);
}
__device__ __forceinline__ float4 load_four(const char* row, int32_t type, int32_t index) {
  return widen_raw(load_raw(row, type, index), type);
}
// The same for one element.
__device__ __forceinline__ uint32_t load_raw_one(const char* row, int32_t type, int32_t index) {
  const bool half = type != LEAPQUANT_FP32;
  return load_word_or_half(row + (half ? 2 : 4) * index, half);
}
__device__ __forceinline__ float widen_one(uint32_t raw, int32_t type) {
  return type == LEAPQUANT_FP32 ? __uint_as_float(raw) : widen(make_uint2(raw, 0), type).x;
}

// The common call, for which the kernels are compiled by itself (make_call_128 says when): nothing
// to decide at run time but payloads, compensators and what a tensor's address is. value mod
// divisor and value / divisor for value >= 0, quick for powers of two. A ring's tokens are no power
// of two where value heads share keys, in the common call too.
template <bool kPlain = false>
__device__ __forceinline__ int32_t modulo(int32_t value, int32_t divisor) {
  return (divisor & (divisor - 1)) == 0 ? value & (divisor - 1) : value % divisor;
}
template <bool kPlain = false>
__device__ __forceinline__ int32_t quotient(int32_t value, int32_t divisor) {
  if constexpr (kPlain) return value >> (31 - __clz(divisor));
  return (divisor & (divisor - 1)) == 0 ? value >> (31 - __clz(divisor)) : value / divisor;
}

// Log decay of one raw gate input; `bias` is its index in dt_bias.
__device__ __forceinline__ float gate_of(const Call128& call, float x, int32_t v_head,
                                         int32_t bias) {
  if (call.gate == LEAPQUANT_GATE_READY) return x;
  const float shifted = x + (call.dt_bias != nullptr ? __ldg(call.dt_bias + bias) : 0.0f);
  const float rate = expf(__ldg(call.a_log + v_head));
  if (call.gate == LEAPQUANT_GATE_SOFTPLUS) {
    const float softplus = shifted > 20.0f ? shifted : log1pf(expf(shifted));
    return softplus == 0.0f || rate == 0.0f ? 0.0f : -rate * softplus;
  }
  const float product = shifted == 0.0f || rate == 0.0f ? 0.0f : rate * shifted;
  return call.lower_bound * sigmoid(product);
}

__device__ __forceinline__ float beta_of(const Call128& call, float x) {
  return call.beta_kind == LEAPQUANT_BETA_SIGMOID ? call.beta_scale * sigmoid(x) : x;
}

__device__ __forceinline__ const HeadFormat128& format_of(const Call128& call, int32_t v_head) {
  return call.classes[call.num_classes == 1 ? 0 : call.head_class[v_head]];
}

__device__ __forceinline__ char* boundary_of(const Call128& call, int32_t slot, int32_t v_head) {
  const int64_t offset = call.num_classes == 1 ? int64_t{v_head} * call.classes[0].bytes
                                               : int64_t{call.head_offset[v_head]} * 16;
  return call.states + slot * call.state_stride + offset;
}

// Last boundary of a head at or below `position`.
template <bool kPlain = false>
__device__ __forceinline__ int32_t last_boundary_of(const Call128& call, int32_t v_head,
                                                    int32_t position) {
  const int32_t k_head = call.first_k_head + quotient<kPlain>(v_head, call.group);
  const int32_t offset =
      call.stagger ? quotient<kPlain>(k_head * call.window, call.total_k_heads) : 0;
  const int32_t distance = position - offset;
  if constexpr (kPlain) return position - (distance & (call.window - 1));
  const int32_t remainder = (call.window & (call.window - 1)) == 0 ? distance & (call.window - 1)
                                                                   : distance % call.window;
  return position - (remainder < 0 ? remainder + call.window : remainder);
}

struct Sequence128 {
  int32_t index, slot, window_slot, position, tokens;
  uint32_t fault;  // of the numbers alone: bit 2 no window, bit 6 count or position
  bool alive;      // rows to compute; false: only zeros to write
};

// True when this thread's share of a token's rows of q, k and v holds a non-finite element.
template <int kUnroll, bool kPlain>
__device__ __forceinline__ bool any_not_finite(const Call128& call, int64_t sequence, int32_t token,
                                               int32_t thread, int32_t threads) {
  uint32_t seen = 0;
  if (kPlain ||
      call.dense) {  // heads follow one another, all of one type: the loads are in flight together
    const int32_t type = kPlain ? int32_t{LEAPQUANT_BF16} : call.q.type;
    const FiniteTest test = finite_test(type);
    const uint4* q = reinterpret_cast<const uint4*>(row_of(call.q, sequence, token, 0));
    const uint4* k = reinterpret_cast<const uint4*>(row_of(call.k, sequence, token, 0));
    const uint4* v = reinterpret_cast<const uint4*>(row_of(call.v, sequence, token, 0));
    const int32_t shift = type == LEAPQUANT_FP32 ? 5 : 4;  // 16-byte pieces of a row
    const int32_t keys = call.k_heads << shift;
    const int32_t values = call.v_heads << shift;
#pragma unroll 1
    for (int32_t first = thread; first < values; first += kUnroll * threads) {
      uint4 x[3][kUnroll];  // past the end the last again: no load waits for a comparison
#pragma unroll
      for (int32_t u = 0; u < kUnroll; ++u) {
        const int32_t i = min(first + u * threads, values - 1);
        const int32_t j = min(i, keys - 1);
        x[0][u] = __ldg(v + i), x[1][u] = __ldg(q + j), x[2][u] = __ldg(k + j);
      }
#pragma unroll
      for (int32_t u = 0; u < 3 * kUnroll; ++u) seen |= seen_in(test, x[u / kUnroll][u % kUnroll]);
    }
    return seen != 0;
  }
  if constexpr (!kPlain) {
#pragma unroll 1
    for (int32_t part = 0; part < 3; ++part) {
      const Rows128& rows = part == 0 ? call.q : part == 1 ? call.k : call.v;
      const FiniteTest test = finite_test(rows.type);
      const int32_t shift = rows.type == LEAPQUANT_FP32 ? 5 : 4;
      const int32_t pieces = (part == 2 ? call.v_heads : call.k_heads) << shift;
#pragma unroll 2
      for (int32_t i = thread; i < pieces; i += threads) {
        const uint4* row =
            reinterpret_cast<const uint4*>(row_of(rows, sequence, token, i >> shift));
        seen |= seen_in(test, __ldg(row + (i & ((1 << shift) - 1))));
      }
    }
  }
  return seen != 0;
}

template <bool kPlain>
__device__ __forceinline__ int32_t scalar_type(const Rows128& rows) {
  return kPlain ? int32_t{LEAPQUANT_FP32} : rows.type;
}

// Faults of a pair of log decays in BF16: bit 0 NaN, bit 1 positive.
__device__ __forceinline__ uint32_t decays_not_in_order(uint32_t pair) {
  const float low = __uint_as_float(pair << 16);
  const float high = __uint_as_float(pair & 0xffff0000u);
  return (low != low || high != high ? 1u : 0u) | (fmaxf(low, high) > 0.0f ? 2u : 0u);
}

// This thread's share of the check of a sequence's inputs: bit 0 non-finite, bit 1 positive decay.
template <bool kVector, int kUnroll, bool kPlain>
__device__ __forceinline__ uint32_t check_inputs(const Call128& call, int32_t sequence,
                                                 int32_t tokens, int32_t thread, int32_t threads) {
  uint32_t faults = 0;
  for (int32_t t = 0; t < tokens; ++t) {
    // The first scalars are on their way while the rows are.
    const auto beta_at = [&](int32_t h) {
      if (call.beta.data == nullptr) return 0.0f;
      return load_one(row_of(call.beta, sequence, t, 0), scalar_type<kPlain>(call.beta), h);
    };
    const auto decay_at = [&](int32_t h) {
      if (kVector || call.log_decay.data == nullptr) return 0.0f;
      return load_one(row_of(call.log_decay, sequence, t, 0), scalar_type<kPlain>(call.log_decay),
                      h);
    };
    float beta = thread < call.v_heads ? beta_at(thread) : 0.0f;
    float decay = thread < call.v_heads ? decay_at(thread) : 0.0f;
    if (any_not_finite<kUnroll, kPlain>(call, sequence, t, thread, threads)) faults |= 1u;
    for (int32_t h = thread; h < call.v_heads;) {
      if (!(fabsf(beta) <= 3.402823466e38f)) faults |= 1u;
      if (!kVector && call.log_decay.data != nullptr) {
        const float g = kPlain ? decay : gate_of(call, decay, h, h);
        if (g != g) faults |= 1u;
        if (!kPlain && call.gate != LEAPQUANT_GATE_READY && !(fabsf(decay) <= 3.402823466e38f))
          faults |= 1u;
        if (g > 0.0f) faults |= 2u;
      }
      h += threads;
      if (h < call.v_heads) beta = beta_at(h), decay = decay_at(h);
    }
    if (kVector && kPlain && call.log_decay.type == LEAPQUANT_BF16) {
      uint32_t faulty = 0;
#pragma unroll kUnroll
      for (int32_t i = thread; i < call.v_heads * 16; i += threads) {
        const uint4 x = __ldg(
            reinterpret_cast<const uint4*>(row_of(call.log_decay, sequence, t, i >> 4)) + (i & 15));
        faulty |= decays_not_in_order(x.x) | decays_not_in_order(x.y) | decays_not_in_order(x.z) |
                  decays_not_in_order(x.w);
      }
      faults |= faulty;
    } else if (kVector) {
#pragma unroll kUnroll
      for (int32_t i = thread;
           i < call.v_heads * 32 && (kPlain || call.gate == LEAPQUANT_GATE_READY); i += threads) {
        const float4 x =
            load_four(row_of(call.log_decay, sequence, t, i >> 5), call.log_decay.type, i & 31);
        const float most = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
        if (x.x != x.x || x.y != x.y || x.z != x.z || x.w != x.w) faults |= 1u;
        if (most > 0.0f) faults |= 2u;
      }
#pragma unroll 1
      for (int32_t i = thread;
           !kPlain && i < call.v_heads * 128 && call.gate != LEAPQUANT_GATE_READY; i += threads) {
        const int32_t h = i >> 7;
        const float x =
            load_one(row_of(call.log_decay, sequence, t, h), call.log_decay.type, i & 127);
        const float g = gate_of(call, x, h, i);
        if (!(fabsf(x) <= 3.402823466e38f) || g != g) faults |= 1u;
        if (g > 0.0f) faults |= 2u;
      }
    }
  }
  return faults;
}
// Whether a sequence, as its numbers are, has rows to compute.
__device__ __forceinline__ void judge(const Call128& call, Sequence128* s) {
  const bool live = s->slot >= 0 && s->tokens != 0;
  const bool fits = s->tokens > 0 && s->tokens <= call.tokens && s->position >= 0 &&
                    s->position <= 0x7fffffff - s->tokens;
  s->fault = 0;
  if (live && !fits) s->fault = 64u;
  if (live && s->window_slot < 0) s->fault = 4u;
  s->alive = live && s->fault == 0;
}

// Loads a sequence's place. Lanes of a call all get the same.
__device__ __forceinline__ Sequence128 load_sequence(const Call128& call, int32_t index) {
  Sequence128 s;
  s.index = index;
  s.slot = __ldg(call.state_slots + index);
  s.window_slot = call.window_slots != nullptr ? __ldg(call.window_slots + index) : s.slot;
  s.position = __ldg(call.positions + index);
  s.tokens = call.num_tokens != nullptr ? __ldg(call.num_tokens + index) : call.tokens;
  judge(call, &s);
  return s;
}

// This thread's share of the check that no earlier live row names the slot or window: bit 5.
__device__ __forceinline__ uint32_t check_slots(const Call128& call, const Sequence128& s,
                                                int32_t thread, int32_t threads) {
  constexpr int32_t kAhead = 4;  // loads on their way; a row past the last is the last again
  const int32_t* windows = call.window_slots != nullptr ? call.window_slots : call.state_slots;
  uint32_t faults = 0;
#pragma unroll 1
  for (int32_t first = thread; first < s.index; first += kAhead * threads) {
    int32_t slot[kAhead];
    int32_t window[kAhead];
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int32_t other = min(first + i * threads, s.index - 1);
      slot[i] = __ldg(call.state_slots + other);
      window[i] = __ldg(windows + other);
    }
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      if (slot[i] >= 0 && (slot[i] == s.slot || window[i] == s.window_slot)) faults = 32u;
    }
  }
  return faults;
}

// The check of a head's position: bit 3 below base, bit 4 past the window.
__device__ __forceinline__ uint32_t check_position(const Call128& call, const Sequence128& s,
                                                   int32_t base) {
  const int32_t shared = call.group > 1 ? s.tokens : 0;
  if (s.position < base) return 8u;
  return int64_t{s.position} - base + shared > call.ring_tokens ? 16u : 0u;
}

__device__ __forceinline__ int32_t status_of(uint32_t faults) {
  if (faults & 4u) return LEAPQUANT_SLOT_OUT_OF_RANGE;
  if (faults & 64u) return LEAPQUANT_INVALID_ARGUMENT;
  if (faults & 32u) return LEAPQUANT_SLOT_REPEATED;
  if (faults & 8u) return LEAPQUANT_POSITION_BELOW_BASE;
  if (faults & 16u) return LEAPQUANT_POSITION_PAST_WINDOW;
  if (faults & 1u) return LEAPQUANT_NON_FINITE_INPUT;
  if (faults & 2u) return LEAPQUANT_POSITIVE_LOG_DECAY;
  return LEAPQUANT_OK;
}

}  // namespace device_128
}  // namespace leapquant::cuda
