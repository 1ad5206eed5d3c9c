// SPDX-License-Identifier: Apache-2.0
//
// One head of one sequence at work: its copies, its inputs, one token after another. Which heads a
// block takes, and when, is the kernel's business.
#pragma once

#include <type_traits>

#include "cuda/decode_rows_128.cuh"

namespace leapquant::cuda::decoding_128 {

// One head of one sequence at work. Of a pair of warps one reads the residual's codes, the other
// records and compensators; both finish the values, 128 / kPairs of them, that the pair owns. Every
// number is computed in the same order whatever the pairs. kPlain: the common call, one token; only
// addresses and conversions know, not the arithmetic.
template <bool kVector, int kPairs, bool kPlain, bool kMany>
struct Head : RowProducts<kPairs, kVector || !kPlain> {
  static constexpr bool kLow = kVector || !kPlain;  // else the vectors are BF16 as given
  using Products = RowProducts<kPairs, kLow>;
  using Products::factors;
  using Products::kChunks;
  using Products::lane;
  using Products::limbs;
  using Products::pair;
  using Products::plan;
  using Products::row_sums;
  using Products::scratch;
  using Products::units;
  using Products::weights;
  static constexpr int32_t kCount = 2 / kPairs;  // values a lane owns at the end
  // Everything of the next head is on its way as soon as this head has read what it takes the place
  // of; else, together, when all of it is read.
  static constexpr bool kStreams = kPlain && kPairs == 1;
  static constexpr int32_t kThreads = 64 * kPairs;
  const Call128& call;
  char* shared;
  bool reads_codes;  // the warp's part
  int32_t place;     // of the lane's values: value = kCount * place

  enum Part { kInputs, kCodes, kRows, kAllParts };  // of shared memory, by who reads them
  // What a pair's warps tell each other, in `units`.
  enum Unit {
    kKeyNorm,
    kQueryNorm,
    kCodeKey,
    kCodeQuery,
    kOwn,
    kRowKey,
    kRowQuery,
    kDecay,
    kOwnKey,
    kOwnQuery
  };

  __device__ __forceinline__ static float4 multiply(float4 x, float factor) {
    return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
  }
  __device__ __forceinline__ static float4 multiply(float4 x, float4 by) {
    return make_float4(x.x * by.x, x.y * by.y, x.z * by.z, x.w * by.w);
  }
  __device__ __forceinline__ void pair_sync() const {
    if constexpr (kPairs == 1) {
      __syncthreads();
    } else {
      sync_threads(1 + pair, 64);
    }
  }
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
  __device__ __forceinline__ uint32_t sums_of_codes() const {
    return shared_address(scratch + plan.codes - plan.limbs);
  }

  struct Pointers {  // a sequence's rows, records and boundary states
    const char *q, *k, *v, *g, *beta;
    char *output, *window, *state;
    int32_t ring;  // place of the position in the ring
    int32_t slot;
  };
  __device__ __forceinline__ void write_pointers(const Sequence128& s, Pointers* p) const {
    p->q = row_of(call.q, s.index, 0, 0);
    p->k = row_of(call.k, s.index, 0, 0);
    p->v = row_of(call.v, s.index, 0, 0);
    p->g = row_of(call.log_decay, s.index, 0, 0);
    p->beta = row_of(call.beta, s.index, 0, 0);
    p->output = const_cast<char*>(row_of(call.output, s.index, 0, 0));
    p->window = call.windows + s.window_slot * call.window_stride;
    p->state = call.states + s.slot * call.state_stride;
    p->ring = s.position % call.ring_tokens;
    p->slot = s.slot;
  }
  // Place in the ring `steps` tokens on (at most a ring away).
  __device__ __forceinline__ int32_t ring_after(int32_t ring, int32_t steps) const {
    const int32_t to = ring + steps;
    return to < 0 ? to + call.ring_tokens : to >= call.ring_tokens ? to - call.ring_tokens : to;
  }
  // A row of a sequence. kPlain: all rows of it within 32 bits.
  __device__ __forceinline__ static const char* at(const char* from, const Rows128& rows, int32_t t,
                                                   int32_t head, uint32_t more = 0) {
    if constexpr (kPlain) {
      return from +
             (within(head, rows.head_stride) + (kMany ? within(t, rows.token_stride) : 0u) + more);
    }
    return from + t * rows.token_stride + head * rows.head_stride + more;
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
    uint4 q, k, g;
    uint32_t v[kCount];
    uint32_t beta;
  };
  __device__ __forceinline__ void load_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                              Raw* raw) const {
    const int32_t k_head = quotient<kPlain>(v_head, call.group);
    if constexpr (kPlain) {
      const uint32_t key = 8u * static_cast<uint32_t>(lane);
      const uint32_t value = 2u * kCount * static_cast<uint32_t>(place);
      const uint2 q = __ldg(reinterpret_cast<const uint2*>(at(rows.q, call.q, t, k_head, key)));
      const uint2 k = __ldg(reinterpret_cast<const uint2*>(at(rows.k, call.k, t, k_head, key)));
      raw->q.x = q.x, raw->q.y = q.y;
      raw->k.x = k.x, raw->k.y = k.y;
      raw->v[0] = load_word_or_half(at(rows.v, call.v, t, v_head, value), kCount == 1);
    } else {
      raw->q = load_raw(at(rows.q, call.q, t, k_head), call.q.type, lane);
      raw->k = load_raw(at(rows.k, call.k, t, k_head), call.k.type, lane);
      const char* v_row = at(rows.v, call.v, t, v_head);
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        raw->v[i] = load_raw_one(v_row, call.v.type, kCount * place + i);
      }
    }
    if (call.beta.data != nullptr) {
      raw->beta = kPlain ? __ldg(reinterpret_cast<const uint32_t*>(
                               at(rows.beta, call.beta, t, 0, 4u * static_cast<uint32_t>(v_head))))
                         : load_raw_one(at(rows.beta, call.beta, t, 0), call.beta.type, v_head);
    }
    if constexpr (kVector) {
      raw->g = load_raw(at(rows.g, call.log_decay, t, v_head), decay_type(call.log_decay), lane);
    } else if (call.log_decay.data != nullptr) {
      raw->g.x = kPlain
                     ? __ldg(reinterpret_cast<const uint32_t*>(
                           at(rows.g, call.log_decay, t, 0, 4u * static_cast<uint32_t>(v_head))))
                     : load_raw_one(at(rows.g, call.log_decay, t, 0), call.log_decay.type, v_head);
    }
  }
  __device__ __forceinline__ void widen_values(const Raw& raw, float (&v)[kCount]) const {
    if constexpr (kPlain) {
      v[0] = __uint_as_float(raw.v[0] << 16);
      if constexpr (kCount == 2) v[1] = __uint_as_float(raw.v[0] & 0xffff0000u);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) v[i] = widen_one(raw.v[i], call.v.type);
    }
  }
  // Log decay of record `lane` of the n in the window (scalar decays).
  __device__ __forceinline__ float load_decay(const Pointers& inputs, int32_t v_head,
                                              int32_t n) const {
    if (kVector || call.stored_decay == 0) return 0.0f;
    const int32_t ring = ring_after(inputs.ring, lane - n);
    return load_float_if(lane < n, inputs.window + (decays_at(v_head) + 4u * ring));
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

  // Scalar decays: factors of compensators and records from lane l's log decay of record l: what
  // has decayed since. Zero past the last row, up to whole tiles at least.
  __device__ __forceinline__ void write_factors(float decay, int32_t n,
                                                const HeadFormat128& format) const {
    float after = __shfl_down_sync(kAll, decay, 1);  // sum over the records after record l
    if (lane >= n - 1) after = 0.0f;
#pragma unroll
    for (int32_t step = 1; step < 32; step <<= 1) {
      const float other = __shfl_down_sync(kAll, after, step);
      if (lane + step < 32) after += other;
    }
    const float whole = __shfl_sync(kAll, after + decay, 0);
    const float all = n > 0 ? exp_fast(whole) : 1.0f;
    after = lane < n ? exp_fast(after) : 0.0f;
    const int32_t count = format.num_fp16;
    if (lane < count) factors()[lane] = all;
    factors()[count + lane] = after;
    if (n > 16 && lane < 16) factors()[count + 32 + lane] = 0.0f;
    if (lane == 0) units()[kDecay] = all;
  }

  // Vector decays: weights of the records whose fours are this warp's, newest first, and rk and rq
  // as they meet the boundary state: the decays since then weigh each channel.
  __device__ __forceinline__ void weigh_records(int32_t n, int32_t to, float4* rk,
                                                float4* rq) const {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bool mine = reads_codes;
#pragma unroll 1
    for (int32_t first = 0; first < n; first += 4, mine = !mine) {
      float p[8];
#pragma unroll
      for (int32_t r = 0; r < 4; ++r) {
        p[2 * r] = p[2 * r + 1] = 0.0f;
        const int32_t record = n - 1 - first - r;
        if (record >= 0) {
          if (mine) {
            float4 key =
                widen(*reinterpret_cast<const uint2*>(shared + plan.keys + record * 256 + 8 * lane),
                      LEAPQUANT_FP16);
            key.x *= exp_fast(sum.x);
            key.y *= exp_fast(sum.y);
            key.z *= exp_fast(sum.z);
            key.w *= exp_fast(sum.w);
            p[2 * r] = dot_four(key, *rk);
            p[2 * r + 1] = dot_four(key, *rq);
          }
          const char* row = shared + plan.decays + record * 128 * call.decay_bytes;
          const float4 step =
              call.decay_bytes == 4
                  ? *reinterpret_cast<const float4*>(row + 16 * lane)
                  : widen(*reinterpret_cast<const uint2*>(row + 8 * lane), LEAPQUANT_FP16);
          sum.x += step.x, sum.y += step.y, sum.z += step.z, sum.w += step.w;
        }
      }
      if (mine) {
        const float all = sums_of_eight(p, lane);
        const int32_t record = n - 1 - first - (lane >> 2);
        if ((lane & 17) == 0 && record >= 0) {
          weights()[((lane >> 1) & 1) * plan.rows + to + record] = all;
        }
      }
    }
    const float4 d =
        make_float4(exp_fast(sum.x), exp_fast(sum.y), exp_fast(sum.z), exp_fast(sum.w));
    *rk = make_float4(rk->x * d.x, rk->y * d.y, rk->z * d.z, rk->w * d.w);
    *rq = make_float4(rq->x * d.x, rq->y * d.y, rq->z * d.z, rq->w * d.w);
  }

  // The part of the pair's first warp: both read vectors against the codes, the smoothing turned
  // into fixed point with them. back: units of the vectors.
  __device__ __forceinline__ void read_residual(float4 rk, float4 rq, float2 back,
                                                const HeadFormat128& format) const {
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) {
      float4 c;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        c = *reinterpret_cast<const float4*>(shared + format.smoothing_at + 16 * lane);
      } else {
        const uint32_t word =
            *reinterpret_cast<const uint32_t*>(shared + format.smoothing_at + 4 * lane);
        c.x = log8_value(word & 255u);
        c.y = log8_value((word >> 8) & 255u);
        c.z = log8_value((word >> 16) & 255u);
        c.w = log8_value(word >> 24);
      }
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
    uint32_t b[8];
    {
      const uint4* plane =
          reinterpret_cast<const uint4*>(planes + (lane >> 2) * kPlaneWords + (lane & 3) * 8);
      const uint4 low = plane[0];
      const uint4 high = plane[1];
      b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
      b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
    }
    const int32_t times = half_levels ? 2 : 1;
    int32_t shift = 0;
    if (format.bits != 8 || half_levels) {
      int32_t ones[4] = {};
#pragma unroll
      for (int32_t i = 0; i < 8; i += 2) {
        mma_int8<true>(ones, 0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u, b[i], b[i + 1]);
      }
      const int32_t offset = format.bits == 8 ? 0 : format.bits == 6 ? -32 : -8;
      shift = (times * offset + (half_levels ? 1 : 0)) * (ones[1] * 256 + ones[0]);
    }
    __syncwarp();  // the planes are read: sums take their place
    const uint32_t payload = shared_address(shared) + 16 * lane;
    const uint32_t sums = sums_of_codes() + 4 * ((lane & 3) * plan.words + (lane >> 2));
    constexpr int32_t kBlocks = 4 / kPairs;
    const auto read = [&]<int kBits, bool kHalf>() {  // short code: it is fetched for each head
#pragma unroll 1
      for (int32_t i = 0; i < kBlocks; ++i) {
        read_codes<kBits, kHalf>(payload, kBlocks * pair + i, b, shift, sums + 128 * i);
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

  // The part of the other: records and compensators. Limbs and factors are written; with vector
  // decays so are the records' weights. unit: what a unit of the limbs is in units of those
  // weights.
  __device__ __forceinline__ void read_rows(int32_t n, float2 unit, float2 scale,
                                            const HeadFormat128& format) const {
    const int32_t count = format.num_fp16 + n;
    const auto key_at = [&](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_keys : plan.keys - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
    const auto value_at = [&](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_values : plan.corrections - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
    const int32_t int8_from = plan.rows - tiles_of(format.num_int8) - tiles_of(format.num_int4);
    const int32_t int4_from = plan.rows - tiles_of(format.num_int4);
    uint32_t most = 0;
    {
      uint4 columns[4];
      Products::load_limbs(columns);
      const int32_t dots = kVector ? format.num_fp16 : count;
      const int32_t stored = kVector ? dots : tiles_of(count);
#pragma unroll 1
      for (int32_t first = 0; first < dots; first += 16) {
        most = max(most, Products::template key_dots<RowKind::kFp16, kVector>(
                             key_at, columns, first, dots, stored, first, unit));
      }
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int8; first += 16) {
        most = max(most,
                   Products::template key_dots<RowKind::kInt8, kVector>(
                       [&](int32_t i) { return shared + format.int8_keys + 128 * i; }, columns,
                       first, format.num_int8, tiles_of(format.num_int8), int8_from + first, unit));
      }
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int4; first += 16) {
        most = max(
            most, Products::template key_dots<RowKind::kInt4, kVector>(
                      [&](int32_t i) { return shared + format.int4_keys + 64 * i; }, columns, first,
                      format.num_int4, tiles_of(format.num_int4), int4_from + first, unit));
      }
      if constexpr (kVector) {
        for (int32_t i = format.num_fp16 + lane; i < tiles_of(count); i += 32) {
          const float wk = i < count ? weights()[i] : 0.0f;
          const float wq = i < count ? weights()[plan.rows + i] : 0.0f;
          if (i >= count) weights()[i] = weights()[plan.rows + i] = 0.0f;
          most = max(most, __float_as_uint(fmaxf(fabsf(wk), fabsf(wq))));
        }
      }
    }
    float back;
    const float top = to_top(__reduce_max_sync(kAll, most), &back);
    if (lane == 0) {
      units()[kRowKey] = scale.x * back;
      units()[kRowQuery] = scale.y * back;
    }
    __syncwarp();
    const int32_t tiles = tiles_of(count);
    if (format.num_int8 + format.num_int4 == 0) {
      Products::pack_weights(tiles, top);
    } else {
      for (int32_t i = tiles + lane; i < int8_from; i += 32) {  // rows no record has today
        weights()[i] = weights()[plan.rows + i] = 0.0f;
      }
      __syncwarp();
      Products::pack_weights(plan.rows, top);
    }
    __syncwarp();
#pragma unroll 1
    for (int32_t i = 0; i < kChunks; ++i) {
      const int32_t chunk = 8 * (kChunks * pair + i) + (lane >> 2);
      float acc[4][4] = {};
#pragma unroll 1
      for (int32_t first = 0; first < count; first += 16) {
        Products::template value_sums<RowKind::kFp16>(value_at, first, count, first, chunk, acc);
      }
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int8; first += 16) {
        Products::template value_sums<RowKind::kInt8>(
            [&](int32_t i) { return shared + format.int8_values + 128 * i; }, first,
            format.num_int8, int8_from + first, chunk, acc);
      }
#pragma unroll 1
      for (int32_t first = 0; first < format.num_int4; first += 16) {
        Products::template value_sums<RowKind::kInt4>(
            [&](int32_t i) { return shared + format.int4_values + 64 * i; }, first, format.num_int4,
            int4_from + first, chunk, acc);
      }
      Products::store_sums(acc, chunk);
    }
  }

  // Scales and decay of the quantised compensators, as factors of their weights.
  __device__ __forceinline__ void write_scales(const HeadFormat128& format) const {
    const float all = units()[kDecay];
    const int32_t int8_from = plan.rows - tiles_of(format.num_int8) - tiles_of(format.num_int4);
    const int32_t int4_from = plan.rows - tiles_of(format.num_int4);
    for (int32_t i = int8_from + lane; i < plan.rows; i += 32) {
      const bool wide = i < int4_from;
      const int32_t row = i - (wide ? int8_from : int4_from);
      const int32_t c = wide ? row : format.num_int8 + row;
      factors()[i] = row < (wide ? format.num_int8 : format.num_int4)
                         ? half_at(shared + format.key_scales, c) *
                               half_at(shared + format.value_scales, c) * all
                         : 0.0f;
    }
  }

  // What lies where for one head: its turn in the block decides the buffer of inputs and the phases
  // of the barriers.
  __device__ __forceinline__ char* inputs_of(uint32_t turn) const {
    return shared + plan.inputs + ((turn & 1u) != 0 ? plan.input_bytes : 0);
  }
  __device__ __forceinline__ uint32_t barrier_of(int32_t which) const {
    return shared_address(shared + plan.barriers) + 8u * static_cast<uint32_t>(which);
  }
  __device__ __forceinline__ void wait_for_codes(uint32_t turn) const {
    barrier_wait(barrier_of(0), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_rows(uint32_t turn) const {
    barrier_wait(barrier_of(1), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_inputs(uint32_t turn) const {
    barrier_wait(barrier_of(2 + static_cast<int32_t>(turn & 1u)), (turn >> 1) & 1u);
  }
  __device__ __forceinline__ void init_barriers() const {  // one thread
    barrier_init(barrier_of(0), 1);
    barrier_init(barrier_of(1), 1);
    barrier_init(barrier_of(2), kStreams ? kThreads + 1 : 1);
    barrier_init(barrier_of(3), kStreams ? kThreads + 1 : 1);
  }

  // One token. n records lie in shared memory. *raw: its inputs, *decay: lane l's log decay of
  // record l (scalar decays); both only where inputs do not lie in shared memory. last: of the
  // head. ahead(part): shared memory of that part has been read for the last time.
  template <typename Ahead>
  __device__ __forceinline__ void token(const Pointers& rows, int32_t v_head, int32_t t, int32_t n,
                                        const HeadFormat128& format, float* decay, bool last,
                                        Raw* raw, uint32_t turn, uint32_t input_turn,
                                        Ahead ahead) const {
    if constexpr (kStreams) {
      wait_for_inputs(input_turn);
      read_inputs(inputs_of(input_turn), t, n, raw, decay);
      ahead(std::integral_constant<Part, kInputs>());
    }
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
        write_factors(*decay, n, format);
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
      if (t == 0) wait_for_rows(turn);
      weigh_records(n, format.num_fp16, &rk, &rq);
      pair_sync();
    }
    if (reads_codes) {
      if (t == 0) wait_for_codes(turn);
      read_residual(rk, rq, back, format);
      if constexpr (kStreams) ahead(std::integral_constant<Part, kCodes>());
    } else {
      if (!kVector && t == 0) wait_for_rows(turn);
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
        write_scales(format);
        __syncwarp();
      }
      read_rows(n, unit, back, format);
      if constexpr (kStreams) {
        __syncwarp();
        ahead(std::integral_constant<Part, kRows>());
      }
    }
    pair_sync();
    if (!kStreams && t == 0) wait_for_inputs(input_turn);
    finish(rows, v_head, t, n, format, decay, !last, *raw, k, g, inputs_of(input_turn), [&] {
      if constexpr (kStreams) {
        pair_sync();
      } else if (last) {
        ahead(std::integral_constant<Part, kAllParts>());
      }
    });
  }

  // Residual and rows together: correction, output, record.
  template <typename Early>
  __device__ __forceinline__ void finish(const Pointers& inputs, int32_t v_head, int32_t t,
                                         int32_t n, const HeadFormat128& format, float* decay,
                                         bool append, const Raw& raw, float4 k, float4 g,
                                         const char* own_inputs, Early early) const {
    float v[kCount];
    widen_values(raw, v);
    float beta = 1.0f;
    if (call.beta.data != nullptr) {
      beta = widen_one(raw.beta, scalar_type<kPlain>(call.beta));
      if (!kPlain) beta = beta_of(call, beta);
    }
    float codes_k[kCount], codes_q[kCount], rows_k[kCount], rows_q[kCount], step[kCount];
    {
      const int32_t* codes = reinterpret_cast<const int32_t*>(scratch + plan.codes - plan.limbs) +
                             kCount * (place - 64 * pair);
      int32_t part[4][kCount];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) load_values(codes + i * plan.words, part[i]);
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        const float2 rows = Products::sums_of(kCount * place + i);
        rows_k[i] = rows.x, rows_q[i] = rows.y;
        codes_k[i] = fmaf(static_cast<float>(part[1][i]), 65536.0f, static_cast<float>(part[0][i]));
        codes_q[i] = fmaf(static_cast<float>(part[3][i]), 65536.0f, static_cast<float>(part[2][i]));
      }
    }
    if (format.fp16_scale) {
      if constexpr (kCount == 2) {
        const __half2 pair_of_scales =
            reinterpret_cast<const __half2*>(own_inputs + kScalesAt)[place];
        step[0] = __low2float(pair_of_scales), step[1] = __high2float(pair_of_scales);
      } else {
        step[0] = half_at(own_inputs + kScalesAt, place);
      }
    } else {
      load_values(reinterpret_cast<const float*>(own_inputs + kScalesAt) + kCount * place, step);
    }
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) step[i] *= format.inverse_q;
    const float4 norms = *reinterpret_cast<const float4*>(units());
    const float4 of_rows = *reinterpret_cast<const float4*>(units() + 4);
    const float2 of_own = *reinterpret_cast<const float2*>(units() + 8);
    early();
    const float ks = call.l2norm != 0 ? rsqrtf(norms.x + call.l2norm_eps) : 1.0f;
    const float qs = (call.l2norm != 0 ? rsqrtf(norms.y + call.l2norm_eps) : 1.0f) * call.q_scale;
    const float own = of_rows.x * (of_own.x * ks) * (of_own.y * qs);
    const float a = kVector ? 1.0f : exp_fast(g.x);
    const float full_k = ks * a;
    const float full_q = qs * a;
    const float code_k = norms.z * of_rows.w * full_k;
    const float code_q = norms.w * of_rows.w * full_q;
    const float row_k = of_rows.y * full_k;
    const float row_q = of_rows.z * full_q;
    float u[kCount], o[kCount];
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      u[i] = fmaf(codes_k[i] * code_k, step[i], rows_k[i] * row_k);
      o[i] = fmaf(codes_q[i] * code_q, step[i], rows_q[i] * row_q);
      u[i] = beta * (call.delta_rule ? v[i] - u[i] : v[i]);
      o[i] = fmaf(own, u[i], o[i]);
    }
    store_values<kCount>(const_cast<char*>(at(inputs.output, call.output, t, v_head)),
                         type_of(call.output), place, o);

    // The record.
    bool saturated = false;
    const uint32_t u_bits =
        to_halves_saturated(u[0], kCount == 2 ? u[kCount - 1] : 0.0f, &saturated);
    const uint32_t ring = static_cast<uint32_t>(ring_after(inputs.ring, t));
    const bool keeps_key = threadIdx.x < 32;
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

  template <typename T>
  __device__ __forceinline__ static void load_values(const T* from, T (&to)[kCount]) {
    if constexpr (kCount == 2) {
      struct alignas(8) Two {
        T a, b;
      };
      const Two two = *reinterpret_cast<const Two*>(from);
      to[0] = two.a, to[1] = two.b;
    } else {
      to[0] = from[0];
    }
  }

  __device__ __forceinline__ void store_correction(char* row, uint32_t bits) const {
    if constexpr (kCount == 2) {
      reinterpret_cast<uint32_t*>(row)[place] = bits;
    } else {
      reinterpret_cast<unsigned short*>(row)[place] = static_cast<unsigned short>(bits);
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

  // Inputs that lie in shared memory (kStreams).
  __device__ __forceinline__ void read_inputs(const char* from, int32_t t, int32_t n, Raw* raw,
                                              float* decay) const {
    const uint2 q = reinterpret_cast<const uint2*>(from)[lane];
    const uint2 k = reinterpret_cast<const uint2*>(from + kKeyInputAt)[lane];
    raw->q.x = q.x, raw->q.y = q.y;
    raw->k.x = k.x, raw->k.y = k.y;
    raw->v[0] = reinterpret_cast<const uint32_t*>(from + kValueInputAt)[place];
    const uint2 scalars = *reinterpret_cast<const uint2*>(from + kScalarsAt);
    raw->beta = scalars.x;
    if constexpr (kVector) {
      raw->g = load_shared_row(from + kDecaysAt);
    } else {
      raw->g.x = scalars.y;
      if (kMany && t > 0) return;
      *decay = call.stored_decay != 0 && lane < n
                   ? reinterpret_cast<const float*>(from + kDecaysAt)[lane]
                   : 0.0f;
    }
  }
  __device__ __forceinline__ uint4 load_shared_row(const char* row) const {
    uint4 raw = {};
    if (call.log_decay.type == LEAPQUANT_FP32) {
      raw = reinterpret_cast<const uint4*>(row)[lane];
    } else {
      const uint2 half = reinterpret_cast<const uint2*>(row)[lane];
      raw.x = half.x, raw.y = half.y;
    }
    return raw;
  }

  // Copies of a head whose turn is `turn`; all threads. The residual's value scales, and where they
  // stream the inputs.
  __device__ __forceinline__ void start_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                               int32_t n, const HeadFormat128& format,
                                               uint32_t turn) const {
    const uint32_t to = shared_address(inputs_of(turn));
    const uint32_t barrier = barrier_of(2 + static_cast<int32_t>(turn & 1u));
    if (threadIdx.x == 0) {
      const uint32_t bytes = format.fp16_scale ? 256u : 512u;
      barrier_expect(barrier, bytes);
      bulk_copy(to + kScalesAt, boundary_at(rows, v_head) + format.value_scale, bytes, barrier);
    }
    if constexpr (kStreams) {
      const uint32_t part = threadIdx.x >> 4;
      const uint32_t piece = 16u * (threadIdx.x & 15u);
      if (part < 2) {
        const int32_t k_head = quotient<kPlain>(v_head, call.group);
        const char* from =
            part == 0 ? at(rows.q, call.q, t, k_head) : at(rows.k, call.k, t, k_head);
        copy_16_async(to + 256u * part + piece, from + piece);
      } else if (part == 2) {
        copy_16_async(to + 256u * part + piece, at(rows.v, call.v, t, v_head, piece));
      } else if constexpr (kVector) {
        const char* from = at(rows.g, call.log_decay, t, v_head, piece);
        copy_16_async(to + kDecaysAt + piece, from);
        if (call.log_decay.type == LEAPQUANT_FP32) {
          copy_16_async(to + kDecaysAt + 256u + piece, from + 256);
        }
      }
      const uint32_t place_of_scalar = 4u * static_cast<uint32_t>(v_head);
      if (threadIdx.x == 48 && call.beta.data != nullptr) {
        copy_4_async(to + kScalarsAt, at(rows.beta, call.beta, t, 0, place_of_scalar));
      }
      if constexpr (!kVector) {
        if (threadIdx.x == 49 && call.log_decay.data != nullptr) {
          copy_4_async(to + kScalarsAt + 4, at(rows.g, call.log_decay, t, 0, place_of_scalar));
        }
        if (call.stored_decay != 0 && t == 0 && static_cast<int32_t>(threadIdx.x) < n) {
          const int32_t ring = ring_after(rows.ring, static_cast<int32_t>(threadIdx.x) - n);
          copy_4_async(to + kDecaysAt + 4u * threadIdx.x,
                       rows.window + (decays_at(v_head) + 4u * ring));
        }
      }
      barrier_arrive_copies(barrier);
    }
  }
  // Codes and smoothing; one thread.
  __device__ __forceinline__ void start_codes(const Pointers& rows, int32_t v_head,
                                              const HeadFormat128& format) const {
    const uint32_t bytes = static_cast<uint32_t>(format.fp16_keys);
    barrier_expect(barrier_of(0), bytes);
    bulk_copy(shared_address(shared), boundary_at(rows, v_head), bytes, barrier_of(0));
  }
  // Compensators and the n records before the sequence's position; one thread.
  __device__ __forceinline__ void start_rows(const Pointers& rows, int32_t v_head, int32_t n,
                                             const HeadFormat128& format) const {
    const uint32_t to = shared_address(shared);
    const uint32_t barrier = barrier_of(1);
    const uint32_t decay_row = kVector ? 128u * static_cast<uint32_t>(call.decay_bytes) : 0u;
    const uint32_t rest = static_cast<uint32_t>(format.bytes - format.fp16_keys);
    barrier_expect(barrier, rest + static_cast<uint32_t>(n) * (512u + decay_row));
    if (rest != 0) {
      bulk_copy(to + format.fp16_keys, boundary_at(rows, v_head) + format.fp16_keys, rest, barrier);
    }
    // From the oldest to the ring's end, then from its start.
    int32_t ring = ring_after(rows.ring, -n);
    uint32_t done = 0;
#pragma unroll 1
    while (n > 0) {
      const int32_t count = min(n, call.ring_tokens - ring);
      const uint32_t bytes = 256u * static_cast<uint32_t>(count);
      const uint32_t from = 256u * static_cast<uint32_t>(ring);
      bulk_copy(to + plan.keys + 256 * done, rows.window + (keys_at(v_head) + from), bytes,
                barrier);
      bulk_copy(to + plan.corrections + 256 * done, rows.window + (corrections_at(v_head) + from),
                bytes, barrier);
      if constexpr (kVector) {
        bulk_copy(to + plan.decays + decay_row * done,
                  rows.window + (decays_at(v_head) + decay_row * static_cast<uint32_t>(ring)),
                  decay_row * static_cast<uint32_t>(count), barrier);
      }
      done += static_cast<uint32_t>(count);
      n -= count;
      ring = 0;
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
