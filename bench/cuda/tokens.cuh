// SPDX-License-Identifier: Apache-2.0
//
// Inputs of timed calls, drawn on the device: each call of a window has tokens of its own, as in
// models. Tokens that repeat would leave heads of a few directions, whose folds take other ways.
#pragma once

#include <cuda_bf16.h>

#include "decode_case.cuh"

namespace leapquant::bench {

// The i-th standard normal number of a stream: splitmix64 (Steele, Lea, Flood 2014), Box-Muller.
__device__ inline float normal_at(uint64_t stream, uint64_t i) {
  uint64_t x = (stream << 40) + i + 1;
  x *= 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const float radius = (static_cast<float>(x >> 40) + 0.5f) * 0x1p-24f;  // in (0, 1]
  const float angle = static_cast<float>(x & 0xffffff) * 0x1p-23f;       // of pi
  return sqrtf(-2.0f * logf(radius)) * cospif(angle);
}

enum class Drawn { kNormal, kLogDecay };

template <typename T>
__global__ void draw(T* to, int64_t count, uint64_t stream, Drawn drawn) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float x = normal_at(stream, static_cast<uint64_t>(i));
    to[i] = static_cast<T>(drawn == Drawn::kNormal ? x : -fabsf(0.05f * x));
  }
}

// Inputs of the calls of all phases of a window: q and k [phases][rows][k_heads][128], v
// [phases][rows][v_heads][128] in BF16; log decays [phases][rows][v_heads] in FP32 or, vector ones,
// [..][128] in BF16; beta 0.5. `rows`: sequences times tokens of a call.
struct PhaseTokens {
  int64_t keys, values, decays;  // elements of a phase
  bool vector;
  DeviceArray<__nv_bfloat16> q, k, v;
  DeviceArray<float> scalar_decay;
  DeviceArray<__nv_bfloat16> vector_decay;
  DeviceArray<float> beta;

  PhaseTokens(int phases, int64_t rows, int k_heads, int v_heads, bool vector_decays)
      : keys(rows * k_heads * 128),
        values(rows * v_heads * 128),
        decays(rows * v_heads * (vector_decays ? 128 : 1)),
        vector(vector_decays),
        q(static_cast<size_t>(phases * keys)),
        k(q.count),
        v(static_cast<size_t>(phases * values)),
        scalar_decay(vector ? 1 : static_cast<size_t>(phases * decays)),
        vector_decay(vector ? static_cast<size_t>(phases * decays) : 1),
        beta(std::vector<float>(static_cast<size_t>(rows * v_heads), 0.5f)) {
    const auto fill = [](auto& array, uint64_t stream, Drawn drawn) {
      draw<<<1024, 256>>>(array.data, static_cast<int64_t>(array.count), stream, drawn);
      REQUIRE(cudaGetLastError());
    };
    fill(q, 1, Drawn::kNormal);
    fill(k, 2, Drawn::kNormal);
    fill(v, 3, Drawn::kNormal);
    fill(scalar_decay, 4, Drawn::kLogDecay);
    fill(vector_decay, 4, Drawn::kLogDecay);
    REQUIRE(cudaDeviceSynchronize());
  }

  // Makes a phase's tokens the inputs of a call.
  void bind(int phase, leapquant_inputs* inputs) const {
    inputs->q = {q.data + phase * keys, LEAPQUANT_BF16, 0, 0, 0, 0};
    inputs->k = {k.data + phase * keys, LEAPQUANT_BF16, 0, 0, 0, 0};
    inputs->v = {v.data + phase * values, LEAPQUANT_BF16, 0, 0, 0, 0};
    if (vector) {
      inputs->log_decay = {vector_decay.data + phase * decays, LEAPQUANT_BF16, 0, 0, 0, 0};
    } else {
      inputs->log_decay = {scalar_decay.data + phase * decays, LEAPQUANT_FP32, 0, 0, 0, 0};
    }
    inputs->beta = {beta.data, LEAPQUANT_FP32, 0, 0, 0, 0};
  }
};

// Adds to *count the numbers of x[n] that are not finite.
__global__ void count_not_finite(const __nv_bfloat16* x, int64_t n, unsigned long long* count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (!isfinite(__bfloat162float(x[i]))) atomicAdd(count, 1ull);
  }
}

}  // namespace leapquant::bench
