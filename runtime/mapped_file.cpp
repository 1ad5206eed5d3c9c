// SPDX-License-Identifier: Apache-2.0
//
// See mapped_file.h.
#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

// An open descriptor for reading with its size; closes itself.
struct OpenFile {
  explicit OpenFile(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
      throw Error("Cannot open the file " + in_quotes(path.string(), 400) + reason_of_errno(errno) +
                  ".");
    }
    struct stat status{};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw Error(in_quotes(path.string(), 400) + " is not a regular file.");
    }
    size = static_cast<std::size_t>(status.st_size);
  }
  ~OpenFile() { ::close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor = -1;
  std::size_t size = 0;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const OpenFile file(path);
  if (file.size == 0) return;  // mmap refuses a length of zero
  void* mapping = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (mapping == MAP_FAILED) {
    throw Error("Cannot map the file " + in_quotes(path.string(), 400) + " into memory" +
                reason_of_errno(errno) + ".");
  }
  data_ = static_cast<const std::byte*>(mapping);
  size_ = file.size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const OpenFile file(path);
  if (file.size > max_bytes) {
    throw Error("The file " + in_quotes(path.string(), 400) + " has " + std::to_string(file.size) +
                " bytes; at most " + std::to_string(max_bytes) + " are accepted for its kind.");
  }
  std::string text(file.size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error("Cannot read the file " + in_quotes(path.string(), 400) + reason_of_errno(errno) +
                  ".");
    }
    if (got == 0) break;  // shortened meanwhile; what is left decides
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace leapquant::runtime
