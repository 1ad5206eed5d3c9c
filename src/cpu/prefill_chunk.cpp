// SPDX-License-Identifier: Apache-2.0
//
// Sizes of a chunk of prefill and the carving of its scratch. No arithmetic on states.
#include "cpu/prefill_chunk.h"

#include <algorithm>

#include "cpu/inputs.h"

namespace leapquant::cpu {
namespace {

// Rows of a chunk. The products within a chunk grow with its square, those with the state do not;
// 32 rows keep the former below a quarter of the work at 128 x 128, and a chunk's scratch in L2.
constexpr int32_t kChunkRows = 32;

// Hands out 64-byte aligned arrays one after another; with a null start it only counts.
class Carver {
 public:
  explicit Carver(std::byte* start) : start_(start) {}
  float* take(int32_t rows, int32_t columns) {
    float* array = start_ == nullptr ? nullptr : reinterpret_cast<float*>(start_ + bytes_);
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
    bytes_ += (count * sizeof(float) + 63) / 64 * 64;
    return array;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* start_;
  size_t bytes_ = 0;
};

size_t carve(const Layout& layout, std::byte* start, ChunkScratch* scratch) {
  const ChunkShape shape = chunk_shape(layout);
  const int32_t tokens = shape.chunk_tokens;
  const int32_t rows = shape.row_capacity;
  Carver carver(start);
  scratch->state = carver.take(shape.value_stride, shape.k_dim);
  scratch->queries = carver.take(tokens, shape.key_stride);
  scratch->keys = carver.take(rows, shape.key_stride);
  scratch->read_keys = carver.take(rows, shape.key_stride);
  scratch->values = carver.take(rows, shape.value_stride);
  scratch->betas = carver.take(rows, 1);
  scratch->decays = carver.take(tokens, shape.vector_decay ? shape.key_stride : 1);
  scratch->value_weights = carver.take(tokens, 1);
  scratch->outputs = carver.take(tokens, shape.value_stride);
  scratch->spans = carver.take(tokens + 1, tokens + 1);
  scratch->keys_transposed = carver.take(rows, shape.k_dim);
  scratch->read_pairs = carver.take(rows, kStripColumns);
  scratch->lower = carver.take(rows, rows);
  scratch->weights = carver.take(tokens, rows);
  scratch->scaled_reads = carver.take(rows, shape.key_stride);
  scratch->scaled_queries = carver.take(tokens, shape.key_stride);
  scratch->scaled_keys = carver.take(rows, shape.key_stride);
  scratch->state_decay = carver.take(1, shape.key_stride);
  scratch->corrections = carver.take(rows, kStripColumns);
  scratch->strip_outputs = carver.take(tokens, kStripColumns);
  return carver.bytes();
}

}  // namespace

ChunkShape chunk_shape(const Layout& layout) {
  ChunkShape shape;
  shape.k_dim = layout.shape.head_k_dim;
  shape.v_dim = layout.shape.head_v_dim;
  shape.key_stride = padded(shape.k_dim);
  shape.value_stride = padded(shape.v_dim);
  shape.sub_steps = layout.shape.sub_steps;
  shape.chunk_tokens = std::max(1, kChunkRows / shape.sub_steps);
  shape.row_capacity =
      (shape.chunk_tokens * shape.sub_steps + kStripColumns - 1) / kStripColumns * kStripColumns;
  shape.delta_rule = layout.shape.delta_rule != 0;
  shape.vector_decay = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
  return shape;
}

size_t chunk_scratch_bytes(const Layout& layout) {
  ChunkScratch unused;
  return carve(layout, nullptr, &unused);
}

ChunkScratch chunk_scratch(const Layout& layout, std::byte* start) {
  ChunkScratch scratch;
  carve(layout, start, &scratch);
  return scratch;
}

}  // namespace leapquant::cpu
