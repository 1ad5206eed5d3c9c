// SPDX-License-Identifier: Apache-2.0
//
// leapquant inspect: what is in a checkpoint, which layers keep a recurrent state, and what one
// sequence costs in every format.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>

#include "runtime/checkpoint.h"
#include "runtime/error.h"
#include "runtime/model_config.h"
#include "tool/byte_size.h"
#include "tool/cache_plan.h"
#include "tool/console.h"
#include "tool/model_shapes.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct InspectArguments {
  std::string model;
  bool tensors = false;
  StateArguments state;
  bool json = false;
};

// "model.layers.*.mlp.up_proj.weight": tensors that differ in the layer only are one kind.
std::string kind_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return name;
  const std::size_t end = name.find('.', kLayers.size());
  return end == std::string::npos ? name : std::string(kLayers) + "*" + name.substr(end);
}

struct TensorKind {
  std::string form;  // "BF16 [384, 1024]"
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

// "0-2, 4-6"
std::string layers_of(const runtime::ModelConfig& config, runtime::LayerKind kind) {
  std::vector<std::string> ranges;
  const auto& kinds = config.layer_kinds;
  for (std::size_t first = 0; first < kinds.size(); ++first) {
    if (kinds[first] != kind) continue;
    std::size_t last = first;
    while (last + 1 < kinds.size() && kinds[last + 1] == kind) ++last;
    ranges.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
    first = last;
  }
  return ranges.empty() ? "none" : fmt::format("{}", fmt::join(ranges, ", "));
}

void print_text(const InspectArguments& arguments, const runtime::ModelConfig& config,
                const runtime::Checkpoint& checkpoint, const ModelShape& shape,
                const std::vector<StateCost>& costs) {
  print(fmt::format("{}: {}, {} layers, hidden size {}, vocabulary {}\n",
                    runtime::printable(shape.name), config.model_type, config.num_layers,
                    config.hidden_size, config.vocab_size));
  print(fmt::format(
      "  recurrent state (Gated DeltaNet): layers {}; {} key heads, {} value heads, "
      "{} x {}, convolution of {}\n",
      layers_of(config, runtime::LayerKind::kLinearAttention), config.linear_num_key_heads,
      config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim,
      config.linear_conv_kernel));
  print(fmt::format("  full attention: layers {}; {} query heads, {} key-value heads of {}\n",
                    layers_of(config, runtime::LayerKind::kFullAttention),
                    config.num_attention_heads, config.num_key_value_heads, config.head_dim));
  print(fmt::format(
      "  {} tensors in {} file{}, {}; {} others (vision, multi-token prediction) not "
      "used\n\n",
      checkpoint.tensors().size(), checkpoint.shards(), checkpoint.shards() == 1 ? "" : "s",
      show_byte_size(static_cast<std::int64_t>(checkpoint.tensor_bytes())),
      checkpoint.skipped_tensors()));
  Table tensors({"tensor", "type and shape", ">count", ">bytes"});
  std::map<std::pair<std::string, std::string>, TensorKind> kinds;
  for (const auto& [name, view] : checkpoint.tensors()) {
    const std::string form = runtime::describe(view.dtype, view.shape);
    TensorKind& kind = kinds[{arguments.tensors ? name : kind_of(name), form}];
    ++kind.count;
    kind.bytes += static_cast<std::int64_t>(view.bytes);
  }
  for (const auto& [key, kind] : kinds) {
    tensors.add({key.first, key.second, show_count(kind.count), show_count(kind.bytes)});
  }
  print(tensors.text());
  print("\nOne sequence, all recurrent layers:\n\n");
  Table table({"state", "policy", ">state", ">window", ">metadata", ">all bytes",
               ">bytes per element", ">of FP32"});
  const double elements = static_cast<double>(shape.linear_layers) * shape.linear.num_v_heads *
                          shape.linear.head_k_dim * shape.linear.head_v_dim;
  for (const StateCost& cost : costs) {
    const auto boundary = static_cast<double>(cost.bytes.boundary);
    table.add({cost.state, cost.policy, show_count(cost.bytes.boundary),
               show_count(cost.bytes.window), show_count(cost.bytes.metadata),
               show_count(cost.bytes.total()), fmt::format("{:.4g}", boundary / elements),
               fmt::format("1/{:.2f}", 4 * elements / boundary)});
  }
  print(table.text());
  print(fmt::format(
      "\nBeside it: convolution states {} bytes (BF16), KV cache {} bytes per token "
      "(BF16).\n",
      show_count(shape.convolution_bytes()), show_count(2 * shape.kv_elements_per_token)));
}

void print_object(const runtime::ModelConfig& config, const runtime::Checkpoint& checkpoint,
                  const ModelShape& shape, const std::vector<StateCost>& costs) {
  nlohmann::ordered_json result;
  result["model"] = shape.name;
  result["model_type"] = config.model_type;
  result["layers"] = config.num_layers;
  result["hidden_size"] = config.hidden_size;
  result["vocab_size"] = config.vocab_size;
  for (std::size_t i = 0; i < config.layer_kinds.size(); ++i) {
    const bool linear = config.layer_kinds[i] == runtime::LayerKind::kLinearAttention;
    result[linear ? "recurrent_layers" : "full_attention_layers"].push_back(i);
  }
  result["num_k_heads"] = config.linear_num_key_heads;
  result["num_v_heads"] = config.linear_num_value_heads;
  result["head_k_dim"] = config.linear_key_head_dim;
  result["head_v_dim"] = config.linear_value_head_dim;
  result["shards"] = checkpoint.shards();
  result["tensor_bytes"] = checkpoint.tensor_bytes();
  result["skipped_tensors"] = checkpoint.skipped_tensors();
  result["convolution_bytes"] = shape.convolution_bytes();
  result["kv_bytes_per_token"] = 2 * shape.kv_elements_per_token;
  for (const auto& [name, view] : checkpoint.tensors()) {
    nlohmann::ordered_json tensor;
    tensor["name"] = name;
    tensor["dtype"] = runtime::dtype_name(view.dtype);
    tensor["shape"] = view.shape;
    tensor["bytes"] = view.bytes;
    result["tensors"].push_back(tensor);
  }
  for (const StateCost& cost : costs) {
    nlohmann::ordered_json row;
    row["state"] = cost.state;
    row["policy"] = cost.policy;
    row["boundary_bytes"] = cost.bytes.boundary;
    row["window_bytes"] = cost.bytes.window;
    row["metadata_bytes"] = cost.bytes.metadata;
    row["state_bytes"] = cost.bytes.total();
    result["formats"].push_back(row);
  }
  print_json(result);
}

void run_inspect(const InspectArguments& arguments) {
  const runtime::ModelConfig config = runtime::load_model_config(arguments.model);
  const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(arguments.model);
  const ModelShape shape = shape_of_checkpoint(arguments.model);
  std::vector<StateCost> costs;
  if (shape.linear_layers > 0) {
    for (const auto& format : arguments.state.resolve(config)) {
      costs.push_back(state_cost(shape, format));
    }
  }
  if (arguments.json) {
    print_object(config, checkpoint, shape, costs);
  } else {
    print_text(arguments, config, checkpoint, shape, costs);
  }
}

}  // namespace

void add_inspect(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* verb = app.add_subcommand(
      "inspect", "what a checkpoint holds and what one sequence costs in every format");
  verb->add_option("model", arguments->model, "folder of a checkpoint")->required();
  verb->add_flag("--tensors", arguments->tensors, "every tensor, not only kinds of tensors");
  arguments->state.add_to(*verb, fmt::format("{}", fmt::join(preset_names(), ",")), true);
  verb->add_flag("--json", arguments->json, "one JSON object with all tensors");
  verb->footer("Example: leapquant inspect models/gdn-16m");
  verbs[verb] = [arguments] { run_inspect(*arguments); };
}

}  // namespace leapquant::tool
