// SPDX-License-Identifier: Apache-2.0
//
// Layer inputs from a running model: it is fed texts and task strings, and what its recurrent
// layers are given comes out chunk by chunk. Nothing is kept.
#ifndef LEAPQUANT_LAB_MODEL_SOURCE_H_
#define LEAPQUANT_LAB_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/input_source.h"
#include "runtime/batch.h"
#include "runtime/model.h"
#include "runtime/recorder.h"
#include "runtime/threads.h"
#include "runtime/tokenizer.h"

namespace leapquant::lab {

// Tokens to feed. A sequence longer than `segment` tokens is fed in segments, each from an empty
// context: the recorded inputs are joined, so the replayed state runs on across the joints.
struct TokenSequence {
  std::string name;
  std::vector<runtime::TokenId> tokens;
};

// The text in a file, at most max_tokens tokens (0: all). Throws runtime::Error.
TokenSequence text_sequence(const runtime::Tokenizer& tokenizer, const std::string& path,
                            std::int64_t max_tokens);
// Prompt, answer and end token of the tasks of a file or folder, one after another, at most
// max_tokens tokens (0: all). Of a folder one task of every file is taken in turn.
TokenSequence task_sequence(const runtime::Tokenizer& tokenizer, const std::string& path,
                            runtime::TokenId end_token, std::int64_t max_tokens);
// All sequences one after another in pieces of `piece` tokens taken in turn, again from the start
// when they end, until there are max_tokens tokens.
TokenSequence concatenate(const std::vector<TokenSequence>& sequences, std::int64_t piece,
                          std::int64_t max_tokens);

// Recorded inputs as the recurrence uses them: q and k divided by sqrt(sum x^2 + 1e-6) per head, q
// also multiplied by head_k_dim^-1/2.
LayerInputs normalised(const LayerShape& shape, const runtime::LayerInputs& recorded,
                       std::int64_t tokens);
LayerShape layer_shape(const runtime::ModelConfig& config);

class ModelSource final : public InputSource {
 public:
  // model and threads must outlive this. segment, chunk: tokens, both >= 1.
  ModelSource(const runtime::Model& model, const runtime::Threads& threads,
              std::vector<TokenSequence> sequences, std::int64_t segment, std::int64_t chunk);

  const LayerShape& shape() const override { return shape_; }
  int num_layers() const override { return num_layers_; }
  std::int64_t total_tokens() const override;
  SequenceLength shortest() const override;
  bool next(InputChunk& chunk) override;

 private:
  const runtime::Model& model_;
  LayerShape shape_;
  int num_layers_;
  std::vector<TokenSequence> sequences_;
  std::int64_t segment_;
  std::int64_t chunk_;
  runtime::Batch batch_;
  std::size_t current_ = 0;
  std::int64_t position_ = 0;
  runtime::SequenceId open_ = -1;
};

// Recordings in files that `leapquant record` wrote, one sequence each.
class FileSource final : public InputSource {
 public:
  // Throws runtime::Error when a file is broken or its shape is not that of the others.
  explicit FileSource(std::vector<std::string> paths);

  const LayerShape& shape() const override { return shape_; }
  int num_layers() const override { return num_layers_; }
  std::int64_t total_tokens() const override { return total_tokens_; }
  SequenceLength shortest() const override { return shortest_; }
  bool next(InputChunk& chunk) override;

 private:
  std::vector<std::string> paths_;
  LayerShape shape_;
  int num_layers_ = 0;
  std::int64_t total_tokens_ = 0;
  SequenceLength shortest_;
  std::size_t current_ = 0;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_MODEL_SOURCE_H_
