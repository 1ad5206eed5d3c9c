// SPDX-License-Identifier: Apache-2.0
//
// For tests of the runtime: expects an Error whose sentence says the right thing, and a folder that
// disappears after the test.
#ifndef LEAPQUANT_TESTS_UNIT_RUNTIME_EXPECT_ERROR_H_
#define LEAPQUANT_TESTS_UNIT_RUNTIME_EXPECT_ERROR_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "runtime/error.h"

namespace leapquant::runtime {

// The sentence of the Error that call() throws; empty (and a failure) when it throws none. A
// sentence is one line and ends in a full stop.
template <typename Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string sentence = error.what();
    EXPECT_THAT(sentence, testing::EndsWith("."));
    EXPECT_THAT(sentence, testing::Not(testing::HasSubstr("\n")));
    return sentence;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

#define EXPECT_ERROR(statement, part) \
  EXPECT_THAT(::leapquant::runtime::sentence_of([&] { statement; }), ::testing::HasSubstr(part))

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "leapquant-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("No temporary folder could be made.");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  std::size_t entries() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_TESTS_UNIT_RUNTIME_EXPECT_ERROR_H_
