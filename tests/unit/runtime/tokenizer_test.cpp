// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer files: what is accepted and gives which ids, what is refused, and streams of bytes. The
// comparison with the `tokenizers` package is in tests/python.
#include "runtime/tokenizer.h"

#include <nlohmann/json.hpp>
#include <random>

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

// The character that a byte-level vocabulary writes for a byte.
std::string letter(int byte) {
  const auto visible = [](int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); };
  int code = byte;
  if (!visible(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += visible(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// 256 bytes (id = byte), "ab" 256, "abc" 257, "Ġa" (space a) 258; two added tokens.
json file() {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[letter(byte)] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["Ġa"] = 258;
  const auto added = [](int id, const char* content, bool special) {
    return json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  return {
      {"version", "1.0"},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", {added(300, "<|end|>", true), added(301, "<think>", false)}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"a b", "ab c", "Ġ a"}},
        {"ignore_merges", false}}}};
}

Tokenizer parse(const json& content) { return Tokenizer::parse(content.dump(), "t.json"); }

// The sentence for the file with the value at a JSON pointer replaced.
void expect_refused(const char* pointer, const json& value, const char* part) {
  json content = file();
  content[json::json_pointer(pointer)] = value;
  EXPECT_ERROR(parse(content), part) << pointer << " = " << value;
}

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer tokenizer = parse(file());
  EXPECT_EQ(tokenizer.encode("abcab a"), (Ids{257, 256, 258}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.encode("\xc3\xa9"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode(std::string_view("\0\n", 2)), (Ids{0, 10}));
  EXPECT_EQ(tokenizer.decode(Ids{257, 258, 0xC3, 0xA9, 300}), "abc aé<|end|>");
  EXPECT_EQ(tokenizer.decode(Ids{257, 300, 301}, true), "abc<think>");
  EXPECT_EQ(tokenizer.id_limit(), 302);
}

TEST(Tokenizer, MergesMayBePairs) {
  json content = file();
  content["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"], ["Ġ", "a"]])");
  EXPECT_EQ(parse(content).encode("abcab a"), (Ids{257, 256, 258}));
}

TEST(Tokenizer, SpecialTokensAreTextUnlessAsked) {
  const Tokenizer tokenizer = parse(file());
  EXPECT_EQ(tokenizer.encode("<|end|>x", SpecialTokens::kMatch), (Ids{300, 'x'}));
  EXPECT_EQ(tokenizer.encode("<|end|>"), (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(tokenizer.encode("a<think>b"), (Ids{'a', 301, 'b'}));  // added, but not special
  EXPECT_EQ(tokenizer.find("<|end|>"), 300);
  EXPECT_EQ(tokenizer.find("abc"), 257);
  EXPECT_EQ(tokenizer.find("none"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(1 << 20));
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  json content = file();
  json longer = content["added_tokens"][0];
  longer["id"] = 302;
  longer["content"] = "<|end|>!";
  content["added_tokens"].push_back(longer);
  EXPECT_EQ(parse(content).encode("<|end|>!<|end|>", SpecialTokens::kMatch), (Ids{302, 300}));
}

TEST(Tokenizer, NormalisesBeforeSplitting) {
  json content = file();
  content["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(parse(content).encode("e\u0301"), (Ids{0xC3, 0xA9}));
  content["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  EXPECT_EQ(parse(content).encode("e\u0301"), (Ids{0xC3, 0xA9}));
  content["normalizer"] = nullptr;
  EXPECT_EQ(parse(content).encode("e\u0301"), (Ids{'e', 0xCC, 0x81}));
}

TEST(Tokenizer, AddedTokensBeforeOrAfterNormalisation) {
  json content = file();
  content["normalizer"] = {{"type", "NFC"}};
  content["added_tokens"][1]["content"] = "<e\u0301>";
  EXPECT_EQ(parse(content).encode("<e\u0301>"), Ids{301});
  EXPECT_EQ(parse(content).encode("<\u00e9>"), (Ids{'<', 0xC3, 0xA9, '>'}));
  content["added_tokens"][1]["normalized"] = true;
  EXPECT_EQ(parse(content).encode("<e\u0301>"), Ids{301});
  EXPECT_EQ(parse(content).encode("<\u00e9>"), Ids{301});
}

TEST(Tokenizer, SplitsBeforeMerging) {
  json content = file();
  const json byte_level = content["pre_tokenizer"];
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "ab"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  content["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
  EXPECT_EQ(parse(content).encode("abc"), (Ids{256, 'c'}));
  content["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_EQ(parse(content).encode("abc"), (Ids{'c'}));
  content["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  EXPECT_EQ(parse(content).encode("abc"), (Ids{256}));
}

TEST(Tokenizer, ByteLevelOptions) {
  json content = file();
  content["pre_tokenizer"]["use_regex"] = true;
  EXPECT_EQ(parse(content).encode("x a"), (Ids{'x', 258}));
  EXPECT_EQ(parse(content).encode("x  a"), (Ids{'x', ' ', 258}));
  content["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(parse(content).encode("a"), (Ids{258}));
  EXPECT_EQ(parse(content).encode(" a"), (Ids{258}));
  EXPECT_EQ(parse(content).encode(""), Ids{});
}

TEST(Tokenizer, WholePiecesFirst) {
  json content = file();
  content["model"]["merges"] = {"a b"};  // "abc" cannot be merged
  EXPECT_EQ(parse(content).encode("abc"), (Ids{256, 'c'}));
  content["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(content).encode("abc"), (Ids{257}));
}

TEST(Tokenizer, VocabularyEntriesOutsideOfTheAlphabetKeepTheirText) {
  json content = file();
  content["model"]["vocab"]["<｜x｜>"] = 259;
  content["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer = parse(content);
  EXPECT_EQ(tokenizer.decode(Ids{259}), "<｜x｜>");
  EXPECT_GT(tokenizer.encode("<｜x｜>").size(), 1u);
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  const Tokenizer tokenizer = parse(file());
  EXPECT_ERROR(tokenizer.encode("abc\xff"), "The text to encode is not valid UTF-8 at byte 3");
  EXPECT_ERROR(tokenizer.encode("\xed\xa0\x80"), "at byte 0");
}

TEST(Tokenizer, IdsWithoutATokenStandForNothing) {
  const Tokenizer tokenizer = parse(file());
  EXPECT_EQ(tokenizer.decode(Ids{'a', 280, 1'000'000, 'b'}), "ab");
  EXPECT_ERROR(tokenizer.decode(Ids{-1}), "The token id -1 is negative");
}

TEST(Tokenizer, MustFitTheModel) {
  const Tokenizer tokenizer = parse(file());
  tokenizer.require_vocab_size(302);
  EXPECT_ERROR(tokenizer.require_vocab_size(301),
               "ids up to 301, but the model's vocab_size is 301");
}

TEST(Tokenizer, RefusesBrokenMerges) {
  expect_refused("/model/merges/1", "ab z z", "merge 1 must be two pieces");
  expect_refused("/model/merges/1", "abc", "merge 1 must be two pieces");
  expect_refused("/model/merges/1", " abc", "merge 1 must be two pieces");
  expect_refused("/model/merges/1", "abc ", "merge 1 must be two pieces");
  expect_refused("/model/merges/1", "", "merge 1 must be two pieces");
  expect_refused("/model/merges/1", 7, "merge 1 must be two pieces");
  expect_refused("/model/merges/1", {"a", "b", "c"}, "merge 1 must be two pieces");
  expect_refused("/model/merges/1", json::array({"a", 1}), "merge 1 must be two pieces");
  expect_refused("/model/merges/1", "xy c", "merge 1 has the piece \"xy\"");
  expect_refused("/model/merges/1", "ab xy", "merge 1 has the piece \"xy\"");
  expect_refused("/model/merges/1", "b a", "merge 1 has the piece \"ba\"");
  expect_refused("/model/merges/1", "a b", "occurs a second time");
  expect_refused("/model/merges", "a b", "must be an array");
  json content = file();
  content["model"].erase("merges");
  EXPECT_ERROR(parse(content), "\"model.merges\" is missing");
}

TEST(Tokenizer, RefusesBrokenVocabularies) {
  expect_refused("/model/vocab/abc", 256, "is already that of another token");
  expect_refused("/model/vocab/abc", -1, "found -1");
  expect_refused("/model/vocab/abc", 1.5, "found 1.5");
  expect_refused("/model/vocab/abc", "7", "must be an integer, found string");
  expect_refused("/model/vocab/abc", 1 << 22, "from 0 to 4194303");
  expect_refused("/model/vocab/", 259, "has an empty token");
  expect_refused("/model/vocab", json::array(), "must be a JSON object");
  json content = file();
  content["model"]["vocab"].erase(letter(0));
  EXPECT_ERROR(parse(content), "no token for the byte 0");
  content["model"].erase("vocab");
  EXPECT_ERROR(parse(content), "\"model.vocab\" is missing");
  std::string twice = file().dump();
  const std::size_t at = twice.find("\"abc\":257");
  twice.insert(at, "\"abc\":259,");
  EXPECT_ERROR(Tokenizer::parse(twice, "t.json"), "\"abc\" occurs twice");
}

TEST(Tokenizer, RefusesBrokenAddedTokens) {
  expect_refused("/added_tokens/1/id", 300, "is already that of another token");
  expect_refused("/added_tokens/1/id", 97, "is already that of another token");
  expect_refused("/added_tokens/1/id", -1, "found -1");
  expect_refused("/added_tokens/1/content", "", "must not be empty");
  expect_refused("/added_tokens/1/content", 7, "must be a string");
  expect_refused("/added_tokens/1/content", "abc", "another entry gives it 257");
  expect_refused("/added_tokens/1/lstrip", true, "lstrip\" is set for \"<think>\"");
  expect_refused("/added_tokens/1/rstrip", true, "rstrip\" is set");
  expect_refused("/added_tokens/1/single_word", true, "single_word\" is set");
  expect_refused("/added_tokens/1", "x", "must be a JSON object");
  expect_refused("/added_tokens", "x", "must be an array");
}

TEST(Tokenizer, RefusesPartsItDoesNotKnow) {
  expect_refused("/model/type", "WordPiece", "has the type \"WordPiece\"; supported are BPE");
  expect_refused("/model/dropout", 0.1, "\"model.dropout\" is set");
  expect_refused("/model/continuing_subword_prefix", "##", "is set, which this runtime does not");
  expect_refused("/model/end_of_word_suffix", "</w>", "is set, which this runtime does not");
  expect_refused("/normalizer", {{"type", "NFKC"}}, "\"NFKC\"; supported are none and NFC");
  expect_refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Strip"}}}}},
                 "Strip");
  expect_refused("/pre_tokenizer", {{"type", "Metaspace"}}, "has the type \"Metaspace\"");
  expect_refused("/pre_tokenizer", nullptr, "\"pre_tokenizer\" is missing");
  expect_refused("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array()}},
                 "without ByteLevel");
  expect_refused("/pre_tokenizer",
                 {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}}}}, "Digits");
  expect_refused("/decoder", {{"type", "WordPiece"}}, "\"WordPiece\"; supported are ByteLevel");
  expect_refused("/decoder", nullptr, "\"decoder\" is missing");
  expect_refused("/post_processor", {{"type", "TemplateProcessing"}}, "TemplateProcessing");
  json content = file();
  content["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}}}}};
  EXPECT_ERROR(parse(content), "the split pattern \"(\" is not accepted");
  content["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext";
  EXPECT_ERROR(parse(content), "found \"MergedWithNext\"");
}

TEST(Tokenizer, RefusesBrokenFiles) {
  EXPECT_ERROR(Tokenizer::parse("", "t.json"), "t.json: the JSON is malformed");
  EXPECT_ERROR(Tokenizer::parse("[]", "t.json"), "must be a JSON object");
  EXPECT_ERROR(Tokenizer::parse("{}", "t.json"), "\"pre_tokenizer\" is missing");
  EXPECT_ERROR(Tokenizer::parse(std::string(100000, '['), "t.json"), "nested deeper");
  const TemporaryFolder folder;
  EXPECT_ERROR(Tokenizer::load(folder.path()), "tokenizer.json\" (No such file");
}

TEST(Tokenizer, ReferenceModelTakesEveryByteOfUtf8) {
  const auto folder = std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m";
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.id_limit(), 256);
  const std::string text = "Any text: \t\n äöü € 😀 \x01\x7f";
  const Ids ids = tokenizer.encode(text);
  ASSERT_EQ(ids.size(), text.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(ids[i], static_cast<unsigned char>(text[i]));
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const Tokenizer tokenizer = parse(file());
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(0xAC), "€");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(257),
            "\xf0"
            "abc");  // it did not become a character
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\xc3");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, SkipsSpecialTokensOnRequest) {
  const Tokenizer tokenizer = parse(file());
  StreamDecoder decoder(tokenizer, true);
  EXPECT_EQ(decoder.push(300) + decoder.push('a') + decoder.push(301), "a<think>");
}

TEST(StreamDecoder, ConcatenationIsDecode) {
  const Tokenizer tokenizer = parse(file());
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    Ids ids;
    for (unsigned i = random() % 40; i > 0; --i) {
      // Mostly bytes that begin or continue characters.
      ids.push_back(
          static_cast<TokenId>(random() % 4 == 0 ? random() % 302 : 0x80 + random() % 128));
    }
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const TokenId id : ids) text += decoder.push(id);
    ASSERT_EQ(text + decoder.finish(), tokenizer.decode(ids));
  }
}

}  // namespace
}  // namespace leapquant::runtime
