// SPDX-License-Identifier: Apache-2.0
//
// Folds of heads of 128 x 128 that are due in a decode call. A block of sixteen warps holds one
// state in registers: a warp has eight keys and all values of them, a lane two keys and sixteen
// values, in the order in which the matrix units accumulate and in which the payload is stored.
// Rebuild, fit and subtraction by the matrix units, codec in FP32. Reads base, writes boundary
// states, health and, last, base.
#include <algorithm>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/fold_codec_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda {
namespace {

using namespace folding_128;

// Loads of a head's window into shared memory: bare keys, corrections, vector decays in FP32, a
// record a warp; scalar decays as factors.
template <bool kVector, bool kPlain>
__device__ __forceinline__ void load_records(const Fold& fold, const Sequence128& s, int32_t v_head,
                                             int32_t base, int32_t records) {
  const Call128& call = fold.call;
  const int32_t lane = Fold::lane();
  const char* window = call.windows + s.window_slot * call.window_stride;
  const char* keys = window + quotient<kPlain>(v_head, call.group) * call.key_head_stride;
  const char* corrections = window + call.corrections + v_head * call.correction_head_stride;
  const char* decays = window + call.log_decays + v_head * call.decay_head_stride;
  const int32_t rows = fold.plan.rows;
#pragma unroll 1
  for (int32_t r = Fold::warp(); r < records; r += kWarps) {
    const int32_t ring = modulo<kPlain>(base + r, call.ring_tokens);
    const uint2 key = reinterpret_cast<const uint2*>(keys + ring * 256)[lane];
    const uint2 u = reinterpret_cast<const uint2*>(corrections + ring * 256)[lane];
    if constexpr (kVector) {
      fold.at<float4>(fold.plan.decays + r * 512)[lane] =
          call.decay_bytes == 4
              ? reinterpret_cast<const float4*>(decays + ring * 512)[lane]
              : widen(reinterpret_cast<const uint2*>(decays + ring * 256)[lane], LEAPQUANT_FP16);
    }
    fold.row_floats(rows, r) = widen(key, LEAPQUANT_FP16);
    fold.row_halves(rows, r) = u;
  }
  if (!kVector && Fold::warp() == kWarps - 1) {
    float x = 0.0f;
    if (lane < records && call.stored_decay != 0) {
      x = reinterpret_cast<const float*>(decays)[modulo<kPlain>(base + lane, call.ring_tokens)];
    }
    float after = __shfl_down_sync(kAll, x, 1);  // sum over the records after this one
    if (lane == 31) after = 0.0f;
#pragma unroll
    for (int32_t step = 1; step < 32; step <<= 1) {
      const float other = __shfl_down_sync(kAll, after, step);
      if (lane + step < 32) after += other;
    }
    fold.at<float>(kRecordFactorsAt)[lane] = exp_fast(after);
    if (lane == 0) fold.at<float>(kRecordFactorsAt)[32] = exp_fast(after + x);
  }
}

// Scales the state to a norm of 2^7 to 2^8 and notes by how much; `scale`: what it was multiplied
// by before. Entries that are not finite become 0. Returns the flags; *zero: the state is.
__device__ __forceinline__ uint32_t normalise(const Fold& fold, State* x, float scale, bool* zero) {
  uint32_t flags = 0;
  float energy = fold.block_sum(squares(*x), 0);
  if (!(energy <= 3.402823466e38f)) {
    flags |= LEAPQUANT_HEALTH_NON_FINITE;
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        if (!(fabsf(x->at[m][i]) <= 3.402823466e38f)) x->at[m][i] = 0.0f;
      }
    }
    energy = fminf(fold.block_sum(squares(*x), 1), 3.402823466e38f);
  }
  const int32_t before = static_cast<int32_t>(__float_as_uint(scale) >> 23) - 127;
  const int32_t square = static_cast<int32_t>(__float_as_uint(energy) >> 23) - 127;
  const int32_t all = min(max(before + 7 - (square >> 1), -120), 120);
  const float more = __uint_as_float(static_cast<uint32_t>(all - before + 127) << 23);
  multiply(x, more);
  *zero = energy == 0.0f;
  if (Fold::thread() == 0) {  // read after the next barrier
    fold.at<float>(kScalesAt)[0] = __uint_as_float(static_cast<uint32_t>(127 + all) << 23);
    fold.at<float>(kScalesAt)[1] = __uint_as_float(static_cast<uint32_t>(127 - all) << 23);
    fold.at<float>(kScalesAt)[2] = energy * more * more;
  }
  return flags;
}

template <bool kVector, bool kPlain>
__device__ __forceinline__ void fold_one(const Call128& call, const Plan& plan, char* shared,
                                         int32_t sequence, int32_t v_head, uint32_t barrier,
                                         uint32_t parity) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const HeadFormat128& format = kPlain ? call.classes[0] : format_of(call, v_head);
  const Fold fold = {{{call, plan, format, shared}}};
  State x;
  uint32_t flags = 0;
  bool zero;
  {
    const Sequence128 s = load_sequence(call, sequence);
    const int32_t base = *reinterpret_cast<const volatile int32_t*>(
        call.base + int64_t{s.slot} * call.v_heads + v_head);
    const int32_t records = last_boundary_of<kPlain>(call, v_head, s.position) - base;
    const bool fits = records > 0 && records <= call.ring_tokens;
    if (thread == 0) {
      barrier_expect(barrier, static_cast<uint32_t>(format.bytes));
      bulk_copy(shared_address(fold.boundary()), boundary_of(call, s.slot, v_head),
                static_cast<uint32_t>(format.bytes), barrier);
    }
    if (thread >= 32 && thread < 67)
      fold.at<uint32_t>(kAliveAt)[thread - 32] = 0;  // magnitudes too
    if (fits) load_records<kVector, kPlain>(fold, s, v_head, base, records);
    const uint32_t found =
        check_positions(call, s, thread, kThreads) |
        check_inputs<kVector, 1, kPlain>(call, sequence, s.tokens, thread, kThreads);
    const bool faulty = __syncthreads_or(found != 0) != 0;
    barrier_wait(barrier, parity);
    if (faulty || !fits) return;
    const int32_t rows = fold.prepare<kVector>(records);
    const float scale = fold.rebuild(&x, rows);
    flags = normalise(fold, &x, scale, &zero);
  }
  if (fold.rank() > 0) {
    flags |= fold.fit(x, zero);
    fold.subtract(&x);
  } else {
    __syncthreads();
  }
  const bool health = call.health != nullptr;
  float* sums = fold.at<float>(kReductionsAt);
  if (health) {
    const float left = sum_of_warp(squares(x));
    const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest_of(x))));
    if (Fold::lane() == 0) {
      sums[Fold::warp()] = left;
      sums[32 + Fold::warp()] = largest;
    }
  }
  float error = 0.0f;
  flags |= fold.encode(&x, &error);
  if (health) {
    error = sum_of_warp(error);
    flags = __reduce_or_sync(kAll, flags);
    if (Fold::lane() == 0) sums[48 + Fold::warp()] = error;
  }
  __syncthreads();
  const Sequence128 s = load_sequence(call, sequence);
  uint4* state = reinterpret_cast<uint4*>(boundary_of(call, s.slot, v_head));
  for (int32_t i = thread; i < format.bytes / 16; i += kThreads) {
    state[i] = reinterpret_cast<const uint4*>(fold.boundary())[i];
  }
  const int64_t head = int64_t{s.slot} * call.v_heads + v_head;
  if (health && Fold::lane() == 0 && flags != 0) atomicOr(&call.health[head].flags, flags);
  fence_async_proxy();
  __threadfence();
  __syncthreads();
  if (thread == 0)
    store_release(call.base + head, last_boundary_of<kPlain>(call, v_head, s.position));
  if (health && thread < 32) {
    const float left = sum_of_sixteen(sums);
    error = sum_of_sixteen(sums + 48);
    const float largest =
        __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(sums[32 + (Fold::lane() & 15)])));
    const float energy = fold.at<float>(kScalesAt)[2];
    if (thread == 0) {
      leapquant_health* to = call.health + head;
      to->residual_max = largest * fold.at<float>(kScalesAt)[1];
      to->compensator_energy =
          energy > 0.0f ? fminf(fmaxf(1.0f - left / energy, 0.0f), 1.0f) : 0.0f;
      to->fold_error = energy > 0.0f ? sqrtf(error / energy) : 0.0f;
    }
  }
}

// Heads of the call, head by head over the sequences, are dealt round robin to the blocks, and a
// block folds those of its own that are due: whether another block has folded one of its heads
// already decides nothing here. Staggered boundaries make equal shares of it.
template <bool kVector, bool kPlain>
__global__ void __launch_bounds__(kThreads, kFoldBlocks128)
    fold_kernel(const __grid_constant__ Call128 call, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(128) char shared[];
  launch_dependents();
  const int32_t thread = threadIdx.x;
  int32_t* list = reinterpret_cast<int32_t*>(shared + plan.list);
  int32_t* items = list + kThreads;
  const uint32_t barrier = shared_address(items + 2);
  if (thread == 0) barrier_init(barrier, 1);
  fence_async_proxy();
  uint32_t parity = 0;

  const int32_t total = call.batch * call.v_heads;
  for (int64_t start = blockIdx.x; start < total; start += int64_t{gridDim.x} * kThreads) {
    if (thread == 0) *items = 0;
    __syncthreads();
    const int64_t item = start + int64_t{thread} * gridDim.x;
    if (item < total) {
      const int32_t v_head = static_cast<int32_t>(item) / call.batch;
      const int32_t sequence = static_cast<int32_t>(item) - v_head * call.batch;
      const Sequence128 s = load_sequence(call, sequence);
      if (s.alive && s.slot < call.num_state_slots && s.window_slot < call.num_window_slots) {
        const int32_t base = *reinterpret_cast<const volatile int32_t*>(
            call.base + int64_t{s.slot} * call.v_heads + v_head);
        if (last_boundary_of<kPlain>(call, v_head, s.position) > base) {
          list[atomicAdd(items, 1)] = static_cast<int32_t>(item);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = 0; i < *items; ++i) {
      const int32_t v_head = list[i] / call.batch;
      const int32_t sequence = list[i] - v_head * call.batch;
      if (thread == 0 && i + 1 < *items) {
        const int32_t next = list[i + 1] / call.batch;
        const Sequence128 s = load_sequence(call, list[i + 1] - next * call.batch);
        prefetch_bulk(boundary_of(call, s.slot, next),
                      static_cast<uint32_t>(format_of(call, next).bytes));
      }
      fold_one<kVector, kPlain>(call, plan, shared, sequence, v_head, barrier, parity);
      parity ^= 1u;
      __syncthreads();
    }
    __syncthreads();
  }
}

// The places that serve all of the call's formats.
Plan plan_for(const Call128& call, bool vector) {
  int32_t rank = 0;
  for (int32_t c = 0; c < call.num_classes; ++c) {
    const HeadFormat128& f = call.classes[c];
    rank = std::max(rank, f.num_fp16 + f.num_int8 + f.num_int4);
  }
  Plan plan = plan_of(call.boundary_bytes, call.ring_tokens, rank, vector ? 512 : 0);
  plan.list = (plan.list + 15) / 16 * 16;
  return plan;
}

}  // namespace

int32_t fold_128_shared_bytes(const Call128& call, bool vector) {
  return plan_for(call, vector).list + kThreads * 4 + 32;
}

cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  const auto kernel = vector ? (call.plain ? fold_kernel<true, true> : fold_kernel<true, false>)
                             : (call.plain ? fold_kernel<false, true> : fold_kernel<false, false>);
  const int32_t bytes = fold_128_shared_bytes(call, vector);
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);  // as the decode beside it
  if (error != cudaSuccess) return error;
  const int32_t grid = static_cast<int32_t>(std::min<int64_t>(blocks, total));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(call, plan_for(call, vector));
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
