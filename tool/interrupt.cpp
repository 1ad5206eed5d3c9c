// SPDX-License-Identifier: Apache-2.0
//
// See interrupt.h.
#include "tool/interrupt.h"

#include <csignal>

namespace leapquant::tool {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "it is set inside a signal handler");

extern "C" void on_signal(int signal) {
  flag = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& interrupted() {
  static const bool installed = [] {
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    return true;
  }();
  (void)installed;
  return flag;
}

}  // namespace leapquant::tool
