// SPDX-License-Identifier: Apache-2.0
//
// Decode of heads of 128 x 128 whose boundary states are up to date. One head is read by one warp
// (large batches) or shared by the warps of a block (small ones); nothing depends on which. Bulk
// copies bring the boundary state and the records into shared memory; the residual is read by the
// integer matrix units, both read vectors as fixed-point numbers of four signed bytes, exactly;
// records and compensators by dot products in FP32. Heads that are due are folded by fold_128.cu,
// which runs at the same time; this kernel takes them last.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

using namespace device_128;

constexpr int32_t kPlaneWords = 36;  // 32 words of one byte plane, padded against bank conflicts
constexpr int32_t kDeferredWords = 64;
constexpr uint32_t kAll = 0xffffffffu;

// Shared memory of one block, in bytes from its start.
struct Plan {
  int32_t keys, corrections, decays, planes, reads, weights, deferred, bases, barrier, bytes;
};

__host__ __device__ constexpr Plan plan_of(int32_t boundary_bytes, int32_t capacity,
                                           int32_t decay_bytes) {
  Plan p{};
  int32_t at = boundary_bytes;
  p.keys = at;
  at += capacity * 256;
  p.corrections = at;
  at += capacity * 256;
  p.decays = at;
  at += capacity * 128 * decay_bytes;
  p.planes = at;
  at += 8 * kPlaneWords * 4;
  p.reads = at;
  at += 2 * 128 * 4;
  p.weights = at;
  at += (capacity + 32) * 8;
  p.deferred = at;
  at += kDeferredWords * 4;
  p.bases = at;
  at += 32 * 4;
  p.barrier = (at + 7) / 8 * 8;
  p.bytes = p.barrier + 8;
  return p;
}

template <int kWarps>
__device__ __forceinline__ void block_sync() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

__device__ __forceinline__ float dot_four(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int32_t step = 16; step >= 1; step >>= 1) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// One step of the sums below: lanes 2 kHalf apart exchange halves of 2 kHalf values.
template <int kHalf>
__device__ __forceinline__ void exchange_halves(float (&p)[16], int32_t lane) {
  const bool upper = (lane & (2 * kHalf)) != 0;
#pragma unroll
  for (int32_t i = 0; i < kHalf; ++i) {
    const float send = select_float(upper, p[i], p[i + kHalf]);
    const float keep = select_float(upper, p[i + kHalf], p[i]);
    p[i] = keep + __shfl_xor_sync(kAll, send, 2 * kHalf);
  }
}

// Sums of 16 values over the lanes; lane l receives that of value l / 2.
__device__ __forceinline__ float sums_of_sixteen(float (&p)[16], int32_t lane) {
  exchange_halves<8>(p, lane);
  exchange_halves<4>(p, lane);
  exchange_halves<2>(p, lane);
  exchange_halves<1>(p, lane);
  return p[0] + __shfl_xor_sync(kAll, p[0], 1);
}

// Codes of four bytes (two's complement) as floats, exact.
__device__ __forceinline__ float4 bytes_to_float(uint32_t word) {
  const uint32_t shifted = word ^ 0x80808080u;
  float4 r;
  r.x = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7650)) - 8388736.0f;
  r.y = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7651)) - 8388736.0f;
  r.z = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7652)) - 8388736.0f;
  r.w = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7653)) - 8388736.0f;
  return r;
}

// A nibble (code + 8 of a half-integer) as code + 1/2.
__device__ __forceinline__ float nibble_to_float(uint32_t word, int32_t index) {
  return __uint_as_float(((word >> (4 * index)) & 15u) | 0x4b000000u) - 8388608.0f - 7.5f;
}
__device__ __forceinline__ float4 nibbles_to_float(uint32_t word) {
  return make_float4(nibble_to_float(word, 0), nibble_to_float(word, 1), nibble_to_float(word, 2),
                     nibble_to_float(word, 3));
}

// What a lane holds of its kCount consecutive values (4, 2 or 1), loaded from a row of 128.
template <int kCount>
struct Values {
  float at[kCount];
};

template <int kCount>
__device__ __forceinline__ Values<kCount> load_halves(const char* row, int32_t place) {
  Values<kCount> r;
  if constexpr (kCount == 4) {
    const float4 x = widen(*reinterpret_cast<const uint2*>(row + 8 * place), LEAPQUANT_FP16);
    r.at[0] = x.x, r.at[1] = x.y, r.at[2] = x.z, r.at[3] = x.w;
  } else if constexpr (kCount == 2) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(row + 4 * place));
    r.at[0] = x.x, r.at[1] = x.y;
  } else {
    r.at[0] = __half2float(*reinterpret_cast<const __half*>(row + 2 * place));
  }
  return r;
}

template <int kCount>
__device__ __forceinline__ Values<kCount> load_bytes(const char* row, int32_t place) {
  Values<kCount> r;
  if constexpr (kCount == 4) {
    const float4 x = bytes_to_float(*reinterpret_cast<const uint32_t*>(row + 4 * place));
    r.at[0] = x.x, r.at[1] = x.y, r.at[2] = x.z, r.at[3] = x.w;
  } else if constexpr (kCount == 2) {
    const float4 x = bytes_to_float(*reinterpret_cast<const unsigned short*>(row + 2 * place));
    r.at[0] = x.x, r.at[1] = x.y;
  } else {
    r.at[0] = static_cast<float>(*reinterpret_cast<const signed char*>(row + place));
  }
  return r;
}

template <int kCount>
__device__ __forceinline__ Values<kCount> load_nibbles(const char* row, int32_t place) {
  Values<kCount> r;
  if constexpr (kCount == 4) {
    const float4 x = nibbles_to_float(*reinterpret_cast<const unsigned short*>(row + 2 * place));
    r.at[0] = x.x, r.at[1] = x.y, r.at[2] = x.z, r.at[3] = x.w;
  } else if constexpr (kCount == 2) {
    const uint32_t word = *reinterpret_cast<const unsigned char*>(row + place);
    r.at[0] = nibble_to_float(word, 0), r.at[1] = nibble_to_float(word, 1);
  } else {
    r.at[0] = nibble_to_float(*reinterpret_cast<const unsigned char*>(row + place / 2), place & 1);
  }
  return r;
}

__device__ __forceinline__ float half_at(const char* at, int32_t index) {
  return __half2float(*reinterpret_cast<const __half*>(at + 2 * index));
}

// Writes the byte planes of one read vector (vector 0 or 1) and returns what one unit stands for.
__device__ __forceinline__ float write_planes(float4 x, int32_t vector, uint32_t* planes,
                                              int32_t lane) {
  const float largest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(largest));
  const uint32_t exponent = max(bits >> 23, 30u);
  const float scale = __uint_as_float((283u - exponent) << 23);  // 2^29 over the power of two
  const float unit = __uint_as_float((exponent - 29u) << 23);
  const float in[4] = {x.x, x.y, x.z, x.w};
  uint32_t fixed[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    // Balanced digits: the lower three bytes carry where they pass 127.
    fixed[i] = static_cast<uint32_t>(__float2int_rn(in[i] * scale) + 0x00808080) ^ 0x00808080u;
  }
  const uint32_t low01 = __byte_perm(fixed[0], fixed[1], 0x5140);
  const uint32_t low23 = __byte_perm(fixed[2], fixed[3], 0x5140);
  const uint32_t high01 = __byte_perm(fixed[0], fixed[1], 0x7362);
  const uint32_t high23 = __byte_perm(fixed[2], fixed[3], 0x7362);
  const int32_t word = (lane & 3) * 8 + (lane >> 2);
  uint32_t* plane = planes + 4 * vector * kPlaneWords + word;
  plane[0 * kPlaneWords] = __byte_perm(low01, low23, 0x5410);
  plane[1 * kPlaneWords] = __byte_perm(low01, low23, 0x7632);
  plane[2 * kPlaneWords] = __byte_perm(high01, high23, 0x5410);
  plane[3 * kPlaneWords] = __byte_perm(high01, high23, 0x7632);
  return unit;
}

// Sums of code x fixed-point vector of 32 values, to reads [2][128] (in units; the value scale and
// the unit are the caller's).
template <int kBits>
__device__ __forceinline__ void read_codes(const char* payload, int32_t value_block,
                                           const uint32_t (&b)[8], const int32_t (&ones)[4],
                                           bool half_levels, float* reads, int32_t lane) {
  int32_t d[2][4] = {};
  if constexpr (kBits == 8) {
    const uint4* blocks = reinterpret_cast<const uint4*>(payload) + value_block * 256 + lane;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      const uint4 w0 = blocks[64 * s];
      const uint4 w1 = blocks[64 * s + 32];
      mma_int8<true>(d[0], w0.x, w0.y, w1.x, w1.y, b[2 * s], b[2 * s + 1]);
      mma_int8<true>(d[1], w0.z, w0.w, w1.z, w1.w, b[2 * s], b[2 * s + 1]);
    }
  } else {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    constexpr uint32_t kHigh = 0x30303030u;
    const uint4* blocks = reinterpret_cast<const uint4*>(payload) + value_block * 128 + lane;
    const uint4* highs = reinterpret_cast<const uint4*>(payload + 8192) + value_block * 64 + lane;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      const uint4 w = blocks[32 * s];
      uint32_t a[2][4] = {{w.x & kLow, (w.x >> 4) & kLow, w.z & kLow, (w.z >> 4) & kLow},
                          {w.y & kLow, (w.y >> 4) & kLow, w.w & kLow, (w.w >> 4) & kLow}};
      if constexpr (kBits == 6) {
        const uint4 h = highs[32 * (s / 2)];
        const uint32_t even = s % 2 == 0 ? h.x : h.z;
        const uint32_t odd = s % 2 == 0 ? h.y : h.w;
        a[0][0] |= (even << 4) & kHigh;
        a[0][1] |= (even << 2) & kHigh;
        a[1][0] |= even & kHigh;
        a[1][1] |= (even >> 2) & kHigh;
        a[0][2] |= (odd << 4) & kHigh;
        a[0][3] |= (odd << 2) & kHigh;
        a[1][2] |= odd & kHigh;
        a[1][3] |= (odd >> 2) & kHigh;
      }
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
        mma_int8<false>(d[m], a[m][0], a[m][1], a[m][2], a[m][3], b[2 * s], b[2 * s + 1]);
      }
    }
  }
  // Columns 2t and 2t + 1 are neighbouring digits of one vector. Half-integers: twice the sum.
  const int32_t offset = kBits == 8 ? 0 : kBits == 6 ? -32 : -8;
  const int32_t times = half_levels ? 2 : 1;
  const int32_t shift = (times * offset + (half_levels ? 1 : 0)) * (ones[1] * 256 + ones[0]);
  const float weight = (lane & 1 ? 65536.0f : 1.0f) * (half_levels ? 0.5f : 1.0f);
  const int32_t g = lane >> 2;
#pragma unroll
  for (int32_t m = 0; m < 2; ++m) {
    float upper = static_cast<float>(times * (d[m][1] * 256 + d[m][0]) + shift) * weight;
    float lower = static_cast<float>(times * (d[m][3] * 256 + d[m][2]) + shift) * weight;
    upper += __shfl_xor_sync(kAll, upper, 1);
    lower += __shfl_xor_sync(kAll, lower, 1);
    const int32_t value = 32 * value_block + 16 * m + 8 * (lane & 1) + g;
    reads[128 * ((lane >> 1) & 1) + value] = lane & 1 ? lower : upper;
  }
}

__device__ __forceinline__ __half to_half_saturated(float x, bool* saturated) {
  if (!(fabsf(x) < 65520.0f)) *saturated = true;
  return __float2half_rn(x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

// A log decay as the window keeps it in FP16: -inf stays, finite ones stay finite.
__device__ __forceinline__ __half decay_to_half(float g) {
  return __float2half_rn(g == -INFINITY ? g : fmaxf(g, -65504.0f));
}

template <int kCount>
__device__ __forceinline__ void store_values(char* row, int32_t type, int32_t place,
                                             const float (&x)[kCount]) {
  if (type == LEAPQUANT_FP32) {
    float* at = reinterpret_cast<float*>(row) + kCount * place;
    if constexpr (kCount == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) at[i] = x[i];
    }
    return;
  }
  unsigned short half[kCount];
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) {
    if (type == LEAPQUANT_BF16) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half[i]) : "f"(x[i]));
    } else {
      half[i] = __half_as_ushort(__float2half_rn(fminf(fmaxf(x[i], -65504.0f), 65504.0f)));
    }
  }
  unsigned short* at = reinterpret_cast<unsigned short*>(row) + kCount * place;
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(at) = make_uint2(half[0] | static_cast<uint32_t>(half[1]) << 16,
                                               half[2] | static_cast<uint32_t>(half[3]) << 16);
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<uint32_t*>(at) = half[0] | static_cast<uint32_t>(half[1]) << 16;
  } else {
    at[0] = half[0];
  }
}

// One head of one sequence at work.
template <bool kVector, int kWarps>
struct Head {
  static constexpr int32_t kCount = 4 / kWarps;  // values a lane owns
  const Call128& call;
  char* shared;
  const Plan& plan;
  int32_t lane, warp;
  int32_t place;  // of the lane's values: value = kCount * place

  __device__ __forceinline__ float2* weights() const {
    return reinterpret_cast<float2*>(shared + plan.weights);
  }

  // Weights of 8 rows from `row`: sums over the lanes, times `scale` of the lane's row.
  __device__ __forceinline__ void put_weights(float (&p)[16], int32_t row, int32_t rows,
                                              float scale) const {
    const float sum = sums_of_sixteen(p, lane) * scale;
    const int32_t mine = lane >> 2;
    if ((lane & 1) == 0 && mine < rows) {
      reinterpret_cast<float*>(weights() + row + mine)[(lane >> 1) & 1] = sum;
    }
  }

  // Dot products of `count` compensators' keys with both read vectors.
  template <typename Load, typename Scale>
  __device__ __forceinline__ void compensator_dots(int32_t count, int32_t row, int32_t* group,
                                                   float4 rk, float4 rq, Load load,
                                                   Scale scale) const {
    for (int32_t first = 0; first < count; first += 8, ++*group) {
      if (kWarps > 1 && *group % kWarps != warp) continue;
      float p[16];
#pragma unroll
      for (int32_t r = 0; r < 8; ++r) {
        p[2 * r] = p[2 * r + 1] = 0.0f;
        if (first + r < count) {
          const float4 key = load(first + r);
          p[2 * r] = dot_four(key, rk);
          p[2 * r + 1] = dot_four(key, rq);
        }
      }
      const int32_t mine = first + (lane >> 2);
      put_weights(p, row + first, count - first, scale(mine < count ? mine : count - 1));
    }
  }

  // One token. n records lie in shared memory, `decay` is lane l's log decay of record l (scalar).
  // Returns through *decay the appended token's too. load_wait waits for the copies.
  // The inputs of one token as they lie. Loaded a head ahead where the next head is known.
  struct Raw {
    uint4 q, k, v, g;
    uint32_t v_one[kCount];
    uint32_t beta;
  };
  __device__ __forceinline__ void load_inputs(int32_t sequence, int32_t v_head, int32_t t,
                                              Raw* raw) const {
    const int32_t k_head = quotient(v_head, call.group);
    raw->q = load_raw(row_of(call.q, sequence, t, k_head), call.q.type, lane);
    raw->k = load_raw(row_of(call.k, sequence, t, k_head), call.k.type, lane);
    const char* v_row = row_of(call.v, sequence, t, v_head);
    if constexpr (kCount == 4) {
      raw->v = load_raw(v_row, call.v.type, place);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        raw->v_one[i] = load_raw_one(v_row, call.v.type, kCount * place + i);
      }
    }
    if (call.beta.data != nullptr) {
      raw->beta = load_raw_one(row_of(call.beta, sequence, t, 0), call.beta.type, v_head);
    }
    if constexpr (kVector) {
      raw->g = load_raw(row_of(call.log_decay, sequence, t, v_head), call.log_decay.type, lane);
    } else if (call.log_decay.data != nullptr) {
      raw->g.x = load_raw_one(row_of(call.log_decay, sequence, t, 0), call.log_decay.type, v_head);
    }
  }
  // Log decay of record `lane` of the window (scalar decays).
  __device__ __forceinline__ float load_decay(const Sequence128& s, int32_t v_head, int32_t base,
                                              int32_t n) const {
    if (kVector || call.stored_decay == 0 || lane >= n) return 0.0f;
    const float* decays =
        reinterpret_cast<const float*>(call.windows + s.window_slot * call.window_stride +
                                       call.log_decays + v_head * call.decay_head_stride);
    return decays[modulo(base + lane, call.ring_tokens)];
  }

  // One token, whose inputs *raw holds. n records lie in shared memory, *decay is lane l's log
  // decay of record l (scalar decays). wait: until the copies are there. early: shared memory has
  // been read for the last time, unless the token is appended to it.
  template <typename Wait, typename Early>
  __device__ __forceinline__ void token(int32_t sequence, int32_t v_head, int32_t t, int32_t n,
                                        const Sequence128& s, const HeadFormat128& format,
                                        float* decay, bool append, Raw* raw, Wait wait,
                                        Early early) const {
    const int32_t k_head = quotient(v_head, call.group);
    float4 q = widen_raw(raw->q, call.q.type);
    float4 k = widen_raw(raw->k, call.k.type);

    if (call.l2norm != 0) {
      const float qs = 1.0f / sqrtf(sum_of_warp(dot_four(q, q)) + call.l2norm_eps);
      const float ks = 1.0f / sqrtf(sum_of_warp(dot_four(k, k)) + call.l2norm_eps);
      q = make_float4(q.x * qs, q.y * qs, q.z * qs, q.w * qs);
      k = make_float4(k.x * ks, k.y * ks, k.z * ks, k.w * ks);
    }
    q = make_float4(q.x * call.q_scale, q.y * call.q_scale, q.z * call.q_scale, q.w * call.q_scale);
    const float own = sum_of_warp(dot_four(k, q));
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // scalar: x only
    if constexpr (kVector) {
      g = widen_raw(raw->g, call.log_decay.type);
      if (call.gate != LEAPQUANT_GATE_READY) {
        const int32_t bias = v_head * 128 + 4 * lane;
        g.x = gate_of(call, g.x, v_head, bias);
        g.y = gate_of(call, g.y, v_head, bias + 1);
        g.z = gate_of(call, g.z, v_head, bias + 2);
        g.w = gate_of(call, g.w, v_head, bias + 3);
      }
    } else if (call.log_decay.data != nullptr) {
      g.x = gate_of(call, widen_one(raw->g.x, call.log_decay.type), v_head, v_head);
    }
    float4 a;
    a.x = exp_fast(g.x);
    if constexpr (kVector) {
      a.y = exp_fast(g.y), a.z = exp_fast(g.z), a.w = exp_fast(g.w);
    } else {
      a.y = a.z = a.w = a.x;
    }
    float4 rk = make_float4(k.x * a.x, k.y * a.y, k.z * a.z, k.w * a.w);
    float4 rq = make_float4(q.x * a.x, q.y * a.y, q.z * a.z, q.w * a.w);

    // Scalar decays: lane l's sum over the records after record l, and the whole sum.
    float after = 0.0f;
    float decay_all = 1.0f;
    if constexpr (!kVector) {
      after = __shfl_down_sync(kAll, *decay, 1);
      if (lane >= n - 1) after = 0.0f;
#pragma unroll
      for (int32_t step = 1; step < 32; step <<= 1) {
        const float other = __shfl_down_sync(kAll, after, step);
        if (lane + step < 32) after += other;
      }
      const float whole = __shfl_sync(kAll, after, 0) + __shfl_sync(kAll, *decay, 0);
      decay_all = n > 0 ? exp_fast(whole) : 1.0f;
      after = exp_fast(after);
    }

    wait();

    // Records, newest first: row i is record n - 1 - i.
    int32_t group = 0;
    const char* keys = shared + plan.keys;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int32_t first = 0; first < n; first += 8, ++group) {
      const bool mine = kWarps == 1 || group % kWarps == warp;
      float p[16];
#pragma unroll
      for (int32_t r = 0; r < 8; ++r) {
        p[2 * r] = p[2 * r + 1] = 0.0f;
        const int32_t record = n - 1 - first - r;
        if (record >= 0) {
          if (mine) {
            float4 key = widen(*reinterpret_cast<const uint2*>(keys + record * 256 + 8 * lane),
                               LEAPQUANT_FP16);
            if constexpr (kVector) {
              key.x *= exp_fast(sum.x);
              key.y *= exp_fast(sum.y);
              key.z *= exp_fast(sum.z);
              key.w *= exp_fast(sum.w);
            }
            p[2 * r] = dot_four(key, rk);
            p[2 * r + 1] = dot_four(key, rq);
          }
          if constexpr (kVector) {
            const char* row = shared + plan.decays + record * 128 * call.decay_bytes;
            const float4 step =
                call.decay_bytes == 4
                    ? *reinterpret_cast<const float4*>(row + 16 * lane)
                    : widen(*reinterpret_cast<const uint2*>(row + 8 * lane), LEAPQUANT_FP16);
            sum.x += step.x, sum.y += step.y, sum.z += step.z, sum.w += step.w;
          }
        }
      }
      if (mine) {
        float scale = 1.0f;
        if constexpr (!kVector) {
          const int32_t record = n - 1 - first - (lane >> 2);
          scale = __shfl_sync(kAll, after, record < 0 ? 0 : record);
        }
        put_weights(p, first, n - first, scale);
      }
    }
    if constexpr (kVector) {
      const float4 d =
          make_float4(exp_fast(sum.x), exp_fast(sum.y), exp_fast(sum.z), exp_fast(sum.w));
      rk = make_float4(rk.x * d.x, rk.y * d.y, rk.z * d.z, rk.w * d.w);
      rq = make_float4(rq.x * d.x, rq.y * d.y, rq.z * d.z, rq.w * d.w);
    }

    // Compensators: scales of both sides go into the weight.
    int32_t row = n;
    compensator_dots(
        format.num_fp16, row, &group, rk, rq,
        [&](int32_t c) {
          return widen(
              *reinterpret_cast<const uint2*>(shared + format.fp16_keys + c * 256 + 8 * lane),
              LEAPQUANT_FP16);
        },
        [&](int32_t) { return decay_all; });
    row += format.num_fp16;
    const auto scale_of = [&](int32_t c) {
      return half_at(shared + format.key_scales, c) * half_at(shared + format.value_scales, c) *
             decay_all;
    };
    compensator_dots(
        format.num_int8, row, &group, rk, rq,
        [&](int32_t c) {
          return bytes_to_float(
              *reinterpret_cast<const uint32_t*>(shared + format.int8_keys + c * 128 + 4 * lane));
        },
        scale_of);
    row += format.num_int8;
    compensator_dots(
        format.num_int4, row, &group, rk, rq,
        [&](int32_t c) {
          return nibbles_to_float(*reinterpret_cast<const unsigned short*>(
              shared + format.int4_keys + c * 64 + 2 * lane));
        },
        [&](int32_t c) { return scale_of(format.num_int8 + c); });

    // Read vectors against the residual: smoothing into fixed point. All warps write the same.
    float4 c = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      c = *reinterpret_cast<const float4*>(shared + format.smoothing_at + 16 * lane);
    } else if (format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
      const uint32_t word =
          *reinterpret_cast<const uint32_t*>(shared + format.smoothing_at + 4 * lane);
      c.x = log8_value(word & 255u);
      c.y = log8_value((word >> 8) & 255u);
      c.z = log8_value((word >> 16) & 255u);
      c.w = log8_value(word >> 24);
    }
    uint32_t* planes = reinterpret_cast<uint32_t*>(shared + plan.planes);
    const float unit_k =
        write_planes(make_float4(rk.x * c.x, rk.y * c.y, rk.z * c.z, rk.w * c.w), 0, planes, lane);
    const float unit_q =
        write_planes(make_float4(rq.x * c.x, rq.y * c.y, rq.z * c.z, rq.w * c.w), 1, planes, lane);
    block_sync<kWarps>();

    uint32_t b[8];
    {
      const uint4* plane =
          reinterpret_cast<const uint4*>(planes + (lane >> 2) * kPlaneWords + (lane & 3) * 8);
      const uint4 low = plane[0];
      const uint4 high = plane[1];
      b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
      b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
    }
    float* reads = reinterpret_cast<float*>(shared + plan.reads);
    const bool half_levels = format.half_levels != 0;
    int32_t ones[4] = {};
    if (format.bits != 8 || half_levels) {
#pragma unroll
      for (int32_t i = 0; i < 8; i += 2) {
        mma_int8<true>(ones, 0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u, b[i], b[i + 1]);
      }
    }
    constexpr int32_t kBlocks = 4 / kWarps;
    if (format.bits == 8) {
#pragma unroll
      for (int32_t i = 0; i < kBlocks; ++i) {
        read_codes<8>(shared, kBlocks * warp + i, b, ones, half_levels, reads, lane);
      }
    } else if (format.bits == 6) {
#pragma unroll
      for (int32_t i = 0; i < kBlocks; ++i) {
        read_codes<6>(shared, kBlocks * warp + i, b, ones, half_levels, reads, lane);
      }
    } else {
#pragma unroll
      for (int32_t i = 0; i < kBlocks; ++i) {
        read_codes<4>(shared, kBlocks * warp + i, b, ones, half_levels, reads, lane);
      }
    }
    __syncwarp();

    // Value sides of records and compensators.
    float read_k[kCount] = {};
    float read_q[kCount] = {};
    const auto add = [&](int32_t at, const Values<kCount>& x) {
      const float2 w = weights()[at];
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        read_k[i] = fmaf(w.x, x.at[i], read_k[i]);
        read_q[i] = fmaf(w.y, x.at[i], read_q[i]);
      }
    };
    const char* corrections = shared + plan.corrections;
#pragma unroll 4
    for (int32_t i = 0; i < n; ++i) {
      add(i, load_halves<kCount>(corrections + (n - 1 - i) * 256, place));
    }
    row = n;
#pragma unroll 4
    for (int32_t i = 0; i < format.num_fp16; ++i) {
      add(row + i, load_halves<kCount>(shared + format.fp16_values + i * 256, place));
    }
    row += format.num_fp16;
#pragma unroll 4
    for (int32_t i = 0; i < format.num_int8; ++i) {
      add(row + i, load_bytes<kCount>(shared + format.int8_values + i * 128, place));
    }
    row += format.num_int8;
#pragma unroll 4
    for (int32_t i = 0; i < format.num_int4; ++i) {
      add(row + i, load_nibbles<kCount>(shared + format.int4_values + i * 64, place));
    }

    float v[kCount];
    if constexpr (kCount == 4) {
      const float4 x = widen_raw(raw->v, call.v.type);
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) v[i] = widen_one(raw->v_one[i], call.v.type);
    }
    float beta = 1.0f;
    if (call.beta.data != nullptr) beta = beta_of(call, widen_one(raw->beta, call.beta.type));

    // Residual, correction, output.
    float u[kCount], o[kCount];
    const float full_k = unit_k * decay_all;
    const float full_q = unit_q * decay_all;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const int32_t value = kCount * place + i;
      const float scale = format.fp16_scale
                              ? half_at(shared + format.value_scale, value)
                              : reinterpret_cast<const float*>(shared + format.value_scale)[value];
      const float step = scale * format.inverse_q;
      u[i] = fmaf(reads[value] * full_k, step, read_k[i]);
      o[i] = fmaf(reads[128 + value] * full_q, step, read_q[i]);
    }
    early();
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      u[i] = beta * (call.delta_rule ? v[i] - u[i] : v[i]);
      o[i] = fmaf(own, u[i], o[i]);
    }
    store_values<kCount>(const_cast<char*>(row_of(call.output, sequence, t, v_head)),
                         call.output.type, place, o);

    // The record.
    bool saturated = false;
    __half u_half[kCount], k_half[4];
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) u_half[i] = to_half_saturated(u[i], &saturated);
    const float k_in[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) k_half[i] = to_half_saturated(k_in[i], &saturated);
    const int32_t ring = modulo(s.position + t, call.ring_tokens);
    char* window = call.windows + s.window_slot * call.window_stride;
    char* u_row = window + call.corrections + v_head * call.correction_head_stride + ring * 256;
    char* k_row = window + k_head * call.key_head_stride + ring * 256;
    char* g_row = window + call.log_decays + v_head * call.decay_head_stride;
    uint2 k_bits;
    k_bits.x = __half_as_ushort(k_half[0]) | static_cast<uint32_t>(__half_as_ushort(k_half[1]))
                                                 << 16;
    k_bits.y = __half_as_ushort(k_half[2]) | static_cast<uint32_t>(__half_as_ushort(k_half[3]))
                                                 << 16;
    store_record(u_row, u_half);
    if (warp == 0) {
      *reinterpret_cast<uint2*>(k_row + 8 * lane) = k_bits;
      if constexpr (kVector) {
        store_decays(g_row + ring * 128 * call.decay_bytes, g);
      } else if (call.stored_decay != 0 && lane == 0) {
        reinterpret_cast<float*>(g_row)[ring] = g.x;
      }
    }
    if (saturated && call.health != nullptr) {
      atomicOr(&call.health[int64_t{s.slot} * call.v_heads + v_head].flags,
               uint32_t{LEAPQUANT_HEALTH_RECORD_SATURATED});
    }
    if (append) {
      store_record(shared + plan.corrections + n * 256, u_half);
      if (warp == 0) {
        *reinterpret_cast<uint2*>(shared + plan.keys + n * 256 + 8 * lane) = k_bits;
        if constexpr (kVector) {
          store_decays(shared + plan.decays + n * 128 * call.decay_bytes, g);
        }
      }
      if (lane == n) *decay = g.x;
    }
  }

  __device__ __forceinline__ void store_record(char* row, const __half (&x)[kCount]) const {
    unsigned short* at = reinterpret_cast<unsigned short*>(row) + kCount * place;
    if constexpr (kCount == 4) {
      *reinterpret_cast<uint2*>(at) =
          make_uint2(__half_as_ushort(x[0]) | static_cast<uint32_t>(__half_as_ushort(x[1])) << 16,
                     __half_as_ushort(x[2]) | static_cast<uint32_t>(__half_as_ushort(x[3])) << 16);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) at[i] = __half_as_ushort(x[i]);
    }
  }

  __device__ __forceinline__ void store_decays(char* row, float4 g) const {
    if (call.decay_bytes == 4) {
      *reinterpret_cast<float4*>(row + 16 * lane) = g;
      return;
    }
    const __half h[4] = {decay_to_half(g.x), decay_to_half(g.y), decay_to_half(g.z),
                         decay_to_half(g.w)};
    *reinterpret_cast<uint2*>(row + 8 * lane) =
        make_uint2(__half_as_ushort(h[0]) | static_cast<uint32_t>(__half_as_ushort(h[1])) << 16,
                   __half_as_ushort(h[2]) | static_cast<uint32_t>(__half_as_ushort(h[3])) << 16);
  }

  // Value of a log8 byte: 2^((n - 128) / 8), bitwise the table of core/numeric.
  __device__ static __forceinline__ float log8_value(uint32_t n) {
    constexpr float kEighth[8] = {1.0f,
                                  static_cast<float>(1.0905077326652577),
                                  static_cast<float>(1.1892071150027210),
                                  static_cast<float>(1.2968395546510096),
                                  static_cast<float>(1.4142135623730951),
                                  static_cast<float>(1.5422108254079408),
                                  static_cast<float>(1.6817928305074290),
                                  static_cast<float>(1.8340080864093424)};
    float eighth = kEighth[0];
#pragma unroll
    for (uint32_t i = 1; i < 8; ++i) eighth = (n & 7u) == i ? kEighth[i] : eighth;
    return eighth * __uint_as_float((n / 8 + 111u) << 23);
  }

  // Bulk copies of the boundary state and n records; one thread calls it.
  __device__ __forceinline__ void start_copies(const Sequence128& s, int32_t v_head, int32_t base,
                                               int32_t n, const HeadFormat128& format,
                                               uint32_t barrier) const {
    const uint32_t at = shared_address(shared);
    const uint32_t decay_row = kVector ? 128u * static_cast<uint32_t>(call.decay_bytes) : 0u;
    const uint32_t total =
        static_cast<uint32_t>(format.bytes) + static_cast<uint32_t>(n) * (512u + decay_row);
    barrier_expect(barrier, total);
    bulk_copy(at, boundary_of(call, s.slot, v_head), static_cast<uint32_t>(format.bytes), barrier);
    if (n == 0) return;
    const int32_t ring = modulo(base, call.ring_tokens);
    const int32_t head_part = min(n, call.ring_tokens - ring);
    const char* window = call.windows + s.window_slot * call.window_stride;
    const char* rows[3] = {window + quotient(v_head, call.group) * call.key_head_stride,
                           window + call.corrections + v_head * call.correction_head_stride,
                           window + call.log_decays + v_head * call.decay_head_stride};
    const int32_t to[3] = {plan.keys, plan.corrections, plan.decays};
#pragma unroll
    for (int32_t i = 0; i < (kVector ? 3 : 2); ++i) {
      const uint32_t row = i == 2 ? decay_row : 256u;
      bulk_copy(at + to[i], rows[i] + int64_t{ring} * row, head_part * row, barrier);
      if (head_part < n) {
        bulk_copy(at + to[i] + head_part * row, rows[i], (n - head_part) * row, barrier);
      }
    }
  }
};

// Each block takes heads first .. last - 1 of batch x v_heads, in order.
template <bool kVector, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kWarps == 1 ? 16 : 4)
    decode_kernel(const __grid_constant__ Call128 call) {
  extern __shared__ __align__(128) char shared[];
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0);
  const int32_t lane = threadIdx.x & 31;
  const int32_t warp = kWarps == 1 ? 0 : threadIdx.x >> 5;
  const Head<kVector, kWarps> head = {call, shared, plan, lane, warp, 32 * warp + lane};
  const uint32_t barrier = shared_address(shared + plan.barrier);
  uint32_t* deferred = reinterpret_cast<uint32_t*>(shared + plan.deferred);
  if (threadIdx.x == 0) barrier_init(barrier, 1);
  for (int32_t i = threadIdx.x; i < kDeferredWords; i += 32 * kWarps) deferred[i] = 0;
  fence_async_proxy();
  block_sync<kWarps>();

  const int64_t total = int64_t{call.batch} * call.v_heads;
  const int64_t first = total * blockIdx.x / gridDim.x;
  const int32_t count = static_cast<int32_t>(total * (blockIdx.x + 1) / gridDim.x - first);
  uint32_t parity = 0;
  bool any_deferred = false;

  for (int32_t pass = 0; pass < 2; ++pass) {
    if (pass == 1) {
      wait_for_previous_grid();  // folds are done and visible
      if (!any_deferred) break;
      fence_async_proxy();
    }
    int32_t current = -1;
    int32_t block_of_heads = -1;
    Sequence128 s = {};
    uint32_t faults = 0;
    int32_t bases = 0;
    typename Head<kVector, kWarps>::Raw raw = {};
    float decay = 0.0f;
    bool ahead = false;  // copies of the head at hand are under way, its inputs loaded
    int32_t sequence = static_cast<int32_t>(first / call.v_heads);
    int32_t v_head = static_cast<int32_t>(first - int64_t{sequence} * call.v_heads) - 1;
    for (int32_t index = 0; index < count; ++index) {
      if (++v_head == call.v_heads) {
        v_head = 0;
        ++sequence;
      }
      if (pass == 1 && (deferred[index >> 5] >> (index & 31) & 1u) == 0) continue;
      const bool fresh = sequence != current;
      if (fresh) {
        s = load_sequence(call, sequence);
        faults = 0;
        if (s.alive && (s.slot >= call.num_state_slots || s.window_slot >= call.num_window_slots)) {
          faults = 4u;
        }
      }
      if ((fresh || (v_head >> 5) != block_of_heads) && s.alive && faults == 0) {
        block_of_heads = v_head >> 5;
        const int32_t h = min((block_of_heads << 5) + lane, call.v_heads - 1);
        bases = *reinterpret_cast<const volatile int32_t*>(call.base +
                                                           int64_t{s.slot} * call.v_heads + h);
        if constexpr (kWarps > 1) {  // a fold may move a base between two warps' loads
          int32_t* common = reinterpret_cast<int32_t*>(shared + plan.bases);
          if (warp == 0) common[lane] = bases;
          __syncthreads();
          bases = common[lane];
          __syncthreads();
        }
        __threadfence();  // a base that a fold has just moved: what it wrote is seen
        fence_async_proxy();
      }
      current = sequence;
      const int32_t base = __shfl_sync(kAll, bases, v_head & 31);
      const int32_t n = s.position - base;
      const bool due = last_boundary_of(call, v_head, s.position) > base;
      const HeadFormat128& format = format_of(call, v_head);
      const bool copies =
          s.alive && faults == 0 && !due && n >= 0 && n <= call.capacity - (call.tokens - 1);
      if (copies && !ahead && threadIdx.x == 0) {
        head.start_copies(s, v_head, base, n, format, barrier);
      }
      if (pass == 0 && fresh && s.alive && faults == 0) {  // deferred heads have passed it
        uint32_t found = check_positions(call, s, threadIdx.x, 32 * kWarps);
        found |= check_inputs<kVector, (kWarps == 1 ? 8 : 4)>(call, sequence, s.tokens, threadIdx.x,
                                                              32 * kWarps);
        if constexpr (kWarps == 1) {
          faults = __reduce_or_sync(kAll, found);
        } else {
#pragma unroll
          for (uint32_t bit = 1; bit <= 16; bit <<= 1) {
            if (__syncthreads_or((found & bit) != 0)) faults |= bit;
          }
        }
      }
      if (pass == 0 && fresh && threadIdx.x == 0) call.status[sequence] = status_of(faults);
      const bool computes = s.alive && faults == 0;
      if (computes && due) {
        if (pass == 0) {
          any_deferred = true;
          if (threadIdx.x == 0) deferred[index >> 5] |= 1u << (index & 31);
        }
        continue;
      }
      const int32_t done = computes ? s.tokens : 0;
      if (computes) {
        if (!ahead) decay = head.load_decay(s, v_head, base, n);
        for (int32_t t = 0; t < s.tokens; ++t) {
          if (t > 0 || !ahead) head.load_inputs(sequence, v_head, t, &raw);
          ahead = false;
          const auto wait = [&] {
            if (t == 0) {
              barrier_wait(barrier, parity);
            } else {
              block_sync<kWarps>();
            }
          };
          const bool last_token = t + 1 == s.tokens;
          const auto early = [&] {
            if (!last_token) return;
            if (s.tokens > 1) fence_async_proxy();  // appended records, before copies over them
            block_sync<kWarps>();
            // The next head, when it is one of the same sequence and its state is up to date.
            const int32_t next = v_head + 1;
            if (pass == 1 || index + 1 == count || next == call.v_heads || (next & 31) == 0) return;
            const int32_t next_base = __shfl_sync(kAll, bases, next & 31);
            const int32_t records = s.position - next_base;
            if (last_boundary_of(call, next, s.position) > next_base) return;
            if (records < 0 || records > call.capacity - (call.tokens - 1)) return;
            if (threadIdx.x == 0) {
              head.start_copies(s, next, next_base, records, format_of(call, next), barrier);
            }
            head.load_inputs(sequence, next, 0, &raw);
            decay = head.load_decay(s, next, next_base, records);
            ahead = true;
          };
          head.token(sequence, v_head, t, n + t, s, format, &decay, !last_token, &raw, wait, early);
        }
      } else if (copies) {
        barrier_wait(barrier, parity);
      }
      if (copies) parity ^= 1u;
      const float zeros[Head<kVector, kWarps>::kCount] = {};
      for (int32_t t = done; t < call.tokens; ++t) {
        store_values(const_cast<char*>(row_of(call.output, sequence, t, v_head)), call.output.type,
                     head.place, zeros);
      }
      if (!computes) block_sync<kWarps>();  // shared memory may be overwritten
    }
    block_sync<kWarps>();
  }
}

template <bool kVector, int kWarps>
cudaError_t launch(const Call128& call, int32_t blocks, bool overlaps, cudaStream_t stream) {
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0);
  const auto kernel = decode_kernel<kVector, kWarps>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32 * kWarps);
  config.dynamicSmemBytes = static_cast<size_t>(plan.bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace

int32_t decode_128_shared_bytes(const Call128& call, bool vector) {
  return plan_of(call.boundary_bytes, call.capacity, vector ? call.decay_bytes : 0).bytes;
}

cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t warps, int32_t blocks,
                              bool overlaps, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  // The bitmap of deferred heads bounds a block's share.
  const int64_t least = (total + 32 * kDeferredWords - 1) / (32 * kDeferredWords);
  const int32_t grid = static_cast<int32_t>(std::max(std::min<int64_t>(blocks, total), least));
  if (vector) {
    if (warps == 1) return launch<true, 1>(call, grid, overlaps, stream);
    if (warps == 2) return launch<true, 2>(call, grid, overlaps, stream);
    return launch<true, 4>(call, grid, overlaps, stream);
  }
  if (warps == 1) return launch<false, 1>(call, grid, overlaps, stream);
  if (warps == 2) return launch<false, 2>(call, grid, overlaps, stream);
  return launch<false, 4>(call, grid, overlaps, stream);
}

}  // namespace leapquant::cuda
