// SPDX-License-Identifier: Apache-2.0
//
// Where a head that is folded comes from, and the copies that bring it: its records, where these
// have a place in shared memory, and its boundary state. By one thread; by five lanes, which takes
// less code; or by five lanes along routes noted before, where all heads have one format.
#pragma once

#include <cstdint>

#include "cuda/call_128.cuh"
#include "cuda/fold_state_128.cuh"
#include "cuda/ptx.cuh"

namespace leapquant::cuda::folding_128 {

// A head that is due, as shared memory keeps it until its turn.
struct Item {
  int32_t sequence, v_head, slot, window_slot, position, tokens, base, boundary;
};

// One of a head's copies, as it is for all heads of a call of one format: keys, corrections and
// decays of its records, codes of its state and what follows them.
struct Route {
  const char* from;
  int64_t per_slot;
  uint32_t per_head, bytes;
  uint32_t to, to_second;  // places in shared memory, of even and of odd turns
  uint32_t shift;          // heads that share it: 2^shift
  uint32_t others;         // bytes of the copies that this one announces besides
};
constexpr int32_t kRoutes = 5;

template <bool kVector, bool kPlain>
struct Copies {
  const Call128& call;
  const Plan& plan;
  char* shared;
  uint32_t barrier;  // counts the bytes of the boundary state; behind it one for the records

  __device__ __forceinline__ void start_state(const Item& item, int32_t at) const {
    const HeadFormat128& format = kPlain ? call.classes[0] : format_of(call, item.v_head);
    const char* from = boundary_of(call, item.slot, item.v_head);
    const auto codes = static_cast<uint32_t>(FoldState::payload_of(format));
    const uint32_t tail = static_cast<uint32_t>(format.bytes) - codes;
    barrier_expect(barrier, static_cast<uint32_t>(format.bytes));
    bulk_copy(shared_address(shared + plan.codes + at * plan.codes_apart), from, codes, barrier);
    if (tail != 0) {
      bulk_copy(shared_address(shared + plan.tails + at * plan.tail_bytes), from + codes, tail,
                barrier);
    }
  }

  // A head's rings in its window.
  __device__ __forceinline__ const char* keys_of(const Item& item) const {
    return call.windows + item.window_slot * call.window_stride +
           quotient<kPlain>(item.v_head, call.group) * call.key_head_stride;
  }
  __device__ __forceinline__ const char* corrections_of(const Item& item) const {
    return call.windows + item.window_slot * call.window_stride + call.corrections +
           item.v_head * call.correction_head_stride;
  }
  __device__ __forceinline__ const char* decays_of(const Item& item) const {
    return call.windows + item.window_slot * call.window_stride + call.log_decays +
           item.v_head * call.decay_head_stride;
  }
  // Copies of all three where records have a place. Where decays begin between two blocks of 16
  // bytes, these are copied whole.
  __device__ __forceinline__ void start_records(const Item& item) const {
    const auto bytes = static_cast<uint32_t>(call.ring_tokens) * 256u;
    if (plan.staged == 0) {
      prefetch_bulk(keys_of(item), bytes);
      prefetch_bulk(corrections_of(item), bytes);
      return;
    }
    const uint32_t to = shared_address(shared + plan.records);
    const char* decays = decays_of(item);
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(decays)) & 15u;
    const uint32_t decay_bytes =
        kVector || call.stored_decay == 0
            ? 0u
            : (before + 4u * static_cast<uint32_t>(call.ring_tokens) + 15u) & ~15u;
    barrier_expect(barrier + 8, 2 * bytes + decay_bytes);
    bulk_copy(to, keys_of(item), bytes, barrier + 8);
    bulk_copy(to + bytes, corrections_of(item), bytes, barrier + 8);
    if (decay_bytes != 0) bulk_copy(to + 2 * bytes, decays - before, decay_bytes, barrier + 8);
  }
  // Starts copies of a head, by a warp, a lane each: keys, corrections and decays of its
  // records where these have a place, codes of its state and what follows them. Where decays begin
  // between two blocks of 16 bytes, these are copied whole.
  __device__ __forceinline__ void start_by_lanes(const Item& item, int32_t at, bool records,
                                                 bool state) const {
    const int32_t lane = fresh_copy(static_cast<int32_t>(threadIdx.x)) & 31;
    const HeadFormat128& format = kPlain ? call.classes[0] : format_of(call, item.v_head);
    const auto ring = static_cast<uint32_t>(call.ring_tokens) * 256u;
    const auto codes = static_cast<uint32_t>(FoldState::payload_of(format));
    const bool of_window = lane < 3;
    const int64_t first = lane == 1 ? call.corrections : lane == 2 ? call.log_decays : 0;
    int64_t stride = lane == 0   ? call.key_head_stride
                     : lane == 1 ? call.correction_head_stride
                                 : call.decay_head_stride;
    int32_t index = lane == 0 ? quotient<kPlain>(item.v_head, call.group) : item.v_head;
    if (!of_window) {
      const bool one = kPlain || call.num_classes == 1;
      stride = one ? format.bytes : 16;
      index = one ? item.v_head : call.head_offset[item.v_head];
    }
    const char* from = (of_window ? call.windows : call.states) + first + index * stride +
                       int64_t{of_window ? item.window_slot : item.slot} *
                           (of_window ? call.window_stride : call.state_stride);
    uint32_t bytes = ring;
    uint32_t to = shared_address(shared + plan.records);
    if (lane == 1) to += ring;
    if (lane == 2) {
      const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 15u;
      from -= before;
      to += 2 * ring;
      bytes = kVector || call.stored_decay == 0
                  ? 0u
                  : (before + 4u * static_cast<uint32_t>(call.ring_tokens) + 15u) & ~15u;
      if (records && plan.staged != 0) barrier_expect(barrier + 8, 2 * ring + bytes);
    } else if (lane == 3) {
      bytes = codes;
      to = shared_address(shared + plan.codes + at * plan.codes_apart);
      if (state) barrier_expect(barrier, static_cast<uint32_t>(format.bytes));
    } else if (lane == 4) {
      bytes = static_cast<uint32_t>(format.bytes) - codes;
      from += codes;
      to = shared_address(shared + plan.tails + at * plan.tail_bytes);
    }
    if (bytes == 0 || lane > 4 || !(of_window ? records : state)) return;
    if (of_window && plan.staged == 0) {
      if (lane < 2) prefetch_bulk(from, bytes);
    } else {
      bulk_copy(to, from, bytes, of_window ? barrier + 8 : barrier);
    }
  }

  // Notes the routes, a lane each, where keys are shared by 2^n heads.
  __device__ __forceinline__ void note_routes(Route* routes) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) & 31;
    if (lane >= kRoutes) return;
    const HeadFormat128& format = call.classes[0];
    const uint32_t records = shared_address(shared + plan.records);
    const auto ring = static_cast<uint32_t>(call.ring_tokens) * 256u;
    const auto codes = static_cast<uint32_t>(FoldState::payload_of(format));
    const auto tail = static_cast<uint32_t>(format.bytes) - codes;
    const auto head = static_cast<uint32_t>(format.bytes);
    Route r = {};
    if (lane == 0) {
      r = {call.windows,
           call.window_stride,
           static_cast<uint32_t>(call.key_head_stride),
           ring,
           records,
           records,
           31u - static_cast<uint32_t>(__clz(call.group)),
           0u};
    } else if (lane == 1) {
      r = {call.windows + call.corrections,
           call.window_stride,
           static_cast<uint32_t>(call.correction_head_stride),
           ring,
           records + ring,
           records + ring,
           0u,
           0u};
    } else if (lane == 2) {
      const bool copied = !kVector && call.stored_decay != 0;
      r = {call.windows + call.log_decays,
           call.window_stride,
           static_cast<uint32_t>(call.decay_head_stride),
           copied ? 4u * static_cast<uint32_t>(call.ring_tokens) : 0u,
           records + 2 * ring,
           records + 2 * ring,
           0u,
           2 * ring};
    } else if (lane == 3) {
      r = {call.states,
           call.state_stride,
           head,
           codes,
           shared_address(shared + plan.codes),
           shared_address(shared + plan.codes + plan.codes_apart),
           0u,
           tail};
    } else {
      r = {call.states + codes,
           call.state_stride,
           head,
           tail,
           shared_address(shared + plan.tails),
           shared_address(shared + plan.tails + plan.tail_bytes),
           0u,
           0u};
    }
    routes[lane] = r;
  }
  // Starts all copies of a head by routes, by a warp. Where decays begin between two blocks of 16
  // bytes, these are copied whole.
  __device__ __forceinline__ void start_by_routes(const Route* routes, const Item& item,
                                                  int32_t at) const {
    const int32_t lane = fresh_copy(static_cast<int32_t>(threadIdx.x)) & 31;
    if (lane >= kRoutes) return;
    const Route r = routes[lane];
    const bool of_window = lane < 3;
    const char* from = r.from +
                       uint64_t{static_cast<uint32_t>(item.v_head) >> r.shift} * r.per_head +
                       (of_window ? item.window_slot : item.slot) * r.per_slot;
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 15u;
    const uint32_t bytes = r.bytes == 0 ? 0u : (before + r.bytes + 15u) & ~15u;
    const uint32_t full = of_window ? barrier + 8 : barrier;
    if (r.others != 0) barrier_expect(full, r.others + bytes);
    if (bytes != 0) bulk_copy(at == 0 ? r.to : r.to_second, from - before, bytes, full);
  }

  // A head's records by number, from wherever they are.
  struct Window {
    const Copies& copies;
    const Item& item;
    int32_t start;  // place in the ring of the first
    __device__ __forceinline__ int32_t place_of(int32_t record) const {
      const int32_t place = start + record;
      return place < copies.call.ring_tokens ? place : place - copies.call.ring_tokens;
    }
    __device__ __forceinline__ const char* staged(int32_t at) const {
      return copies.shared + copies.plan.records + at;
    }
    __device__ __forceinline__ uint2 key(int32_t record, int32_t lane) const {
      const int32_t at = 256 * place_of(record) + 8 * lane;
      if (copies.plan.staged != 0) return *reinterpret_cast<const uint2*>(staged(at));
      return *reinterpret_cast<const uint2*>(copies.keys_of(item) + at);
    }
    __device__ __forceinline__ uint2 correction(int32_t record, int32_t lane) const {
      const int32_t at = 256 * place_of(record) + 8 * lane;
      if (copies.plan.staged != 0) {
        return *reinterpret_cast<const uint2*>(staged(256 * copies.call.ring_tokens + at));
      }
      return *reinterpret_cast<const uint2*>(copies.corrections_of(item) + at);
    }
    __device__ __forceinline__ float decay(int32_t record) const {
      if (copies.call.stored_decay == 0) return 0.0f;
      const char* from = copies.decays_of(item);
      const int32_t at = 4 * place_of(record);
      if (copies.plan.staged == 0) return *reinterpret_cast<const float*>(from + at);
      const auto before = static_cast<int32_t>(reinterpret_cast<uintptr_t>(from) & 15u);
      return *reinterpret_cast<const float*>(staged(512 * copies.call.ring_tokens + before + at));
    }
  };
};

}  // namespace leapquant::cuda::folding_128
