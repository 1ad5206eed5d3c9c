// SPDX-License-Identifier: Apache-2.0
//
// See forward.h. The order of operations is that of the CPU's layers.
#include "runtime/cuda/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/cuda/rows.h"
#include "runtime/error.h"

namespace leapquant::runtime::cuda {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

AttentionShape shape_of(const ModelConfig& config) {
  if (config.num_full_layers() > 0 && !attention_takes(config.head_dim)) {
    throw Error(
        fmt::format("Attention heads of {} elements have no CUDA kernel; 32, 64, 128 and "
                    "256 have. Use the CPU.",
                    config.head_dim));
  }
  if (config.linear_conv_kernel > kMostTaps || config.linear_conv_kernel < 1) {
    throw Error(fmt::format("A convolution of {} taps has no CUDA kernel; 1 to {} have.",
                            config.linear_conv_kernel, kMostTaps));
  }
  return attention_shape(static_cast<std::int32_t>(config.num_attention_heads),
                         static_cast<std::int32_t>(config.num_key_value_heads),
                         static_cast<std::int32_t>(config.head_dim),
                         static_cast<std::int32_t>(config.rotary_dim / 2), config.attn_output_gate,
                         static_cast<float>(config.rms_norm_eps));
}

std::int64_t linear_row(const ModelConfig& config) {
  return config.conv_dim() + config.linear_value_dim() + 2 * config.linear_num_value_heads;
}

}  // namespace

std::int64_t Forward::place_bytes(const ModelConfig& config, const StateFormat& format,
                                  Element element, const ForwardOptions& options) {
  return DeviceStates::reserved_bytes(config, format, options.places, options.max_tokens) +
         options.places * config.num_linear_layers() * (config.linear_conv_kernel - 1) *
             config.conv_dim() * element_bytes(element);
}

Forward::Forward(const Weights& weights, const ModelConfig& config, const StateFormat& format,
                 const Stream& stream, const ForwardOptions& options)
    : weights_(weights),
      config_(config),
      stream_(stream),
      options_(options),
      element_(weights.element()),
      attention_(shape_of(config)),
      multiprocessors_(num_multiprocessors()),
      most_rows_(std::max<std::int64_t>(std::int64_t{options.places} * options.max_tokens,
                                        options.max_prefill_rows)),
      products_(stream, element_),
      states_(config, format, stream, options.places, options.max_tokens) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    frequencies.push_back(std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  }
  frequencies_ = DeviceMemory(static_cast<std::int64_t>(frequencies.size() * sizeof(double)));
  check(cudaMemcpy(frequencies_.data(), frequencies.data(), frequencies.size() * sizeof(double),
                   cudaMemcpyHostToDevice),
        "copy frequencies");

  const std::int64_t rows = most_rows_;
  const std::int64_t element = element_bytes(element_);
  const std::int64_t heads_dim = config.num_attention_heads * config.head_dim;
  rings_ = DeviceMemory(options.places * config.num_linear_layers() * ring_bytes());
  kv_places_ = DeviceMemory(options.places * static_cast<std::int64_t>(sizeof(KvPlace)));
  hidden_ = DeviceMemory(rows * config.hidden_size * kFloat);
  normed_ = DeviceMemory(rows * config.hidden_size * element);
  projected_ =
      DeviceMemory(rows * element *
                   std::max({linear_row(config), attention_.row, 2 * config.intermediate_size}));
  convolved_ = DeviceMemory(rows * config.conv_dim() * element);
  gate_floats_ = DeviceMemory(rows * 2 * config.linear_num_value_heads * kFloat);
  read_out_ = DeviceMemory(rows * config.linear_value_dim() * element);
  mixed_ = DeviceMemory(rows * element *
                        std::max({config.linear_value_dim(), heads_dim, config.intermediate_size}));
  query_floats_ = DeviceMemory(rows * heads_dim * kFloat);
  cosines_ = DeviceMemory(rows * attention_.rotary_half * kFloat);
  sines_ = DeviceMemory(rows * attention_.rotary_half * kFloat);
  // Splits are chosen so that blocks exceed this by at most one round (attention_splits).
  PassSize largest;
  largest.chunks = static_cast<std::int32_t>(
      std::max<std::int64_t>(std::int64_t{options.places} * chunks_of(options.max_tokens),
                             std::int64_t{options.max_prefill_rows} * chunks_of(1)));
  part_floats_ = DeviceMemory(kFloat * (attention_parts_floats(attention_, largest, 1) +
                                        std::int64_t{kAttentionBlocksPerMultiprocessor} *
                                            multiprocessors_ * attention_.part_floats));
  logits_ = DeviceMemory(most_picked() * config.vocab_size * kFloat);
  statuses_ = DeviceMemory(config.num_linear_layers() *
                           std::max<std::int64_t>(options.places, options.max_prefill_rows) *
                           static_cast<std::int64_t>(sizeof(std::int32_t)));
}

std::int64_t Forward::kv_bytes_per_token() const {
  return std::int64_t{2} * config_.num_full_layers() * config_.num_key_value_heads *
         config_.head_dim * element_bytes(options_.kv_type);
}

std::int32_t Forward::chunks_of(std::int32_t tokens) const {
  return (tokens * attention_.group + kQueriesPerChunk - 1) / kQueriesPerChunk;
}

PassSize Forward::decode_size(std::int32_t tokens) const {
  PassSize size;
  size.segments = options_.places;
  size.rows = options_.places * tokens;
  size.chunks = options_.places * chunks_of(tokens);
  return size;
}

std::int64_t Forward::ring_bytes() const {
  return ring_inputs() * config_.conv_dim() * element_bytes(element_);
}

std::byte* Forward::ring(std::int32_t place, std::int32_t layer) const {
  return rings_.data() + (std::int64_t{place} * config_.num_linear_layers() + layer) * ring_bytes();
}

void Forward::clear_rings(std::int32_t place) {
  check(cudaMemsetAsync(ring(place, 0), 0,
                        static_cast<std::size_t>(config_.num_linear_layers() * ring_bytes()),
                        stream_.get()),
        "clear memory");
}

void Forward::set_kv_place(std::int32_t place, const KvPlace& kv) {
  check(cudaMemcpyAsync(kv_places_.as<KvPlace>() + place, &kv, sizeof(kv), cudaMemcpyHostToDevice,
                        stream_.get()),
        "copy arguments");
}

void Forward::norm(const float* factor, std::int64_t rows) {
  rms_norm(stream_.get(), hidden_.as<float>(), nullptr, rows, config_.hidden_size, factor,
           static_cast<float>(config_.rms_norm_eps), normed_.data(), element_);
}

void Forward::run_linear(const Layer& layer, const LinearMixer& mixer, const PassTables& tables,
                         const PassSize& size, const StateCall& call, PartTimer* timer) {
  const std::int64_t row = linear_row(config_);
  const std::int64_t element = element_bytes(element_);
  norm(layer.input_norm, size.rows);
  products_.multiply(mixer.in, normed_.data(), size.rows, projected_.data(), element_);

  Convolution convolution{};
  convolution.x = projected_.data();
  convolution.x_stride = row;
  convolution.weights = mixer.convolution;
  convolution.taps = static_cast<std::int32_t>(config_.linear_conv_kernel);
  convolution.channels = config_.conv_dim();
  convolution.history = ring(0, layer.index);
  convolution.place_stride = config_.num_linear_layers() * ring_inputs() * config_.conv_dim();
  convolution.y = convolved_.data();
  convolve(stream_.get(), convolution, tables, size, element_);

  // Gates ready in FP32 are what the library's fastest decode takes.
  const std::byte* z = projected_.data() + config_.conv_dim() * element;
  const std::int64_t heads = config_.linear_num_value_heads;
  Gates gates{};
  gates.a = z + config_.linear_value_dim() * element;
  gates.b = z + (config_.linear_value_dim() + heads) * element;
  gates.stride = row;
  gates.rows = size.rows;
  gates.heads = heads;
  gates.a_log = mixer.a_log;
  gates.dt_bias = mixer.dt_bias;
  gates.log_decay = gate_floats_.as<float>();
  gates.beta = gates.log_decay + most_rows_ * heads;
  form_gates(stream_.get(), gates, element_);

  if (timer != nullptr) timer->mark(stream_.get(), Part::kRecurrence);
  StateInputs inputs;
  inputs.element = element_;
  inputs.q_k_v = convolved_.data();
  inputs.log_decay = gates.log_decay;
  inputs.beta = gates.beta;
  inputs.output = read_out_.data();
  std::int32_t* status = statuses_.as<std::int32_t>() + std::int64_t{layer.index} * size.segments;
  if (call.decode) {
    states_.decode(layer.index, tables, size.segments, call.tokens, inputs, status);
  } else {
    states_.prefill(layer.index, tables, call.direct, inputs, status);
    states_.prefill(layer.index, tables, call.carried, inputs, status);
  }
  if (timer != nullptr) timer->mark(stream_.get(), Part::kLinearProducts);

  GatedNorm gated{};
  gated.o = read_out_.data();
  gated.z = z;
  gated.z_stride = row;
  gated.rows = size.rows;
  gated.heads = config_.linear_num_value_heads;
  gated.size = config_.linear_value_head_dim;
  gated.factor = mixer.norm;
  gated.eps = static_cast<float>(config_.rms_norm_eps);
  gated.sigmoid_gate = config_.output_gate == OutputGate::kSigmoid;
  gated.y = mixed_.data();
  gated_rms_norm(stream_.get(), gated, element_);
  products_.multiply_add(mixer.out, mixed_.data(), size.rows, hidden_.as<float>());
}

void Forward::run_full(const Layer& layer, const FullMixer& mixer, const PassTables& tables,
                       const PassSize& size) {
  norm(layer.input_norm, size.rows);
  products_.multiply(mixer.in, normed_.data(), size.rows, projected_.data(), element_);
  Attention attention{};
  attention.shape = attention_;
  attention.full_layer = layer.index;
  attention.kv = kv_places_.as<KvPlace>();
  attention.kv_type = options_.kv_type;
  attention.projected = projected_.data();
  attention.q_norm = mixer.q_norm;
  attention.k_norm = mixer.k_norm;
  attention.cosines = cosines_.as<float>();
  attention.sines = sines_.as<float>();
  attention.queries = query_floats_.as<float>();
  attention.parts = part_floats_.as<float>();
  attention.splits = attention_splits(attention_, size, multiprocessors_);
  attention.y = mixed_.data();
  attend(stream_.get(), attention, tables, size, element_);
  products_.multiply_add(mixer.out, mixed_.data(), size.rows, hidden_.as<float>());
}

void Forward::run_mlp(const Layer& layer, std::int64_t rows) {
  norm(layer.post_norm, rows);
  products_.multiply(layer.gate_up, normed_.data(), rows, projected_.data(), element_);
  swiglu(stream_.get(), projected_.data(), rows, config_.intermediate_size, mixed_.data(),
         element_);
  products_.multiply_add(layer.down, mixed_.data(), rows, hidden_.as<float>());
}

void Forward::run(const PassTables& tables, const PassSize& size, const StateCall& call,
                  PartTimer* timer) {
  const auto mark = [&](Part part) {
    if (timer != nullptr) timer->mark(stream_.get(), part);
  };
  mark(Part::kEmbedding);
  look_up(stream_.get(), weights_.embedding().data, element_, tables.token_ids, size.rows,
          config_.hidden_size, hidden_.as<float>());
  rotary_angles(stream_.get(), tables, size, frequencies_.as<double>(), attention_.rotary_half,
                cosines_.as<float>(), sines_.as<float>());
  for (const Layer& layer : weights_.layers()) {
    if (const auto* linear = std::get_if<LinearMixer>(&layer.mixer)) {
      mark(Part::kLinearProducts);
      run_linear(layer, *linear, tables, size, call, timer);
    } else {
      mark(Part::kAttention);
      run_full(layer, std::get<FullMixer>(layer.mixer), tables, size);
    }
    mark(Part::kMlp);
    run_mlp(layer, size.rows);
  }
  mark(Part::kHead);
  if (call.decode) head(nullptr, size.rows);
  mark(Part::kEnd);
}

void Forward::head(const std::int32_t* picked, std::int64_t rows) {
  rms_norm(stream_.get(), hidden_.as<float>(), picked, rows, config_.hidden_size,
           weights_.final_norm(), static_cast<float>(config_.rms_norm_eps), normed_.data(),
           element_);
  products_.multiply(weights_.head(), normed_.data(), rows, logits_.data(), Element::kFp32);
}

}  // namespace leapquant::runtime::cuda
