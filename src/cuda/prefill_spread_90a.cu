// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill of few heads with keys of 128 channels on sm_90a: 64 value columns of a head have
// a cluster of two blocks, each with a multiprocessor of its own. One prepares chunks and copies
// them into the shared memory of the other, which carries the state and does nothing else. The
// arithmetic is that of prefill_chunks_90a, and so are the bits.
#include "cuda/prefill_chunks_128.cuh"
#include "cuda/prefill_kinds_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace chunks_128;

constexpr int32_t kClusterBlocks = 2;
constexpr uint32_t kStateRank = 0;
constexpr uint32_t kPrepareRank = 1;
constexpr int32_t kStateWarps = 4;

// Units that prepare, and stages; never fewer of these, see prefill_chunks_90a.cu.
template <typename Kind>
constexpr int32_t kUnits = Kind::kUnitWarps == 1 ? 6 : 4;
template <typename Kind>
constexpr int32_t kStages = Kind::kUnitWarps == 1 ? 7 : 6;
template <typename Kind>
constexpr int32_t kSpreadThreads = 32 * kUnits<Kind> * Kind::kUnitWarps;
// With many threads a fourth of them, the state's, get others' registers.
template <typename Kind>
constexpr bool kMoveRegisters = Kind::kUnitWarps == 4;
// The bound leaves a fourth of the registers to other kernels' blocks.
template <typename Kind>
constexpr int32_t kBoundThreads = kMoveRegisters<Kind> ? 640 : kSpreadThreads<Kind>;

template <typename Kind>
using Chunk = typename Kind::template Chunk<kGroupColumns>;

// Shared memory of a block of either role. Barriers lie at the same place in both.
template <typename Kind>
struct SpreadMemory {
  union {
    Chunk<Kind> stages[kStages<Kind>];
    struct {
      Chunk<Kind> made[kUnits<Kind>];
      typename Kind::Space space[kUnits<Kind>];
    } prepare;
  };
  uint64_t full[kStages<Kind>];   // of the state's block: a stage has arrived
  uint64_t taken[kUnits<Kind>];   // of the preparers': a unit's chunk has arrived
  uint64_t empty[kStages<Kind>];  // of the preparers': a stage is read
  uint32_t faults[kStateWarps];   // of the state's block: of values, by warp
};
static_assert(sizeof(SpreadMemory<ScalarKind>) <= 227 * 1024 &&
              sizeof(SpreadMemory<VectorKind>) <= 227 * 1024);

// The unit's chunks into stages of the other block.
template <typename Kind>
__device__ __forceinline__ void prepare_chunks(const Call& call, const ChunkPlace& at,
                                               int32_t chunks, int32_t warp,
                                               SpreadMemory<Kind>& memory) {
  const int32_t unit = warp / Kind::kUnitWarps;
  auto& made = memory.prepare.made[unit];
  auto& space = memory.prepare.space[unit];
  uint32_t turn = 0;
  uint32_t found = 0;
  for (int32_t chunk = unit; chunk < chunks; chunk += kUnits<Kind>, ++turn) {
    found |= Kind::prepare(call, at, chunk, warp % Kind::kUnitWarps, 1 + unit, &made, &space, [&] {
      if (turn > 0) barrier_sleep(shared_address(&memory.taken[unit]), (turn - 1) & 1);
    });
    if constexpr (Kind::kUnitWarps > 1) {
      if (warp % Kind::kUnitWarps > 1) continue;
      sync_threads(1 + kUnits<Kind> + unit, 64);  // the two that wrote last
      if (warp % Kind::kUnitWarps > 0) continue;
    }
    const int32_t round = chunk / kStages<Kind>;
    const int32_t place = chunk - round * kStages<Kind>;
    if (round > 0) {
      barrier_sleep(shared_address(&memory.empty[place]), static_cast<uint32_t>(round - 1) & 1);
    }
    if (at.lane == 0) {
      bulk_copy_in(address_in(shared_address(&memory.stages[place]), kStateRank),
                   shared_address(&made), sizeof(made),
                   address_in(shared_address(&memory.full[place]), kStateRank));
    }
    __syncwarp();
  }
  tell_faults_of_warp(call, at, found);
}

// A warp beside the state's tells the preparers what has arrived.
template <typename Kind>
__device__ __forceinline__ void receive_chunks(int32_t chunks, int32_t lane,
                                               SpreadMemory<Kind>& memory) {
  int32_t unit = 0;
  int32_t place = 0;
  uint32_t round = 0;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t full = shared_address(&memory.full[place]);
    if (lane == 0) barrier_expect(full, sizeof(Chunk<Kind>));
    barrier_wait(full, round & 1);
    if (lane == 0) {
      barrier_arrive_in(address_in(shared_address(&memory.taken[unit]), kPrepareRank));
    }
    if (++unit == kUnits<Kind>) unit = 0;
    if (++place == kStages<Kind>) {
      place = 0;
      ++round;
    }
  }
}

// The warp's columns through all chunks.
template <typename Kind>
__device__ __forceinline__ void carry_state(const Call& call, const ChunkPlace& at, int32_t chunks,
                                            int32_t warp, float* head, SpreadMemory<Kind>& memory) {
  const int32_t column = warp * 16;
  float* kept = head + at.first_column + column;
  Tiles<kDim / 8> s;
  move_state<kDim, false>(kept, call.v_dim, at.lane, s);
  int32_t place = 0;
  uint32_t round = 0;
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    barrier_wait(shared_address(&memory.full[place]), round & 1);
    Kind::advance(call, at, chunk, column, &memory.stages[place], s, &memory.faults[warp]);
    __syncwarp();
    if (at.lane == 0) {
      barrier_arrive_in(address_in(shared_address(&memory.empty[place]), kPrepareRank));
    }
    if (++place == kStages<Kind>) {
      place = 0;
      ++round;
    }
  }
  move_state<kDim, true>(kept, call.v_dim, at.lane, s);
  __syncwarp();
  tell_faults_of_warp(call, at, memory.faults[warp]);
}

template <typename Kind>
__global__ void __launch_bounds__(kBoundThreads<Kind>, 1)
    spread_128_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(1024) char shared[];
  auto& memory = *reinterpret_cast<SpreadMemory<Kind>*>(shared);
  launch_dependents();
  ChunkPlace at;
  int32_t index = 0;
  // The same in both blocks.
  if (!find_place(call, range, kGroupColumns / kClusterBlocks, &at, &index)) return;
  at.first_column &= ~(kGroupColumns - 1);
  const bool prepares = cluster_rank() == kPrepareRank;
  const int32_t warp = __shfl_sync(kAllLanes, static_cast<int32_t>(threadIdx.x) >> 5, 0);
  if (threadIdx.x == 0) {
    for (uint32_t& faults : memory.faults) faults = 0;
    for (int32_t i = 0; i < kStages<Kind>; ++i) {
      barrier_init(shared_address(&memory.full[i]), 1);
      barrier_init(shared_address(&memory.empty[i]), kStateWarps);
    }
    for (int32_t i = 0; i < kUnits<Kind>; ++i) barrier_init(shared_address(&memory.taken[i]), 1);
  }
  if (prepares) {
    for (int32_t i = 0; i < kUnits<Kind>; ++i) Kind::clear(&memory.prepare.made[i]);
  }
  fence_async_shared();
  cluster_sync();
  const int32_t chunks = (at.tokens + Kind::kTokens - 1) / Kind::kTokens;
  if (prepares) {
    prepare_chunks<Kind>(call, at, chunks, warp, memory);
  } else if (warp >= kStateWarps) {
    if constexpr (kMoveRegisters<Kind>) give_registers<40>();
    if (warp == kStateWarps) receive_chunks<Kind>(chunks, at.lane, memory);
  } else {
    if constexpr (kMoveRegisters<Kind>) take_registers<208>();
    carry_state<Kind>(call, at, chunks, warp, kept_state(call, index), memory);
  }
  __syncwarp();
  cluster_sync();  // what was copied and told reaches blocks that are there
}

// A launch of the kernel over `clusters` clusters; may not move, it points to itself.
template <typename Kind>
struct SpreadLaunch {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};
  cudaError_t error;

  SpreadLaunch(int32_t clusters, cudaStream_t stream) {
    constexpr int32_t kBytes = sizeof(SpreadMemory<Kind>);
    error = cudaFuncSetAttribute(spread_128_kernel<Kind>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kClusterBlocks, 1, 1};
    config.gridDim = dim3(static_cast<unsigned>(clusters * kClusterBlocks));
    config.blockDim = dim3(kSpreadThreads<Kind>);
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  SpreadLaunch(const SpreadLaunch&) = delete;
  SpreadLaunch& operator=(const SpreadLaunch&) = delete;
};

int32_t clusters_of(const Call& call, const StretchRange& range) {
  return range.count * (call.v_dim / kGroupColumns);
}

template <typename Kind>
bool fits(const Call& call, const StretchRange& range) {
  const SpreadLaunch<Kind> launch(clusters_of(call, range), nullptr);
  int at_once = 0;
  return launch.error == cudaSuccess &&
         cudaOccupancyMaxActiveClusters(&at_once, spread_128_kernel<Kind>, &launch.config) ==
             cudaSuccess &&
         clusters_of(call, range) <= at_once;
}

template <typename Kind>
cudaError_t launch_kind(const Call& call, const StretchRange& range, cudaStream_t stream) {
  const SpreadLaunch<Kind> launch(clusters_of(call, range), stream);
  if (launch.error != cudaSuccess) return launch.error;
  return cudaLaunchKernelEx(&launch.config, spread_128_kernel<Kind>, call, range);
}

}  // namespace

bool spread_128_fits(const Call& call, const StretchRange& range) {
  return call.decay == LEAPQUANT_DECAY_VECTOR ? fits<VectorKind>(call, range)
                                              : fits<ScalarKind>(call, range);
}

cudaError_t launch_spread_128(const Call& call, const StretchRange& range, cudaStream_t stream) {
  return call.decay == LEAPQUANT_DECAY_VECTOR ? launch_kind<VectorKind>(call, range, stream)
                                              : launch_kind<ScalarKind>(call, range, stream);
}

}  // namespace leapquant::cuda
