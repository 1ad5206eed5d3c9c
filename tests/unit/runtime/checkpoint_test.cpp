// SPDX-License-Identifier: Apache-2.0
//
// Folders of tensors: one file or shards, prefixes, and indexes that lie.
#include "runtime/checkpoint.h"

#include <array>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

constexpr std::array<std::uint16_t, 6> kValues{1, 2, 3, 4, 5, 6};

TensorToWrite tensor(std::string name, std::vector<std::int64_t> shape = {2, 3},
                     DType dtype = DType::kBF16) {
  return {std::move(name), dtype, std::move(shape), std::as_bytes(std::span(kValues))};
}

class CheckpointFolder : public testing::Test {
 protected:
  void shard(const std::string& name, const std::vector<TensorToWrite>& tensors) {
    write_safetensors(folder.path() / name, tensors);
  }
  void index(const std::string& weight_map) {
    folder.write("model.safetensors.index.json",
                 R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
  }
  Checkpoint open() const { return Checkpoint::open(folder.path()); }

  TemporaryFolder folder;
};

TEST_F(CheckpointFolder, OpensOneFile) {
  shard("model.safetensors", {tensor("model.norm.weight"), tensor("lm_head.weight")});
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.tensor_bytes(), 24u);
  EXPECT_EQ(checkpoint.shards(), 1u);
  EXPECT_TRUE(checkpoint.contains("lm_head.weight"));
  EXPECT_EQ(checkpoint.find("none"), nullptr);
}

TEST_F(CheckpointFolder, MapsPrefixesAndSkipsWhatItDoesNotCompute) {
  shard("model.safetensors",
        {tensor("model.language_model.norm.weight"), tensor("lm_head.weight"),
         tensor("model.visual.patch.weight"), tensor("mtp.layers.0.x"), tensor("visual.y")});
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.skipped_tensors(), 3u);
  const TensorView& norm = checkpoint.require("model.norm.weight", {2, 3});
  EXPECT_EQ(norm.name, "model.language_model.norm.weight");
  EXPECT_EQ(norm.as<std::uint16_t>()[5], 6);
}

TEST_F(CheckpointFolder, TheSameTensorUnderTwoPrefixesIsAnError) {
  shard("model.safetensors",
        {tensor("model.language_model.norm.weight"), tensor("model.norm.weight")});
  EXPECT_ERROR(open(), "a second time");
}

TEST_F(CheckpointFolder, OpensShards) {
  shard("s1.safetensors", {tensor("a"), tensor("unlisted")});
  shard("s2.safetensors", {tensor("b"), tensor("a")});
  index(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.shards(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 2u);  // the index decides, so "a" is not there twice
}

TEST_F(CheckpointFolder, NamesMissingShardsAndTensors) {
  shard("s1.safetensors", {tensor("a")});
  index(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  EXPECT_ERROR(open(), "lacks the shard \"s2.safetensors\"");
  index(R"({"a":"s1.safetensors","b":"s1.safetensors"})");
  EXPECT_ERROR(open(), "lacks the tensor \"b\"");
}

TEST_F(CheckpointFolder, RefusesShardsOutsideOfTheFolder) {
  shard("s1.safetensors", {tensor("a")});
  for (const char* name : {"../s1.safetensors", "/etc/passwd", "x/../s1.safetensors", "..", ".", "",
                           "a\\\\b", "a\\u0000b"}) {
    index(std::string(R"({"a":")") + name + "\"}");
    EXPECT_ERROR(open(), "not a plain file name");
  }
}

TEST_F(CheckpointFolder, RefusesBrokenIndexes) {
  shard("s1.safetensors", {tensor("a")});
  index("{}");
  EXPECT_ERROR(open(), "the weight map is empty");
  index("[]");
  EXPECT_ERROR(open(), "\"weight_map\" must be a JSON object");
  index(R"({"a":1})");
  EXPECT_ERROR(open(), "\"weight_map.a\" must be a string");
  index(R"({"a":"s1.safetensors","a":"s1.safetensors"})");
  EXPECT_ERROR(open(), "occurs twice");
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_ERROR(open(), "\"weight_map\" is missing");
  folder.write("model.safetensors.index.json", "{");
  EXPECT_ERROR(open(), "malformed");
}

TEST_F(CheckpointFolder, NamesMissingAndDamagedFiles) {
  EXPECT_ERROR(Checkpoint::open(folder.path() / "none"), "There is no model folder");
  EXPECT_ERROR(open(), "holds neither model.safetensors nor");
  shard("model.safetensors", {tensor("a")});
  std::filesystem::resize_file(folder.path() / "model.safetensors", 80);
  EXPECT_ERROR(open(), "model.safetensors");
}

TEST_F(CheckpointFolder, RequireNamesTensorExpectedAndFound) {
  shard("model.safetensors", {tensor("a"), tensor("i", {6}, DType::kI16)});
  const Checkpoint checkpoint = open();
  EXPECT_EQ(&checkpoint.require("a", {2, 3}), checkpoint.find("a"));
  EXPECT_ERROR(checkpoint.require("b", {1}),
               "lacks the tensor \"b\" (expected BF16 or F16 or F32 [1])");
  EXPECT_ERROR(checkpoint.require("a", {3, 2}),
               "\"a\" as BF16 [2, 3]; expected BF16 or F16 or F32 [3, 2]");
  EXPECT_ERROR(checkpoint.require("a", {6}), "as BF16 [2, 3]; expected");
  EXPECT_ERROR(checkpoint.require("a", {2, 3, 1}), "as BF16 [2, 3]; expected");
  EXPECT_ERROR(checkpoint.require("i", {6}), "\"i\" as I16 [6]; expected");
  EXPECT_ERROR(checkpoint.require("a", {2, 3}, {DType::kF32}), "expected F32 [2, 3]");
}

TEST(Checkpoint, OpensTheReferenceModel) {
  const auto folder = std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m";
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_EQ(checkpoint.shards(), 3u);
  EXPECT_EQ(checkpoint.tensor_bytes(), 31967936u);  // total_size of the index
  checkpoint.require("model.embed_tokens.weight", {256, 384});
  checkpoint.require("model.layers.0.linear_attn.in_proj_qkv.weight", {1024, 384});
}

}  // namespace
}  // namespace leapquant::runtime
