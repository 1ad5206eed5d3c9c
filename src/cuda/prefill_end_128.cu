// SPDX-License-Identifier: Apache-2.0
//
// Cold encoding of prefilled states of 128 x 128 by the fit and the codec of the fold: a block has
// a head, its state in registers.
#include "cuda/prefill_end_128.cuh"

#include <algorithm>

#include "cuda/decode_128.cuh"
#include "cuda/fold_codec_128.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

using namespace folding_128;

// The state from the workspace, times a power of two that brings its norm to 2^7 to 2^8. Entries
// that are not finite become 0. Returns the flags; *zero: the state is.
__device__ __forceinline__ uint32_t load_state(const Fold& fold, const float* kept, State* x,
                                               bool* zero) {
  uint32_t flags = 0;
  uint32_t largest = 0;
  const float* from = kept + fold.first_key() * 128 + fold.g();
#pragma unroll
  for (int32_t m = 0; m < 16; ++m) {  // tile of keys m / 8, of values m % 8
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      float entry = from[(2 * (m / 8) + (i & 1)) * 128 + 16 * (m % 8) + 8 * (i >> 1)];
      if (!(fabsf(entry) <= 3.402823466e38f)) {
        flags = LEAPQUANT_HEALTH_NON_FINITE;
        entry = 0.0f;
      }
      x->at[m / 8][m % 8][i] = entry;
      largest = max(largest, __float_as_uint(fabsf(entry)));
    }
  }
  largest = fold.block_max(largest, 0);
  const int32_t exponent = static_cast<int32_t>(largest >> 23) - 127;
  const int32_t before = min(max(-exponent, -120), 120);
  multiply(x, __uint_as_float(static_cast<uint32_t>(127 + before) << 23));
  const float energy = fold.block_sum(squares(*x), 1);
  const int32_t square = static_cast<int32_t>(__float_as_uint(energy) >> 23) - 127;
  const int32_t all = min(max(before + 7 - (square >> 1), -120), 120);
  const float more = __uint_as_float(static_cast<uint32_t>(all - before + 127) << 23);
  multiply(x, more);
  *zero = energy == 0.0f;
  if (fold.thread() == 0) {  // read after the next barrier
    fold.at<float>(kScalesAt)[0] = __uint_as_float(static_cast<uint32_t>(127 + all) << 23);
    fold.at<float>(kScalesAt)[1] = __uint_as_float(static_cast<uint32_t>(127 - all) << 23);
    fold.at<float>(kScalesAt)[2] = energy * more * more;
  }
  return flags;
}

// Encodes the state into the slot. fresh: the slot's health starts anew.
__device__ __forceinline__ void encode_head(const Call128& call, const Plan& plan, char* shared,
                                            const float* kept, int32_t slot, int32_t v_head,
                                            bool fresh) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const HeadFormat128& format = format_of(call, v_head);
  const Fold fold = {{{{{{{{call, plan, format, shared, 0, thread}}}}}}}};
  leapquant_health* health =
      call.health != nullptr ? call.health + int64_t{slot} * call.v_heads + v_head : nullptr;
  if (health != nullptr && fresh && thread == 0) *health = leapquant_health{};
  if (thread < 32) fold.at<uint32_t>(kAliveAt)[thread] = 0;
  // Columns past the rank, which products meet with zeros, and the padding at the end.
  for (int32_t r = fold.rank() + fold.warp(); r < fold.side_count(); r += kWarps) {
#pragma unroll
    for (int32_t part = 0; part < 4; ++part) {
      reinterpret_cast<uint2*>(fold.column(r, 256 * part))[fold.lane()] = make_uint2(0, 0);
    }
  }
  if (thread < 4) reinterpret_cast<uint32_t*>(fold.boundary() + format.bytes - 16)[thread] = 0;
  State x;
  bool zero = false;
  uint32_t flags = load_state(fold, kept, &x, &zero);
  if (fold.rank() > 0) fold.store_matrix(x);
  __syncthreads();
  flags |= fold.fit_any<Fits::kAny>(&x, zero, [] {});
  float* sums = fold.at<float>(kReductionsAt);
  const float left = folding_128::sum_of_warp(squares(x));
  const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest_of(x))));
  if (fold.lane() == 0) {
    sums[24 + fold.warp()] = left;
    sums[32 + fold.warp()] = largest;
  }
  float error = 0.0f;
  flags |= fold.encode<false>(&x, &error, [] {});
  error = folding_128::sum_of_warp(error);
  flags = __reduce_or_sync(kAll, flags);
  if (fold.lane() == 0) sums[40 + fold.warp()] = error;
  __syncthreads();
  auto* to = reinterpret_cast<uint4*>(boundary_of(call, slot, v_head));
  const int32_t codes = Fold::payload_of(format) / 16;
  for (int32_t i = thread; i < format.bytes / 16; i += kThreads) {
    to[i] = reinterpret_cast<const uint4*>(i < codes ? fold.codes() : fold.boundary())[i];
  }
  if (health == nullptr) return;
  if (fold.lane() == 0 && flags != 0) atomicOr(&health->flags, flags);
  if (thread >= 32) return;
  const float rest = sum_of_eight(sums + 24);
  error = sum_of_eight(sums + 40);
  const float most =
      __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(sums[32 + (fold.lane() & 7)])));
  const float energy = fold.at<float>(kScalesAt)[2];
  if (thread != 0) return;
  health->residual_max = most * fold.at<float>(kScalesAt)[1];
  health->compensator_energy =
      energy > 0.0f ? fminf(fmaxf(1.0f - rest / energy, 0.0f), 1.0f) : 0.0f;
  health->fold_error = energy > 0.0f ? sqrtf(error / energy) : 0.0f;
}

// The last checkpoint is the end: a hit would copy it, so the running state is that copy too.
__device__ __forceinline__ void adopt(const Call128& call, int32_t slot, int32_t from,
                                      int32_t v_head) {
  const auto* source = reinterpret_cast<const uint4*>(boundary_of(call, from, v_head));
  auto* target = reinterpret_cast<uint4*>(boundary_of(call, slot, v_head));
  for (auto i = static_cast<int32_t>(threadIdx.x); i < format_of(call, v_head).bytes / 16;
       i += kThreads) {
    target[i] = source[i];
  }
  if (call.health == nullptr || threadIdx.x != 0) return;
  leapquant_health& health = call.health[int64_t{slot} * call.v_heads + v_head];
  const uint32_t flags = health.flags;
  health = call.health[int64_t{from} * call.v_heads + v_head];
  health.flags |= flags;
}

// kResident: blocks on a multiprocessor at a time.
template <int32_t kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    end_128_kernel(const __grid_constant__ Call call, const __grid_constant__ Call128 heads,
                   const StretchRange range, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(128) char shared[];
  const int64_t index = range.first + blockIdx.x;
  const auto sequence = static_cast<int32_t>(index / call.num_heads);
  const int32_t v_head =
      call.first_head + static_cast<int32_t>(index - int64_t{sequence} * call.num_heads);
  const int32_t slot = call.state_slots[sequence];
  if (slot < 0 || call.status[sequence] != LEAPQUANT_OK) {
    // What was computed for a sequence whose inputs turned out to be at fault.
    for (int64_t token = max(call.token_offsets[sequence], 0);
         token < call.token_offsets[sequence + 1]; ++token) {
      for (auto j = static_cast<int32_t>(threadIdx.x); j < call.v_dim; j += kThreads) {
        store_output(call, 0, token, v_head, j, 0.0f);
      }
    }
    return;
  }
  if (call.token_offsets[sequence + 1] <= call.token_offsets[sequence]) return;
  const Stretch stretch = stretch_of(call, sequence, range.stretch);
  if (stretch.checkpoint == -2) return;
  const bool own = stretch.checkpoint == -1;
  if (own && stretch.begin == stretch.end) {
    const int32_t last = first_checkpoint(call, sequence + 1) - 1;
    adopt(heads, slot, call.checkpoints[last].state_slot, v_head);
  } else {
    encode_head(heads, plan, shared, kept_state(call, blockIdx.x),
                own ? slot : call.checkpoints[stretch.checkpoint].state_slot, v_head, !own);
  }
  if (threadIdx.x != 0) return;
  const int32_t to = own ? slot : call.checkpoints[stretch.checkpoint].state_slot;
  heads.base[int64_t{to} * heads.v_heads + v_head] = call.positions[sequence] + stretch.end;
}

}  // namespace

bool end_128_serves(const Layout& layout) {
  Sentence why_not;
  if (accepts_decode_128(layout, &why_not) != LEAPQUANT_OK) return false;
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

cudaError_t end_128(const Layout& layout, const Call& call, const StretchRange& range,
                    cudaStream_t stream) {
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  pool.states = call.states;
  pool.windows = call.windows;
  pool.base = call.base;
  pool.health = call.health;
  pool.state_stride_bytes = call.state_stride;
  pool.window_stride_bytes = call.window_stride;
  pool.num_state_slots = call.num_state_slots;
  pool.num_window_slots = call.num_window_slots;
  const leapquant_decode_args none = LEAPQUANT_INIT(leapquant_decode_args);
  Call128 heads;
  if (!make_call_128(layout, pool, none, &heads)) return cudaErrorInvalidValue;
  const Plan plan = plan_for(heads, 0, false, 0);
  constexpr int32_t kProcessors = 132;
  const auto kernel = range.count <= kProcessors ? end_128_kernel<1> : end_128_kernel<2>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.list);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(range.count), kThreads, static_cast<size_t>(plan.list), stream>>>(
      call, heads, range, plan);
  return cudaGetLastError();
}

}  // namespace leapquant::cuda
