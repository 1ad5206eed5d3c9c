// SPDX-License-Identifier: Apache-2.0
//
// Prefill on the general kernels: a block takes one value head of one sequence from the state at
// its position through all tokens and checkpoints to one cold fold. The state stays on chip.
#include <algorithm>

#include "cuda/advance.cuh"
#include "cuda/codec.cuh"
#include "cuda/operations.cuh"

namespace leapquant::cuda {
namespace {

// First checkpoint whose sequence is not below `sequence`.
__device__ int32_t first_checkpoint(const Call& call, int32_t sequence) {
  int32_t low = 0;
  int32_t high = call.num_checkpoints;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (call.checkpoints[middle].sequence < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ leapquant_health* health_at(const Call& call, int32_t slot, int32_t v_head) {
  return call.health != nullptr ? call.health + head_index(call, slot, v_head) : nullptr;
}

// Encodes the state into a checkpoint's slot, which is filled anew, its health too. The running
// state is kept aside and goes on exact; with `through` it becomes
// what the slot holds.
__device__ void take_checkpoint(const Call& call, const Block& block, const HeadFormat& f,
                                int32_t v_head, const leapquant_checkpoint& checkpoint,
                                float* kept) {
  leapquant_health* health = health_at(call, checkpoint.state_slot, v_head);
  if (health != nullptr && block.thread == 0) *health = leapquant_health{};
  for (int32_t e = block.thread; e < block.k_dim * block.v_dim; e += kBlockThreads) {
    kept[e] = block.state[e];
  }
  char* boundary = boundary_of(call, checkpoint.state_slot, v_head);
  encode_state(block, f, nullptr, boundary, health);
  if (block.thread == 0) {
    call.base[head_index(call, checkpoint.state_slot, v_head)] = checkpoint.position;
  }
  if (call.through != 0) {
    compose_state(block, f, boundary);
    return;
  }
  for (int32_t e = block.thread; e < block.k_dim * block.v_dim; e += kBlockThreads) {
    block.state[e] = kept[e];
  }
  __syncthreads();
}

// The end is a checkpoint: a hit would copy it, so the running state is that copy too.
__device__ void adopt_checkpoint(const Call& call, const Block& block, const HeadFormat& f,
                                 int32_t slot, int32_t v_head, int32_t from) {
  const auto* source = reinterpret_cast<const uint4*>(boundary_of(call, from, v_head));
  auto* target = reinterpret_cast<uint4*>(boundary_of(call, slot, v_head));
  for (int32_t i = block.thread; i < f.bytes / 16; i += kBlockThreads) target[i] = source[i];
  leapquant_health* health = health_at(call, slot, v_head);
  if (health == nullptr || block.thread != 0) return;
  const uint32_t flags = health->flags;
  *health = *health_at(call, from, v_head);
  health->flags |= flags;
}

__device__ void prefill_head(const Call& call, const Block& block, int32_t sequence, int32_t v_head,
                             int32_t slot, float* kept) {
  const HeadFormat& f = format_of(call, v_head);
  const int64_t first = call.token_offsets[sequence];
  const int32_t tokens = static_cast<int32_t>(call.token_offsets[sequence + 1] - first);
  const int32_t start = call.positions[sequence];
  const int32_t end = start + tokens;
  char* boundary = boundary_of(call, slot, v_head);
  int32_t* base_at = call.base + head_index(call, slot, v_head);
  const int32_t window_slot = window_slot_of(call, sequence);
  const Window window = window_slot < 0 ? Window{} : window_of(call, window_slot, v_head);
  rebuild_state(call, block, f, boundary, window, v_head, *base_at, start);
  const Token t(call, block);
  int32_t checkpoint = first_checkpoint(call, sequence);
  int32_t adopted = -1;
  for (int32_t token = 0; token < tokens; ++token) {
    advance_state(call, block, t, 0, first + token, v_head);
    if (checkpoint < call.num_checkpoints && call.checkpoints[checkpoint].sequence == sequence &&
        call.checkpoints[checkpoint].position == start + token + 1) {
      take_checkpoint(call, block, f, v_head, call.checkpoints[checkpoint], kept);
      if (token + 1 == tokens) adopted = call.checkpoints[checkpoint].state_slot;
      ++checkpoint;
    }
  }
  if (adopted >= 0) {
    adopt_checkpoint(call, block, f, slot, v_head, adopted);
  } else {
    encode_state(block, f, nullptr, boundary, health_at(call, slot, v_head));
  }
  if (block.thread == 0) *base_at = end;
}

__global__ void __launch_bounds__(kBlockThreads, 2)
    prefill_kernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(64) char shared[];
  const Block block(call, shared);
  float* kept = reinterpret_cast<float*>(call.scratch.workspace + call.scratch.kept_at +
                                         int64_t{blockIdx.x} * call.k_dim * call.v_dim * 4);
  const int64_t items = int64_t{call.batch} * call.num_heads;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    const int32_t sequence = static_cast<int32_t>(index / call.num_heads);
    const int32_t v_head =
        call.first_head + static_cast<int32_t>(index - int64_t{sequence} * call.num_heads);
    const int32_t slot = call.state_slots[sequence];
    if (slot < 0 || call.status[sequence] != LEAPQUANT_OK) {
      for (int64_t token = call.token_offsets[sequence]; token < call.token_offsets[sequence + 1];
           ++token) {
        zero_output(call, block, 0, token, v_head);
      }
      continue;
    }
    if (call.token_offsets[sequence + 1] == call.token_offsets[sequence]) continue;
    prefill_head(call, block, sequence, v_head, slot, kept);
    __syncthreads();
  }
}

}  // namespace

cudaError_t prefill_general(const Layout& layout, Call* call, cudaStream_t stream) {
  if (const cudaError_t error = launch_checks(*call, -1, stream)) return error;
  const auto kernel = prefill_kernel;
  if (const cudaError_t error = allow_shared(kernel, *call)) return error;
  return for_head_ranges(layout, call, [&](const Call& part) {
    const unsigned grid = std::min(grid_of(part), static_cast<unsigned>(kScratchBlocks));
    kernel<<<grid, kBlockThreads, static_cast<size_t>(part.scratch.shared_bytes), stream>>>(part);
    return cudaGetLastError();
  });
}

}  // namespace leapquant::cuda
