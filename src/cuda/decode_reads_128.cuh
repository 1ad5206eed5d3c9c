// SPDX-License-Identifier: Apache-2.0
//
// Parts of the decode of heads of 128 x 128 that know no head: the plan of shared memory, sums over
// lanes, codes and vectors as floats, the residual read by the integer matrix units.
#pragma once

#include <cuda_fp16.h>

#include "cuda/call_128.cuh"
#include "cuda/numbers_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::decoding_128 {

using namespace device_128;
using numbers_128::half_at;
using numbers_128::kAll;
using numbers_128::log8_value;
using numbers_128::split;
using numbers_128::sum_of_warp;

constexpr int32_t kPlaneWords = 36;   // 32 words of one byte plane, padded against bank conflicts
constexpr int32_t kLimbBytes = 1024;  // both vectors as FP16, high and low parts
constexpr int32_t kDeferredWords = 16;
// Inputs of a head: rows q, k, v in BF16, beta and log decay, log decays of the records (scalar) or
// of the token (vector, up to 512 bytes).
constexpr int32_t kKeyInputAt = 256;
constexpr int32_t kValueInputAt = 512;
constexpr int32_t kScalarsAt = 768;
constexpr int32_t kDecaysAt = 784;

// Tokens of a head that are read together where drafts are common (decode_drafts_128.cuh), else 1.
constexpr int32_t kDraftsTogether = 4;
constexpr int32_t drafts_together(bool vector, int32_t pairs, bool plain, bool many) {
  return !vector && pairs == 1 && plain && many ? kDraftsTogether : 1;
}
// Inputs of these tokens: rows q, k, v of each, the residual's value scales, beta and log decay of
// each, log decays of the records. And words that tell of a token.
constexpr int32_t kDraftInputBytes = 768;
constexpr int32_t kDraftScalesAt = kDraftsTogether * kDraftInputBytes;
constexpr int32_t kDraftScalarsAt = kDraftScalesAt + 512;
constexpr int32_t kDraftDecaysAt = kDraftScalarsAt + 8 * kDraftsTogether;
constexpr int32_t kDraftBytes = kDraftDecaysAt + 128;
constexpr int32_t kDraftUnits = 16;

// Shared memory of one block, in bytes from its start. Every pair of warps has scratch of its own,
// `scratch` bytes from the next one's: places from `limbs` on are the first pair's.
struct Plan {
  int32_t keys, corrections, decays, inputs, deferred, bases, pointers, barriers, faults;
  int32_t limbs, codes, weights, units, scratch, bytes;
  int32_t rows;   // weights of one vector
  int32_t words;  // sums of codes: between those of one digit pair and the next
};

// Codes of 8 bits, of the first 32 values, that a pair of a pool brings only when others are read,
// into the place of these: so that one more pair has room.
__host__ __device__ constexpr int32_t late_bytes(int32_t bits) { return bits == 8 ? 4096 : 0; }

// rows: what a call's formats need (call.weight_rows). together: drafts_together. ranges: the block
// keeps account of its heads itself.
__host__ __device__ constexpr Plan plan_of(int32_t boundary_bytes, int32_t capacity,
                                           int32_t decay_bytes, int32_t rows, int32_t pairs,
                                           int32_t together, bool ranges = true) {
  const bool drafts = together > 1;
  Plan p{};
  int32_t at = boundary_bytes;
  p.keys = at;
  at += capacity * 256;
  // Half of the banks apart from the value sides of FP16 compensators, with which lanes read them.
  at = (at + 63) / 128 * 128 + 64;
  p.corrections = at;
  at += capacity * 256;
  p.decays = at;
  at += capacity * 128 * decay_bytes;
  p.inputs = at;
  at += drafts ? kDraftBytes : kDecaysAt + (decay_bytes != 0 ? 512 : 128);
  if (ranges) {
    p.deferred = at;
    at += kDeferredWords * 4;
    p.bases = at;
    at += 32 * 4;
    p.pointers = at;
    at += 80;
  }
  p.barriers = at;
  p.faults = at + 5 * 8;  // of the sequence at hand, behind five barriers
  at += 6 * 8;
  p.limbs = at;  // then sums of rows [2][128]: the limbs are dead
  at += drafts ? 512 * together : kLimbBytes;
  p.codes = at;  // byte planes of both vectors, then sums of codes [4][words], drafts: [2][words]
  p.words = 128 / pairs + 8;
  const int32_t sums = (drafts ? 2 * together : 4) * p.words * 4;
  const int32_t planes = together * 8 * kPlaneWords * 4;
  at += sums > planes ? sums : planes;
  p.rows = rows;
  // [2][rows], then factors [rows + 48]: written past the last row too. Drafts: of each token, and
  // eight words between vectors.
  p.weights = at;
  at += together * (3 * rows + 48 + (drafts ? 16 : 0)) * 4;
  p.units = at;
  at += (drafts ? kDraftUnits * together : 12) * 4;
  p.scratch = at - p.limbs;
  p.bytes = p.limbs + pairs * p.scratch;
  return p;
}

__device__ __forceinline__ float dot_four(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

// Sums of a and of b over the lanes: lanes 0 to 15 receive the first, the others the second.
__device__ __forceinline__ float sums_of_two(float a, float b, int32_t lane) {
  const bool upper = lane >= 16;
  float x = select_float(upper, b, a) + __shfl_xor_sync(kAll, select_float(upper, a, b), 16);
#pragma unroll
  for (int32_t step = 8; step >= 1; step >>= 1) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// One step of the sums below: lanes 2 kHalf apart exchange halves of 2 kHalf values.
template <int kHalf>
__device__ __forceinline__ void exchange_halves(float (&p)[8], int32_t lane) {
  const bool upper = (lane & (2 * kHalf)) != 0;
#pragma unroll
  for (int32_t i = 0; i < kHalf; ++i) {
    const float send = select_float(upper, p[i], p[i + kHalf]);
    const float keep = select_float(upper, p[i + kHalf], p[i]);
    p[i] = keep + __shfl_xor_sync(kAll, send, 2 * kHalf);
  }
}

// Sums of eight values over the lanes; lane l receives that of value (l / 2) mod 8.
__device__ __forceinline__ float sums_of_eight(float (&p)[8], int32_t lane) {
  exchange_halves<4>(p, lane);
  exchange_halves<2>(p, lane);
  exchange_halves<1>(p, lane);
  p[0] += __shfl_xor_sync(kAll, p[0], 1);
  return p[0] + __shfl_xor_sync(kAll, p[0], 16);
}

// Four bytes (two's complement) as two pairs of FP16, exact.
__device__ __forceinline__ void bytes_to_halves(uint32_t word, uint32_t* low, uint32_t* high) {
  const uint32_t shifted = word ^ 0x80808080u;  // 1024 + code + 128
  *low = subtract_halves(__byte_perm(shifted, 0x64646464u, 0x4140), 0x64806480u);
  *high = subtract_halves(__byte_perm(shifted, 0x64646464u, 0x4342), 0x64806480u);
}

// Eight nibbles (code + 8 of half-integers) as four pairs of FP16, code + 1/2, exact; of a word
// with four nibbles the first two pairs.
__device__ __forceinline__ void nibbles_to_halves(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMask = 0x03c003c0u;
  constexpr uint32_t kSixteen = 0x4c004c00u;                                       // 16 + nibble
  constexpr uint32_t kOffset = 0x4de04de0u;                                        // 23.5
  const uint32_t z0 = subtract_halves(((word << 6) & kMask) | kSixteen, kOffset);  // 0 and 4
  const uint32_t z1 = subtract_halves(((word << 2) & kMask) | kSixteen, kOffset);  // 1 and 5
  const uint32_t z2 = subtract_halves(((word >> 2) & kMask) | kSixteen, kOffset);  // 2 and 6
  const uint32_t z3 = subtract_halves(((word >> 6) & kMask) | kSixteen, kOffset);  // 3 and 7
  pairs[0] = __byte_perm(z0, z1, 0x5410);
  pairs[1] = __byte_perm(z2, z3, 0x5410);
  pairs[2] = __byte_perm(z0, z1, 0x7632);
  pairs[3] = __byte_perm(z2, z3, 0x7632);
}

enum class RowKind { kFp16, kInt8, kInt4 };

__host__ __device__ constexpr int32_t row_bytes_of(RowKind kind) {
  return kind == RowKind::kFp16 ? 256 : kind == RowKind::kInt8 ? 128 : 64;
}

// Values kCount index .. kCount index + kCount - 1 of a row (without its scale) as pairs of FP16.
template <RowKind kKind, int kCount>
__device__ __forceinline__ void load_group(const char* row, int32_t index,
                                           uint32_t (&pairs)[kCount / 2]) {
  static_assert(kCount == 8 || kCount == 4);
  if constexpr (kKind == RowKind::kFp16) {
    if constexpr (kCount == 8) {
      const uint4 x = reinterpret_cast<const uint4*>(row)[index];
      pairs[0] = x.x, pairs[1] = x.y, pairs[2] = x.z, pairs[3] = x.w;
    } else {
      const uint2 x = reinterpret_cast<const uint2*>(row)[index];
      pairs[0] = x.x, pairs[1] = x.y;
    }
  } else if constexpr (kKind == RowKind::kInt8) {
    if constexpr (kCount == 8) {
      const uint32_t* x = reinterpret_cast<const uint32_t*>(row) + 2 * index;  // 4-byte aligned
      bytes_to_halves(x[0], &pairs[0], &pairs[1]);
      bytes_to_halves(x[1], &pairs[2], &pairs[3]);
    } else {
      bytes_to_halves(reinterpret_cast<const uint32_t*>(row)[index], &pairs[0], &pairs[1]);
    }
  } else {
    uint32_t all[4];
    nibbles_to_halves(kCount == 8 ? reinterpret_cast<const uint32_t*>(row)[index]
                                  : reinterpret_cast<const unsigned short*>(row)[index],
                      all);
#pragma unroll
    for (int32_t i = 0; i < kCount / 2; ++i) pairs[i] = all[i];
  }
}

// Power of two that brings `bits` (a float's, not negative) to 2^14 .. 2^15, and its inverse.
__device__ __forceinline__ float to_top(uint32_t bits, float* back) {
  const uint32_t exponent = min(max(bits >> 23, 20u), 240u);
  *back = __uint_as_float((exponent - 14u) << 23);
  return __uint_as_float((268u - exponent) << 23);
}

// A vector's largest magnitude over the lanes, as bits.
__device__ __forceinline__ uint32_t largest_of_warp(float4 x) {
  return __reduce_max_sync(
      kAll, __float_as_uint(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)))));
}

// Writes the high and low parts of one read vector (0 or 1), already brought to the top of the
// range of FP16; without kLow it has no more digits than FP16. Entries 8 (t + 4 j) .. + 7 of part r
// = vector + 2 (low) lie at 256 j + 64 r + 16 t: a lane's loads of an operand's column meet no bank
// twice.
template <bool kLow>
__device__ __forceinline__ void write_limbs(float4 x, int32_t vector, char* limbs, int32_t lane) {
  char* at = limbs + 256 * (lane >> 3) + 8 * (lane & 7) + 64 * vector;
  uint2 high, low;
  split(x.x, x.y, &high.x, &low.x);
  split(x.z, x.w, &high.y, &low.y);
  *reinterpret_cast<uint2*>(at) = high;
  if (kLow) *reinterpret_cast<uint2*>(at + 128) = low;
}

// The byte planes of one read vector, a lane's four entries a word; returns what one unit stands
// for.
__device__ __forceinline__ float digits_of(float4 x, uint32_t (&digits)[4]) {
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
  digits[0] = __byte_perm(low01, low23, 0x5410);
  digits[1] = __byte_perm(low01, low23, 0x7632);
  digits[2] = __byte_perm(high01, high23, 0x5410);
  digits[3] = __byte_perm(high01, high23, 0x7632);
  return unit;
}

// Writes the byte planes of one read vector (vector 0 or 1) and returns what one unit stands for.
__device__ __forceinline__ float write_planes(float4 x, int32_t vector, uint32_t* planes,
                                              int32_t lane) {
  uint32_t digits[4];
  const float unit = digits_of(x, digits);
  uint32_t* plane = planes + 4 * vector * kPlaneWords + (lane & 3) * 8 + (lane >> 2);
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) plane[i * kPlaneWords] = digits[i];
  return unit;
}

// The planes of both vectors as operands.
__device__ __forceinline__ void load_planes(const uint32_t* planes, int32_t lane,
                                            uint32_t (&b)[8]) {
  const uint4* plane =
      reinterpret_cast<const uint4*>(planes + (lane >> 2) * kPlaneWords + (lane & 3) * 8);
  const uint4 low = plane[0];
  const uint4 high = plane[1];
  b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
  b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
}

// The sum of a vector's digits that are this lane's columns 2t and 2t + 1.
__device__ __forceinline__ int32_t sum_of_digits(const uint32_t (&b)[8]) {
  int32_t ones[4] = {};
#pragma unroll
  for (int32_t i = 0; i < 8; i += 2) {
    mma_int8<true>(ones, 0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u, b[i], b[i + 1]);
  }
  return ones[1] * 256 + ones[0];
}

// Codes of 8 bits: the lanes whose operands of values 16 .. 31 of a block come before those of 0 ..
// 15, so that loads of half a lane's words meet no bank twice.
template <int kBits>
__device__ __forceinline__ bool takes_second_first(int32_t lane) {
  return kBits == 8 && (lane & 8) != 0;
}

// The codes of kBlocks blocks of 32 values as operands: use(s, m, a) for 32 keys s of four and 16
// values m of 2 kBlocks (the other of two where takes_second_first). payload: of the lane.
template <int kBits, int kBlocks, typename Use>
__device__ __forceinline__ void for_codes(uint32_t payload, int32_t value_block, int32_t lane,
                                          Use use) {
  if constexpr (kBits == 8) {
    // Loads of half a lane's words: an operand takes halves of two, and registers need not move.
    // The assembler merges loads that it sees to be neighbours, so it must not see it.
    const uint32_t at = payload + value_block * 4096 + (takes_second_first<kBits>(lane) ? 8u : 0u);
    const uint32_t halves[2] = {at, at ^ 8u};
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
#pragma unroll
      for (int32_t m = 0; m < 2 * kBlocks; ++m) {
        const uint32_t from = halves[m % 2] + 4096 * (m / 2) + 1024 * s;
        const uint2 w0 = load_shared_pair(from);
        const uint2 w1 = load_shared_pair(from + 512);
        const uint32_t a[4] = {w0.x, w0.y, w1.x, w1.y};
        use(s, m, a);
      }
    }
  } else {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    constexpr uint32_t kHigh = 0x30303030u;
    const uint32_t lows = payload + value_block * 2048;
    const uint32_t highs = payload + 8192 + value_block * 1024;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
#pragma unroll
      for (int32_t block = 0; block < kBlocks; ++block) {
        const uint4 w = load_shared_four(lows + 2048 * block + 512 * s);
        uint32_t a[2][4] = {{w.x & kLow, (w.x >> 4) & kLow, w.z & kLow, (w.z >> 4) & kLow},
                            {w.y & kLow, (w.y >> 4) & kLow, w.w & kLow, (w.w >> 4) & kLow}};
        if constexpr (kBits == 6) {
          const uint2 h = load_shared_pair(highs + 1024 * block + 512 * (s / 2) + 8 * (s % 2));
          a[0][0] |= (h.x << 4) & kHigh;
          a[0][1] |= (h.x << 2) & kHigh;
          a[1][0] |= h.x & kHigh;
          a[1][1] |= (h.x >> 2) & kHigh;
          a[0][2] |= (h.y << 4) & kHigh;
          a[0][3] |= (h.y << 2) & kHigh;
          a[1][2] |= h.y & kHigh;
          a[1][3] |= (h.y >> 2) & kHigh;
        }
        use(s, 2 * block, a[0]);
        use(s, 2 * block + 1, a[1]);
      }
    }
  }
}

// Sums of code x fixed-point vector of kBlocks x 32 values. Columns 2t and 2t + 1 of the operand
// are neighbouring digits of one vector, so a lane's two columns become one number: to sums
// [t][value], t = 0, 1 of the first vector, 2, 3 of the second, odd t 2^16 times as much. `shift`:
// what codes with an offset or of half-integers (kHalf: twice the sum) have to add.
template <int kBits, bool kHalf, int kBlocks = 1>
__device__ __forceinline__ void read_codes(uint32_t payload, int32_t value_block,
                                           const uint32_t (&b)[8], int32_t shift, uint32_t sums,
                                           int32_t lane) {
  constexpr bool kOffset = kBits != 8 || kHalf;
  int32_t d[2 * kBlocks][4] = {};
  if constexpr (kOffset && !kHalf) {
#pragma unroll
    for (int32_t m = 0; m < 2 * kBlocks; ++m) d[m][0] = d[m][2] = shift;
  }
  for_codes<kBits, kBlocks>(
      payload, value_block, lane, [&](int32_t s, int32_t m, const uint32_t (&a)[4]) {
        mma_int8<kBits == 8>(d[m], a[0], a[1], a[2], a[3], b[2 * s], b[2 * s + 1]);
      });
#pragma unroll
  for (int32_t m = 0; m < 2 * kBlocks; ++m) {
    const int32_t upper = d[m][1] * 256 + d[m][0];
    const int32_t lower = d[m][3] * 256 + d[m][2];
    const int32_t half = 64 * (m % 2);
    const uint32_t to = sums + 128 * (m / 2) + (takes_second_first<kBits>(lane) ? 64 - half : half);
    store_shared(to, kHalf ? 2 * upper + shift : upper);
    store_shared(to + 32, kHalf ? 2 * lower + shift : lower);
  }
}

// Two numbers as FP16, saturated; NaN becomes 0.
__device__ __forceinline__ uint32_t to_halves_saturated(float x, float y, bool* saturated) {
  if (!(fabsf(x) + fabsf(y) < 65520.0f)) {
    if (!(fabsf(x) < 65520.0f) || !(fabsf(y) < 65520.0f)) *saturated = true;
    x = x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f);
    y = y != y ? 0.0f : fminf(fmaxf(y, -65504.0f), 65504.0f);
  }
  const __half2 pair = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A log decay as the window keeps it in FP16: -inf stays, finite ones stay finite.
__device__ __forceinline__ __half decay_to_half(float g) {
  return __float2half_rn(g == -INFINITY ? g : fmaxf(g, -65504.0f));
}

// Values kCount place .. of a row, BF16, FP16 (saturated) or FP32.
template <int kCount>
__device__ __forceinline__ void store_values(char* row, int32_t type, int32_t place,
                                             const float (&x)[kCount]) {
  static_assert(kCount == 1 || kCount == 2);
  if (type == LEAPQUANT_FP32) {
    float* at = reinterpret_cast<float*>(row) + kCount * place;
    if constexpr (kCount == 2) {
      *reinterpret_cast<float2*>(at) = make_float2(x[0], x[1]);
    } else {
      at[0] = x[0];
    }
    return;
  }
  uint32_t pair;
  const float second = kCount == 2 ? x[kCount - 1] : 0.0f;
  if (type == LEAPQUANT_BF16) {
    pair = pack_bf16(x[0], second);
  } else {
    const __half2 halves = __floats2half2_rn(fminf(fmaxf(x[0], -65504.0f), 65504.0f),
                                             fminf(fmaxf(second, -65504.0f), 65504.0f));
    pair = *reinterpret_cast<const uint32_t*>(&halves);
  }
  if constexpr (kCount == 2) {
    reinterpret_cast<uint32_t*>(row)[place] = pair;
  } else {
    reinterpret_cast<unsigned short*>(row)[place] = static_cast<unsigned short>(pair);
  }
}

}  // namespace leapquant::cuda::decoding_128
