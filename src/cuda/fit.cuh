// SPDX-License-Identifier: Apache-2.0
//
// The compensator fit in a block: block subspace iteration over the state in block.state, rounded
// vectors into the head's bytes. The algorithm of docs/FORMAT.md; its last bits are its own.
#pragma once

#include "core/start_vectors.h"
#include "cuda/state.cuh"

namespace leapquant::cuda {

// keys[r][i] = scale * sum over j of S[i][j] values[r][j]. Barriers at both ends.
__device__ __noinline__ inline void state_times(const Block& block, int32_t rank, float scale) {
  constexpr int32_t kMost = 8;  // columns of a lane
  const int32_t v_dim = block.v_dim;
  __syncthreads();
  for (int32_t i = block.warp; i < block.k_dim; i += kBlockWarps) {
    float row[kMost];
#pragma unroll
    for (int32_t c = 0; c < kMost; ++c) {
      const int32_t j = block.lane + 32 * c;
      row[c] = j < v_dim ? block.state[i * v_dim + j] : 0.0f;
    }
    for (int32_t r = 0; r < rank; ++r) {
      const float* value = block.values + r * v_dim;
      float sum = 0.0f;
#pragma unroll
      for (int32_t c = 0; c < kMost; ++c) {
        const int32_t j = block.lane + 32 * c;
        if (j < v_dim) sum = fmaf(row[c], value[j], sum);
      }
      sum = sum_of_warp(sum);
      if (block.lane == 0) block.keys[r * block.k_dim + i] = scale * sum;
    }
  }
  __syncthreads();
}

// values[r][j] = scale * sum over i of S[i][j] keys[r][i]. Barriers at both ends.
__device__ inline void transposed_times(const Block& block, int32_t rank, float scale) {
  constexpr int32_t kMost = 4;  // vectors at a time
  const int32_t k_dim = block.k_dim;
  __syncthreads();
  for (int32_t first = kMost * block.part; first < rank && block.column >= 0;
       first += kMost * block.parts) {
    float sum[kMost] = {};
    for (int32_t i = 0; i < k_dim; ++i) {
      const float entry = block.state[i * block.v_dim + block.column];
#pragma unroll
      for (int32_t r = 0; r < kMost; ++r) {
        if (first + r < rank) sum[r] = fmaf(entry, block.keys[(first + r) * k_dim + i], sum[r]);
      }
    }
#pragma unroll
    for (int32_t r = 0; r < kMost; ++r) {
      if (first + r < rank) block.values[(first + r) * block.v_dim + block.column] = scale * sum[r];
    }
  }
  __syncthreads();
}

// Makes [rank][length] orthonormal: each vector is projected off all earlier ones, a second time
// where the first took much away; dependent or zero ones become zero. Ends with a barrier.
__device__ __noinline__ inline void orthonormalise(const Block& block, int32_t rank, int32_t length,
                                                   float* vectors) {
  float* share = block.gram;
  for (int32_t c = 0; c < rank; ++c) {
    float* vector = vectors + c * length;
    float squares = 0.0f;
    for (int32_t i = block.thread; i < length; i += kBlockThreads) {
      squares = fmaf(vector[i], vector[i], squares);
    }
    const float before = sqrtf(block.sum(squares));
    float norm = before;
    float start = before;
    for (int32_t pass = 0; pass < 2 && c > 0; ++pass) {
      for (int32_t k = block.warp; k < c; k += kBlockWarps) {
        const float* other = vectors + k * length;
        float sum = 0.0f;
        for (int32_t i = block.lane; i < length; i += 32) sum = fmaf(other[i], vector[i], sum);
        sum = sum_of_warp(sum);
        if (block.lane == 0) share[k] = sum;
      }
      __syncthreads();
      squares = 0.0f;
      for (int32_t i = block.thread; i < length; i += kBlockThreads) {
        float x = vector[i];
        for (int32_t k = 0; k < c; ++k) x = fmaf(-share[k], vectors[k * length + i], x);
        vector[i] = x;
        squares = fmaf(x, x, squares);
      }
      norm = sqrtf(block.sum(squares));
      if (norm > 0.7f * start) break;
      start = norm;
    }
    const bool dead = !(before > 0.0f) || norm < 1e-6f * before;
    const float scale = dead ? 0.0f : 1.0f / norm;
    for (int32_t i = block.thread; i < length; i += kBlockThreads) vector[i] = scale * vector[i];
    __syncthreads();
  }
}

// Sorts values by falling |S v|, equal ones in their old order. Uses keys and spare.
__device__ inline void sort_by_strength(const Block& block, int32_t rank, float scale) {
  state_times(block, rank, scale);
  float* strength = block.gram;
  auto* order = reinterpret_cast<int32_t*>(block.gram + rank);
  for (int32_t r = block.warp; r < rank; r += kBlockWarps) {
    const float* key = block.keys + r * block.k_dim;
    float sum = 0.0f;
    for (int32_t i = block.lane; i < block.k_dim; i += 32) sum = fmaf(key[i], key[i], sum);
    sum = sum_of_warp(sum);
    if (block.lane == 0) strength[r] = sum;
  }
  for (int32_t r = block.thread; r < rank; r += kBlockThreads) order[r] = r;
  __syncthreads();
  for (int32_t r = block.thread; r < rank; r += kBlockThreads) {
    int32_t place = 0;  // of vector r: those that are stronger, or equal and earlier
    for (int32_t other = 0; other < rank; ++other) {
      if (strength[other] > strength[r] || (strength[other] == strength[r] && other < r)) ++place;
    }
    order[place] = r;
  }
  const int32_t entries = rank * block.v_dim;
  for (int32_t e = block.thread; e < entries; e += kBlockThreads) block.spare[e] = block.values[e];
  __syncthreads();
  for (int32_t e = block.thread; e < entries; e += kBlockThreads) {
    const int32_t r = e / block.v_dim;
    block.values[e] = block.spare[order[r] * block.v_dim + e - r * block.v_dim];
  }
  __syncthreads();
}

// keys <- keys (U^T U + 1e-7 I)^-1 for the values U, by Cholesky: R^T R. Ends with a barrier.
__device__ inline void least_squares(const Block& block, int32_t rank) {
  float* upper = block.gram;  // row j of R from column j on
  float* inverse = block.gram + rank * rank;
  for (int32_t pair = block.warp; pair < rank * rank; pair += kBlockWarps) {
    const int32_t a = pair / rank;
    const int32_t b = pair - a * rank;
    if (b < a) continue;
    const float* x = block.values + a * block.v_dim;
    const float* y = block.values + b * block.v_dim;
    float sum = 0.0f;
    for (int32_t j = block.lane; j < block.v_dim; j += 32) sum = fmaf(x[j], y[j], sum);
    sum = sum_of_warp(sum);
    if (block.lane == 0) upper[pair] = a == b ? sum + 1e-7f : sum;
  }
  __syncthreads();
  if (block.warp == 0) {
    const int32_t column = block.lane;
    for (int32_t j = 0; j < rank; ++j) {
      // Rounding may eat the 1e-7 of a nearly dependent column; it then counts as dead.
      const float factor = 1.0f / sqrtf(fmaxf(upper[j * rank + j], 1e-7f));
      __syncwarp();
      if (column >= j && column < rank) upper[j * rank + column] *= factor;
      if (column == 0) inverse[j] = factor;
      __syncwarp();
      for (int32_t i = j + 1; i < rank; ++i) {
        if (column >= i && column < rank) {
          float& entry = upper[i * rank + column];
          entry = fmaf(-upper[j * rank + i], upper[j * rank + column], entry);
        }
      }
      __syncwarp();
    }
  }
  __syncthreads();
  const int32_t k_dim = block.k_dim;
  for (int32_t i = block.thread; i < k_dim; i += kBlockThreads) {
    float* key = block.keys + i;
    for (int32_t a = 0; a < rank; ++a) {
      float x = key[a * k_dim];
      for (int32_t b = 0; b < a; ++b) x = fmaf(-upper[b * rank + a], key[b * k_dim], x);
      key[a * k_dim] = x * inverse[a];
    }
    for (int32_t a = rank - 1; a >= 0; --a) {
      float x = key[a * k_dim];
      for (int32_t b = a + 1; b < rank; ++b) x = fmaf(-upper[a * rank + b], key[b * k_dim], x);
      key[a * k_dim] = x * inverse[a];
    }
  }
  __syncthreads();
}

// Rounds one side's vectors into `bytes` and replaces them by what was stored. A warp has a vector.
// Ends with a barrier. Returns this thread's LEAPQUANT_HEALTH_* flags.
__device__ __noinline__ inline uint32_t encode_vectors(const Block& block, const HeadFormat& f,
                                                       bool key, float* vectors, char* bytes) {
  bool saturated = false;
  for (int32_t r = block.warp; r < f.rank; r += kBlockWarps) {
    const VectorPlace place = vector_place(block, f, key, r);
    float* vector = vectors + r * place.count;
    if (place.bits == 16) {
      auto* halves = reinterpret_cast<uint16_t*>(bytes + place.data);
      for (int32_t i = block.lane; i < place.count; i += 32) {
        const uint16_t half = to_fp16_saturated(vector[i], &saturated);
        halves[i] = half;
        vector[i] = fp16_value(half);
      }
      continue;
    }
    float largest = 0.0f;
    for (int32_t i = block.lane; i < place.count; i += 32) {
      largest = fmaxf(largest, fabsf(vector[i]));
    }
    largest = max_of_warp(largest);
    __syncwarp();  // below, lanes write what others have read
    const float steps = place.bits == 8 ? 127.0f : 8.0f;
    const uint16_t half =
        largest == 0.0f ? uint16_t{0} : to_fp16_up(__fdiv_rn(largest, steps), &saturated);
    const float scale = fp16_value(half);
    if (block.lane == 0) *reinterpret_cast<uint16_t*>(bytes + place.scale) = half;
    const float shift = place.bits == 4 ? 0.5f : 0.0f;
    const float low = place.bits == 8 ? -127.0f : -8.0f;
    const float high = place.bits == 8 ? 127.0f : 7.0f;
    const auto code_of = [&](int32_t i) {
      if (scale == 0.0f) return 0;
      const float x = __fdiv_rn(vector[i], scale);
      const float bounded = fminf(fmaxf(x, -steps - 1.0f), steps + 1.0f);
      const float code = round_half_even(__fsub_rn(bounded, shift));
      return static_cast<int32_t>(fminf(fmaxf(code, low), high));
    };
    for (int32_t i = 2 * block.lane; i < place.count; i += 64) {
      const int32_t first = code_of(i);
      const int32_t second = code_of(i + 1);
      if (place.bits == 8) {
        auto* codes = reinterpret_cast<int8_t*>(bytes + place.data);
        codes[i] = static_cast<int8_t>(first);
        codes[i + 1] = static_cast<int8_t>(second);
      } else {
        reinterpret_cast<uint8_t*>(bytes + place.data)[i / 2] =
            static_cast<uint8_t>((first + 8) | (second + 8) << 4);
      }
      vector[i] = (static_cast<float>(first) + shift) * scale;
      vector[i + 1] = (static_cast<float>(second) + shift) * scale;
    }
  }
  __syncthreads();
  return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
}

// Start vectors in block.values: the stored ones of `previous` where they serve, else the table.
// Null: a cold fit. Returns whether the fit is cold, the same in all threads. Ends with a barrier.
__device__ inline bool start_values(const Block& block, const HeadFormat& f, const char* previous) {
  uint32_t alive = 0;
  __syncthreads();
  if (previous != nullptr) {
    alive = decode_vectors(block, f, previous, false, block.values);
    alive = block.any_bits(alive);
  }
  __syncthreads();
  const bool cold = alive == 0;
  const uint32_t kept = cold || f.fit_fixed != 0 ? 0u : alive;
  for (int32_t e = block.thread; e < f.rank * block.v_dim; e += kBlockThreads) {
    const int32_t r = e / block.v_dim;
    if ((kept >> r & 1u) == 0) block.values[e] = start_vector(r, e - r * block.v_dim);
  }
  __syncthreads();
  return cold;
}

// Fits the compensators of the finite state whose largest magnitude is `largest`, writes them into
// `bytes` and leaves them decoded in keys and values. Returns this thread's flags.
__device__ inline uint32_t fit_compensators(const Block& block, const HeadFormat& f,
                                            const char* previous, float largest, char* bytes) {
  const int32_t rank = f.rank;
  if (rank == 0) return 0;
  const bool mixed = f.num_int8 + f.num_int4 > 0;
  uint32_t flags = 0;
  if (largest == 0.0f) {
    __syncthreads();
    for (int32_t e = block.thread; e < rank * block.k_dim; e += kBlockThreads) block.keys[e] = 0.0f;
    for (int32_t e = block.thread; e < rank * block.v_dim; e += kBlockThreads) {
      block.values[e] = 0.0f;
    }
    __syncthreads();
    flags |= encode_vectors(block, f, false, block.values, bytes);
    return flags | encode_vectors(block, f, true, block.keys, bytes);
  }
  const int32_t exponent = min(max(ilogbf(largest), -126), 126);
  const float scale = power_of_two(-exponent);
  const bool cold = start_values(block, f, previous);
  const int32_t rounds = cold ? 3 : f.fit_rounds > 0 ? f.fit_rounds : mixed ? 1 : 2;
  for (int32_t round = 0; round < rounds; ++round) {
    state_times(block, rank, scale);
    if (!mixed) orthonormalise(block, rank, block.k_dim, block.keys);
    transposed_times(block, rank, scale);
    orthonormalise(block, rank, block.v_dim, block.values);
  }
  if (mixed && cold) sort_by_strength(block, rank, scale);
  if (!mixed) state_times(block, rank, 1.0f);
  flags |= encode_vectors(block, f, false, block.values, bytes);
  if (mixed) {
    state_times(block, rank, 1.0f);
    least_squares(block, rank);
  }
  return flags | encode_vectors(block, f, true, block.keys, bytes);
}

}  // namespace leapquant::cuda
