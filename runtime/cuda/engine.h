// SPDX-License-Identifier: Apache-2.0
//
// The engine of a CUDA device: passes of a batch become tables in device memory and a forward run;
// decode passes are recorded as graphs of fixed shape and replayed. Every decode pass runs all
// places, those without a feed as padding, so a sequence's values do not depend on its neighbours.
#ifndef LEAPQUANT_RUNTIME_CUDA_ENGINE_H_
#define LEAPQUANT_RUNTIME_CUDA_ENGINE_H_

#include <memory>

#include "runtime/batch.h"
#include "runtime/cuda/weights.h"
#include "runtime/engine.h"

namespace leapquant::runtime::cuda {

// weights of this model. options.memory_bytes of 0 means three quarters of what the device has free
// beside the weights. Throws Error when the states do not fit.
std::unique_ptr<Engine> make_cuda_engine(const Model& model, std::shared_ptr<const Weights> weights,
                                         const StateFormat& format, const BatchOptions& options);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_ENGINE_H_
