// SPDX-License-Identifier: Apache-2.0
//
// One head of one sequence at work: its copies, its inputs, one token after another. Which heads a
// block takes, and when, is the kernel's business.
#pragma once

#include "cuda/decode_rows_128.cuh"

namespace leapquant::cuda::decoding_128 {

// One head of one sequence at work. kPlain: the common call, one token; only addresses and
// conversions know, not the arithmetic.
template <bool kVector, int kWarps, bool kPlain>
struct Head : RowProducts<kWarps> {
  using Products = RowProducts<kWarps>;
  using Products::kTiles;
  using Products::kValues;
  using Products::lane;
  using Products::plan;
  using Products::shared;
  using Products::units;
  using Products::warp;
  using Products::weights;
  static constexpr int32_t kCount = 4 / kWarps;  // values a lane owns at the end
  const Call128& call;
  int32_t place;  // of the lane's values: value = kCount * place

  __device__ __forceinline__ static int32_t decay_type(const Rows128& rows) {
    return kVector ? rows.type : scalar_type<kPlain>(rows);
  }
  __device__ __forceinline__ static int32_t type_of(const Rows128& rows) {
    return kPlain ? int32_t{LEAPQUANT_BF16} : rows.type;
  }
  __device__ __forceinline__ const HeadFormat128& format_at(int32_t v_head) const {
    return kPlain ? call.classes[0] : format_of(call, v_head);
  }
  __device__ __forceinline__ static int32_t tiles_of(int32_t count) { return (count + 15) & ~15; }

  struct Pointers {  // a sequence's rows, records and boundary states
    const char *q, *k, *v, *g, *beta;
    char *output, *window, *state;
  };
  __device__ __forceinline__ Pointers pointers_of(int32_t sequence, const Sequence128& s) const {
    Pointers p;
    p.q = row_of(call.q, sequence, 0, 0);
    p.k = row_of(call.k, sequence, 0, 0);
    p.v = row_of(call.v, sequence, 0, 0);
    p.g = row_of(call.log_decay, sequence, 0, 0);
    p.beta = row_of(call.beta, sequence, 0, 0);
    p.output = const_cast<char*>(row_of(call.output, sequence, 0, 0));
    p.window = call.windows + s.window_slot * call.window_stride;
    p.state = call.states + s.slot * call.state_stride;
    return p;
  }
  // A row of a sequence. kPlain: the strides fit 32 bits, and so do places within a slot always.
  __device__ __forceinline__ static const char* at(const char* from, const Rows128& rows, int32_t t,
                                                   int32_t head) {
    if constexpr (kPlain) {
      return from +
             uint64_t{static_cast<uint32_t>(head)} * static_cast<uint32_t>(rows.head_stride) +
             uint64_t{static_cast<uint32_t>(t)} * static_cast<uint32_t>(rows.token_stride);
    }
    return from + t * rows.token_stride + head * rows.head_stride;
  }
  __device__ __forceinline__ static uint32_t within(int32_t head, int64_t stride) {
    return static_cast<uint32_t>(head) * static_cast<uint32_t>(stride);
  }
  __device__ __forceinline__ char* boundary_at(const Pointers& inputs, int32_t v_head) const {
    return inputs.state + (kPlain || call.num_classes == 1
                               ? within(v_head, call.classes[0].bytes)
                               : static_cast<uint32_t>(call.head_offset[v_head]) * 16u);
  }
  __device__ __forceinline__ uint32_t keys_at(int32_t v_head) const {
    return within(quotient<kPlain>(v_head, call.group), call.key_head_stride);
  }
  __device__ __forceinline__ uint32_t corrections_at(int32_t v_head) const {
    return static_cast<uint32_t>(call.corrections) + within(v_head, call.correction_head_stride);
  }
  __device__ __forceinline__ uint32_t decays_at(int32_t v_head) const {
    return static_cast<uint32_t>(call.log_decays) + within(v_head, call.decay_head_stride);
  }

  // The inputs of one token as they lie. Loaded a head ahead where the next head is known.
  struct Raw {
    uint4 q, k, v, g;
    uint32_t v_one[kCount];
    uint32_t beta;
  };
  __device__ __forceinline__ void load_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                              Raw* raw) const {
    const int32_t k_head = quotient<kPlain>(v_head, call.group);
    raw->q = load_raw(at(rows.q, call.q, t, k_head), type_of(call.q), lane);
    raw->k = load_raw(at(rows.k, call.k, t, k_head), type_of(call.k), lane);
    const char* v_row = at(rows.v, call.v, t, v_head);
    if constexpr (kCount == 4) {
      raw->v = load_raw(v_row, type_of(call.v), place);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        raw->v_one[i] = load_raw_one(v_row, type_of(call.v), kCount * place + i);
      }
    }
    if (call.beta.data != nullptr) {
      raw->beta =
          load_raw_one(at(rows.beta, call.beta, t, 0), scalar_type<kPlain>(call.beta), v_head);
    }
    if constexpr (kVector) {
      raw->g = load_raw(at(rows.g, call.log_decay, t, v_head), decay_type(call.log_decay), lane);
    } else if (call.log_decay.data != nullptr) {
      raw->g.x = load_raw_one(at(rows.g, call.log_decay, t, 0), decay_type(call.log_decay), v_head);
    }
  }
  // Log decay of record `lane` of the window (scalar decays).
  __device__ __forceinline__ float load_decay(const Pointers& inputs, int32_t v_head, int32_t base,
                                              int32_t n) const {
    if (kVector || call.stored_decay == 0) return 0.0f;
    return load_float_if(lane < n, inputs.window + decays_at(v_head) +
                                       4 * modulo<kPlain>(base + lane, call.ring_tokens));
  }

  // One token, whose inputs *raw holds. n records lie in shared memory, *decay is lane l's log
  // decay of record l (scalar decays). wait: until the copies are there. early: shared memory has
  // been read for the last time, unless the token is appended to it.
  template <typename Wait, typename Early>
  __device__ __forceinline__ void token(const Pointers& inputs, int32_t v_head, int32_t t,
                                        int32_t n, const Sequence128& s,
                                        const HeadFormat128& format, float* decay, bool append,
                                        Raw* raw, Wait wait, Early early) const {
    float4 q = widen_raw(raw->q, type_of(call.q));
    float4 k = widen_raw(raw->k, type_of(call.k));

    if (call.l2norm != 0) {
      const float qs = rsqrtf(sum_of_warp(dot_four(q, q)) + call.l2norm_eps);
      const float ks = rsqrtf(sum_of_warp(dot_four(k, k)) + call.l2norm_eps);
      q = make_float4(q.x * qs, q.y * qs, q.z * qs, q.w * qs);
      k = make_float4(k.x * ks, k.y * ks, k.z * ks, k.w * ks);
    }
    q = make_float4(q.x * call.q_scale, q.y * call.q_scale, q.z * call.q_scale, q.w * call.q_scale);
    const float own = sum_of_warp(dot_four(k, q));
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // scalar: x only
    if constexpr (kVector) {
      g = widen_raw(raw->g, decay_type(call.log_decay));
      if (!kPlain && call.gate != LEAPQUANT_GATE_READY) {
        const int32_t bias = v_head * 128 + 4 * lane;
        g.x = gate_of(call, g.x, v_head, bias);
        g.y = gate_of(call, g.y, v_head, bias + 1);
        g.z = gate_of(call, g.z, v_head, bias + 2);
        g.w = gate_of(call, g.w, v_head, bias + 3);
      }
    } else if (call.log_decay.data != nullptr) {
      g.x = widen_one(raw->g.x, decay_type(call.log_decay));
      if (!kPlain) g.x = gate_of(call, g.x, v_head, v_head);
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

    // Which warp prepares which read vector.
    const bool has_k = warp == 0;
    const bool has_q = kWarps == 1 || warp == 1;
    const auto put_limbs = [&] {
      char* limbs = shared + plan.limbs;
      if (has_k) {
        const float unit = write_limbs(rk, 0, limbs, lane);
        if (lane == 0) units()[0] = unit;
      }
      if (has_q) {
        const float unit = write_limbs(rq, 1, limbs, lane);
        if (lane == 0) units()[1] = unit;
      }
    };
    const int32_t rows = plan.record_rows + tiles_of(format.num_fp16) + tiles_of(format.num_int8) +
                         tiles_of(format.num_int4);
    if (t > 0) block_sync<kWarps>();  // the token before has read its sums
    for (int32_t i = 32 * warp + lane; i < rows; i += 32 * kWarps) {
      weights()[i] = make_float2(0.0f, 0.0f);
    }
    if constexpr (!kVector) put_limbs();
    block_sync<kWarps>();

    wait();

    const char* keys = shared + plan.keys;
    if constexpr (kVector) {
      // Records, newest first: the decays since then weigh each channel of the key.
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      int32_t group = 0;
#pragma unroll 1
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
              key.x *= exp_fast(sum.x);
              key.y *= exp_fast(sum.y);
              key.z *= exp_fast(sum.z);
              key.w *= exp_fast(sum.w);
              p[2 * r] = dot_four(key, rk);
              p[2 * r + 1] = dot_four(key, rq);
            }
            const char* row = shared + plan.decays + record * 128 * call.decay_bytes;
            const float4 step =
                call.decay_bytes == 4
                    ? *reinterpret_cast<const float4*>(row + 16 * lane)
                    : widen(*reinterpret_cast<const uint2*>(row + 8 * lane), LEAPQUANT_FP16);
            sum.x += step.x, sum.y += step.y, sum.z += step.z, sum.w += step.w;
          }
        }
        if (mine) Products::put_weights(p, n - 1 - first, n - first);
      }
      const float4 d =
          make_float4(exp_fast(sum.x), exp_fast(sum.y), exp_fast(sum.z), exp_fast(sum.w));
      rk = make_float4(rk.x * d.x, rk.y * d.y, rk.z * d.z, rk.w * d.w);
      rq = make_float4(rq.x * d.x, rq.y * d.y, rq.z * d.z, rq.w * d.w);
      put_limbs();
      block_sync<kWarps>();
    }

    // Dot products by the matrix units, eight rows at a time: records, compensators.
    {
      int32_t tile = 0;
      const auto mine = [&] { return kWarps == 1 || tile++ % kWarps == warp; };
      if constexpr (!kVector) {
#pragma unroll 1
        for (int32_t first = 0; first < n; first += 8) {
          const float even = __shfl_sync(kAll, after, (first + 2 * (lane & 3)) & 31);
          const float odd = __shfl_sync(kAll, after, (first + 2 * (lane & 3) + 1) & 31);
          if (mine()) {
            Products::template key_dots<RowKind::kFp16>(
                keys + first * 256, n - first, first,
                [&](int32_t r) { return (r & 1) != 0 ? odd : even; });
          }
        }
      }
      int32_t to = plan.record_rows;
#pragma unroll 1
      for (int32_t first = 0; first < format.num_fp16; first += 8) {
        if (mine()) {
          Products::template key_dots<RowKind::kFp16>(shared + format.fp16_keys + first * 256,
                                                      format.num_fp16 - first, to + first,
                                                      [&](int32_t) { return decay_all; });
        }
      }
      to += tiles_of(format.num_fp16);
      const auto scale_of = [&](int32_t c) {
        return half_at(shared + format.key_scales, c) * half_at(shared + format.value_scales, c) *
               decay_all;
      };
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int8; first += 8) {
        if (mine()) {
          Products::template key_dots<RowKind::kInt8>(
              shared + format.int8_keys + first * 128, format.num_int8 - first, to + first,
              [&](int32_t r) { return scale_of(first + r); });
        }
      }
      to += tiles_of(format.num_int8);
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int4; first += 8) {
        if (mine()) {
          Products::template key_dots<RowKind::kInt4>(
              shared + format.int4_keys + first * 64, format.num_int4 - first, to + first,
              [&](int32_t r) { return scale_of(format.num_int8 + first + r); });
        }
      }
    }

    // Read vectors against the residual: smoothing into fixed point.
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
    if (has_k) {
      const float unit = write_planes(make_float4(rk.x * c.x, rk.y * c.y, rk.z * c.z, rk.w * c.w),
                                      0, planes, lane);
      if (lane == 0) units()[2] = unit;
    }
    if (has_q) {
      const float unit = write_planes(make_float4(rq.x * c.x, rq.y * c.y, rq.z * c.z, rq.w * c.w),
                                      1, planes, lane);
      if (lane == 0) units()[3] = unit;
    }
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

    // Value sides of records and compensators by the matrix units.
    float* sums = reinterpret_cast<float*>(shared + plan.sums);
    {
      uint32_t most_k = 0;
      uint32_t most_q = 0;
      for (int32_t i = lane; i < rows; i += 32) {
        const float2 w = weights()[i];
        most_k = max(most_k, __float_as_uint(fabsf(w.x)));
        most_q = max(most_q, __float_as_uint(fabsf(w.y)));
      }
      float back_k, back_q;
      const float scale_k = to_top(__reduce_max_sync(kAll, most_k), &back_k);
      const float scale_q = to_top(__reduce_max_sync(kAll, most_q), &back_q);
      const float scale = (lane & 8) != 0 ? scale_q : scale_k;  // of the limb in column g
      float acc[kTiles][4] = {};
      for (int32_t first = 0; first < n; first += 16) {
        Products::template value_sums<RowKind::kFp16>(shared + plan.corrections + first * 256,
                                                      n - first, first, scale, acc);
      }
      int32_t from = plan.record_rows;
      for (int32_t first = 0; first < format.num_fp16; first += 16, from += 16) {
        Products::template value_sums<RowKind::kFp16>(shared + format.fp16_values + first * 256,
                                                      format.num_fp16 - first, from, scale, acc);
      }
      for (int32_t first = 0; first < format.num_int8; first += 16, from += 16) {
        Products::template value_sums<RowKind::kInt8>(shared + format.int8_values + first * 128,
                                                      format.num_int8 - first, from, scale, acc);
      }
      for (int32_t first = 0; first < format.num_int4; first += 16, from += 16) {
        Products::template value_sums<RowKind::kInt4>(shared + format.int4_values + first * 64,
                                                      format.num_int4 - first, from, scale, acc);
      }
      const int32_t t = lane & 3;
      if (t < 2) {
        const float back = t == 0 ? back_k : back_q;
        float* to = sums + 128 * t + warp * kValues + (lane >> 2) * (kValues / 8);
#pragma unroll
        for (int32_t j = 0; j < kTiles; ++j) {
          to[j] = (acc[j][0] + acc[j][1]) * back;
          to[j + kTiles] = (acc[j][2] + acc[j][3]) * back;
        }
      }
    }
    __syncwarp();

    float v[kCount];
    if constexpr (kCount == 4) {
      const float4 x = widen_raw(raw->v, type_of(call.v));
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) v[i] = widen_one(raw->v_one[i], type_of(call.v));
    }
    float beta = 1.0f;
    if (call.beta.data != nullptr) {
      beta = widen_one(raw->beta, scalar_type<kPlain>(call.beta));
      if (!kPlain) beta = beta_of(call, beta);
    }

    // Residual, correction, output.
    float u[kCount], o[kCount];
    const float full_k = units()[2] * decay_all;
    const float full_q = units()[3] * decay_all;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const int32_t value = kCount * place + i;
      const float scale = format.fp16_scale
                              ? half_at(shared + format.value_scale, value)
                              : reinterpret_cast<const float*>(shared + format.value_scale)[value];
      const float step = scale * format.inverse_q;
      u[i] = fmaf(reads[value] * full_k, step, sums[value]);
      o[i] = fmaf(reads[128 + value] * full_q, step, sums[128 + value]);
    }
    early();
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      u[i] = beta * (call.delta_rule ? v[i] - u[i] : v[i]);
      o[i] = fmaf(own, u[i], o[i]);
    }
    store_values<kCount>(const_cast<char*>(at(inputs.output, call.output, t, v_head)),
                         type_of(call.output), place, o);

    // The record.
    bool saturated = false;
    __half u_half[kCount];
    to_halves_saturated(u, u_half, &saturated);
    const int32_t ring = modulo<kPlain>(s.position + t, call.ring_tokens);
    char* u_row = inputs.window + corrections_at(v_head) + ring * 256;
    char* k_row = inputs.window + keys_at(v_head) + ring * 256;
    char* g_row = inputs.window + decays_at(v_head);
    uint2 k_bits = {};
    if (warp == 0) {
      __half k_half[4];
      const float k_in[4] = {k.x, k.y, k.z, k.w};
      to_halves_saturated(k_in, k_half, &saturated);
      k_bits.x = __half_as_ushort(k_half[0]) | static_cast<uint32_t>(__half_as_ushort(k_half[1]))
                                                   << 16;
      k_bits.y = __half_as_ushort(k_half[2]) | static_cast<uint32_t>(__half_as_ushort(k_half[3]))
                                                   << 16;
    }
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
  __device__ __forceinline__ void start_copies(const Pointers& inputs, int32_t v_head, int32_t base,
                                               int32_t n, const HeadFormat128& format,
                                               uint32_t barrier) const {
    const uint32_t at = shared_address(shared);
    const uint32_t decay_row = kVector ? 128u * static_cast<uint32_t>(call.decay_bytes) : 0u;
    const uint32_t total =
        static_cast<uint32_t>(format.bytes) + static_cast<uint32_t>(n) * (512u + decay_row);
    barrier_expect(barrier, total);
    bulk_copy(at, boundary_at(inputs, v_head), static_cast<uint32_t>(format.bytes), barrier);
    if (n == 0) return;
    const int32_t ring = modulo<kPlain>(base, call.ring_tokens);
    const int32_t head_part = min(n, call.ring_tokens - ring);
    const char* keys = inputs.window + keys_at(v_head);
    const char* corrections = inputs.window + corrections_at(v_head);
    const char* decays = inputs.window + decays_at(v_head);
    bulk_copy(at + plan.keys, keys + ring * 256, head_part * 256, barrier);
    bulk_copy(at + plan.corrections, corrections + ring * 256, head_part * 256, barrier);
    if constexpr (kVector) {
      bulk_copy(at + plan.decays, decays + ring * decay_row, head_part * decay_row, barrier);
    }
    if (head_part == n) return;
    const int32_t done = head_part * 256;
    bulk_copy(at + plan.keys + done, keys, n * 256 - done, barrier);
    bulk_copy(at + plan.corrections + done, corrections, n * 256 - done, barrier);
    if constexpr (kVector) {
      bulk_copy(at + plan.decays + head_part * decay_row, decays, (n - head_part) * decay_row,
                barrier);
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
