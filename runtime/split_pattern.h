// SPDX-License-Identifier: Apache-2.0
//
// A regular expression that cuts text into pieces before byte-pair encoding, through PCRE2. It
// gives the pieces that the `tokenizers` package gets from Oniguruma for the patterns it accepts.
#ifndef LEAPQUANT_RUNTIME_SPLIT_PATTERN_H_
#define LEAPQUANT_RUNTIME_SPLIT_PATTERN_H_

#include <memory>
#include <string_view>
#include <vector>

namespace leapquant::runtime {

// Which parts of the text become pieces: what the pattern matches, what lies between matches.
enum class SplitKeep { kMatchesAndGaps, kMatches, kGaps };

// Immutable; split() may be called from several threads at once.
class SplitPattern {
 public:
  // pattern: a regular expression, or with literal set, the text itself. label begins sentences.
  // Throws Error for patterns that PCRE2 refuses, longer than 65,536 bytes, or with constructs that
  // the two engines read differently (nested classes, && in a class).
  SplitPattern(std::string_view pattern, bool literal, SplitKeep keep, std::string_view label);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  // Appends the non-empty pieces of text, views into it, in order. text must be valid UTF-8. Empty
  // matches are skipped. Throws Error when a match exceeds the engine's limits.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SPLIT_PATTERN_H_
