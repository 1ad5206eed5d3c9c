// SPDX-License-Identifier: Apache-2.0
//
// leapquant eval: exact-match accuracy of tasks per format of the recurrent state, with the
// divergence from an FP32 state, speed and bytes.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>

#include "lab/evaluation.h"
#include "runtime/error.h"
#include "runtime/progress.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/device_arguments.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct EvalArguments {
  std::string model;
  std::int32_t threads = 0;
  std::vector<std::string> tasks;
  StateArguments state;
  DeviceArguments device;
  std::size_t limit = 0;
  std::string csv;
  std::int32_t batch = 64;
  bool no_kl = false;
  bool json = false;
  bool quiet = false;
};

// The bar belongs to one file; a new one begins with every label.
class EvalProgress {
 public:
  explicit EvalProgress(bool quiet) : quiet_(quiet) {}
  void update(std::string_view label, std::int64_t done, std::int64_t total) {
    if (!bar_ || label != label_) {
      bar_.reset();
      label_ = label;
      bar_.emplace(label_, total, quiet_);
    }
    bar_->update(done);
  }

 private:
  bool quiet_;
  std::string label_;
  std::optional<runtime::Progress> bar_;
};

nlohmann::ordered_json as_json(const lab::EvaluationRow& row) {
  nlohmann::ordered_json line;
  line["tier"] = row.tier;
  line["task"] = row.task;
  line["state"] = row.state;
  line["policy"] = row.policy;
  line["correct"] = row.correct;
  line["total"] = row.total;
  line["mean_kl"] = row.has_kl ? nlohmann::ordered_json(row.mean_kl) : nullptr;
  line["mean_loss"] = row.has_kl ? nlohmann::ordered_json(row.mean_loss) : nullptr;
  line["tokens_per_second"] = row.tokens_per_second;
  line["state_bytes"] = row.state_bytes;
  for (const lab::PromptFault& fault : row.faults) {
    line["faults"].push_back({{"id", fault.id}, {"fault", fault.reason}});
  }
  return line;
}

std::string show_kl(const lab::EvaluationRow& row) {
  if (!row.has_kl) return "-";
  return std::isnan(row.mean_kl) ? "NaN" : fmt::format("{:.2e}", row.mean_kl);
}

// Whether there were any.
bool complain_of_faults(const std::vector<lab::EvaluationRow>& rows) {
  bool any = false;
  for (const lab::EvaluationRow& row : rows) {
    for (const lab::PromptFault& fault : row.faults) {
      complain(fmt::format("Prompt {} of {}/{}, state {} ({}): {}", fault.id, row.tier, row.task,
                           row.state, row.policy, fault.reason));
      any = true;
    }
  }
  return any;
}

void print_table(const std::vector<lab::EvaluationRow>& rows) {
  Table table({"tier", "task", "state", "policy", ">correct", ">of", ">mean KL",
               ">tokens per second", ">state bytes"});
  for (const lab::EvaluationRow& row : rows) {
    table.add({row.tier, row.task, row.state, row.policy, std::to_string(row.correct),
               std::to_string(row.total), show_kl(row),
               fmt::format("{:.0f}", row.tokens_per_second), show_count(row.state_bytes)});
  }
  print(table.text());
}

// Sums over all tasks of a tier, per format.
void print_totals(const std::vector<lab::EvaluationRow>& rows) {
  struct Total {
    std::string tier, state, policy;
    std::int64_t correct = 0;
    std::int64_t total = 0;
  };
  std::vector<Total> totals;
  for (const lab::EvaluationRow& row : rows) {
    auto at = totals.begin();
    while (at != totals.end() &&
           (at->tier != row.tier || at->state != row.state || at->policy != row.policy)) {
      ++at;
    }
    if (at == totals.end()) at = totals.insert(at, {row.tier, row.state, row.policy});
    at->correct += row.correct;
    at->total += row.total;
  }
  Table table({"tier", "state", "policy", ">correct", ">of", ">accuracy"});
  for (const Total& total : totals) {
    const double share = static_cast<double>(total.correct) / static_cast<double>(total.total);
    table.add({total.tier, total.state, total.policy, std::to_string(total.correct),
               std::to_string(total.total), fmt::format("{:.1f} %", 100 * share)});
  }
  print("\n" + table.text());
}

void run_eval(const EvalArguments& arguments) {
  arguments.device.check();
  std::vector<lab::TaskFile> files;
  for (const std::string& path : arguments.tasks) {
    for (lab::TaskFile& file : lab::load_tasks(path, arguments.limit)) {
      files.push_back(std::move(file));
    }
  }
  std::vector<std::string> paths;
  for (const lab::TaskFile& file : files) paths.push_back(file.path.string());
  refuse_repeated_files("--tasks", paths);
  lab::EvaluationOptions options;
  options.states = arguments.state.resolve(runtime::load_model_config(arguments.model));
  options.batch = arguments.batch;
  options.divergence = !arguments.no_kl;
  options.cancel = &interrupted();
  std::optional<lab::ResultsLog> log;
  if (arguments.csv.empty()) {
    log.emplace();
  } else {
    log.emplace(arguments.csv);
  }
  const LoadedModel loaded(arguments.model, arguments.threads);
  arguments.device.apply(arguments.device.load(loaded.model), options.batch_options);
  if (arguments.device.is_cuda()) options.device = arguments.device.text();
  std::vector<lab::EvaluationRow> rows;
  {
    EvalProgress progress(arguments.quiet);
    options.progress = [&](std::string_view label, std::int64_t done, std::int64_t total) {
      progress.update(label, done, total);
    };
    rows = lab::evaluate(loaded.model, loaded.tokenizer, loaded.threads, files, options, *log);
  }
  if (arguments.json) {
    for (const lab::EvaluationRow& row : rows) print_json(as_json(row));
  } else if (!rows.empty()) {
    print_table(rows);
    print_totals(rows);
  }
  flush_output();
  const bool failed = complain_of_faults(rows);
  if (interrupted()) {
    throw runtime::Error(arguments.csv.empty()
                             ? "Interrupted; with --csv FILE an evaluation can be continued."
                             : "Interrupted; call the same command again to continue.");
  }
  if (failed) throw runtime::Error("Not every prompt was completed.");
}

}  // namespace

void add_eval(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb = app.add_subcommand("eval", "accuracy of tasks with exact answers, per format");
  add_model_options(*verb, arguments->model, arguments->threads);
  verb->add_option("--tasks", arguments->tasks,
                   "JSONL file of tasks, or a folder of such files; may be repeated")
      ->required()
      ->allow_extra_args(false);
  arguments->state.add_to(*verb, "fp32,int8", true);
  arguments->device.add_to(*verb);
  verb->add_option("--limit", arguments->limit, "prompts of each file; 0: all")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_option("--csv", arguments->csv,
                   "results prompt by prompt; an interrupted evaluation continues from it");
  verb->add_option("--batch", arguments->batch, "prompts at a time")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  verb->add_flag("--no-kl", arguments->no_kl, "do not measure the divergence from an FP32 state");
  verb->add_flag("--json", arguments->json, "one JSON line per tier, task and format");
  verb->add_flag("--quiet", arguments->quiet, "no progress on standard error");
  verb->footer(
      "Example: leapquant eval --model models/gdn-16m --tasks models/gdn-16m/tasks/medium \\\n"
      "           --state fp32,int8,int8+,int8:step --limit 16 --csv results.csv");
  verbs[verb] = [arguments] { run_eval(*arguments); };
}

}  // namespace leapquant::tool
