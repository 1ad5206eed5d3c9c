// SPDX-License-Identifier: Apache-2.0
//
// See weight_source.h.
#include "runtime/cuda/weight_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/cuda/rows.h"
#include "runtime/kernels/products.h"
#include "runtime/kernels/rows.h"
#include "runtime/linear.h"

namespace leapquant::runtime::cuda {
namespace {

// Elements that are converted at a time.
constexpr std::int64_t kPiece = std::int64_t{4} << 20;

void copy(void* to, const void* from, std::int64_t bytes) {
  check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice),
        "copy weights");
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

void CheckpointSource::matrix(const std::string& name, std::int64_t outputs, std::int64_t inner,
                              void* to, Element element) {
  const Linear stored(checkpoint_.require(name, {outputs, inner}));
  const std::int64_t count = outputs * inner;
  const bool as_stored =
      (stored.type() == kernels::WeightType::kBf16) == (element == Element::kBf16) &&
      stored.type() != kernels::WeightType::kF16;
  if (as_stored) {
    copy(to, stored.data(), count * element_bytes(element));
    return;
  }
  const std::int64_t stored_bytes = stored.bytes() / count;
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - first);
    floats_.resize(static_cast<std::size_t>(piece));
    kernels::widen_row(static_cast<const std::byte*>(stored.data()) + first * stored_bytes,
                       stored.type(), 0, piece, floats_.data());
    std::byte* target = static_cast<std::byte*>(to) + first * element_bytes(element);
    if (element == Element::kFp32) {
      copy(target, floats_.data(), piece * element_bytes(element));
    } else {
      narrow_.resize(static_cast<std::size_t>(piece));
      kernels::narrow_to_bf16(floats_.data(), piece, narrow_.data());
      copy(target, narrow_.data(), piece * element_bytes(element));
    }
  }
}

void CheckpointSource::vector(const std::string& name, const std::vector<std::int64_t>& shape,
                              VectorKind kind, float* to) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
  std::vector<float> values = to_floats(checkpoint_.require(name, shape, kTypes));
  if (kind == VectorKind::kFactorLessOne) {
    for (float& value : values) value += 1.0f;
  } else if (kind == VectorKind::kTaps) {
    const auto channels = static_cast<std::size_t>(shape.front());
    const auto taps = static_cast<std::size_t>(shape.back());
    const std::vector<float> stored = values;
    for (std::size_t i = 0; i < stored.size(); ++i)
      values[i % taps * channels + i / taps] = stored[i];
  }
  copy(to, values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)));
}

void RandomSource::matrix(const std::string&, std::int64_t outputs, std::int64_t inner, void* to,
                          Element element) {
  // Even values of this width give a product the variance of its input.
  const float scale = std::sqrt(3.0f / static_cast<float>(inner));
  fill_random(nullptr, to, element, outputs * inner, seed_++, 0.0f, scale);
}

void RandomSource::vector(const std::string&, const std::vector<std::int64_t>& shape,
                          VectorKind kind, float* to) {
  float centre = 1.0f;
  float scale = 0.0f;
  switch (kind) {
    case VectorKind::kFactor:
    case VectorKind::kFactorLessOne:
      break;
    case VectorKind::kTaps:
      centre = 0.0f;
      scale = 1.0f;
      break;
    case VectorKind::kDecayRate:  // the logarithm of 1 to 16
      centre = scale = 1.386f;
      break;
    case VectorKind::kTimeBias:  // softplus of it: 0.001 to 0.1
      centre = -4.5f;
      scale = 2.3f;
      break;
  }
  fill_random(nullptr, to, Element::kFp32, count_of(shape), seed_++, centre, scale);
}

}  // namespace leapquant::runtime::cuda
