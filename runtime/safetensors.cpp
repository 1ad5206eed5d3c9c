// SPDX-License-Identifier: Apache-2.0
//
// See safetensors.h: names and sizes of element types, and the checks of the parser. The writer is
// in safetensors_writer.cpp.
#include "runtime/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/error.h"
#include "runtime/strict_json.h"

namespace leapquant::runtime {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<DTypeFacts, 15> kDTypes{{{DType::kBool, "BOOL", 1},
                                              {DType::kU8, "U8", 1},
                                              {DType::kI8, "I8", 1},
                                              {DType::kF8E4M3, "F8_E4M3", 1},
                                              {DType::kF8E5M2, "F8_E5M2", 1},
                                              {DType::kI16, "I16", 2},
                                              {DType::kU16, "U16", 2},
                                              {DType::kF16, "F16", 2},
                                              {DType::kBF16, "BF16", 2},
                                              {DType::kI32, "I32", 4},
                                              {DType::kU32, "U32", 4},
                                              {DType::kF32, "F32", 4},
                                              {DType::kI64, "I64", 8},
                                              {DType::kU64, "U64", 8},
                                              {DType::kF64, "F64", 8}}};

constexpr bool in_order_of_the_enumeration() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_order_of_the_enumeration());

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeFacts& facts : kDTypes) {
    if (facts.name == name) return facts.dtype;
  }
  return std::nullopt;
}

// Dims are bounded so that one product of two sizes is checked in one place, below.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 62;
constexpr std::size_t kMaxDims = 32;

// A tensor as the header states it, with offsets from the start of the data.
struct Entry {
  TensorView view;
  std::uint64_t begin;
  std::uint64_t end;
};

std::uint64_t stated_bytes(const TensorView& tensor, const std::string& where) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  // A zero anywhere makes the product zero, so it must not hide behind an overflow elsewhere.
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
  for (const std::int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) {
      throw Error(where + " states the shape " + describe(tensor.dtype, tensor.shape) +
                  ", whose size does not fit in 64 bits.");
    }
  }
  return bytes;
}

Entry parse_entry(const std::string& name, const nlohmann::json& value, std::string_view label) {
  const JsonObject object(value, std::string(label), name);
  const std::string where = std::string(label) + ": tensor " + in_quotes(name);
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      throw Error(where + " has the unknown key " + in_quotes(key) + ".");
    }
  }
  Entry entry{};
  entry.view.name = name;
  const std::string dtype = object.string("dtype");
  if (const auto known = dtype_from_name(dtype)) {
    entry.view.dtype = *known;
  } else {
    throw Error(where + " has the unknown dtype " + in_quotes(dtype) + ".");
  }
  const auto& shape = object.array("shape");
  if (shape.size() > kMaxDims) {
    throw Error(where + " has " + std::to_string(shape.size()) + " dimensions; at most " +
                std::to_string(kMaxDims) + " are accepted.");
  }
  for (const auto& dim : shape) {
    entry.view.shape.push_back(json_integer(dim, object.where("shape"), 0, kMaxDim));
  }
  const auto& offsets = object.array("data_offsets");
  if (offsets.size() != 2) {
    throw Error(where + " must have two data offsets, found " + std::to_string(offsets.size()) +
                ".");
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::string offsets_where = object.where("data_offsets");
  entry.begin = static_cast<std::uint64_t>(json_integer(offsets[0], offsets_where, 0, kMax));
  entry.end = static_cast<std::uint64_t>(json_integer(offsets[1], offsets_where, 0, kMax));
  if (entry.end < entry.begin) {
    throw Error(where + " ends at offset " + std::to_string(entry.end) + ", before it begins at " +
                std::to_string(entry.begin) + ".");
  }
  const std::uint64_t bytes = stated_bytes(entry.view, where);
  if (bytes != entry.end - entry.begin) {
    throw Error(where + " is " + describe(entry.view.dtype, entry.view.shape) + ", " +
                std::to_string(bytes) + " bytes, but its offsets span " +
                std::to_string(entry.end - entry.begin) + " bytes.");
  }
  entry.view.bytes = static_cast<std::size_t>(bytes);
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
void check_coverage(const std::vector<Entry>& entries, std::uint64_t data_bytes,
                    std::string_view label) {
  std::uint64_t at = 0;
  const std::string* previous = nullptr;
  for (const Entry& entry : entries) {
    const std::string where = std::string(label) + ": tensor " + in_quotes(entry.view.name);
    if (entry.end > data_bytes) {
      throw Error(where + " ends at offset " + std::to_string(entry.end) +
                  " of the data, but the file has only " + std::to_string(data_bytes) +
                  " bytes of data; it may be truncated.");
    }
    if (entry.begin < at) {
      throw Error(where + " overlaps the tensor " + in_quotes(*previous) + ".");
    }
    if (entry.begin > at) {
      throw Error(where + " begins at offset " + std::to_string(entry.begin) + ", which leaves " +
                  std::to_string(entry.begin - at) + " bytes before it that belong to no tensor.");
    }
    at = entry.end;
    previous = &entry.view.name;
  }
  if (at != data_bytes) {
    throw Error(std::string(label) + ": " + std::to_string(data_bytes - at) +
                " bytes at the end belong to no tensor.");
  }
}

std::map<std::string, std::string> parse_metadata(const nlohmann::json& value,
                                                  std::string_view label) {
  const JsonObject object(value, std::string(label), "__metadata__");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, unused] : value.items()) metadata[key] = object.string(key);
  return metadata;
}

}  // namespace

std::size_t dtype_bytes(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  std::string text = std::string(dtype_name(dtype)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t TensorView::elements() const {
  return static_cast<std::int64_t>(bytes / dtype_bytes(dtype));
}

void TensorView::require_element_bytes(std::size_t element_bytes) const {
  if (element_bytes != dtype_bytes(dtype)) {
    throw Error("The tensor " + in_quotes(name) + " is " + describe(dtype, shape) +
                " and was read as elements of " + std::to_string(element_bytes) + " bytes.");
  }
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view label) {
  const std::string where(label);
  if (file.size() < 8) {
    throw Error(where + ": the file has " + std::to_string(file.size()) +
                " bytes; a safetensors file has at least 8.");
  }
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    throw Error(where + ": the header claims " + std::to_string(header_bytes) + " bytes; at most " +
                std::to_string(kMaxSafetensorsHeaderBytes) +
                " are accepted. The file is damaged or no safetensors file.");
  }
  if (header_bytes > file.size() - 8) {
    throw Error(where + ": the header claims " + std::to_string(header_bytes) +
                " bytes, but the file ends after " + std::to_string(file.size() - 8) +
                "; it may be truncated.");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8,
                              static_cast<std::size_t>(header_bytes));
  if (text.empty() || text.front() != '{') {
    throw Error(where + ": the header does not begin with a JSON object.");
  }
  // Metadata or tensor, shape or offsets: three levels.
  const nlohmann::json header = parse_strict_json(text, label, 3);

  SafetensorsHeader result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      result.metadata = parse_metadata(value, label);
    } else {
      entries.push_back(parse_entry(name, value, label));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const std::span<const std::byte> data = file.subspan(8 + text.size());
  check_coverage(entries, data.size(), label);
  for (Entry& entry : entries) {
    entry.view.data = data.data() + entry.begin;
    if (reinterpret_cast<std::uintptr_t>(entry.view.data) % dtype_bytes(entry.view.dtype) != 0) {
      throw Error(where + ": tensor " + in_quotes(entry.view.name) + " (" +
                  std::string(dtype_name(entry.view.dtype)) +
                  ") is not aligned to its element size and cannot be read in place; save the file "
                  "again with a current version of safetensors.");
    }
    result.tensors.push_back(std::move(entry.view));
  }
  return result;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  if (const TensorView* tensor = find(name)) return *tensor;
  throw Error(path().string() + ": there is no tensor " + in_quotes(name) + ".");
}

}  // namespace leapquant::runtime
