// SPDX-License-Identifier: Apache-2.0
//
// See picks.h. A block a row. A logit and its id are one number whose order is that of the logits
// and, where these are equal, falls with the id; so the result does not depend on who compares.
#include "runtime/cuda/elements.cuh"
#include "runtime/cuda/picks.h"

namespace leapquant::runtime::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWide = 4;

__device__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

__device__ std::uint64_t key_of(float logit, std::uint32_t id) {
  // Minus zero is zero; NaN loses, and is told by its id.
  const float x = logit == logit ? logit + 0.0f : -INFINITY;
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (std::uint64_t{ordered} << 32) | (0xffffffffU - id);
}

struct Found {
  std::uint64_t key = 0;
  std::uint32_t bad = 0xffffffffU;  // id of the first logit that is not finite

  __device__ void see(float logit, std::uint32_t id) {
    const std::uint64_t seen = key_of(logit, id);
    key = seen > key ? seen : key;
    if (!is_finite(logit)) bad = min(bad, id);
  }
  __device__ void join(std::uint64_t other_key, std::uint32_t other_bad) {
    key = other_key > key ? other_key : key;
    bad = min(bad, other_bad);
  }
  __device__ void join_warp() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      join(__shfl_xor_sync(kWholeWarp, key, step), __shfl_xor_sync(kWholeWarp, bad, step));
    }
  }
};

template <int kCount>
__global__ void __launch_bounds__(kThreads)
    pick_rows_kernel(const float* logits, std::int64_t size, Pick* picks) {
  __shared__ std::uint64_t keys[kThreads / 32];
  __shared__ std::uint32_t bads[kThreads / 32];
  const float* row = logits + std::int64_t{blockIdx.x} * size;
  Found found;
  for (std::int64_t i = threadIdx.x * kCount; i < size; i += kThreads * kCount) {
    float values[kCount];
    load(row + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) found.see(values[j], static_cast<std::uint32_t>(i) + j);
  }
  found.join_warp();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) {
    keys[warp] = found.key;
    bads[warp] = found.bad;
  }
  __syncthreads();
  if (warp != 0) return;
  Found all;
  all.key = keys[lane];
  all.bad = bads[lane];
  all.join_warp();
  if (lane != 0) return;
  Pick pick;
  pick.token = static_cast<TokenId>(0xffffffffU - static_cast<std::uint32_t>(all.key));
  if (all.bad != 0xffffffffU) {
    pick.not_finite = static_cast<TokenId>(all.bad);
    pick.bad_logit = row[all.bad];
  }
  picks[blockIdx.x] = pick;
}

}  // namespace

void pick_rows(cudaStream_t stream, const float* logits, std::int64_t rows, std::int64_t size,
               Pick* picks) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>(rows);
  if (size % kWide == 0) {
    pick_rows_kernel<kWide><<<blocks, kThreads, 0, stream>>>(logits, size, picks);
  } else {
    pick_rows_kernel<1><<<blocks, kThreads, 0, stream>>>(logits, size, picks);
  }
  check_launch();
}

}  // namespace leapquant::runtime::cuda
