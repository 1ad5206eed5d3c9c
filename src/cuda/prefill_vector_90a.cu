// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill with vector decays for keys of 128 channels on sm_90a in one launch a stretch: a
// block has 64 or 128 value columns of a head. Teams of four warps prepare chunks of 16 tokens
// ahead into stages of shared memory; groups of four take the state through them in order.
#include "cuda/prefill_chunks_128.cuh"
#include "cuda/prefill_vector_prepare_128.cuh"
#include "cuda/prefill_vector_state_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace chunks_128;

constexpr int32_t kVectorStages = 4;
constexpr int32_t kVectorThreads = 512;
// Never more teams than stages, see prefill_chunks_90a.cu.
template <int32_t kGroups>
constexpr int32_t kTeams = 4 - kGroups;
// Registers of a thread once they have gone from the teams to the groups: 512 of every four warps.
template <int32_t kGroups>
constexpr int32_t kStateRegisters = kGroups == 1 ? 176 : 160;
template <int32_t kGroups>
constexpr int32_t kTeamRegisters = kGroups == 1 ? 112 : 96;

template <int32_t kGroups>
struct VectorMemory {
  VectorChunk<kGroups * kGroupColumns> stages[kVectorStages];
  VectorScratch scratch[kTeams<kGroups>];
  uint64_t full[kVectorStages];
  uint64_t empty[kVectorStages];
};
static_assert(sizeof(VectorMemory<1>) <= 227 * 1024 && sizeof(VectorMemory<2>) <= 227 * 1024);

template <int32_t kGroups>
__global__ void __launch_bounds__(kVectorThreads, 1)
    vector_128_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(1024) char shared[];
  auto& memory = *reinterpret_cast<VectorMemory<kGroups>*>(shared);
  constexpr int32_t kStateWarps = 4 * kGroups;
  launch_dependents();  // the check of inputs, whose findings the end heeds
  ChunkPlace at;
  int32_t index = 0;
  if (!find_place(call, range, kGroups * kGroupColumns, &at, &index)) return;
  const int32_t warp = __shfl_sync(kAllLanes, static_cast<int32_t>(threadIdx.x) >> 5, 0);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < kVectorStages; ++i) {
      barrier_init(shared_address(&memory.full[i]), 4);
      barrier_init(shared_address(&memory.empty[i]), kStateWarps);
    }
  }
  __syncthreads();

  const int32_t chunks = (at.tokens + kVectorTokens - 1) / kVectorTokens;
  if (warp >= kStateWarps) {
    give_registers<kTeamRegisters<kGroups>>();
    const int32_t team = (warp - kStateWarps) >> 2;
    const TeamPlace place_in_team = {warp & 3, at.lane, 1 + team};
    for (int32_t chunk = team; chunk < chunks; chunk += kTeams<kGroups>) {
      const int32_t round = chunk / kVectorStages;
      const int32_t place = chunk - round * kVectorStages;
      if (round > 0) {
        barrier_sleep(shared_address(&memory.empty[place]), static_cast<uint32_t>(round - 1) & 1);
      }
      const int32_t first = chunk * kVectorTokens;
      prepare_vector_chunk(call, at, first, min(kVectorTokens, at.tokens - first), place_in_team,
                           &memory.stages[place], &memory.scratch[team]);
      if (at.lane == 0) barrier_arrive(shared_address(&memory.full[place]));
    }
    return;
  }
  take_registers<kStateRegisters<kGroups>>();
  const int32_t column = warp * 16;
  float* kept = kept_state(call, index) + at.first_column + column;
  Tiles<kDim / 8> s;
  move_state<kDim, false>(kept, call.v_dim, at.lane, s);
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t round = chunk / kVectorStages;
    const int32_t place = chunk - round * kVectorStages;
    barrier_wait(shared_address(&memory.full[place]), static_cast<uint32_t>(round) & 1);
    const int32_t first = chunk * kVectorTokens;
    advance_vector_chunk(call, at, first, min(kVectorTokens, at.tokens - first), column,
                         &memory.stages[place], s);
    __syncwarp();
    if (at.lane == 0) barrier_arrive(shared_address(&memory.empty[place]));
  }
  move_state<kDim, true>(kept, call.v_dim, at.lane, s);
}

template <int32_t kGroups>
cudaError_t launch(const Call& call, const StretchRange& range, cudaStream_t stream) {
  const auto kernel = vector_128_kernel<kGroups>;
  constexpr int32_t kBytes = sizeof(VectorMemory<kGroups>);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(range.count * (call.v_dim / (kGroups * kGroupColumns)));
  kernel<<<blocks, kVectorThreads, kBytes, stream>>>(call, range);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_vector_128(const Call& call, const StretchRange& range, cudaStream_t stream) {
  // Few heads: half a head to a block, so that more multiprocessors work. The bits are the same.
  constexpr int64_t kFewBlocks = 132;
  const bool narrow =
      call.v_dim % 128 != 0 || int64_t{range.count} * (call.v_dim / kGroupColumns) <= kFewBlocks;
  return narrow ? launch<1>(call, range, stream) : launch<2>(call, range, stream);
}

}  // namespace leapquant::cuda
