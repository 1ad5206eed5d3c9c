// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one piece of text: bytes become tokens, the pair with the lowest rank is
// merged until no pair is left that has one. Where pieces come from is tokenizer.h's business.
#ifndef LEAPQUANT_RUNTIME_BYTE_PAIRS_H_
#define LEAPQUANT_RUNTIME_BYTE_PAIRS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace leapquant::runtime {

// A merge joins two neighbouring tokens into one; its rank is its place in the list.
struct BytePairMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// Hash for lookups by std::string_view in maps keyed by std::string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// Immutable; encode() may be called from several threads at once.
class BytePairEncoder {
 public:
  BytePairEncoder() = default;
  // byte_tokens: the token of every byte. Ids are non-negative. A pair that occurs twice keeps its
  // first rank; the caller refuses such lists.
  BytePairEncoder(const std::array<std::int32_t, 256>& byte_tokens,
                  std::span<const BytePairMerge> merges);

  // Appends the tokens of the piece. Among pairs of equal rank the leftmost goes first. Time is
  // n log n for n bytes, whatever they are.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

 private:
  struct Slot {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0;
    std::int32_t result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};  // ids are non-negative

  std::size_t slot_of(std::uint64_t pair) const;
  const Slot* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_tokens_{};
  std::vector<Slot> table_;  // open addressing, a power of two, at most half full
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_BYTE_PAIRS_H_
