// SPDX-License-Identifier: Apache-2.0
//
// A block's view of a head that is folded: the plan of shared memory, the state in registers, its
// rebuild from codes, compensators and records by the matrix units, and its FP16 copy in shared
// memory for the fit.
#pragma once

#include <cuda_fp16.h>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/fold_entries_128.cuh"
#include "cuda/fold_fits_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

using namespace device_128;

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;
// A row of the rebuild: the key side in FP16, high and low parts in operand order, and the value
// side. Strides keep the eight rows of a matrix in different banks.
constexpr int32_t kRowBytes = 784;
constexpr int32_t kRowValuesAt = 512;
// A column of the fit: the value side in FP16, its low parts, the key side in operand order, 128
// floats, in whose place the key side's low parts come last.
constexpr int32_t kColumnBytes = 1296;
constexpr int32_t kLowAt = 256;
constexpr int32_t kKeysAt = 512;
constexpr int32_t kFloatsAt = 768;
constexpr int32_t kStride = kColumnBytes / 4;
// The state in FP16 [value][key in operand order].
constexpr int32_t kMatrixRow = 272;
constexpr int32_t kMatrixBytes = 128 * kMatrixRow;
constexpr int32_t kStepRow = 20;     // floats: a step for each of the values 8 j + g, rows by g
constexpr int32_t kInverseRow = 18;  // the same, pairs of floats

// Shared memory of a block, in bytes from its start. First what has a fixed place.
constexpr int32_t kFactorsAt = 0;         // per key
constexpr int32_t kStepsAt = 512;         // [8][kStepRow]
constexpr int32_t kInverseNormsAt = 512;  // [32], in place of the steps while columns are fitted
constexpr int32_t kLastFactorsAt = 640;   // [32], likewise
constexpr int32_t kNearPartsAt = 768;     // [8], likewise
constexpr int32_t kInversesAt = 1152;     // [8][kInverseRow] (factor of codes, step)
constexpr int32_t kReductionsAt = 2304;   // [8][8]
constexpr int32_t kMagnitudesAt = kReductionsAt + 256;  // [3][8]
constexpr int32_t kAliveAt = 2800;                      // [32]
constexpr int32_t kValueScalesAt = 2928;                // [32]
constexpr int32_t kScalesAt = 3056;                     // scale, unscale, energy
constexpr int32_t kColumnsAt = 3072;
// Then, with places that a call's formats decide: the fit's columns and products of them;
// what follows the codes in a boundary state; the codes; the rows of the rebuild (records, then
// compensators); records as they lie in the window; vector decays. The FP16 copy of the state lies
// over codes and rows while neither is there: after the rebuild, before the codec. With `turns`
// there is a second place for codes, behind the rows, and one for what follows them: the next
// fold's arrive while this fold's are in use.
struct Plan {
  int32_t gram, tails, tail_bytes, codes, code_bytes, codes_apart, rows, records, decays, list;
  int32_t turns;
  int32_t staged;  // 1: there is a place for records; else they are read where they lie
};

__host__ __device__ constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// payload, tail: the most bytes of codes of any format and of what follows them.
__host__ __device__ constexpr Plan plan_of(int32_t payload, int32_t tail, int32_t records,
                                           int32_t rank, bool turns, int32_t decay_row,
                                           bool staged) {
  Plan p{};
  p.staged = staged && records > 0 ? 1 : 0;
  p.turns = turns ? 1 : 0;
  p.gram = kColumnsAt + (rank + 7) / 8 * 8 * kColumnBytes;
  p.tails = p.gram + (rank > 8 ? 8 * 512 : 16 * 80);
  p.tail_bytes = (tail + 15) / 16 * 16;
  p.codes = p.tails + (1 + p.turns) * p.tail_bytes;
  p.code_bytes = payload;
  p.rows = p.codes + payload;
  p.codes_apart =
      payload + larger((records + rank + 7) / 8 * 8 * kRowBytes, kMatrixBytes - payload);
  p.records = p.codes + p.codes_apart + p.turns * payload;
  p.decays = p.records + p.staged * ((records * (2 * 256 + 4) + 32) / 16 * 16);
  p.list = p.decays + records * decay_row;
  return p;
}

// The places that serve all of a call's formats.
inline Plan plan_for(const Call128& call, int32_t records, bool turns, int32_t decay_row,
                     bool staged = true) {
  int32_t rank = 0;
  int32_t payload = 0;
  int32_t tail = 0;
  for (int32_t c = 0; c < call.num_classes; ++c) {
    const HeadFormat128& f = call.classes[c];
    rank = larger(rank, rank_of(f));
    payload = larger(payload, 2048 * f.bits);
    tail = larger(tail, f.bytes - 2048 * f.bits);
  }
  return plan_of(payload, tail, records, rank, turns, decay_row, staged);
}

// A state being folded: where its parts lie, and its rebuild. Fit and codec are added by what
// derives from it. What is cheap to work out again is not kept: registers are short.
struct FoldState {
  const Call128& call;
  const Plan& plan;
  const HeadFormat128& format;
  char* shared;
  int32_t turn;   // 0 or 1: which half and tail are this fold's
  int32_t index;  // of the thread

  __device__ __forceinline__ int32_t thread() const { return index; }
  __device__ __forceinline__ int32_t lane() const { return thread() & 31; }
  __device__ __forceinline__ int32_t warp() const { return thread() >> 5; }
  __device__ __forceinline__ int32_t g() const { return lane() >> 2; }
  __device__ __forceinline__ int32_t t() const { return thread() & 3; }
  __device__ __forceinline__ int32_t rank() const { return rank_of(format); }
  __device__ __forceinline__ int32_t side_count() const { return (rank() + 7) & ~7; }

  template <typename T>
  __device__ __forceinline__ T* at(int32_t bytes) const {
    return reinterpret_cast<T*>(shared + bytes);
  }
  // The codes; and where the boundary state would start whose other parts lie in the tail.
  __device__ __forceinline__ static int32_t payload_of(const HeadFormat128& f) {
    return 2048 * f.bits;
  }
  __device__ __forceinline__ char* codes() const {
    return shared + plan.codes + turn * plan.codes_apart;
  }
  __device__ __forceinline__ char* boundary() const {
    return shared + plan.tails + turn * plan.tail_bytes - payload_of(format);
  }
  // The FP16 copy of the state: over this fold's codes and the rows.
  __device__ __forceinline__ uint32_t matrix() const {
    return shared_address(shared + plan.codes + turn * plan.code_bytes);
  }
  __device__ __forceinline__ float* sides() const { return at<float>(kColumnsAt + kFloatsAt); }
  __device__ __forceinline__ __half* column(int32_t c, int32_t part) const {
    return at<__half>(kColumnsAt + c * kColumnBytes + part);
  }

  __device__ __forceinline__ int32_t first_key() const {  // the lane's keys: this and three more
    return 16 * warp() + 4 * t();
  }
  // Key of column g of an operand's tile n: operand order is [tile][t][e] within 16 keys.
  __device__ __forceinline__ int32_t operand_key(int32_t n) const {
    return 16 * warp() + 4 * (g() >> 1) + 2 * n + (g() & 1);
  }
  // Where keys 4 lane and 4 lane + 1 lie in operand order, in words; the next two 4 further.
  __device__ __forceinline__ int32_t operand_word() const { return 8 * (lane() >> 2) + t(); }

  // Entries 4 lane .. 4 lane + 3 of a compensator without its scale.
  __device__ __forceinline__ float4 raw_entries(bool key, int32_t c) const {
    if (c < format.num_fp16) {
      const char* from = boundary() + (key ? format.fp16_keys : format.fp16_values) + c * 256;
      return widen(reinterpret_cast<const uint2*>(from)[lane()], LEAPQUANT_FP16);
    }
    c -= format.num_fp16;
    if (c < format.num_int8) {
      const char* from = boundary() + (key ? format.int8_keys : format.int8_values) + c * 128;
      const char4 x = reinterpret_cast<const char4*>(from)[lane()];
      return make_float4(x.x, x.y, x.z, x.w);
    }
    c -= format.num_int8;
    const char* from = boundary() + (key ? format.int4_keys : format.int4_values) + c * 64;
    const int32_t word = reinterpret_cast<const unsigned short*>(from)[lane()];
    return make_float4(
        static_cast<float>(word & 15) - 7.5f, static_cast<float>((word >> 4) & 15) - 7.5f,
        static_cast<float>((word >> 8) & 15) - 7.5f, static_cast<float>(word >> 12) - 7.5f);
  }
  __device__ __forceinline__ float scale_of(bool key, int32_t c) const {
    if (c < format.num_fp16) return 1.0f;
    return half_at(boundary() + (key ? format.key_scales : format.value_scales),
                   c - format.num_fp16);
  }

  // Four of a row's values that belong to the lane.
  __device__ __forceinline__ uint2& row_values(int32_t r) const {
    return at<uint2>(plan.rows + r * kRowBytes + kRowValuesAt)[lane()];
  }
  // Four entries of a row's key side in FP32, until they become operands in the same place.
  __device__ __forceinline__ float4& row_floats(int32_t r) const {
    return at<float4>(plan.rows + r * kRowBytes)[lane()];
  }
  // Four entries of a key side, as high and low parts in operand order.
  __device__ __forceinline__ void put_keys(char* to, float4 x) const {
    uint32_t high[2], low[2];
    split(x.x, x.y, &high[0], &low[0]);
    split(x.z, x.w, &high[1], &low[1]);
    uint32_t* words = reinterpret_cast<uint32_t*>(to) + operand_word();
    words[0] = high[0], words[4] = high[1];
    words[64] = low[0], words[68] = low[1];
  }
  // Scalar decays: in lane r what record r is multiplied by, that is the decays of those after it.
  // x: the log decays, a record a lane. *whole: what the state before all of them is.
  __device__ __forceinline__ static float record_factors(int32_t lane, float x, float* whole) {
    float after = __shfl_down_sync(kAll, x, 1);
    if (lane == 31) after = 0.0f;
#pragma unroll
    for (int32_t step = 1; step < 32; step <<= 1) {
      const float other = __shfl_down_sync(kAll, after, step);
      if (lane + step < 32) after += other;
    }
    *whole = __shfl_sync(kAll, exp_fast(after + x), 0);
    return exp_fast(after);
  }
  // Vector decays: factors of the lane's four keys from those of records first .. records - 1.
  __device__ __forceinline__ float4 decays_from(int32_t first, int32_t records) const {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
    for (int32_t r = records - 1; r >= first; --r) {
      const float4 x = at<float4>(plan.decays + r * 512)[lane()];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    return make_float4(exp_fast(sum.x), exp_fast(sum.y), exp_fast(sum.z), exp_fast(sum.w));
  }

  __device__ __forceinline__ static float4 product(const float4& a, const float4& b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
  }
  __device__ __forceinline__ static float magnitude(float4 x) {
    return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  }
  __device__ __forceinline__ void note_magnitude(int32_t slot, float most) const {
    const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(most));
    if (lane() == 0) at<uint32_t>(kMagnitudesAt)[8 * slot + warp()] = bits;
  }

  // Rows of the rebuild with their decays as operands, scaled to FP16's good range; the keys'
  // factors on the residual and the values' steps; the fit's first columns. A warp takes a row, at
  // first in FP32 where its operands will lie. Returns the state's scale, a power of two. Ends with
  // a barrier.
  // window: the records' keys, corrections and scalar log decays, by number. kAhead: what a turn of
  // a loop reads is loaded in the one before.
  template <bool kVector, bool kAhead, typename Window>
  __device__ __forceinline__ float prepare(const Window& window, int32_t records) const {
    const int32_t count = rank();
    uint2 next_key = {}, next_correction = {};
    const auto load = [&](int32_t r) {
      if (r >= records) return;
      next_key = window.key(r, lane());
      next_correction = window.correction(r, lane());
    };
    if (kAhead) load(warp());
    float factor = 1.0f;  // of record `lane`
    float4 whole;         // of all records
    if constexpr (kVector) {
      whole = decays_from(0, records);
    } else {
      const float x = lane() < records ? window.decay(lane()) : 0.0f;
      float all;
      factor = record_factors(lane(), x, &all);
      whole = make_float4(all, all, all, all);
    }
    float most = 0.0f;
#pragma unroll 1
    for (int32_t r = warp(); r < records; r += kWarps) {
      if (!kAhead) load(r);
      const uint2 key = next_key;
      row_values(r) = next_correction;
      if (kAhead) load(r + kWarps);
      const float scalar = __shfl_sync(kAll, factor, r);
      const float4 decay =
          kVector ? decays_from(r + 1, records) : make_float4(scalar, scalar, scalar, scalar);
      const float4 x = product(widen(key, LEAPQUANT_FP16), decay);
      row_floats(r) = x;
      most = fmaxf(most, magnitude(x));
    }
#pragma unroll 1
    for (int32_t c = warp(); c < count; c += kWarps) {
      const float scale = scale_of(false, c);
      const float both = scale_of(true, c) * scale;
      const float4 key =
          product(raw_entries(true, c), product(whole, make_float4(both, both, both, both)));
      row_floats(records + c) = key;
      most = fmaxf(most, magnitude(key));
      float4 x = raw_entries(false, c);
      if (scale == 0.0f) x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const uint2 halves = make_uint2(pack_fp16(x.x, x.y), pack_fp16(x.z, x.w));
      row_values(records + c) = halves;
      reinterpret_cast<uint2*>(column(c, 0))[lane()] = halves;
      reinterpret_cast<uint2*>(column(c, kLowAt))[lane()] = make_uint2(0, 0);
      const bool alive = __any_sync(kAll, magnitude(x) > 0.0f);
      if (lane() == 0) at<uint32_t>(kAliveAt)[c] = alive ? 1u : 0u;
    }
    note_magnitude(0, most);
    float4 mine = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // factors or scales
    if (warp() == kWarps - 1) {
      mine = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      const char* from = boundary() + format.smoothing_at;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        mine = reinterpret_cast<const float4*>(from)[lane()];
      } else if (format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
        const uchar4 x = reinterpret_cast<const uchar4*>(from)[lane()];
        mine = make_float4(log8_value(x.x), log8_value(x.y), log8_value(x.z), log8_value(x.w));
      }
      mine = product(mine, whole);
      note_magnitude(1, magnitude(mine));
    } else if (warp() == kWarps - 2) {
      const char* from = boundary() + format.value_scale;
      mine = format.fp16_scale ? widen(reinterpret_cast<const uint2*>(from)[lane()], LEAPQUANT_FP16)
                               : reinterpret_cast<const float4*>(from)[lane()];
      note_magnitude(2, magnitude(mine));
    } else if (warp() == kWarps - 3) {  // rows and columns past the last, for the products
      const int32_t used = records + count;
#pragma unroll 1
      for (int32_t r = used; (r & 7) != 0; ++r) {
#pragma unroll
        for (int32_t part = 0; part < 3; ++part) {
          at<uint2>(plan.rows + r * kRowBytes + 256 * part)[lane()] = make_uint2(0, 0);
        }
      }
#pragma unroll 1
      for (int32_t r = count; (r & 7) != 0; ++r) {
#pragma unroll
        for (int32_t part = 0; part < 4; ++part) {
          reinterpret_cast<uint2*>(column(r, 256 * part))[lane()] = make_uint2(0, 0);
        }
      }
    }
    sync_team();
    // Magnitudes of rows (of all warps), factors and scales: exponents, then powers of two.
    const float* magnitudes = at<float>(kMagnitudesAt);
    float largest =
        __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(magnitudes[lane() & 7])));
    const float factors = magnitudes[8 + kWarps - 1];
    largest = fmaxf(largest, factors * magnitudes[16 + kWarps - 2]);
    const int32_t all = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23), 20), 240);
    const int32_t keys = min(max(static_cast<int32_t>(__float_as_uint(factors) >> 23), 20), 240);
    const float scale = power_of_two(131 - all);  // the largest to 2^4 .. 2^5
    float4 next = {};
    if (kAhead) next = row_floats(warp());
#pragma unroll 1
    for (int32_t r = warp(); r < records + count; r += kWarps) {
      const float4 x = kAhead ? next : row_floats(r);
      if (kAhead && r + kWarps < records + count) next = row_floats(r + kWarps);
      __syncwarp();
      put_keys(shared + plan.rows + r * kRowBytes,
               product(x, make_float4(scale, scale, scale, scale)));
    }
    if (warp() == kWarps - 1) {
      const float by = power_of_two(131 - keys);
      at<float4>(kFactorsAt)[lane()] = product(mine, make_float4(by, by, by, by));
    } else if (warp() == kWarps - 2) {
      const float by = power_of_two(min(max(keys - all, -126), 127)) * format.inverse_q;
      float* to = at<float>(kStepsAt) + 4 * (lane() & 1) * kStepRow + (lane() >> 1);
      to[0] = mine.x * by, to[kStepRow] = mine.y * by;
      to[2 * kStepRow] = mine.z * by, to[3 * kStepRow] = mine.w * by;
    }
    sync_team();
    return scale;
  }

  // S += sum over rows of (key side) * (value side), both FP16, key sides in two parts. `count`: a
  // multiple of 8.
  template <int kBytes, int kKeys, int kValues>
  __device__ __forceinline__ void add_rows(State* s, int32_t rows, int32_t count) const {
    const uint32_t start = shared_address(shared + rows);
    // Operands of 16 rows: values in tiles of 16, the warp's keys in two tiles of 8.
    const uint32_t values =
        start + kValues + ((lane() & 7) + 8 * (lane() >> 4)) * kBytes + 16 * ((lane() >> 3) & 1);
    const uint32_t keys = start + kKeys + (lane() & 15) * kBytes + 32 * warp() + 16 * (lane() >> 4);
    int32_t k = 0;
#pragma unroll 1
    for (; k + 16 <= count; k += 16) {
      uint32_t high[4], low[4];
      load_matrices_transposed(high, keys + k * kBytes);
      load_matrices_transposed(low, keys + k * kBytes + 256);
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        uint32_t a[4];
        load_matrices_transposed(a, values + k * kBytes + 32 * m);
        mma_fp16(s->at[0][m], a[0], a[1], a[2], a[3], high[0], high[1]);
        mma_fp16(s->at[1][m], a[0], a[1], a[2], a[3], high[2], high[3]);
        mma_fp16(s->at[0][m], a[0], a[1], a[2], a[3], low[0], low[1]);
        mma_fp16(s->at[1][m], a[0], a[1], a[2], a[3], low[2], low[3]);
      }
    }
    if (k < count) {  // 8 rows more: values twice, for high and low parts of the keys
      const uint32_t row = start + (k + (lane() & 7)) * kBytes;
      uint32_t b[4];  // high parts of both tiles, low parts
      load_matrices_transposed(
          b, row + kKeys + 32 * warp() + 16 * ((lane() >> 3) & 1) + 256 * (lane() >> 4));
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        uint32_t a[4];
        load_matrices_transposed(a, row + kValues + 32 * m + 16 * ((lane() >> 3) & 1));
        mma_fp16(s->at[0][m], a[0], a[1], a[2], a[3], b[0], b[2]);
        mma_fp16(s->at[1][m], a[0], a[1], a[2], a[3], b[1], b[3]);
      }
    }
  }

  // S of the lane in the scale that `prepare` chose. Codes are FP16 operands, exactly; the other
  // operand is the diagonal of the keys' factors in two parts; kTogether: by one product.
  template <bool kTogether>
  __device__ __forceinline__ void rebuild(State* s, int32_t rows) const {
    constexpr float kNothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    constexpr uint32_t kMinusHalves = 0xb800b800u;  // -0.5 twice
    uint32_t high[2], low[2];
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      const float f = t() == g() >> 1 ? at<float>(kFactorsAt)[operand_key(n)] : 0.0f;
      split((g() & 1) == 0 ? f : 0.0f, (g() & 1) == 0 ? 0.0f : f, &high[n], &low[n]);
    }
    const uint32_t offset = format.bits == 8   ? 0x64806480u
                            : format.bits == 6 ? 0x64206420u
                                               : 0x64086408u;  // 1024 + what makes codes unsigned
    // 0x64646464, in a register: the places of the bytes are to be the instruction's constant.
    const uint32_t high_byte =
        __byte_perm(static_cast<uint32_t>(fresh_copy(static_cast<int32_t>(offset))), 0, 0x1111);
    const float* steps = at<float>(kStepsAt) + kStepRow * g();
    uint32_t words[4][4];
    load_codes(words);
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      const uint32_t (&word)[4] = words[vb];
      const float4 step = *reinterpret_cast<const float4*>(steps + 4 * vb);
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
#pragma unroll
        for (int32_t n = 0; n < 2; ++n) {
          float (&d)[4] = s->at[n][2 * vb + j];
          const uint32_t places = n == 0 ? 0x4140u : 0x4342u;
          uint32_t a0 = subtract_halves(__byte_perm(word[2 * j], high_byte, places), offset);
          uint32_t a1 = subtract_halves(__byte_perm(word[2 * j + 1], high_byte, places), offset);
          if (format.half_levels) {  // the half of half-integers, which codes lack
            a0 = subtract_halves(a0, kMinusHalves);
            a1 = subtract_halves(a1, kMinusHalves);
          }
          if (kTogether) {
            mma_fp16_from(d, a0, a1, a0, a1, high[n], low[n], kNothing);
          } else {
            mma_fp16_of(d, a0, a1, high[n], kNothing);
            mma_fp16_short(d, a0, a1, low[n]);
          }
          const float lower = j == 0 ? step.x : step.z;
          const float upper = j == 0 ? step.y : step.w;
          d[0] *= lower, d[1] *= lower, d[2] *= upper, d[3] *= upper;
        }
      }
    }
    add_rows<kRowBytes, 0, kRowValuesAt>(s, plan.rows, rows);
  }

  // word[vb][p], bytes 0 .. 3: the codes of the lane's keys, value 32 vb + 8 p + g, plus the offset
  // that makes them unsigned.
  __device__ __forceinline__ void load_codes(uint32_t (&word)[4][4]) const {
    const int32_t kb = warp();
    if (format.bits == 8) {
#pragma unroll
      for (int32_t vb = 0; vb < 4; ++vb) {
        const uint4 w = reinterpret_cast<const uint4*>(codes() + 16 * thread())[vb * 256];
        word[vb][0] = w.x ^ 0x80808080u, word[vb][1] = w.y ^ 0x80808080u;
        word[vb][2] = w.z ^ 0x80808080u, word[vb][3] = w.w ^ 0x80808080u;
      }
      return;
    }
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      const uint2 w = reinterpret_cast<const uint2*>(
          codes())[((vb * 4 + (kb >> 1)) * 32 + lane()) * 2 + (kb & 1)];
      word[vb][0] = w.x & 0x0f0f0f0fu, word[vb][1] = (w.x >> 4) & 0x0f0f0f0fu;
      word[vb][2] = w.y & 0x0f0f0f0fu, word[vb][3] = (w.y >> 4) & 0x0f0f0f0fu;
    }
    if (format.bits == 4) return;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      const uint32_t h = reinterpret_cast<const uint32_t*>(
          codes() + 8192)[((vb * 2 + (kb >> 2)) * 32 + lane()) * 4 + (kb & 3)];
      word[vb][0] |= (h << 4) & 0x30303030u, word[vb][1] |= (h << 2) & 0x30303030u;
      word[vb][2] |= h & 0x30303030u, word[vb][3] |= (h >> 2) & 0x30303030u;
    }
  }

  // word[vb][p], bytes 0 .. 3: the two's complement codes of the lane's keys, value 32 vb + 8 p +
  // g.
  __device__ __forceinline__ void store_codes(const uint32_t (&word)[4][4]) const {
    const int32_t kb = warp();
    if (format.bits == 8) {
#pragma unroll
      for (int32_t vb = 0; vb < 4; ++vb) {
        reinterpret_cast<uint4*>(codes() + 16 * thread())[vb * 256] =
            make_uint4(word[vb][0], word[vb][1], word[vb][2], word[vb][3]);
      }
      return;
    }
    // code + 32 or code + 8: low four bits
    const uint32_t flip = format.bits == 6 ? 0u : 0x08080808u;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      reinterpret_cast<uint2*>(codes())[((vb * 4 + (kb >> 1)) * 32 + lane()) * 2 + (kb & 1)] =
          make_uint2(
              ((word[vb][0] ^ flip) & 0x0f0f0f0fu) | ((word[vb][1] ^ flip) & 0x0f0f0f0fu) << 4,
              ((word[vb][2] ^ flip) & 0x0f0f0f0fu) | ((word[vb][3] ^ flip) & 0x0f0f0f0fu) << 4);
    }
    if (format.bits == 4) return;
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t high = 0;
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        high |= (((word[vb][p] >> 4) & 0x03030303u) ^ 0x02020202u) << (2 * p);
      }
      reinterpret_cast<uint32_t*>(codes() +
                                  8192)[((vb * 2 + (kb >> 2)) * 32 + lane()) * 4 + (kb & 3)] = high;
    }
  }

  // The FP16 copy of the state; others may read it after a barrier.
  __device__ __forceinline__ void store_matrix(const State& s) const {
    const uint32_t row = matrix() + ((lane() & 7) + 8 * ((lane() >> 3) & 1)) * kMatrixRow +
                         32 * warp() + 16 * (lane() >> 4);
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
      const float (&x)[4] = s.at[0][m];
      const float (&y)[4] = s.at[1][m];
      store_matrices(row + 16 * kMatrixRow * m, pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]),
                     pack_fp16(y[0], y[1]), pack_fp16(y[2], y[3]));
    }
  }

  // What the FP16 copy lacks, in its place. Only the warp's own keys may still be read then.
  __device__ __forceinline__ void store_matrix_lows(const State& s) const {
    const uint32_t row = matrix() + ((lane() & 7) + 8 * ((lane() >> 3) & 1)) * kMatrixRow +
                         32 * warp() + 16 * (lane() >> 4);
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
      uint32_t high, low[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float (&x)[4] = s.at[i / 2][m];
        split(x[2 * (i % 2)], x[2 * (i % 2) + 1], &high, &low[i]);
      }
      store_matrices(row + 16 * kMatrixRow * m, low[0], low[1], low[2], low[3]);
    }
  }

  // Sum over the block of what its warps have, in a fixed order; all threads get it. `slot` 0 .. 7:
  // what follows one another without a barrier between needs different ones.
  __device__ __forceinline__ float block_total(float x, int32_t slot) const {
    float* to = at<float>(kReductionsAt) + 8 * slot;
    if (lane() == 0) to[warp()] = x;
    sync_team();
    return sum_of_eight(to);
  }
  __device__ __forceinline__ float block_sum(float x, int32_t slot) const {
    return block_total(sum_of_warp(x), slot);
  }
  __device__ __forceinline__ uint32_t block_max(uint32_t bits, int32_t slot) const {
    bits = __reduce_max_sync(kAll, bits);
    uint32_t* to = at<uint32_t>(kReductionsAt) + 8 * slot;
    if (lane() == 0) to[warp()] = bits;
    sync_team();
    return __reduce_max_sync(kAll, to[lane() & 7]);
  }
};

}  // namespace leapquant::cuda::folding_128
