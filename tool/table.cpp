// SPDX-License-Identifier: Apache-2.0
//
// See table.h.
#include "tool/table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/error.h"

namespace leapquant::tool {
namespace {

// Columns on a terminal: characters, not bytes. Wide characters do not occur in our tables.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

Table::Table(const std::vector<std::string>& headings) {
  auto& first = rows_.emplace_back();
  for (const std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    first.push_back(right_.back() ? heading.substr(1) : heading);
  }
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(right_.size());
  // Names of files and tasks may hold anything, line breaks among them.
  for (std::string& cell : cells) cell = runtime::printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(right_.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      if (i > 0) line += "  ";
      line += right_[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
    if (&row == &rows_.front()) {
      std::size_t total = 0;
      for (const std::size_t width : widths) total += width + 2;
      result += std::string(total - 2, '-') + "\n";
    }
  }
  return result;
}

}  // namespace leapquant::tool
