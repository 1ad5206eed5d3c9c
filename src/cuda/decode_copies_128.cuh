// SPDX-License-Identifier: Apache-2.0
//
// What a head of the decode needs brought near: where its rows, records and boundary state lie, its
// inputs, and the copies of all this into shared memory, with the barriers that tell when they are
// there; a lane's part of a record. No arithmetic on states.
#pragma once

#include "cuda/decode_rows_128.cuh"

namespace leapquant::cuda::decoding_128 {

// kPlain: the common call; kMany: of several tokens, as every other call is taken to be.
template <bool kVector, int kPairs, bool kPlain, bool kMany>
struct HeadCopies : RowProducts<kPairs, kVector || !kPlain> {
  using Products = RowProducts<kPairs, kVector || !kPlain>;
  using Products::lane;
  using Products::plan;
  static constexpr int32_t kCount = 2 / kPairs;  // values a lane owns at the end
  // Everything of the next head is on its way as soon as this head has read what it takes the place
  // of; else, together, when all of it is read.
  static constexpr bool kStreams = kPlain && kPairs == 1;
  // Pairs of a block, each with a head of its own (decode_pairs_128.cuh).
  static constexpr bool kPooled = kStreams && !kMany;
  // One warp starts its pair's inputs.
  static constexpr bool kInputsByLanes = kPooled && !kVector;
  static constexpr int32_t kThreads = 64 * kPairs;
  static constexpr int32_t kInputArrivals = 33;  // one thread and one warp
  const Call128& call;
  char* shared;
  bool reads_codes;  // the warp's part
  int32_t place;     // of the lane's values: value = kCount * place

  // Of shared memory, by who reads them and when. Keys, with their decays, are apart from the other
  // rows with vector decays, whose records are weighed at a head's start.
  // Rows are what follows the codes, but for smoothing, and records; pools bring a boundary state
  // whole (kState), but for codes that come late. kNext: nothing yet, but the warp that reads codes
  // has time to see which head is next, before any part.
  enum Part { kInputs, kCodes, kKeys, kRows, kState, kRecords, kAllParts, kNext };

  __device__ __forceinline__ static int32_t decay_type(const Rows128& rows) {
    return kVector ? rows.type : scalar_type<kPlain>(rows);
  }
  __device__ __forceinline__ static int32_t type_of(const Rows128& rows) {
    return kPlain ? int32_t{LEAPQUANT_BF16} : rows.type;
  }
  __device__ __forceinline__ const HeadFormat128& format_at(int32_t v_head) const {
    return kPlain ? call.classes[0] : format_of(call, v_head);
  }

  struct Pointers {  // a sequence's rows, records and boundary states
    const char *q, *k, *v, *g, *beta;
    char *output, *window, *state;
    int32_t ring;  // place of the position in the ring
    int32_t slot;
  };
  __device__ __forceinline__ void write_pointers(const Sequence128& s, Pointers* p) const {
    p->q = row_of(call.q, s.index, 0, 0);
    p->k = row_of(call.k, s.index, 0, 0);
    p->v = row_of(call.v, s.index, 0, 0);
    p->g = row_of(call.log_decay, s.index, 0, 0);
    p->beta = row_of(call.beta, s.index, 0, 0);
    p->output = const_cast<char*>(row_of(call.output, s.index, 0, 0));
    p->window = call.windows + s.window_slot * call.window_stride;
    p->state = call.states + s.slot * call.state_stride;
    p->ring = s.position % call.ring_tokens;
    p->slot = s.slot;
  }
  // Place in the ring `steps` tokens on (at most a ring away).
  __device__ __forceinline__ int32_t ring_after(int32_t ring, int32_t steps) const {
    const int32_t to = ring + steps;
    return to < 0 ? to + call.ring_tokens : to >= call.ring_tokens ? to - call.ring_tokens : to;
  }
  // A row of a sequence. kPlain: all rows of it within 32 bits.
  __device__ __forceinline__ static const char* at(const char* from, const Rows128& rows, int32_t t,
                                                   int32_t head, uint32_t more = 0) {
    if constexpr (kPlain) {
      return from +
             (within(head, rows.head_stride) + (kMany ? within(t, rows.token_stride) : 0u) + more);
    }
    return from + t * rows.token_stride + head * rows.head_stride + more;
  }
  __device__ __forceinline__ static uint32_t within(int32_t head, int64_t stride) {
    return static_cast<uint32_t>(head) * static_cast<uint32_t>(stride);
  }
  __device__ __forceinline__ char* boundary_at(const Pointers& inputs, int32_t v_head) const {
    return inputs.state + (kPlain || call.num_classes == 1
                               ? within(v_head, call.classes[0].bytes)
                               : static_cast<uint32_t>(call.head_offset[v_head]) * 16u);
  }
  __device__ __forceinline__ uint32_t keys_at(int32_t v_head) const {
    return within(quotient<kPlain>(v_head, call.group), call.key_head_stride);
  }
  __device__ __forceinline__ uint32_t corrections_at(int32_t v_head) const {
    return static_cast<uint32_t>(call.corrections) + within(v_head, call.correction_head_stride);
  }
  __device__ __forceinline__ uint32_t decays_at(int32_t v_head) const {
    return static_cast<uint32_t>(call.log_decays) + within(v_head, call.decay_head_stride);
  }

  // The inputs of one token as they lie. Loaded a head ahead where the next head is known.
  struct Raw {
    uint4 q, k, g;
    uint32_t v[kCount];
    uint32_t beta;
  };
  __device__ __forceinline__ void load_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                              Raw* raw) const {
    const int32_t k_head = quotient<kPlain>(v_head, call.group);
    if constexpr (kPlain) {
      const uint32_t key = 8u * static_cast<uint32_t>(lane);
      const uint32_t value = 2u * kCount * static_cast<uint32_t>(place);
      const uint2 q = __ldg(reinterpret_cast<const uint2*>(at(rows.q, call.q, t, k_head, key)));
      const uint2 k = __ldg(reinterpret_cast<const uint2*>(at(rows.k, call.k, t, k_head, key)));
      raw->q.x = q.x, raw->q.y = q.y;
      raw->k.x = k.x, raw->k.y = k.y;
      raw->v[0] = load_word_or_half(at(rows.v, call.v, t, v_head, value), kCount == 1);
    } else {
      raw->q = load_raw(at(rows.q, call.q, t, k_head), call.q.type, lane);
      raw->k = load_raw(at(rows.k, call.k, t, k_head), call.k.type, lane);
      const char* v_row = at(rows.v, call.v, t, v_head);
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) {
        raw->v[i] = load_raw_one(v_row, call.v.type, kCount * place + i);
      }
    }
    if (call.beta.data != nullptr) {
      raw->beta = kPlain ? __ldg(reinterpret_cast<const uint32_t*>(
                               at(rows.beta, call.beta, t, 0, 4u * static_cast<uint32_t>(v_head))))
                         : load_raw_one(at(rows.beta, call.beta, t, 0), call.beta.type, v_head);
    }
    if constexpr (kVector) {
      raw->g = load_raw(at(rows.g, call.log_decay, t, v_head), decay_type(call.log_decay), lane);
    } else if (call.log_decay.data != nullptr) {
      raw->g.x = kPlain
                     ? __ldg(reinterpret_cast<const uint32_t*>(
                           at(rows.g, call.log_decay, t, 0, 4u * static_cast<uint32_t>(v_head))))
                     : load_raw_one(at(rows.g, call.log_decay, t, 0), call.log_decay.type, v_head);
    }
  }
  __device__ __forceinline__ void widen_values(const Raw& raw, float (&v)[kCount]) const {
    if constexpr (kPlain) {
      v[0] = __uint_as_float(raw.v[0] << 16);
      if constexpr (kCount == 2) v[1] = __uint_as_float(raw.v[0] & 0xffff0000u);
    } else {
#pragma unroll
      for (int32_t i = 0; i < kCount; ++i) v[i] = widen_one(raw.v[i], call.v.type);
    }
  }
  // Log decay of record `lane` of the n in the window (scalar decays).
  __device__ __forceinline__ float load_decay(const Pointers& inputs, int32_t v_head,
                                              int32_t n) const {
    if (kVector || call.stored_decay == 0) return 0.0f;
    const int32_t ring = ring_after(inputs.ring, lane - n);
    return load_float_if(lane < n, inputs.window + (decays_at(v_head) + 4u * ring));
  }

  // A head's turn in the block decides the phases of the barriers.
  __device__ __forceinline__ uint32_t barrier_of(int32_t which) const {
    return shared_address(shared + plan.barriers) + 8u * static_cast<uint32_t>(which);
  }
  __device__ __forceinline__ void wait_for_codes(uint32_t turn) const {
    barrier_wait(barrier_of(0), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_late_codes(uint32_t turn) const {
    barrier_wait(barrier_of(3), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_rows(uint32_t turn) const {
    barrier_wait(barrier_of(1), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_keys(uint32_t turn) const {
    if (kVector) barrier_wait(barrier_of(4), turn & 1u);
  }
  __device__ __forceinline__ void wait_for_inputs(uint32_t turn) const {
    if (kStreams) barrier_wait(barrier_of(2), turn & 1u);
  }
  __device__ __forceinline__ void init_barriers() const {  // one thread
    barrier_init(barrier_of(0), 1);
    barrier_init(barrier_of(1), 1);
    barrier_init(barrier_of(3), 1);
    barrier_init(barrier_of(4), 1);
    barrier_init(barrier_of(2), kInputsByLanes ? 32 : kInputArrivals);
  }

  // Inputs that lie in shared memory (kStreams).
  __device__ __forceinline__ void read_inputs(int32_t t, int32_t n, Raw* raw, float* decay) const {
    const char* from = shared + plan.inputs;
    const uint2 q = reinterpret_cast<const uint2*>(from)[lane];
    const uint2 k = reinterpret_cast<const uint2*>(from + kKeyInputAt)[lane];
    raw->q.x = q.x, raw->q.y = q.y;
    raw->k.x = k.x, raw->k.y = k.y;
    raw->v[0] = reinterpret_cast<const uint32_t*>(from + kValueInputAt)[place];
    const uint2 scalars = *reinterpret_cast<const uint2*>(from + kScalarsAt);
    raw->beta = scalars.x;
    if constexpr (kVector) {
      raw->g = load_shared_row(from + kDecaysAt);
    } else {
      raw->g.x = scalars.y;
      if (kMany && t > 0) return;
      *decay = call.stored_decay != 0 && lane < n
                   ? reinterpret_cast<const float*>(from + kDecaysAt)[lane]
                   : 0.0f;
    }
  }
  __device__ __forceinline__ uint4 load_shared_row(const char* row) const {
    uint4 raw = {};
    if (call.log_decay.type == LEAPQUANT_FP32) {
      raw = reinterpret_cast<const uint4*>(row)[lane];
    } else {
      const uint2 half = reinterpret_cast<const uint2*>(row)[lane];
      raw.x = half.x, raw.y = half.y;
    }
    return raw;
  }

  // Inputs of a head and token, where they stream; all threads.
  __device__ __forceinline__ void start_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                               int32_t n) const {
    static_assert(kStreams);
    const uint32_t to = shared_address(shared + plan.inputs);
    const uint32_t barrier = barrier_of(2);
    if (reads_codes && lane == 0) {
      const uint32_t decays = !kVector ? 0u : call.log_decay.type == LEAPQUANT_FP32 ? 512u : 256u;
      barrier_expect(barrier, 768u + decays);
      const int32_t k_head = quotient<kPlain>(v_head, call.group);
      bulk_copy(to, at(rows.q, call.q, t, k_head), 256, barrier);
      bulk_copy(to + kKeyInputAt, at(rows.k, call.k, t, k_head), 256, barrier);
      bulk_copy(to + kValueInputAt, at(rows.v, call.v, t, v_head), 256, barrier);
      if constexpr (kVector) {
        bulk_copy(to + kDecaysAt, at(rows.g, call.log_decay, t, v_head), decays, barrier);
      }
    }
    if (!reads_codes) {  // numbers, too small for bulk copies
      const uint32_t place_of_scalar = 4u * static_cast<uint32_t>(v_head);
      if (lane == 0 && call.beta.data != nullptr) {
        copy_4_async(to + kScalarsAt, at(rows.beta, call.beta, t, 0, place_of_scalar));
      }
      if constexpr (!kVector) {
        if (lane == 1 && call.log_decay.data != nullptr) {
          copy_4_async(to + kScalarsAt + 4, at(rows.g, call.log_decay, t, 0, place_of_scalar));
        }
        if (call.stored_decay != 0 && t == 0 && lane < n) {
          const int32_t ring = ring_after(rows.ring, lane - n);
          copy_4_async(to + kDecaysAt + 4u * static_cast<uint32_t>(lane),
                       rows.window + (decays_at(v_head) + 4u * static_cast<uint32_t>(ring)));
        }
      }
      barrier_arrive_copies(barrier);
    }
  }
  // Codes and smoothing; one thread.
  __device__ __forceinline__ void start_codes(const Pointers& rows, int32_t v_head,
                                              const HeadFormat128& format) const {
    const auto codes = static_cast<uint32_t>(format.value_scale);
    const auto smoothing = static_cast<uint32_t>(format.fp16_keys - format.smoothing_at);
    const char* from = boundary_at(rows, v_head);
    const uint32_t to = shared_address(shared);
    barrier_expect(barrier_of(0), codes + smoothing);
    bulk_copy(to, from, codes, barrier_of(0));
    if (smoothing != 0) {
      bulk_copy(to + format.smoothing_at, from + format.smoothing_at, smoothing, barrier_of(0));
    }
  }
  // The codes that come late, where the next ones lay; one thread.
  __device__ __forceinline__ void start_late_codes(const Pointers& rows, int32_t v_head,
                                                   const HeadFormat128& format) const {
    const auto late = static_cast<uint32_t>(late_bytes(format.bits));
    barrier_expect(barrier_of(3), late);
    bulk_copy(shared_address(shared) + late, boundary_at(rows, v_head), late, barrier_of(3));
  }
  // All of a boundary state but that; one thread.
  __device__ __forceinline__ void start_state(const Pointers& rows, int32_t v_head,
                                              const HeadFormat128& format) const {
    const auto late = static_cast<uint32_t>(late_bytes(format.bits));
    const uint32_t bytes = static_cast<uint32_t>(format.bytes) - late;
    barrier_expect(barrier_of(0), bytes);
    bulk_copy(shared_address(shared) + late, boundary_at(rows, v_head) + late, bytes,
              barrier_of(0));
  }
  // copy(done, ring, count) for the runs of n records before the sequence's position: from the
  // oldest to the ring's end, then from its start.
  template <typename Copy>
  __device__ __forceinline__ void for_records(const Pointers& rows, int32_t n, Copy copy) const {
    int32_t ring = ring_after(rows.ring, -n);
    uint32_t done = 0;
#pragma unroll 1
    while (n > 0) {
      const int32_t count = min(n, call.ring_tokens - ring);
      copy(done, static_cast<uint32_t>(ring), static_cast<uint32_t>(count));
      done += static_cast<uint32_t>(count);
      n -= count;
      ring = 0;
    }
  }
  // Keys of n records and their decays (vector decays); one thread.
  __device__ __forceinline__ void start_keys(const Pointers& rows, int32_t v_head,
                                             int32_t n) const {
    const uint32_t to = shared_address(shared);
    const uint32_t barrier = barrier_of(4);
    const uint32_t decay_row = 128u * static_cast<uint32_t>(call.decay_bytes);
    barrier_expect(barrier, static_cast<uint32_t>(n) * (256u + decay_row));
    for_records(rows, n, [&](uint32_t done, uint32_t ring, uint32_t count) {
      bulk_copy(to + plan.keys + 256 * done, rows.window + (keys_at(v_head) + 256u * ring),
                256u * count, barrier);
      bulk_copy(to + plan.decays + decay_row * done,
                rows.window + (decays_at(v_head) + decay_row * ring), decay_row * count, barrier);
    });
  }
  // Value scales and compensators; one thread.
  __device__ __forceinline__ void start_tail(const Pointers& rows, int32_t v_head,
                                             const HeadFormat128& format,
                                             uint32_t more_bytes = 0) const {
    const uint32_t to = shared_address(shared);
    const uint32_t barrier = barrier_of(1);
    const uint32_t rest = static_cast<uint32_t>(format.bytes - format.fp16_keys);
    const auto scales = static_cast<uint32_t>(format.smoothing_at - format.value_scale);
    const char* boundary = boundary_at(rows, v_head);
    barrier_expect(barrier, scales + rest + more_bytes);
    bulk_copy(to + format.value_scale, boundary + format.value_scale, scales, barrier);
    if (rest != 0) bulk_copy(to + format.fp16_keys, boundary + format.fp16_keys, rest, barrier);
  }
  // What n records have besides decays, with vector decays besides keys; one thread.
  __device__ __forceinline__ void copy_records(const Pointers& rows, int32_t v_head,
                                               int32_t n) const {
    const uint32_t to = shared_address(shared);
    const uint32_t barrier = barrier_of(1);
    for_records(rows, n, [&](uint32_t done, uint32_t ring, uint32_t count) {
      if constexpr (!kVector) {
        bulk_copy(to + plan.keys + 256 * done, rows.window + (keys_at(v_head) + 256u * ring),
                  256u * count, barrier);
      }
      bulk_copy(to + plan.corrections + 256 * done,
                rows.window + (corrections_at(v_head) + 256u * ring), 256u * count, barrier);
    });
  }
  __device__ __forceinline__ static uint32_t record_bytes(int32_t n) {
    return static_cast<uint32_t>(n) * (kVector ? 256u : 512u);
  }
  __device__ __forceinline__ void start_records(const Pointers& rows, int32_t v_head,
                                                int32_t n) const {
    barrier_expect(barrier_of(1), record_bytes(n));
    copy_records(rows, v_head, n);
  }
  // Both; one thread.
  __device__ __forceinline__ void start_rows(const Pointers& rows, int32_t v_head, int32_t n,
                                             const HeadFormat128& format) const {
    start_tail(rows, v_head, format, record_bytes(n));
    copy_records(rows, v_head, n);
  }
  // Inputs of a head as start_inputs brings them, by sixteen bytes a lane (kInputsByLanes), so that
  // one warp starts all; the check has left them in the second cache level.
  __device__ __forceinline__ void start_inputs_by_lanes(const Pointers& rows, int32_t v_head,
                                                        int32_t n) const {
    const uint32_t to = shared_address(shared + plan.inputs);
    const int32_t k_head = quotient<kPlain>(v_head, call.group);
    const auto piece = 16u * static_cast<uint32_t>(lane & 15);
    const bool upper = lane >= 16;
    const char* first = upper ? at(rows.k, call.k, 0, k_head) : at(rows.q, call.q, 0, k_head);
    copy_16_async(to + (upper ? static_cast<uint32_t>(kKeyInputAt) : 0u) + piece, first + piece);
    if (!upper) {
      copy_16_async(to + kValueInputAt + piece, at(rows.v, call.v, 0, v_head) + piece);
    }
    const uint32_t scalar = 4u * static_cast<uint32_t>(v_head);
    if (lane == 16 && call.beta.data != nullptr) copy_4_async(to + kScalarsAt, rows.beta + scalar);
    if (lane == 17 && call.log_decay.data != nullptr) {
      copy_4_async(to + kScalarsAt + 4, rows.g + scalar);
    }
    if (call.stored_decay != 0 && lane < n) {
      const auto ring = static_cast<uint32_t>(ring_after(rows.ring, lane - n));
      copy_4_async(to + kDecaysAt + 4u * static_cast<uint32_t>(lane),
                   rows.window + (decays_at(v_head) + 4u * ring));
    }
    barrier_arrive_copies(barrier_of(2));
  }

  // Values of this lane, and its part of a record's rows.
  template <typename T>
  __device__ __forceinline__ static void load_values(const T* from, T (&to)[kCount]) {
    if constexpr (kCount == 2) {
      struct alignas(8) Two {
        T a, b;
      };
      const Two two = *reinterpret_cast<const Two*>(from);
      to[0] = two.a, to[1] = two.b;
    } else {
      to[0] = from[0];
    }
  }

  __device__ __forceinline__ void store_correction(char* row, uint32_t bits) const {
    if constexpr (kCount == 2) {
      reinterpret_cast<uint32_t*>(row)[place] = bits;
    } else {
      reinterpret_cast<unsigned short*>(row)[place] = static_cast<unsigned short>(bits);
    }
  }

  __device__ __forceinline__ void store_decays(char* row, float4 g) const {
    if (call.decay_bytes == 4) {
      *reinterpret_cast<float4*>(row + 16 * lane) = g;
      return;
    }
    const __half h[4] = {decay_to_half(g.x), decay_to_half(g.y), decay_to_half(g.z),
                         decay_to_half(g.w)};
    *reinterpret_cast<uint2*>(row + 8 * lane) =
        make_uint2(__half_as_ushort(h[0]) | static_cast<uint32_t>(__half_as_ushort(h[1])) << 16,
                   __half_as_ushort(h[2]) | static_cast<uint32_t>(__half_as_ushort(h[3])) << 16);
  }
};

}  // namespace leapquant::cuda::decoding_128
