// SPDX-License-Identifier: Apache-2.0
//
// The words of CUDA C++ that device code uses and a host compiler does not know, by machine.h. To
// be included before any device code, whose "cuda/ptx.cuh" is the one beside this file.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "emulator/machine.h"

#define threadIdx (::leapquant::emulator::thread_index())
#define blockIdx (::leapquant::emulator::Place{::leapquant::emulator::block_index(), 0})
#define blockDim (::leapquant::emulator::block_dim())
#define gridDim (::leapquant::emulator::Place{::leapquant::emulator::grid_dim(), 1})
#undef __launch_bounds__
#define __launch_bounds__(...)
// Kernels are large; nothing is gained where a host compiler inlines them by force.
#undef __forceinline__
#define __forceinline__ inline

using std::max;
using std::min;

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (bits & 31));
}
inline void __nanosleep(uint32_t) {}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }
inline int __float2int_rn(float x) {
  if (x != x) return 0;
  return static_cast<int>(std::nearbyint(min(max(x, -2147483648.0f), 2147483520.0f)));
}
// Bytes of (b, a) by the nibbles of `places`; a nibble's high bit asks for the sign of its byte.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t places) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t place = places >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (place & 7))) & 255;
    if (place & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline int atomicAdd(int* at, int x) {
  const int before = *at;
  *at += x;
  return before;
}
inline uint32_t atomicOr(uint32_t* at, uint32_t x) {
  const uint32_t before = *at;
  *at |= x;
  return before;
}

namespace leapquant::emulator {

// What another lane has; its own where there is no such lane.
template <typename T>
T shuffled(T mine, uint32_t from) {
  static_assert(sizeof(T) == 4);
  const auto& all = together("shuffle ", {std::bit_cast<uint32_t>(mine)}, [](WarpWords&) {});
  return std::bit_cast<T>(all[from < 32 ? from : lane()][0]);
}
// All lanes' words in one.
template <typename F>
uint32_t reduced(const char* instruction, uint32_t mine, F join) {
  const auto& all = together(instruction, {mine}, [&](WarpWords& words) {
    for (int i = 1; i < 32; ++i) words[0][0] = join(words[0][0], words[i][0]);
  });
  return all[0][0];
}
inline void require_all(uint32_t mask) {
  if (mask != 0xffffffffu) fail("an instruction of some lanes of a warp, which is not emulated");
}

}  // namespace leapquant::emulator

inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  leapquant::emulator::require_all(mask);
  leapquant::emulator::together("barrier of warp ", {}, [](leapquant::emulator::WarpWords&) {});
}
inline void __syncthreads() { leapquant::emulator::meet(0, blockDim.x * blockDim.y); }
template <typename T>
T __shfl_sync(uint32_t mask, T x, int lane) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::shuffled(x, static_cast<uint32_t>(lane) & 31);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T x, int bits) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::shuffled(x,
                                       leapquant::emulator::lane() ^ static_cast<uint32_t>(bits));
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T x, int by) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::shuffled(x, leapquant::emulator::lane() + static_cast<uint32_t>(by));
}
inline uint32_t __ballot_sync(uint32_t mask, bool condition) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::reduced("vote ", condition ? 1u << leapquant::emulator::lane() : 0u,
                                      [](uint32_t a, uint32_t b) { return a | b; });
}
inline bool __any_sync(uint32_t mask, bool condition) {
  return __ballot_sync(mask, condition) != 0;
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::reduced("maximum ", x,
                                      [](uint32_t a, uint32_t b) { return max(a, b); });
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t x) {
  leapquant::emulator::require_all(mask);
  return leapquant::emulator::reduced("or ", x, [](uint32_t a, uint32_t b) { return a | b; });
}
