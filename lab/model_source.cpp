// SPDX-License-Identifier: Apache-2.0
//
// See model_source.h.
#include "lab/model_source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lab/tasks.h"
#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/unicode.h"

namespace leapquant::lab {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 28;

void cut(std::vector<runtime::TokenId>& tokens, std::int64_t max_tokens) {
  if (max_tokens > 0 && tokens.size() > static_cast<std::size_t>(max_tokens)) {
    tokens.resize(static_cast<std::size_t>(max_tokens));
  }
}

runtime::StateFormat fp32_state(const runtime::ModelConfig& config) {
  runtime::StateOptions options;
  options.state = "fp32";
  return runtime::resolve_state(options, config);
}

runtime::BatchOptions one_sequence(std::int64_t chunk) {
  runtime::BatchOptions options;
  options.prefill_chunk = static_cast<std::int32_t>(chunk);
  return options;
}

LayerShape shape_of(const runtime::Recording& recording) {
  return {recording.num_k_heads, recording.num_v_heads, recording.head_k_dim, recording.head_v_dim};
}

}  // namespace

TokenSequence text_sequence(const runtime::Tokenizer& tokenizer, const std::string& path,
                            std::int64_t max_tokens) {
  TokenSequence sequence;
  sequence.name = std::filesystem::path(path).stem().string();
  const std::string text = runtime::read_text_file(path, kMaxTextBytes);
  runtime::require_utf8(text, "The text " + runtime::in_quotes(path, 400));
  sequence.tokens = tokenizer.encode(text);
  if (sequence.tokens.empty()) {
    throw runtime::Error("The text " + runtime::in_quotes(path, 400) + " is empty.");
  }
  cut(sequence.tokens, max_tokens);
  return sequence;
}

TokenSequence task_sequence(const runtime::Tokenizer& tokenizer, const std::string& path,
                            runtime::TokenId end_token, std::int64_t max_tokens) {
  const std::vector<TaskFile> files = load_tasks(path);
  TokenSequence sequence;
  sequence.name = files.size() == 1 ? files.front().tier + "/" + files.front().name
                                    : std::filesystem::path(path).lexically_normal().string();
  std::size_t rows = 0;
  for (const TaskFile& file : files) rows = std::max(rows, file.tasks.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (const TaskFile& file : files) {
      if (row >= file.tasks.size()) continue;
      const Task& task = file.tasks[row];
      const std::vector<runtime::TokenId> tokens = tokenizer.encode(task.prompt + task.answer);
      sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
      sequence.tokens.push_back(end_token);
    }
    if (max_tokens > 0 && sequence.tokens.size() >= static_cast<std::size_t>(max_tokens)) break;
  }
  cut(sequence.tokens, max_tokens);
  return sequence;
}

TokenSequence concatenate(const std::vector<TokenSequence>& sequences, std::int64_t piece,
                          std::int64_t max_tokens) {
  TokenSequence joined;
  std::vector<std::size_t> next(sequences.size());
  for (const TokenSequence& sequence : sequences) {
    joined.name += (joined.name.empty() ? "" : " + ") + sequence.name;
  }
  while (joined.tokens.size() < static_cast<std::size_t>(max_tokens)) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::vector<runtime::TokenId>& tokens = sequences[i].tokens;
      const std::size_t count = std::min(static_cast<std::size_t>(piece), tokens.size() - next[i]);
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(next[i]);
      joined.tokens.insert(joined.tokens.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
      next[i] = (next[i] + count) % tokens.size();
    }
  }
  cut(joined.tokens, max_tokens);
  return joined;
}

LayerShape layer_shape(const runtime::ModelConfig& config) {
  return {static_cast<int>(config.linear_num_key_heads),
          static_cast<int>(config.linear_num_value_heads),
          static_cast<int>(config.linear_key_head_dim),
          static_cast<int>(config.linear_value_head_dim)};
}

LayerInputs normalised(const LayerShape& shape, const runtime::LayerInputs& recorded,
                       std::int64_t tokens) {
  LayerInputs inputs;
  inputs.tokens = static_cast<int>(tokens);
  inputs.v = recorded.v;
  inputs.log_decay = recorded.log_decay;
  inputs.beta = recorded.beta;
  const auto dim = static_cast<std::size_t>(shape.head_k_dim);
  const auto normalise = [&](const std::vector<float>& from, double scale) {
    std::vector<float> to(from.size());
    for (std::size_t row = 0; row < from.size(); row += dim) {
      double sum = 1e-6;
      for (std::size_t i = 0; i < dim; ++i) {
        sum += static_cast<double>(from[row + i]) * static_cast<double>(from[row + i]);
      }
      const double factor = scale / std::sqrt(sum);
      for (std::size_t i = 0; i < dim; ++i) {
        to[row + i] = static_cast<float>(static_cast<double>(from[row + i]) * factor);
      }
    }
    return to;
  };
  inputs.q = normalise(recorded.q, 1 / std::sqrt(static_cast<double>(shape.head_k_dim)));
  inputs.k = normalise(recorded.k, 1);
  return inputs;
}

ModelSource::ModelSource(const runtime::Model& model, const runtime::Threads& threads,
                         std::vector<TokenSequence> sequences, std::int64_t segment,
                         std::int64_t chunk)
    : model_(model),
      shape_(layer_shape(model.config())),
      num_layers_(static_cast<int>(model.config().num_linear_layers())),
      sequences_(std::move(sequences)),
      segment_(std::min(segment, model.config().max_position_embeddings)),
      chunk_(std::min(chunk, segment_)),
      batch_(model, fp32_state(model.config()), threads, one_sequence(chunk_)) {}

std::int64_t ModelSource::total_tokens() const {
  std::int64_t total = 0;
  for (const TokenSequence& sequence : sequences_) {
    total += static_cast<std::int64_t>(sequence.tokens.size());
  }
  return total;
}

SequenceLength ModelSource::shortest() const {
  const auto at = std::min_element(sequences_.begin(), sequences_.end(),
                                   [](const TokenSequence& a, const TokenSequence& b) {
                                     return a.tokens.size() < b.tokens.size();
                                   });
  return {at->name, static_cast<std::int64_t>(at->tokens.size())};
}

bool ModelSource::next(InputChunk& chunk) {
  if (current_ == sequences_.size()) return false;
  const TokenSequence& sequence = sequences_[current_];
  const auto length = static_cast<std::int64_t>(sequence.tokens.size());
  if (position_ % segment_ == 0) {
    if (open_ >= 0) batch_.close(open_);
    const auto opened = batch_.open(std::min(segment_, length));
    if (!opened) {
      throw runtime::Error("There is not enough memory for a context of " +
                           std::to_string(segment_) + " tokens; use a smaller --segment.");
    }
    open_ = *opened;
  }
  const std::int64_t count =
      std::min({chunk_, segment_ - position_ % segment_, length - position_});
  runtime::Recorder recorder(model_.config());
  batch_.record(&recorder);
  const runtime::Feed feed{
      open_, std::span(sequence.tokens)
                 .subspan(static_cast<std::size_t>(position_), static_cast<std::size_t>(count))};
  batch_.prefill(std::span(&feed, 1), {});
  batch_.record(nullptr);
  if (!batch_.fault(open_).empty()) throw runtime::Error(batch_.fault(open_));

  chunk.sequence = std::to_string(current_) + ":" + sequence.name;
  chunk.position = position_;
  chunk.layers.clear();
  for (const runtime::LayerInputs& layer : recorder.layers()) {
    chunk.layers.push_back(normalised(shape_, layer, count));
  }
  position_ += count;
  if (position_ == length) {
    batch_.close(open_);
    open_ = -1;
    position_ = 0;
    ++current_;
  }
  return true;
}

FileSource::FileSource(std::vector<std::string> paths) : paths_(std::move(paths)) {
  for (const std::string& path : paths_) {
    const runtime::Recording recording = runtime::read_recording(path);
    const LayerShape shape = shape_of(recording);
    const int layers = static_cast<int>(recording.layers.size());
    if (total_tokens_ > 0 && (!(shape == shape_) || layers != num_layers_)) {
      throw runtime::Error(
          "The recording " + runtime::in_quotes(path, 400) + " has layers of another shape than " +
          runtime::in_quotes(paths_.front(), 400) + "; replay recordings of one model at a time.");
    }
    shape_ = shape;
    num_layers_ = layers;
    if (total_tokens_ == 0 || recording.num_tokens < shortest_.tokens) {
      shortest_ = {std::filesystem::path(path).stem().string(), recording.num_tokens};
    }
    total_tokens_ += recording.num_tokens;
  }
}

bool FileSource::next(InputChunk& chunk) {
  if (current_ == paths_.size()) return false;
  const std::string& path = paths_[current_];
  const runtime::Recording recording = runtime::read_recording(path);
  chunk.sequence = std::to_string(current_) + ":" + std::filesystem::path(path).stem().string();
  chunk.position = 0;
  chunk.layers.clear();
  for (const runtime::LayerInputs& layer : recording.layers) {
    chunk.layers.push_back(normalised(shape_, layer, recording.num_tokens));
  }
  ++current_;
  return true;
}

}  // namespace leapquant::lab
