// SPDX-License-Identifier: Apache-2.0
//
// What the kernels that decode large batches have in common: a block's range of heads, how long it
// asks for folds, outputs of what is not computed.
#pragma once

#include "cuda/decode_reads_128.cuh"

namespace leapquant::cuda::decoding_128 {

// Heads of a block; the first `longer` blocks have one more.
struct Shares {
  int32_t heads, longer;
};

constexpr int32_t kMostLooks = 4096;  // at bases that a fold has to move, before waiting for all

// Outputs of tokens that are not computed.
template <typename OneHead>
__device__ __forceinline__ void zero_outputs(const OneHead& head, const Call128& call,
                                             int32_t sequence, int32_t v_head, int32_t done) {
  const float zeros[OneHead::kCount] = {};
  for (int32_t t = done; t < call.tokens; ++t) {
    store_values(const_cast<char*>(row_of(call.output, sequence, t, v_head)),
                 OneHead::type_of(call.output), head.place, zeros);
  }
}

}  // namespace leapquant::cuda::decoding_128
