// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill in one launch a stretch: a block has 32 or 128 value columns of a head. Some
// warps prepare chunks ahead, each its own, into stages of shared memory; the others take the state
// through them in order. Stages are handed over by barriers, one pair each.
#include "cuda/prefill_chunks.cuh"

#include <algorithm>

#include "cuda/prefill_chunk_prepare.cuh"
#include "cuda/prefill_chunk_state.cuh"

namespace leapquant::cuda {
namespace {

constexpr int32_t kWarpColumns = 16;
constexpr int32_t kMostStages = 6;

// Warps of a block that carry the state, and at most those that prepare.
template <int32_t kWarps>
constexpr int32_t kPreparers = kWarps == 2 ? 6 : 4;

template <int32_t kDim, int32_t kWarps>
struct ChunkMemory {
  uint64_t full[kMostStages];
  uint64_t empty[kMostStages];
  uint64_t unused[4];
  PrepareScratch scratch[kPreparers<kWarps>];
  Stage<kDim, kWarps * kWarpColumns> stages[1];  // as many as the launch has

  static size_t bytes(int32_t stages) {
    return sizeof(ChunkMemory) +
           static_cast<size_t>(stages - 1) * sizeof(Stage<kDim, kWarps * kWarpColumns>);
  }
};

template <int32_t kDim, int32_t kWarps>
__global__ void __launch_bounds__(32 * (kWarps + kPreparers<kWarps>), 1)
    chunks_kernel(const __grid_constant__ Call call, const StretchRange range, int32_t num_stages) {
  extern __shared__ __align__(128) char shared[];
  auto& memory = *reinterpret_cast<ChunkMemory<kDim, kWarps>*>(shared);
  const int32_t pieces = call.v_dim / (kWarps * kWarpColumns);
  const int32_t index = static_cast<int32_t>(blockIdx.x) / pieces;
  const int64_t item = range.first + index;
  ChunkPlace at;
  at.sequence = static_cast<int32_t>(item / call.num_heads);
  at.v_head = call.first_head + static_cast<int32_t>(item - int64_t{at.sequence} * call.num_heads);
  at.first_column = (static_cast<int32_t>(blockIdx.x) - index * pieces) * kWarps * kWarpColumns;
  at.lane = static_cast<int32_t>(threadIdx.x) & 31;
  if (call.state_slots[at.sequence] < 0 || call.status[at.sequence] != LEAPQUANT_OK) return;
  const Stretch stretch = stretch_of(call, at.sequence, range.stretch);
  at.token = call.token_offsets[at.sequence] + stretch.begin;
  at.tokens = stretch.end - stretch.begin;
  if (at.tokens <= 0) return;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) >> 5;
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < num_stages; ++i) {
      barrier_init(shared_address(&memory.full[i]), 1);
      barrier_init(shared_address(&memory.empty[i]), kWarps);
    }
  }
  __syncthreads();

  const int32_t chunks = (at.tokens + kChunkTokens - 1) / kChunkTokens;
  const auto wait = [](uint64_t* barrier, int32_t round) {
    const uint32_t address = shared_address(barrier);
    while (!barrier_passed(address, static_cast<uint32_t>(round & 1))) {
    }
  };
  if (warp >= kWarps) {
    // No more of them than stages: one that comes to a stage for the second time ahead of its first
    // use would take the wait for the one before as over.
    const int32_t step = min(kPreparers<kWarps>, num_stages);
    if (warp - kWarps >= step) return;
    for (int32_t chunk = warp - kWarps; chunk < chunks; chunk += step) {
      const int32_t round = chunk / num_stages;
      const int32_t place = chunk - round * num_stages;
      if (round > 0) wait(&memory.empty[place], round - 1);
      const int32_t first = chunk * kChunkTokens;
      prepare_chunk(call, at, first, min(kChunkTokens, at.tokens - first), &memory.stages[place],
                    &memory.scratch[warp - kWarps]);
      if (at.lane == 0) barrier_arrive(shared_address(&memory.full[place]));
    }
    return;
  }
  const int32_t column = warp * kWarpColumns;
  float* kept = kept_state(call, index) + at.first_column + column;
  Tiles<kDim / 8> s;
  move_state<kDim, false>(kept, call.v_dim, at.lane, s);
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t round = chunk / num_stages;
    const int32_t place = chunk - round * num_stages;
    wait(&memory.full[place], round);
    const int32_t first = chunk * kChunkTokens;
    advance_chunk(call, at, first, min(kChunkTokens, at.tokens - first), column,
                  &memory.stages[place], s);
    __syncwarp();
    if (at.lane == 0) barrier_arrive(shared_address(&memory.empty[place]));
  }
  move_state<kDim, true>(kept, call.v_dim, at.lane, s);
}

template <int32_t kDim, int32_t kWarps>
cudaError_t launch(const Call& call, const StretchRange& range, cudaStream_t stream) {
  using Memory = ChunkMemory<kDim, kWarps>;
  int device = 0;
  int room = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  int32_t stages = kMostStages;
  while (stages > 1 && Memory::bytes(stages) > static_cast<size_t>(room)) --stages;
  const size_t bytes = Memory::bytes(stages);
  const auto kernel = chunks_kernel<kDim, kWarps>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(range.count * (call.v_dim / (kWarps * kWarpColumns)));
  kernel<<<blocks, 32 * (kWarps + kPreparers<kWarps>), bytes, stream>>>(call, range, stages);
  return cudaGetLastError();
}

}  // namespace

bool chunks_serve(const Call& call) {
  const Inputs& in = call.inputs;
  return columns_serve(call) && call.decay != LEAPQUANT_DECAY_VECTOR &&
         in.k.type == LEAPQUANT_BF16 && in.q.type == LEAPQUANT_BF16 && in.v.type == LEAPQUANT_BF16;
}

cudaError_t launch_chunks(const Call& call, const StretchRange& range, cudaStream_t stream) {
  // Few heads: a fourth of a head to a block, so that more multiprocessors work. The bits are the
  // same.
  constexpr int64_t kFewBlocks = 264;
  const bool narrow =
      call.v_dim % 128 != 0 || int64_t{range.count} * (call.v_dim / 32) <= kFewBlocks;
  if (call.k_dim == 64) {
    return narrow ? launch<64, 2>(call, range, stream) : launch<64, 8>(call, range, stream);
  }
  return narrow ? launch<128, 2>(call, range, stream) : launch<128, 8>(call, range, stream);
}

}  // namespace leapquant::cuda
