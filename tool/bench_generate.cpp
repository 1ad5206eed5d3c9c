// SPDX-License-Identifier: Apache-2.0
//
// See bench_generate.h.
#include "tool/bench_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "lab/evaluation.h"
#include "lab/machine_speed.h"
#include "runtime/batch.h"
#include "runtime/error.h"
#include "runtime/sampler.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/state_arguments.h"
#include "tool/table.h"

namespace leapquant::tool {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateBenchArguments {
  std::string model;
  std::int32_t threads = 1;
  StateArguments state;
  std::int64_t tokens = 512;
  bool json = false;
};

struct GenerateBenchRow {
  std::string state;
  std::string policy;
  double seconds = 0;        // per token
  double floor_seconds = 0;  // of reading weights and state once
  std::int64_t bytes = 0;    // read per token
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The bytes of the weights that one step reads: all but the embedding, of which only rows are
// looked up, unless it is the head too.
std::vector<std::span<const std::byte>> weights_of(const runtime::Model& model) {
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& [name, view] : model.checkpoint().tensors()) {
    if (name == "model.embed_tokens.weight" && !model.config().tie_word_embeddings) continue;
    pieces.emplace_back(view.data, view.bytes);
  }
  return pieces;
}

// The speed of a sequence that has stopped says nothing.
void require_finite(const runtime::Batch& batch, runtime::SequenceId sequence,
                    std::span<const float> logits) {
  std::string fault = batch.fault(sequence);
  if (fault.empty()) fault = runtime::fault_of_logits(logits);
  if (!fault.empty()) throw runtime::Error(fault);
}

GenerateBenchRow measure(const LoadedModel& loaded, const runtime::StateFormat& format,
                         std::int64_t tokens) {
  runtime::Batch batch(loaded.model, format, loaded.threads);
  const std::vector<runtime::TokenId> prompt(64, 65 % loaded.model.config().vocab_size);
  const std::int64_t context = static_cast<std::int64_t>(prompt.size()) + tokens;
  batch.require_context(context);
  const auto sequence = batch.open(context);
  if (!sequence) throw runtime::Error("There is not enough free memory for one sequence.");
  std::vector<float> logits(static_cast<std::size_t>(loaded.model.config().vocab_size));
  const runtime::Feed feed{*sequence, prompt};
  batch.prefill(std::span(&feed, 1), logits);
  require_finite(batch, *sequence, logits);

  std::vector<std::span<const std::byte>> pieces = weights_of(loaded.model);
  const std::vector<std::byte> state(static_cast<std::size_t>(batch.state_bytes().total()),
                                     std::byte{1});
  pieces.emplace_back(state);
  GenerateBenchRow row;
  row.state = lab::state_name(format);
  row.policy = lab::policy_name(format);
  for (const auto piece : pieces) row.bytes += static_cast<std::int64_t>(piece.size());
  // Tokens of a window belong together: one of them folds. Reading takes turns with them.
  constexpr std::int64_t kWindow = 16;
  std::vector<double> seconds;
  std::vector<double> floors;
  for (std::int64_t done = 0; done + kWindow <= tokens; done += kWindow) {
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < kWindow; ++i) {
      const auto next = static_cast<runtime::TokenId>(
          std::max_element(logits.begin(), logits.end()) - logits.begin());
      const runtime::Feed one{*sequence, std::span(&next, 1)};
      batch.decode(std::span(&one, 1), logits);
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kWindow);
    require_finite(batch, *sequence, logits);
    floors.push_back(lab::read_seconds(pieces));
  }
  row.seconds = median(seconds);
  row.floor_seconds = median(floors);
  return row;
}

void run_generate_bench(const GenerateBenchArguments& arguments) {
  end_at_once_when_interrupted();
  const LoadedModel loaded(arguments.model, arguments.threads);
  Table table({"state", "policy", ">threads", ">bytes read", ">us/token", ">us reading", ">ratio",
               ">tokens/s"});
  for (const auto& format : arguments.state.resolve(loaded.model.config())) {
    const GenerateBenchRow row = measure(loaded, format, arguments.tokens);
    if (arguments.json) {
      nlohmann::ordered_json line;
      line["state"] = row.state;
      line["policy"] = row.policy;
      line["threads"] = loaded.threads.count();
      line["bytes"] = row.bytes;
      line["seconds_per_token"] = row.seconds;
      line["read_seconds"] = row.floor_seconds;
      line["ratio"] = row.seconds / row.floor_seconds;
      line["tokens_per_second"] = 1 / row.seconds;
      print_json(line);
      flush_output();
      continue;
    }
    table.add({row.state, row.policy, std::to_string(loaded.threads.count()), show_count(row.bytes),
               fmt::format("{:.0f}", row.seconds * 1e6),
               fmt::format("{:.0f}", row.floor_seconds * 1e6),
               fmt::format("{:.2f}", row.seconds / row.floor_seconds),
               fmt::format("{:.0f}", 1 / row.seconds)});
  }
  if (arguments.json) return;
  print(table.text());
  print(
      "\n'us reading' is one pass over the weights and state that a token reads, on one thread,\n"
      "measured between the windows of the same run.\n");
}

}  // namespace

void add_bench_generate(CLI::App& bench, Verbs& verbs) {
  auto arguments = std::make_shared<GenerateBenchArguments>();
  CLI::App* verb =
      bench.add_subcommand("generate", "time per token of a model against reading the same bytes");
  add_model_options(*verb, arguments->model, arguments->threads);
  arguments->state.add_to(*verb, "fp32,bf16,int8,int8+,int4+", true);
  verb->add_option("--tokens", arguments->tokens, "tokens to generate per format")
      ->check(whole_number(16, std::int64_t{1} << 20))
      ->capture_default_str();
  verb->add_flag("--json", arguments->json, "one JSON line per format");
  verb->footer("Example: leapquant bench generate --model models/gdn-16m");
  verbs[verb] = [arguments, &bench] {
    for (const CLI::Option* option : bench.get_options()) {
      if (option->count() == 0) continue;
      throw UsageError(option->get_name() +
                       " before 'generate' belongs to bench alone; options of 'bench generate' "
                       "come behind it.");
    }
    run_generate_bench(*arguments);
  };
}

}  // namespace leapquant::tool
