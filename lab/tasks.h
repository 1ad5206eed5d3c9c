// SPDX-License-Identifier: Apache-2.0
//
// Reasoning tasks with exact answers: JSON lines with prompt, answer and how to compare. It reads
// and judges; evaluation.h asks the model.
#ifndef LEAPQUANT_LAB_TASKS_H_
#define LEAPQUANT_LAB_TASKS_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace leapquant::lab {

// What decides after trailing white space is stripped from both sides.
enum class Check {
  kExact,     // the whole completion
  kLastLine,  // what follows the last newline
};

struct Task {
  std::string id;
  std::string prompt;
  std::string answer;  // the whole completion without the end token
  Check check = Check::kExact;
  std::string place{};  // file and line, for sentences
};

// All lines of one file. tier is the name of its folder ("medium"), name that of the file ("add").
struct TaskFile {
  std::filesystem::path path;
  std::string tier;
  std::string name;
  std::vector<Task> tasks;
};

// Reads a JSONL file, or every *.jsonl below a folder in order of their names (tiers in the order
// short, medium, long, then others). limit: lines kept of each file, 0 for all. Throws
// runtime::Error with file and line for anything that is no task.
std::vector<TaskFile> load_tasks(const std::filesystem::path& path, std::size_t limit = 0);

// The part of a text that check compares.
std::string_view compared_part(std::string_view text, Check check);
bool is_right(const Task& task, std::string_view completion);

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_TASKS_H_
