// SPDX-License-Identifier: Apache-2.0
//
// What a Tokenizer is made of: filled by tokenizer_file.cpp from tokenizer.json, used by
// tokenizer.cpp. Internal to these two.
#ifndef LEAPQUANT_RUNTIME_TOKENIZER_PARTS_H_
#define LEAPQUANT_RUNTIME_TOKENIZER_PARTS_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/byte_pairs.h"
#include "runtime/split_pattern.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

// A token that is found as it stands, before any other step.
struct AddedToken {
  std::string text;
  TokenId id = 0;
  bool special = false;
};

// Finds added tokens in text: at the leftmost place, the longest.
class AddedTokenFinder {
 public:
  struct Match {
    std::size_t begin;
    const AddedToken* token;
  };

  void add(AddedToken token);
  // The first match at or after `from`; special ones only when match_special is set.
  std::optional<Match> find(std::string_view text, std::size_t from, bool match_special) const;

 private:
  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
};

struct Tokenizer::Parts {
  std::string label;  // the file, for sentences
  bool nfc = false;

  // Added tokens that are sought in the text as given, and those sought after normalisation.
  AddedTokenFinder added;
  AddedTokenFinder added_normalised;

  std::vector<SplitPattern> splits;  // applied in order, each to the pieces of the one before
  bool add_prefix_space = false;     // a space before pieces that do not begin with one,
  std::optional<SplitPattern> byte_level_split;  // and then this pattern

  BytePairEncoder encoder;
  bool whole_pieces_first = false;  // ignore_merges: a piece that is a token needs no merges
  TextMap<TokenId> by_bytes;        // only with whole_pieces_first

  TextMap<TokenId> by_text;           // vocabulary and added tokens, as written in the file
  std::vector<std::string> bytes;     // by id: what the token stands for
  std::vector<std::uint8_t> special;  // by id
  std::vector<std::uint8_t> in_use;   // by id
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_TOKENIZER_PARTS_H_
