// SPDX-License-Identifier: Apache-2.0
//
// The layers of a Qwen3.5 model over one pass on the device: which kernels, products and calls of
// the library follow each other. It owns the activations and the memory of the places (recurrent
// states, convolution rings, table of KV caches), and queues work without waiting, so that a pass
// may be recorded as a graph.
#ifndef LEAPQUANT_RUNTIME_CUDA_FORWARD_H_
#define LEAPQUANT_RUNTIME_CUDA_FORWARD_H_

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/attention.h"
#include "runtime/cuda/convolution.h"
#include "runtime/cuda/device_states.h"
#include "runtime/cuda/part_timer.h"
#include "runtime/cuda/pass_tables.h"
#include "runtime/cuda/products.h"
#include "runtime/cuda/weights.h"

namespace leapquant::runtime::cuda {

struct ForwardOptions {
  std::int32_t places = 1;
  std::int32_t max_tokens = 1;  // of a place in one decode pass
  std::int32_t max_prefill_rows = 512;
  std::int32_t max_picked = 64;  // rows whose logits are formed at a time after a prefill
  Element kv_type = Element::kBf16;
};

// How the linear layers call the library. Decode: every place has a row of `tokens` tokens.
struct StateCall {
  bool decode = true;
  std::int32_t tokens = 1;
  PrefillPart direct;
  PrefillPart carried;
};

class Forward {
 public:
  // Throws Error when the device refuses the memory or a head dim has no kernel.
  Forward(const Weights& weights, const ModelConfig& config, const StateFormat& format,
          const Stream& stream, const ForwardOptions& options);

  // Of recurrent states, convolution rings.
  static std::int64_t place_bytes(const ModelConfig& config, const StateFormat& format,
                                  Element element, const ForwardOptions& options);
  std::int64_t kv_bytes_per_token() const;

  // A decode pass of so many tokens per place, over all places.
  PassSize decode_size(std::int32_t tokens) const;
  // Query chunks of `tokens` tokens of one segment.
  std::int32_t chunks_of(std::int32_t tokens) const;

  // tables lie in device memory. The logits of all rows of a decode pass are left in logits().
  // timer may be null.
  void run(const PassTables& tables, const PassSize& size, const StateCall& call, PartTimer* timer);
  // Leaves the logits of some rows of the last pass in logits(): at most most_picked() at a time.
  // picked lies in device memory; null: the first ones.
  void head(const std::int32_t* picked, std::int64_t rows);
  std::int64_t most_picked() const {
    return std::max<std::int64_t>(std::int64_t{options_.places} * options_.max_tokens,
                                  options_.max_picked);
  }

  const float* logits() const { return logits_.as<float>(); }
  // [linear layers, segments] of the last pass, in device memory.
  const std::int32_t* statuses() const { return statuses_.as<std::int32_t>(); }

  DeviceStates& states() { return states_; }
  const DeviceStates& states() const { return states_; }
  // The ring of a place and linear layer: [kept, conv_dim] elements of the weights' type.
  std::byte* ring(std::int32_t place, std::int32_t layer) const;
  std::int64_t ring_bytes() const;  // of one place and layer
  void clear_rings(std::int32_t place);
  void set_kv_place(std::int32_t place, const KvPlace& kv);

 private:
  void run_linear(const Layer& layer, const LinearMixer& mixer, const PassTables& tables,
                  const PassSize& size, const StateCall& call, PartTimer* timer);
  void run_full(const Layer& layer, const FullMixer& mixer, const PassTables& tables,
                const PassSize& size);
  void run_mlp(const Layer& layer, std::int64_t rows);
  void norm(const float* factor, std::int64_t rows);
  std::int32_t ring_inputs() const {
    return static_cast<std::int32_t>(config_.linear_conv_kernel - 1);
  }

  const Weights& weights_;
  const ModelConfig& config_;
  const Stream& stream_;
  ForwardOptions options_;
  Element element_;
  AttentionShape attention_;
  std::int32_t multiprocessors_;
  std::int64_t most_rows_;
  Products products_;
  DeviceStates states_;
  DeviceMemory frequencies_;
  DeviceMemory rings_;
  DeviceMemory kv_places_;
  // Activations: FP32 residual stream; the others in the weights' type unless they say floats.
  DeviceMemory hidden_;
  DeviceMemory normed_;
  DeviceMemory projected_;
  DeviceMemory convolved_;
  DeviceMemory gate_floats_;  // log decays, then step sizes, [most rows, num_v_heads] each
  DeviceMemory read_out_;
  DeviceMemory mixed_;
  DeviceMemory query_floats_;
  DeviceMemory part_floats_;
  DeviceMemory cosines_;
  DeviceMemory sines_;
  DeviceMemory logits_;
  DeviceMemory statuses_;
};

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_FORWARD_H_
