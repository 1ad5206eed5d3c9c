// SPDX-License-Identifier: Apache-2.0
//
// The kernel that folds heads of 128 x 128 that are due in a decode call. A block of eight warps
// holds one state in registers: a warp has sixteen keys and all values of them, a lane four keys
// and sixteen values, in the order in which the matrix units accumulate and in which the payload is
// stored. Rebuild, fit and subtraction by the matrix units, codec in FP32. Reads base, writes
// boundary states, health and, last, base. No launch, so that a host compiler can include it.
#pragma once

#include <cstdint>

#include "cuda/call_128.cuh"
#include "cuda/decode_128.cuh"
#include "cuda/fold_codec_128.cuh"
#include "cuda/fold_copies_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

constexpr int32_t kChunk = 128;  // heads that a block looks at together
constexpr int32_t kMostTeams = 2;
constexpr int32_t kItemBytes = sizeof(Item) + 4;  // and its faults
// Behind both: their number, a word of the sender's, two barriers, routes of copies.
constexpr int32_t kBehindItems = 32 + kRoutes * static_cast<int32_t>(sizeof(Route));

__host__ __device__ constexpr int32_t team_bytes(const Plan& plan) {
  return (plan.list + kChunk * kItemBytes + kBehindItems + 127) & ~127;
}

// The places that a call's folds have in a team's shared memory. Records and the next head's state
// have some unless a multiprocessor had room for one team only then.
inline Plan plan_for(const Call128& call, bool vector) {
  constexpr int32_t kRoom = 227 * 1024 / kMostTeams;
  const int32_t decays = vector ? 512 : 0;
  for (const bool staged : {true, false}) {
    for (const bool turns : {true, false}) {
      const Plan plan = plan_for(call, call.ring_tokens, turns, decays, staged);
      if (team_bytes(plan) <= kRoom) return plan;
    }
  }
  return plan_for(call, call.ring_tokens, false, decays);
}

// Vector decays of a head's records in FP32 into shared memory, a record a warp.
template <bool kPlain>
__device__ __forceinline__ void load_decays(const Call128& call, const Plan& plan, char* shared,
                                            const Item& item) {
  const int32_t thread = fresh_copy(static_cast<int32_t>(threadIdx.x));
  const int32_t lane = thread & 31;
  const int32_t records = min(item.boundary - item.base, call.ring_tokens);
  const char* decays = call.windows + item.window_slot * call.window_stride + call.log_decays +
                       item.v_head * call.decay_head_stride;
  const int32_t start = modulo<kPlain>(item.base, call.ring_tokens);
#pragma unroll 2
  for (int32_t r = thread >> 5; r < records; r += kWarps) {
    const int32_t ring = start + r - (start + r >= call.ring_tokens ? call.ring_tokens : 0);
    reinterpret_cast<float4*>(shared + plan.decays + r * 512)[lane] =
        call.decay_bytes == 4
            ? reinterpret_cast<const float4*>(decays + ring * 512)[lane]
            : widen(reinterpret_cast<const uint2*>(decays + ring * 256)[lane], LEAPQUANT_FP16);
  }
}

// Entries that are not finite become 0.
__device__ __forceinline__ void clear_non_finite(State* x) {
#pragma unroll
  for (int32_t m = 0; m < 16; ++m) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      float& entry = x->at[m / 8][m % 8][i];
      if (!(fabsf(entry) <= kLargestFloat)) entry = 0.0f;
    }
  }
}

// Notes the state's scale (what it was multiplied by), its inverse and its energy, for after the
// next barrier.
__device__ __forceinline__ void note_scale(const Fold& fold, int32_t exponent, float energy) {
  if (fold.thread() != 0) return;
  fold.at<float>(kScalesAt)[0] = power_of_two(exponent);
  fold.at<float>(kScalesAt)[1] = power_of_two(-exponent);
  fold.at<float>(kScalesAt)[2] = energy;
}

__device__ __forceinline__ int32_t exponent_of(float x) {
  return static_cast<int32_t>(__float_as_uint(x) >> 23) - 127;
}

// Whether all products of a fit are safe with that norm: 2^3 to 2^13.
__device__ __forceinline__ bool norm_is_safe(float energy) {
  return energy >= 64.0f && energy < 67108864.0f;
}

// Scales the state to a norm of 2^7 to 2^8 where it lies outside of that, and notes by how much;
// `scale`: what it was multiplied by before.
__device__ __forceinline__ void normalise(const Fold& fold, State* x, float scale, float energy) {
  const int32_t before = exponent_of(scale);
  const int32_t square = exponent_of(energy);
  int32_t all = before;
  float more = 1.0f;
  if (square < 6 || square >= 26) {
    all = min(max(before + 7 - (square >> 1), -120), 120);
    more = power_of_two(all - before);
    multiply(x, more);
  }
  note_scale(fold, all, energy * more * more);
}

// A block's turns at the heads on its list. The next head's boundary state and records arrive, and
// the last one's are stored, while a head is folded.
template <bool kVector, bool kPlain, Fits kFits, Known128 kKnown>
struct Turns : Copies<kVector, kPlain> {
  using Base = Copies<kVector, kPlain>;
  using Base::barrier;
  using Base::call;
  using Base::plan;
  using Base::shared;
  Item* items;
  int32_t* faults;  // of an item's sequence, or more records than the ring has
  uint32_t parity;
  int32_t turn;

  static constexpr bool kShort = is_short(kFits);
  // The thread that moves bases and stores states, first of the warp that starts copies; the warp
  // that works out health. The codec leaves warps 4 .. 7 time, other fits the last.
  static constexpr int32_t kSendingWarp = kShort ? 4 : kWarps - 1;
  static constexpr int32_t kSender = 32 * kSendingWarp;
  static constexpr int32_t kFiguresWarp = kShort ? 5 : 1;

  // By all threads: starts copies of an item's records and state as the threads before have left
  // their places.
  __device__ __forceinline__ void start(const Item& item, int32_t at, bool records,
                                        bool state) const {
    if constexpr (kShort) {
      if (threadIdx.x >> 5 != kSendingWarp) return;
      fence_async_shared();
      __syncwarp();
      // Few compensators always leave room for records and a second place of the state.
      if constexpr (kPlain) {
        Base::start_by_routes(routes(), item, at);
      } else {
        Base::start_by_lanes(item, at, records, state);
      }
    } else if (threadIdx.x == kSender) {
      fence_async_proxy();
      if (records) Base::start_records(item);
      if (state) Base::start_state(item, at);
    }
  }
  __device__ __forceinline__ Route* routes() const {
    return reinterpret_cast<Route*>(faults + kChunk + 8);
  }
  // By the sending warp, before anything is copied.
  __device__ __forceinline__ void note_routes() const {
    if (!kShort || !kPlain || threadIdx.x >> 5 != kSendingWarp) return;
    Base::note_routes(routes());
    __syncwarp();
  }
  __device__ __forceinline__ static void fence_shared() {
    if (kShort) {
      fence_async_shared();
    } else {
      fence_async_proxy();
    }
  }

  // Checks the sequences of all items: slots named twice with all threads, what a sequence has with
  // one or more warps. Ends with a barrier.
  __device__ __forceinline__ void check(int32_t count) const {
    const int32_t thread = fresh_copy(static_cast<int32_t>(threadIdx.x));
    for (int32_t other = thread; other < call.batch; other += kThreads) {
      const int32_t slot = __ldg(call.state_slots + other);
      const int32_t window = call.window_slots != nullptr ? __ldg(call.window_slots + other) : slot;
#pragma unroll 1
      for (int32_t i = 0; i < count && slot >= 0; ++i) {
        if (other >= items[i].sequence) continue;
        if (slot == items[i].slot || window == items[i].window_slot) faults[i] = 1;
      }
    }
    const int32_t split = count > 4 ? 1 : count > 2 ? 2 : count == 2 ? 4 : kWarps;
    const int32_t threads = 32 * split;
#pragma unroll 1
    for (int32_t i = thread / threads; i < count; i += kThreads / threads) {
      const Item& item = items[i];
      const int32_t mine = thread & (threads - 1);
      uint32_t found = 0;
      const int32_t* bases = call.base + int64_t{item.slot} * call.v_heads;
      const int32_t shared_keys = call.group > 1 ? item.tokens : 0;
      for (int32_t h = mine; h < call.v_heads; h += threads) {
        const int32_t base = *reinterpret_cast<const volatile int32_t*>(bases + h);
        if (item.position < base) found = 1;
        if (int64_t{item.position} - base + shared_keys > call.ring_tokens) found = 1;
      }
      found |= check_inputs<kVector, 4, kPlain>(call, item.sequence, item.tokens, mine, threads);
      if (found != 0) faults[i] = 1;
    }
    sync_team();
  }

  // Moves the base of the item whose state the sender has sent, once it is written.
  __device__ __forceinline__ void release(int32_t* sent) const {
    if (threadIdx.x != kSender || *sent < 0) return;
    const Item& item = items[*sent];
    bulk_stores_done();
    fence_async_proxy();
    store_release(call.base + int64_t{item.slot} * call.v_heads + item.v_head, item.boundary);
    *sent = -1;
  }

  // Starts on a list: the chunk before has used what arrives now.
  __device__ __forceinline__ void begin() const {
    start(items[0], turn, true, true);
    if (kVector) load_decays<kPlain>(call, plan, shared, items[0]);
  }
  // What the check has found about the items' sequences. Ends with a barrier.
  __device__ __forceinline__ void heed(int32_t count) const {
    const auto i = static_cast<int32_t>(threadIdx.x);
    if (i < count && call.status[items[i].sequence] != LEAPQUANT_OK) faults[i] = 1;
    sync_team();
  }

  // Behind `begin` and whoever notes faults. `before`: heads that the team has folded, for stamps.
  __device__ __forceinline__ void fold_all(int32_t count, int32_t before) {
    int32_t own = -1;
    // Of one thread alone; where registers are for other things, behind faults and their number.
    int32_t* sent = kShort ? faults + kChunk + 1 : &own;
    if (kShort && threadIdx.x == kSender) *sent = -1;
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i) {
      const int32_t thread = fresh_copy(static_cast<int32_t>(threadIdx.x));
      const Item& item = items[i];
      const int32_t records = item.boundary - item.base;
      const bool more = i + 1 < count;
      const HeadFormat128& format = format_with<kVector, kFits, kKnown>(
          kPlain ? call.classes[0] : format_of(call, item.v_head));
      const Fold fold = {{{{{{{{call, plan, format, shared, turn, thread}}}}}}}};
      // Moves the last head's base, or at least waits until its state has gone, and lets copies go
      // where it was.
      const auto copy_next = [&] {
        if (!kShort) release(sent);
        if (!more) return;
        if (kShort && threadIdx.x == kSender) bulk_stores_wait();
        start(items[i + 1], turn ^ 1, true, plan.turns != 0);
      };
      if (plan.staged != 0) barrier_wait(barrier + 8, parity);
      barrier_wait(barrier, parity);
      stamp(call, Stamp::kArrived, before + i);
      if (faults[i] == 0) {
        State x;
        const typename Base::Window window = {*this, item,
                                              modulo<kPlain>(item.base, call.ring_tokens)};
        const float scale = fold.template prepare<kVector, kShort>(window, records);
        stamp(call, Stamp::kPrepared, before + i);
        fold.template rebuild<kShort>(&x, (records + fold.rank() + 7) & ~7);
        stamp(call, Stamp::kRebuilt, before + i);
        uint32_t flags = 0;
        float energy = fold.block_sum(squares(x), 0);
        if (kShort && norm_is_safe(energy)) {
          note_scale(fold, exponent_of(scale), energy);
        } else {
          if (!(energy <= kLargestFloat)) {
            flags |= LEAPQUANT_HEALTH_NON_FINITE;
            clear_non_finite(&x);
            energy = fminf(fold.block_sum(squares(x), 1), kLargestFloat);
          }
          normalise(fold, &x, scale, energy);
        }
        if (fold.rank() > 0) fold.store_matrix(x);
        sync_team();
        stamp(call, Stamp::kCopied, before + i);
        flags |= fold.template fit_any<kFits>(&x, energy == 0.0f, copy_next);
        stamp(call, Stamp::kFitted, before + i);
        const auto meanwhile = [&] {
          if (kShort) release(sent);
          if (plan.turns == 0 && thread == kSender && more) {
            const Item& next = items[i + 1];
            prefetch_bulk(boundary_of(call, next.slot, next.v_head),
                          static_cast<uint32_t>(format_of(call, next.v_head).bytes));
          }
        };
        finish(fold, item, &x, flags, meanwhile);
        stamp(call, Stamp::kEncoded, before + i);
        if (kVector && more) load_decays<kPlain>(call, plan, shared, items[i + 1]);
        sync_team();
        send(fold, item);
        stamp(call, Stamp::kFolded, before + i);
        if (!kShort || thread == kSender) *sent = i;
      } else {
        sync_team();
        if (kShort) release(sent);
        copy_next();
        if (kVector && more) load_decays<kPlain>(call, plan, shared, items[i + 1]);
        sync_team();
      }
      if (plan.turns == 0 && more) {
        if (thread == kSender) bulk_stores_wait();
        start(items[i + 1], turn, false, true);
      }
      parity ^= 1u;
      turn ^= plan.turns;
    }
    release(sent);
    sync_team();
  }

  // From the residual to the boundary state in shared memory and the figures' parts.
  template <typename Meanwhile>
  __device__ __forceinline__ void finish(const Fold& fold, const Item& item, State* x,
                                         uint32_t flags, const Meanwhile& meanwhile) const {
    const bool health = call.health != nullptr;
    float* sums = fold.template at<float>(kReductionsAt);
    if (health) {
      const float left = sum_of_warp(squares(*x));
      const float largest =
          __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest_of(*x))));
      if (fold.lane() == 0) {
        sums[24 + fold.warp()] = left;
        sums[32 + fold.warp()] = largest;
      }
    }
    float error = 0.0f;
    flags |= fold.template encode<kShort>(x, &error, meanwhile);
    if (health) {
      error = sum_of_warp(error);
      flags = __reduce_or_sync(kAll, flags);
      if (fold.lane() == 0) {
        sums[40 + fold.warp()] = error;
        if (flags != 0) {
          atomicOr(&call.health[int64_t{item.slot} * call.v_heads + item.v_head].flags, flags);
        }
      }
    }
  }

  // Sends the boundary state, and the figures.
  __device__ __forceinline__ void send(const Fold& fold, const Item& item) const {
    const HeadFormat128& format = fold.format;
    if (fold.thread() == kSender) {
      fence_shared();
      char* to = boundary_of(call, item.slot, item.v_head);
      const auto codes = static_cast<uint32_t>(Fold::payload_of(format));
      const uint32_t tail = static_cast<uint32_t>(format.bytes) - codes;
      bulk_store(to, shared_address(fold.codes()), codes);
      if (tail != 0) {
        bulk_store(to + codes, shared_address(fold.boundary()) + codes, tail);
      }
    }
    if (call.health != nullptr && fold.warp() == kFiguresWarp) {
      const float* sums = fold.template at<float>(kReductionsAt);
      const float left = sum_of_eight(sums + 24);
      const float error = sum_of_eight(sums + 40);
      const float largest =
          __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(sums[32 + (fold.lane() & 7)])));
      const float energy = fold.template at<float>(kScalesAt)[2];
      if (fold.lane() == 0) {
        leapquant_health* to = call.health + int64_t{item.slot} * call.v_heads + item.v_head;
        to->residual_max = largest * fold.template at<float>(kScalesAt)[1];
        const auto share = [](float x, float y) { return kShort ? __fdividef(x, y) : x / y; };
        to->compensator_energy =
            energy > 0.0f ? fminf(fmaxf(1.0f - share(left, energy), 0.0f), 1.0f) : 0.0f;
        const float lost = energy > 0.0f ? share(error, energy) : 0.0f;
        to->fold_error = !kShort ? sqrtf(lost) : lost > 0.0f ? lost * rsqrt_fast(lost) : 0.0f;
      }
    }
  }
};

// Heads of the call, head by head over the sequences, are dealt round robin to the blocks, and a
// block folds those of its own that are due: whether another block has folded one of its heads
// already decides nothing here. Staggered boundaries make equal shares of it. Two teams of threads
// make a block, which takes all registers of a multiprocessor, so that nothing else runs there;
// each folds heads of its own.
// Static: a host compiler's kernel must not take the place of the launch of the same name.
template <bool kVector, bool kPlain, Fits kFits, Known128 kKnown>
static __global__ void __launch_bounds__(kMostTeams* kThreads, 1)
    fold_kernel(const __grid_constant__ Call128 call, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(128) char all_shared[];
  // Groups begin when the check is done, others while it ends: these list what is due and start on
  // it before they wait. Decode starts behind the check either way.
  const bool early = call.checked != 0 && cluster_blocks() == 1;
  if (!early) {
    if (call.checked != 0) wait_for_previous_grid();
    launch_dependents();
  }
  stamp(call, Stamp::kFoldsBegin);
  // From another lane, which has the same: else it would be worked out again for every address.
  char* shared =
      all_shared + __shfl_sync(kAll, static_cast<int32_t>(threadIdx.y) * team_bytes(plan), 0);
  const int32_t thread = threadIdx.x;
  Item* items = reinterpret_cast<Item*>(shared + plan.list);
  int32_t* faults = reinterpret_cast<int32_t*>(items + kChunk);
  int32_t* count = faults + kChunk;
  const uint32_t barrier = shared_address(count + 2);
  if (thread == 0) {
    barrier_init(barrier, 1);
    barrier_init(barrier + 8, 1);
  }
  fence_async_proxy();
  Turns<kVector, kPlain, kFits, kKnown> turns = {
      {call, plan, shared, barrier}, items, faults, 0u, 0};
  turns.note_routes();

  const int32_t total = call.batch * call.v_heads;
  const int64_t teams = int64_t{gridDim.x} * blockDim.y;
  int32_t lists = 0;   // that the team has made
  int32_t folded = 0;  // heads
  for (int64_t start = blockIdx.x + int64_t{gridDim.x} * threadIdx.y; start < total;
       start += teams * kChunk) {
    if (thread == 0) *count = 0;
    if (thread < kChunk) faults[thread] = 0;
    sync_team();
    const int64_t index = start + thread * teams;
    if (thread < kChunk && index < total) {
      const int32_t v_head = static_cast<int32_t>(index) / call.batch;
      const int32_t sequence = static_cast<int32_t>(index) - v_head * call.batch;
      const Sequence128 s = load_sequence(call, sequence);
      const bool sound = call.checked != 0 && !early ? call.status[sequence] == LEAPQUANT_OK
                                                     : s.slot < call.num_state_slots &&
                                                           s.window_slot < call.num_window_slots;
      if (s.alive && sound) {
        const int32_t base = *reinterpret_cast<const volatile int32_t*>(
            call.base + int64_t{s.slot} * call.v_heads + v_head);
        const int32_t boundary = last_boundary_of<kPlain>(call, v_head, s.position);
        if (boundary > base) {
          const int32_t place = atomicAdd(count, 1);
          if (boundary - base > call.ring_tokens) faults[place] = 1;
          items[place] = {sequence,   v_head,   s.slot, s.window_slot,
                          s.position, s.tokens, base,   boundary};
        }
      }
    }
    sync_team();
    stamp(call, Stamp::kListed, lists);
    ++lists;
    const int32_t some = *count;
    if (some > 0) turns.begin();
    if (early && lists == 1) {
      wait_for_previous_grid();
      launch_dependents();
    }
    if (some > 0) {
      if (call.checked == 0) {
        turns.check(some);
      } else if (early) {
        turns.heed(some);
      } else if (kVector) {
        sync_team();
      }
      turns.fold_all(some, folded);
    }
    folded += some;
  }
}

}  // namespace leapquant::cuda::folding_128
