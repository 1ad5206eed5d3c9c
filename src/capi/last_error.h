// SPDX-License-Identifier: Apache-2.0
//
// The sentence of the last failure on this thread. Every failing function of the C API ends in
// fail().
#pragma once

#include "core/sentence.h"

namespace leapquant::capi {

// The calling thread's sentence; checks of core write into it directly.
Sentence* last_error();

// Keeps the sentence and returns `status`.
__attribute__((format(printf, 2, 3))) Status fail(Status status, const char* format, ...);

}  // namespace leapquant::capi
