// SPDX-License-Identifier: Apache-2.0
//
// The part of the benchmark that runs a model: time per token at batch 1 against merely reading the
// same bytes.
#ifndef LEAPQUANT_TOOL_BENCH_GENERATE_H_
#define LEAPQUANT_TOOL_BENCH_GENERATE_H_

#include "tool/verb.h"

namespace leapquant::tool {

// Adds the subcommand "generate" to the verb bench.
void add_bench_generate(CLI::App& bench, Verbs& verbs);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_BENCH_GENERATE_H_
