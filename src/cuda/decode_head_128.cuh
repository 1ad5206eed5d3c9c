// SPDX-License-Identifier: Apache-2.0
//
// One head of one sequence at work, one token after another. Which heads a block takes, and when,
// is the kernel's business.
#pragma once

#include <type_traits>

#include "cuda/decode_head_rows_128.cuh"

namespace leapquant::cuda::decoding_128 {

// One head of one sequence at work. Of a pair of warps one reads the residual's codes, the other
// records and compensators; both finish the values, 128 / kPairs of them, that the pair owns. Every
// number is computed in the same order whatever the pairs. kPlain: the common call; only addresses
// and conversions know, not the arithmetic.
template <bool kVector, int kPairs, bool kPlain, bool kMany>
struct Head : HeadRows<kVector, kPairs, kPlain, kMany> {
  using Rows = HeadRows<kVector, kPairs, kPlain, kMany>;
  using Copies = typename Rows::Copies;
  using Products = typename Copies::Products;
  using Copies::at;
  using Copies::call;
  using Copies::corrections_at;
  using Copies::decay_type;
  using Copies::decays_at;
  using Copies::kAllParts;
  using Copies::kCodes;
  using Copies::kCount;
  using Copies::keys_at;
  using Copies::kInputs;
  using Copies::kInputsByLanes;
  using Copies::kKeys;
  using Copies::kNext;
  using Copies::kPooled;
  using Copies::kRecords;
  using Copies::kRows;
  using Copies::kState;
  using Copies::kStreams;
  using Copies::load_values;
  using Copies::place;
  using Copies::read_inputs;
  using Copies::reads_codes;
  using Copies::ring_after;
  using Copies::shared;
  using Copies::start_late_codes;
  using Copies::store_correction;
  using Copies::store_decays;
  using Copies::type_of;
  using Copies::wait_for_codes;
  using Copies::wait_for_inputs;
  using Copies::wait_for_keys;
  using Copies::wait_for_late_codes;
  using Copies::wait_for_rows;
  using Copies::widen_values;
  using Products::factors;
  using Products::lane;
  using Products::limbs;
  using Products::pair;
  using Products::plan;
  using Products::row_sums;
  using Products::scratch;
  using Products::units;
  using Products::weights;
  using Rows::kCodeKey;
  using Rows::kCodeQuery;
  using Rows::kDecay;
  using Rows::kKeyNorm;
  using Rows::kLow;
  using Rows::kOwn;
  using Rows::kOwnKey;
  using Rows::kOwnQuery;
  using Rows::kQueryNorm;
  using Rows::kRowKey;
  using Rows::kRowQuery;
  using Rows::multiply;
  using Rows::sum_rows;
  using Rows::tiles_of;
  using Rows::weigh_records;
  using Rows::weigh_rows;
  using Rows::write_factors;
  using Rows::write_scales;
  using typename Copies::Part;
  using typename Copies::Pointers;
  using typename Copies::Raw;

  __device__ __forceinline__ void pair_sync() const {
    if constexpr (kPooled) {
      __syncwarp();  // lane 0 starts copies: a warp in two parts would come twice
      sync_threads(1 + static_cast<int32_t>(threadIdx.y), 64);
    } else if constexpr (kPairs == 1) {
      __syncthreads();
    } else {
      sync_threads(1 + pair, 64);
    }
  }
  __device__ __forceinline__ uint32_t sums_of_codes() const {
    return shared_address(scratch + plan.codes - plan.limbs);
  }

  // Log decays of the token: scalar in x.
  __device__ __forceinline__ float4 gates(const Raw& raw, int32_t v_head) const {
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (kVector) {
      g = widen_raw(raw.g, decay_type(call.log_decay));
      if (!kPlain && call.gate != LEAPQUANT_GATE_READY) {
        const int32_t bias = v_head * 128 + 4 * lane;
        g.x = gate_of(call, g.x, v_head, bias);
        g.y = gate_of(call, g.y, v_head, bias + 1);
        g.z = gate_of(call, g.z, v_head, bias + 2);
        g.w = gate_of(call, g.w, v_head, bias + 3);
      }
    } else if (call.log_decay.data != nullptr) {
      g.x = widen_one(raw.g.x, decay_type(call.log_decay));
      if (!kPlain) g.x = gate_of(call, g.x, v_head, v_head);
    }
    return g;
  }

  // Smoothing factors of a lane's keys; the format has them.
  __device__ __forceinline__ float4 smoothing_of(const HeadFormat128& format) const {
    if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
      return *reinterpret_cast<const float4*>(shared + format.smoothing_at + 16 * lane);
    }
    const uint32_t word =
        *reinterpret_cast<const uint32_t*>(shared + format.smoothing_at + 4 * lane);
    return make_float4(log8_value(word & 255u), log8_value((word >> 8) & 255u),
                       log8_value((word >> 16) & 255u), log8_value(word >> 24));
  }

  // The part of the pair's first warp: both read vectors as fixed-point operands against the codes,
  // the smoothing with them. back: units of the vectors. Returns what codes with an offset or of
  // half-integers add.
  __device__ __forceinline__ int32_t prepare_codes(float4 rk, float4 rq, float2 back,
                                                   const HeadFormat128& format,
                                                   uint32_t (&b)[8]) const {
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) {
      const float4 c = smoothing_of(format);
      rk = multiply(rk, c);
      rq = multiply(rq, c);
    }
    uint32_t* planes = reinterpret_cast<uint32_t*>(scratch + plan.codes - plan.limbs);
    const float unit_k = write_planes(rk, 0, planes, lane);
    const float unit_q = write_planes(rq, 1, planes, lane);
    const bool half_levels = format.half_levels != 0;
    if (lane == 0) {
      const float times = half_levels ? 0.5f : 1.0f;
      units()[kCodeKey] = unit_k * times * back.x;
      units()[kCodeQuery] = unit_q * times * back.y;
    }
    __syncwarp();
    load_planes(planes, lane, b);
    const int32_t times = half_levels ? 2 : 1;
    int32_t shift = 0;
    if (format.bits != 8 || half_levels) {
      const int32_t offset = format.bits == 8 ? 0 : format.bits == 6 ? -32 : -8;
      shift = (times * offset + (half_levels ? 1 : 0)) * sum_of_digits(b);
    }
    __syncwarp();  // the planes are read: sums take their place
    return shift;
  }
  // Sums of the codes of values 32 first .. 32 last - 1, kTogether blocks of 32 at once. payload:
  // where the first of all lie.
  template <int kTogether>
  __device__ __forceinline__ void read_blocks(uint32_t payload, int32_t first, int32_t last,
                                              const uint32_t (&b)[8], int32_t shift,
                                              const HeadFormat128& format) const {
    payload += 16 * lane;
    const uint32_t sums = sums_of_codes() + 4 * ((lane & 3) * plan.words + (lane >> 2));
    const bool half_levels = format.half_levels != 0;
    // Short code, which is fetched for each head, but more than one chain of products at a time.
    const auto read = [&]<int kBits, bool kHalf>() {
#pragma unroll 1
      for (int32_t i = first; i < last; i += kTogether) {
        read_codes<kBits, kHalf, kTogether>(payload, i, b, shift,
                                            sums + 128 * (i - 4 / kPairs * pair), lane);
      }
    };
    if (format.bits == 8) {
      half_levels ? read.template operator()<8, true>() : read.template operator()<8, false>();
    } else if (format.bits == 6) {
      half_levels ? read.template operator()<6, true>() : read.template operator()<6, false>();
    } else {
      half_levels ? read.template operator()<4, true>() : read.template operator()<4, false>();
    }
  }

  // One token. n records lie in shared memory. *raw: its inputs, *decay: lane l's log decay of
  // record l (scalar decays); both only where inputs do not lie in shared memory. last: of the
  // head. ahead(part): shared memory of that part has been read for the last time.
  template <typename Ahead>
  __device__ __forceinline__ void token(const Pointers& rows, int32_t v_head, int32_t t, int32_t n,
                                        const HeadFormat128& format, float* decay, bool last,
                                        Raw* raw, uint32_t turn, uint32_t input_turn,
                                        Ahead ahead) const {
    stamp_turn(Stamp::kCodesTurn, Stamp::kRowsTurn, turn);
    if constexpr (kStreams) {
      wait_for_inputs(input_turn);
      read_inputs(t, n, raw, decay);
    }
    stamp_turn(Stamp::kCodesInputs, Stamp::kRowsInputs, turn);
    // Everything up to the last step is linear in k and q as given: lengths and the token's own
    // scalar decay come in at the end.
    const float4 q = widen_raw(raw->q, type_of(call.q));
    const float4 k = widen_raw(raw->k, type_of(call.k));
    const float4 g = gates(*raw, v_head);
    float4 rk = k;
    float4 rq = q;
    if constexpr (kVector) {
      const float4 a = make_float4(exp_fast(g.x), exp_fast(g.y), exp_fast(g.z), exp_fast(g.w));
      rk = multiply(k, a);
      rq = multiply(q, a);
    }
    if (t > 0) {  // the token before has read its sums and appended its record
      kStreams ? pair_sync() : __syncthreads();
    }
    float2 back = make_float2(1.0f, 1.0f);
    if (kVector || !reads_codes) {  // brought to the top of the range of FP16
      rk = multiply(rk, to_top(largest_of_warp(rk), &back.x));
      rq = multiply(rq, to_top(largest_of_warp(rq), &back.y));
    }
    if (reads_codes) {
      const float sum = sums_of_two(dot_four(k, k), dot_four(q, q), lane);
      if ((lane & 15) == 0) units()[lane == 0 ? kKeyNorm : kQueryNorm] = sum;
    } else {
      float2 top = back;
      float own;
      if constexpr (kVector) {
        const float4 k_top = multiply(k, to_top(largest_of_warp(k), &top.x));
        own = sum_of_warp(dot_four(k_top, multiply(q, to_top(largest_of_warp(q), &top.y))));
      } else {
        write_limbs<kLow>(rk, 0, limbs(), lane);
        write_limbs<kLow>(rq, 1, limbs(), lane);
        write_factors(*decay, n, format, factors(), units());
        own = sum_of_warp(dot_four(rk, rq));
      }
      if (lane == 0) {
        units()[kOwn] = own;
        units()[kOwnKey] = top.x;
        units()[kOwnQuery] = top.y;
        if (kVector) units()[kDecay] = 1.0f;
      }
    }
    if constexpr (kVector) {
      if (t == 0) wait_for_keys(turn);
      weigh_records(n, format.num_fp16, &rk, &rq);
      pair_sync();
      if constexpr (kStreams) {
        if constexpr (!kMany) {
          if (reads_codes) ahead(std::integral_constant<Part, kNext>());
        }
        ahead(std::integral_constant<Part, kKeys>());
      }
    }
    // Codes of a quarter of the values, which this warp finishes, come late: their place is a part
    // of the others'.
    const bool comes_late = kPooled && late_bytes(format.bits) != 0;
    const uint32_t payload = shared_address(shared);
    uint32_t b[8] = {};
    int32_t shift = 0;
    if (reads_codes) {
      stamp_of_codes(Stamp::kCodesPrepared, turn);
      if (t == 0) wait_for_codes(turn);
      stamp_of_codes(Stamp::kCodesThere, turn);
      shift = prepare_codes(rk, rq, back, format, b);
      constexpr int32_t kBlocks = 4 / kPairs;
      if (comes_late) {
        read_blocks<1>(payload, 1, 2, b, shift, format);
        __syncwarp();
        if (lane == 0) start_late_codes(rows, v_head, format);
        read_blocks<2>(payload, 2, 4, b, shift, format);
      } else {
        read_blocks<(kPairs == 1 ? 2 : 1)>(payload, kBlocks * pair, kBlocks * (pair + 1), b, shift,
                                           format);
      }
      stamp_of_codes(Stamp::kCodesRead, turn);
      if constexpr (kStreams) {
        if constexpr (!kVector && !kMany) ahead(std::integral_constant<Part, kNext>());
        if constexpr (!kPooled) ahead(std::integral_constant<Part, kCodes>());
      }
    } else {
      if (kPooled) wait_for_codes(turn);  // and what follows them
      if (t == 0) wait_for_rows(turn);
      stamp_of_rows(Stamp::kRowsThere, turn);
      float2 unit = make_float2(1.0f, 1.0f);
      if constexpr (kVector) {
        rk = multiply(rk, to_top(largest_of_warp(rk), &unit.x));
        rq = multiply(rq, to_top(largest_of_warp(rq), &unit.y));
        write_limbs<kLow>(rk, 0, limbs(), lane);
        write_limbs<kLow>(rq, 1, limbs(), lane);
        for (int32_t i = lane; i < tiles_of(format.num_fp16); i += 32) {
          factors()[i] = i < format.num_fp16 ? 1.0f : 0.0f;
        }
      }
      __syncwarp();
      if (format.num_int8 + format.num_int4 > 0) {
        write_scales(format, factors(), units());
        __syncwarp();
      }
      weigh_rows(n, unit, back, format);
      stamp_of_rows(Stamp::kRowsWeighed, turn);
      if constexpr (kPairs == 2) sum_rows(n, format, 8 * pair + (lane >> 2));
    }
    pair_sync();
    stamp_turn(Stamp::kCodesMet, Stamp::kRowsMet, turn);
    if constexpr (kStreams) {
      // Both have read them.
      if (!kInputsByLanes || !reads_codes) ahead(std::integral_constant<Part, kInputs>());
    }
    if constexpr (kPairs == 1) {  // each warp for the values that it finishes
      sum_rows(n, format, (reads_codes ? 0 : 8) + (lane >> 2));
      __syncwarp();
    }
    stamp_turn(Stamp::kCodesSummed, Stamp::kRowsSummed, turn);
    const auto late = [&] {
      if constexpr (kPooled) {
        wait_for_late_codes(turn);
        read_blocks<1>(payload + static_cast<uint32_t>(late_bytes(8)), 0, 1, b, shift, format);
        __syncwarp();
        ahead(std::integral_constant<Part, kState>());
      }
    };
    const bool reads_late = comes_late && reads_codes;
    finish(rows, v_head, t, n, format, decay, !last, *raw, k, g, reads_late, late, [&] {
      if constexpr (kStreams) {
        pair_sync();
        stamp_turn(Stamp::kCodesLeft, Stamp::kRowsLeft, turn);
        if constexpr (kPooled) {
          if (reads_codes && !comes_late) ahead(std::integral_constant<Part, kState>());
          if (!reads_codes) ahead(std::integral_constant<Part, kRecords>());
        } else if (!reads_codes) {
          ahead(std::integral_constant<Part, kRows>());
        }
      } else if (last) {
        ahead(std::integral_constant<Part, kAllParts>());
      }
    });
    stamp_turn(Stamp::kCodesDone, Stamp::kRowsDone, turn);
  }

  // Stamps of a block's turns but its first ones, by the first lane of either warp, and of both.
  static constexpr uint32_t kUnstamped = 4;
  __device__ __forceinline__ void stamp_by(bool mine, Stamp what, uint32_t turn) const {
    if (!mine || turn < kUnstamped) return;
    stamp(call, what, static_cast<int32_t>(turn - kUnstamped), threadIdx.x & ~31u);
  }
  __device__ __forceinline__ void stamp_of_codes(Stamp what, uint32_t turn) const {
    stamp_by(reads_codes, what, turn);
  }
  __device__ __forceinline__ void stamp_of_rows(Stamp what, uint32_t turn) const {
    stamp_by(!reads_codes, what, turn);
  }
  __device__ __forceinline__ void stamp_turn(Stamp codes, Stamp rows, uint32_t turn) const {
    stamp_of_codes(codes, turn);
    stamp_of_rows(rows, turn);
  }

  // Steps of the residual's codes, a lane's values. scales: the value scales.
  __device__ __forceinline__ void read_steps(const char* scales, const HeadFormat128& format,
                                             float (&step)[kCount]) const {
    if (format.fp16_scale) {
      if constexpr (kCount == 2) {
        const __half2 both = reinterpret_cast<const __half2*>(scales)[place];
        step[0] = __low2float(both), step[1] = __high2float(both);
      } else {
        step[0] = half_at(scales, place);
      }
    } else {
      load_values(reinterpret_cast<const float*>(scales) + kCount * place, step);
    }
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) step[i] *= format.inverse_q;
  }

  // What the sums of one token are multiplied by, from what the warps told each other (`units`).
  struct Factors {
    float key_length, own, code_k, code_q, row_k, row_q;
  };
  __device__ __forceinline__ Factors factors_of(float4 norms, float4 of_rows, float2 of_own,
                                                float log_decay) const {
    Factors f;
    const float ks = call.l2norm != 0 ? rsqrtf(norms.x + call.l2norm_eps) : 1.0f;
    const float qs = (call.l2norm != 0 ? rsqrtf(norms.y + call.l2norm_eps) : 1.0f) * call.q_scale;
    f.key_length = ks;
    f.own = of_rows.x * (of_own.x * ks) * (of_own.y * qs);
    const float a = kVector ? 1.0f : exp_fast(log_decay);
    const float full_k = ks * a;
    const float full_q = qs * a;
    f.code_k = norms.z * of_rows.w * full_k;
    f.code_q = norms.w * of_rows.w * full_q;
    f.row_k = of_rows.y * full_k;
    f.row_q = of_rows.z * full_q;
    return f;
  }
  // Correction and output of one value.
  __device__ __forceinline__ void correct(const Factors& of, float codes_k, float codes_q,
                                          float rows_k, float rows_q, float step, float beta,
                                          float v, float* u, float* o) const {
    const float read = fmaf(codes_k * of.code_k, step, rows_k * of.row_k);
    const float output = fmaf(codes_q * of.code_q, step, rows_q * of.row_q);
    *u = beta * (call.delta_rule ? v - read : v);
    *o = fmaf(of.own, *u, output);
  }

  // Residual and rows together: correction, output, record. early(): after it the other warp may go
  // on to the next head. late(), where `reads_late`: the sums of codes are complete only then.
  template <typename Late, typename Early>
  __device__ __forceinline__ void finish(const Pointers& inputs, int32_t v_head, int32_t t,
                                         int32_t n, const HeadFormat128& format, float* decay,
                                         bool append, const Raw& raw, float4 k, float4 g,
                                         bool reads_late, Late late, Early early) const {
    float v[kCount];
    widen_values(raw, v);
    float beta = 1.0f;
    if (call.beta.data != nullptr) {
      beta = widen_one(raw.beta, scalar_type<kPlain>(call.beta));
      if (!kPlain) beta = beta_of(call, beta);
    }
    float codes_k[kCount], codes_q[kCount], rows_k[kCount], rows_q[kCount], step[kCount];
    const auto load_sums = [&] {
      const int32_t* codes = reinterpret_cast<const int32_t*>(scratch + plan.codes - plan.limbs) +
                             kCount * (place - 64 * pair);
      int32_t part[4][kCount];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) load_values(codes + i * plan.words, part[i]);
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        codes_k[i] = fmaf(static_cast<float>(part[1][i]), 65536.0f, static_cast<float>(part[0][i]));
        codes_q[i] = fmaf(static_cast<float>(part[3][i]), 65536.0f, static_cast<float>(part[2][i]));
      }
    };
    if (!reads_late) load_sums();
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const float2 rows = Products::sums_of(kCount * place + i);
      rows_k[i] = rows.x, rows_q[i] = rows.y;
    }
    read_steps(shared + format.value_scale, format, step);
    const float4 norms = *reinterpret_cast<const float4*>(units());
    const float4 of_rows = *reinterpret_cast<const float4*>(units() + 4);
    const float2 of_own = *reinterpret_cast<const float2*>(units() + 8);
    early();
    if (reads_late) {
      late();
      load_sums();
      __syncwarp();  // before the next head's planes take their place
    }
    const Factors of = factors_of(norms, of_rows, of_own, g.x);
    const float ks = of.key_length;
    float u[kCount], o[kCount];
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      correct(of, codes_k[i], codes_q[i], rows_k[i], rows_q[i], step[i], beta, v[i], &u[i], &o[i]);
    }
    store_values<kCount>(const_cast<char*>(at(inputs.output, call.output, t, v_head)),
                         type_of(call.output), place, o);

    // The record.
    bool saturated = false;
    const uint32_t u_bits =
        to_halves_saturated(u[0], kCount == 2 ? u[kCount - 1] : 0.0f, &saturated);
    const uint32_t ring = static_cast<uint32_t>(ring_after(inputs.ring, t));
    const bool keeps_key = kPairs == 1 ? reads_codes : threadIdx.x < 32;
    uint2 k_bits = {};
    store_correction(inputs.window + (corrections_at(v_head) + 256u * ring), u_bits);
    if (keeps_key) {
      k_bits.x = to_halves_saturated(k.x * ks, k.y * ks, &saturated);
      k_bits.y = to_halves_saturated(k.z * ks, k.w * ks, &saturated);
      *reinterpret_cast<uint2*>(inputs.window + (keys_at(v_head) + 256u * ring +
                                                 8u * static_cast<uint32_t>(lane))) = k_bits;
      if constexpr (kVector) {
        store_decays(inputs.window + (decays_at(v_head) +
                                      ring * 128u * static_cast<uint32_t>(call.decay_bytes)),
                     g);
      } else if (call.stored_decay != 0 && lane == 0) {
        *reinterpret_cast<float*>(inputs.window + (decays_at(v_head) + 4u * ring)) = g.x;
      }
    }
    if (saturated && call.health != nullptr) {
      atomicOr(&call.health[int64_t{inputs.slot} * call.v_heads + v_head].flags,
               uint32_t{LEAPQUANT_HEALTH_RECORD_SATURATED});
    }
    if (append) {
      store_correction(shared + plan.corrections + n * 256, u_bits);
      if (keeps_key) {
        *reinterpret_cast<uint2*>(shared + plan.keys + n * 256 + 8 * lane) = k_bits;
        if constexpr (kVector) {
          store_decays(shared + plan.decays + n * 128 * call.decay_bytes, g);
        }
      }
      if (kStreams) fence_async_shared();  // before the copies that write there next
      if (lane == n) *decay = g.x;
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
