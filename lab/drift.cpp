// SPDX-License-Identifier: Apache-2.0
//
// See drift.h.
#include "lab/drift.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "lab/parallel.h"
#include "runtime/error.h"

namespace leapquant::lab {
namespace {

double state_error(const std::vector<float>& approximate, const ExactState& exact, int v_head) {
  const std::vector<double> truth = exact.matrix(v_head);
  const float* head = approximate.data() + static_cast<std::size_t>(v_head) * truth.size();
  double difference = 0;
  double reference = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double d = static_cast<double>(head[i]) - truth[i];
    difference += d * d;
    reference += truth[i] * truth[i];
  }
  return reference > 0 ? difference / reference : 0;
}

constexpr std::int64_t kTokensAtOnce = 512;  // so many go by before a cancellation is seen

void stop_when_cancelled(const DriftOptions& options) {
  if (options.cancel != nullptr && *options.cancel) {
    throw runtime::Error("Interrupted; there are no results.");
  }
}

// One sequence in progress: the exact layers and every (state, layer) pair.
class Replay {
 public:
  Replay(const LayerShape& shape, int layers, const DriftOptions& options, std::string name)
      : shape_(shape), options_(options) {
    result_.name = std::move(name);
    result_.heads.resize(options.states.size());
    exact_outputs_.resize(static_cast<std::size_t>(layers));
    for (int layer = 0; layer < layers; ++layer) exact_.emplace_back(shape);
    for (std::size_t s = 0; s < options.states.size(); ++s) {
      for (int layer = 0; layer < layers; ++layer) {
        formats_.push_back(std::make_unique<FormatLayer>(
            shape, options.states[s].layers[static_cast<std::size_t>(layer)]));
        for (int head = 0; head < shape.num_v_heads; ++head) {
          HeadDrift& drift = result_.heads[s].emplace_back();
          drift.layer = layer;
          drift.v_head = head;
        }
      }
    }
    decay_sums_.resize(static_cast<std::size_t>(layers * shape.num_v_heads));
  }

  void advance(const InputChunk& chunk) {
    if (chunk.position != result_.tokens) {
      throw runtime::Error("The recording of sequence " + runtime::in_quotes(chunk.sequence) +
                           " has a gap at position " + std::to_string(result_.tokens) +
                           "; record it again.");
    }
    // A bucket must end where the states are looked at, so chunks are cut there.
    const std::int64_t tokens = chunk.layers.front().tokens;
    for (std::int64_t done = 0; done < tokens;) {
      const std::int64_t until_bucket = options_.every - result_.tokens % options_.every;
      const auto count = static_cast<int>(std::min({tokens - done, until_bucket, kTokensAtOnce}));
      advance_part(chunk, static_cast<int>(done), count);
      done += count;
    }
  }

  SequenceDrift finish() {
    if (result_.tokens % options_.every != 0) record_states();
    for (auto& heads : result_.heads) {
      for (std::size_t i = 0; i < heads.size(); ++i) {
        heads[i].mean_log_decay = decay_sums_[i] / static_cast<double>(result_.tokens);
      }
    }
    return std::move(result_);
  }

 private:
  int layers() const { return static_cast<int>(exact_.size()); }

  LayerInputs part_of(const LayerInputs& inputs, int first, int count) const {
    LayerInputs part;
    part.tokens = count;
    const auto cut = [&](const std::vector<float>& all, std::size_t row) {
      const float* begin = all.data() + static_cast<std::size_t>(first) * row;
      return std::vector<float>(begin, begin + static_cast<std::size_t>(count) * row);
    };
    const auto heads = static_cast<std::size_t>(shape_.num_v_heads);
    part.q = cut(inputs.q, shape_.k_row());
    part.k = cut(inputs.k, shape_.k_row());
    part.v = cut(inputs.v, shape_.v_row());
    part.log_decay = cut(inputs.log_decay, heads);
    part.beta = cut(inputs.beta, heads);
    return part;
  }

  void advance_part(const InputChunk& chunk, int first, int count) {
    std::vector<LayerInputs> inputs;
    for (const LayerInputs& layer : chunk.layers) inputs.push_back(part_of(layer, first, count));
    for_each_index(layers(), options_.threads, [&](int layer) {
      stop_when_cancelled(options_);
      const auto l = static_cast<std::size_t>(layer);
      exact_outputs_[l].resize(static_cast<std::size_t>(count) * shape_.v_row());
      exact_[l].advance(inputs[l], exact_outputs_[l], 1);
    });
    const int pairs = static_cast<int>(formats_.size());
    for_each_index(pairs, options_.threads, [&](int pair) {
      stop_when_cancelled(options_);
      const int layer = pair % layers();
      std::vector<float> outputs(static_cast<std::size_t>(count) * shape_.v_row());
      formats_[static_cast<std::size_t>(pair)]->advance(inputs[static_cast<std::size_t>(layer)],
                                                        outputs);
      compare(pair, outputs, count);
    });
    for (int layer = 0; layer < layers(); ++layer) {
      const std::vector<float>& decays = inputs[static_cast<std::size_t>(layer)].log_decay;
      for (std::size_t i = 0; i < decays.size(); ++i) {
        const std::size_t head = i % static_cast<std::size_t>(shape_.num_v_heads);
        decay_sums_[static_cast<std::size_t>(layer * shape_.num_v_heads) + head] += decays[i];
      }
    }
    result_.tokens += count;
    if (result_.tokens % options_.every == 0) record_states();
  }

  void compare(int pair, std::span<const float> outputs, int count) {
    const int layer = pair % layers();
    auto& heads = result_.heads[static_cast<std::size_t>(pair / layers())];
    const std::vector<double>& exact = exact_outputs_[static_cast<std::size_t>(layer)];
    const auto width = static_cast<std::size_t>(shape_.head_v_dim);
    for (int h = 0; h < shape_.num_v_heads; ++h) {
      HeadDrift& drift = heads[static_cast<std::size_t>(layer * shape_.num_v_heads + h)];
      for (int t = 0; t < count; ++t) {
        const std::int64_t position = result_.tokens + t;
        const std::size_t row =
            static_cast<std::size_t>(t) * shape_.v_row() + static_cast<std::size_t>(h) * width;
        ErrorSums token;
        for (std::size_t j = 0; j < width; ++j) {
          const double d = static_cast<double>(outputs[row + j]) - exact[row + j];
          token.difference += d * d;
          token.reference += exact[row + j] * exact[row + j];
        }
        if (!std::isfinite(token.difference)) drift.finite = false;
        const auto bucket = static_cast<std::size_t>(position / options_.every);
        if (drift.outputs.size() <= bucket) drift.outputs.resize(bucket + 1);
        add(drift.outputs[bucket], token);
        if (position >= options_.from && position < options_.to) add(drift.span, token);
        const double limit = options_.divergence * options_.divergence * token.reference;
        if (drift.first_divergence < 0 && !(token.difference <= limit)) {
          drift.first_divergence = position;
        }
      }
    }
  }

  static void add(ErrorSums& sums, const ErrorSums& token) {
    sums.difference += token.difference;
    sums.reference += token.reference;
  }

  void record_states() {
    for_each_index(static_cast<int>(formats_.size()), options_.threads, [&](int pair) {
      const int layer = pair % layers();
      const FormatLayer& format = *formats_[static_cast<std::size_t>(pair)];
      const std::vector<float> matrices = format.matrices();
      for (int h = 0; h < shape_.num_v_heads; ++h) {
        HeadDrift& drift = result_.heads[static_cast<std::size_t>(pair / layers())]
                                        [static_cast<std::size_t>(layer * shape_.num_v_heads + h)];
        drift.state_error.push_back(
            state_error(matrices, exact_[static_cast<std::size_t>(layer)], h));
        drift.health_flags = format.health(h).flags;
      }
    });
  }

  LayerShape shape_;
  const DriftOptions& options_;
  SequenceDrift result_;
  std::vector<ExactState> exact_;
  std::vector<std::vector<double>> exact_outputs_;     // [layers] of the current part
  std::vector<std::unique_ptr<FormatLayer>> formats_;  // [states * layers]
  std::vector<double> decay_sums_;                     // [layers * v_heads]
};

}  // namespace

std::vector<SequenceDrift> measure_drift(InputSource& source, const DriftOptions& options,
                                         const std::function<void(std::int64_t)>& progress) {
  const SequenceLength shortest = source.shortest();
  if (shortest.tokens <= options.from) {
    throw runtime::Error(
        "The sequence " + runtime::in_quotes(shortest.name, 400) + " has " +
        std::to_string(shortest.tokens) + " tokens, but errors are summed from token " +
        std::to_string(options.from) + " on (--from); give more tokens or a smaller --from.");
  }
  std::vector<SequenceDrift> results;
  std::unique_ptr<Replay> replay;
  std::string current;
  std::int64_t tokens = 0;
  InputChunk chunk;
  while (source.next(chunk)) {
    stop_when_cancelled(options);
    if (!replay || chunk.sequence != current) {
      if (replay) results.push_back(replay->finish());
      current = chunk.sequence;
      replay = std::make_unique<Replay>(source.shape(), source.num_layers(), options, current);
    }
    replay->advance(chunk);
    tokens += chunk.layers.front().tokens;
    if (progress) progress(tokens);
  }
  if (replay) results.push_back(replay->finish());
  if (results.empty()) throw runtime::Error("The recording holds no tokens.");
  return results;
}

double mean_span_error(const std::vector<SequenceDrift>& sequences, std::size_t state) {
  const std::size_t heads = sequences.front().heads[state].size();
  double total = 0;
  for (std::size_t h = 0; h < heads; ++h) {
    ErrorSums sums;
    for (const SequenceDrift& sequence : sequences) {
      sums.difference += sequence.heads[state][h].span.difference;
      sums.reference += sequence.heads[state][h].span.reference;
    }
    total += sums.ratio();
  }
  return total / static_cast<double>(heads);
}

double mean_bucket_error(const std::vector<SequenceDrift>& sequences, std::size_t state,
                         std::size_t first, std::size_t last) {
  const std::size_t heads = sequences.front().heads[state].size();
  double total = 0;
  for (std::size_t h = 0; h < heads; ++h) {
    ErrorSums sums;
    for (const SequenceDrift& sequence : sequences) {
      const auto& buckets = sequence.heads[state][h].outputs;
      for (std::size_t b = first; b < std::min(last, buckets.size()); ++b) {
        sums.difference += buckets[b].difference;
        sums.reference += buckets[b].reference;
      }
    }
    total += sums.ratio();
  }
  return total / static_cast<double>(heads);
}

}  // namespace leapquant::lab
