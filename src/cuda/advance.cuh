// SPDX-License-Identifier: Apache-2.0
//
// The general form on the expanded state, token by token: what prefill and per-step decode do.
#pragma once

#include "cuda/token.cuh"

namespace leapquant::cuda {

// Read vectors against the state before the token: its own decay is in them. With `decay`, the
// same times decay [K] goes to t.scaled. The caller puts a barrier behind it.
__device__ inline void make_reads(const Call& call, const Block& block, const Token& t,
                                  const float* decay) {
  const bool given = call.inputs.read_key.data != nullptr;
  for (int32_t s = 0; s < t.reads; ++s) {
    const bool query = s == t.reads - 1;
    const float* source = query ? t.q : t.b + s * block.k_dim;
    const bool decayed = query ? call.inputs.read_before_update == 0 : s > 0 || !given;
    for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
      const float x = decayed ? decay_factor(t.log_decay[i]) * source[i] : source[i];
      t.read[s * block.k_dim + i] = x;
      if (decay != nullptr) t.scaled[s * block.k_dim + i] = decay[i] * x;
    }
  }
}

// Advances the state in block.state by one token and writes its output. `token` counts along the
// tensors' token axis. Ends with a barrier.
__device__ inline void advance_state(const Call& call, const Block& block, const Token& t,
                                     int64_t sequence, int64_t token, int32_t v_head) {
  const int32_t n = call.sub_steps;
  load_token(call, block, t, sequence, token, v_head);
  for (int32_t i = block.thread; i < block.k_dim; i += kBlockThreads) {
    t.decay[i] = decay_factor(t.log_decay[i]);
  }
  make_reads(call, block, t, nullptr);
  own_products(call, block, t, v_head);
  __syncthreads();
  read_columns(block, t, block.state, t.read, t.reads, t.sums);
  finish_token(call, block, t, sequence, token, v_head);
  __syncthreads();
  for (int32_t i = block.row_begin; i < block.row_end; ++i) {
    float& entry = block.state[i * block.v_dim + block.column];
    float x = t.decay[i] * entry;
    for (int32_t j = 0; j < n; ++j) {
      x = fmaf(t.k[j * block.k_dim + i], t.u[j * block.v_dim + block.column], x);
    }
    entry = x;
  }
  __syncthreads();
}

}  // namespace leapquant::cuda
