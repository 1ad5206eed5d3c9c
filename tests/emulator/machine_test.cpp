// SPDX-License-Identifier: Apache-2.0
//
// The emulated multiprocessor itself: what its instructions compute, and that it finds what device
// code must not do.
#include "emulator/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "emulator/device_code.h"

// After device_code.h.
#include "cuda/ptx.cuh"

namespace leapquant::emulator {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kShared = 4096;
alignas(128) char shared[kShared];

std::string run_block_of(uint32_t threads, const std::function<void()>& kernel, uint64_t seed = 0) {
  return run(1, {threads, 1}, shared, kShared, {seed, 0xff}, kernel);
}

TEST(Machine, ThreadsMeetAtBarriersInAnyOrder) {
  for (uint64_t seed : {0, 1, 2}) {
    std::vector<int> first(64, 0), sums(64, 0);
    const std::string failure = run_block_of(
        64,
        [&] {
          first[threadIdx.x] = static_cast<int>(threadIdx.x);
          __syncthreads();
          for (int x : first) sums[threadIdx.x] += x;
        },
        seed);
    EXPECT_EQ(failure, "");
    EXPECT_EQ(sums, std::vector<int>(64, 64 * 63 / 2));
  }
}

TEST(Machine, LanesExchangeWords) {
  std::vector<int> down(32), across(32);
  uint32_t votes = 0, largest = 0;
  EXPECT_EQ(run_block_of(
                32,
                [&] {
                  const int lane = static_cast<int>(threadIdx.x);
                  down[threadIdx.x] = __shfl_down_sync(kAll, lane, 3);
                  across[threadIdx.x] = __shfl_xor_sync(kAll, lane, 5);
                  votes = __ballot_sync(kAll, lane % 3 == 0);
                  largest = __reduce_max_sync(kAll, threadIdx.x * 7);
                },
                7),
            "");
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(down[static_cast<size_t>(lane)], lane < 29 ? lane + 3 : lane);
    EXPECT_EQ(across[static_cast<size_t>(lane)], lane ^ 5);
    EXPECT_EQ(votes >> lane & 1, lane % 3 == 0 ? 1u : 0u);
  }
  EXPECT_EQ(largest, 217u);
}

// A [16, 16] by rows and B [16, 8] by rows in shared memory, loaded as the PTX manual says that
// operands lie; small integers, so that every sum is exact.
TEST(Machine, MatricesAreMultiplied) {
  std::mt19937 random(8404);
  float a[16][16], b[16][8], expected[16][8] = {};
  for (auto& row : a) {
    for (float& x : row) x = static_cast<float>(random() % 17) - 8.0f;
  }
  for (auto& row : b) {
    for (float& x : row) x = static_cast<float>(random() % 17) - 8.0f;
  }
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      expected[i][j] = 100.0f * static_cast<float>(i) + static_cast<float>(j);
      for (int k = 0; k < 16; ++k) expected[i][j] += a[i][k] * b[k][j];
    }
  }
  float got[16][8] = {};
  const auto kernel = [&] {
    const int lane = static_cast<int>(threadIdx.x);
    auto* halves = reinterpret_cast<uint16_t*>(shared);
    for (int e = lane; e < 256; e += 32) halves[e] = float_to_fp16(a[e / 16][e % 16]);
    for (int e = lane; e < 128; e += 32) halves[256 + e] = float_to_fp16(b[e / 8][e % 8]);
    __syncwarp();
    const uint32_t at = cuda::shared_address(shared);
    uint32_t left[4], right[4];
    cuda::load_matrices(left, at + static_cast<uint32_t>(lane % 16 * 32 + lane / 16 * 16));
    cuda::load_matrices_transposed(right, at + 512 + static_cast<uint32_t>(lane % 16 * 16));
    const int row = lane / 4;
    const int column = 2 * (lane % 4);
    float d[4];
    for (int i = 0; i < 4; ++i) {
      d[i] = 100.0f * static_cast<float>(row + i / 2 * 8) + static_cast<float>(column + i % 2);
    }
    cuda::mma_fp16(d, left[0], left[1], left[2], left[3], right[0], right[1]);
    for (int i = 0; i < 4; ++i) got[row + i / 2 * 8][column + i % 2] = d[i];
  };
  EXPECT_EQ(run_block_of(32, kernel, 3), "");
  EXPECT_EQ(std::memcmp(got, expected, sizeof(got)), 0);
}

TEST(Machine, CopiesArriveWhereThreadsWaitForThem) {
  alignas(16) char from[256];
  alignas(16) char to[256] = {};
  for (int i = 0; i < 256; ++i) from[i] = static_cast<char>(i);
  char early = 0;
  const auto kernel = [&] {
    const uint32_t barrier = cuda::shared_address(shared + 1024);
    if (threadIdx.x == 0) {
      cuda::barrier_init(barrier, 1);
      cuda::barrier_expect(barrier, 256);
      cuda::bulk_copy(0, from, 256, barrier);
    }
    __syncthreads();
    early = shared[1];
    cuda::barrier_wait(barrier, 0);
    __syncthreads();
    if (threadIdx.x == 5) {
      cuda::bulk_store(to, 0, 256);
      cuda::bulk_stores_wait();
      cuda::bulk_stores_done();
    }
  };
  EXPECT_EQ(run_block_of(32, kernel), "");
  EXPECT_EQ(early, static_cast<char>(0xff));
  EXPECT_EQ(std::memcmp(from, to, 256), 0);
}

TEST(Machine, DeadlocksAreFound) {
  const auto some_leave = [] {
    if (threadIdx.x < 32) __syncthreads();
  };
  EXPECT_THAT(run_block_of(64, some_leave), HasSubstr("32 threads wait at barrier 0"));
  const auto no_copy = [] {
    cuda::barrier_init(0, 1);
    cuda::barrier_wait(0, 0);
  };
  EXPECT_THAT(run_block_of(32, no_copy), HasSubstr("nobody can go on"));
}

TEST(Machine, BarriersOfOtherThreadsAreFound) {
  const auto numbers = [] { meet(1, threadIdx.x < 32 ? 64 : 96); };
  EXPECT_THAT(run_block_of(64, numbers), HasSubstr("is one of 64 threads and one of 96"));
  const auto halves_of_warps = [] {
    if (threadIdx.x % 2 == 0) meet(1, 32);
  };
  EXPECT_THAT(run_block_of(64, halves_of_warps), HasSubstr("16 lanes of a warp"));
}

TEST(Machine, LanesAtDifferentInstructionsAreFound) {
  const auto kernel = [] {
    if (threadIdx.x < 16) {
      __syncwarp();
    } else {
      __any_sync(kAll, true);
    }
  };
  EXPECT_THAT(run_block_of(32, kernel), HasSubstr("different instructions"));
}

TEST(Machine, FaultyCopiesAreFound) {
  alignas(16) static char memory[64];
  const auto start = [] {
    cuda::barrier_init(1024, 1);
    cuda::barrier_expect(1024, 64);
    cuda::bulk_copy(0, memory, 64, 1024);
  };
  const auto run_one = [](const std::function<void()>& one) {
    return run_block_of(32, [&] {
      if (threadIdx.x == 0) one();
    });
  };
  EXPECT_THAT(run_one([&] {
                start();
                shared[3] = 1;
                cuda::barrier_wait(1024, 0);
              }),
              HasSubstr("was written while"));
  EXPECT_THAT(run_one(start), HasSubstr("while bulk copies were on their way"));
  EXPECT_THAT(run_one([&] { cuda::bulk_copy(8, memory, 64, 1024); }), HasSubstr("multiples of 16"));
  EXPECT_THAT(run_one([&] { cuda::barrier_wait(1024, 0); }), HasSubstr("initialised"));
  EXPECT_THAT(run_one([&] {
                cuda::bulk_store(memory, 0, 64);
                shared[3] = 1;
                cuda::bulk_stores_wait();
              }),
              HasSubstr("before a bulk store had read it"));
  EXPECT_THAT(run_one([&] { cuda::bulk_store(memory, 0, 64); }), HasSubstr("known to be written"));
  EXPECT_THAT(run_one([&] { cuda::bulk_store(memory, kShared, 64); }), HasSubstr("past the end"));
}

}  // namespace
}  // namespace leapquant::emulator
