// SPDX-License-Identifier: Apache-2.0
//
// See cpu_engine.h.
#include "runtime/cpu_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/error.h"
#include "runtime/kernels/rows.h"
#include "runtime/memory.h"
#include "runtime/rotary.h"
#include "runtime/scratch.h"

namespace leapquant::runtime {
namespace {

class CpuEngine final : public Engine {
 public:
  CpuEngine(const Model& model, const StateFormat& format, const Threads& threads,
            const BatchOptions& options);

  const char* backend() const override { return states_->backend(); }
  std::int64_t kv_limit() const override { return kv_limit_; }
  void open(Sequence& sequence) override;
  void close(Sequence& sequence) override;
  bool needs_carry() const override { return states_->needs_carry(); }
  bool is_carried(const Sequence& sequence) const override {
    return sequence.place.carry_slot >= 0;
  }
  bool begin_carry(Sequence& sequence) override {
    return states_->begin_carry(sequence.place, position_of(sequence));
  }
  void end_carry(Sequence& sequence) override {
    states_->end_carry(sequence.place, position_of(sequence));
  }
  void run(const Pass& pass, std::span<const TokenId> tokens, std::span<const std::int64_t> wanted,
           const RowResults& results) override;
  bool prefers_picks() const override { return false; }
  std::span<float> logits_buffer(std::size_t count) override {
    logits_.resize(std::max(count, logits_.size()));
    return std::span(logits_).first(count);
  }
  std::int32_t tokens_to_boundary(std::int32_t position, std::int32_t most) const override {
    return states_->tokens_to_boundary(position, most);
  }
  void record(Recorder* recorder) override { recorder_ = recorder; }

  void export_state(const Sequence& sequence, std::int32_t layer, std::span<float> state) override {
    states_->export_state(layer, sequence.place, position_of(sequence), state);
  }
  std::vector<float> convolution(const Sequence& sequence, std::int32_t layer) const override;
  std::vector<leapquant_health> health(const Sequence& sequence,
                                       std::int32_t layer) const override {
    const auto heads = states_->health(layer, sequence.place);
    return {heads.begin(), heads.end()};
  }
  std::vector<std::byte> save_state(const Sequence& sequence, std::int32_t layer,
                                    std::uint64_t fingerprint) const override {
    return states_->save(layer, sequence.place, position_of(sequence), fingerprint);
  }
  std::vector<std::byte> pack_kv(const Sequence& sequence) const override {
    return sequence.kv.pack();
  }
  void load_state(Sequence& sequence, std::int32_t layer, std::span<const std::byte> blob,
                  std::uint64_t fingerprint, std::int64_t position) override {
    states_->load(layer, sequence.place, blob, fingerprint, static_cast<std::int32_t>(position));
  }
  void restore_convolution(Sequence& sequence, std::int32_t layer,
                           std::span<const float> inputs) override;
  void unpack_kv(Sequence& sequence, std::span<const std::byte> bytes,
                 std::int64_t num_tokens) override {
    sequence.kv.unpack(bytes, num_tokens);
  }

 private:
  static std::int32_t position_of(const Sequence& sequence) {
    return static_cast<std::int32_t>(sequence.position);
  }
  // Of one linear layer of a sequence.
  std::size_t layer_floats() const {
    const ModelConfig& config = model_.config();
    return static_cast<std::size_t>((config.linear_conv_kernel - 1) * config.conv_dim());
  }

  const Model& model_;
  const Threads& threads_;
  Rotary rotary_;
  std::int64_t kv_limit_ = 0;
  std::unique_ptr<RecurrentStates> states_;
  Scratch scratch_;
  std::vector<float> logits_;
  Recorder* recorder_ = nullptr;
};

CpuEngine::CpuEngine(const Model& model, const StateFormat& format, const Threads& threads,
                     const BatchOptions& options)
    : model_(model),
      threads_(threads),
      rotary_(model.config().rope_theta, model.config().rotary_dim) {
  const std::int64_t limit =
      options.memory_bytes > 0 ? options.memory_bytes : available_memory_bytes() / 4 * 3;
  const std::int64_t states = RecurrentStates::reserved_bytes(
      model.config(), format, options.max_sequences, options.max_tokens_per_call);
  const std::int64_t convolutions = options.max_sequences * model.config().num_linear_layers() *
                                    static_cast<std::int64_t>(layer_floats() * sizeof(float));
  require_states_fit(states + convolutions, limit, format, options);
  kv_limit_ = limit - states - convolutions;
  states_ = std::make_unique<RecurrentStates>(model.config(), format, threads,
                                              options.max_sequences, options.max_tokens_per_call);
}

void CpuEngine::open(Sequence& sequence) {
  sequence.place = states_->open();
  const auto layers = static_cast<std::size_t>(model_.config().num_linear_layers());
  sequence.convolution.assign(layers * layer_floats(), 0.0f);
}

void CpuEngine::close(Sequence& sequence) {
  states_->close(sequence.place);
  sequence.kv.clear();
  sequence.convolution.clear();
}

void CpuEngine::run(const Pass& given, std::span<const TokenId> tokens,
                    std::span<const std::int64_t> wanted, const RowResults& results) {
  Pass pass = given;
  const std::int64_t rows = pass.rows;
  const std::int64_t hidden_size = model_.config().hidden_size;
  float* cosines = scratch_.cosines.floats(rows * rotary_.half());
  float* sines = scratch_.sines.floats(rows * rotary_.half());
  for (const Segment& segment : pass.segments) {
    Sequence& sequence = *segment.sequence;
    sequence.kv.grow(sequence.position + segment.rows);
    for (std::int64_t i = 0; i < segment.rows; ++i) {
      const std::int64_t at = (segment.first_row + i) * rotary_.half();
      rotary_.angles(sequence.position + i, cosines + at, sines + at);
    }
  }
  pass.cosines = cosines;
  pass.sines = sines;
  pass.threads = &threads_;
  pass.scratch = &scratch_;
  pass.states = states_.get();
  pass.recorder = recorder_;

  float* hidden = scratch_.hidden.floats(rows * hidden_size);
  float* normed = scratch_.normed.floats(rows * hidden_size);
  float* mixed = scratch_.mixed.floats(rows * hidden_size);
  model_.embedding().look_up(tokens, hidden);
  for (const DecoderLayer& layer : model_.layers()) {
    layer.input_norm.apply(threads_, hidden, rows, normed);
    std::visit([&](const auto& mixer) { mixer.forward(pass, normed, mixed); }, layer.mixer);
    kernels::add(hidden, mixed, rows * hidden_size);
    layer.post_norm.apply(threads_, hidden, rows, normed);
    layer.mlp.forward(threads_, scratch_, normed, rows, mixed);
    kernels::add(hidden, mixed, rows * hidden_size);
  }
  if (wanted.empty()) return;
  const auto count = static_cast<std::int64_t>(wanted.size());
  float* selected = scratch_.selected.floats(count * hidden_size);
  for (std::int64_t i = 0; i < count; ++i) {
    model_.final_norm().apply_row(hidden + wanted[static_cast<std::size_t>(i)] * hidden_size,
                                  selected + i * hidden_size);
  }
  if (results.picks == nullptr) {
    multiply(threads_, selected, count, model_.head(), results.logits);
    return;
  }
  const auto vocab_size = static_cast<std::size_t>(model_.config().vocab_size);
  const std::span<float> logits = logits_buffer(wanted.size() * vocab_size);
  multiply(threads_, selected, count, model_.head(), logits.data());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    results.picks[i] = pick_of(logits.subspan(i * vocab_size, vocab_size));
  }
}

std::vector<float> CpuEngine::convolution(const Sequence& sequence, std::int32_t layer) const {
  const auto first = sequence.convolution.begin() +
                     static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * layer_floats());
  return {first, first + static_cast<std::ptrdiff_t>(layer_floats())};
}

void CpuEngine::restore_convolution(Sequence& sequence, std::int32_t layer,
                                    std::span<const float> inputs) {
  std::copy(inputs.begin(), inputs.end(),
            sequence.convolution.begin() +
                static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * layer_floats()));
}

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(const Model& model, const StateFormat& format,
                                        const Threads& threads, const BatchOptions& options) {
  return std::make_unique<CpuEngine>(model, format, threads, options);
}

}  // namespace leapquant::runtime
