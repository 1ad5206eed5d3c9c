// SPDX-License-Identifier: Apache-2.0
//
// Chunked prefill for keys of 128 channels on sm_90a in one launch a stretch: a block has 64 or 128
// value columns of a head. Some warps prepare chunks ahead into stages of shared memory; groups of
// four take the state through them in order. Stages are handed over by barriers, one pair each.
#include "cuda/prefill_chunks_128.cuh"
#include "cuda/prefill_kinds_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace chunks_128;

// Units that prepare and stages. Never more units than stages: one that comes to a stage for the
// second time ahead of its first use would take the wait for the one before as over. Four scalar
// ones, one on each part of a multiprocessor: six take 623 us where four take 531.
template <typename Kind, int32_t kGroups>
constexpr int32_t kUnits = Kind::kUnitWarps == 1 ? 4 : 4 - kGroups;
template <typename Kind>
constexpr int32_t kStages = Kind::kUnitWarps == 1 ? 6 : 4;
template <typename Kind, int32_t kGroups>
constexpr int32_t kThreads128 = 32 * (4 * kGroups + Kind::kUnitWarps * kUnits<Kind, kGroups>);
// Registers of a thread once they have gone from the units to the groups, where there are many
// threads; they move by groups of four warps.
template <typename Kind>
constexpr bool kMoveRegisters = Kind::kUnitWarps == 4;
template <int32_t kGroups>
constexpr int32_t kStateRegisters = kGroups == 1 ? 176 : 160;
template <int32_t kGroups>
constexpr int32_t kUnitRegisters = kGroups == 1 ? 112 : 96;

template <typename Kind, int32_t kGroups>
struct ChunkMemory {
  typename Kind::template Chunk<kGroups * kGroupColumns> stages[kStages<Kind>];
  typename Kind::Space space[kUnits<Kind, kGroups>];
  uint64_t full[kStages<Kind>];
  uint64_t empty[kStages<Kind>];
  uint32_t faults[4 * kGroups];  // of values, by warp
};

template <typename Kind, int32_t kGroups>
__global__ void __launch_bounds__(kThreads128<Kind, kGroups>, 1)
    chunks_128_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(1024) char shared[];
  auto& memory = *reinterpret_cast<ChunkMemory<Kind, kGroups>*>(shared);
  constexpr int32_t kStateWarps = 4 * kGroups;
  constexpr int32_t kCount = kStages<Kind>;
  launch_dependents();  // the check of inputs, whose findings the end heeds
  ChunkPlace at;
  int32_t index = 0;
  if (!find_place(call, range, kGroups * kGroupColumns, &at, &index)) return;
  const int32_t warp = __shfl_sync(kAllLanes, static_cast<int32_t>(threadIdx.x) >> 5, 0);
  if (threadIdx.x == 0) {
    for (uint32_t& faults : memory.faults) faults = 0;
    for (int32_t i = 0; i < kCount; ++i) {
      barrier_init(shared_address(&memory.full[i]), 32 * Kind::kUnitWarps);
      barrier_init(shared_address(&memory.empty[i]), 32 * kStateWarps);
    }
  }
  for (int32_t i = 0; i < kCount; ++i) Kind::clear(&memory.stages[i]);
  fence_async_shared();
  __syncthreads();

  const int32_t chunks = (at.tokens + Kind::kTokens - 1) / Kind::kTokens;
  if (warp >= kStateWarps) {
    if constexpr (kMoveRegisters<Kind>) give_registers<kUnitRegisters<kGroups>>();
    const int32_t unit = (warp - kStateWarps) / Kind::kUnitWarps;
    uint32_t found = 0;
    for (int32_t chunk = unit; chunk < chunks; chunk += kUnits<Kind, kGroups>) {
      const int32_t round = chunk / kCount;
      const int32_t place = chunk - round * kCount;
      found |= Kind::prepare(call, at, chunk, (warp - kStateWarps) % Kind::kUnitWarps, 1 + unit,
                             &memory.stages[place], &memory.space[unit], [&] {
                               if (round == 0) return;
                               barrier_sleep(shared_address(&memory.empty[place]),
                                             static_cast<uint32_t>(round - 1) & 1);
                             });
      // Every lane: tools that look for races do not carry __syncwarp() on to one lane's arrival.
      barrier_arrive(shared_address(&memory.full[place]));
    }
    tell_faults_of_warp(call, at, found);
    return;
  }
  if constexpr (kMoveRegisters<Kind>) take_registers<kStateRegisters<kGroups>>();
  const int32_t column = warp * 16;
  float* kept = kept_state(call, index) + at.first_column + column;
  Tiles<kDim / 8> s;
  move_state<kDim, false>(kept, call.v_dim, at.lane, s);
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t round = chunk / kCount;
    const int32_t place = chunk - round * kCount;
    barrier_wait(shared_address(&memory.full[place]), static_cast<uint32_t>(round) & 1);
    Kind::advance(call, at, chunk, column, &memory.stages[place], s, &memory.faults[warp]);
    __syncwarp();
    barrier_arrive(shared_address(&memory.empty[place]));
  }
  move_state<kDim, true>(kept, call.v_dim, at.lane, s);
  __syncwarp();
  tell_faults_of_warp(call, at, memory.faults[warp]);
}

template <typename Kind, int32_t kGroups>
cudaError_t launch(const Call& call, const StretchRange& range, cudaStream_t stream) {
  static_assert(kUnits<Kind, kGroups> <= kStages<Kind>);
  const auto kernel = chunks_128_kernel<Kind, kGroups>;
  constexpr int32_t kBytes = sizeof(ChunkMemory<Kind, kGroups>);
  static_assert(kBytes <= 227 * 1024);  // what a block is granted
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(range.count * (call.v_dim / (kGroups * kGroupColumns)));
  kernel<<<blocks, kThreads128<Kind, kGroups>, kBytes, stream>>>(call, range);
  return cudaGetLastError();
}

template <typename Kind>
cudaError_t launch_kind(const Call& call, const StretchRange& range, cudaStream_t stream) {
  // Few heads: half a head to a block, so that more multiprocessors work. The bits are the same.
  constexpr int64_t kFewBlocks = 132;
  const bool narrow =
      call.v_dim % 128 != 0 || int64_t{range.count} * (call.v_dim / kGroupColumns) <= kFewBlocks;
  return narrow ? launch<Kind, 1>(call, range, stream) : launch<Kind, 2>(call, range, stream);
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
  return call.decay == LEAPQUANT_DECAY_VECTOR ? launch_kind<VectorKind>(call, range, stream)
                                              : launch_kind<ScalarKind>(call, range, stream);
}

}  // namespace leapquant::cuda
