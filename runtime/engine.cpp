// SPDX-License-Identifier: Apache-2.0
//
// What a build without CUDA answers; the other answers are cuda/device_model.cpp and
// cuda/model_bench.cpp.
#include "runtime/engine.h"

#include "runtime/error.h"
#include "runtime/model_bench.h"

namespace leapquant::runtime {

#ifndef LEAPQUANT_RUNTIME_CUDA

namespace {
constexpr const char* kAbsent =
    "This program was built without CUDA; build it with -DLEAPQUANT_CUDA=ON where nvcc is, or use "
    "the CPU.";
}  // namespace

std::shared_ptr<const DeviceModel> load_on_cuda(const Model&, Activations) { throw Error(kAbsent); }

std::unique_ptr<ModelBench> make_cuda_model_bench(const ModelConfig&, Activations) {
  throw Error(kAbsent);
}

#endif

}  // namespace leapquant::runtime
