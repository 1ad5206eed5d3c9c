// SPDX-License-Identifier: Apache-2.0
//
// See results_log.h.
#include "lab/results_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string_view>

#include "runtime/error.h"
#include "runtime/mapped_file.h"

namespace leapquant::lab {
namespace {

constexpr std::string_view kHeader =
    "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds";
constexpr std::size_t kColumns = 12;
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

// RFC 4180: quotes only where needed. Names and formats hold no line breaks (see tasks.cpp).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

template <typename Number>
bool parse(const std::string& text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_line(std::string_view line, PromptResult* result) {
  const std::vector<std::string> fields = split(line);
  if (fields.size() != kColumns) return false;
  result->model = fields[0];
  result->tier = fields[1];
  result->task = fields[2];
  result->id = fields[3];
  result->digest = fields[4];
  result->state = fields[5];
  result->right = fields[6] == "1";
  result->has_kl = !fields[7].empty();
  return (fields[6] == "0" || fields[6] == "1") &&
         (!result->has_kl ||
          (parse(fields[7], &result->kl_sum) && parse(fields[8], &result->loss_sum))) &&
         parse(fields[9], &result->kl_tokens) && parse(fields[10], &result->tokens) &&
         parse(fields[11], &result->seconds) && result->kl_tokens >= 0 && result->tokens >= 0 &&
         result->seconds >= 0;
}

}  // namespace

ResultsLog::ResultsLog(const std::filesystem::path& path) : path_(path) {
  if (std::filesystem::exists(path)) read();
  const bool is_new = !std::filesystem::exists(path) || std::filesystem::file_size(path) == 0;
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) {
    throw runtime::Error("Cannot write the results file " + runtime::in_quotes(path.string(), 400) +
                         runtime::reason_of_errno(errno) + ".");
  }
  if (is_new) {
    fmt::print(file_, "{}\n", kHeader);
    append({});
  }
}

ResultsLog::~ResultsLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void ResultsLog::read() {
  const std::string text = runtime::read_text_file(path_, kMaxFileBytes);
  std::size_t number = 0;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (++number == 1) {
      if (line == kHeader) continue;
      throw runtime::Error("The file " + runtime::in_quotes(path_.string(), 400) +
                           " is no results file of eval; it was not changed.");
    }
    PromptResult result;
    if (!parse_line(line, &result)) {
      throw runtime::Error("The results file " + runtime::in_quotes(path_.string(), 400) +
                           " is broken in line " + std::to_string(number) +
                           "; it was not changed.");
    }
    results_[key_of(result)] = result;
  }
  if (number == 0 && !text.empty()) {
    throw runtime::Error("The file " + runtime::in_quotes(path_.string(), 400) +
                         " is no results file of eval; it was not changed.");
  }
  // What follows the last line break was cut off by an interruption.
  if (begin < text.size()) std::filesystem::resize_file(path_, begin);
}

ResultsLog::Key ResultsLog::key_of(const PromptResult& result) {
  return {result.model, result.tier, result.task, result.id, result.digest, result.state};
}

const PromptResult* ResultsLog::find(const PromptResult& key, bool need_kl) const {
  const auto found = results_.find(key_of(key));
  if (found == results_.end() || (need_kl && !found->second.has_kl)) return nullptr;
  return &found->second;
}

void ResultsLog::append(const std::vector<PromptResult>& results) {
  for (const PromptResult& result : results) results_[key_of(result)] = result;
  if (file_ == nullptr) return;
  for (const PromptResult& r : results) {
    fmt::print(file_, "{},{},{},{},{},{},{:d},{},{},{},{},{:.17g}\n", r.model, field(r.tier),
               field(r.task), field(r.id), r.digest, field(r.state), r.right,
               r.has_kl ? fmt::format("{:.17g}", r.kl_sum) : "",
               r.has_kl ? fmt::format("{:.17g}", r.loss_sum) : "", r.kl_tokens, r.tokens,
               r.seconds);
  }
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
    throw runtime::Error("Cannot write the results file " +
                         runtime::in_quotes(path_.string(), 400) + runtime::reason_of_errno(errno) +
                         "; the results until here are kept, call again to continue.");
  }
}

}  // namespace leapquant::lab
