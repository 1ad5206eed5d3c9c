// SPDX-License-Identifier: Apache-2.0
//
// See output_file.h.
#include "runtime/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/error.h"

namespace leapquant::runtime {

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  // A link keeps standing, and the file that it leads to is replaced. A rename would put a file in
  // the place of a device or pipe, for all programs on the machine.
  if (path_.empty()) throw Error("Cannot write to a file without a name.");
  std::error_code error;
  if (std::filesystem::is_symlink(path_, error)) {
    const std::filesystem::path target = std::filesystem::canonical(path_, error);
    if (error) {
      throw Error("Cannot follow the link " + in_quotes(path_.string(), 400) +
                  reason_of_errno(error.value()) + "; nothing was written.");
    }
    path_ = target;
  }
  const std::filesystem::file_status target = std::filesystem::status(path_, error);
  if (path_.filename().empty() || std::filesystem::is_directory(target)) {
    throw Error("Cannot write to " + in_quotes(path_.string(), 400) + ": it is a folder.");
  }
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    throw Error("Cannot write to " + in_quotes(path_.string(), 400) +
                ": it is a device, pipe or socket; give the name of a file.");
  }
  temporary_ = path_;
  temporary_ += ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  // O_EXCL: never write through a file or link that somebody else put there.
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("Cannot create", errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::fail(std::string_view what, int saved_errno) const {
  throw Error(std::string(what) + " the file " + in_quotes(path_.string(), 400) +
              reason_of_errno(saved_errno) + "; nothing was written.");
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("Cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit() {
  if (::fsync(descriptor_) != 0) fail("Cannot write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("Cannot name", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  // The rename is durable once the folder is. Some file systems cannot sync folders; the data is
  // complete either way, so a refusal here is no failure of the write.
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const int folder = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

}  // namespace leapquant::runtime
