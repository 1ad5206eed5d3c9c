// SPDX-License-Identifier: Apache-2.0
//
// Causal attention of a few query rows over the keys and values of one head: scores, softmax and
// weighted sum in one pass over the blocks of a KV cache. One thread's part.
#ifndef LEAPQUANT_RUNTIME_KERNELS_ATTENTION_H_
#define LEAPQUANT_RUNTIME_KERNELS_ATTENTION_H_

#include <cstdint>

#include "runtime/kernels/products.h"

namespace leapquant::runtime::kernels {

// Tokens of a KV block; the running softmax is brought up to date once per block.
inline constexpr std::int64_t kAttentionBlock = 128;
// Most query rows per call.
inline constexpr std::int64_t kAttentionRows = 16;

struct AttentionHead {
  const void* const* key_blocks;  // [ceil(tokens / kAttentionBlock)] -> [kAttentionBlock, head_dim]
  const void* const* value_blocks;  // the same
  WeightType type;                  // kF32 or kBf16
  std::int64_t head_dim;
};

// queries: [rows, head_dim], already scaled, rows <= kAttentionRows. Row r sees the first
// visible[r] >= 1 tokens; visible must not fall from row to row. outputs: [rows, head_dim].
// scratch: attention_scratch(head_dim) floats, 64-byte aligned. A row's output is bitwise
// independent of the other rows.
void attend(const AttentionHead& head, const float* queries, std::int64_t rows,
            const std::int64_t* visible, float* outputs, float* scratch);
std::int64_t attention_scratch(std::int64_t head_dim);

}  // namespace leapquant::runtime::kernels

#endif  // LEAPQUANT_RUNTIME_KERNELS_ATTENTION_H_
