// SPDX-License-Identifier: Apache-2.0
//
// Runs a model on several sequences at once: places for sequences (recurrent states in a slot pool
// of the library, convolution states, KV cache), prefill and decode. It does not choose tokens or
// know text: generate.h does.
//
// Bitwise, the logits of a sequence depend on its own tokens and on how they were split between
// prefill() and decode() calls only: not on its neighbours, their number, its place, or threads. On
// a device they depend on max_sequences and max_tokens_per_call as well, and in a prefill on the
// number of rows of its passes: products choose their kernels by it.
#ifndef LEAPQUANT_RUNTIME_BATCH_H_
#define LEAPQUANT_RUNTIME_BATCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/engine.h"
#include "runtime/kv_cache.h"
#include "runtime/model.h"
#include "runtime/recorder.h"
#include "runtime/state_options.h"
#include "runtime/threads.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

// Index of an open sequence; reused after close().
using SequenceId = std::int32_t;

struct BatchOptions {
  std::int32_t max_sequences = 1;        // places
  std::int32_t max_tokens_per_call = 1;  // of one sequence in one decode call, 1..8
  std::int32_t prefill_chunk = 512;      // tokens of one sequence per pass, counted from its start
  KvType kv_type = KvType::kFp32;
  // Limit on recurrent states, convolution states and KV cache together; 0: three quarters of the
  // memory that the CPU, or the device, has available now.
  std::int64_t memory_bytes = 0;
  // Where the batch runs; null: on the CPU. A model that load_on_cuda() made of the same model.
  std::shared_ptr<const DeviceModel> device_model;
  // On a device: replay decode steps as recorded graphs instead of launching each kernel. The same
  // bits either way.
  bool record_graphs = true;
};

// Throws Error, with the bytes, when what all places hold takes more than the limit.
void require_states_fit(std::int64_t bytes, std::int64_t limit, const StateFormat& format,
                        const BatchOptions& options);

// Tokens to append to one sequence.
struct Feed {
  SequenceId sequence = 0;
  std::span<const TokenId> tokens;  // at least one, ids in [0, vocab_size)
};

// One call at a time. The model and the threads must outlive the batch.
class Batch {
 public:
  // Throws Error when the library refuses the format or not even the states of max_sequences fit
  // into the memory limit (the sentence says the bytes).
  Batch(const Model& model, const StateFormat& format, const Threads& threads,
        const BatchOptions& options = {});
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const Model& model() const;
  const Threads& threads() const;
  const StateFormat& format() const;
  const BatchOptions& options() const;
  // Name of the backend that keeps the states, as leapquant_layout_backend.
  const char* backend() const;

  // Of one sequence. The KV cache of a context of n tokens takes kv_bytes(n).
  StateBytes state_bytes() const;
  std::int64_t kv_bytes(std::int64_t tokens) const;
  // Throws Error, with the bytes needed and those there are, when a sequence of so many tokens
  // could never be opened, and when it is longer than the model's max_position_embeddings.
  void require_context(std::int64_t tokens) const;

  // Opens an empty sequence that may grow to max_context tokens; its memory is set aside. nullopt
  // when no place or not enough memory is free now. Throws as require_context.
  std::optional<SequenceId> open(std::int64_t max_context);
  // Frees the place. Nothing of the sequence remains readable through this class.
  void close(SequenceId sequence);
  std::int32_t num_open() const;
  // Tokens fed so far.
  std::int64_t position(SequenceId sequence) const;
  // Empty, or a sentence: why the sequence stopped (non-finite activations). Its outputs are then
  // meaningless; the other sequences are not affected.
  const std::string& fault(SequenceId sequence) const;

  // Appends tokens by the chunked form: each sequence in passes of prefill_chunk tokens, several
  // sequences sharing a pass. The recurrent state is rounded to its format once, after the last
  // token. last_logits [feeds, vocab_size] receives those of each feed's last token; may be empty.
  // False when *cancel became true between two passes: the call then ended early, and its sequences
  // can only be closed.
  bool prefill(std::span<const Feed> feeds, std::span<float> last_logits,
               const std::atomic<bool>* cancel = nullptr);
  // The same with the picks of these logits, [feeds].
  bool prefill_picks(std::span<const Feed> feeds, std::span<Pick> picks,
                     const std::atomic<bool>* cancel = nullptr);
  // The same for one sequence with the logits of all its tokens, [tokens, vocab_size].
  void prefill_with_all_logits(const Feed& feed, std::span<float> logits);

  // Appends 1..max_tokens_per_call tokens to each sequence as generation does: states are read from
  // their format and folded at the boundaries. logits [all tokens, vocab_size], feeds in order; may
  // be empty. Teacher forcing is feeding known tokens.
  void decode(std::span<const Feed> feeds, std::span<float> logits);
  // The same with the picks of these logits, [all tokens].
  void decode_picks(std::span<const Feed> feeds, std::span<Pick> picks);
  // Whether picks are cheaper to have than logits: on a device, whose logits then stay there.
  bool prefers_picks() const;
  // Memory for logits that decode and prefill fill fastest; valid until the next call.
  std::span<float> logits_buffer(std::size_t count);
  // How many tokens the next decode call may take for this sequence so that no head has a boundary
  // inside the call: that many at once equal single calls bitwise. At least 1.
  std::int32_t exact_tokens(SequenceId sequence) const;

  // The recurrent state of a linear layer (counted among the linear layers) after position()
  // tokens: FP32 [num_v_heads, head_k_dim, head_v_dim].
  void export_state(SequenceId sequence, std::int32_t linear_layer, std::span<float> state) const;
  // The last kernel - 1 inputs of the convolution, oldest first: [kernel - 1, conv_dim].
  std::vector<float> convolution_state(SequenceId sequence, std::int32_t linear_layer) const;
  // Telemetry of a layer, [num_v_heads].
  std::vector<leapquant_health> health(SequenceId sequence, std::int32_t linear_layer) const;

  // Records the inputs of the linear layers of all later calls; nullptr: no more. The recorder must
  // live as long. Throws Error on a device: recording runs on the CPU.
  void record(Recorder* recorder);

  // Used by session.h: the parts of a sequence as bytes. save_state gives one blob of the library
  // per linear layer; restore_* need a sequence that was opened and never fed.
  std::vector<std::vector<std::byte>> save_state(SequenceId sequence) const;
  void restore_state(SequenceId sequence, std::span<const std::span<const std::byte>> blobs,
                     std::int64_t position);
  void restore_convolution(SequenceId sequence, std::int32_t linear_layer,
                           std::span<const float> state);
  const KvShape& kv_shape() const;
  // Keys and values of all tokens, as KvCache::pack.
  std::vector<std::byte> pack_kv(SequenceId sequence) const;
  void restore_kv(SequenceId sequence, std::span<const std::byte> bytes);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_BATCH_H_
