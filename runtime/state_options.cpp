// SPDX-License-Identifier: Apache-2.0
//
// Options to formats, and formats to their canonical text. Ranges and the grammar itself are
// checked by the library.
#include "runtime/state_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

constexpr std::int32_t kMaxFormats = 8;

bool equal(const leapquant_format& a, const leapquant_format& b) {
  return a.payload_bits == b.payload_bits && a.levels == b.levels &&
         a.value_scale_type == b.value_scale_type && a.smoothing == b.smoothing &&
         a.num_fp16 == b.num_fp16 && a.num_int8 == b.num_int8 && a.num_int4 == b.num_int4 &&
         a.policy == b.policy && a.window == b.window && a.stagger == b.stagger &&
         a.log_decay_type == b.log_decay_type && a.fit_start == b.fit_start &&
         a.fit_rounds == b.fit_rounds && a.scale_steps == b.scale_steps;
}

bool is_quantised(const leapquant_format& format) { return format.payload_bits <= 8; }

// The library's text of a format. A windowed fp32 or bf16 names its window, since without one the
// runtime takes these formats per step.
std::string print(const leapquant_format& format) {
  char text[256];
  if (leapquant_format_to_string(&format, text, sizeof(text)) != LEAPQUANT_OK) {
    throw Error(fmt::format("The state format is not possible: {}.", leapquant_last_error()));
  }
  std::string result = text;
  if (!is_quantised(format) && format.policy == LEAPQUANT_WINDOWED &&
      result.find(":window=") == std::string::npos) {
    result += fmt::format(":window={}", format.window);
  }
  return result;
}

// Fills in every default again after fields have changed.
leapquant_format normalise(const leapquant_format& format) {
  leapquant_format result = LEAPQUANT_INIT(leapquant_format);
  if (leapquant_format_from_string(print(format).c_str(), &result) != LEAPQUANT_OK) {
    throw Error(fmt::format("The state format is not possible: {}.", leapquant_last_error()));
  }
  return result;
}

// What an entry of the text leaves open, the options decide.
leapquant_format apply(const StateOptions& options, leapquant_format format, bool text_has_window,
                       bool text_has_fit) {
  bool step = format.policy == LEAPQUANT_PER_STEP;
  if (options.policy == StatePolicy::kStep) step = true;
  if (options.policy == StatePolicy::kDefault && !is_quantised(format) && !text_has_window) {
    step = true;
  }
  if (options.policy == StatePolicy::kWindow && format.policy == LEAPQUANT_PER_STEP) {
    throw Error(fmt::format("The state format {} is per step, but the policy asks for a window.",
                            in_quotes(options.state)));
  }
  const bool plain = options.policy == StatePolicy::kStep || !is_quantised(format);
  if (options.rank.has_value()) {
    if (format.num_fp16 == 0 || step) {
      throw Error(fmt::format(
          "A rank applies to formats with FP16 compensators only (int8, int6, int4); {}.",
          step ? "the policy step keeps none"
               : fmt::format("{} has {} INT8 and {} INT4 ones", print(format), format.num_int8,
                             format.num_int4)));
    }
    format.num_fp16 = *options.rank;
  }
  if (step) {
    format.policy = LEAPQUANT_PER_STEP;
    format.window = 1;
    format.stagger = 0;
    if (plain) {
      format.num_fp16 = format.num_int8 = format.num_int4 = 0;
      format.smoothing = LEAPQUANT_SMOOTHING_NONE;
    }
  } else {
    if (options.window.has_value()) format.window = *options.window;
    if (options.stagger.has_value()) format.stagger = *options.stagger ? 1 : 0;
  }
  if (!options.smoothing) format.smoothing = LEAPQUANT_SMOOTHING_NONE;
  if (!text_has_fit) {
    format.fit_start = LEAPQUANT_FIT_DEFAULT;
    format.fit_rounds = 0;
  }
  return normalise(format);
}

LayerFormat parse_layer(const StateOptions& options, std::int32_t layer, std::int32_t num_v_heads) {
  LayerFormat parsed;
  parsed.formats.resize(kMaxFormats);
  for (leapquant_format& format : parsed.formats) format = LEAPQUANT_INIT(leapquant_format);
  parsed.head_format.resize(static_cast<std::size_t>(num_v_heads));
  std::int32_t count = 0;
  if (leapquant_formats_from_string(options.state.c_str(), layer, num_v_heads,
                                    parsed.formats.data(), kMaxFormats, &count,
                                    parsed.head_format.data()) != LEAPQUANT_OK) {
    throw Error(fmt::format("The state format is not understood: {}.", leapquant_last_error()));
  }
  parsed.formats.resize(static_cast<std::size_t>(count));
  const std::string_view text = options.state;
  const bool mixed_bits =
      std::any_of(parsed.formats.begin(), parsed.formats.end(), is_quantised) && count > 1;
  const bool has_window = text.find(":window=") != text.npos || mixed_bits;
  const bool has_fit = text.find(":fit=") != text.npos || text.find(":rounds=") != text.npos;
  LayerFormat result;
  std::vector<std::uint8_t> index;  // options may make two formats equal
  for (const leapquant_format& format : parsed.formats) {
    const leapquant_format applied = apply(options, format, has_window, has_fit);
    const auto same = std::find_if(result.formats.begin(), result.formats.end(),
                                   [&](const auto& other) { return equal(other, applied); });
    index.push_back(static_cast<std::uint8_t>(same - result.formats.begin()));
    if (same == result.formats.end()) result.formats.push_back(applied);
  }
  for (const std::uint8_t head : parsed.head_format) result.head_format.push_back(index[head]);
  return result;
}

// The library reads a mix for one layer at a time and cannot know that another is not there. The
// text is one that it has read: heads stand between @ and the end of their entry, joined by &.
void require_named_layers(std::string_view text, std::int32_t num_layers) {
  for (std::size_t at = text.find('@'); at != text.npos; at = text.find('@', at + 1)) {
    std::string_view heads = text.substr(at + 1);
    heads = heads.substr(0, heads.find_first_of(",)"));
    while (!heads.empty()) {
      const std::string_view item = heads.substr(0, heads.find('&'));
      heads.remove_prefix(std::min(heads.size(), item.size() + 1));
      const std::size_t dot = item.find('.');
      if (dot == item.npos) continue;
      std::int32_t layer = -1;
      std::from_chars(item.data(), item.data() + dot, layer);
      if (layer < 0 || layer >= num_layers) {
        throw Error(fmt::format(
            "The state format {} names layer {}, which is not among the recurrent layers 0-{}.",
            in_quotes(std::string(text)), item.substr(0, dot), num_layers - 1));
      }
    }
  }
}

// "0-1&7", or with a layer "3.0-1&3.7", of the heads that have the format; empty for none.
std::string heads_text(const LayerFormat& layer, const std::string& prefix,
                       const leapquant_format& format) {
  std::string text;
  const std::size_t heads = layer.head_format.size();
  const auto has = [&](std::size_t head) {
    return equal(layer.formats[layer.head_format[head]], format);
  };
  for (std::size_t first = 0; first < heads; ++first) {
    if (!has(first)) continue;
    std::size_t last = first;
    while (last + 1 < heads && has(last + 1)) ++last;
    if (!text.empty()) text += '&';
    text += last > first ? fmt::format("{}{}-{}", prefix, first, last)
                         : fmt::format("{}{}", prefix, first);
    first = last;
  }
  return text;
}

std::string canonical_text(const StateFormat& format) {
  std::vector<leapquant_format> distinct;
  for (const LayerFormat& layer : format.layers) {
    for (const leapquant_format& one : layer.formats) {
      if (std::none_of(distinct.begin(), distinct.end(),
                       [&](const auto& other) { return equal(other, one); })) {
        distinct.push_back(one);
      }
    }
  }
  if (distinct.size() == 1) return print(distinct.front());
  const bool same_layers =
      std::all_of(format.layers.begin(), format.layers.end(),
                  [&](const LayerFormat& layer) { return layer == format.layers.front(); });
  std::string text = "mix(";
  for (std::size_t i = 0; i + 1 < distinct.size(); ++i) {
    std::string heads;
    for (std::size_t l = 0; l < (same_layers ? 1 : format.layers.size()); ++l) {
      const std::string prefix = same_layers ? "" : fmt::format("{}.", l);
      const std::string of_layer = heads_text(format.layers[l], prefix, distinct[i]);
      if (!heads.empty() && !of_layer.empty()) heads += '&';
      heads += of_layer;
    }
    text += fmt::format("{}@{},", print(distinct[i]), heads);
  }
  return text + print(distinct.back()) + ")";
}

}  // namespace

bool LayerFormat::operator==(const LayerFormat& other) const {
  if (head_format.size() != other.head_format.size()) return false;
  for (std::size_t head = 0; head < head_format.size(); ++head) {
    if (!equal(formats[head_format[head]], other.formats[other.head_format[head]])) return false;
  }
  return true;
}

bool StateFormat::is_fp32() const {
  return std::all_of(layers.begin(), layers.end(), [](const LayerFormat& layer) {
    return std::all_of(layer.formats.begin(), layer.formats.end(),
                       [](const leapquant_format& format) { return format.payload_bits == 32; });
  });
}

StateFormat resolve_state(const StateOptions& options, std::int32_t num_v_heads,
                          std::int32_t num_linear_layers) {
  if (options.window.has_value() && options.policy == StatePolicy::kStep) {
    throw Error("A window and the policy step exclude each other: per step there is no window.");
  }
  if (num_linear_layers < 1) {
    throw Error("This model has no linear-attention layers, so there is no recurrent state.");
  }
  StateFormat result;
  for (std::int32_t layer = 0; layer < num_linear_layers; ++layer) {
    result.layers.push_back(parse_layer(options, layer, num_v_heads));
  }
  require_named_layers(options.state, num_linear_layers);
  const leapquant_format& first = result.first();
  for (const LayerFormat& layer : result.layers) {
    for (const leapquant_format& format : layer.formats) {
      if (format.policy != first.policy || format.window != first.window ||
          format.stagger != first.stagger) {
        throw Error(fmt::format(
            "The state format {} mixes {} and {}, but formats of one model must share policy, "
            "window and stagger.",
            in_quotes(options.state), print(first), print(format)));
      }
    }
  }
  result.text = canonical_text(result);
  return result;
}

StateFormat resolve_state(const StateOptions& options, const ModelConfig& config) {
  return resolve_state(options, static_cast<std::int32_t>(config.linear_num_value_heads),
                       static_cast<std::int32_t>(config.num_linear_layers()));
}

leapquant_shape linear_layer_shape(const ModelConfig& config, std::int32_t max_tokens) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = static_cast<std::int32_t>(config.linear_num_key_heads);
  shape.num_v_heads = static_cast<std::int32_t>(config.linear_num_value_heads);
  shape.head_k_dim = static_cast<std::int32_t>(config.linear_key_head_dim);
  shape.head_v_dim = static_cast<std::int32_t>(config.linear_value_head_dim);
  shape.decay = LEAPQUANT_DECAY_SCALAR;
  shape.delta_rule = 1;
  shape.sub_steps = 1;
  shape.max_tokens = max_tokens;
  return shape;
}

StateLayout::StateLayout(const leapquant_shape& shape, const LayerFormat& format,
                         leapquant_device device) {
  const leapquant_status status = leapquant_layout_create(
      &shape, format.formats.data(), static_cast<std::int32_t>(format.formats.size()),
      format.head_format.data(), device, &layout_);
  if (status != LEAPQUANT_OK) {
    throw Error(fmt::format("This model's states cannot be kept in this format: {}.",
                            leapquant_last_error()));
  }
}

leapquant_sizes StateLayout::sizes() const {
  leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
  if (leapquant_bytes_per_slot(layout_, &sizes) != LEAPQUANT_OK) {
    throw Error(fmt::format("The size of a state is not known: {}.", leapquant_last_error()));
  }
  return sizes;
}

StateBytes state_bytes_per_sequence(const ModelConfig& config, const StateFormat& format,
                                    std::int32_t max_tokens) {
  const leapquant_shape shape = linear_layer_shape(config, max_tokens);
  StateBytes total;
  for (const LayerFormat& layer : format.layers) {
    const leapquant_sizes sizes = StateLayout(shape, layer).sizes();
    total.boundary += sizes.state_bytes;
    total.window += sizes.window_bytes;
    total.metadata += sizes.metadata_bytes;
  }
  return total;
}

}  // namespace leapquant::runtime
