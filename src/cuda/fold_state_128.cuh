// SPDX-License-Identifier: Apache-2.0
//
// A block's view of a head that is folded: the plan of shared memory, the state in registers, its
// rebuild from codes, compensators and records, and rows added or taken off by the matrix units.
#pragma once

#include <cuda_fp16.h>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/fold_numbers_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

using namespace device_128;

constexpr uint32_t kAll = 0xffffffffu;
constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / 32;
// A row: 128 values in FP16, their low parts in FP16 (the fit's columns only), 128 floats. The
// stride keeps the eight rows of a matrix in different banks.
constexpr int32_t kRowBytes = 1072;
constexpr int32_t kLowAt = 272;
constexpr int32_t kFloatsAt = 544;
constexpr int32_t kStride = kRowBytes / 4;
constexpr int32_t kPartialBytes = 32768;  // one pass of S^T P: 512 sums of every warp

// Shared memory of a block, in bytes from its start. First what has a fixed place.
constexpr int32_t kFactorsAt = 0;                    // per key
constexpr int32_t kStepsAt = 512;                    // per value
constexpr int32_t kMaximaAt = 1024;                  // per value
constexpr int32_t kInversesAt = 1536;                // per value: (factor of the codes, step)
constexpr int32_t kReductionsAt = 2560;              // [4][16]
constexpr int32_t kRecordFactorsAt = 2816;           // [33]
constexpr int32_t kAliveAt = 2960;                   // [32]
constexpr int32_t kMagnitudesAt = 3088;              // [3]
constexpr int32_t kValueScalesAt = 3104;             // [32]
constexpr int32_t kScalesAt = 3232;                  // scale, unscale, energy
constexpr int32_t kGramAt = 3248;                    // [32][33]
constexpr int32_t kSidesAt = kGramAt + 32 * 33 * 4;  // the fit's columns, as FP16 and as FP32
static_assert(kSidesAt % 16 == 0);
// Then, with places that a call's formats decide: the boundary state, the rows of the rebuild
// (records, then compensators), vector decays. What only the rebuild needs is dead when the fit's
// partial sums are written over it.
struct Plan {
  int32_t boundary, rows, decays, list;
};

__host__ __device__ constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

__host__ __device__ constexpr Plan plan_of(int32_t boundary_bytes, int32_t records, int32_t rank,
                                           int32_t decay_row) {
  Plan p{};
  p.boundary = kSidesAt + (rank + 7) / 8 * 8 * kRowBytes;
  p.rows = p.boundary + boundary_bytes;
  p.decays = p.rows + (records + rank + 7) / 8 * 8 * kRowBytes;
  p.list = larger(p.decays + records * decay_row, p.boundary + kPartialBytes);
  return p;
}

// State entries of a lane: at[m][2 hh + e] is value 16 m + 8 hh + g of key 16 (warp / 2) + 4 t +
// 2 (warp % 2) + e: two of the four neighbouring keys that share a word of the payload.
struct State {
  float at[8][4];
};

// A state being folded: where its parts lie, and its rebuild. Fit and codec are added by what
// derives from it. What is cheap to work out again is not kept: registers are short.
struct FoldState {
  const Call128& call;
  const Plan& plan;
  const HeadFormat128& format;
  char* shared;

  __device__ __forceinline__ static int32_t thread() { return static_cast<int32_t>(threadIdx.x); }
  __device__ __forceinline__ static int32_t lane() { return thread() & 31; }
  __device__ __forceinline__ static int32_t warp() { return thread() >> 5; }
  __device__ __forceinline__ static int32_t g() { return lane() >> 2; }
  __device__ __forceinline__ static int32_t t() { return thread() & 3; }
  __device__ __forceinline__ int32_t rank() const {
    return format.num_fp16 + format.num_int8 + format.num_int4;
  }
  __device__ __forceinline__ int32_t side_count() const { return (rank() + 7) & ~7; }

  template <typename T>
  __device__ __forceinline__ T* at(int32_t bytes) const {
    return reinterpret_cast<T*>(shared + bytes);
  }
  __device__ __forceinline__ char* boundary() const { return shared + plan.boundary; }
  __device__ __forceinline__ float* sides() const { return at<float>(kSidesAt + kFloatsAt); }
  __device__ __forceinline__ float* weights() const { return at<float>(plan.rows + kFloatsAt); }
  __device__ __forceinline__ __half* half_row(int32_t rows, int32_t r) const {
    return at<__half>(rows + r * kRowBytes);
  }

  __device__ __forceinline__ static int32_t first_key() {  // the lane's keys: this and the next
    return 16 * (warp() >> 1) + 4 * t() + 2 * (warp() & 1);
  }
  __device__ __forceinline__ static int32_t operand_key() {  // key of column g of an operand
    return 16 * (warp() >> 1) + 4 * (g() >> 1) + 2 * (warp() & 1) + (g() & 1);
  }

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

  __device__ __forceinline__ void note_magnitude(int32_t slot, float4 x) const {
    const float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
    const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(most));
    if (lane() == 0) atomicMax(at<uint32_t>(kMagnitudesAt) + slot, bits);
  }
  // Four of a row's floats, or of its FP16 values, that belong to the lane.
  __device__ __forceinline__ float4& row_floats(int32_t rows, int32_t r) const {
    return at<float4>(rows + r * kRowBytes + kFloatsAt)[lane()];
  }
  __device__ __forceinline__ uint2& row_halves(int32_t rows, int32_t r) const {
    return at<uint2>(rows + r * kRowBytes)[lane()];
  }
  // Factors of the lane's four keys from the decays of records first .. records - 1.
  template <bool kVector>
  __device__ __forceinline__ float4 decays_from(int32_t first, int32_t records) const {
    if constexpr (!kVector) {
      const float x = at<float>(kRecordFactorsAt)[first > 0 ? first - 1 : 32];
      return make_float4(x, x, x, x);
    } else {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
      for (int32_t r = records - 1; r >= first; --r) {
        const float4 x = at<float4>(plan.decays + r * 512)[lane()];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      return make_float4(exp_fast(sum.x), exp_fast(sum.y), exp_fast(sum.z), exp_fast(sum.w));
    }
  }

  // Weights of the rebuild [row][key] with their decays, the keys' factors on the residual, FP16
  // rows of the compensators' value sides. The records' bare keys lie in the weights already. A
  // warp takes a row. Returns the number of rows. Ends with a barrier.
  template <bool kVector>
  __device__ __forceinline__ int32_t prepare(int32_t records) const {
    const int32_t count = rank();
    const int32_t used = records + count;
    const int32_t rows = (used + 7) & ~7;
#pragma unroll 1
    for (int32_t r = warp(); r < rows; r += kWarps) {
      if (r < used) {
        float4 w = row_floats(plan.rows, r);
        float4 decay = decays_from<kVector>(r < records ? r + 1 : 0, records);
        const int32_t c = r - records;
        if (c >= 0) {
          w = raw_entries(true, c);
          const float scale = scale_of(false, c);
          const float both = scale_of(true, c) * scale;
          decay.x *= both, decay.y *= both, decay.z *= both, decay.w *= both;
          float4 x = raw_entries(false, c);
          if (scale == 0.0f) x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          const __half2 low = __floats2half2_rn(x.x, x.y);
          const __half2 high = __floats2half2_rn(x.z, x.w);
          const uint2 halves = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                          *reinterpret_cast<const uint32_t*>(&high));
          row_halves(plan.rows, r) = halves;
          row_halves(kSidesAt, c) = halves;
          row_halves(kSidesAt + kLowAt, c) = make_uint2(0, 0);
          if (x.x != 0.0f || x.y != 0.0f || x.z != 0.0f || x.w != 0.0f) {
            at<uint32_t>(kAliveAt)[c] = 1;
          }
        }
        w = make_float4(w.x * decay.x, w.y * decay.y, w.z * decay.z, w.w * decay.w);
        row_floats(plan.rows, r) = w;
        note_magnitude(0, w);
      } else {
        row_floats(plan.rows, r) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        row_halves(plan.rows, r) = make_uint2(0, 0);
      }
    }
    if (warp() == kWarps - 1) {
      float4 c = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      const char* from = boundary() + format.smoothing_at;
      if (format.smoothing == LEAPQUANT_SMOOTHING_FP32) {
        c = reinterpret_cast<const float4*>(from)[lane()];
      } else if (format.smoothing == LEAPQUANT_SMOOTHING_LOG8) {
        const uchar4 x = reinterpret_cast<const uchar4*>(from)[lane()];
        c = make_float4(log8_value(x.x), log8_value(x.y), log8_value(x.z), log8_value(x.w));
      }
      const float4 decay = decays_from<kVector>(0, records);
      c = make_float4(c.x * decay.x, c.y * decay.y, c.z * decay.z, c.w * decay.w);
      at<float4>(kFactorsAt)[lane()] = c;
      note_magnitude(1, c);
    } else if (warp() == kWarps - 2) {
      const char* from = boundary() + format.value_scale;
      const float4 x = format.fp16_scale
                           ? widen(reinterpret_cast<const uint2*>(from)[lane()], LEAPQUANT_FP16)
                           : reinterpret_cast<const float4*>(from)[lane()];
      at<float4>(kStepsAt)[lane()] = make_float4(x.x * format.inverse_q, x.y * format.inverse_q,
                                                 x.z * format.inverse_q, x.w * format.inverse_q);
      note_magnitude(2, x);
    } else if (warp() == kWarps - 3) {
      for (int32_t r = count; r < side_count(); ++r) row_halves(kSidesAt, r) = make_uint2(0, 0);
    }
    __syncthreads();
    return rows;
  }

  // S += scale * sum over rows of (FP32 part at key) * (FP16 part at value); the first as FP16 high
  // and low parts, so `scale` should bring the largest well into the range of FP16.
  __device__ __forceinline__ void add_rows(State* s, int32_t rows, int32_t count,
                                           float scale) const {
    const float* mine = at<float>(rows + kFloatsAt) + 2 * t() * kStride + operand_key();
    // Matrices: rows 0-7 and 8-15 of the step, values 0-7 and 8-15 of the tile.
    const uint32_t row = shared_address(shared + rows) +
                         ((lane() & 7) + 8 * (lane() >> 4)) * kRowBytes + 16 * ((lane() >> 3) & 1);
#pragma unroll 1
    for (int32_t k = 0; k < count; k += 16) {
      const bool whole = count - k > 8;  // else half a step: rows 8-15 count as zero
      uint32_t high[2], low[2];
      split(mine[k * kStride] * scale, mine[(k + 1) * kStride] * scale, &high[0], &low[0]);
      high[1] = low[1] = 0;
      if (whole) {
        split(mine[(k + 8) * kStride] * scale, mine[(k + 9) * kStride] * scale, &high[1], &low[1]);
      }
      const uint32_t from = row + (whole || lane() < 16 ? k : k - 8) * kRowBytes;
#pragma unroll
      for (int32_t m = 0; m < 8; ++m) {
        uint32_t a[4];
        load_matrices_transposed(a, from + 32 * m);
        mma_fp16(s->at[m], a[0], a[1], a[2], a[3], high[0], high[1]);
        mma_fp16(s->at[m], a[0], a[1], a[2], a[3], low[0], low[1]);
      }
    }
  }

  // S of the lane times a power of two, which it returns: residual codes, then compensators and
  // records.
  __device__ __forceinline__ float rebuild(State* s, int32_t rows) const {
    const float largest = fmaxf(at<float>(kMagnitudesAt)[0],
                                at<float>(kMagnitudesAt)[1] * at<float>(kMagnitudesAt)[2]);
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 20u), 240u);
    const float scale = __uint_as_float((268u - exponent) << 23);  // to 2^14 .. 2^15
    const float2 keys = *reinterpret_cast<const float2*>(at<float>(kFactorsAt) + first_key());
    const float factor[2] = {keys.x * scale, keys.y * scale};
    const uint32_t offset = format.bits == 8 ? 128u : format.bits == 6 ? 32u : 8u;
    const float bias = 32768.0f + static_cast<float>(offset) - (format.half_levels ? 0.5f : 0.0f);
#pragma unroll
    for (int32_t vb = 0; vb < 4; ++vb) {
      uint32_t word[4];
      load_codes(vb, word);
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) {
        const float step = at<float>(kStepsAt)[32 * vb + 8 * p + g()];
#pragma unroll
        for (int32_t e = 0; e < 2; ++e) {
          // 32768 + byte, exact, with a fraction of eight bits.
          const float code = __uint_as_float(__byte_perm(word[p], 0x47000000u, 0x7604 + 16 * e));
          s->at[2 * vb + p / 2][2 * (p % 2) + e] = (code - bias) * step * factor[e];
        }
      }
    }
    add_rows(s, plan.rows, rows, scale);
    return scale;
  }

  // word[p], bytes 0 and 1: the codes of the lane's keys, value 32 vb + 8 p + g, plus the offset
  // that makes them unsigned.
  __device__ __forceinline__ void load_codes(int32_t vb, uint32_t (&word)[4]) const {
    const int32_t kb = warp() >> 1;
    const uint32_t shift = 16u * (warp() & 1);
    if (format.bits == 8) {
      const uint4 w = reinterpret_cast<const uint4*>(boundary())[(vb * 8 + kb) * 32 + lane()];
      word[0] = (w.x ^ 0x80808080u) >> shift, word[1] = (w.y ^ 0x80808080u) >> shift;
      word[2] = (w.z ^ 0x80808080u) >> shift, word[3] = (w.w ^ 0x80808080u) >> shift;
      return;
    }
    const uint2 w = reinterpret_cast<const uint2*>(
        boundary())[((vb * 4 + (kb >> 1)) * 32 + lane()) * 2 + (kb & 1)];
    const uint32_t x = w.x >> shift;
    const uint32_t y = w.y >> shift;
    word[0] = x & 0x0f0fu, word[1] = (x >> 4) & 0x0f0fu;
    word[2] = y & 0x0f0fu, word[3] = (y >> 4) & 0x0f0fu;
    if (format.bits == 6) {
      const uint32_t h =
          reinterpret_cast<const uint32_t*>(
              boundary() + 8192)[((vb * 2 + (kb >> 2)) * 32 + lane()) * 4 + (kb & 3)] >>
          shift;
      word[0] |= (h << 4) & 0x3030u, word[1] |= (h << 2) & 0x3030u;
      word[2] |= h & 0x3030u, word[3] |= (h >> 2) & 0x3030u;
    }
  }

  // half[p], bytes 0 and 1: the two's complement codes of the lane's keys, value 32 vb + 8 p + g.
  __device__ __forceinline__ void store_codes(int32_t vb, const uint32_t (&half)[4]) const {
    const int32_t kb = warp() >> 1;
    const int32_t n = warp() & 1;
    if (format.bits == 8) {
      unsigned short* to =
          reinterpret_cast<unsigned short*>(boundary()) + ((vb * 8 + kb) * 32 + lane()) * 8 + n;
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) to[2 * p] = static_cast<unsigned short>(half[p]);
      return;
    }
    const uint32_t flip = format.bits == 6 ? 0u : 0x0808u;  // code + 32 or code + 8: low four bits
    unsigned short* to = reinterpret_cast<unsigned short*>(boundary()) +
                         (((vb * 4 + (kb >> 1)) * 32 + lane()) * 2 + (kb & 1)) * 4 + n;
#pragma unroll
    for (int32_t p = 0; p < 4; p += 2) {
      to[p] = static_cast<unsigned short>(((half[p] ^ flip) & 0x0f0fu) |
                                          ((half[p + 1] ^ flip) & 0x0f0fu) << 4);
    }
    if (format.bits == 6) {
      uint32_t high = 0;
#pragma unroll
      for (int32_t p = 0; p < 4; ++p) high |= (((half[p] >> 4) & 0x0303u) ^ 0x0202u) << (2 * p);
      reinterpret_cast<unsigned short*>(
          boundary() + 8192)[(((vb * 2 + (kb >> 2)) * 32 + lane()) * 4 + (kb & 3)) * 2 + n] =
          static_cast<unsigned short>(high);
    }
  }

  // Sum over the block in a fixed order; all threads get it. `slot` 0 .. 3: what follows one
  // another without a barrier between needs different ones.
  __device__ __forceinline__ float block_sum(float x, int32_t slot) const {
    x = sum_of_warp(x);
    float* to = at<float>(kReductionsAt) + 16 * slot;
    if (lane() == 0) to[warp()] = x;
    __syncthreads();
    return sum_of_sixteen(to);
  }
  __device__ __forceinline__ uint32_t block_max(uint32_t bits, int32_t slot) const {
    bits = __reduce_max_sync(kAll, bits);
    uint32_t* to = at<uint32_t>(kReductionsAt) + 16 * slot;
    if (lane() == 0) to[warp()] = bits;
    __syncthreads();
    return __reduce_max_sync(kAll, to[lane() & 15]);
  }
};

__device__ __forceinline__ float squares(const State& s) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) sum[i & 1] = fmaf(s.at[m][i], s.at[m][i], sum[i & 1]);
  }
  return sum[0] + sum[1];
}

__device__ __forceinline__ float largest_of(const State& s) {
  float most = 0.0f;
#pragma unroll
  for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) most = fmaxf(most, fabsf(s.at[m][i]));
  }
  return most;
}

__device__ __forceinline__ void multiply(State* s, float factor) {
#pragma unroll
  for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) s->at[m][i] *= factor;
  }
}

}  // namespace leapquant::cuda::folding_128
