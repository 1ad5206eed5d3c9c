// SPDX-License-Identifier: Apache-2.0
//
// leapquant drift: replays recorded layer inputs in FP64 and in formats, and tells the errors per
// layer and head by position.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "lab/drift.h"
#include "lab/evaluation.h"
#include "lab/model_source.h"
#include "runtime/error.h"
#include "runtime/output_file.h"
#include "runtime/progress.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/output_check.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct DriftArguments {
  std::string model;
  std::vector<std::string> inputs;
  std::vector<std::string> texts;
  std::vector<std::string> tasks;
  std::int32_t threads = 0;
  std::int64_t tokens = 4096;
  bool concatenate = false;
  const CLI::App* verb = nullptr;
  std::int64_t segment = 4096;
  std::int64_t from = 1024;
  std::int64_t to = 4096;
  std::int64_t every = 1024;
  double divergence = 0.05;
  StateArguments state;
  bool heads = false;
  std::string csv;
  bool json = false;
  bool quiet = false;
};

using Sequences = std::vector<lab::SequenceDrift>;

double mean_of(const Sequences& sequences, std::size_t state, std::size_t bucket) {
  return lab::mean_bucket_error(sequences, state, bucket, bucket + 1);
}

double mean_state_error(const Sequences& sequences, std::size_t state, std::size_t bucket) {
  double total = 0;
  std::int64_t count = 0;
  for (const lab::SequenceDrift& sequence : sequences) {
    for (const lab::HeadDrift& head : sequence.heads[state]) {
      if (bucket >= head.state_error.size()) continue;
      total += head.state_error[bucket];
      ++count;
    }
  }
  return count > 0 ? total / static_cast<double>(count) : 0;
}

// Labels name tokens that are there: a range or step may end behind the longest sequence.
std::int64_t within(const Sequences& sequences, std::int64_t token) {
  std::int64_t longest = 0;
  for (const lab::SequenceDrift& sequence : sequences) {
    longest = std::max(longest, sequence.tokens);
  }
  return std::min(token, longest);
}

std::size_t num_buckets(const Sequences& sequences) {
  std::size_t buckets = 0;
  for (const lab::SequenceDrift& sequence : sequences) {
    buckets = std::max(buckets, sequence.heads.front().front().outputs.size());
  }
  return buckets;
}

std::optional<std::int64_t> first_divergence(const Sequences& sequences, std::size_t state) {
  std::optional<std::int64_t> first;
  for (const lab::SequenceDrift& sequence : sequences) {
    for (const lab::HeadDrift& head : sequence.heads[state]) {
      if (head.first_divergence < 0) continue;
      first = std::min(first.value_or(head.first_divergence), head.first_divergence);
    }
  }
  return first;
}

bool is_finite(const Sequences& sequences, std::size_t state) {
  return std::all_of(sequences.begin(), sequences.end(), [&](const lab::SequenceDrift& sequence) {
    return std::all_of(sequence.heads[state].begin(), sequence.heads[state].end(),
                       [](const lab::HeadDrift& head) { return head.finite; });
  });
}

nlohmann::ordered_json head_json(const lab::HeadDrift& head) {
  nlohmann::ordered_json row;
  row["layer"] = head.layer;
  row["head"] = head.v_head;
  row["mean_log_decay"] = head.mean_log_decay;
  row["output_error"] = head.span.ratio();
  row["finite"] = head.finite;
  row["first_divergence"] = head.first_divergence < 0
                                ? nlohmann::ordered_json(nullptr)
                                : nlohmann::ordered_json(head.first_divergence);
  for (const lab::ErrorSums& sums : head.outputs) row["output_errors"].push_back(sums.ratio());
  row["state_errors"] = head.state_error;
  row["health_flags"] = head.health_flags;
  return row;
}

void print_objects(const DriftArguments& arguments, const lab::DriftOptions& options,
                   const Sequences& sequences) {
  for (std::size_t s = 0; s < options.states.size(); ++s) {
    nlohmann::ordered_json line;
    line["state"] = lab::state_name(options.states[s]);
    line["policy"] = lab::policy_name(options.states[s]);
    line["from"] = arguments.from;
    line["to"] = within(sequences, arguments.to);
    line["every"] = arguments.every;
    line["output_error"] = lab::mean_span_error(sequences, s);
    line["finite"] = is_finite(sequences, s);
    const auto first = first_divergence(sequences, s);
    line["first_divergence"] = first ? nlohmann::ordered_json(*first) : nullptr;
    for (std::size_t b = 0; b < num_buckets(sequences); ++b) {
      line["output_errors"].push_back(mean_of(sequences, s, b));
      line["state_errors"].push_back(mean_state_error(sequences, s, b));
    }
    for (const lab::SequenceDrift& sequence : sequences) {
      nlohmann::ordered_json entry;
      entry["name"] = sequence.name;
      entry["tokens"] = sequence.tokens;
      entry["output_error"] = lab::mean_span_error({sequence}, s);
      if (arguments.heads) {
        for (const lab::HeadDrift& head : sequence.heads[s]) {
          entry["heads"].push_back(head_json(head));
        }
      }
      line["sequences"].push_back(entry);
    }
    print_json(line);
  }
}

void print_tables(const DriftArguments& arguments, const lab::DriftOptions& options,
                  const Sequences& sequences) {
  for (const lab::SequenceDrift& sequence : sequences) {
    print(fmt::format("{} ({} tokens)\n", runtime::printable(sequence.name),
                      show_count(sequence.tokens)));
  }
  print("\n");
  Table table({"state", "policy",
               fmt::format(">output error {}-{}", arguments.from, within(sequences, arguments.to)),
               ">relative to first", ">state error at end", ">first divergence", ">finite"});
  const double reference = lab::mean_span_error(sequences, 0);
  const std::size_t buckets = num_buckets(sequences);
  for (std::size_t s = 0; s < options.states.size(); ++s) {
    const double error = lab::mean_span_error(sequences, s);
    const auto first = first_divergence(sequences, s);
    table.add({lab::state_name(options.states[s]), std::string(lab::policy_name(options.states[s])),
               fmt::format("{:.3e}", error),
               reference > 0 ? fmt::format("{:.3f}", error / reference) : std::string("-"),
               fmt::format("{:.3e}", mean_state_error(sequences, s, buckets - 1)),
               first ? show_count(*first) : std::string("never"),
               is_finite(sequences, s) ? "yes" : "NO"});
  }
  print(table.text());
  print("\nOutput error by position (mean over heads):\n\n");
  std::vector<std::string> headings = {">to token"};
  for (const auto& state : options.states) headings.push_back(">" + state.text);
  Table course(headings);
  for (std::size_t b = 0; b < buckets; ++b) {
    std::vector<std::string> row = {
        show_count(within(sequences, static_cast<std::int64_t>(b + 1) * arguments.every))};
    for (std::size_t s = 0; s < options.states.size(); ++s) {
      row.push_back(fmt::format("{:.3e}", mean_of(sequences, s, b)));
    }
    course.add(std::move(row));
  }
  print(course.text());
  if (!arguments.heads) return;
  print("\nOutput error by layer and head:\n\n");
  headings = {">layer", ">head", ">mean log decay"};
  for (const auto& state : options.states) headings.push_back(">" + state.text);
  Table heads(headings);
  for (std::size_t h = 0; h < sequences.front().heads.front().size(); ++h) {
    const lab::HeadDrift& head = sequences.front().heads.front()[h];
    std::vector<std::string> row = {std::to_string(head.layer), std::to_string(head.v_head),
                                    fmt::format("{:.4f}", head.mean_log_decay)};
    for (std::size_t s = 0; s < options.states.size(); ++s) {
      lab::ErrorSums sums;
      for (const lab::SequenceDrift& sequence : sequences) {
        sums.difference += sequence.heads[s][h].span.difference;
        sums.reference += sequence.heads[s][h].span.reference;
      }
      row.push_back(fmt::format("{:.3e}", sums.ratio()));
    }
    heads.add(std::move(row));
  }
  print(heads.text());
}

void write_csv(const DriftArguments& arguments, const lab::DriftOptions& options,
               const Sequences& sequences) {
  runtime::OutputFile file(arguments.csv);
  file.write("sequence,state,policy,layer,head,mean_log_decay,to_token,output_error,state_error\n");
  for (const lab::SequenceDrift& sequence : sequences) {
    for (std::size_t s = 0; s < options.states.size(); ++s) {
      for (const lab::HeadDrift& head : sequence.heads[s]) {
        for (std::size_t b = 0; b < head.outputs.size(); ++b) {
          const std::int64_t end =
              std::min(static_cast<std::int64_t>(b + 1) * arguments.every, sequence.tokens);
          file.write(fmt::format("\"{}\",\"{}\",{},{},{},{:.6g},{},{:.6g},{:.6g}\n", sequence.name,
                                 lab::state_name(options.states[s]),
                                 lab::policy_name(options.states[s]), head.layer, head.v_head,
                                 head.mean_log_decay, end, head.outputs[b].ratio(),
                                 b < head.state_error.size() ? head.state_error[b] : 0.0));
        }
      }
    }
  }
  file.commit();
}

std::vector<lab::TokenSequence> read_sequences(const DriftArguments& arguments,
                                               const LoadedModel& loaded) {
  // Joined sequences take what they need from each; others are cut one by one.
  const std::int64_t limit = arguments.concatenate ? 0 : arguments.tokens;
  std::vector<lab::TokenSequence> sequences;
  for (const std::string& path : arguments.texts) {
    sequences.push_back(lab::text_sequence(loaded.tokenizer, path, limit));
  }
  for (const std::string& path : arguments.tasks) {
    sequences.push_back(lab::task_sequence(loaded.tokenizer, path, end_token(loaded.model), limit));
  }
  if (!arguments.concatenate) return sequences;
  if (arguments.tokens == 0) throw UsageError("--concatenate needs --tokens.");
  return {lab::concatenate(sequences, arguments.segment, arguments.tokens)};
}

void run_drift(const DriftArguments& arguments) {
  const bool from_model = !arguments.texts.empty() || !arguments.tasks.empty();
  if (from_model == !arguments.inputs.empty()) {
    throw UsageError("drift needs either --inputs, or --model with --text or --tasks.");
  }
  if (from_model && arguments.model.empty()) {
    throw UsageError("--text and --tasks need --model: a model makes the layer inputs of them.");
  }
  if (!from_model) {
    refuse_options(*arguments.verb, {"--model", "--tokens", "--concatenate", "--segment"},
                   "has no meaning with --inputs, which are replayed as they were recorded");
  }
  if (!arguments.concatenate) {  // a joined sequence may well repeat a text
    refuse_repeated_files("--inputs", arguments.inputs);
    refuse_repeated_files("--text", arguments.texts);
    refuse_repeated_files("--tasks", arguments.tasks);
  }
  if (arguments.from >= arguments.to) throw UsageError("--from must be below --to.");
  if (from_model && arguments.tokens > 0 && arguments.from >= arguments.tokens) {
    throw UsageError(fmt::format(
        "--from {} leaves nothing of --tokens {}: errors are summed over the tokens from there on.",
        arguments.from, arguments.tokens));
  }
  if (!arguments.csv.empty()) {
    std::vector<std::string> read = arguments.inputs;
    read.insert(read.end(), arguments.texts.begin(), arguments.texts.end());
    read.insert(read.end(), arguments.tasks.begin(), arguments.tasks.end());
    check_output(arguments.csv, arguments.model, read);
  }
  std::optional<LoadedModel> loaded;
  std::unique_ptr<lab::InputSource> source;
  constexpr std::int64_t kChunk = 512;
  if (from_model) {
    loaded.emplace(arguments.model, arguments.threads);
    source = std::make_unique<lab::ModelSource>(loaded->model, loaded->threads,
                                                read_sequences(arguments, *loaded),
                                                arguments.segment, kChunk);
  } else {
    source = std::make_unique<lab::FileSource>(arguments.inputs);
  }
  lab::DriftOptions options;
  options.states = arguments.state.resolve(source->shape().num_v_heads, source->num_layers());
  options.from = arguments.from;
  options.to = arguments.to;
  options.every = arguments.every;
  options.divergence = arguments.divergence;
  options.threads = arguments.threads;
  options.cancel = &interrupted();
  Sequences sequences;
  {
    runtime::Progress progress("drift", source->total_tokens(), arguments.quiet);
    sequences =
        lab::measure_drift(*source, options, [&](std::int64_t tokens) { progress.update(tokens); });
  }
  if (arguments.json) {
    print_objects(arguments, options, sequences);
  } else {
    print_tables(arguments, options, sequences);
  }
  flush_output();
  if (!arguments.csv.empty()) write_csv(arguments, options, sequences);
}

}  // namespace

void add_drift(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<DriftArguments>();
  CLI::App* verb = app.add_subcommand(
      "drift", "errors of a format on recorded layer inputs, against an exact FP64 state");
  verb->add_option("--model", arguments->model,
                   "folder of a checkpoint that records --text, --tasks");
  verb->add_option("--inputs", arguments->inputs,
                   "recordings of 'leapquant record'; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--text", arguments->texts, "text file, one sequence; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--tasks", arguments->tasks,
                   "task file or folder, one sequence of prompts and answers; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--tokens", arguments->tokens, "tokens of each sequence; 0: all")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_flag("--concatenate", arguments->concatenate,
                 "join all texts and tasks, in turn and as often as needed, to one sequence of "
                 "--tokens tokens");
  verb->add_option("--segment", arguments->segment,
                   "the model records so many tokens from an empty context, then begins anew; the "
                   "replayed states run on")
      ->check(whole_number(1, std::int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--from", arguments->from, "first token of the output error")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_option("--to", arguments->to, "end of the output error, not included")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_option("--every", arguments->every, "tokens per step of the course over positions")
      ->check(whole_number(1, std::int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--divergence", arguments->divergence,
                   "a token diverges when its output is off by this share")
      ->check(number(0, Least::kExcluded, 1e6))
      ->capture_default_str();
  arguments->state.add_to(*verb, "int8", true);
  add_threads_option(*verb, arguments->threads);
  verb->add_flag("--heads", arguments->heads, "also every layer and head");
  verb->add_option("--csv", arguments->csv,
                   "file for errors by sequence, format, head and position");
  verb->add_flag("--json", arguments->json, "one JSON line per format");
  verb->add_flag("--quiet", arguments->quiet, "no progress on standard error");
  verb->footer(
      "Example: leapquant drift --model models/gdn-16m --text lab/texts/us_constitution.txt \\\n"
      "           --state int8,int8+,int8:step\n"
      "Output error: sum of squared differences over sum of squares of the layer's outputs, per "
      "head,\n"
      "then the mean over heads. Format strings choose the fit: int8:fit=fixed:rounds=1.");
  arguments->verb = verb;
  verbs[verb] = [arguments] { run_drift(*arguments); };
}

}  // namespace leapquant::tool
