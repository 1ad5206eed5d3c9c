// SPDX-License-Identifier: Apache-2.0
//
// See tokenizer.h: the way from text to ids and back. Loading is in tokenizer_file.cpp.
#include "runtime/tokenizer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/error.h"
#include "runtime/tokenizer_parts.h"
#include "runtime/unicode.h"

namespace leapquant::runtime {
namespace {

// Words repeat, so their tokens are kept for the duration of a call. Long pieces seldom do.
constexpr std::size_t kMaxCachedBytes = 64;
constexpr std::size_t kMaxCachedPieces = 1 << 16;

// Far above every context, and places in a piece fit in 32 bits.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

}  // namespace

void AddedTokenFinder::add(AddedToken token) {
  auto& bucket = by_first_byte_[static_cast<unsigned char>(token.text.front())];
  const auto place = std::find_if(bucket.begin(), bucket.end(), [&](const AddedToken& other) {
    return other.text.size() < token.text.size();
  });
  bucket.insert(place, std::move(token));
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                              std::size_t from,
                                                              bool match_special) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[begin])]) {
      if (token.special && !match_special) continue;
      if (text.substr(begin).starts_with(token.text)) return Match{begin, &token};
    }
  }
  return std::nullopt;
}

namespace {

// Calls plain(part) and token(id) for the parts of text in order.
template <typename Plain, typename Token>
void cut_out_added_tokens(std::string_view text, const AddedTokenFinder& finder, bool match_special,
                          const Plain& plain, const Token& token) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto match = finder.find(text, at, match_special);
    const std::size_t end = match ? match->begin : text.size();
    if (end > at) plain(text.substr(at, end - at));
    if (!match) return;
    token(match->token->id);
    at = end + match->token->text.size();
  }
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  if (text.size() > kMaxTextBytes) {
    throw Error("The text to encode has " + std::to_string(text.size()) + " bytes; at most " +
                std::to_string(kMaxTextBytes) + " are accepted.");
  }
  require_utf8(text, "The text to encode");
  const Parts& parts = *parts_;
  const bool match_special = special == SpecialTokens::kMatch;
  std::vector<TokenId> ids;
  TextMap<std::vector<TokenId>> cache;
  std::vector<std::string_view> pieces, finer;
  std::deque<std::string> with_space;  // pieces that are no part of the text

  const auto encode_piece = [&](std::string_view piece) {
    if (parts.whole_pieces_first) {
      if (const auto found = parts.by_bytes.find(piece); found != parts.by_bytes.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    if (piece.size() > kMaxCachedBytes) {
      parts.encoder.encode(piece, ids);
      return;
    }
    if (const auto found = cache.find(piece); found != cache.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
      return;
    }
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    parts.encoder.encode(piece, ids);
    if (cache.size() < kMaxCachedPieces) {
      cache.emplace(piece, std::vector<TokenId>(ids.begin() + before, ids.end()));
    }
  };
  const auto refine = [&](const SplitPattern& pattern) {
    finer.clear();
    for (const std::string_view piece : pieces) pattern.split(piece, finer);
    pieces.swap(finer);
  };
  const auto encode_plain = [&](std::string_view plain) {
    pieces.assign(1, plain);
    for (const SplitPattern& pattern : parts.splits) refine(pattern);
    if (parts.add_prefix_space) {
      with_space.clear();
      for (std::string_view& piece : pieces) {
        if (!piece.starts_with(' ')) piece = with_space.emplace_back(" " + std::string(piece));
      }
    }
    if (parts.byte_level_split) refine(*parts.byte_level_split);
    for (const std::string_view piece : pieces) encode_piece(piece);
  };
  const auto add_token = [&](TokenId id) { ids.push_back(id); };
  const auto encode_given = [&](std::string_view part) {
    const std::string normalised = parts.nfc ? to_nfc(part) : std::string();
    cut_out_added_tokens(parts.nfc ? std::string_view(normalised) : part, parts.added_normalised,
                         match_special, encode_plain, add_token);
  };
  cut_out_added_tokens(text, parts.added, match_special, encode_given, add_token);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0) {
    throw Error("The token id " + std::to_string(id) + " is negative; ids start at 0.");
  }
  const auto at = static_cast<std::size_t>(id);
  return at < parts_->bytes.size() ? std::string_view(parts_->bytes[at]) : std::string_view();
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto found = parts_->by_text.find(token);
  return found == parts_->by_text.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(TokenId id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < parts_->special.size() && parts_->special[at] != 0;
}

std::int64_t Tokenizer::id_limit() const { return static_cast<std::int64_t>(parts_->bytes.size()); }

void Tokenizer::require_vocab_size(std::int64_t vocab_size) const {
  if (id_limit() > vocab_size) {
    throw Error(parts_->label + ": the tokenizer has ids up to " + std::to_string(id_limit() - 1) +
                ", but the model's vocab_size is " + std::to_string(vocab_size) +
                "; they do not belong together.");
  }
}

std::string StreamDecoder::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  const std::size_t kept = incomplete_utf8_suffix(pending_);
  std::string ready = pending_.substr(0, pending_.size() - kept);
  pending_.erase(0, ready.size());
  return ready;
}

std::string StreamDecoder::finish() { return std::exchange(pending_, std::string()); }

}  // namespace leapquant::runtime
