// SPDX-License-Identifier: Apache-2.0
//
// See tasks.h.
#include "lab/tasks.h"

#include <algorithm>
#include <array>
#include <set>

#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/strict_json.h"

namespace leapquant::lab {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

// The results of an evaluation name every task in one line.
bool has_line_break(std::string_view text) {
  return text.find_first_of("\r\n") != std::string_view::npos;
}

Task parse_task(std::string_view line, const std::string& label) {
  const nlohmann::json value = runtime::parse_strict_json(line, label);
  const runtime::JsonObject object(value, label);
  Task task;
  task.place = label;
  task.id = object.string("id");
  if (has_line_break(task.id)) {
    throw runtime::Error(object.where("id") + " is " + runtime::in_quotes(task.id) +
                         "; an id must be one line.");
  }
  task.prompt = object.string("prompt");
  task.answer = object.string("answer");
  if (task.prompt.empty()) {
    throw runtime::Error(object.where("prompt") + " is empty; a task needs a prompt.");
  }
  const std::string check = object.contains("check") ? object.string("check") : "exact";
  if (check == "last_line") {
    task.check = Check::kLastLine;
  } else if (check != "exact") {
    throw runtime::Error(object.where("check") + " is " + runtime::in_quotes(check) +
                         "; it must be \"exact\" or \"last_line\".");
  }
  return task;
}

TaskFile load_file(const std::filesystem::path& path, std::size_t limit) {
  TaskFile file;
  file.path = path;
  file.name = path.stem().string();
  file.tier = std::filesystem::absolute(path).parent_path().filename().string();
  if (has_line_break(file.name) || has_line_break(file.tier)) {
    throw runtime::Error("The name of the task file " + runtime::in_quotes(path.string(), 400) +
                         " or of its folder has a line break; both must be one line.");
  }
  const std::string text = runtime::read_text_file(path, kMaxFileBytes);
  std::set<std::string> ids;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (limit > 0 && file.tasks.size() == limit) break;
    const std::string label = path.string() + " line " + std::to_string(number);
    file.tasks.push_back(parse_task(line, label));
    if (!ids.insert(file.tasks.back().id).second) {
      throw runtime::Error(label + ": the id " + runtime::in_quotes(file.tasks.back().id) +
                           " occurs twice in the file.");
    }
  }
  if (file.tasks.empty()) {
    throw runtime::Error("The file " + runtime::in_quotes(path.string(), 400) + " holds no tasks.");
  }
  return file;
}

std::size_t tier_rank(const std::string& tier) {
  constexpr std::array kKnown = {"short", "medium", "long"};
  return static_cast<std::size_t>(std::find(kKnown.begin(), kKnown.end(), tier) - kKnown.begin());
}

}  // namespace

std::vector<TaskFile> load_tasks(const std::filesystem::path& path, std::size_t limit) {
  if (!std::filesystem::is_directory(path)) return {load_file(path, limit)};
  std::vector<TaskFile> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file() && entry.path().extension() == ".jsonl") {
      files.push_back(load_file(entry.path(), limit));
    }
  }
  if (files.empty()) {
    throw runtime::Error("The folder " + runtime::in_quotes(path.string(), 400) +
                         " holds no .jsonl file with tasks.");
  }
  std::sort(files.begin(), files.end(), [](const TaskFile& a, const TaskFile& b) {
    if (tier_rank(a.tier) != tier_rank(b.tier)) return tier_rank(a.tier) < tier_rank(b.tier);
    return std::tie(a.tier, a.name) < std::tie(b.tier, b.name);
  });
  return files;
}

std::string_view compared_part(std::string_view text, Check check) {
  const std::size_t last = text.find_last_not_of(" \t\r\n\v\f");
  text = last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
  if (check == Check::kLastLine) {
    const std::size_t newline = text.rfind('\n');
    if (newline != std::string_view::npos) text.remove_prefix(newline + 1);
  }
  return text;
}

bool is_right(const Task& task, std::string_view completion) {
  return compared_part(completion, task.check) == compared_part(task.answer, task.check);
}

}  // namespace leapquant::lab
