// SPDX-License-Identifier: Apache-2.0
//
// The engine of the CPU: the model's layers over threads, with states, convolution inputs and KV
// cache in host memory.
#ifndef LEAPQUANT_RUNTIME_CPU_ENGINE_H_
#define LEAPQUANT_RUNTIME_CPU_ENGINE_H_

#include <memory>

#include "runtime/batch.h"
#include "runtime/engine.h"

namespace leapquant::runtime {

// options.memory_bytes of 0 means three quarters of what is available now. Throws Error when the
// states do not fit.
std::unique_ptr<Engine> make_cpu_engine(const Model& model, const StateFormat& format,
                                        const Threads& threads, const BatchOptions& options);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_CPU_ENGINE_H_
