// SPDX-License-Identifier: Apache-2.0
//
// Reads tokenizer.json into the parts of a Tokenizer and refuses what tokenizer.h does not list.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/strict_json.h"
#include "runtime/tokenizer.h"
#include "runtime/tokenizer_parts.h"
#include "runtime/unicode.h"

namespace leapquant::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 256'000'000;
constexpr std::int64_t kMaxTokenId = (1 << 22) - 1;  // sixteen times the largest published

// The split of GPT-2, which a ByteLevel pre-tokenizer applies when its use_regex is set.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Byte-level vocabularies write every byte as a visible character: printable Latin-1 stands for
// itself, the other 68 bytes in order are U+0100, U+0101, ... This is the way back.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      std::string character;
      append_utf8(character, visible ? static_cast<char32_t>(byte) : next++);
      bytes_.emplace(std::move(character), static_cast<char>(byte));
    }
  }

  // The bytes that a vocabulary entry stands for; nullopt when it has other characters, such as a
  // special token in the vocabulary.
  std::optional<std::string> bytes_of(std::string_view entry) const {
    std::string bytes;
    for (std::size_t at = 0; at < entry.size();) {
      // All characters of the alphabet have one or two bytes.
      const std::size_t length = static_cast<unsigned char>(entry[at]) < 0x80 ? 1 : 2;
      const auto found = bytes_.find(entry.substr(at, length));
      if (found == bytes_.end()) return std::nullopt;
      bytes += found->second;
      at += length;
    }
    return bytes;
  }

 private:
  TextMap<char> bytes_;
};

void require_absent(const JsonObject& object, std::string_view key) {
  const json* value = object.find(key);
  if (value == nullptr || *value == "" || *value == false || *value == 0) return;
  throw Error(object.where(key) + " is set, which this runtime does not support.");
}

[[noreturn]] void fail_type(const JsonObject& parent, std::string_view key, const std::string& type,
                            std::string_view supported) {
  throw Error(parent.where(key) + " has the type " + in_quotes(type) + "; supported are " +
              std::string(supported) + ".");
}

bool flag(const JsonObject& object, std::string_view key, bool otherwise) {
  return object.contains(key) ? object.boolean(key) : otherwise;
}

}  // namespace

// Fills Parts step by step.
class TokenizerFile {
 public:
  TokenizerFile(const json& root, const std::string& label, Tokenizer::Parts& parts)
      : root_(root, label), label_(label), parts_(parts) {}

  void read() {
    parts_.label = label_;
    read_normalizer();
    read_pre_tokenizer();
    read_byte_level_only("post_processor", true);
    read_byte_level_only("decoder", false);
    read_model();
    read_added_tokens();
  }

 private:
  void read_normalizer();
  void read_pre_tokenizer();
  void read_split(const JsonObject& split);
  void read_byte_level(const JsonObject& byte_level);
  void read_byte_level_only(std::string_view key, bool may_be_absent);
  void read_model();
  std::vector<BytePairMerge> read_merges(const JsonObject& model) const;
  void read_added_tokens();
  void read_added_token(const JsonObject& token);
  TokenId piece(std::string_view text, std::size_t merge) const;
  void take_id(TokenId id, std::string_view token, std::string bytes);

  JsonObject root_;
  std::string label_;
  Tokenizer::Parts& parts_;
  ByteAlphabet alphabet_;
};

void TokenizerFile::read_normalizer() {
  constexpr std::string_view kSupported = "none and NFC";
  if (!root_.contains("normalizer")) return;
  const JsonObject normalizer = root_.object("normalizer");
  const std::string type = normalizer.string("type");
  if (type == "Sequence") {
    for (const json& step : normalizer.array("normalizers")) {
      const JsonObject object(step, label_, "normalizer.normalizers");
      if (object.string("type") != "NFC") {
        fail_type(root_, "normalizer", object.string("type"), kSupported);
      }
      parts_.nfc = true;
    }
  } else if (type == "NFC") {
    parts_.nfc = true;
  } else {
    fail_type(root_, "normalizer", type, kSupported);
  }
}

void TokenizerFile::read_split(const JsonObject& split) {
  const JsonObject pattern = split.object("pattern");
  const bool literal = pattern.contains("String");
  const std::string text = pattern.string(literal ? "String" : "Regex");
  const std::string behavior = split.string("behavior");
  const bool invert = flag(split, "invert", false);
  SplitKeep keep = SplitKeep::kMatchesAndGaps;
  if (behavior == "Removed") {
    keep = invert ? SplitKeep::kMatches : SplitKeep::kGaps;
  } else if (behavior != "Isolated") {
    throw Error(split.where("behavior") + " must be \"Isolated\" or \"Removed\", found " +
                in_quotes(behavior) + ".");
  }
  parts_.splits.emplace_back(text, literal, keep, label_);
}

void TokenizerFile::read_byte_level(const JsonObject& byte_level) {
  parts_.add_prefix_space = flag(byte_level, "add_prefix_space", true);
  if (flag(byte_level, "use_regex", true)) {
    parts_.byte_level_split.emplace(kByteLevelPattern, false, SplitKeep::kMatchesAndGaps, label_);
  }
}

void TokenizerFile::read_pre_tokenizer() {
  constexpr std::string_view kSupported =
      "ByteLevel, and a Sequence of Split that ends in ByteLevel";
  const JsonObject pre_tokenizer = root_.object("pre_tokenizer");
  const std::string type = pre_tokenizer.string("type");
  if (type == "ByteLevel") {
    read_byte_level(pre_tokenizer);
    return;
  }
  if (type != "Sequence") fail_type(root_, "pre_tokenizer", type, kSupported);
  const json& steps = pre_tokenizer.array("pretokenizers");
  if (steps.size() > 16) {
    throw Error(pre_tokenizer.where("pretokenizers") + " has " + std::to_string(steps.size()) +
                " steps; at most 16 are accepted.");
  }
  bool ended = false;
  for (const json& step : steps) {
    const JsonObject object(step, label_, "pre_tokenizer.pretokenizers");
    const std::string step_type = object.string("type");
    if (ended || (step_type != "Split" && step_type != "ByteLevel")) {
      fail_type(root_, "pre_tokenizer", "... " + step_type, kSupported);
    }
    if (step_type == "Split") {
      read_split(object);
    } else {
      read_byte_level(object);
      ended = true;
    }
  }
  if (!ended) fail_type(root_, "pre_tokenizer", "Sequence without ByteLevel", kSupported);
}

// The post-processor of that type only trims offsets, which this runtime does not give; others
// would add tokens.
void TokenizerFile::read_byte_level_only(std::string_view key, bool may_be_absent) {
  if (may_be_absent && !root_.contains(key)) return;
  const std::string type = root_.object(key).string("type");
  if (type != "ByteLevel")
    fail_type(root_, key, type, may_be_absent ? "none, ByteLevel" : "ByteLevel");
}

void TokenizerFile::take_id(TokenId id, std::string_view token, std::string bytes) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= parts_.bytes.size()) {
    parts_.bytes.resize(at + 1);
    parts_.special.resize(at + 1, 0);
    parts_.in_use.resize(at + 1, 0);
  }
  if (parts_.in_use[at] != 0) {
    throw Error(label_ + ": the token id " + std::to_string(id) + " of " + in_quotes(token) +
                " is already that of another token.");
  }
  parts_.in_use[at] = 1;
  parts_.bytes[at] = std::move(bytes);
  parts_.by_text.emplace(token, id);
}

void TokenizerFile::read_model() {
  const JsonObject model = root_.object("model");
  // Old files leave the type out; the merges say what they are.
  if (model.contains("type") && model.string("type") != "BPE") {
    fail_type(root_, "model", model.string("type"), "BPE");
  }
  for (const std::string_view key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    require_absent(model, key);
  }
  parts_.whole_pieces_first = flag(model, "ignore_merges", false);
  const JsonObject vocab = model.object("vocab");
  const json& entries = *model.find("vocab");
  parts_.by_text.reserve(entries.size());
  std::array<TokenId, 256> byte_tokens{};
  std::array<bool, 256> has_token{};
  for (const auto& [entry, value] : entries.items()) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxTokenId) {
      json_integer(value, vocab.where(entry), 0, kMaxTokenId);
    }
    const auto id = value.get<TokenId>();
    if (entry.empty()) throw Error(model.where("vocab") + " has an empty token.");
    const std::optional<std::string> bytes = alphabet_.bytes_of(entry);
    if (bytes && bytes->size() == 1) {
      const auto byte = static_cast<unsigned char>(bytes->front());
      byte_tokens[byte] = id;
      has_token[byte] = true;
    }
    if (bytes && parts_.whole_pieces_first) parts_.by_bytes.emplace(*bytes, id);
    // What cannot come from text as a vocabulary entry still has a text when it is decoded.
    take_id(id, entry, bytes.value_or(entry));
  }
  for (std::size_t byte = 0; byte < has_token.size(); ++byte) {
    if (!has_token[byte]) {
      throw Error(model.where("vocab") + " has no token for the byte " + std::to_string(byte) +
                  "; a byte-level vocabulary needs all 256.");
    }
  }
  parts_.encoder = BytePairEncoder(byte_tokens, read_merges(model));
}

TokenId TokenizerFile::piece(std::string_view text, std::size_t merge) const {
  const auto found = parts_.by_text.find(text);
  if (found != parts_.by_text.end()) return found->second;
  throw Error(label_ + ": merge " + std::to_string(merge) + " has the piece " + in_quotes(text) +
              ", which is not in the vocabulary.");
}

std::vector<BytePairMerge> TokenizerFile::read_merges(const JsonObject& model) const {
  const json& list = model.array("merges");
  std::vector<BytePairMerge> merges;
  merges.reserve(list.size());
  std::unordered_set<std::uint64_t> pairs;
  pairs.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    std::string_view left, right;
    if (entry.is_string()) {
      const std::string_view text = entry.get_ref<const std::string&>();
      const std::size_t space = std::min(text.find(' '), text.size());
      left = text.substr(0, space);
      right = text.substr(std::min(space + 1, text.size()));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      left = entry[0].get_ref<const std::string&>();
      right = entry[1].get_ref<const std::string&>();
    }
    if (left.empty() || right.empty() || (entry.is_string() && right.find(' ') != right.npos)) {
      throw Error(label_ + ": merge " + std::to_string(i) +
                  " must be two pieces, as \"a b\" or [\"a\", \"b\"], found " +
                  in_quotes(entry.dump()) + ".");
    }
    const std::string joined = std::string(left) + std::string(right);
    merges.push_back({piece(left, i), piece(right, i), piece(joined, i)});
    const std::uint64_t pair = static_cast<std::uint64_t>(merges.back().left) << 32 |
                               static_cast<std::uint32_t>(merges.back().right);
    if (!pairs.insert(pair).second) {
      throw Error(label_ + ": merge " + std::to_string(i) + " of " + in_quotes(left) + " and " +
                  in_quotes(right) + " occurs a second time.");
    }
  }
  return merges;
}

void TokenizerFile::read_added_token(const JsonObject& token) {
  AddedToken added;
  added.text = token.string("content");
  added.id = static_cast<TokenId>(token.integer("id", 0, kMaxTokenId));
  added.special = flag(token, "special", false);
  if (added.text.empty()) throw Error(token.where("content") + " must not be empty.");
  for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
    if (flag(token, key, false)) {
      throw Error(token.where(key) + " is set for " + in_quotes(added.text) +
                  ", which this runtime does not support.");
    }
  }
  const auto known = parts_.by_text.find(added.text);
  if (known == parts_.by_text.end()) {
    take_id(added.id, added.text, added.text);
  } else if (known->second != added.id) {
    throw Error(label_ + ": the added token " + in_quotes(added.text) + " has the id " +
                std::to_string(added.id) + ", but another entry gives it " +
                std::to_string(known->second) + ".");
  }
  const auto at = static_cast<std::size_t>(added.id);
  parts_.bytes[at] = added.text;
  parts_.special[at] = added.special ? 1 : 0;
  // Special tokens are sought before normalisation unless the file says otherwise.
  if (parts_.nfc && flag(token, "normalized", !added.special)) {
    added.text = to_nfc(added.text);
    parts_.added_normalised.add(std::move(added));
  } else {
    parts_.added.add(std::move(added));
  }
}

void TokenizerFile::read_added_tokens() {
  if (!root_.contains("added_tokens")) return;
  for (const json& token : root_.array("added_tokens")) {
    read_added_token(JsonObject(token, label_, "added_tokens"));
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  return parse(read_text_file(path, kMaxFileBytes), path.string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view label) {
  const json root = parse_strict_json(tokenizer_json, label);
  auto parts = std::make_unique<Parts>();
  TokenizerFile(root, std::string(label), *parts).read();
  return Tokenizer(std::move(parts));
}

}  // namespace leapquant::runtime
