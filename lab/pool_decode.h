// SPDX-License-Identifier: Apache-2.0
//
// Speed of decoding from a pool of states that is too large for the caches: the benchmark of the
// library's main operation, with the floors that memory and arithmetic set.
#ifndef LEAPQUANT_LAB_POOL_DECODE_H_
#define LEAPQUANT_LAB_POOL_DECODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/format_layer.h"
#include "leapquant/leapquant.h"

namespace leapquant::lab {

// Memory traffic and arithmetic of one token of one sequence (all heads), on average over a window.
struct DecodeWork {
  // Boundary states read once per token and written once per window (once per token per step), the
  // records in the window read (each head reads (window + 1) / 2 of them on average) and one
  // written, and q, k, v, gates and output once.
  double bytes = 0;
  // Multiply-adds of the fold per token: applying the window's records, decoding the compensators,
  // the fit's products and subtracting the new compensators. Zero per step and for BF16 and FP32,
  // but for the records.
  double multiply_adds = 0;
};
DecodeWork decode_work(const LayerShape& shape, const leapquant_format& format,
                       const leapquant_sizes& sizes);

// Sequences of one layer in one format, decoded one token at a time, all together.
class PoolDecode {
 public:
  // As many sequences as make the boundary states at least pool_bytes. runner must outlive this.
  PoolDecode(const LayerShape& shape, const runtime::StateFormat& state, std::int64_t pool_bytes,
             int workers);

  // Bytes that a pool takes, without making it.
  static std::int64_t memory_bytes(const LayerShape& shape, const runtime::StateFormat& state,
                                   std::int64_t pool_bytes);

  int sequences() const { return sequences_; }
  const leapquant_sizes& sizes() const { return sizes_; }
  const DecodeWork& work() const { return work_; }
  const leapquant_format& format() const { return format_; }
  const char* backend() const { return leapquant_layout_backend(layout_.get()); }

  // Seconds per token of all sequences together, averaged over the tokens of one window, so that
  // every head folds exactly once.
  double run_window(const leapquant_runner* runner);

 private:
  LayerShape shape_;
  leapquant_format format_;
  runtime::StateLayout layout_;
  leapquant_sizes sizes_;
  DecodeWork work_;
  int sequences_;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<Workspace> workspace_;
  int window_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> statuses_;
  LayerInputs inputs_;  // one token of every sequence
  std::vector<float> outputs_;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_POOL_DECODE_H_
