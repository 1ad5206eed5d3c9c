// SPDX-License-Identifier: Apache-2.0
//
// Places of sequences and their positions, and how feeds become passes of an engine.
#include "runtime/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/cpu_engine.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/sequence.h"

namespace leapquant::runtime {
namespace {

KvShape kv_shape_of(const ModelConfig& config, KvType type) {
  return {static_cast<std::int32_t>(config.num_full_layers()),
          static_cast<std::int32_t>(config.num_key_value_heads),
          static_cast<std::int32_t>(config.head_dim), type};
}

void check_options(const BatchOptions& options) {
  if (options.max_sequences < 1 || options.max_sequences > 65536) {
    throw Error(fmt::format("A batch of {} sequences is not possible; 1 to 65536 are.",
                            options.max_sequences));
  }
  if (options.max_tokens_per_call < 1 || options.max_tokens_per_call > 8) {
    throw Error(fmt::format("A decode call of {} tokens is not possible; 1 to 8 are.",
                            options.max_tokens_per_call));
  }
  if (options.prefill_chunk < 1 || options.memory_bytes < 0) {
    throw Error("The prefill chunk must be at least 1 and the memory limit not negative.");
  }
}

}  // namespace

void require_states_fit(std::int64_t bytes, std::int64_t limit, const StateFormat& format,
                        const BatchOptions& options) {
  if (bytes <= limit) return;
  if (options.max_sequences == 1) {
    throw Error(fmt::format(
        "The states of one sequence take {} in the format {}, but only {} may be used; allow more "
        "memory or choose a smaller format.",
        describe_bytes(bytes), format.text, describe_bytes(limit)));
  }
  throw Error(fmt::format(
      "The states of {} sequences take {} in the format {}, but only {} may be used; run fewer "
      "sequences at once.",
      options.max_sequences, describe_bytes(bytes), format.text, describe_bytes(limit)));
}

class Batch::Parts {
 public:
  Parts(const Model& model, const StateFormat& format, const Threads& threads,
        const BatchOptions& options);

  const Model& model_;
  const Threads& threads_;
  StateFormat format_;
  BatchOptions options_;
  KvShape kv_shape_;
  std::int64_t kv_reserved_ = 0;  // bytes
  std::int32_t num_open_ = 0;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // [max_sequences]

  Sequence& at(SequenceId id) const;
  std::int64_t kv_bytes(std::int64_t tokens) const;
  void check_feeds(std::span<const Feed> feeds, std::int64_t most) const;
  void check_layer(std::int32_t linear_layer) const;
  // Runs one pass and moves positions. tokens: of all rows. wanted: rows of which results are
  // stored.
  void run(const Pass& pass, std::span<const TokenId> tokens, std::span<const std::int64_t> wanted,
           const RowResults& results);
  // Of Batch's functions of these names; results of all tokens, or of each feed's last one. wanted:
  // whether there are any.
  void decode(std::span<const Feed> feeds, bool wanted, const RowResults& results);
  bool prefill(std::span<const Feed> feeds, bool wanted, const RowResults& results,
               const std::atomic<bool>* cancel);
};

Batch::Parts::Parts(const Model& model, const StateFormat& format, const Threads& threads,
                    const BatchOptions& options)
    : model_(model),
      threads_(threads),
      format_(format),
      options_(options),
      kv_shape_(kv_shape_of(model.config(), options.kv_type)) {
  check_options(options);
  engine_ = options.device_model == nullptr
                ? make_cpu_engine(model, format, threads, options)
                : options.device_model->make_engine(model, format, options);
  for (std::int32_t i = 0; i < options.max_sequences; ++i) {
    sequences_.push_back(std::make_unique<Sequence>(kv_shape_));
    sequences_.back()->index = i;
  }
}

Sequence& Batch::Parts::at(SequenceId id) const {
  if (id < 0 || id >= options_.max_sequences || !sequences_[static_cast<std::size_t>(id)]->open) {
    throw Error(fmt::format("Sequence {} is not open in this batch.", id));
  }
  return *sequences_[static_cast<std::size_t>(id)];
}

std::int64_t Batch::Parts::kv_bytes(std::int64_t tokens) const {
  const std::int64_t blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
  return blocks * kKvBlockTokens * kv_shape_.bytes_per_token();
}

void Batch::Parts::check_feeds(std::span<const Feed> feeds, std::int64_t most) const {
  std::vector<bool> seen(sequences_.size());
  for (const Feed& feed : feeds) {
    const Sequence& sequence = at(feed.sequence);
    if (seen[static_cast<std::size_t>(feed.sequence)]) {
      throw Error(fmt::format("Sequence {} is fed twice in one call.", feed.sequence));
    }
    seen[static_cast<std::size_t>(feed.sequence)] = true;
    const auto tokens = static_cast<std::int64_t>(feed.tokens.size());
    if (tokens < 1 || tokens > most) {
      throw Error(fmt::format("Sequence {} is fed {} tokens; this call takes 1 to {}.",
                              feed.sequence, tokens, most));
    }
    if (sequence.position + tokens > sequence.max_context) {
      throw Error(
          fmt::format("Sequence {} was opened for {} tokens; it has {} and cannot take {} more.",
                      feed.sequence, sequence.max_context, sequence.position, tokens));
    }
    for (const TokenId token : feed.tokens) {
      if (token < 0 || token >= model_.config().vocab_size) {
        throw Error(fmt::format("Token {} is not in the vocabulary of {} tokens.", token,
                                model_.config().vocab_size));
      }
    }
  }
}

void Batch::Parts::check_layer(std::int32_t linear_layer) const {
  if (linear_layer >= 0 && linear_layer < model_.config().num_linear_layers()) return;
  throw Error(fmt::format("There is no linear layer {} in a model that has {}.", linear_layer,
                          model_.config().num_linear_layers()));
}

void Batch::Parts::run(const Pass& pass, std::span<const TokenId> tokens,
                       std::span<const std::int64_t> wanted, const RowResults& results) {
  engine_->run(pass, tokens, wanted, results);
  for (const Segment& segment : pass.segments) segment.sequence->position += segment.rows;
}

Batch::Batch(const Model& model, const StateFormat& format, const Threads& threads,
             const BatchOptions& options)
    : parts_(std::make_unique<Parts>(model, format, threads, options)) {}

Batch::~Batch() = default;

const Model& Batch::model() const { return parts_->model_; }
const Threads& Batch::threads() const { return parts_->threads_; }
const StateFormat& Batch::format() const { return parts_->format_; }
const BatchOptions& Batch::options() const { return parts_->options_; }
const char* Batch::backend() const { return parts_->engine_->backend(); }

StateBytes Batch::state_bytes() const {
  return state_bytes_per_sequence(parts_->model_.config(), parts_->format_,
                                  parts_->options_.max_tokens_per_call);
}

std::int64_t Batch::kv_bytes(std::int64_t tokens) const { return parts_->kv_bytes(tokens); }

void Batch::require_context(std::int64_t tokens) const {
  const std::int64_t most = parts_->model_.config().max_position_embeddings;
  if (tokens > most) {
    throw Error(fmt::format("A sequence of {} tokens is longer than the {} that this model takes.",
                            tokens, most));
  }
  if (kv_bytes(tokens) > parts_->engine_->kv_limit()) {
    throw Error(fmt::format(
        "A sequence of {} tokens needs a KV cache of {}, but only {} of memory are left for it; "
        "use a shorter prompt or fewer new tokens.",
        tokens, describe_bytes(kv_bytes(tokens)), describe_bytes(parts_->engine_->kv_limit())));
  }
}

std::optional<SequenceId> Batch::open(std::int64_t max_context) {
  require_context(max_context);
  Parts& parts = *parts_;
  const std::int64_t bytes = kv_bytes(max_context);
  if (parts.num_open_ == parts.options_.max_sequences ||
      parts.kv_reserved_ + bytes > parts.engine_->kv_limit()) {
    return std::nullopt;
  }
  SequenceId id = 0;
  while (parts.sequences_[static_cast<std::size_t>(id)]->open) ++id;
  Sequence& sequence = *parts.sequences_[static_cast<std::size_t>(id)];
  sequence.position = 0;
  sequence.max_context = max_context;
  sequence.fault.clear();
  parts.engine_->open(sequence);
  sequence.open = true;
  parts.kv_reserved_ += bytes;
  ++parts.num_open_;
  return id;
}

void Batch::close(SequenceId id) {
  Sequence& sequence = parts_->at(id);
  parts_->kv_reserved_ -= kv_bytes(sequence.max_context);
  parts_->engine_->close(sequence);
  sequence.open = false;
  --parts_->num_open_;
}

std::int32_t Batch::num_open() const { return parts_->num_open_; }
std::int64_t Batch::position(SequenceId id) const { return parts_->at(id).position; }
const std::string& Batch::fault(SequenceId id) const { return parts_->at(id).fault; }
void Batch::record(Recorder* recorder) { parts_->engine_->record(recorder); }

namespace {

std::size_t count_tokens(std::span<const Feed> feeds) {
  std::size_t tokens = 0;
  for (const Feed& feed : feeds) tokens += feed.tokens.size();
  return tokens;
}

void require_results(std::size_t there, std::size_t needed, const char* what) {
  if (there == 0 || there == needed) return;
  throw Error(fmt::format("{} {} do not fit into {}.", needed, what, there));
}

}  // namespace

void Batch::decode(std::span<const Feed> feeds, std::span<float> logits) {
  require_results(logits.size(),
                  count_tokens(feeds) * static_cast<std::size_t>(model().config().vocab_size),
                  "logits");
  parts_->decode(feeds, !logits.empty(), {logits.data(), nullptr});
}

void Batch::decode_picks(std::span<const Feed> feeds, std::span<Pick> picks) {
  require_results(picks.size(), count_tokens(feeds), "picks");
  parts_->decode(feeds, !picks.empty(), {nullptr, picks.data()});
}

bool Batch::prefers_picks() const { return parts_->engine_->prefers_picks(); }
std::span<float> Batch::logits_buffer(std::size_t count) {
  return parts_->engine_->logits_buffer(count);
}

void Batch::Parts::decode(std::span<const Feed> feeds, bool any_wanted, const RowResults& results) {
  if (feeds.empty()) return;
  check_feeds(feeds, options_.max_tokens_per_call);
  // Feeds of equal length must be neighbours: the library takes them as one call.
  std::vector<std::size_t> order(feeds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return feeds[a].tokens.size() < feeds[b].tokens.size();
  });
  std::vector<Segment> segments;
  std::vector<TokenId> tokens;
  std::vector<std::int64_t> first_row(feeds.size());
  for (const std::size_t index : order) {
    const Feed& feed = feeds[index];
    first_row[index] = static_cast<std::int64_t>(tokens.size());
    segments.push_back(
        {&at(feed.sequence), first_row[index], static_cast<std::int64_t>(feed.tokens.size())});
    tokens.insert(tokens.end(), feed.tokens.begin(), feed.tokens.end());
  }
  std::vector<std::int64_t> wanted;
  for (std::size_t i = 0; i < feeds.size() && any_wanted; ++i) {
    for (std::size_t t = 0; t < feeds[i].tokens.size(); ++t) {
      wanted.push_back(first_row[i] + static_cast<std::int64_t>(t));
    }
  }
  Pass pass;
  pass.kind = PassKind::kDecode;
  pass.segments = segments;
  pass.rows = static_cast<std::int64_t>(tokens.size());
  run(pass, tokens, wanted, results);
}

std::int32_t Batch::exact_tokens(SequenceId id) const {
  const Sequence& sequence = parts_->at(id);
  const std::int32_t most = parts_->options_.max_tokens_per_call;
  // Per step there are no windows: the library rounds after every token of a call.
  if (parts_->format_.per_step()) return most;
  return parts_->engine_->tokens_to_boundary(static_cast<std::int32_t>(sequence.position), most);
}

void Batch::export_state(SequenceId id, std::int32_t linear_layer, std::span<float> state) const {
  const ModelConfig& config = parts_->model_.config();
  const Sequence& sequence = parts_->at(id);
  const std::int64_t floats =
      config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim;
  if (linear_layer < 0 || linear_layer >= config.num_linear_layers() ||
      state.size() != static_cast<std::size_t>(floats)) {
    throw Error(fmt::format("There is no state of linear layer {} with {} values.", linear_layer,
                            state.size()));
  }
  parts_->engine_->export_state(sequence, linear_layer, state);
}

std::vector<float> Batch::convolution_state(SequenceId id, std::int32_t linear_layer) const {
  parts_->check_layer(linear_layer);
  return parts_->engine_->convolution(parts_->at(id), linear_layer);
}

std::vector<leapquant_health> Batch::health(SequenceId id, std::int32_t linear_layer) const {
  parts_->check_layer(linear_layer);
  return parts_->engine_->health(parts_->at(id), linear_layer);
}

std::vector<std::vector<std::byte>> Batch::save_state(SequenceId id) const {
  const Sequence& sequence = parts_->at(id);
  std::vector<std::vector<std::byte>> blobs;
  for (std::int32_t layer = 0; layer < parts_->model_.config().num_linear_layers(); ++layer) {
    blobs.push_back(parts_->engine_->save_state(sequence, layer, parts_->model_.fingerprint()));
  }
  return blobs;
}

void Batch::restore_state(SequenceId id, std::span<const std::span<const std::byte>> blobs,
                          std::int64_t position) {
  Sequence& sequence = parts_->at(id);
  const std::int64_t layers = parts_->model_.config().num_linear_layers();
  if (sequence.position != 0 || position > sequence.max_context ||
      static_cast<std::int64_t>(blobs.size()) != layers) {
    throw Error(fmt::format(
        "A sequence opened for {} tokens, with {} of them fed, cannot take {} saved states at {}.",
        sequence.max_context, sequence.position, blobs.size(), position));
  }
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    parts_->engine_->load_state(sequence, layer, blobs[static_cast<std::size_t>(layer)],
                                parts_->model_.fingerprint(), position);
  }
  sequence.position = position;
}

void Batch::restore_convolution(SequenceId id, std::int32_t linear_layer,
                                std::span<const float> state) {
  parts_->check_layer(linear_layer);
  const ModelConfig& config = parts_->model_.config();
  const std::int64_t kept = (config.linear_conv_kernel - 1) * config.conv_dim();
  if (static_cast<std::int64_t>(state.size()) != kept) {
    throw Error(fmt::format("A convolution state has {} values, not {}.", kept, state.size()));
  }
  parts_->engine_->restore_convolution(parts_->at(id), linear_layer, state);
}

const KvShape& Batch::kv_shape() const { return parts_->kv_shape_; }

std::vector<std::byte> Batch::pack_kv(SequenceId id) const {
  return parts_->engine_->pack_kv(parts_->at(id));
}

void Batch::restore_kv(SequenceId id, std::span<const std::byte> bytes) {
  Sequence& sequence = parts_->at(id);
  parts_->engine_->unpack_kv(sequence, bytes, sequence.position);
}

// ---- Prefill -----------------------------------------------------------------------------------

namespace {

// What is left of a feed.
struct Remaining {
  Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;
  std::size_t feed = 0;
  bool long_prompt = false;  // takes several passes
};

}  // namespace

bool Batch::prefill(std::span<const Feed> feeds, std::span<float> last_logits,
                    const std::atomic<bool>* cancel) {
  require_results(last_logits.size(),
                  feeds.size() * static_cast<std::size_t>(model().config().vocab_size), "logits");
  return parts_->prefill(feeds, !last_logits.empty(), {last_logits.data(), nullptr}, cancel);
}

bool Batch::prefill_picks(std::span<const Feed> feeds, std::span<Pick> picks,
                          const std::atomic<bool>* cancel) {
  require_results(picks.size(), feeds.size(), "picks");
  return parts_->prefill(feeds, !picks.empty(), {nullptr, picks.data()}, cancel);
}

bool Batch::Parts::prefill(std::span<const Feed> feeds, bool any_wanted, const RowResults& results,
                           const std::atomic<bool>* cancel) {
  if (feeds.empty()) return true;
  check_feeds(feeds, model_.config().max_position_embeddings);
  const auto vocab_size = static_cast<std::size_t>(model_.config().vocab_size);
  const auto chunk = static_cast<std::size_t>(options_.prefill_chunk);
  std::vector<Remaining> queue;
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    queue.push_back({&at(feeds[i].sequence), feeds[i].tokens, i,
                     feeds[i].tokens.size() > chunk && engine_->needs_carry()});
  }
  std::vector<float> logits;
  std::vector<Pick> picks;
  while (!queue.empty()) {
    if (cancel != nullptr && cancel->load()) return false;
    // A pass takes the next chunk of as many prompts as fit into its rows, at least one. A prompt's
    // chunks are counted from its own start, so its values do not depend on the company.
    std::vector<Remaining*> direct;
    std::vector<Remaining*> carried;
    std::size_t rows = 0;
    for (Remaining& next : queue) {
      const std::size_t size = std::min(chunk, next.tokens.size());
      if (rows > 0 && rows + size > chunk) continue;
      if (next.long_prompt && !engine_->is_carried(*next.sequence) &&
          !engine_->begin_carry(*next.sequence)) {
        continue;
      }
      (next.long_prompt ? carried : direct).push_back(&next);
      rows += size;
    }
    std::vector<Segment> segments;
    std::vector<TokenId> tokens;
    std::vector<std::int64_t> wanted;
    std::vector<std::size_t> wanted_feeds;
    const auto add = [&](Remaining* next) {
      const std::size_t size = std::min(chunk, next->tokens.size());
      segments.push_back({next->sequence, static_cast<std::int64_t>(tokens.size()),
                          static_cast<std::int64_t>(size)});
      const auto taken = next->tokens.first(size);
      tokens.insert(tokens.end(), taken.begin(), taken.end());
      next->tokens = next->tokens.subspan(size);
      if (next->tokens.empty() && any_wanted) {
        wanted.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
        wanted_feeds.push_back(next->feed);
      }
    };
    for (Remaining* next : direct) add(next);
    for (Remaining* next : carried) add(next);
    Pass pass;
    pass.kind = PassKind::kPrefill;
    pass.segments = segments;
    pass.rows = static_cast<std::int64_t>(tokens.size());
    pass.num_direct = static_cast<std::int64_t>(direct.size());
    // Results come in the order of the pass.
    RowResults passed;
    if (results.picks != nullptr) {
      picks.resize(wanted.size());
      passed.picks = picks.data();
    } else {
      logits.resize(wanted.size() * vocab_size);
      passed.logits = logits.data();
    }
    run(pass, tokens, wanted, passed);
    for (std::size_t i = 0; i < wanted_feeds.size(); ++i) {
      if (results.picks != nullptr) {
        results.picks[wanted_feeds[i]] = picks[i];
      } else {
        std::copy_n(passed.logits + i * vocab_size, vocab_size,
                    results.logits + wanted_feeds[i] * vocab_size);
      }
    }
    for (Remaining* next : carried) {
      if (!next->tokens.empty()) continue;
      engine_->end_carry(*next->sequence);
    }
    std::erase_if(queue, [](const Remaining& next) { return next.tokens.empty(); });
  }
  return true;
}

void Batch::prefill_with_all_logits(const Feed& feed, std::span<float> logits) {
  Parts& parts = *parts_;
  parts.check_feeds(std::span(&feed, 1), parts.model_.config().max_position_embeddings);
  const auto vocab_size = static_cast<std::size_t>(model().config().vocab_size);
  if (logits.size() != feed.tokens.size() * vocab_size) {
    throw Error(fmt::format("Logits of {} tokens do not fit into {} values.", feed.tokens.size(),
                            logits.size()));
  }
  const auto chunk = static_cast<std::size_t>(parts.options_.prefill_chunk);
  Sequence& sequence = parts.at(feed.sequence);
  const bool carried = feed.tokens.size() > chunk && parts.engine_->needs_carry();
  if (carried && !parts.engine_->begin_carry(sequence)) {
    throw Error("All FP32 states are in use.");
  }
  for (std::size_t first = 0; first < feed.tokens.size(); first += chunk) {
    const auto tokens = feed.tokens.subspan(first, std::min(chunk, feed.tokens.size() - first));
    const Segment segment{&sequence, 0, static_cast<std::int64_t>(tokens.size())};
    std::vector<std::int64_t> wanted(tokens.size());
    std::iota(wanted.begin(), wanted.end(), std::int64_t{0});
    Pass pass;
    pass.kind = PassKind::kPrefill;
    pass.segments = std::span(&segment, 1);
    pass.rows = segment.rows;
    pass.num_direct = carried ? 0 : 1;
    parts.run(pass, tokens, wanted, {logits.data() + first * vocab_size, nullptr});
  }
  if (carried) parts.engine_->end_carry(sequence);
}

}  // namespace leapquant::runtime
