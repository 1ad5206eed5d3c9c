// SPDX-License-Identifier: Apache-2.0
//
// Prefill. In general a block takes one value head of one sequence from the state at its position
// through all tokens and checkpoints to one cold fold; where prefill_chunks (activations in BF16,
// scalar decays) or prefill_columns serves a call, the recurrence is a launch of its own between a
// rebuild and an encoding.
#include <algorithm>

#include "cuda/advance.cuh"
#include "cuda/codec.cuh"
#include "cuda/operations.cuh"
#include "cuda/prefill_chunks.cuh"
#include "cuda/prefill_chunks_128.cuh"
#include "cuda/prefill_columns.cuh"
#include "cuda/prefill_end_128.cuh"

namespace leapquant::cuda {
namespace {

__device__ leapquant_health* health_at(const Call& call, int32_t slot, int32_t v_head) {
  return call.health != nullptr ? call.health + head_index(call, slot, v_head) : nullptr;
}

// Outputs of a sequence that is not computed. Its first offset may be what is wrong with it:
// nothing before the tensor is written.
__device__ void zero_outputs(const Call& call, const Block& block, int32_t sequence,
                             int32_t v_head) {
  for (int64_t token = max(call.token_offsets[sequence], 0);
       token < call.token_offsets[sequence + 1]; ++token) {
    zero_output(call, block, 0, token, v_head);
  }
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

// The state at hand, where a stretch's recurrence finds it.
__device__ __forceinline__ void keep_state(const Block& block, float* kept) {
  for (int32_t e = block.thread; e < block.k_dim * block.v_dim; e += kBlockThreads) {
    kept[e] = block.state[e];
  }
}

// The same of the columns that this block has.
__device__ __forceinline__ void keep_columns(const Block& block, float* kept) {
  for (int32_t row = block.row_begin; row < block.row_end; ++row) {
    const int32_t e = row * block.v_dim + block.column;
    kept[e] = block.state[e];
  }
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
      zero_outputs(call, block, sequence, v_head);
      continue;
    }
    if (call.token_offsets[sequence + 1] == call.token_offsets[sequence]) continue;
    prefill_head(call, block, sequence, v_head, slot, kept);
    __syncthreads();
  }
}

// ---- By chunks or columns: what comes before and after the recurrence of a stretch ----

struct Item {
  int32_t sequence, v_head, slot;
  bool alive;
};

__device__ Item item_of(const Call& call, int64_t index) {
  Item item;
  item.sequence = static_cast<int32_t>(index / call.num_heads);
  item.v_head =
      call.first_head + static_cast<int32_t>(index - int64_t{item.sequence} * call.num_heads);
  item.slot = call.state_slots[item.sequence];
  item.alive = item.slot >= 0 && call.status[item.sequence] == LEAPQUANT_OK &&
               call.token_offsets[item.sequence + 1] > call.token_offsets[item.sequence];
  return item;
}

// The state at the sequence's position, into the workspace; zero outputs where there is none. Few
// items: `pieces` blocks share the rows of a state.
__global__ void __launch_bounds__(kBlockThreads, 2)
    begin_kernel(const __grid_constant__ Call call, const StretchRange range, int32_t pieces) {
  extern __shared__ __align__(64) char shared[];
  Block block(call, shared);
  const int32_t piece = static_cast<int32_t>(blockIdx.x) % pieces;
  const int32_t rows = block.row_end - block.row_begin;
  block.row_end = block.row_begin + rows * (piece + 1) / pieces;
  block.row_begin += rows * piece / pieces;
  for (int32_t i = static_cast<int32_t>(blockIdx.x) / pieces; i < range.count;
       i += static_cast<int32_t>(gridDim.x) / pieces) {
    const Item item = item_of(call, range.first + i);
    if (!item.alive) {
      if (piece == 0) zero_outputs(call, block, item.sequence, item.v_head);
      continue;
    }
    const int32_t window_slot = window_slot_of(call, item.sequence);
    const Window window = window_slot < 0 ? Window{} : window_of(call, window_slot, item.v_head);
    rebuild_state(call, block, format_of(call, item.v_head),
                  boundary_of(call, item.slot, item.v_head), window, item.v_head,
                  call.base[head_index(call, item.slot, item.v_head)],
                  call.positions[item.sequence]);
    float* kept = kept_state(call, i);
    keep_columns(block, kept);
    __syncthreads();
  }
}

// The state after a stretch, into the checkpoint's slot or the sequence's own. What was computed
// for a sequence whose inputs turned out to be at fault becomes zero.
__global__ void __launch_bounds__(kBlockThreads, 2)
    end_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(64) char shared[];
  const Block block(call, shared);
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < range.count;
       i += static_cast<int32_t>(gridDim.x)) {
    const Item item = item_of(call, range.first + i);
    if (!item.alive) {
      zero_outputs(call, block, item.sequence, item.v_head);
      continue;
    }
    const Stretch stretch = stretch_of(call, item.sequence, range.stretch);
    if (stretch.checkpoint == -2) continue;
    const HeadFormat& f = format_of(call, item.v_head);
    float* kept = kept_state(call, i);
    if (stretch.checkpoint == -1 && stretch.begin == stretch.end) {
      // The last checkpoint is the end.
      const int32_t last = first_checkpoint(call, item.sequence + 1) - 1;
      adopt_checkpoint(call, block, f, item.slot, item.v_head, call.checkpoints[last].state_slot);
    } else {
      for (int32_t e = block.thread; e < block.k_dim * block.v_dim; e += kBlockThreads) {
        block.state[e] = kept[e];
      }
      __syncthreads();
      if (stretch.checkpoint >= 0) {
        take_checkpoint(call, block, f, item.v_head, call.checkpoints[stretch.checkpoint], kept);
        if (call.through != 0) keep_state(block, kept);
      } else {
        encode_state(block, f, nullptr, boundary_of(call, item.slot, item.v_head),
                     health_at(call, item.slot, item.v_head));
      }
    }
    if (stretch.checkpoint == -1 && block.thread == 0) {
      call.base[head_index(call, item.slot, item.v_head)] =
          call.positions[item.sequence] + stretch.end;
    }
    __syncthreads();
  }
}

// By what kernels states go through stretches.
enum class Way { kSpread128, kChunks128, kChunks, kColumns };

Way way_of(const Call& call, const StretchRange& range) {
#ifdef LEAPQUANT_CUDA_90A
  if (chunks_128_serve(call)) {
    return spread_128_fits(call, range) ? Way::kSpread128 : Way::kChunks128;
  }
#endif
  static_cast<void>(range);
  return chunks_serve(call) ? Way::kChunks : Way::kColumns;
}

// The launch that takes states through a stretch.
cudaError_t launch_recurrence(const Call& call, const StretchRange& range, Way way,
                              cudaStream_t stream) {
  switch (way) {
#ifdef LEAPQUANT_CUDA_90A
    case Way::kSpread128:
      return launch_spread_128(call, range, stream);
    case Way::kChunks128:
      return launch_chunks_128(call, range, stream);
#endif
    case Way::kChunks:
      return launch_chunks(call, range, stream);
    default:
      return launch_columns(call, range, stream);
  }
}

// What a stretch's checkpoint holds goes on.
__global__ void __launch_bounds__(kBlockThreads, 2)
    through_kernel(const __grid_constant__ Call call, const StretchRange range) {
  extern __shared__ __align__(64) char shared[];
  const Block block(call, shared);
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < range.count;
       i += static_cast<int32_t>(gridDim.x)) {
    const Item item = item_of(call, range.first + i);
    if (!item.alive) continue;
    const Stretch stretch = stretch_of(call, item.sequence, range.stretch);
    if (stretch.checkpoint < 0) continue;
    const int32_t slot = call.checkpoints[stretch.checkpoint].state_slot;
    compose_state(block, format_of(call, item.v_head), boundary_of(call, slot, item.v_head));
    float* kept = kept_state(call, i);
    keep_columns(block, kept);
    __syncthreads();
  }
}

// The launches that bring states into slots.
cudaError_t launch_end(const Layout& layout, const Call& call, const StretchRange& range,
                       unsigned grid, cudaStream_t stream) {
  const auto shared = static_cast<size_t>(call.scratch.shared_bytes);
#ifdef LEAPQUANT_CUDA_128
  if (end_128_serves(layout)) {
    const cudaError_t error = end_128(layout, call, range, stream);
    if (error != cudaSuccess || call.through == 0 || range.stretch == call.num_checkpoints) {
      return error;
    }
    through_kernel<<<grid, kBlockThreads, shared, stream>>>(call, range);
    return cudaGetLastError();
  }
#endif
  static_cast<void>(layout);
  end_kernel<<<grid, kBlockThreads, shared, stream>>>(call, range);
  return cudaGetLastError();
}

// Items go in waves as large as the workspace has room for states. *checked: the inputs are; else
// they will be, at the latest beside the first recurrence, before any state is written.
cudaError_t prefill_by_stretches(const Layout& layout, const Call& call, bool* checked,
                                 cudaStream_t stream) {
  if (const cudaError_t error = allow_shared(begin_kernel, call)) return error;
  if (const cudaError_t error = allow_shared(end_kernel, call)) return error;
  if (const cudaError_t error = allow_shared(through_kernel, call)) return error;
  const auto shared = static_cast<size_t>(call.scratch.shared_bytes);
  const int64_t items = int64_t{call.batch} * call.num_heads;
  constexpr int32_t kFewItems = 64;
  StretchRange range = {};
  for (range.first = 0; range.first < items; range.first += kKeptStates) {
    range.count = static_cast<int32_t>(std::min<int64_t>(kKeptStates, items - range.first));
    const auto grid = static_cast<unsigned>(
        call.scratch.block_bytes > 0 ? std::min(range.count, kScratchBlocks) : range.count);
    const int32_t pieces = call.scratch.block_bytes == 0 && range.count <= kFewItems ? 4 : 1;
    const Way way = way_of(call, range);
    // These find faults themselves. All inputs are theirs where there is one stretch and one wave.
    const bool by_chunks_128 = way == Way::kChunks128 || way == Way::kSpread128;
    if (by_chunks_128 && call.num_checkpoints == 0 && range.count == items &&
        call.num_heads == call.v_heads) {
      *checked = true;
    }
    // Beside spread heads the check would take from them more time than it needs.
    if (!*checked && way != Way::kChunks128) {
      if (const cudaError_t error = launch_prefill_input_checks(call, false, stream)) return error;
      *checked = true;
    }
    begin_kernel<<<grid* static_cast<unsigned>(pieces), kBlockThreads, shared, stream>>>(
        call, range, pieces);
    if (const cudaError_t error = cudaGetLastError()) return error;
    for (range.stretch = 0; range.stretch <= call.num_checkpoints; ++range.stretch) {
      if (const cudaError_t error = launch_recurrence(call, range, way, stream)) return error;
      if (!*checked) {
        if (const cudaError_t error = launch_prefill_input_checks(call, true, stream)) return error;
        *checked = true;
      }
      if (const cudaError_t error = launch_end(layout, call, range, grid, stream)) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t prefill_general(const Layout& layout, Call* call, cudaStream_t stream) {
  if (const cudaError_t error = launch_sequence_checks(*call, -1, stream)) return error;
  if (columns_serve(*call)) {  // whatever chunks serve, columns do too
    bool checked = false;
    return for_head_ranges(layout, call, [&](const Call& part) {
      return prefill_by_stretches(layout, part, &checked, stream);
    });
  }
  if (const cudaError_t error = launch_prefill_input_checks(*call, false, stream)) return error;
  const auto kernel = prefill_kernel;
  if (const cudaError_t error = allow_shared(kernel, *call)) return error;
  return for_head_ranges(layout, call, [&](const Call& part) {
    const unsigned grid = std::min(grid_of(part), static_cast<unsigned>(kScratchBlocks));
    kernel<<<grid, kBlockThreads, static_cast<size_t>(part.scratch.shared_bytes), stream>>>(part);
    return cudaGetLastError();
  });
}

}  // namespace leapquant::cuda
