// SPDX-License-Identifier: Apache-2.0
//
// See runtime/model_bench.h. Steps are replays of one recorded graph; logits stay on the device and
// fed tokens come from a formula, so a step is what the device does and nothing else.
#include "runtime/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/cuda/forward.h"
#include "runtime/cuda/rows.h"
#include "runtime/error.h"
#include "runtime/memory.h"

namespace leapquant::runtime {
namespace cuda {
namespace {

// Begins of sequences differ by up to a window, so that every step folds its share of them.
constexpr std::int32_t kSpread = 16;
constexpr std::int32_t kWarmUp = 32;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A batch of sequences at their context, and its step.
class Steps {
 public:
  Steps(const Weights& weights, const ModelConfig& config, const StateFormat& format,
        const ModelBenchOptions& options, std::int64_t most_steps)
      : config_(config),
        options_(options),
        forward_(weights, config, format, stream_, forward_options(options)),
        size_(forward_.decode_size(1)),
        host_tables_(pass_tables_bytes(size_)),
        device_tables_(pass_tables_bytes(size_)),
        tables_(lay_out_pass_tables(size_, host_tables_.data())) {
    const std::int64_t capacity = capacity_of(options, most_steps);
    kv_ = DeviceMemory(options.batch * capacity * forward_.kv_bytes_per_token());
    const Element kv_type = forward_options(options).kv_type;
    fill_random(stream_.get(), kv_.data(), kv_type, kv_.bytes() / element_bytes(kv_type), 7, 0.0f,
                1.0f);
    std::memset(host_tables_.data(), 0, static_cast<std::size_t>(pass_tables_bytes(size_)));
    std::int32_t next_chunk = 0;
    for (std::int32_t place = 0; place < options.batch; ++place) {
      forward_.set_kv_place(
          place, {kv_.data() + place * capacity * forward_.kv_bytes_per_token(), capacity});
      forward_.clear_rings(place);
      tables_.slots[place] = place;
      tables_.positions[place] = static_cast<std::int32_t>(options.context) + place % kSpread;
      tables_.tokens[place] = 1;
      tables_.first_rows[place] = place;
      tables_.row_segments[place] = place;
      tables_.token_ids[place] = token_of(place);
      forward_.states().reset(place, tables_.positions[place]);
      for (std::int32_t chunk = 0; chunk < forward_.chunks_of(1); ++chunk) {
        tables_.chunk_segments[next_chunk] = place;
        tables_.chunk_queries[next_chunk++] = chunk * kQueriesPerChunk;
      }
    }
    stream_.wait();
  }

  static ForwardOptions forward_options(const ModelBenchOptions& options) {
    ForwardOptions forward;
    forward.places = options.batch;
    forward.max_prefill_rows = 1;
    forward.max_picked = 1;
    forward.kv_type = options.kv_type == KvType::kFp32 ? Element::kFp32 : Element::kBf16;
    return forward;
  }
  static std::int64_t capacity_of(const ModelBenchOptions& options, std::int64_t most_steps) {
    return options.context + kSpread + most_steps;
  }

  const char* backend() const { return forward_.states().backend(); }
  std::int64_t kv_bytes_per_token() const { return forward_.kv_bytes_per_token(); }

  Graph record(PartTimer* timer) {
    return Graph::record(stream_, [&] { launch(timer); });
  }
  void run_unrecorded() {
    launch(nullptr);
    advance();
  }
  // Microseconds.
  double run(const Graph& graph) {
    check(cudaEventRecord(begin_.get(), stream_.get()), "mark a time");
    graph.launch(stream_);
    check(cudaEventRecord(end_.get(), stream_.get()), "mark a time");
    advance();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "tell a time");
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  void launch(PartTimer* timer) {
    check(cudaMemcpyAsync(device_tables_.data(), host_tables_.data(),
                          static_cast<std::size_t>(pass_tables_bytes(size_)),
                          cudaMemcpyHostToDevice, stream_.get()),
          "copy a pass");
    forward_.run(lay_out_pass_tables(size_, device_tables_.data()), size_, StateCall(), timer);
  }

  void advance() {
    stream_.wait();
    if (options_.cancel != nullptr && options_.cancel->load()) {
      throw Error("Interrupted; no results.");
    }
    std::vector<std::int32_t> statuses(
        static_cast<std::size_t>(config_.num_linear_layers() * size_.segments));
    check(cudaMemcpy(statuses.data(), forward_.statuses(), statuses.size() * sizeof(std::int32_t),
                     cudaMemcpyDeviceToHost),
          "copy statuses");
    for (const std::int32_t status : statuses) {
      if (status != LEAPQUANT_OK) {
        throw Error(fmt::format("A sequence stopped at position {}, so the times mean nothing. {}",
                                tables_.positions[0],
                                leapquant_status_string(static_cast<leapquant_status>(status))));
      }
    }
    for (std::int32_t place = 0; place < options_.batch; ++place) {
      ++tables_.positions[place];
      tables_.token_ids[place] = token_of(place);
    }
  }

  // The next token of a sequence: another one at every position, unless tokens are to repeat.
  std::int32_t token_of(std::int32_t place) const {
    const std::int64_t step = options_.repeat_token ? 0 : tables_.positions[place];
    return static_cast<std::int32_t>((place * 7919LL + step * 104729LL) % config_.vocab_size);
  }

  const ModelConfig& config_;
  ModelBenchOptions options_;
  Stream stream_;
  Event begin_;
  Event end_;
  Forward forward_;
  PassSize size_;
  PinnedMemory host_tables_;
  DeviceMemory device_tables_;
  PassTables tables_;
  DeviceMemory kv_;
};

class CudaModelBench final : public ModelBench {
 public:
  CudaModelBench(const ModelConfig& config, Activations activations)
      : config_(config),
        name_(require_device()),
        weights_(Weights::random(
            config, activations == Activations::kFp32 ? Element::kFp32 : Element::kBf16, 1)) {}

  std::string device_name() const override { return name_; }
  ModelBenchRow measure(const StateFormat& format, const ModelBenchOptions& options) override;

 private:
  ModelConfig config_;
  std::string name_;
  Weights weights_;
};

ModelBenchRow CudaModelBench::measure(const StateFormat& format, const ModelBenchOptions& options) {
  // Warm-up, plain steps, steps with events, and a first one that loads the kernels.
  const std::int64_t most_steps = kWarmUp + 2 * std::int64_t{options.steps} + 2;
  const std::int64_t capacity = Steps::capacity_of(options, most_steps);
  const KvShape kv{static_cast<std::int32_t>(config_.num_full_layers()),
                   static_cast<std::int32_t>(config_.num_key_value_heads),
                   static_cast<std::int32_t>(config_.head_dim), options.kv_type};
  const std::int64_t needed =
      Forward::place_bytes(config_, format, weights_.element(), Steps::forward_options(options)) +
      options.batch * capacity * kv.bytes_per_token();
  const std::int64_t available = free_device_bytes();
  if (needed > available / 20 * 19) {
    throw Error(
        fmt::format("{} sequences of {} tokens take {} in the format {}, but the device has "
                    "{} free beside the weights; use a smaller batch or context.",
                    options.batch, options.context, describe_bytes(needed), format.text,
                    describe_bytes(available)));
  }
  Steps steps(weights_, config_, format, options, most_steps);
  steps.run_unrecorded();
  const Graph plain = steps.record(nullptr);
  for (std::int32_t i = 0; i < kWarmUp; ++i) steps.run(plain);
  std::vector<double> times;
  for (std::int32_t i = 0; i < options.steps; ++i) times.push_back(steps.run(plain));

  PartTimer timer;
  const Graph timed = steps.record(&timer);
  std::vector<std::vector<double>> parts(kNumParts);
  for (std::int32_t i = 0; i < options.steps; ++i) {
    steps.run(timed);
    const auto milliseconds = timer.milliseconds();
    for (std::size_t part = 0; part < kNumParts; ++part) {
      parts[part].push_back(milliseconds[part] * 1e3);
    }
  }

  const auto part = [&](Part which) { return median(parts[static_cast<std::size_t>(which)]); };
  ModelBenchRow row;
  row.backend = steps.backend();
  row.step = median(times);
  for (const double time : times) row.mean_step += time / static_cast<double>(times.size());
  row.slowest_step = *std::max_element(times.begin(), times.end());
  row.parts = {part(Part::kEmbedding),  part(Part::kLinearProducts),
               part(Part::kRecurrence), part(Part::kAttention),
               part(Part::kMlp),        part(Part::kHead)};
  row.weight_bytes = weights_.bytes_per_step();
  row.state_bytes = state_bytes_per_sequence(config_, format).total();
  row.kv_bytes = options.context * kv.bytes_per_token();
  return row;
}

}  // namespace
}  // namespace cuda

std::unique_ptr<ModelBench> make_cuda_model_bench(const ModelConfig& config,
                                                  Activations activations) {
  return std::make_unique<cuda::CudaModelBench>(config, activations);
}

}  // namespace leapquant::runtime
