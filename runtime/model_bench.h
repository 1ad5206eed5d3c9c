// SPDX-License-Identifier: Apache-2.0
//
// How long one decode step of a whole model takes on a device, part by part, with weights of random
// values in the shapes of a real configuration. It measures speed only; the text means nothing.
#ifndef LEAPQUANT_RUNTIME_MODEL_BENCH_H_
#define LEAPQUANT_RUNTIME_MODEL_BENCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/model_config.h"
#include "runtime/state_options.h"

namespace leapquant::runtime {

struct ModelBenchOptions {
  std::int32_t batch = 1;       // sequences, one token each per step
  std::int64_t context = 4096;  // tokens before the first step; sequence i begins i mod 16 later
  std::int32_t steps = 64;      // that count
  KvType kv_type = KvType::kBf16;
  // A sequence's token is the same at every step, else another one. Repeated, its heads come to
  // have a few directions, the hardest there is for compensators.
  bool repeat_token = false;
  const std::atomic<bool>* cancel = nullptr;  // checked between steps; true ends with an Error
};

// Microseconds by part, medians over the steps, from a graph with events between the parts.
struct ModelBenchParts {
  double embedding = 0;
  double linear_products = 0;  // norm, products, convolution, gate of the linear mixers
  double recurrence = 0;       // the library's decode calls
  double attention = 0;        // full-attention mixers
  double mlp = 0;
  double head = 0;  // final norm and logits
};

struct ModelBenchRow {
  std::string backend;   // that keeps the states
  double step = 0;       // microseconds of a step, median, from a graph without these events
  double mean_step = 0;  // with the folds that some steps make
  double slowest_step = 0;
  ModelBenchParts parts;
  std::int64_t weight_bytes = 0;  // read per step
  std::int64_t state_bytes = 0;   // recurrent state of one sequence, all layers
  std::int64_t kv_bytes = 0;      // KV cache of one sequence at the context
};

class ModelBench {
 public:
  virtual ~ModelBench() = default;
  virtual std::string device_name() const = 0;
  // Throws Error when states and KV caches do not fit beside the weights (with the bytes).
  virtual ModelBenchRow measure(const StateFormat& format, const ModelBenchOptions& options) = 0;
};

// Makes the weights on the CUDA device. Throws Error as load_on_cuda().
std::unique_ptr<ModelBench> make_cuda_model_bench(const ModelConfig& config,
                                                  Activations activations);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MODEL_BENCH_H_
