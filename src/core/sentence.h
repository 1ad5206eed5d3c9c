// SPDX-License-Identifier: Apache-2.0
//
// A failure: the status and one sentence in a fixed buffer, so that nothing allocates. The door
// (src/capi) hands it to the caller; nothing below prints it.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "leapquant/leapquant.h"

namespace leapquant {

using Status = leapquant_status;

struct Sentence {
  char text[512] = {0};

  // Formats the sentence and returns `status`, so that a check reads `return say(status, ...)`.
  __attribute__((format(printf, 3, 4))) Status say(Status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return status;
  }
};

}  // namespace leapquant
