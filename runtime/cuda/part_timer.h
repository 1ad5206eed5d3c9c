// SPDX-License-Identifier: Apache-2.0
//
// How long the parts of a pass take on the device. Marks are events between the launches, also
// inside a recorded graph, whose every replay sets them anew.
#ifndef LEAPQUANT_RUNTIME_CUDA_PART_TIMER_H_
#define LEAPQUANT_RUNTIME_CUDA_PART_TIMER_H_

#include <array>
#include <cstddef>
#include <vector>

#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

enum class Part { kEmbedding, kLinearProducts, kRecurrence, kAttention, kMlp, kHead, kEnd };
inline constexpr std::size_t kNumParts = static_cast<std::size_t>(Part::kEnd);

class PartTimer {
 public:
  // What follows on the stream, up to the next mark, belongs to the part.
  void mark(cudaStream_t stream, Part part) {
    marks_.push_back({Event(), part});
    check(cudaEventRecordWithFlags(marks_.back().event.get(), stream, cudaEventRecordExternal),
          "mark a time");
  }
  // Milliseconds by part of the last run, which must be over.
  std::array<double, kNumParts> milliseconds() const {
    std::array<double, kNumParts> sums{};
    for (std::size_t i = 0; i + 1 < marks_.size(); ++i) {
      float elapsed = 0.0f;
      check(cudaEventElapsedTime(&elapsed, marks_[i].event.get(), marks_[i + 1].event.get()),
            "tell a time");
      sums[static_cast<std::size_t>(marks_[i].part)] += static_cast<double>(elapsed);
    }
    return sums;
  }

 private:
  struct Mark {
    Event event;
    Part part;
  };
  std::vector<Mark> marks_;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_PART_TIMER_H_
