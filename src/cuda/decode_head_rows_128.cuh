// SPDX-License-Identifier: Apache-2.0
//
// What the second warp of a pair does: the weights of a head's records and compensators, and their
// value sides' sums. The order of the tiles of sixteen rows is the same whoever takes them.
#pragma once

#include <type_traits>

#include "cuda/decode_copies_128.cuh"

namespace leapquant::cuda::decoding_128 {

template <bool kVector, int kPairs, bool kPlain, bool kMany>
struct HeadRows : HeadCopies<kVector, kPairs, kPlain, kMany> {
  static constexpr bool kLow = kVector || !kPlain;  // else the vectors are BF16 as given
  using Copies = HeadCopies<kVector, kPairs, kPlain, kMany>;
  using Products = typename Copies::Products;
  using Copies::call;
  using Copies::reads_codes;
  using Copies::shared;
  using Products::factors;
  using Products::lane;
  using Products::plan;
  using Products::units;
  using Products::weights;

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
  __device__ __forceinline__ static int32_t tiles_of(int32_t count) { return (count + 15) & ~15; }

  // Where the weights of quantised compensators begin: INT4 ones behind INT8 ones, at the end.
  __device__ __forceinline__ int32_t int4_weights_at(const HeadFormat128& format) const {
    return plan.rows - tiles_of(format.num_int4);
  }
  __device__ __forceinline__ int32_t int8_weights_at(const HeadFormat128& format) const {
    return plan.rows - tiles_of(format.num_int8) - tiles_of(format.num_int4);
  }

  // Scalar decays: factors of compensators and records from lane l's log decay of record l: what
  // has decayed since. Zero past the last row, up to whole tiles at least.
  __device__ __forceinline__ void write_factors(float decay, int32_t n, const HeadFormat128& format,
                                                float* to, float* said) const {
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
    if (lane < count) to[lane] = all;
    to[count + lane] = after;
    if (n > 16 && lane < 16) to[count + 32 + lane] = 0.0f;
    if (lane == 0) said[kDecay] = all;
  }

  // Vector decays: weights of the records whose fours are this warp's, newest first, and rk and rq
  // as they meet the boundary state: the decays since then weigh each channel.
  __device__ __forceinline__ void weigh_records(int32_t n, int32_t to, float4* rk,
                                                float4* rq) const {
    constexpr float kLog2e = 1.4426950408889634f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // of log decays, to base 2
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
            key.x *= exp2_fast(sum.x);
            key.y *= exp2_fast(sum.y);
            key.z *= exp2_fast(sum.z);
            key.w *= exp2_fast(sum.w);
            p[2 * r] = dot_four(key, *rk);
            p[2 * r + 1] = dot_four(key, *rq);
          }
          const char* row = shared + plan.decays + record * 128 * call.decay_bytes;
          const float4 step =
              call.decay_bytes == 4
                  ? *reinterpret_cast<const float4*>(row + 16 * lane)
                  : widen(*reinterpret_cast<const uint2*>(row + 8 * lane), LEAPQUANT_FP16);
          sum.x = fmaf(step.x, kLog2e, sum.x);
          sum.y = fmaf(step.y, kLog2e, sum.y);
          sum.z = fmaf(step.z, kLog2e, sum.z);
          sum.w = fmaf(step.w, kLog2e, sum.w);
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
        make_float4(exp2_fast(sum.x), exp2_fast(sum.y), exp2_fast(sum.z), exp2_fast(sum.w));
    *rk = make_float4(rk->x * d.x, rk->y * d.y, rk->z * d.z, rk->w * d.w);
    *rq = make_float4(rq->x * d.x, rq->y * d.y, rq->z * d.z, rq->w * d.w);
  }

  // The part of the other: weights of records and compensators. Limbs and factors are written; with
  // vector decays so are the records' weights. unit: what a unit of the limbs is in units of those
  // weights.
  __device__ __forceinline__ void weigh_rows(int32_t n, float2 unit, float2 scale,
                                             const HeadFormat128& format) const {
    const int32_t count = format.num_fp16 + n;
    const auto key_at = [&](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_keys : plan.keys - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
    const int32_t int8_from = int8_weights_at(format);
    const int32_t int4_from = int4_weights_at(format);
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
  }

  // The value sides of all rows times their weights, of values 8 chunk .. + 7 of each lane.
  __device__ __forceinline__ void sum_rows(int32_t n, const HeadFormat128& format,
                                           int32_t chunk) const {
    const int32_t count = format.num_fp16 + n;
    const auto value_at = [&](int32_t i) {
      const int32_t from =
          i < format.num_fp16 ? format.fp16_values : plan.corrections - 256 * format.num_fp16;
      return shared + from + 256 * i;
    };
    const int32_t int8_from = int8_weights_at(format);
    const int32_t int4_from = int4_weights_at(format);
    const uint32_t* column = Products::column_of_weights();
    float acc[4][4] = {};
#pragma unroll 1
    for (int32_t first = 0; first < count; first += 16) {
      Products::template value_sums<RowKind::kFp16>(value_at, first, count, first, chunk, acc,
                                                    column);
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int8; first += 16) {
      Products::template value_sums<RowKind::kInt8>(
          [&](int32_t i) { return shared + format.int8_values + 128 * i; }, first, format.num_int8,
          int8_from + first, chunk, acc, column);
    }
#pragma unroll 1
    for (int32_t first = 0; first < format.num_int4; first += 16) {
      Products::template value_sums<RowKind::kInt4>(
          [&](int32_t i) { return shared + format.int4_values + 64 * i; }, first, format.num_int4,
          int4_from + first, chunk, acc, column);
    }
    Products::store_sums(acc, chunk);
  }

  // Scales and decay of the quantised compensators, as factors of their weights.
  __device__ __forceinline__ void write_scales(const HeadFormat128& format, float* to,
                                               const float* said) const {
    const float all = said[kDecay];
    const int32_t int8_from = int8_weights_at(format);
    const int32_t int4_from = int4_weights_at(format);
    for (int32_t i = int8_from + lane; i < plan.rows; i += 32) {
      const bool wide = i < int4_from;
      const int32_t row = i - (wide ? int8_from : int4_from);
      const int32_t c = wide ? row : format.num_int8 + row;
      to[i] = row < (wide ? format.num_int8 : format.num_int4)
                  ? half_at(shared + format.key_scales, c) *
                        half_at(shared + format.value_scales, c) * all
                  : 0.0f;
    }
  }
};

}  // namespace leapquant::cuda::decoding_128
