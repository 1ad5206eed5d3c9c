// SPDX-License-Identifier: Apache-2.0
//
// The fit of any compensators in a block: block subspace iteration on the matrix units, Cholesky
// factors in place of Gram-Schmidt, rounding to the compensators' types, the residual. The state
// is scaled so that its norm lies between 2^3 and 2^13.
#pragma once

#include "cuda/fold_orthonormal_128.cuh"

namespace leapquant::cuda::folding_128 {

struct FoldFit : FoldOrthonormal {
  // sides [rank][128] = S columns per key, the warp's keys: of high and low parts, or of what is
  // stored times its scales, with `nearly` times the codes' inverse norms instead. FP16 key sides
  // are as precise as S is in FP16, and need what that lacks.
  __device__ __forceinline__ void key_sides(const State& s, bool stored, bool nearly) const {
    const bool lows = stored && format.num_fp16 > 0;
    const float* factors = at<float>(nearly ? kInverseNormsAt : kValueScalesAt);
#pragma unroll 1
    for (int32_t part = 0; part <= (lows ? 1 : 0); ++part) {
      if (part == 1) {  // with what the FP16 state lacks, which only its own keys still need
        store_matrix_lows(s);
        __syncwarp();
      }
#pragma unroll 1
      for (int32_t first = 0; first < rank(); first += 8) {
        float d[4] = {};
        times<true>(columns_from(first), d);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t c = first + 2 * t() + i % 2;
          if (c < rank()) {
            float* to = sides() + c * kStride + operand_key(i / 2);
            const float scale = stored ? factors[c] : 1.0f;
            *to = part == 0 ? d[i] * scale : fmaf(d[i], scale, *to);
          }
        }
      }
    }
  }

  // Rounds `sides` to the compensators' types into the boundary state. Value sides: sides
  // becomes what is decoded, the FP16 columns its codes. Key sides: the FP16 key sides become what
  // is decoded times the value scale, in the state's scaling, negative. A warp takes a vector.
  __device__ __forceinline__ uint32_t round_sides(bool key) const {
    bool saturated = false;
    const float into = key ? at<float>(kScalesAt)[1] : 1.0f;
#pragma unroll 1
    for (int32_t c = warp(); c < rank(); c += kWarps) {
      float4* place = reinterpret_cast<float4*>(sides() + c * kStride) + lane();
      const float4 x = *place;
      float in[4] = {x.x * into, x.y * into, x.z * into, x.w * into};
      float step = 1.0f;
      if (c < format.num_fp16) {
        unsigned short half[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          half[i] = to_half_saturated(in[i], &saturated);
          in[i] = __half2float(__ushort_as_half(half[i]));
        }
        *reinterpret_cast<uint2*>(boundary() + (key ? format.fp16_keys : format.fp16_values) +
                                  c * 256 + 8 * lane()) =
            make_uint2(half[0] | static_cast<uint32_t>(half[1]) << 16,
                       half[2] | static_cast<uint32_t>(half[3]) << 16);
      } else {
        const int32_t quantised = c - format.num_fp16;
        const bool wide = quantised < format.num_int8;
        const float magnitude =
            fmaxf(fmaxf(fabsf(in[0]), fabsf(in[1])), fmaxf(fabsf(in[2]), fabsf(in[3])));
        const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(magnitude)));
        const float most = wide ? 127.0f : 8.0f;
        const unsigned short half =
            largest == 0.0f ? 0 : to_half_up(__fdividef(largest, most), &saturated);
        step = __half2float(__ushort_as_half(half));
        if (lane() == 0) {
          *reinterpret_cast<unsigned short*>(
              boundary() + (key ? format.key_scales : format.value_scales) + 2 * quantised) = half;
        }
        int32_t code[4];
        const float inverse = step != 0.0f ? __fdividef(1.0f, step) : 0.0f;
        const float middle = wide ? 0.0f : 0.5f;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float y = in[i] * inverse - middle;
          code[i] = min(max(__float2int_rn(y), wide ? -127 : -8), wide ? 127 : 7);
          if (step == 0.0f) code[i] = 0;
          in[i] = step == 0.0f ? 0.0f : static_cast<float>(code[i]) + middle;
        }
        if (wide) {
          *reinterpret_cast<uint32_t*>(boundary() + (key ? format.int8_keys : format.int8_values) +
                                       quantised * 128 + 4 * lane()) =
              (code[0] & 255u) | (code[1] & 255u) << 8 | (code[2] & 255u) << 16 |
              (code[3] & 255u) << 24;
        } else {
          *reinterpret_cast<unsigned short*>(boundary() +
                                             (key ? format.int4_keys : format.int4_values) +
                                             (quantised - format.num_int8) * 64 + 2 * lane()) =
              static_cast<unsigned short>((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                          (code[3] + 8) << 12);
        }
      }
      if (key) {
        step *= at<float>(kScalesAt)[0] * at<float>(kValueScalesAt)[c];
      } else {
        const float square =
            sum_of_warp(fmaf(in[3], in[3], fmaf(in[2], in[2], fmaf(in[1], in[1], in[0] * in[0]))));
        if (lane() == 0) {
          const float inverse = square > 0.0f ? rsqrtf(square) : 0.0f;
          at<float>(kValueScalesAt)[c] = step;
          at<float>(kInverseNormsAt)[c] = inverse;
          at<float>(kLastFactorsAt)[c] = step > 0.0f ? inverse / step : 0.0f;
        }
        reinterpret_cast<uint2*>(column(c, 0))[lane()] =
            make_uint2(pack_fp16(in[0], in[1]), pack_fp16(in[2], in[3]));
        reinterpret_cast<uint2*>(column(c, kLowAt))[lane()] = make_uint2(0, 0);
      }
      const float4 decoded = make_float4(in[0] * step, in[1] * step, in[2] * step, in[3] * step);
      if (key) {  // to take off; the low parts lie where this row's floats were
        __syncwarp();
        put_keys(reinterpret_cast<char*>(column(c, kKeysAt)),
                 make_float4(-decoded.x, -decoded.y, -decoded.z, -decoded.w));
      } else {
        *place = decoded;
      }
    }
    sync_team();
    return saturated ? uint32_t{LEAPQUANT_HEALTH_COMPENSATOR_SATURATED} : 0u;
  }

  // sides = the FP16 columns by falling |S column|, equal ones in their old order. sides holds S
  // columns on entry.
  __device__ __forceinline__ void sort_columns() const {
    float* strength = at<float>(kValueScalesAt);
    for (int32_t c = warp(); c < rank(); c += kWarps) {
      const float4 x = *reinterpret_cast<const float4*>(sides() + c * kStride + 4 * lane());
      const float sum = sum_of_warp(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
      if (lane() == 0) strength[c] = sum;
    }
    sync_team();
#pragma unroll 1
    for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
      const int32_t c = i / 128;
      int32_t place = 0;
      for (int32_t o = 0; o < rank(); ++o) {
        place += strength[o] > strength[c] || (strength[o] == strength[c] && o < c) ? 1 : 0;
      }
      sides()[place * kStride + (i & 127)] = __half2float(column(c, 0)[i & 127]);
    }
    sync_team();
  }

  // S^T (S columns) of all columns, by way of the FP16 key sides unless those are `given`.
  __device__ __forceinline__ void turn_columns(bool given) const {
    if (!given) {
#pragma unroll 1
      for (int32_t first = 0; first < rank(); first += 8) {
        float d[4] = {};
        times<true>(columns_from(first), d);
        put_projection(first, d);
      }
      sync_team();
    }
#pragma unroll 1
    for (int32_t first = 0; first < rank(); first += 8) {
      float d[4];
      turn(first, d);
      put_sides(first, rank(), d);
    }
    sync_team();
  }

  // What the fit does one after another; steps come again or are left out as the format and the
  // columns want it.
  enum Step : int32_t {
    // Many weak columns: S^T (S V) would square their distance to the strong ones. So S V is made
    // orthonormal first, which keeps the span of S^T (S V) of every first few columns.
    kBasis,
    kTurn,         // the columns become S^T (S V) and orthonormal
    kCorrect,      // nearly orthonormal columns more exactly
    kAgain,        // orthonormal once more, from the start
    kOrder,        // columns by what they hold
    kRoundValues,  // value sides to their types
    kProducts,     // of those: what the key sides need by least squares, where they are near 1
    kFactor,       // the same where they are not
    kKeys,         // key sides
    kRoundKeys,    // to their types
    kEnd
  };

  // Fits and stores the compensators; S becomes the residual. Written so that every piece of code
  // appears once: the kernel has to fit the instruction cache. The FP16 copy of S lies in shared
  // memory. `rounded`: the value sides are, and only the factor of their Gram matrix will do.
  __device__ __forceinline__ uint32_t fit(State* s, bool zero, bool rounded) const {
    const bool mixed = format.num_int8 + format.num_int4 > 0;
    bool cold = false;
    int32_t rounds = 0;
    if (zero) {
      for (int32_t i = thread(); i < rank() * 128; i += kThreads) {
        sides()[i / 128 * kStride + (i & 127)] = 0.0f;
      }
      sync_team();
    } else if (!rounded) {
      cold = start_columns();
      rounds = cold ? 3 : format.fit_rounds;
    }
    uint32_t flags = 0;
    int32_t corrections = 0;
    int32_t terms = -1;  // of the series for the key sides, or less than none: by the factor
    int32_t step = rounded ? kFactor : zero ? kRoundValues : mixed ? kBasis : kTurn;
#pragma unroll 1
    while (step != kEnd) {
      FoldFit here = *this;
      here.index = fresh_copy(index);  // addresses are worked out again: registers are short
      const bool factored = mixed && terms < 0;  // for step kKeys
      if (step == kTurn) here.turn_columns(mixed);
      if (step == kBasis || step == kOrder || step == kKeys) {
        here.key_sides(*s, step == kKeys, terms >= 0);
        if (terms >= 0) here.settle_keys(terms);
        sync_team();
      }
      float measure = 0.0f;
      if (step == kCorrect || step == kProducts) {
        measure = here.products(step == kProducts ? Products::kStored : Products::kNear);
        if (step == kCorrect && measure <= 0.05f) here.correct_columns();
      }
      const bool orthonormal = step == kBasis || step == kTurn || step == kAgain;
      if (orthonormal || step == kFactor) here.make_gram(step == kFactor ? 1e-7f : 0.0f);
      if (orthonormal || step == kFactor || (step == kKeys && factored)) {
        here.solve(step == kAgain    ? Solve::kAgain
                   : step == kFactor ? Solve::kFactor
                   : step == kKeys   ? Solve::kRows
                                     : Solve::kFirst,
                   step == kBasis  ? Solved::kKeySides
                   : step == kKeys ? Solved::kSides
                                   : Solved::kColumns);
      }
      if (step == kKeys && factored) here.backward_solve();
      if (step == kOrder) here.sort_columns();
      if (step == kRoundValues || step == kRoundKeys) flags |= here.round_sides(step == kRoundKeys);

      bool turned = step == kAgain;  // the round is over
      if (step == kTurn) {
        turned = exact_factor() || (!cold && rounds > 1);
        corrections = 0;
      } else if (step == kCorrect) {
        turned = measure <= 1e-3f || (++corrections == 4 && measure <= 0.05f);
      }
      if (turned) {
        --rounds;
        step = rounds > 0 ? (mixed ? kBasis : kTurn) : mixed && cold ? kOrder : kRoundValues;
      } else if (step == kCorrect) {
        if (measure > 0.05f) step = kAgain;
      } else if (step == kRoundValues) {
        step = mixed ? kProducts : kKeys;
      } else if (step == kProducts) {
        step = kFactor;
        if (measure <= 0.36f) {  // the sum of squares bounds what a term leaves
          step = kKeys;
          terms = 0;
          for (float left = measure; left > 1e-6f; left *= measure) ++terms;
        }
      } else {
        step = step == kBasis    ? kTurn
               : step == kTurn   ? kCorrect
               : step == kOrder  ? kRoundValues
               : step == kFactor ? kKeys
               : step == kKeys   ? kRoundKeys
                                 : kEnd;
      }
    }
    add_rows<kColumnBytes, kKeysAt, 0>(s, kColumnsAt, side_count());
    return flags;
  }
};

}  // namespace leapquant::cuda::folding_128
