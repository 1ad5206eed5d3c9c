// SPDX-License-Identifier: Apache-2.0
//
// What a build without CUDA answers; the other answer is cuda/device_model.cpp.
#include "runtime/engine.h"

#include "runtime/error.h"

namespace leapquant::runtime {

#ifndef LEAPQUANT_RUNTIME_CUDA

std::shared_ptr<const DeviceModel> load_on_cuda(const Model&, Activations) {
  throw Error(
      "This program was built without CUDA; build it with -DLEAPQUANT_CUDA=ON where nvcc is, or "
      "use the CPU.");
}

#endif

}  // namespace leapquant::runtime
