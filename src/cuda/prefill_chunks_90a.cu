// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels on sm_90a in one launch a stretch: a block has 64 or 128
// value columns of a head. Some warps prepare chunks ahead, each its own, into stages of shared
// memory; groups of four take the state through them in order. Stages are handed over by barriers,
// one pair each.
#include "cuda/prefill_chunks_128.cuh"

#include <algorithm>

#include "cuda/prefill_prepare_128.cuh"
#include "cuda/prefill_state_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace chunks_128;

constexpr int32_t kMostStages = 6;
// Warps that prepare. Never more than stages: one that comes to a stage for the second time ahead
// of its first use would take the wait for the one before as over.
// Four, one on each part of a multiprocessor: six take 623 us where four take 531.
constexpr int32_t kPreparers = 4;
template <int32_t kGroups>
constexpr int32_t kThreads128 = 32 * (4 * kGroups + kPreparers);
static_assert(kPreparers <= kMostStages);

template <int32_t kGroups>
struct ChunkMemory {
  PreparedChunk<kGroups * kGroupColumns> stages[kMostStages];
  Scratch scratch[kPreparers];
  uint64_t full[kMostStages];
  uint64_t empty[kMostStages];
};
// A block is granted 227 KiB; its shared memory starts at a multiple of 1,024.
static_assert(sizeof(ChunkMemory<1>) <= 227 * 1024 && sizeof(ChunkMemory<2>) <= 227 * 1024);

template <int32_t kGroups>
__global__ void __launch_bounds__(kThreads128<kGroups>, 1)
    chunks_128_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(1024) char shared[];
  auto& memory = *reinterpret_cast<ChunkMemory<kGroups>*>(shared);
  constexpr int32_t kColumns = kGroups * kGroupColumns;
  constexpr int32_t kStateWarps = 4 * kGroups;
  launch_dependents();  // the check of inputs, whose findings the end heeds
  ChunkPlace at;
  int32_t index = 0;
  if (!find_place(call, range, kColumns, &at, &index)) return;
  const int32_t warp = __shfl_sync(kAllLanes, static_cast<int32_t>(threadIdx.x) >> 5, 0);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < kMostStages; ++i) {
      barrier_init(shared_address(&memory.full[i]), 1);
      barrier_init(shared_address(&memory.empty[i]), kStateWarps);
    }
  }
  for (int32_t i = 0; i < kMostStages; ++i) clear_corner(&memory.stages[i]);
  fence_async_proxy();
  __syncthreads();

  const int32_t chunks = (at.tokens + kChunkTokens - 1) / kChunkTokens;
  if (warp >= kStateWarps) {
    constexpr int32_t kStep = kPreparers;
    for (int32_t chunk = warp - kStateWarps; chunk < chunks; chunk += kStep) {
      const int32_t round = chunk / kMostStages;
      const int32_t place = chunk - round * kMostStages;
      if (round > 0) {
        barrier_sleep(shared_address(&memory.empty[place]), static_cast<uint32_t>(round - 1) & 1);
      }
      const int32_t first = chunk * kChunkTokens;
      prepare_chunk(call, at, first, min(kChunkTokens, at.tokens - first), &memory.stages[place],
                    &memory.scratch[warp - kStateWarps]);
      if (at.lane == 0) barrier_arrive(shared_address(&memory.full[place]));
    }
    return;
  }
  const int32_t column = warp * 16;
  float* kept = kept_state(call, index) + at.first_column + column;
  Tiles<kDim / 8> s;
  move_state<kDim, false>(kept, call.v_dim, at.lane, s);
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t round = chunk / kMostStages;
    const int32_t place = chunk - round * kMostStages;
    barrier_wait(shared_address(&memory.full[place]), static_cast<uint32_t>(round) & 1);
    const int32_t first = chunk * kChunkTokens;
    advance_chunk(call, at, first, min(kChunkTokens, at.tokens - first), column,
                  &memory.stages[place], s);
    __syncwarp();
    if (at.lane == 0) barrier_arrive(shared_address(&memory.empty[place]));
  }
  move_state<kDim, true>(kept, call.v_dim, at.lane, s);
}

template <int32_t kGroups>
cudaError_t launch(const Call& call, const StretchRange& range, cudaStream_t stream) {
  const auto kernel = chunks_128_kernel<kGroups>;
  constexpr int32_t kBytes = sizeof(ChunkMemory<kGroups>);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(range.count * (call.v_dim / (kGroups * kGroupColumns)));
  kernel<<<blocks, kThreads128<kGroups>, kBytes, stream>>>(call, range);
  return cudaGetLastError();
}

}  // namespace

bool chunks_128_serve(const Call& call) {
  const Inputs& in = call.inputs;
  if (!columns_serve(call) || in.k.type != LEAPQUANT_BF16 || in.q.type != LEAPQUANT_BF16 ||
      in.v.type != LEAPQUANT_BF16) {
    return false;
  }
  if (call.k_dim != kDim || call.v_dim % kGroupColumns != 0) return false;
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

cudaError_t launch_chunks_128(const Call& call, const StretchRange& range, cudaStream_t stream) {
  if (call.decay == LEAPQUANT_DECAY_VECTOR) return launch_vector_128(call, range, stream);
  // Few heads: half a head to a block, so that more multiprocessors work. The bits are the same.
  constexpr int64_t kFewBlocks = 132;
  const bool narrow =
      call.v_dim % 128 != 0 || int64_t{range.count} * (call.v_dim / kGroupColumns) <= kFewBlocks;
  return narrow ? launch<1>(call, range, stream) : launch<2>(call, range, stream);
}

}  // namespace leapquant::cuda
