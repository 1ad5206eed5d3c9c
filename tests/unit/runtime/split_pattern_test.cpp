// SPDX-License-Identifier: Apache-2.0
//
// Split patterns: what becomes a piece, white space as Oniguruma has it, and patterns to refuse.
#include "runtime/split_pattern.h"

#include <string>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view pattern, std::string_view text,
             SplitKeep keep = SplitKeep::kMatchesAndGaps, bool literal = false) {
  std::vector<std::string_view> pieces;
  SplitPattern(pattern, literal, keep, "t").split(text, pieces);
  return Pieces(pieces.begin(), pieces.end());
}

constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(SplitPattern, KeepsMatchesGapsOrBoth) {
  EXPECT_EQ(split("[0-9]+", "a12b3"), (Pieces{"a", "12", "b", "3"}));
  EXPECT_EQ(split("[0-9]+", "a12b3", SplitKeep::kMatches), (Pieces{"12", "3"}));
  EXPECT_EQ(split("[0-9]+", "a12b3", SplitKeep::kGaps), (Pieces{"a", "b"}));
  EXPECT_EQ(split("[0-9]+", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(split("[0-9]+", ""), (Pieces{}));
  EXPECT_EQ(split("x*", "axb"), (Pieces{"a", "x", "b"}));  // empty matches are skipped
}

TEST(SplitPattern, LiteralTextHasNoOperators) {
  EXPECT_EQ(split("a.b", "a.baxb", SplitKeep::kMatchesAndGaps, true), (Pieces{"a.b", "axb"}));
}

TEST(SplitPattern, SplitsAsQwenDoes) {
  EXPECT_EQ(split(kQwen, "It's  12 cafe\u0301!\n\n  x"),
            (Pieces{"It", "'s", " ", " ", "1", "2", " cafe\u0301", "!\n\n", " ", " x"}));
}

TEST(SplitPattern, WhiteSpaceIsTheUnicodeProperty) {
  for (const char* space : {"\t", "\n", "\v", "\f", "\r", " ", "\u0085", "\u00a0", "\u1680",
                            "\u2000", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    EXPECT_EQ(split("\\s", space, SplitKeep::kMatches).size(), 1u) << space;
    EXPECT_EQ(split("[x\\s]", space, SplitKeep::kMatches).size(), 1u) << space;
    EXPECT_EQ(split("\\S", space, SplitKeep::kMatches).size(), 0u) << space;
    EXPECT_EQ(split("[x\\S]", space, SplitKeep::kMatches).size(), 0u) << space;
    EXPECT_EQ(split("[^x\\s]", space, SplitKeep::kMatches).size(), 0u) << space;
  }
  for (const char* other : {"a", "\u180e", "\u200b", "\ufeff", "\u0000b", "\U0010ffff"}) {
    EXPECT_EQ(split("\\s", other, SplitKeep::kMatches).size(), 0u) << other;
    EXPECT_EQ(split("[\\s]", other, SplitKeep::kMatches).size(), 0u) << other;
  }
  EXPECT_EQ(split("[\\S]", "\u180e\u200b\U0010ffff", SplitKeep::kMatches).size(), 3u);
  EXPECT_EQ(split("\\\\s", "\\s", SplitKeep::kMatches), (Pieces{"\\s"}));  // an escaped backslash
  EXPECT_EQ(split("[]\\s]", "] ", SplitKeep::kMatches).size(), 2u);        // ] first in a class
}

TEST(SplitPattern, LongRunsNeedNoStack) {
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(split(kQwen, spaces).size(), 1u);
  std::string letters;
  for (int i = 0; i < 500'000; ++i) letters += "e\u0301";
  EXPECT_EQ(split(kQwen, letters).size(), 1u);
}

TEST(SplitPattern, RefusesPatternsWithASentence) {
  EXPECT_ERROR(split("(", "a"), "t: the split pattern \"(\" is not accepted: missing closing");
  EXPECT_ERROR(split("[a", "a"), "is not accepted");
  EXPECT_ERROR(split("\\p{Nonsense}", "a"), "is not accepted");
  EXPECT_ERROR(split("\\C", "a"), "is not accepted");
  EXPECT_ERROR(split("", "a"), "must have 1 to 65536 bytes, found 0");
  EXPECT_ERROR(split(std::string(65537, 'a'), "a"), "found 65537");
  EXPECT_ERROR(split("[a&&[b]]", "a"), "nested or intersected");
  EXPECT_ERROR(split("[a[b]]", "a"), "nested or intersected");
}

TEST(SplitPattern, EndsPatternsThatBacktrackWithoutEnd) {
  EXPECT_ERROR(split("(?:a+)+[^ac]", std::string(40, 'a') + "c"),
               "cannot be applied to the text at byte 0");
}

}  // namespace
}  // namespace leapquant::runtime
