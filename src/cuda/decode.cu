// SPDX-License-Identifier: Apache-2.0
//
// Decode on the general kernels: a block folds its value head where that is due, then reads the
// boundary state and the records token by token; or, per step, updates and requantises after every
// token. What a token computes does not depend on how many the call has.
#include "cuda/advance.cuh"
#include "cuda/codec.cuh"
#include "cuda/operations.cuh"

namespace leapquant::cuda {
namespace {

// Adds the records' part to the reads: weights <left_m, r_s>, then sums over the corrections.
__device__ __noinline__ void read_records(const Call& call, const Block& block, const Token& t,
                                          const Window& window, int32_t base, int32_t position) {
  const int32_t records = (position - base) * call.sub_steps;
  for (int32_t m = block.warp; m < records; m += kBlockWarps) {
    for (int32_t s = 0; s < t.reads; ++s) {
      const float weight =
          dot_of_warp(block, block.left + m * block.k_dim, t.read + s * block.k_dim);
      if (block.lane == 0) block.weights[s * records + m] = weight;
    }
  }
  __syncthreads();
  const int32_t items = t.reads * block.v_dim;
  for (int32_t item = block.thread; item < items; item += kBlockThreads) {
    const int32_t s = item / block.v_dim;
    const int32_t j = item - s * block.v_dim;
    float sum = t.sums[item];
    for (int32_t m = 0; m < records; ++m) {
      sum = fmaf(block.weights[s * records + m], correction(call, window, block.v_dim, base, m, j),
                 sum);
    }
    t.sums[item] = sum;
  }
  __syncthreads();
}

// Appends the token's records. Value heads of a key head all write its keys: the same bits.
// Returns this thread's flags.
__device__ __noinline__ uint32_t append_records(const Call& call, const Block& block,
                                                const Token& t, const Window& window,
                                                int32_t position) {
  const int32_t n = call.sub_steps;
  const int32_t ring = position % call.ring_tokens;
  bool saturated = false;
  for (int32_t e = block.thread; e < n * block.k_dim; e += kBlockThreads) {
    window.keys[int64_t{ring} * n * block.k_dim + e] = to_fp16_saturated(t.k[e], &saturated);
  }
  for (int32_t e = block.thread; e < n * block.v_dim; e += kBlockThreads) {
    window.corrections[int64_t{ring} * n * block.v_dim + e] = to_fp16_saturated(t.u[e], &saturated);
  }
  for (int32_t i = block.thread; i < call.decay_count; i += kBlockThreads) {
    const float g = t.log_decay[i];
    const int64_t index = int64_t{ring} * call.decay_count + i;
    if (call.decay_bytes == 4) {
      reinterpret_cast<float*>(window.log_decays)[index] = g;
    } else {  // a finite decay below the FP16 range stays a finite, very small one
      reinterpret_cast<uint16_t*>(window.log_decays)[index] =
          is_finite(g) ? to_fp16(fmaxf(g, -65504.0f)) : uint16_t{0xfc00};
    }
  }
  return saturated ? uint32_t{LEAPQUANT_HEALTH_RECORD_SATURATED} : 0u;
}

struct Item {
  int32_t sequence, v_head, slot, position, tokens;
  leapquant_health* health;
};

__device__ __noinline__ void decode_windowed(const Call& call, const Block& block,
                                             const Item& item) {
  const HeadFormat& f = format_of(call, item.v_head);
  char* boundary = boundary_of(call, item.slot, item.v_head);
  const Window window = window_of(call, window_slot_of(call, item.sequence), item.v_head);
  int32_t* base_at = call.base + head_index(call, item.slot, item.v_head);
  int32_t base = *base_at;
  const int32_t due = last_boundary_of(call, item.v_head, item.position);
  if (due > base) {
    rebuild_state(call, block, f, boundary, window, item.v_head, base, due);
    encode_state(block, f, boundary, boundary, item.health);
    base = due;
    if (block.thread == 0) *base_at = due;
  }
  compose_state(block, f, boundary);
  const Token t(call, block);
  uint32_t flags = 0;
  for (int32_t token = 0; token < item.tokens; ++token) {
    const int32_t position = item.position + token;
    load_token(call, block, t, item.sequence, token, item.v_head);
    expand_records(call, block, window, item.v_head, base, position, t.decay);
    make_reads(call, block, t, t.decay);
    own_products(call, block, t, item.v_head);
    __syncthreads();
    read_columns(block, t, block.state, t.scaled, t.reads, t.sums);
    read_records(call, block, t, window, base, position);
    finish_token(call, block, t, item.sequence, token, item.v_head);
    __syncthreads();
    flags |= append_records(call, block, t, window, position);
    __syncthreads();
  }
  flags = block.any_bits(flags);
  if (block.thread == 0 && flags != 0 && item.health != nullptr) item.health->flags |= flags;
  __syncthreads();
}

__device__ __noinline__ void decode_per_step(const Call& call, const Block& block,
                                             const Item& item) {
  const HeadFormat& f = format_of(call, item.v_head);
  char* boundary = boundary_of(call, item.slot, item.v_head);
  const Token t(call, block);
  for (int32_t token = 0; token < item.tokens; ++token) {
    compose_state(block, f, boundary);
    advance_state(call, block, t, item.sequence, token, item.v_head);
    encode_state(block, f, boundary, boundary, item.health);
  }
  if (block.thread == 0) {
    call.base[head_index(call, item.slot, item.v_head)] = item.position + item.tokens;
  }
}

__global__ void __launch_bounds__(kBlockThreads, 2)
    decode_general_kernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(64) char shared[];
  const Block block(call, shared);
  const int64_t items = int64_t{call.batch} * call.num_heads;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    Item item;
    item.sequence = static_cast<int32_t>(index / call.num_heads);
    item.v_head =
        call.first_head + static_cast<int32_t>(index - int64_t{item.sequence} * call.num_heads);
    item.slot = call.state_slots[item.sequence];
    item.position = call.positions[item.sequence];
    item.tokens = call.num_tokens != nullptr ? call.num_tokens[item.sequence] : call.tokens;
    if (item.slot < 0 || call.status[item.sequence] != LEAPQUANT_OK) item.tokens = 0;
    for (int32_t token = item.tokens; token < call.tokens; ++token) {
      zero_output(call, block, item.sequence, token, item.v_head);
    }
    if (item.tokens == 0) continue;
    item.health =
        call.health != nullptr ? call.health + head_index(call, item.slot, item.v_head) : nullptr;
    if (call.per_step != 0) {
      decode_per_step(call, block, item);
    } else {
      decode_windowed(call, block, item);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t decode_general(const Layout& layout, Call* call, cudaStream_t stream) {
  if (const cudaError_t error = launch_checks(*call, call->tokens, stream)) return error;
  const auto kernel = decode_general_kernel;
  if (const cudaError_t error = allow_shared(kernel, *call)) return error;
  return for_head_ranges(layout, call, [&](const Call& part) {
    kernel<<<grid_of(part), kBlockThreads, static_cast<size_t>(part.scratch.shared_bytes),
             stream>>>(part);
    return cudaGetLastError();
  });
}

}  // namespace leapquant::cuda
