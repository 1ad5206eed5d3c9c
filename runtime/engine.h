// SPDX-License-Identifier: Apache-2.0
//
// The seam between a batch and the device that computes for it. An engine holds a model's weights
// and the memory of the open sequences on one device and runs passes over them; batch.h decides
// which tokens go into a pass and keeps the positions. cpu_engine.h and cuda/engine.h are the two.
#ifndef LEAPQUANT_RUNTIME_ENGINE_H_
#define LEAPQUANT_RUNTIME_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/kv_cache.h"
#include "runtime/sampler.h"
#include "runtime/sequence.h"
#include "runtime/state_options.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

class Model;
struct BatchOptions;

// Where a pass leaves what its wanted rows gave; at most one is not null.
struct RowResults {
  float* logits = nullptr;  // [wanted, vocab_size]
  Pick* picks = nullptr;    // [wanted]
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Name of the library's backend that keeps the states.
  virtual const char* backend() const = 0;
  // Bytes that remain for the KV caches of all sequences.
  virtual std::int64_t kv_limit() const = 0;

  // A fresh place for the sequence, whose index and max_context are set. Throws Error.
  virtual void open(Sequence& sequence) = 0;
  virtual void close(Sequence& sequence) = 0;

  // A prompt of several prefill passes is carried between them in an FP32 state and rounded to its
  // format once, after the last. begin_carry: false when all FP32 states are in use.
  virtual bool needs_carry() const = 0;
  virtual bool is_carried(const Sequence& sequence) const = 0;
  virtual bool begin_carry(Sequence& sequence) = 0;
  virtual void end_carry(Sequence& sequence) = 0;

  // Runs a pass; positions are those before it. tokens: of all rows. wanted: rows of which results
  // are stored. Faults of single sequences are noted in them.
  virtual void run(const Pass& pass, std::span<const TokenId> tokens,
                   std::span<const std::int64_t> wanted, const RowResults& results) = 0;
  // Whether picks are cheaper to have than logits.
  virtual bool prefers_picks() const = 0;
  // Memory for logits that run() fills fastest, at least so many; valid until the next call.
  virtual std::span<float> logits_buffer(std::size_t count) = 0;
  // Tokens from position on until the next boundary of any head, at least 1, at most `most`.
  virtual std::int32_t tokens_to_boundary(std::int32_t position, std::int32_t most) const = 0;
  // Throws Error where this device cannot record.
  virtual void record(Recorder* recorder) = 0;

  // The memory of a sequence as values; layer counts linear layers. batch.h tells the shapes.
  virtual void export_state(const Sequence& sequence, std::int32_t layer,
                            std::span<float> state) = 0;
  virtual std::vector<float> convolution(const Sequence& sequence, std::int32_t layer) const = 0;
  virtual std::vector<leapquant_health> health(const Sequence& sequence,
                                               std::int32_t layer) const = 0;
  virtual std::vector<std::byte> save_state(const Sequence& sequence, std::int32_t layer,
                                            std::uint64_t fingerprint) const = 0;
  virtual std::vector<std::byte> pack_kv(const Sequence& sequence) const = 0;
  // Into a sequence that was opened and never fed; its position is set afterwards.
  virtual void load_state(Sequence& sequence, std::int32_t layer, std::span<const std::byte> blob,
                          std::uint64_t fingerprint, std::int64_t position) = 0;
  virtual void restore_convolution(Sequence& sequence, std::int32_t layer,
                                   std::span<const float> inputs) = 0;
  virtual void unpack_kv(Sequence& sequence, std::span<const std::byte> bytes,
                         std::int64_t num_tokens) = 0;
};

// A model whose weights lie in the memory of a device other than the CPU. May be shared by several
// batches of that model.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  // "NVIDIA H200"
  virtual const char* device_name() const = 0;
  virtual std::unique_ptr<Engine> make_engine(const Model& model, const StateFormat& format,
                                              const BatchOptions& options) const = 0;
};

// Activations between the products; sums are FP32 in both.
enum class Activations { kBf16, kFp32 };

// Copies the weights to the current CUDA device. Throws Error when this program was built without
// CUDA, when there is no device, and when the weights do not fit (with the bytes).
std::shared_ptr<const DeviceModel> load_on_cuda(const Model& model, Activations activations);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_ENGINE_H_
