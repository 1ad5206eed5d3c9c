// SPDX-License-Identifier: Apache-2.0
//
// Inputs and scratch of several tokens of one head at once (decode_drafts_128.cuh): where they lie
// and the copies of the inputs.
#pragma once

#include "cuda/decode_head_128.cuh"

namespace leapquant::cuda::decoding_128 {

// One buffer for the inputs of a group of tokens: it is read early, and filled while they are
// walked.
struct DraftInputs : Head<false, 1, true, true> {
  using Base = Head<false, 1, true, true>;
  static constexpr int32_t kTogether = kDraftsTogether;
  static constexpr int32_t kPairsOfTokens = kTogether / 2;
  static_assert(kTogether ==
                4);  // both vectors of four tokens fill the eight columns of an operand

  // ---- Inputs: of the tokens of one group, in one buffer. ----

  __device__ __forceinline__ const char* inputs() const { return shared + plan.inputs; }
  __device__ __forceinline__ void wait_for_inputs(uint32_t turn) const {
    barrier_wait(barrier_of(2), turn & 1u);
  }
  // Inputs of tokens t .. of the `tokens` that a sequence has, and the residual's value scales.
  __device__ __forceinline__ void start_inputs(const Pointers& rows, int32_t v_head, int32_t t,
                                               int32_t tokens, int32_t n,
                                               const HeadFormat128& format) const {
    const uint32_t to = shared_address(shared + plan.inputs);
    const uint32_t barrier = barrier_of(2);
    const int32_t count = min(kTogether, tokens - t);
    if (threadIdx.x == 0) {
      const uint32_t scales = format.fp16_scale ? 256u : 512u;
      const int32_t k_head = quotient<true>(v_head, call.group);
      barrier_expect(barrier, scales + kDraftInputBytes * static_cast<uint32_t>(count));
      bulk_copy(to + kDraftScalesAt, boundary_at(rows, v_head) + format.value_scale, scales,
                barrier);
      const char* q = at(rows.q, call.q, t, k_head);
      const char* k = at(rows.k, call.k, t, k_head);
      const char* v = at(rows.v, call.v, t, v_head);
#pragma unroll 1
      for (int32_t i = 0; i < count; ++i) {
        const uint32_t row = to + kDraftInputBytes * static_cast<uint32_t>(i);
        bulk_copy(row, q, 256, barrier);
        bulk_copy(row + 256, k, 256, barrier);
        bulk_copy(row + 512, v, 256, barrier);
        q += static_cast<uint32_t>(call.q.token_stride);
        k += static_cast<uint32_t>(call.k.token_stride);
        v += static_cast<uint32_t>(call.v.token_stride);
      }
    }
    if (threadIdx.x < 32) return;
    // Numbers, too small for bulk copies: the second warp.
    const int32_t i = lane & 3;
    const uint32_t scalar = 4u * static_cast<uint32_t>(v_head);
    const uint32_t numbers = to + kDraftScalarsAt + 8u * static_cast<uint32_t>(i);
    if (lane < 4 && i < count && call.beta.data != nullptr) {
      copy_4_async(numbers, at(rows.beta, call.beta, t + i, 0, scalar));
    }
    if (lane >= 4 && lane < 8 && i < count && call.log_decay.data != nullptr) {
      copy_4_async(numbers + 4, at(rows.g, call.log_decay, t + i, 0, scalar));
    }
    if (call.stored_decay != 0 && t == 0 && lane < n) {
      const int32_t ring = ring_after(rows.ring, lane - n);
      copy_4_async(to + kDraftDecaysAt + 4u * static_cast<uint32_t>(lane),
                   rows.window + (decays_at(v_head) + 4u * static_cast<uint32_t>(ring)));
    }
    barrier_arrive_copies(barrier);
  }

  // ---- Scratch. ----

  __device__ __forceinline__ float* units(int32_t token) const {
    return reinterpret_cast<float*>(scratch + plan.units - plan.limbs) + kDraftUnits * token;
  }
  __device__ __forceinline__ int32_t weight_stride() const {  // other banks for other columns
    return plan.rows + 8;
  }
  __device__ __forceinline__ float* factors(int32_t token) const {
    return weights() + 2 * kTogether * weight_stride() + (plan.rows + 48) * token;
  }
  __device__ __forceinline__ float* code_sums() const {  // [token][vector][words]
    return reinterpret_cast<float*>(scratch + plan.codes - plan.limbs);
  }
};

}  // namespace leapquant::cuda::decoding_128
