// SPDX-License-Identifier: Apache-2.0
//
// One head of one sequence at work: its copies, its inputs, one token after another. Which heads a
// block takes, and when, is the kernel's business.
#pragma once

#include "cuda/decode_reads_128.cuh"

namespace leapquant::cuda::decoding_128 {

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

}  // namespace leapquant::cuda::decoding_128
