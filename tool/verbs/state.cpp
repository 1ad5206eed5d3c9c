// SPDX-License-Identifier: Apache-2.0
//
// leapquant state: saves, verifies, inspects, converts and compares recurrent states in files.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "runtime/batch.h"
#include "runtime/error.h"
#include "runtime/mapped_file.h"
#include "runtime/output_file.h"
#include "runtime/session.h"
#include "runtime/unicode.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/loaded_model.h"
#include "tool/option_checks.h"
#include "tool/output_check.h"
#include "tool/saved_states.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 28;

struct StateVerbArguments {
  std::string model;
  std::int32_t threads = 0;
  std::string prompt;
  std::string text;
  std::string session;
  std::int32_t layer = 0;
  StateArguments state;
  std::string to;
  std::vector<std::string> files;
  std::string input;
  std::string other;
  std::string out;
  bool json = false;
  const CLI::App* save = nullptr;
};

const char* kind_of(const SavedStates& states) { return states.session() ? "session" : "state"; }

void report_file(const StateVerbArguments& arguments, const std::string& path, std::size_t bytes,
                 std::int64_t position) {
  if (arguments.json) {
    nlohmann::ordered_json result;
    result["file"] = path;
    result["bytes"] = bytes;
    result["position"] = position;
    print_json(result);
  } else {
    print(fmt::format("{}: {} bytes, after {} tokens\n", runtime::printable(path),
                      show_count(static_cast<std::int64_t>(bytes)), show_count(position)));
  }
}

void save_blob_of_session(const StateVerbArguments& arguments) {
  check_output(arguments.out, "", {arguments.session});
  const SavedStates states(arguments.session);
  if (states.session() == nullptr) {
    throw runtime::Error("The file " + runtime::in_quotes(arguments.session, 400) +
                         " is one saved state already, not a session.");
  }
  if (arguments.layer < 0 || static_cast<std::size_t>(arguments.layer) >= states.blobs().size()) {
    throw UsageError(
        fmt::format("--layer {} is not in the session, which has recurrent layers 0-{}.",
                    arguments.layer, states.blobs().size() - 1));
  }
  const auto blob = states.blobs()[static_cast<std::size_t>(arguments.layer)];
  runtime::OutputFile file(arguments.out);
  file.write(blob);
  file.commit();
  report_file(arguments, arguments.out, blob.size(), states.session()->position);
}

void save_session_of_prompt(const StateVerbArguments& arguments) {
  if ((arguments.save->get_option("--prompt")->count() == 0) == arguments.text.empty()) {
    throw UsageError("state save needs either --prompt or --text with --model.");
  }
  check_output(arguments.out, arguments.model, {arguments.text});
  const LoadedModel loaded(arguments.model, arguments.threads);
  const std::string text = arguments.text.empty()
                               ? arguments.prompt
                               : runtime::read_text_file(arguments.text, kMaxTextBytes);
  runtime::require_utf8(text, arguments.text.empty()
                                  ? "The prompt"
                                  : "The text " + runtime::in_quotes(arguments.text, 400));
  runtime::SessionMark mark;
  mark.tokens = loaded.tokenizer.encode(text);
  if (mark.tokens.empty()) throw runtime::Error("The text is empty; there is no state to save.");
  mark.prompt_tokens = static_cast<std::int64_t>(mark.tokens.size());
  runtime::Batch batch(loaded.model, arguments.state.resolve_one(loaded.model.config()),
                       loaded.threads);
  batch.require_context(mark.prompt_tokens);
  const auto sequence = batch.open(mark.prompt_tokens);
  if (!sequence) throw runtime::Error("There is not enough free memory for the text.");
  const runtime::Feed feed{*sequence, mark.tokens};
  batch.prefill(std::span(&feed, 1), {});
  if (!batch.fault(*sequence).empty()) throw runtime::Error(batch.fault(*sequence));
  runtime::save_session(arguments.out, batch, *sequence, mark);
  report_file(arguments, arguments.out, std::filesystem::file_size(arguments.out),
              mark.prompt_tokens);
}

void run_save(const StateVerbArguments& arguments) {
  if (arguments.model.empty() == arguments.session.empty()) {
    throw UsageError("state save needs either --model or --session.");
  }
  if (arguments.session.empty()) {
    refuse_options(*arguments.save, {"--layer"}, "takes a layer out of a --session");
    save_session_of_prompt(arguments);
  } else {
    refuse_options(*arguments.save,
                   {"--prompt", "--text", "--state", "--policy", "--window", "--rank",
                    "--no-smoothing", "--stagger", "--threads"},
                   "has no meaning with --session, of which a layer is taken as it is");
    save_blob_of_session(arguments);
  }
}

void run_verify(const StateVerbArguments& arguments) {
  bool sound = true;
  for (const std::string& path : arguments.files) {
    std::string fault;
    std::size_t layers = 0;
    try {
      layers = SavedStates(path).blobs().size();
    } catch (const runtime::Error& error) {
      fault = error.what();
      sound = false;
    }
    if (arguments.json) {
      nlohmann::ordered_json line;
      line["file"] = path;
      line["sound"] = fault.empty();
      if (!fault.empty()) line["fault"] = fault;
      print_json(line);
    } else if (fault.empty()) {
      print(fmt::format("{}: sound, {} recurrent layer{}\n", runtime::printable(path), layers,
                        layers == 1 ? "" : "s"));
    } else {
      complain(fault);
    }
  }
  flush_output();
  if (!sound) throw runtime::Error("Not every file is sound.");
}

nlohmann::ordered_json blob_json(const BlobFacts& facts) {
  nlohmann::ordered_json row;
  row["version"] = facts.info.version;
  row["position"] = facts.info.position;
  row["records"] = facts.info.num_records;
  row["fingerprint"] = fmt::format("{:016x}", facts.info.fingerprint);
  row["bytes"] = facts.info.blob_bytes;
  row["num_k_heads"] = facts.info.shape.num_k_heads;
  row["num_v_heads"] = facts.info.shape.num_v_heads;
  row["head_k_dim"] = facts.info.shape.head_k_dim;
  row["head_v_dim"] = facts.info.shape.head_v_dim;
  row["format"] = format_text(facts.format);
  return row;
}

void run_inspect_state(const StateVerbArguments& arguments) {
  const SavedStates states(arguments.input);
  const runtime::SessionContents* session = states.session();
  if (arguments.json) {
    nlohmann::ordered_json result;
    result["file"] = arguments.input;
    result["kind"] = kind_of(states);
    if (session != nullptr) {
      result["fingerprint"] = fmt::format("{:016x}", session->fingerprint);
      result["state"] = session->state;
      result["position"] = session->position;
      result["tokens"] = session->mark.tokens.size();
      result["prompt_tokens"] = session->mark.prompt_tokens;
      result["kv_bytes"] = session->kv.size();
      result["convolution_bytes"] = session->convolution.size_bytes();
    }
    for (const BlobFacts& facts : states.facts()) result["layers"].push_back(blob_json(facts));
    print_json(result);
    return;
  }
  print(fmt::format("{}: {}, checksums agree\n", runtime::printable(arguments.input),
                    kind_of(states)));
  if (session != nullptr) {
    print(fmt::format("  model {:016x}, state {}, {} tokens fed of {} ({} of the prompt)\n",
                      session->fingerprint, session->state, session->position,
                      session->mark.tokens.size(), session->mark.prompt_tokens));
    print(
        fmt::format("  KV cache {} ({}), convolution states {}\n",
                    show_byte_size(static_cast<std::int64_t>(session->kv.size())),
                    runtime::kv_type_name(session->kv_shape.type),
                    show_byte_size(static_cast<std::int64_t>(session->convolution.size_bytes()))));
  }
  Table table(
      {">layer", "format", ">heads", ">state", ">position", ">records", ">bytes", "fingerprint"});
  for (std::size_t layer = 0; layer < states.facts().size(); ++layer) {
    const BlobFacts& facts = states.facts()[layer];
    table.add({std::to_string(layer), format_text(facts.format),
               fmt::format("{}/{}", facts.info.shape.num_k_heads, facts.info.shape.num_v_heads),
               fmt::format("{} x {}", facts.info.shape.head_k_dim, facts.info.shape.head_v_dim),
               show_count(facts.info.position), std::to_string(facts.info.num_records),
               show_count(facts.info.blob_bytes), fmt::format("{:016x}", facts.info.fingerprint)});
  }
  print("\n" + table.text());
}

void run_convert(const StateVerbArguments& arguments) {
  check_output(arguments.out, "", {arguments.input});
  const SavedStates states(arguments.input);
  const leapquant_shape& shape = states.facts().front().info.shape;
  runtime::StateOptions options;
  options.state = arguments.to;
  runtime::StateFormat format;
  try {
    format = runtime::resolve_state(options, shape.num_v_heads,
                                    static_cast<std::int32_t>(states.blobs().size()));
  } catch (const runtime::Error& error) {
    throw UsageError(error.what());
  }
  std::vector<std::vector<std::byte>> converted;
  for (std::size_t layer = 0; layer < states.blobs().size(); ++layer) {
    converted.push_back(
        convert_blob(states.blobs()[layer], states.facts()[layer], format.layers[layer]));
  }
  if (states.session() != nullptr) {
    runtime::SessionContents contents = *states.session();
    contents.state = format.text;
    contents.blobs.assign(converted.begin(), converted.end());
    runtime::write_session(arguments.out, contents);
  } else {
    runtime::OutputFile file(arguments.out);
    file.write(converted.front());
    file.commit();
  }
  report_file(arguments, arguments.out, std::filesystem::file_size(arguments.out),
              states.facts().front().info.position);
}

void require_comparable(const SavedStates& a, const SavedStates& b) {
  if (a.blobs().size() != b.blobs().size()) {
    throw runtime::Error(
        fmt::format("The files hold {} and {} recurrent layers; nothing to compare.",
                    a.blobs().size(), b.blobs().size()));
  }
  for (std::size_t layer = 0; layer < a.blobs().size(); ++layer) {
    const leapquant_saved_info& x = a.facts()[layer].info;
    const leapquant_saved_info& y = b.facts()[layer].info;
    if (x.shape.num_v_heads != y.shape.num_v_heads || x.shape.head_k_dim != y.shape.head_k_dim ||
        x.shape.head_v_dim != y.shape.head_v_dim) {
      throw runtime::Error(fmt::format(
          "Recurrent layer {} has {} heads {} x {} in one file and {} heads {} x {} in the other.",
          layer, x.shape.num_v_heads, x.shape.head_k_dim, x.shape.head_v_dim, y.shape.num_v_heads,
          y.shape.head_k_dim, y.shape.head_v_dim));
    }
    if (x.position != y.position) {
      throw runtime::Error(fmt::format(
          "The states stand for different positions, {} and {} tokens; nothing to compare.",
          x.position, y.position));
    }
  }
}

void run_diff(const StateVerbArguments& arguments) {
  const SavedStates a(arguments.input);
  const SavedStates b(arguments.other);
  require_comparable(a, b);
  if (a.facts().front().info.fingerprint != b.facts().front().info.fingerprint) {
    note("leapquant: note: the states come from different models.");
  }
  Table table({">layer", ">head", ">relative error", ">largest difference", ">norm"});
  for (std::size_t layer = 0; layer < a.blobs().size(); ++layer) {
    const std::vector<float> x = matrices_of(a.blobs()[layer], a.facts()[layer]);
    const std::vector<float> y = matrices_of(b.blobs()[layer], b.facts()[layer]);
    const auto heads = static_cast<std::size_t>(a.facts()[layer].info.shape.num_v_heads);
    const std::size_t elements = x.size() / heads;
    for (std::size_t head = 0; head < heads; ++head) {
      double difference = 0;
      double norm = 0;
      double largest = 0;
      for (std::size_t i = head * elements; i < (head + 1) * elements; ++i) {
        const double d = static_cast<double>(y[i]) - static_cast<double>(x[i]);
        difference += d * d;
        norm += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        largest = std::max(largest, std::abs(d));
      }
      const double relative = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
      if (arguments.json) {
        nlohmann::ordered_json line;
        line["layer"] = layer;
        line["head"] = head;
        line["relative_error"] = relative;
        line["largest_difference"] = largest;
        line["norm"] = std::sqrt(norm);
        print_json(line);
      } else {
        table.add({std::to_string(layer), std::to_string(head), fmt::format("{:.3e}", relative),
                   fmt::format("{:.3e}", largest), fmt::format("{:.4g}", std::sqrt(norm))});
      }
    }
  }
  if (!arguments.json) print(table.text());
}

}  // namespace

void add_state(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<StateVerbArguments>();
  CLI::App* state =
      app.add_subcommand("state", "save, verify, inspect, convert and compare states");
  state->require_subcommand(1);
  state->footer("Example: leapquant state verify chat.session");
  const auto add_json = [&](CLI::App* verb) {
    verb->add_flag("--json", arguments->json, "JSON instead of text");
  };

  CLI::App* save = state->add_subcommand(
      "save",
      "run a text through a model and save the session, or take one layer out of a session");
  save->add_option("--model", arguments->model, "folder of a checkpoint");
  save->add_option("--prompt", arguments->prompt, "text to run");
  save->add_option("--text", arguments->text, "file with the text to run");
  arguments->state.add_to(*save, "int8", false);
  add_threads_option(*save, arguments->threads);
  save->add_option("--session", arguments->session, "session to take a layer from");
  save->add_option("--layer", arguments->layer, "recurrent layer, counted from 0")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  save->add_option("--out", arguments->out, "file to write")->required();
  add_json(save);
  save->footer(
      "Example: leapquant state save --model models/gdn-16m --prompt 'S ABC' --out s.session");
  arguments->save = save;
  verbs[save] = [arguments] { run_save(*arguments); };

  CLI::App* verify = state->add_subcommand("verify", "check every checksum");
  verify->add_option("files", arguments->files, "saved states and sessions")->required();
  add_json(verify);
  verify->footer("Example: leapquant state verify a.session b.state");
  verbs[verify] = [arguments] { run_verify(*arguments); };

  CLI::App* inspect = state->add_subcommand("inspect", "what a saved state or session holds");
  inspect->add_option("file", arguments->input, "saved state or session")->required();
  add_json(inspect);
  inspect->footer("Example: leapquant state inspect chat.session");
  verbs[inspect] = [arguments] { run_inspect_state(*arguments); };

  CLI::App* convert = state->add_subcommand("convert", "write the same states in another format");
  convert->add_option("file", arguments->input, "saved state or session")->required();
  convert->add_option("out", arguments->out, "file to write")->required();
  convert->add_option("--to", arguments->to, "format, such as int4+ or fp32")->required();
  add_json(convert);
  convert->footer("Example: leapquant state convert chat.session small.session --to int4+");
  verbs[convert] = [arguments] { run_convert(*arguments); };

  CLI::App* diff = state->add_subcommand("diff", "relative errors per layer and head");
  diff->add_option("reference", arguments->input, "saved state or session")->required();
  diff->add_option("other", arguments->other, "the one to compare with it")->required();
  add_json(diff);
  diff->footer("Example: leapquant state diff chat.session small.session");
  verbs[diff] = [arguments] { run_diff(*arguments); };
}

}  // namespace leapquant::tool
