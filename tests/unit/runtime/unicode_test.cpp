// SPDX-License-Identifier: Apache-2.0
//
// Well-formed UTF-8, cutting a stream of bytes, and normalisation form C.
#include "runtime/unicode.h"

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

// Every code point, encoded by the rule of the definition rather than by the code under test.
std::string utf8_by_definition(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)),
          byte(0x80 | (c & 63))};
}

TEST(FindInvalidUtf8, AcceptsEveryScalarValueAndNothingElse) {
  for (char32_t c = 0; c < 0x120000; ++c) {
    const bool scalar = c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
    const std::string text = utf8_by_definition(c);
    ASSERT_EQ(!find_invalid_utf8(text), scalar) << std::hex << static_cast<unsigned>(c);
    if (scalar) {
      std::string appended;
      append_utf8(appended, c);
      ASSERT_EQ(appended, text);
    }
  }
}

TEST(FindInvalidUtf8, GivesTheOffsetOfTheBadSequence) {
  EXPECT_EQ(find_invalid_utf8("abc"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);             // continuation without a beginning
  EXPECT_EQ(find_invalid_utf8("ä\xc3"), 2u);              // truncated
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);           // overlong
  EXPECT_EQ(find_invalid_utf8("x\xe0\x80\xaf"), 1u);      // overlong
  EXPECT_EQ(find_invalid_utf8("x\xf0\x80\x80\xaf"), 1u);  // overlong
  EXPECT_EQ(find_invalid_utf8("\xf5\x80\x80\x80"), 0u);   // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xe2\x82\x41"), 0u);
}

TEST(RequireUtf8, NamesTheByte) {
  require_utf8("fine ✓", "The prompt");
  EXPECT_ERROR(require_utf8("ok\xff", "The prompt"), "The prompt is not valid UTF-8 at byte 2");
}

TEST(IncompleteSuffix, HoldsBackOnlyWhatCouldBecomeACharacter) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xe2"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xe2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xe2\x82\xac"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80\x80"), 0u);  // no beginning anywhere near
  EXPECT_EQ(incomplete_utf8_suffix("\xff"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xed\xa0"), 0u);  // a surrogate is no beginning
  EXPECT_EQ(incomplete_utf8_suffix("\xf0\x9f\x98\x80\xf0"), 1u);
}

TEST(ReplaceInvalidUtf8, ReplacesMaximalParts) {
  EXPECT_EQ(replace_invalid_utf8("ok ✓"), "ok ✓");
  EXPECT_EQ(replace_invalid_utf8("a\xffz"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid_utf8("a\xe2\x82z"), "a\uFFFDz");  // one truncated beginning
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xe2"), "\uFFFD");
}

TEST(ToNfc, ComposesAndReorders) {
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(to_nfc("\u212b"), "\u00c5");              // singleton: the Angstrom sign
  EXPECT_EQ(to_nfc("s\u0307\u0323"), "\u1e69");       // reorders before it composes
  EXPECT_EQ(to_nfc("\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");        // composition exclusion
  EXPECT_EQ(to_nfc("\ufb01"), "\ufb01");              // compatibility forms stay
  EXPECT_EQ(to_nfc(std::string_view("\0é", 3)), std::string("\0é", 3));
}

TEST(ToNfc, RefusesWhatIsNoUtf8) { EXPECT_ERROR(to_nfc("\xff"), "normal form C"); }

}  // namespace
}  // namespace leapquant::runtime
