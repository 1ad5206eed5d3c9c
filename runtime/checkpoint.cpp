// SPDX-License-Identifier: Apache-2.0
//
// See checkpoint.h.
#include "runtime/checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "runtime/error.h"
#include "runtime/strict_json.h"

namespace leapquant::runtime {
namespace {

constexpr std::size_t kMaxIndexBytes = 100'000'000;
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// The text-only name of a stored name; nullopt for parts that this runtime does not compute.
std::optional<std::string> text_model_name(std::string_view stored) {
  for (const std::string_view skipped : {"model.visual.", "visual.", "mtp."}) {
    if (stored.starts_with(skipped)) return std::nullopt;
  }
  constexpr std::string_view kNested = "model.language_model.";
  if (stored.starts_with(kNested)) return "model." + std::string(stored.substr(kNested.size()));
  return std::string(stored);
}

// A shard must lie in the folder itself: an index from outside must not open other files.
void check_shard_name(const std::string& shard, const std::string& where) {
  const bool plain = !shard.empty() && shard != "." && shard != ".." &&
                     shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain) {
    throw Error(where + " names the shard " + in_quotes(shard) +
                ", which is not a plain file name; shards must lie in the checkpoint's folder.");
  }
}

}  // namespace

std::map<std::string, std::vector<std::string>> parse_checkpoint_index(
    std::string_view text, std::string_view label_view) {
  const std::string label(label_view);
  const nlohmann::json json = parse_strict_json(text, label);
  const JsonObject weight_map = JsonObject(json, label).object("weight_map");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, unused] : json["weight_map"].items()) {
    const std::string shard = weight_map.string(tensor);
    check_shard_name(shard, weight_map.where(tensor));
    shards[shard].push_back(tensor);
  }
  if (shards.empty()) throw Error(label + ": the weight map is empty.");
  return shards;
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error("There is no model folder " + in_quotes(folder.string(), 400) + ".");
  }
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  const auto index = folder / kIndexFile;
  const auto single = folder / kSingleFile;
  if (std::filesystem::exists(index, ignored)) {
    const std::string text = read_text_file(index, kMaxIndexBytes);
    for (const auto& [shard, names] : parse_checkpoint_index(text, index.string())) {
      const auto path = folder / shard;
      if (!std::filesystem::exists(path, ignored)) {
        throw Error("The checkpoint " + in_quotes(folder.string(), 400) + " lacks the shard " +
                    in_quotes(shard) + " that " + std::string(kIndexFile) +
                    " names; download it again.");
      }
      checkpoint.files_.push_back(std::make_unique<SafetensorsFile>(path));
      for (const std::string& name : names) {
        const TensorView* tensor = checkpoint.files_.back()->find(name);
        if (tensor == nullptr) {
          throw Error("The shard " + in_quotes(path.string(), 400) + " lacks the tensor " +
                      in_quotes(name) + " that " + std::string(kIndexFile) + " places there.");
        }
        checkpoint.add(*tensor, path);
      }
    }
  } else if (std::filesystem::exists(single, ignored)) {
    checkpoint.files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const TensorView& tensor : checkpoint.files_.back()->tensors()) {
      checkpoint.add(tensor, single);
    }
  } else {
    throw Error("The folder " + in_quotes(folder.string(), 400) + " holds neither " +
                std::string(kSingleFile) + " nor " + std::string(kIndexFile) +
                "; a Hugging Face checkpoint in safetensors format is needed.");
  }
  return checkpoint;
}

void Checkpoint::add(const TensorView& tensor, const std::filesystem::path& file) {
  const auto name = text_model_name(tensor.name);
  if (!name) {
    ++skipped_;
    return;
  }
  if (!tensors_.emplace(*name, tensor).second) {
    throw Error(file.string() + ": the tensor " + in_quotes(tensor.name) +
                " is stored a second time under another prefix or in another shard.");
  }
  tensor_bytes_ += tensor.bytes;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const TensorView& Checkpoint::require(std::string_view name, std::span<const std::int64_t> shape,
                                      std::span<const DType> dtypes) const {
  std::string expected;
  for (const DType dtype : dtypes) {
    expected += (expected.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  const std::string full = describe(DType::kF32, shape);
  expected += full.substr(full.find(" ["));
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    throw Error("The checkpoint " + in_quotes(folder_.string(), 400) + " lacks the tensor " +
                in_quotes(name) + " (expected " + expected + ").");
  }
  const bool same_shape =
      std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end());
  if (!same_shape || std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end()) {
    throw Error("The checkpoint " + in_quotes(folder_.string(), 400) + " holds the tensor " +
                in_quotes(tensor->name) + " as " + describe(tensor->dtype, tensor->shape) +
                "; expected " + expected + ".");
  }
  return *tensor;
}

}  // namespace leapquant::runtime
