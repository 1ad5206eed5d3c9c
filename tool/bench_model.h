// SPDX-License-Identifier: Apache-2.0
//
// leapquant bench model: time of a decode step of a whole model on a device, part by part.
#ifndef LEAPQUANT_TOOL_BENCH_MODEL_H_
#define LEAPQUANT_TOOL_BENCH_MODEL_H_

#include "tool/verb.h"

namespace leapquant::tool {

// Adds "model" below `bench`.
void add_bench_model(CLI::App& bench, Verbs& verbs);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_BENCH_MODEL_H_
