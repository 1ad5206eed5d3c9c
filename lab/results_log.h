// SPDX-License-Identifier: Apache-2.0
//
// The results of an evaluation, one line per prompt and format in a CSV file that grows while the
// evaluation runs, so that an interrupted one continues where it stopped.
#ifndef LEAPQUANT_LAB_RESULTS_LOG_H_
#define LEAPQUANT_LAB_RESULTS_LOG_H_

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace leapquant::lab {

// Columns of the file, in this order.
struct PromptResult {
  std::string model;  // fingerprint, 16 hexadecimal digits; on a device "/cuda/bf16" after it
  std::string tier;
  std::string task;
  std::string id;
  std::string digest;  // of prompt, answer and check, 16 hexadecimal digits
  std::string state;   // canonical text of the format
  bool right = false;
  bool has_kl = false;
  // Nats, over the tokens below; NaN, with has_kl, when a sequence or logits were not finite.
  double kl_sum = 0;
  double loss_sum = 0;  // nats: -log of the probability of the answer's tokens and its end
  std::int64_t kl_tokens = 0;
  std::int64_t tokens = 0;  // decoded
  double seconds = 0;       // this prompt's share of the time of its batch
  std::string fault;        // the sentence behind a NaN; not in the file
};

class ResultsLog {
 public:
  // Without a file: results live in memory only.
  ResultsLog() = default;
  // Reads the file when it exists and appends to it; a last line that was cut off is removed.
  // Throws runtime::Error when it is no such file or cannot be written.
  explicit ResultsLog(const std::filesystem::path& path);
  ~ResultsLog();
  ResultsLog(const ResultsLog&) = delete;
  ResultsLog& operator=(const ResultsLog&) = delete;

  // The result of this prompt in this state, nullptr when there is none. need_kl: one without KL
  // does not count.
  const PromptResult* find(const PromptResult& key, bool need_kl) const;
  // Keeps the results and writes them to the disk before it returns.
  void append(const std::vector<PromptResult>& results);

 private:
  using Key =
      std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>;
  static Key key_of(const PromptResult& result);
  void read();

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  std::map<Key, PromptResult> results_;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_RESULTS_LOG_H_
