// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a Hugging Face folder: one model.safetensors or shards with
// model.safetensors.index.json, under one set of names. It does not know what a model needs:
// callers ask for tensors by name, dtype and shape and get a sentence when the folder does not hold
// them.
#ifndef LEAPQUANT_RUNTIME_CHECKPOINT_H_
#define LEAPQUANT_RUNTIME_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/safetensors.h"

namespace leapquant::runtime {

// Names are those of a text-only checkpoint: `model.layers.0...`, `model.embed_tokens.weight`,
// `lm_head.weight`. Tensors stored under `model.language_model.` appear under `model.`; tensors of
// the vision tower (`model.visual.`, `visual.`) and of multi-token prediction (`mtp.`) are left out
// and counted. Views stay valid as long as the Checkpoint.
class Checkpoint {
 public:
  // Opens and checks every shard that the index names. Throws Error when the folder or a shard is
  // missing or malformed, when the index names a shard outside the folder (a name with a slash), a
  // shard lacks a tensor that the index puts there, or two stored names mean the same tensor.
  // With an index, it alone decides which shard a tensor comes from; tensors that it does not list
  // are not used.
  static Checkpoint open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // nullptr when the checkpoint holds no such tensor.
  const TensorView* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // The tensor with exactly this shape and one of these dtypes. Throws Error that names the tensor,
  // what was expected and what was found.
  const TensorView& require(std::string_view name, std::span<const std::int64_t> shape,
                            std::span<const DType> dtypes) const;
  const TensorView& require(std::string_view name, std::initializer_list<std::int64_t> shape,
                            std::initializer_list<DType> dtypes = {DType::kBF16, DType::kF16,
                                                                   DType::kF32}) const {
    return require(name, std::span(shape.begin(), shape.size()),
                   std::span(dtypes.begin(), dtypes.size()));
  }

  // All tensors of the text model in name order, their bytes in total, and how many were left out.
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  std::uint64_t tensor_bytes() const { return tensor_bytes_; }
  std::size_t skipped_tensors() const { return skipped_; }
  std::size_t shards() const { return files_.size(); }

 private:
  Checkpoint() = default;
  void add(const TensorView& tensor, const std::filesystem::path& file);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::uint64_t tensor_bytes_ = 0;
  std::size_t skipped_ = 0;
};

// Which tensors the index places in each shard, by shard. Throws Error for what Checkpoint::open
// refuses in an index alone; label names the file.
std::map<std::string, std::vector<std::string>> parse_checkpoint_index(std::string_view text,
                                                                       std::string_view label);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_CHECKPOINT_H_
