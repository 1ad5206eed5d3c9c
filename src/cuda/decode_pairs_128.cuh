// SPDX-License-Identifier: Apache-2.0
//
// Decode of one token of large batches, the common call: a block fills a multiprocessor, and each
// of its pairs of warps takes the block's next head as soon as it is through with its last one, so
// that all are busy to the end. Heads whose boundary states are up to date come first, then those
// that are folded meanwhile. A pair claims its next head when it begins one, whose places in shared
// memory the next one's copies fill as they are read. The check of inputs is a launch before
// (check_128.cu). No launch, so that a host compiler can include it.
#pragma once

#include "cuda/call_128.cuh"
#include "cuda/decode_head_128.cuh"
#include "cuda/decode_shares_128.cuh"
#include "cuda/known_format_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::decoding_128 {

constexpr int32_t kMostPairs = 8;  // of a block, by 128 registers a thread
// Of a block's range, by the places that it has for them.
constexpr int32_t kMostHeads = 512;
constexpr int32_t kMostSequences = 64;

// The most heads of a range that touches no more sequences than that.
constexpr int32_t most_heads_of_block(int32_t v_heads) {
  const int64_t heads = int64_t{kMostSequences - 1} * v_heads;
  return heads < kMostHeads ? static_cast<int32_t>(heads) : kMostHeads;
}

// A head as a block's list has it: its sequence in the block, its place there, its records; whether
// it waits for a fold.
struct Listed {
  static constexpr uint32_t kNone = ~0u;
  static constexpr uint32_t kWaits = 0x80u;
  uint32_t word;

  __device__ __forceinline__ static Listed of(int32_t sequence, int32_t v_head, int32_t records,
                                              bool waits) {
    return {static_cast<uint32_t>(sequence) << 24 | static_cast<uint32_t>(v_head) << 8 |
            static_cast<uint32_t>(records) | (waits ? kWaits : 0u)};
  }
  __device__ __forceinline__ bool none() const { return word == kNone; }
  __device__ __forceinline__ bool waits() const { return (word & kWaits) != 0; }
  __device__ __forceinline__ int32_t sequence() const { return static_cast<int32_t>(word >> 24); }
  __device__ __forceinline__ int32_t v_head() const {
    return static_cast<int32_t>((word >> 8) & 0xffffu);
  }
  __device__ __forceinline__ int32_t records() const { return static_cast<int32_t>(word & 0x7fu); }
};

// What a block's pairs share, in front of their places: the list, from its start heads that are up
// to date, from its end those that wait; how many these are, how many of all are taken; each pair's
// next head; the sequences.
template <typename Pointers>
struct Pool {
  uint32_t list[kMostHeads];
  int32_t ready, waiting, taken;
  uint32_t idle;  // whether some sequence has only zeros to write
  uint32_t next[kMostPairs];
  int32_t positions[kMostSequences];
  Pointers sequences[kMostSequences];  // slot < 0: only zeros
};

// A lane's place in a list, one behind the other for the lanes whose heads belong there (`mine`);
// *count: how many the list has. By a warp.
__device__ __forceinline__ int32_t places_for(bool mine, int32_t lane, int32_t* count) {
  const uint32_t all = __ballot_sync(kAll, mine);
  int32_t first = 0;
  if (lane == 0 && all != 0) first = atomicAdd(count, __popc(all));
  first = __shfl_sync(kAll, first, 0);
  return first + __popc(all & ((1u << lane) - 1u));
}

template <bool kVector>
using PairHead = Head<kVector, 1, true, false>;
template <bool kVector>
using PairPool = Pool<typename PairHead<kVector>::Pointers>;

// A pair's places; they begin with what does not come late.
__host__ __device__ constexpr int32_t pair_bytes(const Plan& plan, int32_t bits) {
  return (plan.bytes - late_bytes(bits) + 127) & ~127;
}
template <bool kVector>
constexpr int32_t kPoolBytes =
    static_cast<int32_t>((sizeof(PairPool<kVector>) + 127) & ~size_t{127});

inline Plan plan_of_pair(const Call128& call, bool vector) {
  return plan_of(call.boundary_bytes, call.capacity, vector ? call.decay_bytes : 0,
                 call.weight_rows, 1, 1, false);
}
template <bool kVector>
int32_t bytes_of_block(const Call128& call, int32_t pairs) {
  return kPoolBytes<kVector> +
         pairs * pair_bytes(plan_of_pair(call, kVector), call.classes[0].bits);
}

// blockDim: 64, pairs. Static: a host compiler's kernel must not take the place of the launch of
// the same name.
template <bool kVector, Known128 kKnown>
static __global__ void __launch_bounds__(64 * kMostPairs, 1)
    decode_pairs_kernel(const __grid_constant__ Call128 call,
                        const __grid_constant__ Shares shares) {
  using OneHead = PairHead<kVector>;
  using Part = typename OneHead::Part;
  extern __shared__ __align__(128) char pool_shared[];
  const Plan plan = plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0,
                            call.weight_rows, 1, 1, false);
  auto& pool = *reinterpret_cast<PairPool<kVector>*>(pool_shared);
  const auto pair = static_cast<int32_t>(threadIdx.y);
  const int32_t own_lane = threadIdx.x & 31;
  // The same in all lanes, visibly. Every second two pairs' warps change parts: a multiprocessor's
  // schedulers take warps in turn.
  const int32_t warp =
      __shfl_sync(kAll, static_cast<int32_t>(threadIdx.x >> 5) ^ ((pair >> 1) & 1), 0);
  const int32_t bits = format_as<kKnown>(call.classes[0]).bits;
  char* places = pool_shared + kPoolBytes<kVector> - late_bytes(bits) +
                 __shfl_sync(kAll, pair * pair_bytes(plan, bits), 0);
  const auto head_at = [&](int32_t lane) {
    return OneHead{
        {{{places + plan.limbs, plan, lane, 0}, call, places, warp == 0, 32 * warp + lane}}};
  };
  stamp(call, Stamp::kDecodeBegins);
  const auto threads = static_cast<int32_t>(blockDim.x * blockDim.y);
  const auto thread = static_cast<int32_t>(threadIdx.x + 64 * threadIdx.y);
  if (threadIdx.x == 0) head_at(own_lane).init_barriers();
  if (thread == 0) {
    pool.ready = pool.waiting = pool.taken = 0;
    pool.idle = 0;
  }

  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t first = block * shares.heads + min(block, shares.longer);
  const int32_t count = shares.heads + (block < shares.longer ? 1 : 0);
  const auto v_heads = static_cast<uint32_t>(call.v_heads);
  const auto first_sequence = static_cast<int32_t>(static_cast<uint32_t>(first) / v_heads);
  const auto last_sequence =
      static_cast<int32_t>(static_cast<uint32_t>(first + count - 1) / v_heads);
  for (int32_t i = thread; i <= last_sequence - first_sequence; i += threads) {
    const Sequence128 s = load_sequence(call, first_sequence + i);
    const bool sound = load_acquire(call.status + first_sequence + i) == LEAPQUANT_OK;
    head_at(own_lane).write_pointers(s, &pool.sequences[i]);
    pool.positions[i] = s.position;
    if (!s.alive || !sound) pool.sequences[i].slot = -1;
  }
  fence_async_shared();
  __syncthreads();
  for (int32_t i = (thread & ~31); i < count; i += threads) {  // whole warps
    const int32_t mine = i + own_lane;
    const auto at = static_cast<uint32_t>(first + min(mine, count - 1));
    const auto sequence = static_cast<int32_t>(at / v_heads) - first_sequence;
    const auto v_head = static_cast<int32_t>(at % v_heads);
    const int32_t slot = pool.sequences[sequence].slot;
    bool ready = false;
    bool waits = false;
    int32_t records = 0;
    if (mine < count && slot < 0) atomicOr(&pool.idle, 1u);
    if (mine < count && slot >= 0) {
      const int32_t base = load_acquire(call.base + int64_t{slot} * call.v_heads + v_head);
      const int32_t position = pool.positions[sequence];
      const int32_t boundary = last_boundary_of<true>(call, v_head, position);
      waits = boundary > base;
      records = position - (waits ? boundary : base);
      ready = !waits && records >= 0 && records <= call.capacity;
    }
    const uint32_t entry = Listed::of(sequence, v_head, records & 0x7f, waits).word;
    const int32_t front = places_for(ready, own_lane, &pool.ready);
    const int32_t back = places_for(waits, own_lane, &pool.waiting);
    if (ready) pool.list[front] = entry;
    if (waits) pool.list[count - 1 - back] = entry;
  }
  __syncthreads();
  // What folds beside this wrote before they moved a base, for copies.
  if (own_lane == 0) fence_async_proxy();

  // The next head of the list, by a warp: lane 0 claims its place.
  const auto claim = [&](int32_t lane) { return lane == 0 ? atomicAdd(&pool.taken, 1) : 0; };
  const auto taken_at = [&](int32_t place) {
    place = __shfl_sync(kAll, place, 0);
    Listed taken = {Listed::kNone};
    if (place < pool.ready) {
      taken.word = pool.list[place];
    } else if (place - pool.ready < pool.waiting) {
      taken.word = pool.list[count - 1 - (place - pool.ready)];
    }
    return taken;
  };
  // Looks whether a head has been folded that waits for it; by a warp. When all folds are done
  // nothing is waited for, and what has more records than there is room for is left out.
  const auto look = [&](Listed* head, int32_t lane, int32_t looks) {
    while (head->waits() && !head->none()) {
      const int32_t slot = pool.sequences[head->sequence()].slot;
      const int32_t position = pool.positions[head->sequence()];
      const int32_t boundary = last_boundary_of<true>(call, head->v_head(), position);
      if (looks == kMostLooks) wait_for_previous_grid();
      const int32_t base = load_acquire(call.base + int64_t{slot} * call.v_heads + head->v_head());
      if (base < boundary && looks < kMostLooks) return;
      fence_async_proxy();
      const int32_t records = position - base;
      *head = records >= 0 && records <= call.capacity
                  ? Listed::of(head->sequence(), head->v_head(), records, false)
                  : taken_at(claim(lane));
    }
  };
  const auto format_here = [&]() -> decltype(auto) { return format_as<kKnown>(call.classes[0]); };
  // Copies of a head, by parts.
  const auto start = [&](auto part, const OneHead& head, Listed what) {
    const HeadFormat128& format = format_here();
    const auto& rows = pool.sequences[what.sequence()];
    const int32_t n = what.records();
    const int32_t v_head = what.v_head();
    constexpr bool kWhole = part == OneHead::kAllParts;
    const bool first_lane = head.lane == 0;
    if constexpr (part == OneHead::kInputs || kWhole) {
      if constexpr (OneHead::kInputsByLanes) {
        if (warp == 1) head.start_inputs_by_lanes(rows, v_head, n);
      } else {
        head.start_inputs(rows, v_head, 0, n);
      }
    }
    if constexpr (part == OneHead::kState || kWhole) {
      if (first_lane && warp == 0) head.start_state(rows, v_head, format);
    }
    if constexpr (kVector && (part == OneHead::kKeys || kWhole)) {
      if (first_lane && warp == 0) head.start_keys(rows, v_head, n);
    }
    if constexpr (part == OneHead::kRecords || kWhole) {
      if (first_lane && warp == 1) head.start_records(rows, v_head, n);
    }
  };
  constexpr std::integral_constant<Part, OneHead::kAllParts> kAllOfIt;
  uint32_t* upcoming = &pool.next[pair];
  // Of the head that the first warp has taken, once it is there, all parts; by a pair.
  const auto begin = [&](const OneHead& head, Listed taken) {
    if (warp == 0) {
#pragma unroll 1
      for (int32_t looks = 1; taken.waits() && !taken.none(); ++looks) {
        if (looks > 1) __nanosleep(100);
        look(&taken, head.lane, looks);
      }
      if (head.lane == 0) *upcoming = taken.word;
    }
    head.pair_sync();
    taken.word = *upcoming;
    head.pair_sync();
    if (!taken.none()) start(kAllOfIt, head, taken);
    return taken;
  };

  Listed now = {Listed::kNone};
  {
    const OneHead head = head_at(own_lane);
    if (warp == 0) now = taken_at(claim(own_lane));
    now = begin(head, now);
  }
  if (pool.idle != 0) {
#pragma unroll 1
    for (int32_t i = pair; i < count; i += static_cast<int32_t>(blockDim.y)) {
      const auto at = static_cast<uint32_t>(first + i);
      const auto sequence = static_cast<int32_t>(at / v_heads);
      if (pool.sequences[sequence - first_sequence].slot >= 0) continue;
      zero_outputs(head_at(own_lane), call, sequence, static_cast<int32_t>(at % v_heads), 0);
    }
  }
#pragma unroll 1
  for (uint32_t turn = 0; !now.none(); ++turn) {
    const OneHead own = head_at(fresh_copy(own_lane));
    Listed next = {Listed::kNone};
    const int32_t place = warp == 0 ? claim(own.lane) : 0;
    typename OneHead::Raw raw = {};
    float decay = 0.0f;
    const auto ahead = [&](auto part) {
      if constexpr (part == OneHead::kNext) {
        next = taken_at(place);
        look(&next, own.lane, 0);
        if (own.lane == 0) *upcoming = next.word;
      } else {
        if constexpr (part == OneHead::kInputs) {
          if (warp == 1) next.word = *upcoming;  // written before the warps met
        }
        if (!next.waits()) start(part, own, next);
      }
    };
    own.token(pool.sequences[now.sequence()], now.v_head(), 0, now.records(), format_here(), &decay,
              true, &raw, turn, turn, ahead);
    if (next.waits() && !next.none()) next = begin(own, next);
    now = next;
  }
  stamp(call, Stamp::kDecodeEnds);
  wait_for_previous_grid();  // what follows in the stream finds the folds done too
}

}  // namespace leapquant::cuda::decoding_128
