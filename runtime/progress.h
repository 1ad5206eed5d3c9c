// SPDX-License-Identifier: Apache-2.0
//
// A progress bar on a terminal: one line that is redrawn at most ten times a second. It writes
// nothing when its stream is no terminal.
#ifndef LEAPQUANT_RUNTIME_PROGRESS_H_
#define LEAPQUANT_RUNTIME_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace leapquant::runtime {

class Progress {
 public:
  // label: what is being done ("int8 medium/add"); total: units of work, 0 when unknown. The bar is
  // drawn on stderr when that is a terminal and `quiet` is not set.
  Progress(std::string label, std::int64_t total, bool quiet = false);
  // Clears the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // done: units finished; note: short text behind the bar ("1203 tokens/s").
  void update(std::int64_t done, std::string_view note = {});

 private:
  std::string label_;
  std::int64_t total_;
  bool visible_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

// The line that update draws, `columns` wide at most: for tests.
std::string progress_line(std::string_view label, std::int64_t done, std::int64_t total,
                          double seconds, std::string_view note, std::size_t columns);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_PROGRESS_H_
