// SPDX-License-Identifier: Apache-2.0
//
// The functions of src/cuda/ptx.cuh that folds and small batches use, emulated: same names, same
// meaning. The include path finds this file in place of that one.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/numeric.h"
#include "emulator/device_code.h"

namespace leapquant::cuda {

inline uint32_t shared_address(const void* pointer) { return emulator::shared_address(pointer); }

// ---- Copies, barriers, loads ----

inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  emulator::init_byte_barrier(barrier, arrivals);
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  emulator::expect_bytes(barrier, bytes);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  emulator::wait_for_bytes(barrier, parity);
}
inline void bulk_copy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bytes(shared, global, bytes, barrier);
}
inline void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
  emulator::store_bytes(global, shared, bytes);
}
inline void bulk_stores_wait() { emulator::stores_are_read(); }
inline void bulk_stores_done() { emulator::stores_are_written(); }
// Memory is written in the order of the program here, and there are no caches.
inline void prefetch_bulk(const void*, uint32_t) {}
inline void fence_async_proxy() {}
inline void fence_async_shared() {}
inline void launch_dependents() {}
inline void wait_for_previous_grid() {}
inline void store_release(int32_t* address, int32_t value) { *address = value; }
inline float load_float_if(bool condition, const void* global) {
  return condition ? *static_cast<const float*>(global) : 0.0f;
}
inline uint32_t load_word_or_half(const void* global, bool half) {
  return half ? *static_cast<const uint16_t*>(global) : *static_cast<const uint32_t*>(global);
}
inline void sync_team() { emulator::meet(threadIdx.y + 1, 256); }
inline bool sync_team_or(bool condition) { return emulator::meet(threadIdx.y + 1, 256, condition); }
inline void sync_threads(int32_t id, int32_t threads) {
  emulator::meet(static_cast<uint32_t>(id), static_cast<uint32_t>(threads));
}
inline bool threads_any(int32_t id, int32_t threads, bool mine) {
  return emulator::meet(static_cast<uint32_t>(id), static_cast<uint32_t>(threads), mine);
}
inline void arrive_threads(int32_t id, int32_t threads) {
  emulator::meet(static_cast<uint32_t>(id), static_cast<uint32_t>(threads), false, false);
}
template <typename T>
T& in_shared(uint32_t address) {
  return *reinterpret_cast<T*>(emulator::at_shared(address, sizeof(T)));
}
inline uint2 load_shared_pair(uint32_t address) { return in_shared<uint2>(address); }
inline uint4 load_shared_four(uint32_t address) { return in_shared<uint4>(address); }
inline void store_shared(uint32_t address, int32_t word) { in_shared<int32_t>(address) = word; }
inline int32_t block_x() { return static_cast<int32_t>(emulator::block_place().x); }
inline int32_t block_y() { return static_cast<int32_t>(emulator::block_place().y); }
// Copies of 16 bytes are on their way from the thread's arrival for them on; those of 4, which the
// machine has no late ones of, are there at once.
struct PendingCopy {
  uint32_t thread, shared;
  const void* global;
};
inline std::vector<PendingCopy> pending_copies;
inline void copy_16_async(uint32_t shared, const void* global) {
  pending_copies.push_back({threadIdx.x, shared, global});
}
inline void copy_4_async(uint32_t shared, const void* global) {
  std::memcpy(emulator::at_shared(shared, 4), global, 4);
}
inline void barrier_arrive_copies(uint32_t barrier) {
  std::vector<PendingCopy> others, mine;
  for (const PendingCopy& copy : pending_copies) {
    (copy.thread == threadIdx.x ? mine : others).push_back(copy);
  }
  pending_copies = others;
  emulator::expect_bytes(barrier, 16 * static_cast<uint32_t>(mine.size()));
  for (const PendingCopy& copy : mine) {
    emulator::copy_bytes(copy.shared, copy.global, 16, barrier);
  }
}
inline int32_t load_acquire(const int32_t* address) { return *address; }
// Of kernels that do not run here.
inline uint32_t cluster_rank() { emulator::fail("clusters"); }
inline uint32_t cluster_blocks() { return 1; }
inline void cluster_arrive() { emulator::fail("clusters"); }
inline void cluster_wait() { emulator::fail("clusters"); }
inline void set_bits_in_block(uint32_t, uint32_t, uint32_t) { emulator::fail("clusters"); }
inline void fence_cluster() { emulator::fail("clusters"); }

// ---- Numbers ----

inline float half_of(uint32_t pair, int i) {
  return fp16_to_float(static_cast<uint16_t>(pair >> (16 * i)));
}
inline float2 widen_halves(uint32_t pair) {
  return make_float2(half_of(pair, 0), half_of(pair, 1));
}
inline uint32_t pack_fp16(float low, float high) {
  return float_to_fp16(low) | static_cast<uint32_t>(float_to_fp16(high)) << 16;
}
inline uint32_t pack_bf16(float low, float high) {
  return float_to_bf16(low) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
}
inline uint32_t subtract_halves(uint32_t a, uint32_t b) {
  return pack_fp16(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
inline int32_t fresh_copy(int32_t value) { return value; }
inline float select_float(bool condition, float a, float b) { return condition ? a : b; }
inline float exp2_fast(float x) {
  const float result = std::exp2(x);
  return result < 1.17549435e-38f ? 0.0f : result;
}
inline float rsqrt_fast(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }

// ---- Matrix units ----

// Bits below the largest summand's that the units keep while they sum; 0: all of them.
inline int kept_bits = 0;

// D[16, 8] = A[16, kDepth] B[kDepth, 8] + C of FP16 or BF16 operands. Products are exact, and their
// sum with C is cut to FP32, as the units cut.
template <int kDepth, float (*kEntry)(uint32_t, int) = half_of>
void multiply(emulator::WarpWords& words) {
  constexpr int kLeft = kDepth / 4;  // words of A, then of B, then C
  constexpr int kSum = kLeft + kDepth / 8;
  float left[16][kDepth];
  float right[8][kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    for (int e = 0; e < 2; ++e) {
      const int k = 2 * (lane % 4) + e;
      for (int i = 0; i < kLeft; ++i) {
        left[g + 8 * (i % 2)][k + 8 * (i / 2)] = kEntry(words[lane][i], e);
      }
      for (int i = 0; i < kDepth / 8; ++i) right[g][k + 8 * i] = kEntry(words[lane][kLeft + i], e);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float results[4];
    for (int i = 0; i < 4; ++i) {
      const float* row = left[lane / 4 + 8 * (i / 2)];
      const float* column = right[2 * (lane % 4) + i % 2];
      const double before = std::bit_cast<float>(words[lane][kSum + i]);
      double most = std::fabs(before);
      for (int k = 0; k < kDepth; ++k)
        most = std::fmax(most, std::fabs(double{row[k]} * column[k]));
      const bool cuts = kept_bits > 0 && most > 0.0 && std::isfinite(most);
      const double unit = cuts ? std::ldexp(1.0, std::ilogb(most) - kept_bits) : 0.0;
      const auto kept = [&](double x) { return cuts ? std::trunc(x / unit) * unit : x; };
      double sum = kept(before);
      for (int k = 0; k < kDepth; ++k) sum += kept(double{row[k]} * column[k]);
      float result = static_cast<float>(sum);
      if (std::isfinite(result) && std::fabs(double{result}) > std::fabs(sum)) {
        result = std::nextafter(result, 0.0f);
      }
      results[i] = result;
    }
    for (int i = 0; i < 4; ++i) words[lane][i] = std::bit_cast<uint32_t>(results[i]);
  }
}
inline void take_floats(const emulator::WarpWords& words, float (&d)[4]) {
  for (int i = 0; i < 4; ++i) d[i] = std::bit_cast<float>(words[emulator::lane()][i]);
}
template <float (*kEntry)(uint32_t, int)>
void add_product(const char* name, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                 uint32_t a3, uint32_t b0, uint32_t b1) {
  take_floats(
      emulator::together(name,
                         {a0, a1, a2, a3, b0, b1, __float_as_uint(d[0]), __float_as_uint(d[1]),
                          __float_as_uint(d[2]), __float_as_uint(d[3])},
                         multiply<16, kEntry>),
      d);
}
inline void mma_fp16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
  add_product<half_of>("product of depth 16 ", d, a0, a1, a2, a3, b0, b1);
}
inline float bf16_of(uint32_t pair, int i) {
  return std::bit_cast<float>(i == 0 ? pair << 16 : pair & 0xffff0000u);
}
inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
  add_product<bf16_of>("product of BF16 ", d, a0, a1, a2, a3, b0, b1);
}
inline void mma_fp16_from(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                          uint32_t b0, uint32_t b1, const float (&c)[4]) {
  for (int i = 0; i < 4; ++i) d[i] = c[i];
  mma_fp16(d, a0, a1, a2, a3, b0, b1);
}
inline void mma_fp16_of(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, const float (&c)[4]) {
  take_floats(emulator::together("product of depth 8 ",
                                 {a0, a1, b0, __float_as_uint(c[0]), __float_as_uint(c[1]),
                                  __float_as_uint(c[2]), __float_as_uint(c[3])},
                                 multiply<8>),
              d);
}
inline void mma_fp16_short(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  mma_fp16_of(d, a0, a1, b0, d);
}

// D[16, 8] += A[16, 32] B[32, 8] of bytes, exact.
template <bool kSigned>
void multiply_bytes(emulator::WarpWords& words) {
  const auto byte_of = [&](int lane, int word, int e, bool is_signed) {
    const uint32_t byte = words[lane][word] >> (8 * e) & 255;
    return is_signed ? static_cast<int8_t>(byte) : static_cast<int>(byte);
  };
  int left[16][32];
  int right[8][32];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    for (int e = 0; e < 4; ++e) {
      const int k = 4 * (lane % 4) + e;
      for (int i = 0; i < 4; ++i)
        left[g + 8 * (i % 2)][k + 16 * (i / 2)] = byte_of(lane, i, e, kSigned);
      for (int i = 0; i < 2; ++i) right[g][k + 16 * i] = byte_of(lane, 4 + i, e, true);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      int sum = static_cast<int>(words[lane][6 + i]);
      for (int k = 0; k < 32; ++k) {
        sum += left[lane / 4 + 8 * (i / 2)][k] * right[2 * (lane % 4) + i % 2][k];
      }
      words[lane][6 + i] = static_cast<uint32_t>(sum);
    }
  }
}
template <bool kSigned>
void mma_int8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
              uint32_t b1) {
  const auto word = [&](int i) { return static_cast<uint32_t>(d[i]); };
  const emulator::WarpWords& words = emulator::together(
      "product of bytes ", {a0, a1, a2, a3, b0, b1, word(0), word(1), word(2), word(3)},
      multiply_bytes<kSigned>);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<int32_t>(words[emulator::lane()][6 + i]);
}

// 8 x 8 matrices of 16-bit entries in shared memory; lane l gives the address of row l % 8 of
// matrix l / 8. Lane 4 g + t has entries (g, 2 t) and (g, 2 t + 1) of each, or transposed (2 t, g)
// and (2 t + 1, g).
template <bool kTransposed>
char* matrix_entry(const uint32_t (&rows)[32], int matrix, int lane, int e) {
  const int g = lane / 4;
  const int t = 2 * (lane % 4) + e;
  char* row = emulator::at_shared(rows[8 * matrix + (kTransposed ? t : g)], 16);
  return row + 2 * (kTransposed ? g : t);
}
inline void keep_rows(const emulator::WarpWords& words, int lanes, uint32_t (&rows)[32]) {
  for (int lane = 0; lane < lanes; ++lane) {
    rows[lane] = words[lane][0];
    if (rows[lane] % 16 != 0) emulator::fail("a row of a matrix that is not aligned to 16 bytes");
  }
}
template <bool kTransposed>
void load_four(uint32_t (&r)[4], uint32_t row) {
  const auto& all = emulator::together("load of matrices ", {row}, [](emulator::WarpWords& words) {
    uint32_t rows[32];
    keep_rows(words, 32, rows);
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          std::memcpy(&pair[e], matrix_entry<kTransposed>(rows, matrix, lane, e), 2);
        }
        words[lane][matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
    }
  });
  for (int matrix = 0; matrix < 4; ++matrix) r[matrix] = all[emulator::lane()][matrix];
}
template <bool kTransposed, int kMatrices>
void store(emulator::WarpWords& words) {
  uint32_t rows[32];
  keep_rows(words, 8 * kMatrices, rows);
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      for (int e = 0; e < 2; ++e) {
        const auto entry = static_cast<uint16_t>(words[lane][1 + matrix] >> (16 * e));
        std::memcpy(matrix_entry<kTransposed>(rows, matrix, lane, e), &entry, 2);
      }
    }
  }
}
inline uint32_t transpose_matrix(uint32_t pair) {
  const auto& all = emulator::together("transposition ", {pair}, [](emulator::WarpWords& words) {
    uint32_t pairs[32];
    for (int lane = 0; lane < 32; ++lane) pairs[lane] = words[lane][0];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4;
      uint32_t result = 0;
      for (int e = 0; e < 2; ++e) {
        const int row = 2 * (lane % 4) + e;
        result |= (pairs[4 * row + g / 2] >> (16 * (g % 2)) & 0xffffu) << (16 * e);
      }
      words[lane][0] = result;
    }
  });
  return all[emulator::lane()][0];
}
inline void load_matrices(uint32_t (&r)[4], uint32_t row) { load_four<false>(r, row); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t row) { load_four<true>(r, row); }
inline void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  emulator::together("store of matrices ", {row, a, b, c, d}, store<false, 4>);
}
inline void store_matrices_transposed(uint32_t row, uint32_t a, uint32_t b) {
  emulator::together("store of transposed matrices ", {row, a, b}, store<true, 2>);
}

}  // namespace leapquant::cuda
