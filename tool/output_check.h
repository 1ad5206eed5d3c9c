// SPDX-License-Identifier: Apache-2.0
//
// Refuses the name of an output before the work instead of after it. The writing itself is
// runtime/output_file.h's business.
#ifndef LEAPQUANT_TOOL_OUTPUT_CHECK_H_
#define LEAPQUANT_TOOL_OUTPUT_CHECK_H_

#include <string>
#include <vector>

namespace leapquant::tool {

// Throws runtime::Error when no file can be written under this name, and UsageError when that would
// replace one of the inputs (files, or folders of tasks) or a file of the model; identity counts,
// not the name. model may be empty. Leaves nothing behind.
void check_output(const std::string& path, const std::string& model,
                  const std::vector<std::string>& inputs);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_OUTPUT_CHECK_H_
