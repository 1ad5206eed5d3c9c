// SPDX-License-Identifier: Apache-2.0
//
// leapquant run: the main job in one command. A trained model solves one prompt of every task with
// its recurrent state in FP32 and in a format, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "lab/evaluation.h"
#include "lab/tasks.h"
#include "runtime/error.h"
#include "runtime/generate.h"
#include "runtime/progress.h"
#include "runtime/unicode.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct RunArguments {
  std::string model;
  std::int32_t threads = 0;
  std::string tier = "medium";
  StateArguments state;
  bool json = false;
  bool quiet = false;
};

// The model in the repository: seen from the working folder, or from the program, which lies in the
// build folder beside models/ or in bin/ of an installation.
std::filesystem::path find_model() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path folder = program.parent_path();
  for (const auto& base : {std::filesystem::path("."), folder, folder / "..", folder / "../.."}) {
    const std::filesystem::path model = base / "models" / "gdn-16m";
    if (std::filesystem::exists(model / "config.json", ignored)) return model;
  }
  throw runtime::Error(
      "The model models/gdn-16m is neither in the working folder nor beside the program; name it "
      "with --model DIR.");
}

struct Answer {
  bool right = false;
  std::string fault;  // a sentence: why there is no answer; empty: there is one
  std::string shown;  // what is compared, shortened
  std::size_t tokens = 0;
};

struct Column {
  runtime::StateFormat format;
  std::vector<Answer> answers;  // [tasks]
  std::int64_t right = 0;
  std::int64_t state_bytes = 0;
  std::int64_t boundary_bytes = 0;
  double tokens_per_second = 0;
};

std::string shortened(std::string_view text, std::size_t width) {
  std::string clean = runtime::replace_invalid_utf8(text);
  for (char& c : clean) {
    if (c == '\n' || c == '\t' || c == '\r') c = ' ';
  }
  if (clean.size() <= width) return clean;
  // The end decides: sums, last lines and the last numbers stand there.
  std::string end = clean.substr(clean.size() - (width - 3));
  return "..." + runtime::replace_invalid_utf8(end);
}

Column solve(const LoadedModel& loaded, const runtime::StateFormat& format,
             const std::vector<lab::TaskFile>& files, bool quiet) {
  Column column;
  column.format = format;
  std::vector<runtime::Prompt> prompts;
  std::int64_t total = 0;
  for (const lab::TaskFile& file : files) {
    runtime::Prompt& prompt = prompts.emplace_back();
    prompt.tokens = loaded.tokenizer.encode(file.tasks.front().prompt);
    prompt.max_tokens =
        static_cast<std::int64_t>(loaded.tokenizer.encode(file.tasks.front().answer).size() + 16);
    total += prompt.max_tokens - 16;
  }
  runtime::BatchOptions options;
  options.max_sequences = static_cast<std::int32_t>(prompts.size());
  runtime::Batch batch(loaded.model, format, loaded.threads, options);
  runtime::GenerateOptions generate_options;
  generate_options.cancel = &interrupted();
  runtime::GenerateEvents events;
  runtime::Progress progress(fmt::format("solving with a state in {}", format.text), total, quiet);
  events.progress = [&](std::int64_t tokens, std::size_t) {
    progress.update(std::min(tokens, total));
  };
  runtime::GenerateStatistics statistics;
  const auto completions =
      runtime::generate(batch, loaded.tokenizer, prompts, generate_options, events, &statistics);
  if (interrupted()) throw runtime::Error("Interrupted; nothing was solved completely.");
  for (std::size_t i = 0; i < files.size(); ++i) {
    const lab::Task& task = files[i].tasks.front();
    Answer& answer = column.answers.emplace_back();
    answer.fault = completions[i].fault;
    answer.right = answer.fault.empty() && lab::is_right(task, completions[i].text);
    answer.shown = shortened(lab::compared_part(completions[i].text, task.check), 36);
    answer.tokens = completions[i].tokens.size();
    column.right += answer.right ? 1 : 0;
  }
  column.state_bytes = batch.state_bytes().total();
  column.boundary_bytes = batch.state_bytes().boundary;
  column.tokens_per_second = statistics.tokens_per_second();
  return column;
}

const char* verdict(const Answer& answer) {
  if (!answer.fault.empty()) return "FAULT";
  return answer.right ? "right" : "WRONG";
}

void print_answers(const std::vector<lab::TaskFile>& files, const std::vector<Column>& columns) {
  std::vector<std::string> headings = {"task", ">tokens"};
  for (const Column& column : columns) {
    headings.push_back("answer with a state in " + lab::state_name(column.format));
    headings.emplace_back("");
  }
  Table table(headings);
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::vector<std::string> row = {files[i].name,
                                    std::to_string(columns.front().answers[i].tokens)};
    for (const Column& column : columns) {
      row.push_back(column.answers[i].shown);
      row.emplace_back(verdict(column.answers[i]));
    }
    table.add(std::move(row));
  }
  print(table.text());
  bool shared = false;
  for (std::size_t i = 0; i < files.size(); ++i) {
    shared |= std::all_of(columns.begin(), columns.end(), [&](const Column& column) {
      return !column.answers[i].right && column.answers[i].fault.empty();
    });
  }
  if (shared && columns.front().format.is_fp32()) {
    print(
        "\nWRONG in every column: a mistake of the small model itself, with an FP32 state too.\n");
  }
}

void print_summary(const runtime::ModelConfig& config, const std::vector<Column>& columns) {
  const double elements = static_cast<double>(config.num_linear_layers()) *
                          static_cast<double>(config.linear_num_value_heads) *
                          static_cast<double>(config.linear_key_head_dim) *
                          static_cast<double>(config.linear_value_head_dim);
  Table table({"state", "policy", ">right", ">bytes per element", ">state bytes", ">with window",
               ">tokens per second"});
  for (const Column& column : columns) {
    table.add({lab::state_name(column.format), std::string(lab::policy_name(column.format)),
               fmt::format("{} of {}", column.right, column.answers.size()),
               fmt::format("{:.4g}", static_cast<double>(column.boundary_bytes) / elements),
               show_count(column.boundary_bytes), show_count(column.state_bytes),
               fmt::format("{:.0f}", column.tokens_per_second)});
  }
  print("\n" + table.text());
}

void print_lines(const std::vector<lab::TaskFile>& files, const std::vector<Column>& columns) {
  for (const Column& column : columns) {
    nlohmann::ordered_json line;
    line["state"] = lab::state_name(column.format);
    line["policy"] = lab::policy_name(column.format);
    line["correct"] = column.right;
    line["total"] = column.answers.size();
    line["state_bytes"] = column.state_bytes;
    line["boundary_bytes"] = column.boundary_bytes;
    line["tokens_per_second"] = column.tokens_per_second;
    for (std::size_t i = 0; i < files.size(); ++i) {
      nlohmann::ordered_json answer;
      answer["task"] = files[i].name;
      answer["id"] = files[i].tasks.front().id;
      answer["right"] = column.answers[i].right;
      answer["tokens"] = column.answers[i].tokens;
      if (!column.answers[i].fault.empty()) answer["fault"] = column.answers[i].fault;
      line["answers"].push_back(answer);
    }
    print_json(line);
  }
}

// Throws when an answer is none.
void require_answers(const std::vector<lab::TaskFile>& files, const std::vector<Column>& columns) {
  bool failed = false;
  for (const Column& column : columns) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (column.answers[i].fault.empty()) continue;
      complain(fmt::format("Prompt {} of {}, state {}: {}", files[i].tasks.front().id,
                           files[i].name, column.format.text, column.answers[i].fault));
      failed = true;
    }
  }
  if (failed) throw runtime::Error("Not every prompt was completed.");
}

void run_run(const RunArguments& arguments) {
  const std::filesystem::path folder =
      arguments.model.empty() ? find_model() : std::filesystem::path(arguments.model);
  const LoadedModel loaded(folder, arguments.threads);
  const std::vector<lab::TaskFile> files = lab::load_tasks(folder / "tasks" / arguments.tier, 1);
  const std::vector<runtime::StateFormat> formats = arguments.state.resolve(loaded.model.config());
  if (!arguments.json) {
    print(fmt::format("{} solves one {} prompt of every task, {} thread{}.\n\n",
                      runtime::printable(std::filesystem::canonical(folder).filename().string()),
                      runtime::printable(arguments.tier), loaded.threads.count(),
                      loaded.threads.count() == 1 ? "" : "s"));
    flush_output();
  }
  std::vector<Column> columns;
  for (const auto& format : formats) {
    columns.push_back(solve(loaded, format, files, arguments.quiet));
  }
  if (arguments.json) {
    print_lines(files, columns);
  } else {
    print_answers(files, columns);
    print_summary(loaded.model.config(), columns);
  }
  flush_output();
  require_answers(files, columns);
}

}  // namespace

void add_run(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand(
      "run", "solve one prompt of every task with FP32 and INT8 states side by side");
  verb->add_option("--model", arguments->model,
                   "folder of a checkpoint with tasks/ (default: models/gdn-16m)");
  verb->add_option("--tier", arguments->tier, "folder of tasks: short, medium or long")
      ->capture_default_str();
  arguments->state.add_to(*verb, "fp32,int8", true);
  add_threads_option(*verb, arguments->threads);
  verb->add_flag("--json", arguments->json, "one JSON line per format");
  verb->add_flag("--quiet", arguments->quiet, "no progress on standard error");
  verb->footer("Example: leapquant run --state fp32,int8,int4+");
  verbs[verb] = [arguments] { run_run(*arguments); };
}

}  // namespace leapquant::tool
