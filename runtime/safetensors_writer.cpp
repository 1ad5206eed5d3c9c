// SPDX-License-Identifier: Apache-2.0
//
// The writing half of safetensors.h. The header is complete before the first byte goes out, so the
// size of the file is known beforehand.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/error.h"
#include "runtime/output_file.h"
#include "runtime/safetensors.h"
#include "runtime/unicode.h"

namespace leapquant::runtime {
namespace {

// The order of the data, the header text with its padding, and the size of it all.
struct Layout {
  std::vector<const TensorToWrite*> order;
  std::string header;
  std::uint64_t file_bytes = 0;
};

std::uint64_t tensor_bytes(const TensorToWrite& tensor) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const std::int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) {
      throw Error("The tensor " + in_quotes(tensor.name) + " cannot be written with the shape " +
                  describe(tensor.dtype, tensor.shape) + ".");
    }
  }
  return bytes;
}

Layout lay_out(std::span<const TensorToWrite> tensors,
               const std::map<std::string, std::string>& metadata) {
  Layout layout;
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      throw Error("A safetensors file cannot hold a tensor of the name " + in_quotes(tensor.name) +
                  " (empty, reserved or used twice).");
    }
    require_utf8(tensor.name, "A tensor name");
    layout.order.push_back(&tensor);
  }
  std::sort(layout.order.begin(), layout.order.end(),
            [](const TensorToWrite* a, const TensorToWrite* b) {
              const std::size_t wide_a = dtype_bytes(a->dtype), wide_b = dtype_bytes(b->dtype);
              return wide_a != wide_b ? wide_a > wide_b : a->name < b->name;
            });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      require_utf8(key, "A metadata key");
      require_utf8(value, "A metadata value");
      header["__metadata__"][key] = value;
    }
  }
  std::uint64_t at = 0;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const TensorToWrite* tensor : layout.order) {
    const std::uint64_t bytes = tensor_bytes(*tensor);
    if (bytes > kMax - at) throw Error("The tensors do not fit into one safetensors file.");
    header[tensor->name] = {{"dtype", dtype_name(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", std::array<std::uint64_t, 2>{at, at + bytes}}};
    at += bytes;
  }
  layout.header = header.dump();
  layout.header.resize((layout.header.size() + 7) / 8 * 8, ' ');  // data begins 8-byte aligned
  if (layout.header.size() > kMaxSafetensorsHeaderBytes) {
    throw Error("The names and shapes of the tensors make a header of " +
                std::to_string(layout.header.size()) + " bytes, more than the format allows.");
  }
  layout.file_bytes = 8 + layout.header.size() + at;
  return layout;
}

}  // namespace

std::uint64_t predict_safetensors_bytes(std::span<const TensorToWrite> tensors,
                                        const std::map<std::string, std::string>& metadata) {
  return lay_out(tensors, metadata).file_bytes;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const Layout layout = lay_out(tensors, metadata);
  for (const TensorToWrite* tensor : layout.order) {
    if (tensor->data.size() != tensor_bytes(*tensor)) {
      throw Error("The tensor " + in_quotes(tensor->name) + " is " +
                  describe(tensor->dtype, tensor->shape) + ", " +
                  std::to_string(tensor_bytes(*tensor)) + " bytes, but " +
                  std::to_string(tensor->data.size()) + " bytes were given.");
    }
  }
  OutputFile file(path);
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(layout.header.size() >> (8 * i) & 0xFF);
  }
  file.write(length);
  file.write(layout.header);
  for (const TensorToWrite* tensor : layout.order) file.write(tensor->data);
  file.commit();
}

}  // namespace leapquant::runtime
