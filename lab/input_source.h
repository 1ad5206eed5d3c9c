// SPDX-License-Identifier: Apache-2.0
//
// Where recorded layer inputs come from, chunk by chunk, so that long recordings need little
// memory: a folder written by `leapquant record`, or a model that runs while they are used.
#ifndef LEAPQUANT_LAB_INPUT_SOURCE_H_
#define LEAPQUANT_LAB_INPUT_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lab/layer_inputs.h"

namespace leapquant::lab {

// Consecutive tokens of one sequence, all recurrent layers.
struct InputChunk {
  std::string sequence;       // name; a new name begins a new sequence
  std::int64_t position = 0;  // of the first token within the sequence
  std::vector<LayerInputs> layers;
};

struct SequenceLength {
  std::string name;
  std::int64_t tokens = 0;
};

class InputSource {
 public:
  virtual ~InputSource() = default;
  // Shape of every recurrent layer, the same for all of them.
  virtual const LayerShape& shape() const = 0;
  virtual int num_layers() const = 0;
  virtual std::int64_t total_tokens() const = 0;
  // The sequence with the fewest tokens.
  virtual SequenceLength shortest() const = 0;
  // Fills the next chunk; false at the end. Throws runtime::Error.
  virtual bool next(InputChunk& chunk) = 0;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_INPUT_SOURCE_H_
