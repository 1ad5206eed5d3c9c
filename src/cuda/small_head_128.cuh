// SPDX-License-Identifier: Apache-2.0
//
// One token of one head by eight warps, for the shortest time from its bytes to its output: four
// read the residual's codes, 32 values each; four the rows, a tile of sixteen each in turn, then
// the value sides of 32 values each, which they finish. Scalar decays, the common call. Every
// number is computed in the same order as in decode_head_128.cuh.
#pragma once

#include "cuda/decode_head_128.cuh"

namespace leapquant::cuda::decoding_128 {

constexpr int32_t kReaders = 4;  // warps that read codes; as many read rows
constexpr int32_t kPlaneBytes = 8 * kPlaneWords * 4;
constexpr int32_t kSmallUnits = 16;

struct SmallHead : Head<false, 2, true, false> {
  // What the warps tell each other, in `units`: factors of both sums (lengths and the token's own
  // decay), of the token's own record, of its key; the decay since the boundary; units of codes and
  // limbs; the largest weight of each warp of rows.
  enum SmallUnit {
    kFullKey,
    kFullQuery,
    kOwnFactor,
    kKeyLength,
    kSince = kDecay,
    kLimbsKey = 4,
    kLimbsQuery,
    kCodesKey = 8,
    kCodesQuery,
    kMost = 12
  };

  // ---- Before the state is there ----

  // Limbs of both read vectors, and what brought them to the top.
  __device__ __forceinline__ void put_limbs(float4 k, float4 q) const {
    float2 back;
    write_limbs<false>(multiply(k, to_top(largest_of_warp(k), &back.x)), 0, limbs(), lane);
    write_limbs<false>(multiply(q, to_top(largest_of_warp(q), &back.y)), 1, limbs(), lane);
    if (lane == 0) units()[kLimbsKey] = back.x, units()[kLimbsQuery] = back.y;
  }
  // Factors from the lengths of both, their product and the log decay.
  __device__ __forceinline__ void put_lengths(float4 k, float4 q, float log_decay) const {
    const float sum = sums_of_two(dot_four(k, k), dot_four(q, q), lane);
    float2 top;
    const float4 k_top = multiply(k, to_top(largest_of_warp(k), &top.x));
    const float4 q_top = multiply(q, to_top(largest_of_warp(q), &top.y));
    const float own = sum_of_warp(dot_four(k_top, q_top));
    const float4 norms =
        make_float4(__shfl_sync(kAll, sum, 0), __shfl_sync(kAll, sum, 16), 1.0f, 1.0f);
    // Of unit sums: what is left are the factors.
    const Factors of =
        factors_of(norms, make_float4(own, 1.0f, 1.0f, 1.0f), make_float2(top.x, top.y), log_decay);
    if (lane == 0) {
      *reinterpret_cast<float4*>(units()) = make_float4(of.row_k, of.row_q, of.own, of.key_length);
    }
  }

  // ---- Codes ----

  // Values 32 block .. + 31. planes: of the warp. The barriers: of what follows the codes, and of
  // the codes.
  __device__ __forceinline__ void read_block(float4 k, float4 q, int32_t block, uint32_t* planes,
                                             uint32_t tail, uint32_t codes, uint32_t parity,
                                             const HeadFormat128& format) const {
    barrier_wait(tail, parity);
    if (format.smoothing != LEAPQUANT_SMOOTHING_NONE) {
      const float4 c = smoothing_of(format);
      k = multiply(k, c);
      q = multiply(q, c);
    }
    const float unit_k = write_planes(k, 0, planes, lane);
    const float unit_q = write_planes(q, 1, planes, lane);
    const bool half_levels = format.half_levels != 0;
    if (block == 0 && lane == 0) {
      const float times = half_levels ? 0.5f : 1.0f;
      units()[kCodesKey] = unit_k * times;
      units()[kCodesQuery] = unit_q * times;
    }
    __syncwarp();
    uint32_t b[8];
    load_planes(planes, lane, b);
    int32_t shift = 0;
    if (format.bits != 8 || half_levels) {
      const int32_t times = half_levels ? 2 : 1;
      const int32_t offset = format.bits == 8 ? 0 : format.bits == 6 ? -32 : -8;
      shift = (times * offset + (half_levels ? 1 : 0)) * sum_of_digits(b);
    }
    const uint32_t payload = shared_address(shared) + 16 * lane;
    const uint32_t sums =
        sums_of_codes() + 4 * ((lane & 3) * plan.words + (lane >> 2)) + 128 * block;
    barrier_wait(codes, parity);
    const auto read = [&]<int kBits, bool kHalf>() {
      read_codes<kBits, kHalf>(payload, block, b, shift, sums, lane);
    };
    if (format.bits == 8) {
      half_levels ? read.template operator()<8, true>() : read.template operator()<8, false>();
    } else if (format.bits == 6) {
      half_levels ? read.template operator()<6, true>() : read.template operator()<6, false>();
    } else {
      half_levels ? read.template operator()<4, true>() : read.template operator()<4, false>();
    }
  }

  // ---- Rows ----

  // use(kind, row at i, first row, rows of this kind, where its weights start) for each tile.
  template <typename Use>
  __device__ __forceinline__ void for_tiles(int32_t n, const HeadFormat128& format, bool values,
                                            Use use) const {
    const int32_t int4_from = plan.rows - tiles_of(format.num_int4);
    const int32_t int8_from = int4_from - tiles_of(format.num_int8);
    const int32_t count = format.num_fp16 + n;
    // Compensators lie in front of the records.
    const char* fp16_at = shared + (values ? plan.corrections : plan.keys);
    const char* int8_at = shared + (values ? format.int8_values : format.int8_keys);
    const char* int4_at = shared + (values ? format.int4_values : format.int4_keys);
#pragma unroll 1
    for (int32_t first = 0; first < count; first += 16) {
      use.template operator()<RowKind::kFp16>([&](int32_t i) { return fp16_at + 256 * i; }, first,
                                              count, 0);
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int8; first += 16) {
      use.template operator()<RowKind::kInt8>([&](int32_t i) { return int8_at + 128 * i; }, first,
                                              format.num_int8, int8_from);
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int4; first += 16) {
      use.template operator()<RowKind::kInt4>([&](int32_t i) { return int4_at + 64 * i; }, first,
                                              format.num_int4, int4_from);
    }
  }

  // Weights of this warp's tiles, and the largest of them. which: of the warps of rows.
  __device__ __forceinline__ void weigh_tiles(int32_t which, int32_t n,
                                              const HeadFormat128& format) const {
    uint4 columns[4];
    Products::load_limbs(columns);
    const float all = units()[kSince];
    uint32_t most = 0;
    int32_t turn = 0;
    for_tiles(n, format, false,
              [&]<RowKind kKind>(auto row_at, int32_t first, int32_t count, int32_t from) {
                if ((turn++ & (kReaders - 1)) != which) return;
                if constexpr (kKind != RowKind::kFp16) {  // scales and decay as factors
                  const int32_t c = first + lane + (kKind == RowKind::kInt4 ? format.num_int8 : 0);
                  if (lane < 16) {
                    factors()[from + first + lane] =
                        first + lane < count ? half_at(shared + format.key_scales, c) *
                                                   half_at(shared + format.value_scales, c) * all
                                             : 0.0f;
                  }
                  __syncwarp();
                }
                most = max(most, Products::template key_dots<kKind, false>(
                                     row_at, columns, first, count, tiles_of(count), from + first,
                                     make_float2(1.0f, 1.0f)));
              });
    most = __reduce_max_sync(kAll, most);
    if (lane == 0) units()[kMost + which] = __uint_as_float(most);
  }

  // ---- Values ----

  // The value whose sums the lane of a warp (of four) receives.
  __device__ __forceinline__ static int32_t value_of(int32_t warp, int32_t lane) {
    return 64 * (warp & 1) + 8 * (lane >> 2) + 4 * ((lane >> 1) & 1) + 2 * (warp >> 1) + (lane & 1);
  }
  // Both vectors' sums of the value sides times the weights, of that value.
  __device__ __forceinline__ float2 sum_values(int32_t warp, int32_t n, float top,
                                               const HeadFormat128& format) const {
    const int32_t t = lane & 3;
    const int32_t chunk = 8 * (warp & 1) + (lane >> 2);
    const uint32_t pick = warp < 2 ? 0x3210 : 0x7654;  // of eight values' words: which of two
    const float* column = weights() + ((lane >> 2) & 1) * plan.rows;
    float acc[2][4] = {};
    for_tiles(n, format, true,
              [&]<RowKind kKind>(auto row_at, int32_t first, int32_t count, int32_t from) {
                const uint4 w = Products::packed_tile(column + from + first, t, top);
                uint32_t low[4], high[4];
#pragma unroll
                for (int32_t i = 0; i < 4; ++i) {
                  uint32_t x[4];
                  const int32_t row = first + 2 * t + (i & 1) + 8 * (i >> 1);
                  load_group<kKind, 8>(row_at(min(row, count - 1)), chunk, x);
                  low[i] = __byte_perm(x[0], x[1], pick);
                  high[i] = __byte_perm(x[2], x[3], pick);
                }
#pragma unroll
                for (int32_t j = 0; j < 2; ++j) {
                  const uint32_t half = j == 0 ? 0x5410 : 0x7632;
                  const uint32_t a0 = __byte_perm(low[0], low[1], half);
                  const uint32_t a1 = __byte_perm(high[0], high[1], half);
                  const uint32_t a2 = __byte_perm(low[2], low[3], half);
                  const uint32_t a3 = __byte_perm(high[2], high[3], half);
                  mma_fp16(acc[j], a0, a1, a2, a3, w.x, w.y);
                  mma_fp16(acc[j], a0, a1, a2, a3, w.z, w.w);
                }
              });
    const bool odd = (lane & 1) != 0;
    const bool upper = (lane & 2) != 0;
    return make_float2(select_float(upper, select_float(odd, acc[1][2], acc[0][2]),
                                    select_float(odd, acc[1][0], acc[0][0])),
                       select_float(upper, select_float(odd, acc[1][3], acc[0][3]),
                                    select_float(odd, acc[1][1], acc[0][1])));
  }

  // What the weights of rows are multiplied by to become operands, and its inverse.
  __device__ __forceinline__ float top_of_weights(float* back) const {
    const float4 most = *reinterpret_cast<const float4*>(units() + kMost);
    return to_top(__float_as_uint(fmaxf(fmaxf(most.x, most.y), fmaxf(most.z, most.w))), back);
  }
  // Output and correction of the lane's value (`place`). rows: sums of rows, of weights that `back`
  // brings back from the top.
  __device__ __forceinline__ void finish_value(const Pointers& pointers, int32_t v_head,
                                               float2 rows, float back, float step, float v,
                                               float beta) const {
    const int32_t* codes = reinterpret_cast<const int32_t*>(scratch + plan.codes - plan.limbs);
    float part[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) part[i] = static_cast<float>(codes[i * plan.words + place]);
    const float4 told = *reinterpret_cast<const float4*>(units());
    const float2 of_limbs = *reinterpret_cast<const float2*>(units() + kLimbsKey);
    const float since = units()[kSince];
    const float2 of_codes = *reinterpret_cast<const float2*>(units() + kCodesKey);
    Factors of;
    of.own = told.z;
    of.code_k = of_codes.x * since * told.x;
    of.code_q = of_codes.y * since * told.y;
    of.row_k = of_limbs.x * back * told.x;
    of.row_q = of_limbs.y * back * told.y;
    float u, o[1];
    correct(of, fmaf(part[1], 65536.0f, part[0]), fmaf(part[3], 65536.0f, part[2]), rows.x, rows.y,
            step, beta, v, &u, &o[0]);
    store_values<1>(pointers.output, LEAPQUANT_BF16, place, o);
    bool saturated = false;
    const uint32_t bits = to_halves_saturated(u, 0.0f, &saturated);
    store_correction(pointers.window + (corrections_at(v_head) + 256u * ring_of(pointers)), bits);
    note(saturated, pointers, v_head);
  }

  // The record's key and log decay, by one warp.
  __device__ __forceinline__ void store_key(const Pointers& rows, int32_t v_head, float4 k,
                                            float log_decay) const {
    const float ks = units()[kKeyLength];
    bool saturated = false;
    uint2 bits;
    bits.x = to_halves_saturated(k.x * ks, k.y * ks, &saturated);
    bits.y = to_halves_saturated(k.z * ks, k.w * ks, &saturated);
    *reinterpret_cast<uint2*>(rows.window + (keys_at(v_head) + 256u * ring_of(rows) +
                                             8u * static_cast<uint32_t>(lane))) = bits;
    if (call.stored_decay != 0 && lane == 0) {
      *reinterpret_cast<float*>(rows.window + (decays_at(v_head) + 4u * ring_of(rows))) = log_decay;
    }
    note(saturated, rows, v_head);
  }

 private:
  __device__ __forceinline__ static uint32_t ring_of(const Pointers& rows) {
    return static_cast<uint32_t>(rows.ring);
  }
  __device__ __forceinline__ void note(bool saturated, const Pointers& rows, int32_t v_head) const {
    if (saturated && call.health != nullptr) {
      atomicOr(&call.health[int64_t{rows.slot} * call.v_heads + v_head].flags,
               uint32_t{LEAPQUANT_HEALTH_RECORD_SATURATED});
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
