// SPDX-License-Identifier: Apache-2.0
//
// One recurrent layer kept in a format through the public C interface: layout, memory of a few
// slots and calls of single operations, with failures as exceptions. It adds no arithmetic.
#ifndef LEAPQUANT_LAB_FORMAT_LAYER_H_
#define LEAPQUANT_LAB_FORMAT_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/layer_inputs.h"
#include "leapquant/leapquant.h"
#include "runtime/state_options.h"

namespace leapquant::lab {

// Throws runtime::Error with the library's sentence unless status is LEAPQUANT_OK. what:
// "Decoding".
void require_ok(leapquant_status status, const std::string& what);

// Layout of a layer with one token per call on the CPU. Decay scalar: Gated DeltaNet; vector: KDA.
runtime::StateLayout create_layout(const LayerShape& shape, const runtime::LayerFormat& format,
                                   leapquant_decay decay = LEAPQUANT_DECAY_SCALAR);

// Memory of some slots, 64-byte aligned. Contents are undefined until a slot is reset or filled.
class PoolMemory {
 public:
  PoolMemory(const runtime::StateLayout& layout, int num_v_heads, int slots);
  const leapquant_pool& pool() const { return pool_; }
  const leapquant_health& health(int slot, int v_head) const;
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  int num_v_heads_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<void, Free> states_;
  std::unique_ptr<void, Free> windows_;
  std::vector<std::int32_t> base_;
  std::vector<leapquant_health> health_;
  leapquant_pool pool_{};
};

// 64-byte aligned scratch memory of a call.
class Workspace {
 public:
  Workspace(const runtime::StateLayout& layout, int workers, int batch);
  // runner may be null: the calling thread alone.
  leapquant_launch launch(const leapquant_runner* runner) const;

 private:
  std::vector<std::byte> memory_;
  void* aligned_ = nullptr;
  std::size_t bytes_ = 0;
};

// One sequence of one layer, advanced token by token as generation does.
class FormatLayer {
 public:
  FormatLayer(const LayerShape& shape, const runtime::LayerFormat& format);

  // Decodes every token of the inputs. outputs [tokens, num_v_heads, head_v_dim].
  void advance(const LayerInputs& inputs, std::span<float> outputs);
  // The state after all tokens so far, boundary state and records: [num_v_heads, K, V].
  std::vector<float> matrices() const;
  const leapquant_health& health(int v_head) const { return memory_.health(0, v_head); }
  std::int64_t boundary_bytes(int v_head) const {
    return leapquant_boundary_bytes(layout_.get(), v_head);
  }
  const char* backend() const { return leapquant_layout_backend(layout_.get()); }

 private:
  LayerShape shape_;
  runtime::StateLayout layout_;
  PoolMemory memory_;
  Workspace workspace_;
  std::int32_t position_ = 0;
};

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_FORMAT_LAYER_H_
