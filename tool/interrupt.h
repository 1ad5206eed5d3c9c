// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C and SIGTERM: the first signal, of either kind, asks the work to end cleanly, the second
// one ends the program.
#ifndef LEAPQUANT_TOOL_INTERRUPT_H_
#define LEAPQUANT_TOOL_INTERRUPT_H_

#include <atomic>

namespace leapquant::tool {

// Installs the handler for SIGINT and SIGTERM on first use; true once one has come.
const std::atomic<bool>& interrupted();

// For verbs that write no files: from now on the first one ends the program at once, with a
// sentence and the exit code of a failure. What is printed must be flushed row by row.
void end_at_once_when_interrupted();

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_INTERRUPT_H_
