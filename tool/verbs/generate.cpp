// SPDX-License-Identifier: Apache-2.0
//
// leapquant generate: completions of prompts with the recurrent state kept in a format.
#include <fmt/format.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "runtime/chat.h"
#include "runtime/error.h"
#include "runtime/generate.h"
#include "runtime/progress.h"
#include "runtime/session.h"
#include "runtime/unicode.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/device_arguments.h"
#include "tool/interrupt.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/output_check.h"
#include "tool/prompt_file.h"
#include "tool/state_arguments.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct GenerateArguments {
  std::string model;
  std::int32_t threads = 0;
  std::string prompt;
  const CLI::App* verb = nullptr;
  const CLI::Option* prompt_option = nullptr;
  std::string prompts;
  StateArguments state;
  DeviceArguments device;
  std::int64_t max_tokens = 256;
  std::vector<std::string> stop;
  std::string save_session;
  std::string resume;
  runtime::SamplingOptions sampling;
  bool chat = false;
  std::string system;
  bool thinking = false;
  const CLI::Option* thinking_option = nullptr;
  std::int32_t batch = 16;
  std::string kv = "fp32";
  const CLI::Option* kv_option = nullptr;
  std::string memory;
  bool json = false;
  bool quiet = false;
};

std::vector<NamedPrompt> read_prompts(const GenerateArguments& arguments) {
  const bool has_prompt = arguments.prompt_option->count() > 0;
  if (has_prompt && !arguments.prompts.empty()) {
    throw UsageError("--prompt and --prompts exclude each other.");
  }
  std::vector<NamedPrompt> prompts;
  if (!arguments.prompts.empty()) {
    prompts = read_prompt_file(arguments.prompts);
  } else if (has_prompt) {
    prompts.emplace_back();
    prompts.back().text = arguments.prompt;
  } else {
    prompts.emplace_back();
    prompts.back().text = read_standard_input();
  }
  if (prompts.size() > 1 && !arguments.save_session.empty()) {
    throw UsageError("--save-session saves one prompt; the file holds " +
                     std::to_string(prompts.size()) + ".");
  }
  if (!arguments.save_session.empty() &&
      prompts.front().max_tokens.value_or(arguments.max_tokens) == 0) {
    throw UsageError("--save-session needs a token to be generated, and none is asked for.");
  }
  return prompts;
}

std::vector<runtime::TokenId> encode(const GenerateArguments& arguments, const LoadedModel& loaded,
                                     const NamedPrompt& prompt) {
  runtime::require_utf8(prompt.text, prompt.name);
  if (!arguments.chat) return loaded.tokenizer.encode(prompt.text);
  if (prompt.text.empty()) {
    throw runtime::Error(prompt.name + " is empty; there is nothing to answer.");
  }
  std::vector<runtime::ChatMessage> messages;
  if (!arguments.system.empty()) {
    messages.push_back({runtime::ChatRole::kSystem, arguments.system});
  }
  messages.push_back({runtime::ChatRole::kUser, prompt.text});
  runtime::ChatOptions options;
  options.thinking = arguments.thinking_option->count() > 0
                         ? arguments.thinking
                         : runtime::thinks_by_default(loaded.model.config());
  return runtime::encode_chat(loaded.tokenizer, messages, options);
}

nlohmann::ordered_json as_json(const NamedPrompt& prompt, const runtime::Completion& completion) {
  nlohmann::ordered_json line;
  line["id"] = prompt.id;
  line["completion"] = runtime::replace_invalid_utf8(completion.text);
  line["tokens"] = completion.tokens.size();
  line["prompt_tokens"] = completion.prompt_tokens;
  line["finish_reason"] = runtime::finish_reason_name(completion.reason);
  if (!completion.fault.empty()) line["fault"] = completion.fault;
  return line;
}

// Prints results in the order of the prompts, whatever the order in which they finish. The first
// unfinished prompt is shown as it grows.
class Printer {
 public:
  Printer(const GenerateArguments& arguments, const std::vector<NamedPrompt>& prompts)
      : json_(arguments.json), prompts_(prompts) {}

  void text(std::size_t prompt, std::string_view text) {
    if (json_) return;
    if (prompt != next_) {
      waiting_text_[prompt] += text;
      return;
    }
    if (!begun_) begin();
    print(text);
    flush_output();
  }

  void finished(const runtime::Completion& completion) {
    done_.emplace(completion.prompt, completion);
    for (auto at = done_.find(next_); at != done_.end(); at = done_.find(next_)) {
      if (json_) {
        print_json(as_json(prompts_[next_], at->second));
      } else {
        if (!begun_) begin();
        print("\n");
      }
      done_.erase(at);
      ++next_;
      begun_ = false;
      if (!json_ && waiting_text_.contains(next_)) begin();
      flush_output();
    }
  }

 private:
  // Nothing is printed before there is something to say of a prompt: it may yet be refused.
  void begin() {
    begun_ = true;
    if (prompts_.size() > 1) {
      print(fmt::format("== {}\n", runtime::printable(prompts_[next_].id)));
    }
    const auto waiting = waiting_text_.find(next_);
    if (waiting == waiting_text_.end()) return;
    print(waiting->second);
    waiting_text_.erase(waiting);
  }

  bool json_;
  const std::vector<NamedPrompt>& prompts_;
  std::size_t next_ = 0;
  bool begun_ = false;
  std::map<std::size_t, std::string> waiting_text_;
  std::map<std::size_t, runtime::Completion> done_;
};

void print_summary(const GenerateArguments& arguments, const runtime::Batch& batch,
                   const runtime::GenerateStatistics& statistics, std::size_t prompts) {
  const runtime::StateBytes bytes = batch.state_bytes();
  if (arguments.json) {
    nlohmann::ordered_json line;
    line["prompts"] = prompts;
    line["state"] = batch.format().text;
    line["prompt_tokens"] = statistics.prompt_tokens;
    line["tokens"] = statistics.generated_tokens;
    line["tokens_per_second"] = statistics.tokens_per_second();
    line["state_bytes"] = bytes.total();
    line["boundary_bytes"] = bytes.boundary;
    line["window_bytes"] = bytes.window;
    line["metadata_bytes"] = bytes.metadata;
    line["backend"] = batch.backend();
    print_json(line);
  } else if (!arguments.quiet) {
    note(fmt::format("{} tokens, {:.1f} tokens per second, state {} on {}: {} per sequence",
                     statistics.generated_tokens, statistics.tokens_per_second(),
                     batch.format().text, batch.backend(), show_byte_size(bytes.total())));
  }
}

runtime::BatchOptions batch_options(
    const GenerateArguments& arguments, std::size_t prompts,
    const std::shared_ptr<const runtime::DeviceModel>& device_model) {
  runtime::BatchOptions options;
  arguments.device.apply(device_model, options);
  options.max_sequences = static_cast<std::int32_t>(
      std::min<std::size_t>(static_cast<std::size_t>(arguments.batch), prompts));
  options.kv_type = arguments.kv == "bf16" ? runtime::KvType::kBf16 : runtime::KvType::kFp32;
  if (!arguments.memory.empty()) {
    options.memory_bytes = parse_byte_size(arguments.memory, "--memory");
    // Zero would mean the default here.
    if (options.memory_bytes == 0) throw UsageError("--memory must be more than nothing.");
  }
  return options;
}

void run_generate(const GenerateArguments& arguments) {
  if (!arguments.system.empty() && !arguments.chat) {
    throw UsageError("--system needs --chat.");
  }
  if (arguments.thinking_option->count() > 0 && !arguments.chat)
    throw UsageError(arguments.thinking ? "--thinking needs --chat."
                                        : "--no-thinking needs --chat.");
  if (arguments.sampling.temperature == 0) {
    refuse_options(*arguments.verb, {"--top-k", "--top-p", "--min-p"},
                   "has no meaning at --temperature 0, which takes the most likely token");
  }
  arguments.device.check();
  // A session that goes on may be saved in its own place, so --resume is not among these.
  if (!arguments.save_session.empty()) {
    check_output(arguments.save_session, arguments.model, {arguments.prompts});
  }
  const std::vector<NamedPrompt> prompts = read_prompts(arguments);
  const runtime::ModelConfig config = runtime::load_model_config(arguments.model);
  std::optional<runtime::SessionFile> session;
  if (!arguments.resume.empty()) {
    if (prompts.size() > 1) throw UsageError("--resume continues one prompt, not several.");
    session.emplace(arguments.resume);
  }
  const runtime::StateFormat format =
      session ? arguments.state.resolve_one(config, session->contents().state)
              : arguments.state.resolve_one(config);
  const LoadedModel loaded(arguments.model, arguments.threads);

  std::vector<runtime::Prompt> work;
  for (const NamedPrompt& prompt : prompts) {
    runtime::Prompt& next = work.emplace_back();
    next.tokens = encode(arguments, loaded, prompt);
    next.max_tokens = prompt.max_tokens.value_or(arguments.max_tokens);
    next.name = prompt.name;
    next.seed = arguments.sampling.seed + work.size() - 1;
    if (session) next.session = &*session;
  }
  runtime::GenerateOptions options;
  options.stop = arguments.stop;
  options.sampling = arguments.sampling;
  options.cancel = &interrupted();
  if (arguments.chat) options.end_tokens.push_back(runtime::end_of_turn_token(loaded.tokenizer));

  runtime::BatchOptions batched =
      batch_options(arguments, prompts.size(), arguments.device.load(loaded.model));
  if (session && arguments.kv_option->count() == 0) {
    batched.kv_type = session->contents().kv_shape.type;
  }
  runtime::Batch batch(loaded.model, format, loaded.threads, batched);
  std::int64_t total = 0;
  for (const runtime::Prompt& prompt : work) total += prompt.max_tokens;
  // Streamed text on a terminal is progress enough.
  runtime::Progress progress("generate", total,
                             arguments.quiet || (!arguments.json && output_is_terminal()));
  Printer printer(arguments, prompts);
  bool saved = false;
  bool failed = false;
  runtime::GenerateEvents events;
  events.text = [&](std::size_t prompt, std::string_view text) { printer.text(prompt, text); };
  events.progress = [&](std::int64_t tokens, std::size_t done) {
    progress.update(tokens, fmt::format("{}/{} prompts", done, work.size()));
  };
  events.finished = [&](const runtime::Completion& completion, runtime::SequenceId sequence) {
    printer.finished(completion);
    if (completion.reason == runtime::FinishReason::kFault) {
      failed = true;
      complain(fmt::format("Prompt {}: {}", prompts[completion.prompt].id, completion.fault));
    } else if (!arguments.save_session.empty() && sequence >= 0) {
      runtime::save_session(arguments.save_session, batch, sequence, completion.mark);
      saved = true;
    }
  };
  runtime::GenerateStatistics statistics;
  runtime::generate(batch, loaded.tokenizer, work, options, events, &statistics);
  print_summary(arguments, batch, statistics, prompts.size());
  flush_output();
  if (failed) throw runtime::Error("Not every prompt was completed.");
  if (interrupted()) throw runtime::Error("Interrupted; what was generated until here is above.");
  if (!arguments.save_session.empty() && !saved) {
    throw runtime::Error("The session was not saved, because nothing was generated.");
  }
}

void add_sampling_options(CLI::App& verb, runtime::SamplingOptions& sampling) {
  verb.add_option("--temperature", sampling.temperature, "0: the most likely token")
      ->check(number(0, Least::kIncluded, 1000))
      ->capture_default_str();
  verb.add_option("--top-k", sampling.top_k, "keep the k most likely tokens; 0: all")
      ->check(whole_number(0, kMostCounted));
  verb.add_option("--top-p", sampling.top_p, "keep the most likely tokens up to this probability")
      ->check(number(0, Least::kExcluded, 1));
  verb.add_option("--min-p", sampling.min_p, "keep tokens of at least this times the largest")
      ->check(number(0, Least::kIncluded, 1));
  verb.add_option("--repetition-penalty", sampling.repetition_penalty,
                  "divides logits of tokens seen; 1: none")
      ->check(number(0, Least::kExcluded, 100));
  verb.add_option("--presence-penalty", sampling.presence_penalty,
                  "subtracted from logits of tokens generated; 0: none")
      ->check(number(-2, Least::kIncluded, 2));
  verb.add_option("--seed", sampling.seed, "of the first prompt; the next ones count up")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

void add_generate(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = app.add_subcommand("generate", "complete prompts with a model");
  arguments->verb = verb;
  add_model_options(*verb, arguments->model, arguments->threads);
  arguments->prompt_option =
      verb->add_option("--prompt", arguments->prompt, "the prompt (default: standard input)");
  verb->add_option("--prompts", arguments->prompts,
                   "JSONL file of prompts: {\"id\": .., \"prompt\": .., \"max_tokens\": ..}");
  arguments->state.add_to(*verb, "int8", false);
  arguments->device.add_to(*verb);
  verb->add_option("--max-tokens", arguments->max_tokens, "most tokens to generate per prompt")
      ->check(whole_number(0, kMostCounted))
      ->capture_default_str();
  verb->add_option("--stop", arguments->stop, "text that ends a completion; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--save-session", arguments->save_session,
                   "file that receives KV cache, convolution and recurrent states at the end");
  verb->add_option("--resume", arguments->resume,
                   "continue a saved session, by default with its --state and --kv");
  add_sampling_options(*verb, arguments->sampling);
  verb->add_flag("--chat", arguments->chat, "the prompt is a message of a user (ChatML)");
  verb->add_option("--system", arguments->system, "system message; with --chat");
  arguments->thinking_option = verb->add_flag("--thinking,!--no-thinking", arguments->thinking,
                                              "let the model think before it answers; with --chat");
  verb->add_option("--batch", arguments->batch, "prompts at a time")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  arguments->kv_option = verb->add_option("--kv", arguments->kv, "type of the KV cache")
                             ->check(one_of({"fp32", "bf16"}))
                             ->capture_default_str();
  verb->add_option("--memory", arguments->memory,
                   "limit for states and KV cache, such as 8GiB (default: three quarters of what "
                   "is available)");
  verb->add_flag("--json", arguments->json, "one JSON line per prompt, then one for all");
  verb->add_flag("--quiet", arguments->quiet, "no progress and no summary on standard error");
  verb->footer(
      "Example: leapquant generate --model models/gdn-16m --state int8 --prompt 'L 7 3 5 020\n'\n"
      "Ctrl-C ends cleanly after the current token.");
  verbs[verb] = [arguments] { run_generate(*arguments); };
}

}  // namespace leapquant::tool
