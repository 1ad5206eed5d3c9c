// SPDX-License-Identifier: Apache-2.0
//
// What a build with CUDA answers to load_on_cuda(); the other answer is runtime/engine.cpp.
#include <string>
#include <utility>

#include "runtime/cuda/engine.h"
#include "runtime/model.h"

namespace leapquant::runtime {
namespace {

class CudaModel final : public DeviceModel {
 public:
  CudaModel(const Model& model, Activations activations)
      : name_(cuda::require_device()),
        weights_(std::make_shared<const cuda::Weights>(cuda::Weights::load(
            model.checkpoint(), model.config(),
            activations == Activations::kFp32 ? cuda::Element::kFp32 : cuda::Element::kBf16))) {}

  const char* device_name() const override { return name_.c_str(); }
  std::unique_ptr<Engine> make_engine(const Model& model, const StateFormat& format,
                                      const BatchOptions& options) const override {
    return cuda::make_cuda_engine(model, weights_, format, options);
  }

 private:
  std::string name_;
  std::shared_ptr<const cuda::Weights> weights_;
};

}  // namespace

std::shared_ptr<const DeviceModel> load_on_cuda(const Model& model, Activations activations) {
  return std::make_shared<const CudaModel>(model, activations);
}

}  // namespace leapquant::runtime
