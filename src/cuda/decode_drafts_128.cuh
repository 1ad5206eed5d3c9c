// SPDX-License-Identifier: Apache-2.0
//
// Several tokens of one head at once, for the common call with scalar decays: codes, keys of
// records and weights are read once for up to four tokens; only what a token adds to the window is
// walked token by token. The numbers are those of the tokens one by one, in the same order.
#pragma once

#include "cuda/decode_draft_inputs_128.cuh"

namespace leapquant::cuda::decoding_128 {

// Sums of eight values over the lanes, in the order of sum_of_warp; lane l receives value l / 4.
__device__ __forceinline__ float sums_in_order(float (&p)[8], int32_t lane) {
#pragma unroll
  for (int32_t half = 4; half >= 1; half /= 2) {
    const bool upper = (lane & (4 * half)) != 0;
#pragma unroll
    for (int32_t i = 0; i < half; ++i) {
      const float send = select_float(upper, p[i], p[i + half]);
      const float keep = select_float(upper, p[i + half], p[i]);
      p[i] = keep + __shfl_xor_sync(kAll, send, 4 * half);
    }
  }
  p[0] += __shfl_xor_sync(kAll, p[0], 2);
  return p[0] + __shfl_xor_sync(kAll, p[0], 1);
}

// The first warp of the pair reads codes, the second keys; then each walks the tokens with its half
// of the values.
struct DraftHead : DraftInputs {
  // ---- The first warp: codes. ----

  // Byte planes of one vector of a token: digits 0 and 1 are columns 2 v and 2 v + 1 of one operand
  // of a pair of tokens, digits 2 and 3 of the other, v = 2 (token mod 2) + vector.
  __device__ __forceinline__ static float write_draft_planes(float4 x, int32_t token,
                                                             int32_t vector, uint32_t* planes,
                                                             int32_t lane) {
    uint32_t digits[4];
    const float unit = digits_of(x, digits);
    uint32_t* to = planes + (16 * (token >> 1) + 4 * (token & 1) + 2 * vector) * kPlaneWords +
                   (lane & 3) * 8 + (lane >> 2);
    to[0] = digits[0];
    to[kPlaneWords] = digits[1];
    to[8 * kPlaneWords] = digits[2];
    to[9 * kPlaneWords] = digits[3];
    return unit;
  }

  // Norms of the tokens' vectors and the sums of codes with them.
  template <typename Ahead>
  __device__ __forceinline__ void read_codes_of_all(int32_t count, const HeadFormat128& format,
                                                    uint32_t turn, bool first,
                                                    Ahead codes_are_read) const {
    if (first) wait_for_codes(turn);
    float4 c = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) c = smoothing_of(format);
    uint32_t* planes = reinterpret_cast<uint32_t*>(code_sums());
    const bool half_levels = format.half_levels != 0;
    float p[2 * kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const char* from = inputs() + kDraftInputBytes * min(i, count - 1);
      const float4 q = widen(reinterpret_cast<const uint2*>(from)[lane], LEAPQUANT_BF16);
      const float4 k = widen(reinterpret_cast<const uint2*>(from + 256)[lane], LEAPQUANT_BF16);
      p[2 * i] = dot_four(k, k);
      p[2 * i + 1] = dot_four(q, q);
      const float unit_k = write_draft_planes(multiply(k, c), i, 0, planes, lane);
      const float unit_q = write_draft_planes(multiply(q, c), i, 1, planes, lane);
      if (lane == 0) {
        const float times = half_levels ? 0.5f : 1.0f;
        units(i)[kCodeKey] = unit_k * times;
        units(i)[kCodeQuery] = unit_q * times;
      }
    }
    const float norm = sums_in_order(p, lane);
    if ((lane & 3) == 0) units(lane >> 3)[(lane & 4) != 0 ? kQueryNorm : kKeyNorm] = norm;
    __syncwarp();
    uint32_t b[2 * kPairsOfTokens][8];
#pragma unroll
    for (int32_t i = 0; i < 2 * kPairsOfTokens; ++i) {
      const uint4* plane = reinterpret_cast<const uint4*>(
          planes + (8 * i + (lane >> 2)) * kPlaneWords + (lane & 3) * 8);
      const uint4 low = plane[0];
      const uint4 high = plane[1];
      b[i][0] = low.x, b[i][1] = low.y, b[i][2] = low.z, b[i][3] = low.w;
      b[i][4] = high.x, b[i][5] = high.y, b[i][6] = high.z, b[i][7] = high.w;
    }
    const int32_t times = half_levels ? 2 : 1;
    int32_t shift[2 * kPairsOfTokens] = {};
    if (format.bits != 8 || half_levels) {
      const int32_t offset = format.bits == 8 ? 0 : format.bits == 6 ? -32 : -8;
#pragma unroll
      for (int32_t i = 0; i < 2 * kPairsOfTokens; ++i) {
        const int32_t all = sum_of_digits(b[i]);
        shift[i] = (times * offset + (half_levels ? 1 : 0)) * all;
      }
    }
    __syncwarp();  // the planes are read: sums take their place
    const uint32_t payload = shared_address(shared) + 16 * lane;
    const uint32_t sums = shared_address(code_sums()) + 4 * ((lane & 3) * plan.words + (lane >> 2));
    const auto read = [&]<int kBits, bool kHalf>() {
#pragma unroll 1
      for (int32_t i = 0; i < 4; ++i) {
        read_draft_codes<kBits, kHalf>(payload, i, b, shift, sums + 128 * i);
      }
    };
    if (format.bits == 8) {
      half_levels ? read.template operator()<8, true>() : read.template operator()<8, false>();
    } else if (format.bits == 6) {
      half_levels ? read.template operator()<6, true>() : read.template operator()<6, false>();
    } else {
      half_levels ? read.template operator()<4, true>() : read.template operator()<4, false>();
    }
    codes_are_read();
  }

  // Sums of code x fixed-point vectors of 32 values: lane t of four has vector t of each pair of
  // tokens (token t / 2, vector t mod 2).
  template <int kBits, bool kHalf>
  __device__ __forceinline__ void read_draft_codes(uint32_t payload, int32_t value_block,
                                                   const uint32_t (&b)[2 * kPairsOfTokens][8],
                                                   const int32_t (&shift)[2 * kPairsOfTokens],
                                                   uint32_t sums) const {
    constexpr bool kOffset = kBits != 8 || kHalf;
    int32_t d[2 * kPairsOfTokens][2][4] = {};
    if constexpr (kOffset && !kHalf) {
#pragma unroll
      for (int32_t i = 0; i < 2 * kPairsOfTokens; ++i) {
        d[i][0][0] = d[i][0][2] = d[i][1][0] = d[i][1][2] = shift[i];
      }
    }
    for_codes<kBits, 1>(
        payload, value_block, lane, [&](int32_t s, int32_t m, const uint32_t (&a)[4]) {
#pragma unroll
          for (int32_t i = 0; i < 2 * kPairsOfTokens; ++i) {
            mma_int8<kBits == 8>(d[i][m], a[0], a[1], a[2], a[3], b[i][2 * s], b[i][2 * s + 1]);
          }
        });
#pragma unroll
    for (int32_t p = 0; p < kPairsOfTokens; ++p) {
      const uint32_t to = sums + 16u * static_cast<uint32_t>(p * plan.words);
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
#pragma unroll
        for (int32_t h = 0; h < 2; ++h) {
          int32_t part[2];
#pragma unroll
          for (int32_t i = 0; i < 2; ++i) {
            const int32_t (&x)[4] = d[2 * p + i][m];
            part[i] = x[2 * h + 1] * 256 + x[2 * h];
            if (kHalf) part[i] = 2 * part[i] + shift[2 * p + i];
          }
          store_shared(to + (takes_second_first<kBits>(lane) ? 64 - 64 * m : 64 * m) + 32 * h,
                       __float_as_int(fmaf(static_cast<float>(part[1]), 65536.0f,
                                           static_cast<float>(part[0]))));
        }
      }
    }
  }

  // ---- The second warp: keys. ----

  // Dot products of rows first .. first + 15 with the vectors of all tokens, times their factors,
  // to the weights from `to` on. Lane t of four has token t. Returns the largest magnitude of its
  // token, as bits.
  template <RowKind kKind, typename RowAt>
  __device__ __forceinline__ uint32_t draft_dots(RowAt row_at, const uint4 (&limbs)[4],
                                                 int32_t first, int32_t count, int32_t to) const {
    const int32_t g = lane >> 2;
    const int32_t t = lane & 3;
    float d[4] = {};
    float e[4] = {};
    const bool wide = count - first > 8;
    const auto lower = row_at(min(first + g, count - 1));
    const auto upper = row_at(min(first + g + 8, count - 1));
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      uint32_t x[4];
      uint32_t y[4] = {};
      load_group<kKind, 8>(lower, t + 4 * j, x);
      if (wide) load_group<kKind, 8>(upper, t + 4 * j, y);
      mma_fp16(d, x[0], y[0], x[1], y[1], limbs[j].x, limbs[j].y);
      mma_fp16(e, x[2], y[2], x[3], y[3], limbs[j].z, limbs[j].w);
    }
    const float* factor = factors(t) + to + g;
    const float f0 = factor[0];
    const float f1 = factor[8];
    float s[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) s[i] = (d[i] + e[i]) * (i < 2 ? f0 : f1);
    float* column = weights() + 2 * t * weight_stride() + to + g;
    column[0] = s[0];
    column[8] = s[2];
    column[weight_stride()] = s[1];
    column[weight_stride() + 8] = s[3];
    return __float_as_uint(fmaxf(fmaxf(fabsf(s[0]), fabsf(s[1])), fmaxf(fabsf(s[2]), fabsf(s[3]))));
  }

  __device__ __forceinline__ auto keys_of(const HeadFormat128& format) const {
    return [this, &format](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_keys : plan.keys - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
  }
  __device__ __forceinline__ auto values_of(const HeadFormat128& format) const {
    return [this, &format](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_values : plan.corrections - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
  }

  // Limbs, factors, the tokens' records of keys, and the weights of all rows for all tokens. n
  // records lie in shared memory; *decay: lane l's log decay of record l.
  __device__ __forceinline__ void weigh_all(const Pointers& rows, int32_t v_head, int32_t t0,
                                            int32_t count, bool last, int32_t n,
                                            const HeadFormat128& format, float* decay,
                                            uint32_t turn) const {
    float p[2 * kTogether];
    uint2 raw[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const char* from = inputs() + kDraftInputBytes * min(i, count - 1);
      raw[i] = reinterpret_cast<const uint2*>(from + 256)[lane];
      const float4 q = widen(reinterpret_cast<const uint2*>(from)[lane], LEAPQUANT_BF16);
      const float4 k = widen(raw[i], LEAPQUANT_BF16);
      float2 back;
      const float4 rk = multiply(k, to_top(largest_of_warp(k), &back.x));
      const float4 rq = multiply(q, to_top(largest_of_warp(q), &back.y));
      write_draft_limbs(rk, 2 * i);
      write_draft_limbs(rq, 2 * i + 1);
      p[2 * i] = dot_four(k, k);
      p[2 * i + 1] = dot_four(rk, rq);
      if (lane == 0) {
        units(i)[kOwnKey] = back.x;
        units(i)[kOwnQuery] = back.y;
      }
    }
    const float sum = sums_in_order(p, lane);
    if ((lane & 7) == 4) units(lane >> 3)[kOwn] = sum;
    if (t0 == 0) {
      *decay = call.stored_decay != 0 && lane < n
                   ? reinterpret_cast<const float*>(inputs() + kDraftDecaysAt)[lane]
                   : 0.0f;
    }
    if (lane >= n && lane < n + kTogether) {
      *decay = log_decay_at(min(lane - n, count - 1));
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      this->write_factors(*decay, n + min(i, count - 1), format, factors(i), units(i));
    }
    bool saturated = false;
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const float norm = __shfl_sync(kAll, sum, 8 * i);
      if (i < count) {
        const float ks = call.l2norm != 0 ? rsqrtf(norm + call.l2norm_eps) : 1.0f;
        const float4 k = widen(raw[i], LEAPQUANT_BF16);
        const uint2 bits = make_uint2(to_halves_saturated(k.x * ks, k.y * ks, &saturated),
                                      to_halves_saturated(k.z * ks, k.w * ks, &saturated));
        const uint32_t ring = static_cast<uint32_t>(ring_after(rows.ring, t0 + i));
        *reinterpret_cast<uint2*>(rows.window + (keys_at(v_head) + 256u * ring +
                                                 8u * static_cast<uint32_t>(lane))) = bits;
        if (!last || i + 1 < count) {
          *reinterpret_cast<uint2*>(shared + plan.keys + (n + i) * 256 + 8 * lane) = bits;
        }
      }
    }
    report(rows, v_head, saturated);
    if (call.stored_decay != 0 && lane < count) {
      const uint32_t ring = static_cast<uint32_t>(ring_after(rows.ring, t0 + lane));
      *reinterpret_cast<float*>(rows.window + (decays_at(v_head) + 4u * ring)) = log_decay_at(lane);
    }
    __syncwarp();
    if (t0 == 0) wait_for_rows(turn);
    const int32_t int8_from = this->int8_weights_at(format);
    const int32_t int4_from = this->int4_weights_at(format);
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    if (mixed) {
#pragma unroll 1
      for (int32_t i = 0; i < count; ++i) this->write_scales(format, factors(i), units(i));
      __syncwarp();
    }
    uint4 limbs[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      limbs[j] = load_shared_four(shared_address(this->limbs()) + 64 * (lane >> 2) +
                                  16 * (lane & 3) + 512 * j);
    }
    const int32_t all = format.num_fp16 + n + count - 1;  // rows that the last token reads
    uint32_t most = 0;
#pragma unroll 1
    for (int32_t first = 0; first < all; first += 16) {
      most = max(most, draft_dots<RowKind::kFp16>(keys_of(format), limbs, first, all, first));
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int8; first += 16) {
      most = max(most, draft_dots<RowKind::kInt8>(
                           [&](int32_t i) { return shared + format.int8_keys + 128 * i; }, limbs,
                           first, format.num_int8, int8_from + first));
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int4; first += 16) {
      most = max(most, draft_dots<RowKind::kInt4>(
                           [&](int32_t i) { return shared + format.int4_keys + 64 * i; }, limbs,
                           first, format.num_int4, int4_from + first));
    }
#pragma unroll
    for (int32_t step = 4; step <= 16; step <<= 1) {
      most = max(most, __shfl_xor_sync(kAll, most, step));
    }
    float back;
    const float top = to_top(most, &back);
    if (lane < kTogether) {
      units(lane)[kRowKey] = units(lane)[kOwnKey] * back;
      units(lane)[kRowQuery] = units(lane)[kOwnQuery] * back;
    }
    __syncwarp();
    // As operands of the second product (pack_weights): a lane has one of eight columns.
    float* column = weights() + (2 * (lane & 3) + ((lane >> 2) & 1)) * weight_stride();
    const int32_t t = lane >> 3;
    const int32_t tiles = tiles_of(all);
    const int32_t packed = mixed ? plan.rows : tiles;
#pragma unroll 1
    for (int32_t first = 0; first < packed; first += 16) {
      const bool none = first >= tiles && first < int8_from;  // rows that no record has today
      const uint4 x = none ? uint4{} : Products::packed_tile(column + first, t, top);
      __syncwarp();
      reinterpret_cast<uint4*>(column + first)[t] = x;
    }
  }

  __device__ __forceinline__ void write_draft_limbs(float4 x, int32_t column) const {
    uint2 high, low;
    split(x.x, x.y, &high.x, &low.x);
    split(x.z, x.w, &high.y, &low.y);
    *reinterpret_cast<uint2*>(limbs() + 512 * (lane >> 3) + 8 * (lane & 7) + 64 * column) = high;
  }
  __device__ __forceinline__ float log_decay_at(int32_t i) const {
    if (call.log_decay.data == nullptr) return 0.0f;
    return reinterpret_cast<const float*>(inputs() + kDraftScalarsAt)[2 * i + 1];
  }
  __device__ __forceinline__ void report(const Pointers& rows, int32_t v_head,
                                         bool saturated) const {
    if (saturated && call.health != nullptr) {
      atomicOr(&call.health[int64_t{rows.slot} * call.v_heads + v_head].flags,
               uint32_t{LEAPQUANT_HEALTH_RECORD_SATURATED});
    }
  }

  // ---- Both warps. ----

  // Tokens t0 .. of a group. n records lie in shared memory, those of the group before among them.
  // last: group of the head. ahead(part): shared memory of that part was read for the last time.
  template <typename Ahead>
  __device__ __forceinline__ void group(const Pointers& rows, int32_t v_head, int32_t t0,
                                        int32_t tokens, int32_t n, const HeadFormat128& format,
                                        float* decay, uint32_t turn, uint32_t input_turn,
                                        Ahead ahead) const {
    const int32_t count = min(kTogether, tokens - t0);
    const bool last = t0 + kTogether >= tokens;
    wait_for_inputs(input_turn);
    if (reads_codes) {
      read_codes_of_all(count, format, turn, t0 == 0,
                        [&] { ahead(std::integral_constant<Part, kCodes>()); });
    } else {
      weigh_all(rows, v_head, t0, count, last, n, format, decay, turn);
    }
    // What the walk needs of the inputs. Lane t of four: scalars of token t.
    uint32_t values[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      values[i] = reinterpret_cast<const uint32_t*>(
          inputs() + kDraftInputBytes * min(i, count - 1) + 512)[place];
    }
    const int32_t own_token = min(lane & 3, count - 1);
    const float g = log_decay_at(own_token);
    float beta = 1.0f;
    if (call.beta.data != nullptr) {
      beta = reinterpret_cast<const float*>(inputs() + kDraftScalarsAt)[2 * own_token];
    }
    float step[kCount];
    read_steps(inputs() + kDraftScalesAt, format, step);
    pair_sync();
    if (t0 == 0 && reads_codes) wait_for_rows(turn);
    ahead(std::integral_constant<Part, kInputs>());
    walk(rows, v_head, t0, count, last, n, format, values, g, beta, step);
    fence_async_shared();  // before the copies that write there next
    pair_sync();
    if (!reads_codes) ahead(std::integral_constant<Part, kRows>());
  }

  // The value sides of rows first .. end - 1 with the tokens' weights, to `acc`.
  __device__ __forceinline__ void add_values(int32_t first, int32_t end,
                                             const HeadFormat128& format, int32_t chunk,
                                             float (&acc)[4][4]) const {
#pragma unroll 1
    for (; first < end; first += 16) {
      Products::template value_sums<RowKind::kFp16>(values_of(format), first, end, first, chunk,
                                                    acc, column_of_weights());
    }
  }
  __device__ __forceinline__ const uint32_t* column_of_weights() const {
    return reinterpret_cast<const uint32_t*>(weights()) + (lane >> 2) * weight_stride();
  }

  // The tile of rows that the tokens add theirs to, as this lane reads it.
  struct Tile {
    const uint4* rows[4];
    uint4 weights;   // of all tokens
    bool any, wide;  // rows; more than eight
  };
  // Rows `first` .. of `end` that the last token reads. Those that tokens add are zeros until then.
  __device__ __forceinline__ Tile open_tile(int32_t first, int32_t had, int32_t end, int32_t n,
                                            const HeadFormat128& format, int32_t chunk) const {
    const int32_t added = lane >> 3;
    if (had + added < end) {
      *reinterpret_cast<uint4*>(shared + plan.corrections + (n + added) * 256 +
                                (reads_codes ? 0 : 128) + 16 * (lane & 7)) = uint4{};
    }
    __syncwarp();
    Tile tile;
    const int32_t t = lane & 3;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = first + 2 * t + (i & 1) + 4 * (i & 2);
      tile.rows[i] =
          reinterpret_cast<const uint4*>(values_of(format)(max(min(row, end - 1), 0))) + chunk;
    }
    tile.any = end > first;
    tile.wide = end - first > 8;
    tile.weights = uint4{};
    if (tile.any) {
      tile.weights = *reinterpret_cast<const uint4*>(column_of_weights() + first + 4 * t);
    }
    return tile;
  }
  // acc = before + the tile's value sides times weights, in the order of value_sums.
  __device__ __forceinline__ void add_tile(const Tile& tile, const float (&before)[4][4],
                                           float (&acc)[4][4]) const {
    uint32_t x[4][4] = {};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (i < 2 ? tile.any : tile.wide) {
        const uint4 row = *tile.rows[i];
        x[i][0] = row.x, x[i][1] = row.y, x[i][2] = row.z, x[i][3] = row.w;
      }
    }
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      const uint32_t pick = j % 2 == 0 ? 0x5410 : 0x7632;
      const int32_t k = j / 2;
      const uint32_t a0 = __byte_perm(x[0][k], x[1][k], pick);
      const uint32_t a1 = __byte_perm(x[0][2 + k], x[1][2 + k], pick);
      const uint32_t a2 = __byte_perm(x[2][k], x[3][k], pick);
      const uint32_t a3 = __byte_perm(x[2][2 + k], x[3][2 + k], pick);
      mma_fp16_from(acc[j], a0, a1, a2, a3, tile.weights.x, tile.weights.y, before[j]);
      mma_fp16(acc[j], a0, a1, a2, a3, tile.weights.z, tile.weights.w);
    }
  }

  __device__ __forceinline__ void walk(const Pointers& rows, int32_t v_head, int32_t t0,
                                       int32_t count, bool last, int32_t n,
                                       const HeadFormat128& format, uint32_t (&values)[kTogether],
                                       float g, float beta, const float (&step)[kCount]) const {
    // Factors of this lane's token.
    const float* unit = units(lane & 3);
    const float4 norms = *reinterpret_cast<const float4*>(unit);
    const float4 of_rows = *reinterpret_cast<const float4*>(unit + 4);
    const float2 of_own = *reinterpret_cast<const float2*>(unit + 8);
    const typename Base::Factors mine = this->factors_of(norms, of_rows, of_own, g);
    const int32_t chunk = (reads_codes ? 0 : 8) + (lane >> 2);
    const int32_t had = format.num_fp16 + n;
    const int32_t stable = had & ~15;  // rows of tiles that the tokens leave alone
    const int32_t int8_from = this->int8_weights_at(format);
    const int32_t int4_from = this->int4_weights_at(format);
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    float before[4][4] = {};
    add_values(0, stable, format, chunk, before);
    const Tile tile = open_tile(stable, had, had + count - 1, n, format, chunk);
    const char* codes = reinterpret_cast<const char*>(code_sums() + kCount * place);
    char* sums_to = reinterpret_cast<char*>(row_sums()) + 64 * chunk;
    char* output = const_cast<char*>(at(rows.output, call.output, t0, v_head)) + 4 * place;
    char* corrections = rows.window + (corrections_at(v_head) + 4u * static_cast<uint32_t>(place));
    char* next_row = shared + plan.corrections + n * 256 + 4 * place;
    int32_t ring = ring_after(rows.ring, t0);
    bool saturated = false;
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i) {
      float acc[4][4];
      add_tile(tile, before, acc);  // rows that are not there yet have weights of zero
      if (stable + 16 < had + i) add_values(stable + 16, had + i, format, chunk, acc);
      if (mixed) {
#pragma unroll 1
        for (int32_t first = 0; first < format.num_int8; first += 16) {
          Products::template value_sums<RowKind::kInt8>(
              [&](int32_t r) { return shared + format.int8_values + 128 * r; }, first,
              format.num_int8, int8_from + first, chunk, acc, column_of_weights());
        }
#pragma unroll 1
        for (int32_t first = 0; first < format.num_int4; first += 16) {
          Products::template value_sums<RowKind::kInt4>(
              [&](int32_t r) { return shared + format.int4_values + 64 * r; }, first,
              format.num_int4, int4_from + first, chunk, acc, column_of_weights());
        }
      }
      if ((lane & 3) == i) {
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          reinterpret_cast<float4*>(sums_to)[j] =
              make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
        }
      }
      typename Base::Factors of;
      of.own = __shfl_sync(kAll, mine.own, i);
      of.code_k = __shfl_sync(kAll, mine.code_k, i);
      of.code_q = __shfl_sync(kAll, mine.code_q, i);
      of.row_k = __shfl_sync(kAll, mine.row_k, i);
      of.row_q = __shfl_sync(kAll, mine.row_q, i);
      const float own_beta = __shfl_sync(kAll, beta, i);
      __syncwarp();
      const float v[kCount] = {__uint_as_float(values[0] << 16),
                               __uint_as_float(values[0] & 0xffff0000u)};
      const float2 codes_k = *reinterpret_cast<const float2*>(codes);
      const float2 codes_q = *reinterpret_cast<const float2*>(codes + 4 * plan.words);
      const float of_codes_k[kCount] = {codes_k.x, codes_k.y};
      const float of_codes_q[kCount] = {codes_q.x, codes_q.y};
      float u[kCount], o[kCount];
#pragma unroll
      for (int32_t j = 0; j < kCount; ++j) {
        const float2 of_rows_now = Products::sums_of(kCount * place + j);
        this->correct(of, of_codes_k[j], of_codes_q[j], of_rows_now.x, of_rows_now.y, step[j],
                      own_beta, v[j], &u[j], &o[j]);
      }
      *reinterpret_cast<uint32_t*>(output) = pack_bf16(o[0], o[1]);
      const uint32_t bits = to_halves_saturated(u[0], u[1], &saturated);
      *reinterpret_cast<uint32_t*>(corrections + 256u * static_cast<uint32_t>(ring)) = bits;
      if (!last || i + 1 < count) *reinterpret_cast<uint32_t*>(next_row) = bits;
      __syncwarp();
      ring = ring + 1 == call.ring_tokens ? 0 : ring + 1;
      output += static_cast<uint32_t>(call.output.token_stride);
      codes += 8 * plan.words;
      next_row += 256;
#pragma unroll
      for (int32_t j = 0; j + 1 < kTogether; ++j) values[j] = values[j + 1];
    }
    report(rows, v_head, saturated);
  }
};

// What takes a head of the call.
template <bool kVector, int kPairs, bool kPlain, bool kMany>
using HeadOf = std::conditional_t<drafts_together(kVector, kPairs, kPlain, kMany) != 1, DraftHead,
                                  Head<kVector, kPairs, kPlain, kMany>>;

}  // namespace leapquant::cuda::decoding_128
