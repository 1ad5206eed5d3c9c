// SPDX-License-Identifier: Apache-2.0
//
// One sequence of a batch, and a pass: the rows of activations that go through the layers together.
// Structs only; the layers and batch.cpp act on them.
#ifndef LEAPQUANT_RUNTIME_SEQUENCE_H_
#define LEAPQUANT_RUNTIME_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/kv_cache.h"
#include "runtime/recurrent_states.h"

namespace leapquant::runtime {

class Recorder;

// The memory of a sequence. Sequences do not move while they are open. place, kv and convolution
// are the CPU engine's; a device engine keeps its own by index.
struct Sequence {
  explicit Sequence(const KvShape& shape) : kv(shape) {}

  std::int32_t index = 0;  // of the place in the batch
  bool open = false;
  std::int64_t position = 0;     // tokens fed
  std::int64_t max_context = 0;  // tokens for which memory is set aside
  StatePlace place;
  KvCache kv;
  // The last kernel - 1 inputs of the convolution, oldest first:
  // [linear layers, kernel - 1, conv_dim]; zero before the first token.
  std::vector<float> convolution;
  std::string fault;
};

// Notes that the library reported `status` for this sequence in a linear layer, unless it is OK or
// another fault came first.
void note_fault(Sequence& sequence, std::int32_t linear_layer, std::int32_t status);

// Rows first_row .. first_row + rows - 1 of a pass belong to `sequence`, at its position and on.
struct Segment {
  Sequence* sequence = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

enum class PassKind { kPrefill, kDecode };

// Decode: segments ordered by their number of rows, so that equal ones are neighbours. Prefill:
// those that are carried in FP32 come last. Positions move after the pass.
struct Pass {
  PassKind kind = PassKind::kDecode;
  std::span<const Segment> segments;
  std::int64_t rows = 0;
  std::int64_t num_direct = 0;     // prefill: segments that are not carried
  const float* cosines = nullptr;  // rotary angles of the rows, [rows, rotary_dim / 2]
  const float* sines = nullptr;
  const Threads* threads = nullptr;
  Scratch* scratch = nullptr;
  RecurrentStates* states = nullptr;
  Recorder* recorder = nullptr;  // may be null
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SEQUENCE_H_
