// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE tokenizer over the tokenizer.json of Hugging Face: text to token ids and back. It
// gives the ids of the `tokenizers` package for the parts of that file it accepts, and refuses
// files with parts it does not know rather than giving other ids.
#ifndef LEAPQUANT_RUNTIME_TOKENIZER_H_
#define LEAPQUANT_RUNTIME_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace leapquant::runtime {

using TokenId = std::int32_t;

// What encode does with text that looks like a special token ("<|im_end|>").
enum class SpecialTokens {
  kAsText,  // it is ordinary text: for what users type
  kMatch,   // it becomes the token: for prompts that a template or an expert wrote
};

// Immutable after loading; all const functions may be called from several threads at once.
//
// Accepted: model BPE with a vocabulary that has all 256 byte tokens, merges as "a b" or pairs,
// ignore_merges; normalizer null or NFC; pre_tokenizer ByteLevel or a Sequence of Split (Isolated,
// or Removed with invert) and ByteLevel; post_processor null or ByteLevel; decoder ByteLevel;
// added tokens without lstrip, rstrip and single_word. Anything else throws Error by name, as do
// merges of unknown pieces, ids used twice, wrong types and files beyond the limits.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json.
  static Tokenizer load(const std::filesystem::path& folder);
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view label);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The text must be UTF-8, for every vocabulary: split patterns and NFC are defined on characters,
  // and a vocabulary of plain bytes follows the same rule so that a prompt is valid or not whatever
  // the model, and can always be printed back. Throws Error with the offset of the first bad byte,
  // and for texts of more than 2^30 bytes.
  // Added tokens that are not marked special are matched in both modes, as `tokenizers` does.
  std::vector<TokenId> encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::kAsText) const;

  // The bytes that the tokens stand for, concatenated; not necessarily UTF-8. Ids without a token
  // (padding rows of the embedding) stand for nothing; negative ids throw Error. Special tokens
  // give their text unless skip_special is set.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;
  // The bytes of one token, a view into the tokenizer; empty for ids without a token.
  std::string_view token_bytes(TokenId id) const;

  // The id of an added or vocabulary token by its exact text ("<|im_end|>").
  std::optional<TokenId> find(std::string_view token) const;
  bool is_special(TokenId id) const;
  // One more than the largest id; a model's vocab_size must be at least this.
  std::int64_t id_limit() const;
  // Throws Error when the embedding of a model has too few rows for the ids.
  void require_vocab_size(std::int64_t vocab_size) const;

  struct Parts;  // tokenizer_parts.h, for the two files that implement this

 private:
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

// Decodes token by token for display: gives bytes as soon as they end at a character, keeping back
// at most 3 bytes of a character that is not complete. What push and finish return, concatenated,
// is decode() of all tokens. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string push(TokenId id);
  // The bytes kept back, which never became a character.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_TOKENIZER_H_
