// SPDX-License-Identifier: Apache-2.0
//
// The safetensors parser against files that lie in every way its header allows, and the writer.
#include "runtime/safetensors.h"

#include <bit>
#include <cstring>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

// A file of a header and so many bytes of data, aligned as a mapped file is.
class File {
 public:
  explicit File(std::string header, std::size_t data_bytes = 0) : File(raw(header, data_bytes)) {}
  static File exactly(std::string_view bytes) {
    return File(std::vector<char>(bytes.begin(), bytes.end()));
  }

  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(words_.data()), size_};
  }

 private:
  explicit File(const std::vector<char>& bytes)
      : words_(bytes.size() / 8 + 1), size_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  static std::vector<char> raw(std::string& header, std::size_t data_bytes) {
    while (header.size() % 8 != 0) header += ' ';
    std::vector<char> bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
    bytes.insert(bytes.end(), header.begin(), header.end());
    for (std::size_t i = 0; i < data_bytes; ++i) bytes.push_back(static_cast<char>(i));
    return bytes;
  }
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

SafetensorsHeader parse(const File& file) { return parse_safetensors(file.bytes(), "m"); }

void expect_refused(const std::string& header, std::size_t data_bytes, const char* part) {
  const File file(header, data_bytes);
  EXPECT_ERROR(parse(file), part);
}

TEST(ParseSafetensors, GivesViewsInFileOrder) {
  const File file(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"F32","shape":[0,9223372036854775],"data_offsets":[16,16]}})",
      16);
  const SafetensorsHeader header = parse(file);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].elements(), 1);
  EXPECT_TRUE(header.tensors[0].shape.empty());
  const TensorView& b = header.tensors[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b.bytes, 12u);
  ASSERT_EQ(b.as<std::uint16_t>().size(), 6u);
  EXPECT_EQ(b.as<std::uint16_t>()[0], 0x0504);
  EXPECT_ERROR(b.as<float>(), "read as elements of 4 bytes");
  EXPECT_EQ(header.tensors[2].bytes, 0u);
}

TEST(ParseSafetensors, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse(File("{}")).tensors.empty());
}

TEST(ParseSafetensors, KnowsEveryDType) {
  const std::pair<const char*, std::size_t> kinds[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  for (const auto& [name, bytes] : kinds) {
    const File file(std::string(R"({"t":{"dtype":")") + name +
                        R"(","shape":[3],"data_offsets":[0,)" + std::to_string(3 * bytes) + "]}}",
                    3 * bytes);
    const SafetensorsHeader header = parse(file);
    EXPECT_EQ(dtype_name(header.tensors[0].dtype), name);
    EXPECT_EQ(dtype_bytes(header.tensors[0].dtype), bytes);
  }
}

TEST(ParseSafetensors, RefusesTruncatedAndHugeHeaders) {
  EXPECT_ERROR(parse(File::exactly("")), "has 0 bytes");
  EXPECT_ERROR(parse(File::exactly("1234567")), "has 7 bytes");
  EXPECT_ERROR(parse(File::exactly(std::string_view("\x10\0\0\0\0\0\0\0{}", 10))),
               "claims 16 bytes, but the file ends after 2");
  EXPECT_ERROR(parse(File::exactly(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10))),
               "claims 18446744073709551615 bytes; at most 100000000");
  EXPECT_ERROR(parse(File::exactly(std::string_view("\0\0\0\0\0\0\0\0", 8))),
               "does not begin with a JSON object");
}

TEST(ParseSafetensors, RefusesBrokenJson) {
  expect_refused("[]", 0, "does not begin with a JSON object");
  expect_refused(" {}", 0, "does not begin with a JSON object");
  expect_refused("{", 0, "malformed");
  expect_refused(R"({"a":{"dtype":"F32","shape":[[[1]]],"data_offsets":[0,4]}})", 4,
                 "nested deeper");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 2, "occurs twice");
}

TEST(ParseSafetensors, RefusesWrongKeysAndTypes) {
  expect_refused(R"({"a":7})", 0, "must be a JSON object");
  expect_refused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "\"a.dtype\" is missing");
  expect_refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "\"a.shape\" is missing");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "\"a.data_offsets\" is missing");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
                 "unknown key \"x\"");
  expect_refused(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
                 "unknown dtype \"F4\"");
  expect_refused(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1, "must be a string");
  expect_refused(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "must be an array");
  expect_refused(R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1,
                 "must be an integer");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1,
                 "must be an integer");
  expect_refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "found -1");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
                 "two data offsets, found 1");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}})", 1, "found -1");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e3]}})", 1,
                 "must be an integer");
  expect_refused(R"({"__metadata__":{"x":1}})", 0, "must be a string");
  expect_refused(R"({"__metadata__":[]})", 0, "must be a JSON object");
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  expect_refused(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", 1,
                 "has 33 dimensions");
}

TEST(ParseSafetensors, RefusesSizesThatLie) {
  expect_refused(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
                 "is F32 [3], 12 bytes, but its offsets span 8");
  // 2^62 * 2^2 elements of 4 bytes wrap to 0 in 64 bits.
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
                 "does not fit in 64 bits");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4,
                 "found 4611686018427387905");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9,8]}})", 16,
                 "before it begins");
}

TEST(ParseSafetensors, RefusesOverlapsHolesAndTrailingBytes) {
  const std::string a = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)";
  expect_refused(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7,
                 "\"b\" overlaps the tensor \"a\"");
  expect_refused(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "overlaps");
  expect_refused(a + R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 4, "overlaps");
  expect_refused(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9,
                 "leaves 1 bytes before it");
  expect_refused(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 9,
                 "1 bytes at the end belong to no tensor");
  expect_refused(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 7,
                 "has only 7 bytes of data; it may be truncated");
  expect_refused("{}", 1, "1 bytes at the end");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,)"
                 R"(9223372036854775807]}})",
                 8, "has only 8 bytes of data");
}

TEST(ParseSafetensors, RefusesMisalignedTensors) {
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})",
                 3, "\"b\" (BF16) is not aligned");
}

TEST(ParseSafetensors, EveryPrefixOfAFileIsRefused) {
  const File whole(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_EQ(parse(whole).tensors.size(), 1u);
  for (std::size_t size = 0; size < whole.bytes().size(); ++size) {
    EXPECT_THROW(parse_safetensors(whole.bytes().first(size), "m"), Error) << size;
  }
}

class SafetensorsWriter : public testing::Test {
 protected:
  static std::span<const std::byte> bytes(const auto& values) {
    return std::as_bytes(std::span(values));
  }

  TemporaryFolder folder;
  const std::vector<float> floats{1.5f, -2.0f, 0.25f, 7.0f};
  const std::vector<std::uint8_t> small{1, 2, 3};
  const std::vector<std::int64_t> wide{-1};
  const std::vector<TensorToWrite> tensors{{"small", DType::kU8, {3}, bytes(small)},
                                           {"z \"quoted\" ü", DType::kF32, {2, 2}, bytes(floats)},
                                           {"a", DType::kF32, {4}, bytes(floats)},
                                           {"wide", DType::kI64, {}, bytes(wide)}};
};

TEST_F(SafetensorsWriter, RoundTrips) {
  const auto path = folder.path() / "x.safetensors";
  const std::map<std::string, std::string> metadata{{"source", "tëst"}, {"b", ""}};
  write_safetensors(path, tensors, metadata);
  EXPECT_EQ(std::filesystem::file_size(path), predict_safetensors_bytes(tensors, metadata));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorToWrite& written : tensors) {
    const TensorView& read = file.at(written.name);
    EXPECT_EQ(read.dtype, written.dtype);
    EXPECT_EQ(read.shape, written.shape);
    ASSERT_EQ(read.bytes, written.data.size());
    EXPECT_EQ(std::memcmp(read.data, written.data.data(), read.bytes), 0);
  }
  EXPECT_EQ(file.tensors()[0].name, "wide");  // wide elements first keep all aligned
  EXPECT_EQ(file.tensors()[3].name, "small");
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_ERROR(file.at("none"), "there is no tensor \"none\"");
}

TEST_F(SafetensorsWriter, EqualContentGivesEqualFiles) {
  const auto path = folder.path() / "x", other = folder.path() / "y";
  write_safetensors(path, tensors);
  const std::vector<TensorToWrite> reversed(tensors.rbegin(), tensors.rend());
  write_safetensors(other, reversed);
  EXPECT_EQ(read_text_file(path, 10000), read_text_file(other, 10000));
}

TEST_F(SafetensorsWriter, RefusesWhatTheFormatCannotHold) {
  const auto path = folder.path() / "x";
  const auto refuse = [&](TensorToWrite tensor, const char* part) {
    std::vector<TensorToWrite> all = tensors;
    all.push_back(std::move(tensor));
    EXPECT_ERROR(write_safetensors(path, all), part);
  };
  refuse({"a", DType::kU8, {3}, bytes(small)}, "used twice");
  refuse({"", DType::kU8, {3}, bytes(small)}, "empty");
  refuse({"__metadata__", DType::kU8, {3}, bytes(small)}, "reserved");
  refuse({"\xff", DType::kU8, {3}, bytes(small)}, "not valid UTF-8");
  refuse({"n", DType::kU8, {4}, bytes(small)}, "4 bytes, but 3 bytes were given");
  refuse({"n", DType::kU8, {-3}, bytes(small)}, "cannot be written with the shape U8 [-3]");
  refuse({"n", DType::kF64, {INT64_MAX, INT64_MAX}, bytes(small)}, "cannot be written");
  refuse({"n", DType::kU8, {INT64_MAX}, bytes(small)}, "do not fit");
  EXPECT_ERROR(write_safetensors(path, tensors, {{"k", "\xff"}}), "metadata value is not valid");
  EXPECT_EQ(folder.entries(), 0u);
  EXPECT_ERROR(write_safetensors(folder.path() / "none" / "x", tensors), "No such file");
}

TEST(SafetensorsFile, ReadsTheReferenceModel) {
  const SafetensorsFile golden(std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m" /
                               "golden.safetensors");
  EXPECT_FALSE(golden.tensors().empty());
}

}  // namespace
}  // namespace leapquant::runtime
