// SPDX-License-Identifier: Apache-2.0
//
// leapquant plan: how many requests of a hybrid model fit into memory, per format of the recurrent
// state.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "runtime/error.h"
#include "tool/byte_size.h"
#include "tool/cache_plan.h"
#include "tool/console.h"
#include "tool/model_shapes.h"
#include "tool/option_checks.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct PlanArguments {
  std::string model;
  std::string shape;
  std::string memory;
  std::int64_t context = 32768;
  std::int64_t checkpoint_every = 1024;
  StateArguments state;
  bool json = false;
};

nlohmann::ordered_json as_json(const CachePlan& plan, const CachePlan& reference) {
  nlohmann::ordered_json row;
  row["state"] = plan.state.state;
  row["policy"] = plan.state.policy;
  row["state_bytes"] = plan.state.bytes.boundary;
  row["window_bytes"] = plan.state.bytes.window;
  row["metadata_bytes"] = plan.state.bytes.metadata;
  row["convolution_bytes"] = plan.convolution_bytes;
  row["kv_bytes"] = plan.kv_bytes;
  row["checkpoints"] = plan.checkpoints;
  row["checkpoint_bytes"] = plan.checkpoint_bytes;
  row["request_bytes"] = plan.request_bytes;
  row["requests"] = plan.requests;
  row["more_requests"] = plan.requests - reference.requests;
  row["cache_saving"] = cache_saving(plan, reference);
  return row;
}

std::string show_more(std::int64_t requests, std::int64_t reference) {
  if (reference == 0) return requests > 0 ? "+" + std::to_string(requests) : "";
  return fmt::format("{:+d} ({:.2f}x)", requests - reference,
                     static_cast<double>(requests) / static_cast<double>(reference));
}

void print_table(const ModelShape& model, const PlanOptions& options,
                 const std::vector<CachePlan>& plans, const CachePlan& reference) {
  print(
      fmt::format("{}: weights {}, {} recurrent layers of {} heads {} x {}, {} attention layers\n",
                  runtime::printable(model.name), show_byte_size(model.weight_bytes),
                  model.linear_layers, model.linear.num_v_heads, model.linear.head_k_dim,
                  model.linear.head_v_dim, model.full_layers));
  print(
      fmt::format("memory {}, context {} tokens per request ({} of KV cache, BF16), "
                  "convolution state {}",
                  show_byte_size(options.memory_bytes), show_count(options.context),
                  show_byte_size(reference.kv_bytes), show_byte_size(reference.convolution_bytes)));
  print(options.checkpoint_every > 0 ? fmt::format(", a checkpoint every {} tokens\n\n",
                                                   show_count(options.checkpoint_every))
                                     : std::string(", no checkpoints\n\n"));
  Table table({"state", "policy", ">state", ">window", ">metadata", ">checkpoints", ">request",
               ">requests", ">more", ">cache saved"});
  for (const CachePlan& plan : plans) {
    table.add(
        {plan.state.state, plan.state.policy, show_byte_size(plan.state.bytes.boundary),
         show_byte_size(plan.state.bytes.window), show_byte_size(plan.state.bytes.metadata),
         plan.checkpoints == 0
             ? std::string("-")
             : fmt::format("{} x {}", plan.checkpoints, show_byte_size(plan.checkpoint_bytes)),
         show_byte_size(plan.request_bytes), show_count(plan.requests),
         show_more(plan.requests, reference.requests),
         options.checkpoint_every > 0 ? fmt::format("{:.1f} %", 100 * cache_saving(plan, reference))
                                      : std::string("-")});
  }
  print(table.text());
  print(
      "\n'more' compares with an FP32 state updated at every token. 'cache saved' is the share of\n"
      "KV cache, convolution state and one checkpoint, taken per checkpoint interval.\n");
}

// A plan in which nothing fits is shown, so that it can be seen by how much, and then a failure.
void require_requests(const ModelShape& model, const PlanOptions& options,
                      const std::vector<CachePlan>& plans) {
  if (options.memory_bytes < model.weight_bytes) {
    throw runtime::Error(fmt::format("The weights of {} alone take {}; {} does not hold them.",
                                     model.name, show_byte_size(model.weight_bytes),
                                     show_byte_size(options.memory_bytes)));
  }
  if (std::all_of(plans.begin(), plans.end(),
                  [](const auto& plan) { return plan.requests == 0; })) {
    throw runtime::Error(fmt::format(
        "Not one request of {} tokens fits beside the weights; {} of {} is left for it.",
        show_count(options.context), show_byte_size(options.memory_bytes - model.weight_bytes),
        show_byte_size(options.memory_bytes)));
  }
}

void run_plan(const PlanArguments& arguments) {
  if (arguments.model.empty() == arguments.shape.empty()) {
    throw UsageError("plan needs either --model DIR or --shape NAME.");
  }
  PlanOptions options;
  options.memory_bytes = parse_byte_size(arguments.memory, "--memory");
  options.context = arguments.context;
  options.checkpoint_every = arguments.checkpoint_every;
  const ModelShape model =
      arguments.model.empty() ? known_shape(arguments.shape) : shape_of_checkpoint(arguments.model);
  runtime::StateOptions fp32;
  fp32.state = "fp32";
  const CachePlan reference = plan_cache(
      model,
      state_cost(model,
                 runtime::resolve_state(fp32, model.linear.num_v_heads, model.linear_layers)),
      options);
  std::vector<CachePlan> plans;
  for (const auto& format :
       arguments.state.resolve(model.linear.num_v_heads, model.linear_layers)) {
    plans.push_back(plan_cache(model, state_cost(model, format), options));
  }
  if (!arguments.json) {
    print_table(model, options, plans, reference);
    flush_output();
    require_requests(model, options, plans);
    return;
  }
  nlohmann::ordered_json result;
  result["model"] = model.name;
  result["weight_bytes"] = model.weight_bytes;
  result["memory_bytes"] = options.memory_bytes;
  result["context"] = options.context;
  result["checkpoint_every"] = options.checkpoint_every;
  for (const CachePlan& plan : plans) result["formats"].push_back(as_json(plan, reference));
  print_json(result);
  flush_output();
  require_requests(model, options, plans);
}

}  // namespace

void add_plan(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "how many requests fit into memory, per format");
  verb->add_option("--model", arguments->model, "folder of a checkpoint");
  verb->add_option("--shape", arguments->shape,
                   fmt::format("a model by name: {}", fmt::join(known_shape_names(), ", ")));
  verb->add_option("--memory", arguments->memory, "memory of the device, such as 24GiB")
      ->required();
  verb->add_option("--context", arguments->context, "tokens of each request")
      ->check(whole_number(1, std::int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--checkpoint-every", arguments->checkpoint_every,
                   "tokens between kept states of a prefix; 0: none are kept")
      ->check(whole_number(0, std::int64_t{1} << 30))
      ->capture_default_str();
  arguments->state.add_to(*verb, fmt::format("{}", fmt::join(preset_names(), ",")), true);
  verb->add_flag("--json", arguments->json, "one JSON object");
  verb->footer("Example: leapquant plan --shape qwen3.5-9b --memory 80GB --context 32768");
  verbs[verb] = [arguments] { run_plan(*arguments); };
}

}  // namespace leapquant::tool
