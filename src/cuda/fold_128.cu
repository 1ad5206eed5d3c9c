// SPDX-License-Identifier: Apache-2.0
//
// Folds of heads of 128 x 128 that are due in a decode call. A block of eight warps holds one state
// in registers: warp w has keys 16 w .. 16 w + 15, a lane four keys and sixteen values of them, in
// the order in which the matrix units accumulate and in which the payload is stored. Rebuild by the
// matrix units (weights as FP16 high and low parts, scaled per key), fit and codec in FP32. Reads
// base, writes boundary states, health and, last, base.
#include <algorithm>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/fold_codec_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

using namespace folding_128;

template <bool kVector>
__device__ void fold_one(const Call128& call, char* shared, int32_t sequence, int32_t v_head,
                         uint32_t barrier, uint32_t* parity) {
  const int32_t thread = threadIdx.x;
  const int32_t lane = thread & 31;
  const HeadFormat128& format = format_of(call, v_head);
  const int32_t rank = format.num_fp16 + format.num_int8 + format.num_int4;
  const Sequence128 s = load_sequence(call, sequence);
  int32_t* base_at = call.base + int64_t{s.slot} * call.v_heads + v_head;
  const int32_t base = *reinterpret_cast<const volatile int32_t*>(base_at);
  const int32_t boundary = last_boundary_of(call, v_head, s.position);
  const int32_t records = boundary - base;
  const int32_t decay_row = kVector ? 128 * call.decay_bytes : 0;
  const bool fits = records > 0 && records <= call.ring_tokens;
  const Plan plan = plan_of(call.boundary_bytes, fits ? records : 1, rank, decay_row);
  const Fold fold = {
      {{call, format, shared, plan, thread, lane, thread >> 5, lane >> 2, lane & 3, rank}}};
  char* state = boundary_of(call, s.slot, v_head);
  const char* window = call.windows + s.window_slot * call.window_stride;

  if (fits && thread < 32) {
    if (lane == 0) {
      barrier_expect(barrier, static_cast<uint32_t>(format.bytes) +
                                  static_cast<uint32_t>(records) * (512u + decay_row));
      bulk_copy(shared_address(shared), state, static_cast<uint32_t>(format.bytes), barrier);
    }
    __syncwarp();
    if (lane < records) {
      const int32_t ring = (base + lane) % call.ring_tokens;
      bulk_copy(shared_address(shared + plan.keys + lane * 256),
                window + (quotient(v_head, call.group)) * call.key_head_stride + ring * 256, 256,
                barrier);
      bulk_copy(shared_address(shared + plan.rows + lane * kRowBytes),
                window + call.corrections + v_head * call.correction_head_stride + ring * 256, 256,
                barrier);
      if (kVector) {
        bulk_copy(
            shared_address(shared + plan.decays + lane * decay_row),
            window + call.log_decays + v_head * call.decay_head_stride + int64_t{ring} * decay_row,
            static_cast<uint32_t>(decay_row), barrier);
      }
    }
  }
  float* scalar_decays = fold.reductions() + 16;
  if (!kVector && thread < 32) {
    float x = 0.0f;
    if (fits && lane < records && call.stored_decay != 0) {
      x = reinterpret_cast<const float*>(
          window + call.log_decays +
          v_head * call.decay_head_stride)[(base + lane) % call.ring_tokens];
    }
    scalar_decays[lane] = x;
  }
  const uint32_t found = check_positions(call, s, thread, kThreads) |
                         check_inputs<kVector, 2>(call, sequence, s.tokens, thread, kThreads);
  const bool faulty = __syncthreads_or(found != 0) != 0;
  if (fits) {
    barrier_wait(barrier, *parity);
    *parity ^= 1u;
  }
  if (faulty || !fits) return;

  fold.prepare<kVector>(records, scalar_decays);
  State x;
  fold.rebuild(&x);
  uint32_t flags = 0;
  uint32_t largest = fold.block_max(largest_bits(x));
  if (largest >= 0x7f800000u) {
    flags |= LEAPQUANT_HEALTH_NON_FINITE;
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        float& entry = x.at[m][i / 4][i % 4];
        if (!(fabsf(entry) <= 3.402823466e38f)) entry = 0.0f;
      }
    }
    largest = fold.block_max(largest_bits(x));
  }
  const bool health = call.health != nullptr;
  const float energy = health ? fold.block_sum(squares(x)) : 0.0f;
  flags |= fold.fit(x, largest);
  fold.subtract(&x);
  const uint32_t residual = fold.block_max(largest_bits(x));
  const float left = health ? fold.block_sum(squares(x)) : 0.0f;
  float error = 0.0f;
  flags |= fold.encode(&x, residual, health, &error);
  if (health) {
    error = fold.block_sum(error);
    flags = __reduce_or_sync(kAll, flags);
    leapquant_health* to = call.health + int64_t{s.slot} * call.v_heads + v_head;
    if (lane == 0 && flags != 0) atomicOr(&to->flags, flags);
    if (thread == 0) {
      to->residual_max = __uint_as_float(residual);
      to->compensator_energy =
          energy > 0.0f ? fminf(fmaxf(1.0f - left / energy, 0.0f), 1.0f) : 0.0f;
      to->fold_error = energy > 0.0f ? sqrtf(error / energy) : 0.0f;
    }
  }
  __syncthreads();
  for (int32_t i = thread; i < format.bytes / 16; i += kThreads) {
    reinterpret_cast<uint4*>(state)[i] = reinterpret_cast<const uint4*>(shared)[i];
  }
  fence_async_proxy();
  __threadfence();
  __syncthreads();
  if (thread == 0) store_release(base_at, boundary);
}

// Heads of the call, head by head over the sequences, are dealt round robin to the blocks, and a
// block folds those of its own that are due: whether another block has folded one of its heads
// already decides nothing here. Staggered boundaries make equal shares of it.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, kFoldBlocks128)
    fold_kernel(const __grid_constant__ Call128 call, int32_t list_at) {
  extern __shared__ __align__(128) char shared[];
  launch_dependents();
  const int32_t thread = threadIdx.x;
  int64_t* list = reinterpret_cast<int64_t*>(shared + list_at);
  int32_t* items = reinterpret_cast<int32_t*>(list + kThreads);
  const uint32_t barrier = shared_address(items + 2);
  if (thread == 0) barrier_init(barrier, 1);
  fence_async_proxy();
  __syncthreads();
  uint32_t parity = 0;

  const int64_t total = int64_t{call.batch} * call.v_heads;
  for (int64_t start = blockIdx.x; start < total; start += int64_t{gridDim.x} * kThreads) {
    if (thread == 0) *items = 0;
    __syncthreads();
    const int64_t item = start + int64_t{thread} * gridDim.x;
    if (item < total) {
      const int32_t v_head = static_cast<int32_t>(item / call.batch);
      const int32_t sequence = static_cast<int32_t>(item - int64_t{v_head} * call.batch);
      const Sequence128 s = load_sequence(call, sequence);
      if (s.alive && s.slot < call.num_state_slots && s.window_slot < call.num_window_slots) {
        const int32_t base = *reinterpret_cast<const volatile int32_t*>(
            call.base + int64_t{s.slot} * call.v_heads + v_head);
        if (last_boundary_of(call, v_head, s.position) > base) list[atomicAdd(items, 1)] = item;
      }
    }
    __syncthreads();
    const int32_t count = *items;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t v_head = static_cast<int32_t>(list[i] / call.batch);
      const int32_t sequence = static_cast<int32_t>(list[i] - int64_t{v_head} * call.batch);
      fold_one<kVector>(call, shared, sequence, v_head, barrier, &parity);
      __syncthreads();
    }
    __syncthreads();
  }
}

// Where the list lies: behind the largest plan of the call's classes.
int32_t list_of(const Call128& call, bool vector) {
  int32_t at = 0;
  for (int32_t c = 0; c < call.num_classes; ++c) {
    const HeadFormat128& f = call.classes[c];
    const Plan plan =
        plan_of(call.boundary_bytes, call.ring_tokens, f.num_fp16 + f.num_int8 + f.num_int4,
                vector ? 128 * call.decay_bytes : 0);
    at = std::max(at, plan.list);
  }
  return at;
}

}  // namespace

int32_t fold_128_shared_bytes(const Call128& call, bool vector) {
  return list_of(call, vector) + kThreads * 8 + 32;
}

cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  const auto kernel = vector ? fold_kernel<true> : fold_kernel<false>;
  const int32_t bytes = fold_128_shared_bytes(call, vector);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int32_t grid = static_cast<int32_t>(std::min<int64_t>(blocks, total));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(call, list_of(call, vector));
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
