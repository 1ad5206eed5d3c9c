// SPDX-License-Identifier: Apache-2.0
//
// Reading task files and judging completions.
#include "lab/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/error.h"

namespace leapquant::lab {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TaskFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

constexpr const char* kLine = R"({"id":"a","prompt":"p","answer":"x","check":"exact"})";

TEST(Judging, StripsTrailingWhiteSpaceOfBothSides) {
  const Task task{"a", "p", "one two\n", Check::kExact};
  EXPECT_TRUE(is_right(task, "one two"));
  EXPECT_TRUE(is_right(task, "one two \n\n"));
  EXPECT_FALSE(is_right(task, " one two"));
  EXPECT_FALSE(is_right(task, "one  two"));
  EXPECT_FALSE(is_right(task, ""));
}

TEST(Judging, LastLineIgnoresTheWorking) {
  const Task task{"a", "p", "working\nmore\n#42\n", Check::kLastLine};
  EXPECT_EQ(compared_part(task.answer, task.check), "#42");
  EXPECT_TRUE(is_right(task, "other working\n#42"));
  EXPECT_FALSE(is_right(task, "working\nmore\n#43"));
  EXPECT_FALSE(is_right(task, "#42\nworking"));
}

TEST(Judging, LastLineOfOneLineIsAllOfIt) {
  const Task task{"a", "p", "1 2 #3", Check::kLastLine};
  EXPECT_TRUE(is_right(task, "1 2 #3"));
  EXPECT_FALSE(is_right(task, "1 9 #3"));
}

TEST_F(TaskFiles, ReadsAFolderInTheOrderOfTiers) {
  write("long/b.jsonl", kLine);
  write("short/z.jsonl", kLine);
  write("short/a.jsonl", kLine);
  write("medium/a.jsonl", kLine);
  write("short/notes.txt", "no tasks");
  const std::vector<TaskFile> files = load_tasks(folder_);
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(files[0].tier + "/" + files[0].name, "short/a");
  EXPECT_EQ(files[1].tier + "/" + files[1].name, "short/z");
  EXPECT_EQ(files[2].tier + "/" + files[2].name, "medium/a");
  EXPECT_EQ(files[3].tier + "/" + files[3].name, "long/b");
}

TEST_F(TaskFiles, LimitKeepsTheFirstLines) {
  const auto path = write(
      "t.jsonl", std::string(kLine) + "\n\n" + R"({"id":"b","prompt":"p","answer":"x"})" + "\n");
  EXPECT_EQ(load_tasks(path).front().tasks.size(), 2U);
  const std::vector<TaskFile> one = load_tasks(path, 1);
  ASSERT_EQ(one.front().tasks.size(), 1U);
  EXPECT_EQ(one.front().tasks.front().id, "a");
}

TEST_F(TaskFiles, NamesTheLineOfWhatIsNoTask) {
  const std::string good = std::string(kLine) + "\n";
  for (const auto& [line, part] :
       {std::pair{R"({"id":"b","prompt":"p"})", "answer"},
        std::pair{R"({"id":"b","prompt":"","answer":"x"})", "prompt"},
        std::pair{R"({"id":"b","prompt":1,"answer":"x"})", "prompt"},
        std::pair{R"({"id":"b\nc","prompt":"p","answer":"x"})", "one line"},
        std::pair{R"({"id":"b\r","prompt":"p","answer":"x"})", "one line"},
        std::pair{R"({"id":"a","prompt":"p","answer":"x"})", "twice"}, std::pair{"[]", "line 2"}}) {
    const auto path = write("t.jsonl", good + line + "\n");
    EXPECT_THAT([&] { load_tasks(path); }, ThrowsMessage<runtime::Error>(::testing::AllOf(
                                               HasSubstr("line 2"), HasSubstr(part))))
        << line;
  }
}

// The results of an evaluation name both in one line.
TEST_F(TaskFiles, NamesOfFilesAndTiersAreOneLine) {
  for (const char* name : {"short/a\nb.jsonl", "a\rb/t.jsonl", "a\nb/t.jsonl"}) {
    const auto path = write(name, kLine);
    EXPECT_THAT([&] { load_tasks(path); },
                ThrowsMessage<runtime::Error>(HasSubstr("must be one line")))
        << name;
  }
}

TEST_F(TaskFiles, AFolderOrFileWithoutTasksIsAnError) {
  EXPECT_THROW(load_tasks(folder_), runtime::Error);
  EXPECT_THROW(load_tasks(write("t.jsonl", "\n")), runtime::Error);
  EXPECT_THROW(load_tasks(folder_ / "none.jsonl"), runtime::Error);
}

}  // namespace
}  // namespace leapquant::lab
