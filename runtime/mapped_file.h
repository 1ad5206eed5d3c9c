// SPDX-License-Identifier: Apache-2.0
//
// A file mapped into memory, read only. Weights stay on the page cache and are read in place;
// nothing is copied. It does not interpret the bytes: see safetensors.h.
#ifndef LEAPQUANT_RUNTIME_MAPPED_FILE_H_
#define LEAPQUANT_RUNTIME_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace leapquant::runtime {

// Owns the mapping until it is destroyed or moved from. The first byte is page aligned. An empty
// file is an empty span. A file that another process truncates while it is mapped raises SIGBUS on
// access, as with every mapping: checkpoints must not be changed while they are in use.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error when the path does not exist, is no regular file, cannot be read or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

// The whole file as text, for configuration files. Throws Error when it cannot be read or holds
// more than max_bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MAPPED_FILE_H_
