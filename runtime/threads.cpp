// SPDX-License-Identifier: Apache-2.0
//
// Creation of the thread pool, with sentences for what can go wrong.
#include "runtime/threads.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace leapquant::runtime {

Threads::Threads(std::int32_t num_threads) {
  if (num_threads < 0 || num_threads > 1024) {
    throw Error(fmt::format("The number of threads is {}; it must lie in 0..1024 (0: all cores).",
                            num_threads));
  }
  const leapquant_status status = leapquant_threads_create(num_threads, &threads_);
  if (status == LEAPQUANT_OUT_OF_MEMORY) {
    throw Error(fmt::format(
        "The system does not give this program {}: {}. Ask for fewer, or raise its limits of "
        "processes and memory.",
        num_threads == 0 ? "a thread for every core" : fmt::format("{} threads", num_threads),
        leapquant_last_error()));
  }
  if (status != LEAPQUANT_OK) {
    throw Error(fmt::format("The threads could not be started: {}.", leapquant_last_error()));
  }
  runner_ = leapquant_threads_runner(threads_);
}

Threads::~Threads() { leapquant_threads_destroy(threads_); }

}  // namespace leapquant::runtime
