// SPDX-License-Identifier: Apache-2.0
//
// Drawing of the progress bar.
#include "runtime/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace leapquant::runtime {
namespace {

constexpr std::size_t kBarColumns = 24;
constexpr std::chrono::milliseconds kLeastInterval(100);

std::size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string progress_line(std::string_view label, std::int64_t done, std::int64_t total,
                          double seconds, std::string_view note, std::size_t columns) {
  std::string line(label);
  if (total > 0) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    const auto filled = static_cast<std::size_t>(share * kBarColumns);
    line += fmt::format(" [{}{}] {}/{}", std::string(filled, '#'),
                        std::string(kBarColumns - filled, '.'), done, total);
  } else {
    line += fmt::format(" {}", done);
  }
  line += ", " + duration(seconds);
  if (!note.empty()) line += fmt::format(", {}", note);
  return line.substr(0, columns);
}

Progress::Progress(std::string label, std::int64_t total, bool quiet)
    : label_(std::move(label)),
      total_(total),
      visible_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_ - kLeastInterval) {}

Progress::~Progress() {
  if (visible_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::int64_t done, std::string_view note) {
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < kLeastInterval) return;
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line =
      progress_line(label_, done, total_, seconds, note, terminal_columns() - 1);
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace leapquant::runtime
