// SPDX-License-Identifier: Apache-2.0
//
// A task is one sequence and a run of channels: it reads the history, writes the outputs and keeps
// the last inputs of its channels.
#include "runtime/short_convolution.h"

#include <algorithm>
#include <cstring>

#include "runtime/kernels/rows.h"
#include "runtime/linear.h"

namespace leapquant::runtime {
namespace {

constexpr std::int64_t kChannelsPerTask = 512;

}  // namespace

ShortConvolution::ShortConvolution(const TensorView& weight)
    : channels_(weight.shape.front()), taps_(weight.shape.back()) {
  const std::vector<float> by_channel = to_floats(weight);
  weights_.resize(by_channel.size());
  for (std::int64_t c = 0; c < channels_; ++c) {
    for (std::int64_t j = 0; j < taps_; ++j) {
      weights_[static_cast<std::size_t>(j * channels_ + c)] =
          by_channel[static_cast<std::size_t>(c * taps_ + j)];
    }
  }
}

void ShortConvolution::forward_channels(const Segment& segment, std::int64_t linear_layer,
                                        std::int64_t first, std::int64_t last, const float* x,
                                        float* y) const {
  const std::int64_t kept = taps_ - 1;
  float* history = segment.sequence->convolution.data() + linear_layer * kept * channels_;
  // Input `at` tokens after the first of the pass; negative ones lie in the history.
  const auto input = [&](std::int64_t at) -> const float* {
    return at < 0 ? history + (kept + at) * channels_ + first
                  : x + (segment.first_row + at) * channels_ + first;
  };
  std::vector<const float*> inputs(static_cast<std::size_t>(taps_));
  for (std::int64_t t = 0; t < segment.rows; ++t) {
    for (std::int64_t j = 0; j < taps_; ++j) {
      inputs[static_cast<std::size_t>(j)] = input(t - kept + j);
    }
    kernels::convolve(inputs.data(), weights_.data() + first, channels_, taps_, last - first,
                      y + (segment.first_row + t) * channels_ + first);
  }
  // Ascending, so that a history entry is read before it is replaced.
  for (std::int64_t i = 0; i < kept; ++i) {
    std::memmove(history + i * channels_ + first, input(segment.rows - kept + i),
                 static_cast<std::size_t>(last - first) * sizeof(float));
  }
}

void ShortConvolution::forward(const Pass& pass, std::int64_t linear_layer, const float* x,
                               float* y) const {
  const std::int64_t parts = (channels_ + kChannelsPerTask - 1) / kChannelsPerTask;
  const auto segments = static_cast<std::int64_t>(pass.segments.size());
  const auto task = [&](std::int64_t index) {
    const std::int64_t first = index % parts * kChannelsPerTask;
    forward_channels(pass.segments[static_cast<std::size_t>(index / parts)], linear_layer, first,
                     std::min(channels_, first + kChannelsPerTask), x, y);
  };
  pass.threads->run_rows(segments * parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t index = first; index < last; ++index) task(index);
  });
}

}  // namespace leapquant::runtime
