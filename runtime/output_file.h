// SPDX-License-Identifier: Apache-2.0
//
// A file that is written completely or not at all: bytes go to a temporary neighbour that takes the
// final name only after everything is on the disk. It knows nothing of formats.
#ifndef LEAPQUANT_RUNTIME_OUTPUT_FILE_H_
#define LEAPQUANT_RUNTIME_OUTPUT_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace leapquant::runtime {

// Opens PATH.partial-PID-N beside the target, commit() syncs and renames it. Until then an older
// file of that name stays as it is; without commit() the temporary file is removed. Every failure
// (no permission, no folder, full disk) throws Error with the path and the reason. A link to a file
// is followed; devices, pipes and sockets are refused, for a rename would replace them.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Syncs the data, renames over the target, syncs the folder. No further writes are allowed.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view what, int saved_errno) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_OUTPUT_FILE_H_
