// SPDX-License-Identifier: Apache-2.0
//
// Sentences, mapped files, and files that are written completely or not at all.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "runtime/mapped_file.h"
#include "runtime/output_file.h"
#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(InQuotes, LeavesTextAndEscapesWhatTerminalsObey) {
  EXPECT_EQ(in_quotes("Grüße 😀"), "\"Grüße 😀\"");
  EXPECT_EQ(in_quotes("a\nb\x1b[31m\x7f"), "\"a\\x0ab\\x1b[31m\\x7f\"");
  EXPECT_EQ(in_quotes("\xc2\x9b"), "\"\\xc2\\x9b\"");    // C1 control sequence introducer
  EXPECT_EQ(in_quotes("a\xff\xc3"), "\"a\\xff\\xc3\"");  // not UTF-8
  EXPECT_EQ(in_quotes(std::string_view("\0", 1)), "\"\\x00\"");
}

TEST(Printable, EscapesWithoutQuotesAndCutsNothing) {
  const std::string text(1000, 'a');
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\"Grüße\"\n\x1b[31m\xff"), "\"Grüße\"\\x0a\\x1b[31m\\xff");
}

TEST(InQuotes, CutsLongTextAtACharacter) {
  EXPECT_EQ(in_quotes("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(in_quotes("abä", 3), "\"ab...\"");  // ä has two bytes
}

TEST(MappedFile, GivesTheBytes) {
  const TemporaryFolder folder;
  MappedFile file(folder.write("a", std::string_view("x\0y", 3)));
  EXPECT_EQ(text_of(file), std::string("x\0y", 3));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes().data()) % 4096, 0u);
  MappedFile moved(std::move(file));
  EXPECT_EQ(text_of(moved), std::string("x\0y", 3));
  moved = MappedFile(folder.write("b", "other"));
  EXPECT_EQ(text_of(moved), "other");
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const TemporaryFolder folder;
  EXPECT_TRUE(MappedFile(folder.write("a", "")).bytes().empty());
}

TEST(MappedFile, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_ERROR(MappedFile(folder.path() / "none"), "No such file");
  EXPECT_ERROR(MappedFile{folder.path()}, "not a regular file");
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(MappedFile(folder.path() / "pipe"), "not a regular file");  // and does not wait
}

TEST(ReadTextFile, ReadsAndLimits) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  EXPECT_ERROR(read_text_file(path, 4), "has 5 bytes; at most 4");
  EXPECT_ERROR(read_text_file(folder.path() / "none", 4), "No such file");
}

TEST(OutputFile, ReplacesTheTargetOnlyAtCommit) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  {
    OutputFile file(path);
    file.write("new ");
    file.write("content");
    EXPECT_EQ(read_text_file(path, 100), "old");
    file.commit();
  }
  EXPECT_EQ(read_text_file(path, 100), "new content");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  {
    OutputFile file(path);
    file.write("half");
  }
  EXPECT_EQ(read_text_file(path, 100), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(OutputFile, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_ERROR(OutputFile(folder.path() / "none" / "a"), "No such file");
  EXPECT_ERROR(OutputFile{folder.path()}, "it is a folder");
  EXPECT_ERROR(OutputFile(folder.path() / ""), "it is a folder");
  EXPECT_ERROR(OutputFile(""), "without a name");
  EXPECT_ERROR(OutputFile(folder.write("a", "") / "b"), "Not a directory");
}

TEST(OutputFile, NeverTakesThePlaceOfADeviceOrPipe) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(OutputFile{pipe}, "device, pipe or socket");
  std::filesystem::create_symlink("/dev/null", folder.path() / "link");
  EXPECT_ERROR(OutputFile(folder.path() / "link"), "device, pipe or socket");
  std::filesystem::create_symlink("loop", folder.path() / "loop");
  EXPECT_ERROR(OutputFile(folder.path() / "loop"), "Cannot follow the link");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(folder.entries(), 3u);
}

TEST(OutputFile, FollowsLinksToFiles) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  std::filesystem::create_symlink("a", folder.path() / "link");
  const auto link = folder.path() / "link";
  OutputFile file(link);
  file.write("new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_text_file(path, 100), "new");
  EXPECT_EQ(folder.entries(), 2u);
  std::filesystem::create_symlink("none", folder.path() / "to_nothing");
  EXPECT_ERROR(OutputFile(folder.path() / "to_nothing"), "Cannot follow the link");
}

// A limit on the file size stands in for a full disk: both make write() fail half-way.
TEST(OutputFile, RemovesWhatDidNotFit) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string sentence = sentence_of([&] {
    OutputFile file(folder.path() / "a");
    file.write(std::string(10000, 'x'));
    file.commit();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(sentence, testing::HasSubstr("nothing was written"));
  EXPECT_THAT(sentence, testing::HasSubstr("File too large"));
  EXPECT_EQ(folder.entries(), 0u);
}

}  // namespace
}  // namespace leapquant::runtime
