// SPDX-License-Identifier: Apache-2.0
//
// See output_check.h.
#include "tool/output_check.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "runtime/error.h"
#include "runtime/output_file.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

namespace fs = std::filesystem;

// Inputs that cannot be looked at are told about by those who read them.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

bool has_extension(const fs::path& path, const std::vector<std::string_view>& extensions) {
  const std::string extension = path.extension().string();
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

// Other files in these folders, such as saved sessions, are not read and may be replaced.
template <typename Iterator>
bool holds(const fs::path& folder, const std::vector<std::string_view>& extensions,
           const fs::path& file) {
  std::error_code error;
  for (Iterator at(folder, error); !error && at != Iterator(); at.increment(error)) {
    if (has_extension(at->path(), extensions) && same_file(at->path(), file)) return true;
  }
  return false;
}

}  // namespace

void check_output(const std::string& path, const std::string& model,
                  const std::vector<std::string>& inputs) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const auto is_replaced = [&](const std::string& input) {
      return same_file(input, path) ||
             holds<fs::recursive_directory_iterator>(input, {".jsonl"}, path);
    };
    if (std::any_of(inputs.begin(), inputs.end(), is_replaced)) {
      throw UsageError("The output " + runtime::in_quotes(path, 400) +
                       " is a file that is read here; it would be replaced.");
    }
    if (!model.empty() &&
        holds<fs::directory_iterator>(model, {".json", ".safetensors", ".txt"}, path)) {
      throw UsageError("The output " + runtime::in_quotes(path, 400) +
                       " is a file of the model; it would be replaced.");
    }
  }
  const runtime::OutputFile trial(path);
}

}  // namespace leapquant::tool
