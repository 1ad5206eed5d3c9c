// SPDX-License-Identifier: Apache-2.0
//
// Decode of one value head: one pass over the payload for all read vectors, then token after token.
// Every sum has one order, whatever the number of tokens: T tokens in a call are bit for bit T
// calls.
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_DECODE_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_DECODE_HEAD_INL_H_
#undef LEAPQUANT_CPU_DECODE_HEAD_INL_H_
#else
#define LEAPQUANT_CPU_DECODE_HEAD_INL_H_
#endif

#include <cstring>

#include "cpu/decode_factors-inl.h"
#include "cpu/decode_head.h"
#include "cpu/decode_payload-inl.h"
#include "cpu/records-inl.h"
#include "cpu/residual-inl.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// sums: the payload's part of every read, in the state's units.
inline void payload_reads(const HeadContext& c, Ahead* ahead) {
  const FloatTag d;
  const int32_t count = c.call.tokens * c.reads;
  const int32_t stride = c.shape.key;
  const bool quantised = c.head.quantised();
  const float unit = payload_scale(c.head);
  const bool half = quantised && c.head.format.levels == LEAPQUANT_HALF_INTEGERS;
  float* offsets = c.scratch.payload_offsets;
  if (quantised) {
    decode_scales(c.head, c.call.boundary, c.scratch.step, c.scratch.smoothing);
    for (int32_t n = 0; n < count; ++n) {
      float* x = c.scratch.scaled + static_cast<int64_t>(n) * stride;
      auto sum = hn::Zero(d);
      for (int32_t i = 0; i < stride; i += kLanes) {
        const auto smoothed = hn::Mul(hn::Load(d, x + i), hn::Load(d, c.scratch.smoothing + i));
        sum = hn::Add(sum, smoothed);
        hn::Store(hn::Mul(smoothed, hn::Set(d, 1.0f / unit)), d, x + i);
      }
      offsets[n] = half ? 0.5f * sum_of_lanes(sum) : 0.0f;
    }
  }
  in_threes(count, [&](int32_t n, auto size) {
    read_payload<decltype(size)::value>(
        c.head, c.call.boundary, c.scratch.scaled + static_cast<int64_t>(n) * stride, stride, ahead,
        c.scratch.sums + static_cast<int64_t>(n) * c.shape.value, c.shape.value);
  });
  if (!quantised) return;
  for (int32_t n = 0; n < count; ++n) {
    float* sums = c.scratch.sums + static_cast<int64_t>(n) * c.shape.value;
    const auto offset = hn::Set(d, offsets[n]);
    for (int32_t j = 0; j < c.shape.value; j += kLanes) {
      hn::Store(hn::Mul(hn::Add(hn::Load(d, sums + j), offset), hn::Load(d, c.scratch.step + j)), d,
                sums + j);
    }
  }
}

// Adds compensators' and records' parts to the reads of token t.
template <int32_t kCount, int32_t kVectors>
HWY_INLINE int32_t add_rows_from(const HeadContext& c, const RankRows& rows, int32_t t, int32_t s,
                                 int32_t records, int32_t begin, Ahead* ahead) {
  const FloatTag d;
  float* sums = c.scratch.sums + static_cast<int64_t>(t * c.reads + s) * c.shape.value;
  const float* rank_factor =
      c.scratch.rank_factors + static_cast<int64_t>(t * c.reads + s) * c.shape.rank;
  const float* record_factor = c.record_factors(t, s);
  const int32_t num_fp16 = c.head.format.num_fp16;
  int32_t j = begin;
  for (; j + kVectors * kLanes <= c.shape.value; j += kVectors * kLanes) {
    ahead->fetch(kVectors * kLinesPerVector);
    FloatVec sum[kCount][kVectors];
    for (int32_t n = 0; n < kCount; ++n) {
      for (int32_t v = 0; v < kVectors; ++v) {
        sum[n][v] = hn::Add(hn::Load(d, sums + n * c.shape.value + j + v * kLanes),
                            hn::Set(d, c.scratch.rank_offsets[t * c.reads + s + n]));
      }
    }
    const auto add_row = [&](const auto* row, const float* factors, int32_t factor_stride) {
      FloatVec u[kVectors];
      for (int32_t v = 0; v < kVectors; ++v) u[v] = load_stored(row + j + v * kLanes);
      for (int32_t n = 0; n < kCount; ++n) {
        const auto factor = hn::Set(d, factors[n * factor_stride]);
        for (int32_t v = 0; v < kVectors; ++v) sum[n][v] = hn::MulAdd(factor, u[v], sum[n][v]);
      }
    };
    for (int32_t r = 0; r < num_fp16; ++r) add_row(rows.half[r], rank_factor + r, c.shape.rank);
    for (int32_t r = num_fp16; r < c.head.rank; ++r) {
      add_row(rows.codes[r], rank_factor + r, c.shape.rank);
    }
    for (int32_t m = 0; m < records; ++m) {
      add_row(c.scratch.corrections[m], record_factor + m, c.shape.records);
    }
    for (int32_t n = 0; n < kCount; ++n) {
      for (int32_t v = 0; v < kVectors; ++v) {
        hn::Store(sum[n][v], d, sums + n * c.shape.value + j + v * kLanes);
      }
    }
  }
  return j;
}
template <int32_t kCount>
HWY_INLINE void add_rows(const HeadContext& c, const RankRows& rows, int32_t t, int32_t s,
                         int32_t records, Ahead* ahead) {
  // As many sums as sixteen registers hold; V is a multiple of 16 numbers.
  constexpr int32_t kPair = kLanes >= 16 ? 1 : 2;
  int32_t begin = 0;
  if constexpr (kCount < 3) {
    begin = add_rows_from<kCount, 4>(c, rows, t, s, records, begin, ahead);
  }
  add_rows_from<kCount, kPair>(c, rows, t, s, records, begin, ahead);
}

inline float key_dot(const HeadContext& c, const float* a, const float* b) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < c.shape.key; i += kLanes) {
    sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
  }
  return sum_of_lanes(sum);
}

inline void add_scaled(const HeadContext& c, float factor, const float* row, float* sum) {
  const FloatTag d;
  for (int32_t j = 0; j < c.shape.value; j += kLanes) {
    hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, row + j), hn::Load(d, sum + j)), d,
              sum + j);
  }
}

// Corrections u of token t from its reads; rounded into stored_u.
inline void make_corrections(const HeadContext& c, int32_t t) {
  const FloatTag d;
  const int32_t steps = c.shape.steps;
  const bool given = c.call.inputs.read_key.data != nullptr;
  FloatMask saturated = no_lanes();
  for (int32_t j = 0; j < steps; ++j) {
    const int64_t row = static_cast<int64_t>(t) * steps + j;
    const auto beta = hn::Set(d, c.scratch.beta[row]);
    const float* v = c.scratch.v + row * c.shape.value;
    float* u = c.scratch.correction + static_cast<int64_t>(j) * c.shape.value;
    if (c.layout.shape.delta_rule == 0) {
      for (int32_t i = 0; i < c.shape.value; i += kLanes) {
        hn::Store(hn::Mul(beta, hn::Load(d, v + i)), d, u + i);
      }
    } else {
      float* read = c.scratch.sums + static_cast<int64_t>(t * c.reads + j) * c.shape.value;
      const float* b = (given ? c.scratch.read_key : c.scratch.k) + row * c.shape.key;
      for (int32_t earlier = 0; earlier < j; ++earlier) {
        const float* w = c.scratch.k + (static_cast<int64_t>(t) * steps + earlier) * c.shape.key;
        add_scaled(c, key_dot(c, w, b),
                   c.scratch.correction + static_cast<int64_t>(earlier) * c.shape.value, read);
      }
      for (int32_t i = 0; i < c.shape.value; i += kLanes) {
        const auto difference = hn::Sub(hn::Load(d, v + i), hn::Load(d, read + i));
        hn::Store(hn::Mul(beta, difference), d, u + i);
      }
    }
    for (int32_t i = 0; i < c.shape.value; i += kLanes) {
      store_fp16_saturated(hn::Load(d, u + i), c.scratch.stored_u + row * c.shape.value + i,
                           &saturated);
    }
  }
  if (!hn::AllFalse(d, saturated)) c.call.flags |= LEAPQUANT_HEALTH_RECORD_SATURATED;
}

// Output of token t, [padded(V)] in scratch.output.
inline void make_output(const HeadContext& c, int32_t t) {
  const FloatTag d;
  const int32_t steps = c.shape.steps;
  const leapquant_inputs& inputs = c.call.inputs;
  float* output = c.scratch.output;
  const float* q = c.scratch.q + static_cast<int64_t>(t) * c.shape.key;
  std::memcpy(output,
              c.scratch.sums + static_cast<int64_t>(t * c.reads + c.first_output) * c.shape.value,
              static_cast<size_t>(c.shape.value) * sizeof(float));
  if (inputs.read_before_update == 0) {
    for (int32_t j = 0; j < steps; ++j) {
      const float* w = c.scratch.k + (static_cast<int64_t>(t) * steps + j) * c.shape.key;
      add_scaled(c, key_dot(c, w, q),
                 c.scratch.correction + static_cast<int64_t>(j) * c.shape.value, output);
    }
  }
  const float* v0 = c.scratch.v + static_cast<int64_t>(t) * steps * c.shape.value;
  if (inputs.bonus != nullptr) {
    const int32_t k_dim = c.layout.shape.head_k_dim;
    const float* bonus = inputs.bonus + static_cast<int64_t>(c.call.v_head) * k_dim;
    float* product = c.scratch.weight;
    for (int32_t i = 0; i < k_dim; ++i) product[i] = q[i] * bonus[i];
    for (int32_t i = k_dim; i < c.shape.key; ++i) product[i] = 0.0f;
    const float* k0 = c.scratch.k + static_cast<int64_t>(t) * steps * c.shape.key;
    add_scaled(c, key_dot(c, product, k0), v0, output);
  }
  if (inputs.skip != nullptr) add_scaled(c, inputs.skip[c.call.v_head], v0, output);
  (void)d;
}

// Appends token t's records to the window.
inline void append_records(const HeadContext& c, int32_t t) {
  const int32_t steps = c.shape.steps;
  const int32_t k_dim = c.layout.shape.head_k_dim;
  const int32_t v_dim = c.layout.shape.head_v_dim;
  const WindowLayout& where = c.layout.window;
  const int64_t ring = (c.call.position + t) % where.ring_tokens;
  for (int32_t j = 0; j < steps; ++j) {
    const int64_t row = static_cast<int64_t>(t) * steps + j;
    if (c.call.write_keys) {
      std::memcpy(c.call.window.keys + (ring * steps + j) * k_dim,
                  c.scratch.stored_keys + row * c.shape.key, static_cast<size_t>(k_dim) * 2);
    }
    std::memcpy(c.call.window.corrections + (ring * steps + j) * v_dim,
                c.scratch.stored_u + row * c.shape.value, static_cast<size_t>(v_dim) * 2);
  }
  if (where.decay_count == 0) return;
  std::byte* to = c.call.window.log_decays + ring * where.decay_count * where.decay_bytes;
  if (where.decay_count == 1) {
    std::memcpy(to, c.scratch.stored_decay + t, 4);
    return;
  }
  const float* g = c.scratch.stored_decay + static_cast<int64_t>(t) * c.shape.key;
  if (where.decay_bytes == 4) {
    std::memcpy(to, g, static_cast<size_t>(k_dim) * 4);
    return;
  }
  alignas(64) uint16_t half[256];
  for (int32_t i = 0; i < c.shape.key; i += kLanes) {
    const FloatTag d;
    const auto x = hn::Load(d, g + i);
    const auto infinite = hn::Lt(x, hn::Set(d, -65504.0f));
    store_fp16(hn::IfThenElse(infinite, hn::Set(d, -65504.0f), x), half + i);
    for (int32_t l = 0; l < kLanes; ++l) {
      if (g[i + l] < -65504.0f) half[i + l] = 0xfc00u;
    }
  }
  std::memcpy(to, half, static_cast<size_t>(k_dim) * 2);
}

// Keys of a key head as the window will hold them.
inline bool round_keys(const Layout& layout, const DecodeScratch& scratch, int32_t tokens) {
  const FloatTag d;
  const int32_t count = tokens * layout.shape.sub_steps * padded(layout.shape.head_k_dim);
  FloatMask saturated = no_lanes();
  for (int32_t i = 0; i < count; i += kLanes) {
    store_fp16_saturated(hn::Load(d, scratch.k + i), scratch.stored_keys + i, &saturated);
  }
  return !hn::AllFalse(d, saturated);
}

// Everything up to the tokens: factors and payload.
inline void prepare_head(const HeadContext& c, Ahead* ahead) {
  round_decays(c);
  gather_rows(c);
  make_reads(c);
  for (int32_t t = 0; t < c.call.tokens; ++t) {
    if (c.vector_decay()) {
      record_factors_vector(c, t, ahead);
    } else {
      record_factors_scalar(c, t, ahead);
    }
  }
  for (int32_t n = 0; n < c.call.tokens * c.reads; ++n) c.scratch.rank_offsets[n] = 0.0f;
  rank_factors(c, ahead);
  payload_reads(c, ahead);
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
