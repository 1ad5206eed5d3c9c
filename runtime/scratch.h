// SPDX-License-Identifier: Apache-2.0
//
// Memory for activations that lives from pass to pass: aligned, grown to the largest size asked
// for, contents undefined. Each user of a pass has buffers of its own by name.
#ifndef LEAPQUANT_RUNTIME_SCRATCH_H_
#define LEAPQUANT_RUNTIME_SCRATCH_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace leapquant::runtime {

// 64-byte aligned.
class Buffer {
 public:
  // At least `bytes` bytes; earlier contents are lost when it grows. Throws std::bad_alloc.
  std::byte* bytes(std::size_t bytes) {
    if (bytes > size_) {
      data_.reset();
      size_ = 0;
      const std::size_t rounded = (bytes + 63) / 64 * 64;
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return data_.get();
  }
  float* floats(std::int64_t count) {
    return reinterpret_cast<float*>(bytes(static_cast<std::size_t>(count) * sizeof(float)));
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

struct Scratch {
  // Of the pass.
  Buffer hidden;    // residual stream, [rows, hidden_size]
  Buffer normed;    // input of the mixer or MLP
  Buffer mixed;     // output of the mixer or MLP
  Buffer selected;  // rows that need logits
  Buffer cosines;   // [rows, rotary_dim / 2]
  Buffer sines;
  // Linear layers.
  Buffer projected;    // q, k, v before the convolution
  Buffer convolved;    // q, k, v after it
  Buffer gate_input;   // z
  Buffer beta_input;   // b
  Buffer decay_input;  // a
  Buffer read_out;     // o
  // Full-attention layers.
  Buffer query_gate;
  Buffer key;
  Buffer value;
  Buffer attended;
  // One per worker: query rows, their outputs, scores; pointers to the blocks of keys and values.
  std::vector<Buffer> worker;
  std::vector<std::vector<const void*>> worker_blocks;
  // MLP.
  Buffer mlp_gate;
  Buffer mlp_up;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SCRATCH_H_
