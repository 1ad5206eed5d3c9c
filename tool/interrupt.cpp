// SPDX-License-Identifier: Apache-2.0
//
// See interrupt.h.
#include "tool/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace leapquant::tool {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "it is set inside a signal handler");

extern "C" void on_signal(int) {
  flag = true;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

// Set before the handler is: asking whether it is a terminal is nothing for a handler.
bool draws_progress = false;

void say(std::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody listens
}

extern "C" void on_last_signal(int) {
  if (draws_progress) say("\r\x1b[K");
  say("leapquant: Interrupted before the end.\n");
  _exit(1);
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

void end_at_once_when_interrupted() {
  draws_progress = isatty(STDERR_FILENO) == 1;
  std::signal(SIGINT, on_last_signal);
  std::signal(SIGTERM, on_last_signal);
}

}  // namespace leapquant::tool
