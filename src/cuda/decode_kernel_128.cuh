// SPDX-License-Identifier: Apache-2.0
//
// Decode of heads of 128 x 128 whose boundary states are up to date: of several tokens, of calls
// that are not common, of small batches; for all else decode_pairs_128.cuh. A block takes a head at
// a time, with one pair of warps (large batches) or two that share the values; nothing depends on
// which. Bulk copies bring the boundary state and the records into shared memory. One warp of a
// pair reads the residual by the integer matrix units, both read vectors as fixed-point numbers of
// four signed bytes, exactly; the other reads records and compensators by the FP16 ones. Heads that
// are due are folded by fold_128.cu, which runs at the same time; this kernel takes them last. No
// launch, so that a host compiler can include it.
#pragma once

#include "cuda/call_128.cuh"
#include "cuda/decode_drafts_128.cuh"
#include "cuda/decode_shares_128.cuh"
#include "cuda/known_format_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::decoding_128 {

// Blocks on a multiprocessor, which bound the registers (to 128 a thread or 168): what
// shared memory allows, or nearly, and what spills nothing.
constexpr int32_t resident_blocks(bool vector, int32_t pairs, bool plain, bool many) {
  if (pairs > 1) return 3;
  if (drafts_together(vector, pairs, plain, many) > 1) return 5;
  return 6;
}

// Bits `from` .. from + 31 of a bitmap.
__device__ __forceinline__ uint32_t bits_at(const uint32_t* map, int32_t from) {
  return __funnelshift_r(map[from >> 5], map[(from >> 5) + 1], from & 31);
}
// Sets those of `mask` to `bits`.
__device__ __forceinline__ void put_bits(uint32_t* map, int32_t from, uint32_t mask,
                                         uint32_t bits) {
  const int32_t shift = from & 31;
  uint32_t* word = map + (from >> 5);
  word[0] = (word[0] & ~(mask << shift)) | bits << shift;
  if (shift != 0) word[1] = (word[1] & ~(mask >> (32 - shift))) | bits >> (32 - shift);
}

// The rows of a sequence that its check reads, to the second cache level (the common call).
__device__ __forceinline__ void prefetch_inputs(const Call128& call, int32_t sequence) {
  const uint32_t keys = 256u * static_cast<uint32_t>(call.k_heads);
  const uint32_t values = 256u * static_cast<uint32_t>(call.v_heads);
#pragma unroll 1
  for (int32_t t = 0; t < call.tokens; ++t) {
    prefetch_bulk(row_of(call.q, sequence, t, 0), keys);
    prefetch_bulk(row_of(call.k, sequence, t, 0), keys);
    prefetch_bulk(row_of(call.v, sequence, t, 0), values);
  }
}

// Each block takes heads first .. last - 1 of batch x v_heads, in order, up to 32 of a sequence at
// a time. First those whose boundary states are up to date, then, as the folds finish, the others.
// Static: a host compiler's kernel must not take the place of the launch of the same name.
template <bool kVector, int kPairs, bool kPlain, bool kMany, Known128 kKnown>
static __global__ void __launch_bounds__(64 * kPairs,
                                         resident_blocks(kVector, kPairs, kPlain, kMany))
    decode_kernel(const __grid_constant__ Call128 call, const __grid_constant__ Shares shares) {
  static_assert(kPairs > 1 || !kPlain || kMany, "decode_pairs_128.cuh has these");
  using OneHead = HeadOf<kVector, kPairs, kPlain, kMany>;
  constexpr int32_t kTogether = drafts_together(kVector, kPairs, kPlain, kMany);
  // Large calls are checked before (check_128.cu), small ones here: their blocks share the check.
  constexpr bool kChecks = kPairs > 1;
  constexpr int32_t kInFlight = 4;  // loads of the check, of three kinds
  extern __shared__ __align__(128) char block_shared[];
  constexpr int32_t kThreads = 64 * kPairs;
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0,
                            call.weight_rows, kPairs, kTogether);
  const int32_t own_lane = threadIdx.x & 31;
  const int32_t warp = __shfl_sync(kAll, threadIdx.x >> 5, 0);  // the same in all lanes, visibly
  const int32_t pair = kPairs == 1 ? 0 : warp >> 1;
  const auto head_at = [&](int32_t lane) {
    const Head<kVector, kPairs, kPlain, kMany> head = {
        {{{block_shared + plan.limbs + pair * plan.scratch, plan, lane, pair},
          call,
          block_shared,
          (warp & 1) == 0,
          32 * warp + lane}}};
    return OneHead{head};
  };
  uint32_t* deferred = reinterpret_cast<uint32_t*>(block_shared + plan.deferred);
  auto& rows = *reinterpret_cast<typename OneHead::Pointers*>(block_shared + plan.pointers);
  int32_t* common = reinterpret_cast<int32_t*>(block_shared + plan.bases);
  uint32_t* faults_found = reinterpret_cast<uint32_t*>(block_shared + plan.faults);
  const int32_t rank = kChecks ? static_cast<int32_t>(cluster_rank()) : 0;
  // These share a sequence's check.
  const int32_t together = kChecks ? static_cast<int32_t>(cluster_blocks()) : 1;
  stamp(call, Stamp::kDecodeBegins);
  if (threadIdx.x == 0) {
    head_at(own_lane).init_barriers();
    *faults_found = 0;
  }
  for (int32_t i = threadIdx.x; i < kDeferredWords; i += kThreads) deferred[i] = 0;
  fence_async_shared();
  __syncthreads();
  if (together > 1) cluster_arrive();  // the others may write here once they have waited

  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t first = block * shares.heads + min(block, shares.longer);
  const int32_t count = shares.heads + (block < shares.longer ? 1 : 0);
  if (kPlain && kChecks && rank == 0 && threadIdx.x == 0) {
    prefetch_inputs(call, first / call.v_heads);
  }
  uint32_t turn = 0;        // heads that this block has had
  uint32_t input_turn = 0;  // the same of tokens, where there are several
  const auto turn_of_inputs = [&] { return kMany ? input_turn : turn; };
  int32_t left = 0;   // heads that wait for their folds
  int32_t looks = 0;  // at them, once the others are done

#pragma unroll 1
  for (bool again = false; !again || left > 0; again = true) {
    if (again) {
      if (++looks == kMostLooks) wait_for_previous_grid();
      if (looks > 1) __nanosleep(100);
    }
    int32_t sequence =
        static_cast<int32_t>(static_cast<uint32_t>(first) / static_cast<uint32_t>(call.v_heads));
    int32_t from = first - sequence * call.v_heads;
    uint32_t faults = 0;
    int32_t index = 0;
#pragma unroll 1
    while (index < count) {
      if (from == call.v_heads) {
        from = 0;
        ++sequence;
      }
      const int32_t lane = fresh_copy(own_lane);
      const OneHead head = head_at(lane);
      const int32_t group = from & ~31;  // bits and lanes below: heads group + 0 .. 31
      const int32_t some = min(min(group + 32, call.v_heads) - from, count - index);
      uint32_t wanted = (kAll >> (32 - some)) << (from & 31);
      if (again) wanted &= bits_at(deferred, index) << (from & 31);
      const bool fresh = !again && (index == 0 || from == 0);
      uint32_t heads = 0;  // to decode now
      int32_t counts = 0;  // records
      typename OneHead::Raw raw = {};
      float decay = 0.0f;
      int32_t tokens = kMany ? 0 : 1;
      // Copies of a head, by parts.
      const auto start = [&](auto part, int32_t bit) {
        const int32_t n = __shfl_sync(kAll, counts, bit);
        const HeadFormat128& format = format_as<kKnown>(head.format_at(group + bit));
        if constexpr (part == OneHead::kInputs || part == OneHead::kAllParts) {
          if constexpr (kTogether > 1) {
            head.start_inputs(rows, group + bit, 0, tokens, n, format);
          } else if constexpr (OneHead::kStreams) {
            head.start_inputs(rows, group + bit, 0, n);
          }
        }
        if constexpr (part == OneHead::kCodes || part == OneHead::kAllParts) {
          if (threadIdx.x == 0) head.start_codes(rows, group + bit, format);
        }
        if constexpr (kVector && (part == OneHead::kKeys || part == OneHead::kAllParts)) {
          if (threadIdx.x == 0) head.start_keys(rows, group + bit, n);
        }
        if constexpr (part == OneHead::kRows || part == OneHead::kAllParts) {
          if (threadIdx.x == 32) head.start_rows(rows, group + bit, n, format);
        }
        if constexpr (!OneHead::kStreams && part == OneHead::kAllParts) {
          head.load_inputs(rows, group + bit, 0, &raw);
          decay = head.load_decay(rows, group + bit, n);
        }
      };
      constexpr std::integral_constant<typename OneHead::Part, OneHead::kAllParts> kAllOfIt;
      if (wanted != 0) {
        const Sequence128 s = load_sequence(call, sequence);
        uint32_t found = 0;
        // This block's part of the check of inputs. Blocks that share it do it while the slot and
        // then the bases are on their way, others while the first head's copies are.
        const auto check = [&](bool now) {
          if (!kChecks || !fresh || !now) return;
          found |= check_inputs<kVector, kInFlight, kPlain>(
              call, sequence, s.tokens, rank * kThreads + threadIdx.x, together * kThreads);
        };
        if (fresh) {
          if (together > 1 && index == 0) cluster_wait();
          if (!kChecks) {
            faults = load_acquire(call.status + sequence) != LEAPQUANT_OK ? 1u : 0u;
          } else {
            faults = s.fault;
            if (s.alive &&
                (s.slot >= call.num_state_slots || s.window_slot >= call.num_window_slots)) {
              faults = 4u;
            }
          }
        }
        if (kMany) tokens = s.tokens;
        bool computes = s.alive && faults == 0;
        if (computes) {
          const int32_t h = min(group + lane, call.v_heads - 1);
          bool copying = false;
          uint32_t due = 0;
#pragma unroll 1
          for (int32_t step = 0; step < 2; ++step) {
            check(step == (together > 1 ? 0 : 1));
            if (step != 0) continue;
            if (warp == 0) {  // one look for all warps: a fold may move a base
              const int32_t seen = load_acquire(call.base + int64_t{s.slot} * call.v_heads + h);
              if (lane == 0) head.write_pointers(s, &rows);
              common[lane] = seen;
            }
            __syncthreads();
            const int32_t base = common[lane];
            const int32_t boundary = last_boundary_of<kPlain>(call, h, s.position);
            counts = s.position - base;
            // When all folds are done nothing is waited for.
            due = __ballot_sync(
                kAll, looks < kMostLooks && last_boundary_of<kPlain>(call, h, s.position) > base);
            const uint32_t fit =
                __ballot_sync(kAll, counts >= 0 && counts <= call.capacity - (call.tokens - 1));
            heads = wanted & ~due & fit;
            // What a fold beside this wrote before it moved a base, for copies.
            if (__any_sync(kAll, boundary == base) && lane == 0) fence_async_proxy();
            copying = heads != 0;
            if (copying) start(kAllOfIt, __ffs(static_cast<int32_t>(heads)) - 1);
          }
          if (kChecks && fresh) {
            if (kPlain && threadIdx.x == 0 && count - index > some && sequence + 1 < call.batch) {
              prefetch_inputs(call, sequence + 1);
            }
            found |= check_slots(call, s, rank * kThreads + threadIdx.x, together * kThreads);
            found |= check_position(call, s, common[lane]);
#pragma unroll 1
            for (int32_t other = threadIdx.x; call.v_heads > 32 && other < call.v_heads;
                 other += kThreads) {
              found |= check_position(
                  call, s, load_acquire(call.base + int64_t{s.slot} * call.v_heads + other));
            }
            if (found != 0) {
#pragma unroll 1
              for (int32_t r = 0; r < together; ++r) {
                set_bits_in_block(shared_address(faults_found), static_cast<uint32_t>(r), found);
              }
              fence_cluster();
            }
            if (together > 1) {
              cluster_arrive();
              cluster_wait();
            } else {
              __syncthreads();
            }
            faults |= *faults_found;
            if (faults != 0) {
              __syncthreads();
              if (threadIdx.x == 0) *faults_found = 0;
              computes = false;
            }
          }
          if (computes) {
            const uint32_t later = wanted & due;
            left += again ? -__popc(wanted & ~due) : __popc(later);
            if (threadIdx.x == 0) {
              put_bits(deferred, index, kAll >> (32 - some), later >> (from & 31));
            }
          } else if (kChecks && copying) {
            head.wait_for_inputs(turn_of_inputs());
            head.wait_for_codes(turn);
            head.wait_for_keys(turn);
            head.wait_for_rows(turn);
            ++turn;
            ++input_turn;
            heads = 0;
          }
        }
        if (kChecks && fresh && threadIdx.x == 0) {
          call.status[sequence] = status_of(faults);
        }
        if (!computes) {
#pragma unroll 1
          for (int32_t i = 0; i < some; ++i) zero_outputs(head, call, sequence, from + i, 0);
        }
      }
      from += some;
      index += some;
#pragma unroll 1
      while (heads != 0) {
        const int32_t bit = __ffs(static_cast<int32_t>(heads)) - 1;
        heads &= heads - 1;
        const int32_t v_head = group + bit;
        const int32_t n = __shfl_sync(kAll, counts, bit);
        const OneHead own = head_at(fresh_copy(own_lane));
        const HeadFormat128& format = format_as<kKnown>(own.format_at(v_head));
        if constexpr (kTogether > 1) {
#pragma unroll 1
          for (int32_t t = 0; t < tokens; t += kTogether) {
            const bool last = t + kTogether >= tokens;
            const auto ahead = [&](auto part) {
              if constexpr (part == OneHead::kInputs) {
                if (!last) own.start_inputs(rows, v_head, t + kTogether, tokens, 0, format);
              }
              if (last && heads != 0) start(part, __ffs(static_cast<int32_t>(heads)) - 1);
            };
            own.group(rows, v_head, t, tokens, n + t, format, &decay, turn, input_turn, ahead);
            ++input_turn;
          }
        } else {
#pragma unroll 1
          for (int32_t t = 0; t < tokens; ++t) {
            if (t > 0) own.load_inputs(rows, v_head, t, &raw);
            const bool last = !kMany || t + 1 == tokens;
            const auto ahead = [&](auto part) {
              if constexpr (part == OneHead::kAllParts) {
                if (kMany && tokens > 1) fence_async_shared();  // records appended, then copies
                __syncthreads();
              }
              if constexpr (kMany && part == OneHead::kInputs) {
                if (!last) {
                  own.start_inputs(rows, v_head, t + 1, 0);
                  return;
                }
              }
              if (kMany && !last) return;
              if (heads != 0) start(part, __ffs(static_cast<int32_t>(heads)) - 1);
            };
            own.token(rows, v_head, t, n + t, format, &decay, last, &raw, turn, turn_of_inputs(),
                      ahead);
            if (OneHead::kStreams || last) ++input_turn;
          }
        }
        ++turn;
        if (kMany) zero_outputs(own, call, sequence, v_head, tokens);
      }
      __syncthreads();  // shared memory may be overwritten
    }
  }
  stamp(call, Stamp::kDecodeEnds);
  wait_for_previous_grid();  // what follows in the stream finds the folds done too
}

}  // namespace leapquant::cuda::decoding_128
