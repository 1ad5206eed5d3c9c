// SPDX-License-Identifier: Apache-2.0
//
// Plain-text tables for people: columns as wide as their widest cell, numbers to the right.
// Programs use --json.
#ifndef LEAPQUANT_TOOL_TABLE_H_
#define LEAPQUANT_TOOL_TABLE_H_

#include <string>
#include <vector>

namespace leapquant::tool {

class Table {
 public:
  // A heading that begins with '>' (left out in print) makes a column of numbers.
  explicit Table(const std::vector<std::string>& headings);
  // One cell per heading; missing ones are empty.
  void add(std::vector<std::string> cells);
  // All lines, each ended by a line break.
  std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_TABLE_H_
