// SPDX-License-Identifier: Apache-2.0
//
// See bench_model.h.
#include "tool/bench_model.h"

#include <fmt/format.h>

#include <memory>

#include "lab/evaluation.h"
#include "runtime/error.h"
#include "runtime/model_bench.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/device_arguments.h"
#include "tool/interrupt.h"
#include "tool/model_shapes.h"
#include "tool/option_checks.h"
#include "tool/state_arguments.h"
#include "tool/table.h"

namespace leapquant::tool {
namespace {

struct ModelBenchArguments {
  std::string shape;
  bool random_weights = false;
  std::vector<std::int32_t> batch = {64};
  std::int64_t context = 4096;
  std::int32_t steps = 64;
  std::string kv = "bf16";
  bool repeat_token = false;
  StateArguments state;
  DeviceArguments device;
  bool json = false;
};

void print_row(const ModelBenchArguments& arguments, const std::string& device,
               const runtime::StateFormat& format, const runtime::ModelBenchOptions& options,
               const runtime::ModelBenchRow& row) {
  nlohmann::ordered_json line;
  line["shape"] = arguments.shape;
  line["device"] = device;
  line["activations"] = arguments.device.text();
  line["kv"] = arguments.kv;
  line["state"] = lab::state_name(format);
  line["policy"] = lab::policy_name(format);
  line["backend"] = row.backend;
  line["batch"] = options.batch;
  line["context"] = options.context;
  line["tokens"] = options.repeat_token ? "repeated" : "distinct";
  line["step_us"] = row.step;
  line["mean_step_us"] = row.mean_step;
  line["slowest_step_us"] = row.slowest_step;
  line["tokens_per_second"] = options.batch / row.mean_step * 1e6;
  line["parts_us"] = {{"embedding", row.parts.embedding},
                      {"linear_products", row.parts.linear_products},
                      {"recurrence", row.parts.recurrence},
                      {"attention", row.parts.attention},
                      {"mlp", row.parts.mlp},
                      {"head", row.parts.head}};
  line["weight_bytes"] = row.weight_bytes;
  line["state_bytes"] = row.state_bytes;
  line["kv_bytes"] = row.kv_bytes;
  print_json(line);
}

void run_model_bench(const ModelBenchArguments& arguments) {
  const runtime::ModelConfig config = known_config(arguments.shape);
  refuse_repeated_numbers("--batch", arguments.batch);
  if (!arguments.random_weights) {
    throw UsageError(
        "bench model times weights of random values only; say so with --random-weights. For a "
        "trained model there is bench generate.");
  }
  if (!arguments.device.is_cuda()) {
    throw UsageError("bench model runs on a CUDA device only; give --device cuda.");
  }
  const std::vector<runtime::StateFormat> formats = arguments.state.resolve(config);
  const auto bench = runtime::make_cuda_model_bench(config, arguments.device.activations());
  Table table({"state", "policy", ">batch", ">us/step", ">mean", ">slowest", ">linear",
               ">of it recurrence", ">attention", ">mlp", ">head", ">tokens/s"});
  for (const std::int32_t batch : arguments.batch) {
    for (const runtime::StateFormat& format : formats) {
      runtime::ModelBenchOptions options;
      options.batch = batch;
      options.context = arguments.context;
      options.steps = arguments.steps;
      options.kv_type = arguments.kv == "fp32" ? runtime::KvType::kFp32 : runtime::KvType::kBf16;
      options.repeat_token = arguments.repeat_token;
      options.cancel = &interrupted();
      const runtime::ModelBenchRow row = bench->measure(format, options);
      if (arguments.json) {
        print_row(arguments, bench->device_name(), format, options, row);
        flush_output();
        continue;
      }
      const runtime::ModelBenchParts& parts = row.parts;
      const auto number = [](double value) { return fmt::format("{:.0f}", value); };
      table.add({lab::state_name(format), std::string(lab::policy_name(format)),
                 std::to_string(batch), number(row.step), number(row.mean_step),
                 number(row.slowest_step), number(parts.linear_products + parts.recurrence),
                 number(parts.recurrence), number(parts.attention), number(parts.mlp),
                 number(parts.head), number(batch / row.mean_step * 1e6)});
    }
  }
  if (arguments.json) return;
  print(fmt::format("One decode step of {} with random weights on {}, {} tokens of context{}.\n\n",
                    arguments.shape, bench->device_name(), arguments.context,
                    arguments.repeat_token ? ", each sequence fed one token again and again" : ""));
  print(table.text());
  print(
      "\nMicroseconds; medians but for mean and slowest. Parts come from a graph with events "
      "between\nthem and add up to a little more than the step, whose graph has none.\n");
}

}  // namespace

void add_bench_model(CLI::App& bench, Verbs& verbs) {
  auto arguments = std::make_shared<ModelBenchArguments>();
  CLI::App* verb = bench.add_subcommand(
      "model", "time of a decode step of a whole model of random weights on a device");
  verb->add_option("--shape", arguments->shape, "dense Qwen3.5 model, such as qwen3.5-9b")
      ->required();
  verb->add_flag("--random-weights", arguments->random_weights,
                 "make weights of random values (needed)");
  verb->add_option("--batch", arguments->batch, "sequences; a list gives a row for each")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  verb->add_option("--context", arguments->context, "tokens before the steps")
      ->check(whole_number(1, 262144 - 1024))
      ->capture_default_str();
  verb->add_option("--steps", arguments->steps, "steps that count")
      ->check(whole_number(16, 256))
      ->capture_default_str();
  verb->add_option("--kv", arguments->kv, "type of the KV cache")
      ->check(one_of({"fp32", "bf16"}))
      ->capture_default_str();
  verb->add_flag("--repeat-token", arguments->repeat_token,
                 "feed a sequence the same token at every step");
  arguments->state.add_to(*verb, "fp32,bf16,int8", true);
  arguments->device.add_to(*verb);
  verb->add_flag("--json", arguments->json, "one JSON line per row");
  verb->footer(
      "Example: leapquant bench model --shape qwen3.5-9b --random-weights --batch 64 \\\n"
      "           --device cuda");
  verbs[verb] = [arguments] { run_model_bench(*arguments); };
}

}  // namespace leapquant::tool
