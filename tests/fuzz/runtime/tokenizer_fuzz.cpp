// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as tokenizer.json, and as a text for a fixed tokenizer: refused with an Error, or what
// is encoded decodes to the (normalised) text.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/error.h"
#include "runtime/tokenizer.h"
#include "runtime/unicode.h"

namespace {

using namespace leapquant::runtime;

// Bytes, a few merges, NFC and the split pattern of Qwen3.5.
Tokenizer fixed_tokenizer() {
  nlohmann::json vocab;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string letter;
    append_utf8(letter, static_cast<char32_t>(visible ? byte : next++));
    vocab[letter] = byte;
  }
  const char* merges[] = {"a a", "aa aa", "t h", "th e", "Ġ the", "Ã ©", "Ì ģ"};
  nlohmann::json merge_list = nlohmann::json::array();
  int id = 256;
  for (const std::string merge : merges) {
    std::string joined = merge;
    joined.erase(joined.find(' '), 1);
    vocab[joined] = id++;
    merge_list.push_back(merge);
  }
  const nlohmann::json split = {
      {"type", "Split"},
      {"behavior", "Isolated"},
      {"pattern",
       {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                  R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}}};
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const nlohmann::json file = {
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merge_list}}}};
  return Tokenizer::parse(file.dump(), "fixed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer fixed = fixed_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<TokenId> ids = fixed.encode(text);
    if (fixed.decode(ids) != to_nfc(text)) std::abort();
  } catch (const Error&) {
    if (!find_invalid_utf8(text)) std::abort();  // all UTF-8 must be accepted
  }
  try {
    const Tokenizer tokenizer = Tokenizer::parse(text, "fuzz");
    const std::vector<TokenId> ids =
        tokenizer.encode("Hello, wörld! 12 <|end|>\n", SpecialTokens::kMatch);
    for (const TokenId id : ids) {
      if (id < 0 || id >= tokenizer.id_limit()) std::abort();
    }
    tokenizer.decode(ids);
  } catch (const Error&) {
  }
  return 0;
}
