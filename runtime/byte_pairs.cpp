// SPDX-License-Identifier: Apache-2.0
//
// See byte_pairs.h.
#include "runtime/byte_pairs.h"

#include <bit>
#include <queue>

namespace leapquant::runtime {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// A token in the list of what the piece currently consists of. next and previous are places in the
// list, -1 at its ends; a token that was merged into its left neighbour has id -1.
struct Symbol {
  std::int32_t id;
  std::int32_t previous;
  std::int32_t next;
};

// A merge that was possible when it was found; its two tokens may have changed since.
struct Candidate {
  std::int32_t rank;
  std::int32_t place;  // of the left token
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

struct LaterFirst {  // priority_queue gives its greatest element
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.place > b.place;
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<std::int32_t, 256>& byte_tokens,
                                 std::span<const BytePairMerge> merges)
    : byte_tokens_(byte_tokens), table_(std::bit_ceil(2 * merges.size() + 2)) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    Slot& slot = table_[slot_of(pair)];
    if (slot.pair != kNoPair) continue;
    slot = {pair, static_cast<std::int32_t>(rank), merges[rank].result};
  }
}

// The slot that holds the pair, or the free one where it would go.
std::size_t BytePairEncoder::slot_of(std::uint64_t pair) const {
  std::uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  std::size_t at = hash & (table_.size() - 1);
  while (table_[at].pair != kNoPair && table_[at].pair != pair) at = (at + 1) & (table_.size() - 1);
  return at;
}

const BytePairEncoder::Slot* BytePairEncoder::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = table_[slot_of(pair_key(left, right))];
  return slot.pair == kNoPair ? nullptr : &slot;
}

void BytePairEncoder::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  const auto size = static_cast<std::int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  for (std::int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
    symbols[static_cast<std::size_t>(i)] = {byte_tokens_[byte], i - 1, i + 1 < size ? i + 1 : -1};
  }
  const auto at = [&](std::int32_t place) -> Symbol& {
    return symbols[static_cast<std::size_t>(place)];
  };
  std::priority_queue<Candidate, std::vector<Candidate>, LaterFirst> candidates;
  const auto consider = [&](std::int32_t place) {
    if (place < 0 || at(place).next < 0) return;
    const std::int32_t left = at(place).id, right = at(at(place).next).id;
    if (const Slot* slot = find(left, right)) {
      candidates.push({slot->rank, place, left, right, slot->result});
    }
  };
  for (std::int32_t i = 0; i + 1 < size; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = at(best.place);
    if (left.id != best.left || left.next < 0 || at(left.next).id != best.right) continue;
    Symbol& right = at(left.next);
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = best.place;
    consider(left.previous);
    consider(best.place);
  }
  for (std::int32_t place = 0; place >= 0; place = at(place).next) ids.push_back(at(place).id);
}

}  // namespace leapquant::runtime
