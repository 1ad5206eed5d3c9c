// SPDX-License-Identifier: Apache-2.0
//
// See engine.h. Each run ends by waiting for the device, so the pinned memory of one pass is free
// for the next.
#include "runtime/cuda/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/cuda/forward.h"
#include "runtime/cuda/picks.h"
#include "runtime/error.h"

namespace leapquant::runtime::cuda {
namespace {

ForwardOptions forward_options(const BatchOptions& options) {
  ForwardOptions forward;
  forward.places = options.max_sequences;
  forward.max_tokens = options.max_tokens_per_call;
  forward.max_prefill_rows = options.prefill_chunk;
  forward.kv_type = options.kv_type == KvType::kFp32 ? Element::kFp32 : Element::kBf16;
  return forward;
}

float widen(std::uint16_t bf16) {
  const std::uint32_t bits = std::uint32_t{bf16} << 16;
  float value = 0.0f;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Nearest even; the inputs of a convolution are finite.
std::uint16_t narrow(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Bytes left for KV caches beside what all places hold.
std::int64_t require_states(const Model& model, const Weights& weights, const StateFormat& format,
                            const BatchOptions& options) {
  const std::int64_t limit =
      options.memory_bytes > 0 ? options.memory_bytes : free_device_bytes() / 4 * 3;
  const std::int64_t bytes =
      Forward::place_bytes(model.config(), format, weights.element(), forward_options(options));
  require_states_fit(bytes, limit, format, options);
  return limit - bytes;
}

class CudaEngine final : public Engine {
 public:
  CudaEngine(const Model& model, std::shared_ptr<const Weights> weights, const StateFormat& format,
             const BatchOptions& options);

  const char* backend() const override { return forward_.states().backend(); }
  std::int64_t kv_limit() const override { return kv_limit_; }
  void open(Sequence& sequence) override;
  void close(Sequence& sequence) override;
  bool needs_carry() const override { return forward_.states().needs_carry(); }
  bool is_carried(const Sequence& sequence) const override { return place(sequence).carry >= 0; }
  bool begin_carry(Sequence& sequence) override {
    place(sequence).carry = forward_.states().begin_carry(sequence.index, position_of(sequence));
    return place(sequence).carry >= 0;
  }
  void end_carry(Sequence& sequence) override {
    const std::int32_t slot = std::exchange(place(sequence).carry, -1);
    forward_.states().end_carry(sequence.index, slot, position_of(sequence));
  }
  void run(const Pass& pass, std::span<const TokenId> tokens, std::span<const std::int64_t> wanted,
           const RowResults& results) override;
  bool prefers_picks() const override { return true; }
  std::span<float> logits_buffer(std::size_t count) override;
  std::int32_t tokens_to_boundary(std::int32_t position, std::int32_t most) const override {
    return forward_.states().tokens_to_boundary(position, most);
  }
  void record(Recorder* recorder) override {
    if (recorder != nullptr) throw Error("Recording runs on the CPU only.");
  }

  void export_state(const Sequence& sequence, std::int32_t layer, std::span<float> state) override {
    forward_.states().export_state(layer, sequence.index, position_of(sequence), state);
  }
  std::vector<float> convolution(const Sequence& sequence, std::int32_t layer) const override;
  std::vector<leapquant_health> health(const Sequence& sequence,
                                       std::int32_t layer) const override {
    return forward_.states().health(layer, sequence.index);
  }
  std::vector<std::byte> save_state(const Sequence& sequence, std::int32_t layer,
                                    std::uint64_t fingerprint) const override {
    return forward_.states().save(layer, sequence.index, position_of(sequence), fingerprint);
  }
  std::vector<std::byte> pack_kv(const Sequence& sequence) const override;
  void load_state(Sequence& sequence, std::int32_t layer, std::span<const std::byte> blob,
                  std::uint64_t fingerprint, std::int64_t position) override {
    forward_.states().load(layer, sequence.index, blob, fingerprint,
                           static_cast<std::int32_t>(position));
  }
  void restore_convolution(Sequence& sequence, std::int32_t layer,
                           std::span<const float> inputs) override;
  void unpack_kv(Sequence& sequence, std::span<const std::byte> bytes,
                 std::int64_t num_tokens) override;

 private:
  struct Place {
    DeviceMemory kv;
    std::int64_t capacity = 0;  // tokens
    std::int32_t carry = -1;
  };

  static std::int32_t position_of(const Sequence& sequence) {
    return static_cast<std::int32_t>(sequence.position);
  }
  Place& place(const Sequence& sequence) {
    return places_[static_cast<std::size_t>(sequence.index)];
  }
  const Place& place(const Sequence& sequence) const {
    return places_[static_cast<std::size_t>(sequence.index)];
  }
  // Bytes of one head's row in the cache, and rows of [layers, 2, heads].
  std::size_t kv_row_bytes() const;
  std::size_t kv_planes() const;
  void copy_kv(void* to, std::size_t to_tokens, const void* from, std::size_t from_tokens,
               std::int64_t num_tokens, cudaMemcpyKind kind) const;
  template <typename Visit>
  void for_ring(const Sequence& sequence, const Visit& visit) const;

  void upload(const PassSize& size);
  void fill_segment(PassTables& tables, std::int32_t segment, const Sequence& sequence,
                    std::int32_t tokens, std::int32_t first_row);
  void fill_chunks(PassTables& tables, std::int32_t* next, std::int32_t segment,
                   std::int32_t tokens) const;
  void decode(const Pass& pass, std::span<const TokenId> tokens,
              std::span<const std::int64_t> wanted, const RowResults& results);
  void prefill(const Pass& pass, std::span<const TokenId> tokens,
               std::span<const std::int64_t> wanted, const RowResults& results);
  void copy_logits(std::int64_t first, std::int64_t rows, float* to) const;
  // Of the first rows of the logits, to host_picks_ + at.
  void queue_picks(std::int64_t rows, std::int64_t at);
  void finish(const Pass& pass, std::int32_t segments);

  const Model& model_;
  std::shared_ptr<const Weights> weights_;
  BatchOptions options_;
  std::int64_t kv_limit_;
  Stream stream_;
  Forward forward_;
  std::vector<Place> places_;  // [max_sequences]
  PinnedMemory host_tables_;
  DeviceMemory device_tables_;
  PinnedMemory host_statuses_;
  PinnedMemory host_logits_;  // made when asked for
  std::size_t host_logits_floats_ = 0;
  DeviceMemory device_picks_;
  PinnedMemory host_picks_;
  std::vector<Graph> graphs_;       // by tokens of a pass, from 1
  std::vector<bool> graph_is_due_;  // the first pass of a shape runs unrecorded and loads kernels
};

CudaEngine::CudaEngine(const Model& model, std::shared_ptr<const Weights> weights,
                       const StateFormat& format, const BatchOptions& options)
    : model_(model),
      weights_(std::move(weights)),
      options_(options),
      kv_limit_(require_states(model, *weights_, format, options)),
      forward_(*weights_, model.config(), format, stream_, forward_options(options)),
      places_(static_cast<std::size_t>(options.max_sequences)),
      graphs_(static_cast<std::size_t>(options.max_tokens_per_call)),
      graph_is_due_(static_cast<std::size_t>(options.max_tokens_per_call), false) {
  PassSize prefill;
  prefill.segments = prefill.rows = prefill.picked = options.prefill_chunk;
  prefill.chunks = options.prefill_chunk * forward_.chunks_of(1);
  const std::int64_t bytes =
      std::max(pass_tables_bytes(prefill),
               pass_tables_bytes(forward_.decode_size(options.max_tokens_per_call)));
  host_tables_ = PinnedMemory(bytes);
  device_tables_ = DeviceMemory(bytes);
  host_statuses_ =
      PinnedMemory(model.config().num_linear_layers() *
                   std::max<std::int64_t>(options.max_sequences, options.prefill_chunk) *
                   static_cast<std::int64_t>(sizeof(std::int32_t)));
  constexpr auto kPick = static_cast<std::int64_t>(sizeof(Pick));
  device_picks_ = DeviceMemory(forward_.most_picked() * kPick);
  host_picks_ =
      PinnedMemory(std::max<std::int64_t>(forward_.most_picked(), options.prefill_chunk) * kPick);
}

// ---- Memory of a sequence ----------------------------------------------------------------------

void CudaEngine::open(Sequence& sequence) {
  Place& at = place(sequence);
  at.capacity = (sequence.max_context + kKvBlockTokens - 1) / kKvBlockTokens * kKvBlockTokens;
  at.kv = DeviceMemory(at.capacity * forward_.kv_bytes_per_token());
  forward_.set_kv_place(sequence.index, {at.kv.data(), at.capacity});
  forward_.states().reset(sequence.index, 0);
  forward_.clear_rings(sequence.index);
}

void CudaEngine::close(Sequence& sequence) {
  stream_.wait();
  Place& at = place(sequence);
  if (at.carry >= 0) forward_.states().release_carry(at.carry);
  at = Place();
}

std::size_t CudaEngine::kv_row_bytes() const {
  return static_cast<std::size_t>(model_.config().head_dim * kv_type_bytes(options_.kv_type));
}

std::size_t CudaEngine::kv_planes() const {
  return static_cast<std::size_t>(2 * model_.config().num_full_layers() *
                                  model_.config().num_key_value_heads);
}

void CudaEngine::copy_kv(void* to, std::size_t to_tokens, const void* from, std::size_t from_tokens,
                         std::int64_t num_tokens, cudaMemcpyKind kind) const {
  stream_.wait();
  const std::size_t width = static_cast<std::size_t>(num_tokens) * kv_row_bytes();
  if (width == 0 || kv_planes() == 0) return;
  check(cudaMemcpy2D(to, to_tokens * kv_row_bytes(), from, from_tokens * kv_row_bytes(), width,
                     kv_planes(), kind),
        "copy a KV cache");
}

std::vector<std::byte> CudaEngine::pack_kv(const Sequence& sequence) const {
  const auto tokens = static_cast<std::size_t>(sequence.position);
  std::vector<std::byte> bytes(kv_planes() * tokens * kv_row_bytes());
  copy_kv(bytes.data(), tokens, place(sequence).kv.data(),
          static_cast<std::size_t>(place(sequence).capacity), sequence.position,
          cudaMemcpyDeviceToHost);
  return bytes;
}

void CudaEngine::unpack_kv(Sequence& sequence, std::span<const std::byte> bytes,
                           std::int64_t num_tokens) {
  const auto tokens = static_cast<std::size_t>(num_tokens);
  if (bytes.size() != kv_planes() * tokens * kv_row_bytes()) {
    throw Error(fmt::format("A KV cache of {} tokens takes {} bytes, but there are {}.", num_tokens,
                            kv_planes() * tokens * kv_row_bytes(), bytes.size()));
  }
  copy_kv(place(sequence).kv.data(), static_cast<std::size_t>(place(sequence).capacity),
          bytes.data(), tokens, num_tokens, cudaMemcpyHostToDevice);
}

// Calls visit(index in the ring, index from the oldest input on) for the inputs kept.
template <typename Visit>
void CudaEngine::for_ring(const Sequence& sequence, const Visit& visit) const {
  const auto kept = static_cast<std::size_t>(model_.config().linear_conv_kernel - 1);
  for (std::size_t i = 0; i < kept; ++i) {
    visit((static_cast<std::size_t>(sequence.position) + i) % kept, i);
  }
}

std::vector<float> CudaEngine::convolution(const Sequence& sequence, std::int32_t layer) const {
  const auto channels = static_cast<std::size_t>(model_.config().conv_dim());
  std::vector<std::byte> ring(static_cast<std::size_t>(forward_.ring_bytes()));
  stream_.wait();
  check(cudaMemcpy(ring.data(), forward_.ring(sequence.index, layer), ring.size(),
                   cudaMemcpyDeviceToHost),
        "copy a convolution state");
  const bool floats = weights_->element() == Element::kFp32;
  std::vector<float> inputs(ring.size() / (floats ? sizeof(float) : sizeof(std::uint16_t)));
  const auto* as_floats = reinterpret_cast<const float*>(ring.data());
  const auto* as_bf16 = reinterpret_cast<const std::uint16_t*>(ring.data());
  for_ring(sequence, [&](std::size_t at, std::size_t i) {
    for (std::size_t c = 0; c < channels; ++c) {
      inputs[i * channels + c] =
          floats ? as_floats[at * channels + c] : widen(as_bf16[at * channels + c]);
    }
  });
  return inputs;
}

void CudaEngine::restore_convolution(Sequence& sequence, std::int32_t layer,
                                     std::span<const float> inputs) {
  const auto channels = static_cast<std::size_t>(model_.config().conv_dim());
  const bool floats = weights_->element() == Element::kFp32;
  std::vector<float> as_floats(floats ? inputs.size() : 0);
  std::vector<std::uint16_t> as_bf16(floats ? 0 : inputs.size());
  for_ring(sequence, [&](std::size_t at, std::size_t i) {
    for (std::size_t c = 0; c < channels; ++c) {
      const float value = inputs[i * channels + c];
      if (floats) {
        as_floats[at * channels + c] = value;
      } else {
        as_bf16[at * channels + c] = narrow(value);
      }
    }
  });
  stream_.wait();
  const void* from = floats ? static_cast<const void*>(as_floats.data()) : as_bf16.data();
  check(cudaMemcpy(forward_.ring(sequence.index, layer), from,
                   static_cast<std::size_t>(forward_.ring_bytes()), cudaMemcpyHostToDevice),
        "copy a convolution state");
}

// ---- Passes ------------------------------------------------------------------------------------

void CudaEngine::upload(const PassSize& size) {
  check(cudaMemcpyAsync(device_tables_.data(), host_tables_.data(),
                        static_cast<std::size_t>(pass_tables_bytes(size)), cudaMemcpyHostToDevice,
                        stream_.get()),
        "copy a pass");
}

void CudaEngine::fill_segment(PassTables& tables, std::int32_t segment, const Sequence& sequence,
                              std::int32_t tokens, std::int32_t first_row) {
  tables.slots[segment] = sequence.index;
  tables.carry_slots[segment] = place(sequence).carry;
  tables.positions[segment] = position_of(sequence);
  tables.tokens[segment] = tokens;
  tables.first_rows[segment] = first_row;
}

void CudaEngine::fill_chunks(PassTables& tables, std::int32_t* next, std::int32_t segment,
                             std::int32_t tokens) const {
  for (std::int32_t chunk = 0; chunk < forward_.chunks_of(tokens); ++chunk) {
    tables.chunk_segments[*next] = segment;
    tables.chunk_queries[*next] = chunk * kQueriesPerChunk;
    ++*next;
  }
}

void CudaEngine::copy_logits(std::int64_t first, std::int64_t rows, float* to) const {
  const std::int64_t vocab = model_.config().vocab_size;
  check(cudaMemcpyAsync(to, forward_.logits() + first * vocab,
                        static_cast<std::size_t>(rows * vocab) * sizeof(float),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "copy logits");
}

std::span<float> CudaEngine::logits_buffer(std::size_t count) {
  if (count > host_logits_floats_) {
    host_logits_ = PinnedMemory(static_cast<std::int64_t>(count * sizeof(float)));
    host_logits_floats_ = count;
  }
  return {host_logits_.as<float>(), count};
}

void CudaEngine::queue_picks(std::int64_t rows, std::int64_t at) {
  pick_rows(stream_.get(), forward_.logits(), rows, model_.config().vocab_size,
            device_picks_.as<Pick>());
  check(cudaMemcpyAsync(host_picks_.as<Pick>() + at, device_picks_.data(),
                        static_cast<std::size_t>(rows) * sizeof(Pick), cudaMemcpyDeviceToHost,
                        stream_.get()),
        "copy picks");
}

// The faults of the pass, after the device has finished it.
void CudaEngine::finish(const Pass& pass, std::int32_t segments) {
  stream_.wait();
  const auto* statuses = host_statuses_.as<std::int32_t>();
  for (std::int32_t layer = 0; layer < model_.config().num_linear_layers(); ++layer) {
    for (std::size_t i = 0; i < pass.segments.size(); ++i) {
      note_fault(
          *pass.segments[i].sequence, layer,
          statuses[static_cast<std::size_t>(layer) * static_cast<std::size_t>(segments) + i]);
    }
  }
}

void CudaEngine::run(const Pass& pass, std::span<const TokenId> tokens,
                     std::span<const std::int64_t> wanted, const RowResults& results) {
  if (pass.kind == PassKind::kDecode) {
    decode(pass, tokens, wanted, results);
  } else {
    prefill(pass, tokens, wanted, results);
  }
}

void CudaEngine::decode(const Pass& pass, std::span<const TokenId> tokens,
                        std::span<const std::int64_t> wanted, const RowResults& results) {
  std::int32_t most = 1;
  for (const Segment& segment : pass.segments) {
    most = std::max(most, static_cast<std::int32_t>(segment.rows));
  }
  // Every place has a row of `most` tokens, whether it is fed or not.
  const PassSize size = forward_.decode_size(most);
  PassTables tables = lay_out_pass_tables(size, host_tables_.data());
  std::memset(host_tables_.data(), 0, static_cast<std::size_t>(pass_tables_bytes(size)));
  std::int32_t next_chunk = 0;
  std::vector<std::int64_t> device_rows(tokens.size());
  for (std::int32_t i = 0; i < size.segments; ++i) {
    fill_chunks(tables, &next_chunk, i, most);
    for (std::int32_t t = 0; t < most; ++t) tables.row_segments[i * most + t] = i;
    if (static_cast<std::size_t>(i) >= pass.segments.size()) {
      tables.slots[i] = -1;
      tables.first_rows[i] = i * most;
      continue;
    }
    const Segment& segment = pass.segments[static_cast<std::size_t>(i)];
    fill_segment(tables, i, *segment.sequence, static_cast<std::int32_t>(segment.rows), i * most);
    for (std::int64_t t = 0; t < segment.rows; ++t) {
      const auto row = static_cast<std::size_t>(segment.first_row + t);
      tables.token_ids[i * most + static_cast<std::int32_t>(t)] = tokens[row];
      device_rows[row] = std::int64_t{i} * most + t;
    }
  }

  const PassTables on_device = lay_out_pass_tables(size, device_tables_.data());
  StateCall call;
  call.tokens = most;
  const auto launches = [&] {
    upload(size);
    forward_.run(on_device, size, call, nullptr);
    const std::int64_t statuses = model_.config().num_linear_layers() * size.segments;
    check(cudaMemcpyAsync(host_statuses_.data(), forward_.statuses(),
                          static_cast<std::size_t>(statuses) * sizeof(std::int32_t),
                          cudaMemcpyDeviceToHost, stream_.get()),
          "copy statuses");
  };
  const auto shape = static_cast<std::size_t>(most - 1);
  if (!options_.record_graphs || !graph_is_due_[shape]) {
    launches();
    graph_is_due_[shape] = true;
  } else {
    if (graphs_[shape].empty()) graphs_[shape] = Graph::record(stream_, launches);
    graphs_[shape].launch(stream_);
  }
  if (results.picks != nullptr) {
    queue_picks(size.rows, 0);
    finish(pass, size.segments);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::int64_t row = device_rows[static_cast<std::size_t>(wanted[i])];
      results.picks[i] = host_picks_.as<Pick>()[row];
    }
    return;
  }
  // Rows that lie together on both sides are copied together.
  const std::int64_t vocab = model_.config().vocab_size;
  for (std::size_t i = 0; i < wanted.size();) {
    const std::int64_t first = device_rows[static_cast<std::size_t>(wanted[i])];
    std::size_t count = 1;
    while (i + count < wanted.size() && device_rows[static_cast<std::size_t>(wanted[i + count])] ==
                                            first + static_cast<std::int64_t>(count)) {
      ++count;
    }
    copy_logits(first, static_cast<std::int64_t>(count),
                results.logits + static_cast<std::int64_t>(i) * vocab);
    i += count;
  }
  finish(pass, size.segments);
}

void CudaEngine::prefill(const Pass& pass, std::span<const TokenId> tokens,
                         std::span<const std::int64_t> wanted, const RowResults& results) {
  PassSize size;
  size.segments = static_cast<std::int32_t>(pass.segments.size());
  size.rows = static_cast<std::int32_t>(pass.rows);
  size.picked = static_cast<std::int32_t>(wanted.size());
  for (const Segment& segment : pass.segments) {
    size.chunks += forward_.chunks_of(static_cast<std::int32_t>(segment.rows));
  }
  PassTables tables = lay_out_pass_tables(size, host_tables_.data());
  std::copy(tokens.begin(), tokens.end(), tables.token_ids);
  std::copy(wanted.begin(), wanted.end(), tables.picked);
  StateCall call;
  call.decode = false;
  call.carried.carried = true;
  std::int32_t next_chunk = 0;
  std::int32_t next_offset = 0;
  for (std::int32_t i = 0; i < size.segments; ++i) {
    const Segment& segment = pass.segments[static_cast<std::size_t>(i)];
    const auto rows = static_cast<std::int32_t>(segment.rows);
    const auto first_row = static_cast<std::int32_t>(segment.first_row);
    fill_segment(tables, i, *segment.sequence, rows, first_row);
    fill_chunks(tables, &next_chunk, i, rows);
    std::fill_n(tables.row_segments + first_row, rows, i);
    PrefillPart& part = i < pass.num_direct ? call.direct : call.carried;
    if (part.segments == 0) {
      part.first_segment = i;
      part.first_row = first_row;
      part.first_offset = next_offset;
      tables.offsets[next_offset++] = 0;
    }
    tables.offsets[next_offset] = tables.offsets[next_offset - 1] + rows;
    ++next_offset;
    ++part.segments;
  }
  upload(size);
  const PassTables on_device = lay_out_pass_tables(size, device_tables_.data());
  forward_.run(on_device, size, call, nullptr);
  const std::int64_t statuses = model_.config().num_linear_layers() * size.segments;
  check(cudaMemcpyAsync(host_statuses_.data(), forward_.statuses(),
                        static_cast<std::size_t>(statuses) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "copy statuses");
  const std::int64_t vocab = model_.config().vocab_size;
  for (std::int64_t first = 0; first < size.picked; first += forward_.most_picked()) {
    const std::int64_t count = std::min<std::int64_t>(forward_.most_picked(), size.picked - first);
    forward_.head(on_device.picked + first, count);
    if (results.picks != nullptr) {
      queue_picks(count, first);
    } else {
      copy_logits(0, count, results.logits + first * vocab);
    }
  }
  finish(pass, size.segments);
  if (results.picks != nullptr) std::copy_n(host_picks_.as<Pick>(), wanted.size(), results.picks);
}

}  // namespace

std::unique_ptr<Engine> make_cuda_engine(const Model& model, std::shared_ptr<const Weights> weights,
                                         const StateFormat& format, const BatchOptions& options) {
  return std::make_unique<CudaEngine>(model, std::move(weights), format, options);
}

}  // namespace leapquant::runtime::cuda
