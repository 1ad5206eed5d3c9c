// SPDX-License-Identifier: Apache-2.0
//
// See split_pattern.h.
#include "runtime/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

// White space as the Unicode property White_Space has it, and everything else, as parts of a
// character class. PCRE2's own \s also takes U+180E, which left that property in Unicode 6.3, so \s
// and \S are spelled out.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kNoSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"
    "\\x{10ffff}";

constexpr std::size_t kMaxPatternBytes = 65536;

std::string spell_out_spaces(std::string_view pattern, const std::string& label) {
  std::string out;
  bool in_class = false;
  std::size_t class_start = 0;  // where the first member of the open class stands
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's' || next == 'S') {
        const std::string_view members = next == 's' ? kSpaces : kNoSpaces;
        out += in_class ? std::string(members) : "[" + std::string(members) + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + 1;
      if (class_start < pattern.size() && pattern[class_start] == '^') ++class_start;
    } else if (in_class && c == ']' && i != class_start) {
      in_class = false;
    } else if (in_class && (c == '[' || pattern.substr(i, 2) == "&&")) {
      throw Error(label + ": the split pattern " + in_quotes(pattern, 200) +
                  " uses nested or intersected character classes, which this runtime does not "
                  "support.");
    }
    out += c;
  }
  return out;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

template <auto kFree>
struct Release {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Release<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Release<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>>;

// Pieces of ordinary text need little; these bounds end patterns that backtrack without end.
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackMax = 8 * 1024 * 1024;
constexpr std::uint32_t kMatchLimit = 10'000'000;

}  // namespace

struct SplitPattern::Compiled {
  Code code;
  SplitKeep keep = SplitKeep::kMatchesAndGaps;
  std::string label;
};

SplitPattern::SplitPattern(std::string_view pattern, bool literal, SplitKeep keep,
                           std::string_view label_view) {
  const std::string label(label_view);
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    throw Error(label + ": a split pattern must have 1 to " + std::to_string(kMaxPatternBytes) +
                " bytes, found " + std::to_string(pattern.size()) + ".");
  }
  const std::string text = literal ? std::string(pattern) : spell_out_spaces(pattern, label);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Oniguruma's ^ and $ mean lines. A single code unit (\C) could split a character.
  const std::uint32_t options =
      literal ? PCRE2_UTF | PCRE2_LITERAL
              : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int code_error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options,
                          &code_error, &at, context.get()));
  if (!code) {
    throw Error(label + ": the split pattern " + in_quotes(pattern, 200) +
                " is not accepted: " + pcre2_message(code_error) + ".");
  }
  // Without JIT (some platforms and hardened systems) the interpreter gives the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto compiled = std::make_unique<Compiled>();
  compiled->code = std::move(code);
  compiled->keep = keep;
  compiled->label = label;
  compiled_ = std::move(compiled);
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (!data || !context) throw std::bad_alloc();
  if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  pcre2_set_match_limit(context.get(), kMatchLimit);

  const bool keep_gaps = compiled_->keep != SplitKeep::kMatches;
  const bool keep_matches = compiled_->keep != SplitKeep::kGaps;
  std::size_t at = 0;
  while (at < text.size()) {
    const int found =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(compiled_->label + ": the split pattern cannot be applied to the text at byte " +
                  std::to_string(at) + ": " + pcre2_message(found) + ".");
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    // \K can move the beginning of a match before the search position; such a pattern has no
    // pieces.
    if (bounds[0] < at || bounds[1] <= bounds[0]) {
      throw Error(compiled_->label + ": the split pattern moves the beginning of its matches.");
    }
    if (keep_gaps && bounds[0] > at) pieces.push_back(text.substr(at, bounds[0] - at));
    if (keep_matches) pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    at = bounds[1];
  }
  if (keep_gaps && at < text.size()) pieces.push_back(text.substr(at));
}

}  // namespace leapquant::runtime
