// SPDX-License-Identifier: Apache-2.0
//
// How far a state kept in a format drifts from the exact one when both are given the same recorded
// layer inputs. It measures; where the inputs come from is input_source.h's business.
#ifndef LEAPQUANT_LAB_DRIFT_H_
#define LEAPQUANT_LAB_DRIFT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/exact_state.h"
#include "lab/format_layer.h"
#include "lab/input_source.h"

namespace leapquant::lab {

struct DriftOptions {
  std::vector<runtime::StateFormat> states;  // resolved for the layers of the source
  std::int64_t from = 1024;                  // output error is summed over tokens from..to-1
  std::int64_t to = 4096;
  std::int64_t every = 1024;  // tokens per bucket of the course over positions
  // A token diverges when |o^ - o| > this share of |o|.
  double divergence = 0.05;
  int threads = 0;  // 0: all cores
  const std::atomic<bool>* cancel = nullptr;
};

// Sums over the tokens of a bucket.
struct ErrorSums {
  double difference = 0;  // sum of (o^ - o)^2
  double reference = 0;   // sum of o^2
  double ratio() const { return reference > 0 ? difference / reference : 0; }
};

// What one value head of one layer did in one format on one sequence.
struct HeadDrift {
  int layer = 0;  // index among the recurrent layers
  int v_head = 0;
  double mean_log_decay = 0;           // over the sequence
  ErrorSums span;                      // tokens from..to-1
  std::vector<ErrorSums> outputs;      // per bucket
  std::vector<double> state_error;     // |S^ - S|^2 / |S|^2 at the end of each bucket
  std::int64_t first_divergence = -1;  // position, -1: never
  std::uint32_t health_flags = 0;
  bool finite = true;
};

struct SequenceDrift {
  std::string name;
  std::int64_t tokens = 0;
  std::vector<std::vector<HeadDrift>> heads;  // [states][layers * v_heads]
};

// Replays every sequence of the source in FP64 and in all states. Memory: one chunk of the source
// and the states. progress(tokens) is called after every chunk. Throws runtime::Error, also when a
// sequence ends before options.from, and soon after *cancel has become true.
std::vector<SequenceDrift> measure_drift(InputSource& source, const DriftOptions& options,
                                         const std::function<void(std::int64_t)>& progress);

// Mean over the heads of (sum of squared differences) / (sum of squares), each head's sums taken
// over the span of all sequences.
double mean_span_error(const std::vector<SequenceDrift>& sequences, std::size_t state);
// The same over buckets first..last-1 of every sequence.
double mean_bucket_error(const std::vector<SequenceDrift>& sequences, std::size_t state,
                         std::size_t first, std::size_t last);

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_DRIFT_H_
