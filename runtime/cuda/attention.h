// SPDX-License-Identifier: Apache-2.0
//
// Full attention on the device: norm and rotation of queries and keys, the KV cache, causal
// attention of grouped heads, the output gate. Decode and prefill take the same way.
//
// The queries of a segment that share a key-value head are numbered token by token, group by group:
// query i is head i mod group of token i / group. Chunks of four neighbours are one block's work;
// the keys of a block are cut into `splits`, whose parts a second kernel joins.
#ifndef LEAPQUANT_RUNTIME_CUDA_ATTENTION_H_
#define LEAPQUANT_RUNTIME_CUDA_ATTENTION_H_

#include <cstdint>

#include "runtime/cuda/device.h"
#include "runtime/cuda/pass_tables.h"

namespace leapquant::runtime::cuda {

// Blocks that a launch should have per multiprocessor before keys are cut no further.
inline constexpr std::int32_t kAttentionBlocksPerMultiprocessor = 6;

// Head dims that the kernels are made for.
bool attention_takes(std::int64_t head_dim);

// Keys and values of one sequence: [full layers, 2 (keys, values), heads, capacity, head_dim].
struct KvPlace {
  void* data;
  std::int64_t capacity;  // tokens
};

struct AttentionShape {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t rotary_half;
  bool gated;  // a query is followed by its gate
  float eps;
  // Follow from the others, see attention_shape().
  std::int32_t group;         // query heads of a key-value head
  std::int32_t query_stride;  // elements from query to query
  std::int64_t row;           // elements of a row of the input product: queries (with gates), keys,
                              // values
  std::int64_t part_floats;   // of a chunk's part of the keys: per query the largest score, the sum
                              // of exp2(score - largest) and the values weighted by these
};
AttentionShape attention_shape(std::int32_t num_heads, std::int32_t num_kv_heads,
                               std::int32_t head_dim, std::int32_t rotary_half, bool gated,
                               float eps);

struct Attention {
  AttentionShape shape;
  std::int32_t full_layer;
  const KvPlace* kv;  // by place
  Element kv_type;
  const void* projected;  // [rows, shape.row]
  const float* q_norm;    // [head_dim]
  const float* k_norm;
  const float* cosines;  // [rows, rotary_half]
  const float* sines;
  float* queries;  // [rows, num_heads, head_dim], scaled for exp2
  float* parts;    // attention_parts_floats
  std::int32_t splits;
  void* y;  // [rows, num_heads * head_dim]
};

// How many parts the keys of a block are cut into, by the numbers of the launch alone.
std::int32_t attention_splits(const AttentionShape& shape, const PassSize& size,
                              std::int32_t multiprocessors);
std::int64_t attention_parts_floats(const AttentionShape& shape, const PassSize& size,
                                    std::int32_t splits);

// Cosines and sines of the positions of all rows; angles are formed in FP64.
void rotary_angles(cudaStream_t stream, const PassTables& tables, const PassSize& size,
                   const double* frequencies, std::int32_t half, float* cosines, float* sines);

// Normalises, rotates, appends keys and values, attends, gates.
void attend(cudaStream_t stream, const Attention& attention, const PassTables& tables,
            const PassSize& size, Element element);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_ATTENTION_H_
