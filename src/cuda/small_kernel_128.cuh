// SPDX-License-Identifier: Apache-2.0
//
// Decode of small batches in one launch: a block has one head and nothing to wait for but its own
// fold. What bounds it is latency, not bytes: everything that a head needs is asked for as soon as
// its slot is known (records up to the last boundary, whatever the base), the inputs are checked
// meanwhile, and the launch overlaps with the end of whatever was before it in the stream. No
// launch here, so that a host compiler can include it.
#pragma once

#include "cuda/fold_kernel_128.cuh"
#include "cuda/ptx.cuh"
#include "cuda/small_head_128.cuh"

namespace leapquant::cuda::small_128 {

using namespace decoding_128;

constexpr int32_t kThreads = folding_128::kThreads;
// What the warps of rows do first. The barriers of what they copy have the same order.
enum Job { kCodesJob = kReaders, kTailJob, kKeysJob, kCorrectionsJob };
// Barriers of threads, besides the team's.
constexpr int32_t kRowsBarrier = 2;      // of the warps of rows
constexpr int32_t kSumsBarrier = 3;      // the sums of codes are there
constexpr int32_t kVerdictBarrier = 4;   // of the warps that check: what they found
constexpr uint32_t kUnusual = 1u << 31;  // no fault, but not the short way

// Words of a block: faults; the head's base; whether it is the second turn; whether the short way
// is left; one that nobody reads.
enum Word { kFaults, kBase, kAgain, kVerdict, kNobody, kWords = 8 };

// Addresses of a block, worked out before anything of the call may be read: what tells of the
// sequence (slot, window, position, count; null: not given), its first rows; the head's.
enum Address {
  kSlotAt,
  kWindowAt,
  kPositionAt,
  kTokensAt,
  kQueryRows,
  kKeyRows,
  kValueRows,
  kBetas,
  kDecays,
  kQuery,
  kKey,
  kValue,
  kBeta,
  kDecay,
  kOutput,
  kState,
  kAddresses
};
// How: at + sequence x per_sequence + (v_head >> shift) x per_head.
struct Way {
  const void* at;
  int64_t per_sequence, per_head;
  int32_t shift;
};

// Places in shared memory: decode's and the fold's lie over each other, what both need behind.
// x mod ring_tokens = x - (x * ring_factor >> ring_shift) ring_tokens.
struct Places {
  decoding_128::Plan decode;
  folding_128::Plan fold;
  int32_t planes, barriers, faults, addresses, bytes;
  uint32_t ring_factor;
  int32_t ring_shift;
  Way ways[kAddresses];
};

inline Places places_of(const Call128& call) {
  Places p = {};
  p.decode = decoding_128::plan_of(call.boundary_bytes, call.capacity, 0, call.weight_rows, 1, 1);
  // Records and, in front of them, FP16 compensators.
  const int32_t rows = 256 * (call.classes[0].num_fp16 + call.capacity);
  p.decode.keys = (p.decode.bytes + 15) & ~15;
  p.decode.corrections = p.decode.keys + rows;
  p.planes = p.decode.corrections + rows;
  p.decode.units = p.planes + kReaders * kPlaneBytes;
  p.fold = folding_128::plan_for(call, false);
  p.barriers =
      folding_128::larger(p.decode.units + 4 * kSmallUnits, folding_128::team_bytes(p.fold));
  p.faults = p.barriers + 8 * kReaders;  // and other words
  p.addresses = p.faults + 4 * kWords;
  p.bytes = p.addresses + 8 * kAddresses;
  p.ring_shift = 31;
  while ((1 << (p.ring_shift - 31)) < call.ring_tokens) ++p.ring_shift;
  p.ring_factor = static_cast<uint32_t>((uint64_t{1} << p.ring_shift) /
                                        static_cast<uint32_t>(call.ring_tokens)) +
                  1u;
  constexpr int32_t kNone = 31;
  int32_t of_group = 0;
  while ((1 << of_group) < call.group) ++of_group;
  p.ways[kSlotAt] = {call.state_slots, 4, 0, kNone};
  p.ways[kWindowAt] = {call.window_slots != nullptr ? call.window_slots : call.state_slots, 4, 0,
                       kNone};
  p.ways[kPositionAt] = {call.positions, 4, 0, kNone};
  p.ways[kTokensAt] = {call.num_tokens, 4, 0, kNone};
  p.ways[kQueryRows] = {call.q.data, call.q.sequence_stride, 0, kNone};
  p.ways[kKeyRows] = {call.k.data, call.k.sequence_stride, 0, kNone};
  p.ways[kValueRows] = {call.v.data, call.v.sequence_stride, 0, kNone};
  p.ways[kBetas] = {call.beta.data, call.beta.sequence_stride, 0, kNone};
  p.ways[kDecays] = {call.log_decay.data, call.log_decay.sequence_stride, 0, kNone};
  p.ways[kQuery] = {call.q.data, call.q.sequence_stride, call.q.head_stride, of_group};
  p.ways[kKey] = {call.k.data, call.k.sequence_stride, call.k.head_stride, of_group};
  p.ways[kValue] = {call.v.data, call.v.sequence_stride, call.v.head_stride, 0};
  p.ways[kBeta] = {call.beta.data, call.beta.sequence_stride, 4, 0};
  p.ways[kDecay] = {call.log_decay.data, call.log_decay.sequence_stride, 4, 0};
  p.ways[kOutput] = {call.output.data, call.output.sequence_stride, call.output.head_stride, 0};
  p.ways[kState] = {call.states, 0, call.classes[0].bytes, 0};
  return p;
}

// A thread's share of the check of a sequence's inputs (as check_inputs), of one token, by the
// warps that read codes.
__device__ __forceinline__ uint32_t check(const Call128& call, const char* const* at,
                                          int32_t thread) {
  constexpr int32_t kUnroll = 4;  // loads on their way, of three kinds; past the end the last again
  constexpr int32_t kThreadsHere = 32 * kReaders;
  const FiniteTest test = finite_test(LEAPQUANT_BF16);
  const uint4* q = reinterpret_cast<const uint4*>(at[kQueryRows]);
  const uint4* k = reinterpret_cast<const uint4*>(at[kKeyRows]);
  const uint4* v = reinterpret_cast<const uint4*>(at[kValueRows]);
  const int32_t values = 16 * call.v_heads;
  const int32_t keys = 16 * call.k_heads;
  uint32_t seen = 0;
  uint32_t faults = 0;
#pragma unroll 1
  for (int32_t first = thread; first < values; first += kUnroll * kThreadsHere) {
    uint4 x[3][kUnroll];
#pragma unroll
    for (int32_t u = 0; u < kUnroll; ++u) {
      const int32_t i = min(first + u * kThreadsHere, values - 1);
      const int32_t j = min(i, keys - 1);
      x[0][u] = __ldg(v + i), x[1][u] = __ldg(q + j), x[2][u] = __ldg(k + j);
    }
#pragma unroll
    for (int32_t u = 0; u < 3 * kUnroll; ++u) seen |= seen_in(test, x[u / kUnroll][u % kUnroll]);
  }
#pragma unroll 1
  for (int32_t h = thread; h < call.v_heads; h += kThreadsHere) {
    const float beta =
        at[kBetas] != nullptr ? __ldg(reinterpret_cast<const float*>(at[kBetas]) + h) : 0.0f;
    const float decay =
        at[kDecays] != nullptr ? __ldg(reinterpret_cast<const float*>(at[kDecays]) + h) : 0.0f;
    if (!(fabsf(beta) <= 3.402823466e38f) || decay != decay) faults |= 1u;
    if (decay > 0.0f) faults |= 2u;
  }
  return seen != 0 ? faults | 1u : faults;
}

// Folds the head that `item` describes; all threads, which have read shared memory for the last
// time. Behind it its state and base are written, and shared memory is free again.
template <folding_128::Fits kFits, Known128 kKnown>
__device__ __forceinline__ void fold_one(const Call128& call, const folding_128::Plan& plan,
                                         char* shared, const folding_128::Item& item) {
  using namespace folding_128;
  Item* items = reinterpret_cast<Item*>(shared + plan.list);
  int32_t* faults = reinterpret_cast<int32_t*>(items + kChunk);
  const uint32_t barrier = shared_address(faults + kChunk + 2);
  if (threadIdx.x == 0) {
    items[0] = item;
    faults[0] = 0;
    barrier_init(barrier, 1);
    barrier_init(barrier + 8, 1);
    fence_async_proxy();
  }
  sync_team();
  Turns<false, true, kFits, kKnown> turns = {{call, plan, shared, barrier}, items, faults, 0u, 0};
  turns.note_routes();
  turns.begin();
  turns.fold_all(1, 0);
  fence_async_proxy();
  sync_team();
}

// As with_kinds_of_one; of the known formats `int8` has a kernel of its own here.
template <typename Use>
auto with_kinds(const Call128& call, const Use& use) {
  return folding_128::with_kinds_of_one<false>(call, [&](auto fits, auto known) {
    constexpr bool kApart = fits() == folding_128::Fits::kFew && known() == Known128::kInt8;
    return use(fits, KnownConstant<kApart ? Known128::kInt8 : Known128::kAny>());
  });
}

// Static: a host compiler's kernel must not take the place of the launch of the same name.
template <folding_128::Fits kFits, Known128 kKnown>
static __global__ void __launch_bounds__(kThreads, 2)
    small_kernel(const __grid_constant__ Call128 call, const __grid_constant__ Places places) {
  extern __shared__ __align__(128) char block_shared[];
  const decoding_128::Plan& plan = places.decode;
  const HeadFormat128& format = folding_128::format_with<false, kFits, kKnown>(call.classes[0]);
  if (threadIdx.x < kAddresses) {
    const Way& way = places.ways[threadIdx.x];
    const char* address = static_cast<const char*>(way.at) + block_y() * way.per_sequence +
                          (block_x() >> way.shift) * way.per_head;
    reinterpret_cast<const char**>(block_shared + places.addresses)[threadIdx.x] =
        way.at != nullptr ? address : nullptr;
  }
  if (threadIdx.x == 32) {
    for (int32_t i = 0; i < kReaders; ++i) {
      barrier_init(shared_address(block_shared + places.barriers) + 8 * i, 1);
    }
    int32_t* words = reinterpret_cast<int32_t*>(block_shared + places.faults);
    words[kFaults] = words[kAgain] = 0;
    fence_async_shared();
  }
  sync_team();
  // Parameters come from afar the first time: one of each line that is needed below.
  if (threadIdx.x == 32 * kCodesJob) {
    int32_t* words = reinterpret_cast<int32_t*>(block_shared + places.faults);
    words[kNobody] = format.bits ^ format.fp16_values ^ call.k_heads ^ call.delta_rule ^
                     call.num_state_slots ^ call.batch ^ call.l2norm ^ call.weight_rows ^
                     plan.units ^ places.faults;
  }
  wait_for_previous_grid();
  launch_dependents();

#pragma unroll 1
  for (;;) {  // again behind a fold, to which nothing in registers is left: all is worked out anew
    char* shared = block_shared + fresh_copy(0);
    auto* words = reinterpret_cast<int32_t*>(shared + places.faults);
    const auto** at = reinterpret_cast<const char**>(shared + places.addresses);
    const uint32_t barriers = shared_address(shared + places.barriers);
    const auto barrier_of = [&](int32_t job) { return barriers + 8 * (job - kCodesJob); };
    const int32_t thread = fresh_copy(static_cast<int32_t>(threadIdx.x));
    const int32_t sequence = block_y();
    const int32_t v_head = block_x();
    const int32_t lane = thread & 31;
    const int32_t warp = __shfl_sync(kAll, thread >> 5, 0);
    const SmallHead head = {{{{{shared + plan.limbs, plan, lane, 0},
                               call,
                               shared,
                               warp < kReaders,
                               SmallHead::value_of(warp & (kReaders - 1), lane)}}}};
    // Asked for at once: the sequence's place, the head's inputs, what is checked.
    const char* about = at[lane & 3];
    int32_t told = call.tokens;
    if (about != nullptr) told = __ldg(reinterpret_cast<const int32_t*>(about));
    const bool again = words[kAgain] != 0;
    const uint2 k_raw = __ldg(reinterpret_cast<const uint2*>(at[kKey]) + lane);
    const uint2 q_raw = __ldg(reinterpret_cast<const uint2*>(at[kQuery]) + lane);
    uint32_t v_raw = 0;
    float beta = 1.0f;
    float decay = 0.0f;
    if (at[kDecay] != nullptr) decay = __ldg(reinterpret_cast<const float*>(at[kDecay]));
    if (warp >= kReaders) {
      v_raw = load_word_or_half(at[kValue] + 2 * head.place, true);
      if (at[kBeta] != nullptr) beta = __ldg(reinterpret_cast<const float*>(at[kBeta]));
    }
    uint32_t found = 0;
    if (warp < kReaders && !again) found = check(call, at, thread);

    Sequence128 s;
    s.index = sequence;
    s.slot = __shfl_sync(kAll, told, 0);
    s.window_slot = __shfl_sync(kAll, told, 1);
    s.position = __shfl_sync(kAll, told, 2);
    s.tokens = __shfl_sync(kAll, told, 3);
    // What needs no more than the slots is asked for first.
    const bool has_state = s.slot >= 0 && s.slot < call.num_state_slots;
    const int32_t* bases = call.base + int64_t{s.slot} * call.v_heads;
    int32_t base = 0;
    if (has_state && warp == kCorrectionsJob) {
      base = *reinterpret_cast<const volatile int32_t*>(bases + min(lane, call.v_heads - 1));
    }
    if (has_state && lane == 0 && (warp == kCodesJob || warp == kTailJob)) {
      const auto payload = static_cast<uint32_t>(folding_128::Fold::payload_of(format));
      const uint32_t from = warp == kCodesJob ? 0u : payload;
      const uint32_t bytes =
          warp == kCodesJob ? payload : static_cast<uint32_t>(format.bytes) - payload;
      barrier_expect(barrier_of(warp), bytes);
      bulk_copy(shared_address(shared) + from, at[kState] + s.slot * call.state_stride + from,
                bytes, barrier_of(warp));
    }
    judge(call, &s);
    const int32_t boundary = last_boundary_of<true>(call, v_head, s.position);
    int32_t first = boundary;  // where records start; of a head not due there or later
    if (again) first = max(first, words[kBase]);
    const int32_t records = s.position - first;
    const bool in_range = s.slot < call.num_state_slots && s.window_slot < call.num_window_slots;
    const bool reads = s.alive && in_range;
    if (!s.alive) found = 0;
    found |= s.alive && !in_range ? 4u : s.fault;
    if (!reads) found |= kUnusual;
    SmallHead::Pointers pointers;
    pointers.output = const_cast<char*>(at[kOutput]);
    pointers.slot = s.slot;
    pointers.window = call.windows + s.window_slot * call.window_stride;
    const auto rings = static_cast<int32_t>(
        (static_cast<uint64_t>(s.position) * places.ring_factor) >> places.ring_shift);
    pointers.ring = s.position - rings * call.ring_tokens;
    const uint32_t parity = again ? 1u : 0u;
    const float4 k = widen(k_raw, LEAPQUANT_BF16);
    const float4 q = widen(q_raw, LEAPQUANT_BF16);
    // The log decay of record `lane`. No branch around the load: nothing waits for it before its
    // use.
    const int32_t ring = head.ring_after(pointers.ring, lane - records);
    const float of_record = load_float_if(
        reads && warp == kTailJob && call.stored_decay != 0 && lane < records,
        pointers.window + (head.decays_at(v_head) + 4u * static_cast<uint32_t>(ring)));
    if (reads && warp >= kKeysJob && lane == 0) {
      const uint32_t barrier = barrier_of(warp);
      const bool keys = warp == kKeysJob;
      const auto front = 256u * static_cast<uint32_t>(format.num_fp16);
      const auto count = static_cast<uint32_t>(records);
      const uint32_t to = shared_address(shared + (keys ? plan.keys : plan.corrections));
      barrier_expect(barrier, front + 256u * count);
      if (front != 0) {
        bulk_copy(to,
                  at[kState] + s.slot * call.state_stride +
                      (keys ? format.fp16_keys : format.fp16_values),
                  front, barrier);
      }
      const char* rows =
          pointers.window + (keys ? head.keys_at(v_head) : head.corrections_at(v_head));
      const auto oldest = static_cast<uint32_t>(head.ring_after(pointers.ring, -records));
      const uint32_t run = min(count, static_cast<uint32_t>(call.ring_tokens) - oldest);
      if (run != 0) bulk_copy(to + front, rows + 256u * oldest, 256u * run, barrier);
      if (run != count) {
        bulk_copy(to + front + 256u * run, rows, 256u * (count - run), barrier);
      }
    }
    if (warp == kCodesJob) head.put_limbs(k, q);
    if (warp == kTailJob) {
      head.write_factors(of_record, records, format, head.factors(), head.units());
    }
    if (warp == kCorrectionsJob && reads && !again) {
      found |= check_slots(call, s, lane, 32);
#pragma unroll 1
      for (int32_t h = lane; h < call.v_heads; h += 32) {
        if (h >= 32) base = *reinterpret_cast<const volatile int32_t*>(bases + h);
        found |= check_position(call, s, base);
        if (h == v_head) {
          words[kBase] = base;
          if (base != first) found |= kUnusual;
        }
      }
    }
    // What is not usual: voted by those who look for it, told to the other warps of rows.
    uint32_t unusual = 0;
    if (warp < kReaders || warp == kCorrectionsJob) {
      if (found != 0) atomicOr(reinterpret_cast<uint32_t*>(words + kFaults), found);
      unusual = threads_any(kVerdictBarrier, 32 * (kReaders + 1), found != 0) ? 1u : 0u;
      if (warp == kCorrectionsJob && lane == 0) words[kVerdict] = static_cast<int32_t>(unusual);
    }
    if (warp >= kReaders) {
      sync_threads(kRowsBarrier, kThreads / 2);
      unusual = static_cast<uint32_t>(words[kVerdict]);
    }
    if (unusual != 0) {
      sync_team();
      const uint32_t faults = s.alive ? static_cast<uint32_t>(words[kFaults]) & ~kUnusual : s.fault;
#pragma unroll 1
      for (int32_t job = kCodesJob; job <= kCorrectionsJob; ++job) {
        if (job <= kTailJob ? has_state : reads) barrier_wait(barrier_of(job), parity);
      }
      if (!reads || faults != 0) {
        if (v_head == 0 && thread == 0) call.status[sequence] = status_of(faults);
        if (thread < 64) reinterpret_cast<uint32_t*>(pointers.output)[thread] = 0;
        return;
      }
      base = words[kBase];
      if (thread == 0) words[kAgain] = 1;
      sync_team();
      if (base < boundary) {
        fold_one<kFits, kKnown>(
            call, places.fold, shared,
            {sequence, v_head, s.slot, s.window_slot, s.position, 1, base, boundary});
        if (threadIdx.x == 0) words[kBase] = boundary;
        sync_team();
      }
      continue;
    }
    if (warp < kReaders) {
      head.read_block(k, q, warp,
                      reinterpret_cast<uint32_t*>(shared + places.planes + warp * kPlaneBytes),
                      barrier_of(kTailJob), barrier_of(kCodesJob), parity, format);
      if (warp == 1) head.put_lengths(k, q, decay);
      arrive_threads(kSumsBarrier, kThreads);
      if (warp == 1) {
        __syncwarp();
        head.store_key(pointers, v_head, k, decay);
      }
      if (v_head == 0 && thread == 0) call.status[sequence] = LEAPQUANT_OK;
      return;
    }
    barrier_wait(barrier_of(kTailJob), parity);
    float step[1];
    head.read_steps(shared + format.value_scale, format, step);
    barrier_wait(barrier_of(kKeysJob), parity);
    head.weigh_tiles(warp - kReaders, records, format);
    barrier_wait(barrier_of(kCorrectionsJob), parity);
    sync_threads(kRowsBarrier, kThreads / 2);
    float back;
    const float top = head.top_of_weights(&back);
    const float2 sums = head.sum_values(warp - kReaders, records, top, format);
    sync_threads(kSumsBarrier, kThreads);
    head.finish_value(pointers, v_head, sums, back, step[0], __uint_as_float(v_raw << 16), beta);
    return;
  }
}

}  // namespace leapquant::cuda::small_128
