// SPDX-License-Identifier: Apache-2.0
//
// What a head's decode knows before its payload is read: rows of the records, read vectors, and the
// factors with which records and compensators enter every read. Every sum has one order, whatever
// the number of tokens.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_DECODE_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_DECODE_FACTORS_INL_H_
#undef LEAPQUANT_CPU_DECODE_FACTORS_INL_H_
#else
#define LEAPQUANT_CPU_DECODE_FACTORS_INL_H_
#endif

#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/decode_ahead.h"
#include "cpu/decode_head.h"
#include "cpu/records-inl.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// The class of a layout's head with the padded sizes at hand.
struct HeadContext {
  HeadCall& call;
  const Layout& layout;
  const BoundaryLayout& head;
  const DecodeShape shape;
  const DecodeScratch& scratch;
  int32_t reads;         // read vectors per token in use
  int32_t first_output;  // index of the output's read vector: sub-steps before it read for u
  int32_t ring_records;  // records base .. position-1

  HeadContext(HeadCall& head_call, const DecodeScratch& memory)
      : call(head_call),
        layout(head_call.layout),
        head(head_call.layout.head(head_call.v_head)),
        shape(head_call.layout),
        scratch(memory),
        reads((head_call.layout.shape.delta_rule != 0 ? shape.steps : 0) + 1),
        first_output(reads - 1),
        ring_records((head_call.position - head_call.base) * shape.steps) {}

  bool vector_decay() const { return layout.shape.decay == LEAPQUANT_DECAY_VECTOR; }
  int32_t records_at(int32_t t) const { return ring_records + t * shape.steps; }
  float* read(int32_t t, int32_t s) const {
    return scratch.read + static_cast<int64_t>(t * reads + s) * shape.key;
  }
  float* record_factors(int32_t t, int32_t s) const {
    return scratch.record_factors + static_cast<int64_t>(t * reads + s) * shape.records;
  }
};

// Log decays as the window will hold them; FP16 ones saturate at -65504, -infinity stays.
inline void round_decays(const HeadContext& c) {
  const FloatTag d;
  if (!c.vector_decay()) {
    std::memcpy(c.scratch.stored_decay, c.scratch.log_decay,
                static_cast<size_t>(c.call.tokens) * sizeof(float));
    return;
  }
  const int32_t count = c.call.tokens * c.shape.key;
  if (c.layout.window.decay_bytes == 4) {
    std::memcpy(c.scratch.stored_decay, c.scratch.log_decay,
                static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto least = hn::Set(d, -65504.0f);
  for (int32_t i = 0; i < count; i += kLanes) {
    const auto g = hn::Load(d, c.scratch.log_decay + i);
    alignas(64) uint16_t half[16];
    store_fp16(hn::Max(g, least), half);
    const auto infinite = hn::Eq(g, hn::Set(d, -std::numeric_limits<float>::infinity()));
    hn::Store(hn::IfThenElse(infinite, g, load_fp16(half)), d, c.scratch.stored_decay + i);
  }
}

// Rows of the records that the call reads: the ring's, then the call's own as they will be stored.
inline void gather_rows(const HeadContext& c) {
  const int32_t steps = c.shape.steps;
  const int32_t k_dim = c.layout.shape.head_k_dim;
  const int32_t v_dim = c.layout.shape.head_v_dim;
  const int32_t ring_end = c.layout.window.ring_tokens * steps;
  int32_t record = c.call.base % c.layout.window.ring_tokens * steps;
  for (int32_t m = 0; m < c.ring_records; ++m, ++record) {
    if (record == ring_end) record = 0;
    c.scratch.keys[m] = padded_row(c.call.window.keys + int64_t{record} * k_dim, k_dim,
                                   c.scratch.ring_keys + static_cast<int64_t>(m) * c.shape.key);
    c.scratch.corrections[m] =
        padded_row(c.call.window.corrections + int64_t{record} * v_dim, v_dim,
                   c.scratch.ring_u + static_cast<int64_t>(m) * c.shape.value);
  }
  for (int32_t m = 0; m < c.call.tokens * steps; ++m) {
    c.scratch.keys[c.ring_records + m] =
        c.scratch.stored_keys + static_cast<int64_t>(m) * c.shape.key;
    c.scratch.corrections[c.ring_records + m] =
        c.scratch.stored_u + static_cast<int64_t>(m) * c.shape.value;
  }
}

// exp of token t's own log decay times a vector, or the vector itself.
inline void decayed(const HeadContext& c, int32_t t, const float* vector, float* result) {
  const FloatTag d;
  const int32_t stride = c.shape.key;
  if (c.vector_decay()) {
    const float* g = c.scratch.log_decay + static_cast<int64_t>(t) * stride;
    for (int32_t i = 0; i < stride; i += kLanes) {
      hn::Store(hn::Mul(decay_factor(hn::Load(d, g + i)), hn::Load(d, vector + i)), d, result + i);
    }
    return;
  }
  const auto factor = decay_factor(hn::Set(d, c.scratch.log_decay[t]));
  for (int32_t i = 0; i < stride; i += kLanes) {
    hn::Store(hn::Mul(factor, hn::Load(d, vector + i)), d, result + i);
  }
}

// Read vectors of every token.
inline void make_reads(const HeadContext& c) {
  const int32_t steps = c.shape.steps;
  const bool given = c.call.inputs.read_key.data != nullptr;
  for (int32_t t = 0; t < c.call.tokens; ++t) {
    for (int32_t s = 0; s < c.first_output; ++s) {
      const float* source = (given ? c.scratch.read_key : c.scratch.k) +
                            static_cast<int64_t>(t * steps + s) * c.shape.key;
      if (s == 0 && given) {
        std::memcpy(c.read(t, s), source, static_cast<size_t>(c.shape.key) * sizeof(float));
      } else {
        decayed(c, t, source, c.read(t, s));
      }
    }
    const float* q = c.scratch.q + static_cast<int64_t>(t) * c.shape.key;
    if (c.call.inputs.read_before_update != 0) {
      std::memcpy(c.read(t, c.first_output), q, static_cast<size_t>(c.shape.key) * sizeof(float));
    } else {
      decayed(c, t, q, c.read(t, c.first_output));
    }
  }
}

// Lines of the next head's memory that are fetched beside the work on four records or compensators.
// Bursts would fill the queue of outstanding misses and stop the work; the payload's loop alone
// would be too short for all of them.
inline constexpr int32_t kLinesPerGroup = 14;
// The same beside the work on one vector of columns.
inline constexpr int32_t kLinesPerVector = 8;

HWY_INLINE FloatVec load_stored(const uint16_t* p) { return load_fp16(p); }
HWY_INLINE FloatVec load_stored(const int8_t* p) { return load_int8(p); }

// factors[n][m] = <keys[m], vectors[n]> for four rows of FP16 or int8 and kCount vectors.
template <int32_t kCount, class T>
HWY_INLINE void four_dots(const T* const* keys, const float* vectors, int32_t stride,
                          float* factors, int32_t factor_stride) {
  const FloatTag d;
  const hn::FixedTag<float, 4> four;
  FloatVec sum[kCount][4];
  for (int32_t n = 0; n < kCount; ++n) {
    for (int32_t m = 0; m < 4; ++m) sum[n][m] = hn::Zero(d);
  }
  const T* key0 = keys[0];
  const T* key1 = keys[1];
  const T* key2 = keys[2];
  const T* key3 = keys[3];
  for (int32_t i = 0; i < stride; i += kLanes) {
    const FloatVec w[4] = {load_stored(key0 + i), load_stored(key1 + i), load_stored(key2 + i),
                           load_stored(key3 + i)};
    for (int32_t n = 0; n < kCount; ++n) {
      const auto x = hn::Load(d, vectors + n * stride + i);
      for (int32_t m = 0; m < 4; ++m) sum[n][m] = hn::MulAdd(w[m], x, sum[n][m]);
    }
  }
  for (int32_t n = 0; n < kCount; ++n) {
    hn::StoreU(sum_four(sum[n][0], sum[n][1], sum[n][2], sum[n][3]), four,
               factors + n * factor_stride);
  }
}

// Calls kernel(first, integral_constant) over `count` vectors in groups of three, two or one.
template <class Kernel>
HWY_INLINE void in_threes(int32_t count, const Kernel& kernel) {
  int32_t first = 0;
  // Four are two and two: a single one leaves the units idle.
  while (count - first >= 3 && count - first != 4) {
    kernel(first, std::integral_constant<int32_t, 3>());
    first += 3;
  }
  for (; count - first >= 2; first += 2) kernel(first, std::integral_constant<int32_t, 2>());
  if (first < count) kernel(first, std::integral_constant<int32_t, 1>());
}

// factors[n][first..last) = <keys[m], vectors[n]>; entries up to the next multiple of four are
// written too, with the last record's value.
inline void record_dots(const HeadContext& c, int32_t first, int32_t last, const float* vectors,
                        float* factors, Ahead* ahead) {
  for (int32_t m = first; m < last; m += 4) {
    ahead->fetch(kLinesPerGroup);
    const uint16_t* keys[4];
    for (int32_t r = 0; r < 4; ++r) keys[r] = c.scratch.keys[m + r < last ? m + r : last - 1];
    in_threes(c.reads, [&](int32_t n, auto size) {
      constexpr int32_t kCount = decltype(size)::value;
      alignas(16) float four[kCount * 4];
      four_dots<kCount>(keys, vectors + static_cast<int64_t>(n) * c.shape.key, c.shape.key, four,
                        4);
      for (int32_t v = 0; v < kCount; ++v) {
        for (int32_t r = 0; r < 4 && m + r < last; ++r) {
          factors[static_cast<int64_t>(n + v) * c.shape.records + m + r] = four[v * 4 + r];
        }
      }
    });
  }
}

// Log decay of a token before t of the call, as stored; scalar.
inline float scalar_decay(const HeadContext& c, int32_t token) {
  return token >= c.call.position
             ? c.scratch.stored_decay[token - c.call.position]
             : stored_scalar_decay(c.layout, c.call.window, c.call.v_head, token);
}

// Factors of the records that token t reads, and its scaled read vectors exp(H) r.
inline void record_factors_scalar(const HeadContext& c, int32_t t, Ahead* ahead) {
  const FloatTag d;
  const int32_t steps = c.shape.steps;
  const int32_t records = c.records_at(t);
  if (records > 0) record_dots(c, 0, records, c.read(t, 0), c.record_factors(t, 0), ahead);
  float later = 0.0f;
  // exp of sixteen sums at a time: newest token first.
  const int32_t tokens = records / steps;
  for (int32_t newest = tokens; newest > 0;) {
    alignas(64) float sums[16] = {0};
    const int32_t now = newest < kLanes ? newest : kLanes;
    for (int32_t l = 0; l < now; ++l) {
      sums[l] = later;
      later += scalar_decay(c, c.call.base + newest - 1 - l);
    }
    hn::Store(decay_factor(hn::Load(d, sums)), d, sums);
    for (int32_t l = 0; l < now; ++l) {
      for (int32_t j = 0; j < steps; ++j) {
        const int32_t m = (newest - 1 - l) * steps + j;
        for (int32_t s = 0; s < c.reads; ++s) c.record_factors(t, s)[m] *= sums[l];
      }
    }
    newest -= now;
  }
  const auto factor = decay_factor(hn::Set(d, later));
  for (int32_t s = 0; s < c.reads; ++s) {
    const float* read = c.read(t, s);
    float* scaled = c.scratch.scaled + (read - c.scratch.read);
    for (int32_t i = 0; i < c.shape.key; i += kLanes) {
      hn::Store(hn::Mul(factor, hn::Load(d, read + i)), d, scaled + i);
    }
  }
}

inline void record_factors_vector(const HeadContext& c, int32_t t, Ahead* ahead) {
  const FloatTag d;
  const int32_t steps = c.shape.steps;
  const int32_t stride = c.shape.key;
  float* later = c.scratch.later;
  float* weighted = c.scratch.weighted;
  std::memcpy(weighted, c.read(t, 0), static_cast<size_t>(c.reads * stride) * sizeof(float));
  for (int32_t i = 0; i < stride; i += kLanes) hn::Store(hn::Zero(d), d, later + i);
  for (int32_t token = c.call.position + t - 1; token >= c.call.base; --token) {
    const int32_t first = (token - c.call.base) * steps;
    record_dots(c, first, first + steps, weighted, c.record_factors(t, 0), ahead);
    const float* g = c.scratch.weight;
    if (token >= c.call.position) {
      g = c.scratch.stored_decay + static_cast<int64_t>(token - c.call.position) * stride;
    } else {
      stored_vector_decay(c.layout, c.call.window, token, c.scratch.weight);
    }
    for (int32_t i = 0; i < stride; i += kLanes) {
      const auto sum = hn::Add(hn::Load(d, later + i), hn::Load(d, g + i));
      hn::Store(sum, d, later + i);
      const auto factor = decay_factor(sum);
      for (int32_t s = 0; s < c.reads; ++s) {
        hn::Store(hn::Mul(factor, hn::Load(d, c.read(t, s) + i)), d, weighted + s * stride + i);
      }
    }
  }
  std::memcpy(c.scratch.scaled + (c.read(t, 0) - c.scratch.read), weighted,
              static_cast<size_t>(c.reads * stride) * sizeof(float));
}

// One side of the compensators as the read path wants it: FP16 rows, then rows of int8 codes.
struct RankRows {
  const uint16_t* half[kMaxDecodeRank + 4];
  const int8_t* codes[kMaxDecodeRank + 4];  // from num_fp16 on
};

// INT4 rows are unpacked to scratch, which the other side's rows then reuse.
inline void rank_rows(const HeadContext& c, Side side, RankRows* rows) {
  const int32_t rank = c.head.rank;
  const int32_t num_fp16 = c.head.format.num_fp16;
  for (int32_t r = 0; r < rank; ++r) {
    const VectorPlace place = vector_place(c.head, side, r);
    const std::byte* data = c.call.boundary + place.data;
    const int64_t spare = static_cast<int64_t>(r) * std::max(c.shape.key, c.shape.value);
    if (place.bits == 16) {
      rows->half[r] = padded_row(reinterpret_cast<const uint16_t*>(data), place.count,
                                 c.scratch.rank_halves + spare);
    } else if (place.bits == 8 && place.count % 16 == 0) {
      rows->codes[r] = reinterpret_cast<const int8_t*>(data);
    } else {
      int8_t* codes = c.scratch.rank_codes + spare;
      unpack_row(reinterpret_cast<const uint8_t*>(data), place.count, place.bits, codes);
      for (int32_t i = place.count; i % 16 != 0; ++i) codes[i] = 0;
      rows->codes[r] = codes;
    }
  }
  for (int32_t r = num_fp16; r % 4 != 0 && num_fp16 > 0; ++r) rows->half[r] = rows->half[0];
  for (int32_t r = rank; r < rank + 3 && rank > num_fp16; ++r) {
    rows->codes[r] = rows->codes[num_fp16];
  }
}

// rank_factors[n][r] = <decoded key side r, scaled[n]> times the value side's scale, so that value
// sides are added as codes. rank_offsets[n]: what the halves of INT4 value codes add up to.
inline void rank_factors(const HeadContext& c, Ahead* ahead) {
  const FloatTag d;
  const int32_t rank = c.head.rank;
  const int32_t num_fp16 = c.head.format.num_fp16;
  const int32_t first_int4 = num_fp16 + c.head.format.num_int8;
  const int32_t stride = c.shape.key;
  if (rank == 0) return;
  RankRows rows;
  rank_rows(c, Side::kKey, &rows);
  const auto dots = [&](const auto* const* four, int32_t r, int32_t last) {
    ahead->fetch(kLinesPerGroup);
    in_threes(c.call.tokens * c.reads, [&](int32_t n, auto size) {
      constexpr int32_t kCount = decltype(size)::value;
      alignas(16) float result[kCount * 4];
      four_dots<kCount>(four, c.scratch.scaled + static_cast<int64_t>(n) * stride, stride, result,
                        4);
      for (int32_t v = 0; v < kCount; ++v) {
        float* factors = c.scratch.rank_factors + static_cast<int64_t>(n + v) * c.shape.rank;
        for (int32_t l = 0; l < 4 && r + l < last; ++l) factors[r + l] = result[v * 4 + l];
      }
    });
  };
  for (int32_t r = 0; r < num_fp16; r += 4) dots(rows.half + r, r, num_fp16);
  for (int32_t r = num_fp16; r < rank; r += 4) dots(rows.codes + r, r, rank);
  if (rank == num_fp16) return;
  for (int32_t n = 0; n < c.call.tokens * c.reads; ++n) {
    const float* x = c.scratch.scaled + static_cast<int64_t>(n) * stride;
    float* factors = c.scratch.rank_factors + static_cast<int64_t>(n) * c.shape.rank;
    auto sum = hn::Zero(d);
    for (int32_t i = 0; i < stride; i += kLanes) sum = hn::Add(sum, hn::Load(d, x + i));
    const float half_sum = 0.5f * sum_of_lanes(sum);
    float offset = 0.0f;
    for (int32_t r = num_fp16; r < rank; ++r) {
      const int64_t at = int64_t{2} * (r - num_fp16);
      const float key_scale = scale_at(c.call.boundary, c.head.key_scales + at);
      const float value_scale = scale_at(c.call.boundary, c.head.value_scales + at);
      const float decoded = factors[r] + (r >= first_int4 ? half_sum : 0.0f);
      factors[r] = decoded * key_scale * value_scale;
      if (r >= first_int4) offset += 0.5f * factors[r];
    }
    c.scratch.rank_offsets[n] = offset;
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
