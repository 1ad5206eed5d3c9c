// SPDX-License-Identifier: Apache-2.0
//
// The safetensors container: an 8-byte little-endian header length, a JSON header, then the data of
// all tensors without gaps. Strict parser over bytes that stay where they are, and a writer. Which
// file holds which tensor of a model is checkpoint.h's business.
#ifndef LEAPQUANT_RUNTIME_SAFETENSORS_H_
#define LEAPQUANT_RUNTIME_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/mapped_file.h"

namespace leapquant::runtime {

enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

std::size_t dtype_bytes(DType dtype);
// The name in the file format: "BF16", "F32", ...
std::string_view dtype_name(DType dtype);

// A tensor that lies in a mapped file; valid as long as the file (or the bytes parsed) lives.
// Row-major, little-endian; data is aligned to the size of one element. An empty shape is a scalar.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t elements() const;
  // The elements as T. Throws Error when T's size or alignment is not that of the dtype; which
  // type stands for BF16 or F16 (std::uint16_t) is the caller's choice.
  template <typename T>
  std::span<const T> as() const {
    require_element_bytes(sizeof(T));
    return {reinterpret_cast<const T*>(data), bytes / sizeof(T)};
  }

 private:
  void require_element_bytes(std::size_t element_bytes) const;
};

// "BF16 [8192, 4096]", for sentences.
std::string describe(DType dtype, std::span<const std::int64_t> shape);

// What a file claims, fully checked: every tensor lies inside the data, none overlaps another, no
// byte is left over, names are unique, and sizes are shape times element size.
struct SafetensorsHeader {
  std::vector<TensorView> tensors;  // in order of their place in the file
  std::map<std::string, std::string> metadata;
};

// Largest header accepted (the limit of the reference implementation).
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Parses the bytes of a whole file; label names it in sentences. Throws Error for: fewer than 8
// bytes, a header that is longer than the file or the limit, JSON that is malformed, nested too
// deep or has a name twice, unknown dtypes or keys, shapes with negative or overflowing sizes,
// offsets that are reversed, out of range, overlapping, misaligned or leave holes, trailing bytes.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view label);

// A mapped file with its header.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorView>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return file_.path(); }
  // nullptr when there is none of that name.
  const TensorView* find(std::string_view name) const;
  // Throws Error when it is missing.
  const TensorView& at(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// One tensor to write. data holds shape times element size bytes.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Bytes that write_safetensors will produce for these tensors; their data may be empty here, so a
// caller can ask before it has anything. Throws Error as write_safetensors does, data apart.
std::uint64_t predict_safetensors_bytes(std::span<const TensorToWrite> tensors,
                                        const std::map<std::string, std::string>& metadata = {});

// Writes the file completely or not at all (output_file.h). Wide elements come first so that all
// are aligned; within one width by name, so equal content gives equal files. Throws Error for
// repeated or empty names, sizes that do not match, and every failure of the file system.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SAFETENSORS_H_
