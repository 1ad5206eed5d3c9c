// SPDX-License-Identifier: Apache-2.0
//
// Products of the fit from the FP16 copy of a state in shared memory: S V for a warp's keys, S^T P
// for a warp's values, complete sums either way. And the columns a fit starts from.
#pragma once

#include "core/start_vectors.h"
#include "cuda/fold_state_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldProducts : FoldState {
  // d += S columns, from high parts at `row` (address of a lane's row of 8 columns, 16 bytes of the
  // lane's matrix included), and with kLows, where `lows` says so, their low parts. d[0], d[1]: the
  // warp's key g of tile 0, columns 2 t and 2 t + 1; d[2], d[3]: of tile 1. gram: where given,
  // products of those columns with one another too, [0], [1]: of column g with 2 t and 2 t + 1.
  template <bool kLows>
  __device__ __forceinline__ void times(uint32_t row, float (&d)[4], bool lows = true,
                                        float (*gram)[2] = nullptr) const {
    const uint32_t state = matrix() + ((lane() & 7) + 8 * (lane() >> 4)) * kMatrixRow +
                           32 * warp() + 16 * ((lane() >> 3) & 1);
    float e[4] = {};
    // Of 8 entries of the columns by 8: the first half of what one gives, the second of the other.
    float f[4] = {};
    float h[4] = {};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t a[4], b[4], c[4], l[4];
      load_matrices(b, row + 64 * i);
      load_matrices_transposed(a, state + 32 * i * kMatrixRow);
      load_matrices_transposed(c, state + (32 * i + 16) * kMatrixRow);
      mma_fp16(d, a[0], a[1], a[2], a[3], b[0], b[1]);
      mma_fp16(e, c[0], c[1], c[2], c[3], b[2], b[3]);
      if (gram != nullptr) {
#pragma unroll
        for (int32_t j = 0; j < 4; j += 2) {
          mma_fp16_short(f, b[j], b[j + 1], b[j]);
          mma_fp16_short(h, b[j], b[j + 1], b[j + 1]);
        }
      }
      if (kLows && lows) {
        load_matrices(l, row + 64 * i + kLowAt);
        mma_fp16(d, a[0], a[1], a[2], a[3], l[0], l[1]);
        mma_fp16(e, c[0], c[1], c[2], c[3], l[2], l[3]);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) d[i] += e[i];
    if (gram != nullptr) (*gram)[0] = f[0] + h[2], (*gram)[1] = f[1] + h[3];
  }
  // The address `times` takes, for columns first .. first + 7.
  __device__ __forceinline__ uint32_t columns_from(int32_t first) const {
    return shared_address(shared + kColumnsAt) + (first + (lane() & 7)) * kColumnBytes +
           16 * (lane() >> 3);
  }

  // Numbers laid out as `times` gives them become FP16 parts of columns first .. first + 7: of the
  // warp's 16 keys or values.
  __device__ __forceinline__ void put_parts(int32_t first, int32_t part, uint32_t lower,
                                            uint32_t upper) const {
    store_matrices_transposed(shared_address(shared + kColumnsAt) +
                                  (first + (lane() & 7)) * kColumnBytes + part + 32 * warp() +
                                  16 * ((lane() >> 3) & 1),
                              lower, upper);
  }
  // What `times` gave becomes the FP16 key sides of columns first .. first + 7.
  __device__ __forceinline__ void put_projection(int32_t first, const float (&d)[4]) const {
    put_parts(first, kKeysAt, pack_fp16(d[0], d[1]), pack_fp16(d[2], d[3]));
  }

  // d = S^T columns of key sides, the warp's 16 values; keys: as `times` takes them. As precise as
  // FP16: it only turns the columns, what is stored is rounded to FP16 or less. d[0], d[1]: value
  // g, columns 2 t and 2 t + 1; d[2], d[3]: value g + 8.
  __device__ __forceinline__ void turn_keys(uint32_t keys, float (&d)[4]) const {
    const uint32_t state =
        matrix() + (16 * warp() + (lane() & 15)) * kMatrixRow + 16 * (lane() >> 4);
    float e[4] = {};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) d[i] = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t a[4], b[4], c[4];
      load_matrices(b, keys + 64 * i);
      load_matrices(a, state + 64 * i);
      load_matrices(c, state + 64 * i + 32);
      mma_fp16(d, a[0], a[1], a[2], a[3], b[0], b[1]);
      mma_fp16(e, c[0], c[1], c[2], c[3], b[2], b[3]);
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) d[i] += e[i];
  }
  __device__ __forceinline__ void turn(int32_t first, float (&d)[4]) const {
    turn_keys(columns_from(first) + kKeysAt, d);
  }
  // sides [first .. first + 7][value] = what `turn` gave, as many as there are.
  __device__ __forceinline__ void put_sides(int32_t first, int32_t count,
                                            const float (&d)[4]) const {
    if (2 * t() >= count - first) return;
    float* to = sides() + (first + 2 * t()) * kStride + 16 * warp() + g();
    to[0] = d[0], to[kStride] = d[1];
    to[8] = d[2], to[kStride + 8] = d[3];
  }

  // Dead or, for a cold fit, all start columns from the table, times `size`. Returns whether the
  // fit is cold.
  __device__ __forceinline__ bool start_columns(float size = 1.0f) const {
    const bool living = lane() < rank() && at<uint32_t>(kAliveAt)[lane()] != 0;
    const bool cold = !__any_sync(kAll, living);
    const uint32_t keep = cold || format.fit_fixed != 0 ? 0u : __ballot_sync(kAll, living);
    if (keep != (rank() == 32 ? kAll : (1u << rank()) - 1u)) {
#pragma unroll 1
      for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
        const int32_t c = i / 128;
        if ((keep >> c & 1u) != 0) continue;
        column(c, 0)[i & 127] = __float2half_rn(start_vector(c, i & 127) * size);
        column(c, kLowAt)[i & 127] = __half(0.0f);
      }
      sync_team();
    }
    return cold;
  }

  // One step of sums over the lanes: those kLanes apart exchange halves of 2 kHalf sums.
  template <int kHalf, int kLanes>
  __device__ __forceinline__ void exchange_sums(float (&p)[8]) const {
    const bool upper = (lane() & kLanes) != 0;
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) {
      const float send = select_float(upper, p[i], p[i + kHalf]);
      const float keep = select_float(upper, p[i + kHalf], p[i]);
      p[i] = keep + __shfl_xor_sync(kAll, send, kLanes);
    }
  }
  // Eight sums over the lanes; sum k in lanes 4 k .. 4 k + 3.
  __device__ __forceinline__ float eight_sums(float (&p)[8]) const {
    exchange_sums<4, 16>(p);
    exchange_sums<2, 8>(p);
    exchange_sums<1, 4>(p);
    p[0] += __shfl_xor_sync(kAll, p[0], 2);
    p[0] += __shfl_xor_sync(kAll, p[0], 1);
    return p[0];
  }
};

}  // namespace leapquant::cuda::folding_128
