// SPDX-License-Identifier: Apache-2.0
//
// leapquant record: writes what the recurrent layers of a model are given for a text or for tasks,
// for 'leapquant drift --inputs' and for other programs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lab/model_source.h"
#include "runtime/batch.h"
#include "runtime/error.h"
#include "runtime/progress.h"
#include "runtime/recorder.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/output_check.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct RecordArguments {
  std::string model;
  std::int32_t threads = 0;
  std::string text;
  std::string tasks;
  std::int64_t tokens = 4096;
  std::string out;
  bool json = false;
  bool quiet = false;
};

void run_record(const RecordArguments& arguments) {
  if (arguments.text.empty() == arguments.tasks.empty()) {
    throw UsageError("record needs either --text FILE or --tasks PATH.");
  }
  check_output(arguments.out, arguments.model, {arguments.text, arguments.tasks});
  const LoadedModel loaded(arguments.model, arguments.threads);
  const lab::TokenSequence sequence =
      arguments.text.empty()
          ? lab::task_sequence(loaded.tokenizer, arguments.tasks, end_token(loaded.model),
                               arguments.tokens)
          : lab::text_sequence(loaded.tokenizer, arguments.text, arguments.tokens);
  const auto length = static_cast<std::int64_t>(sequence.tokens.size());
  runtime::StateOptions fp32;
  fp32.state = "fp32";
  runtime::Recorder recorder(loaded.model.config());
  runtime::Batch batch(loaded.model, runtime::resolve_state(fp32, loaded.model.config()),
                       loaded.threads);
  batch.require_context(length);
  const auto id = batch.open(length);
  if (!id) throw runtime::Error("There is not enough free memory for the sequence.");
  batch.record(&recorder);
  {
    constexpr std::int64_t kPiece = 512;
    runtime::Progress progress("record", length, arguments.quiet);
    for (std::int64_t done = 0; done < length; done += kPiece) {
      if (interrupted()) throw runtime::Error("Interrupted; nothing was written.");
      const std::int64_t count = std::min(kPiece, length - done);
      const runtime::Feed feed{
          *id, std::span(sequence.tokens)
                   .subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count))};
      batch.prefill(std::span(&feed, 1), {});
      if (!batch.fault(*id).empty()) throw runtime::Error(batch.fault(*id));
      progress.update(done + count);
    }
  }
  recorder.write(arguments.out);
  const std::int64_t bytes = recorder.bytes_per_token() * recorder.num_tokens();
  if (arguments.json) {
    nlohmann::ordered_json result;
    result["file"] = arguments.out;
    result["sequence"] = sequence.name;
    result["tokens"] = recorder.num_tokens();
    result["layers"] = recorder.layers().size();
    result["bytes"] = bytes;
    print_json(result);
  } else {
    print(fmt::format("{}: {} tokens of {} layers, {}\n", runtime::printable(arguments.out),
                      show_count(recorder.num_tokens()), recorder.layers().size(),
                      show_byte_size(bytes)));
  }
}

}  // namespace

void add_record(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<RecordArguments>();
  CLI::App* verb =
      app.add_subcommand("record", "write the inputs of the recurrent layers to a file");
  add_model_options(*verb, arguments->model, arguments->threads);
  verb->add_option("--text", arguments->text, "text file");
  verb->add_option("--tasks", arguments->tasks, "task file or folder: prompts and answers");
  verb->add_option("--tokens", arguments->tokens, "tokens at most; 0: all")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_option("--out", arguments->out, "safetensors file to write")->required();
  verb->add_flag("--json", arguments->json, "one JSON object");
  verb->add_flag("--quiet", arguments->quiet, "no progress on standard error");
  verb->footer(
      "Example: leapquant record --model models/gdn-16m --text lab/texts/us_constitution.txt \\\n"
      "           --out constitution.safetensors");
  verbs[verb] = [arguments] { run_record(*arguments); };
}

}  // namespace leapquant::tool
