// SPDX-License-Identifier: Apache-2.0
//
// Where weights come from: a checkpoint's files, or a counter. Each fills device memory tensor by
// tensor, under the checkpoint's names.
#ifndef LEAPQUANT_RUNTIME_CUDA_WEIGHT_SOURCE_H_
#define LEAPQUANT_RUNTIME_CUDA_WEIGHT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint.h"
#include "runtime/cuda/device.h"

namespace leapquant::runtime::cuda {

enum class VectorKind {
  kFactor,         // of a norm, as stored
  kFactorLessOne,  // of a norm, stored less one
  kTaps,           // of the convolution: stored [channels, 1, taps], wanted [taps, channels]
  kDecayRate,      // A_log
  kTimeBias,       // dt_bias
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // [outputs, inner] in `element`.
  virtual void matrix(const std::string& name, std::int64_t outputs, std::int64_t inner, void* to,
                      Element element) = 0;
  // FP32; shape as stored.
  virtual void vector(const std::string& name, const std::vector<std::int64_t>& shape,
                      VectorKind kind, float* to) = 0;
};

class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  void matrix(const std::string& name, std::int64_t outputs, std::int64_t inner, void* to,
              Element element) override;
  void vector(const std::string& name, const std::vector<std::int64_t>& shape, VectorKind kind,
              float* to) override;

 private:
  const Checkpoint& checkpoint_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> narrow_;
};

class RandomSource final : public WeightSource {
 public:
  explicit RandomSource(std::uint64_t seed) : seed_(seed) {}
  void matrix(const std::string& name, std::int64_t outputs, std::int64_t inner, void* to,
              Element element) override;
  void vector(const std::string& name, const std::vector<std::int64_t>& shape, VectorKind kind,
              float* to) override;

 private:
  std::uint64_t seed_;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_WEIGHT_SOURCE_H_
