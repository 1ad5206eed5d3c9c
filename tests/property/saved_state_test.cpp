// SPDX-License-Identifier: Apache-2.0
//
// Saved states through the public door, for shapes, formats and fills that RapidCheck chooses: a
// loaded slot goes on as the saved one would, bit for bit, and saves to the same bytes; one changed
// byte is refused and changes nothing.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "leapquant/leapquant.h"

namespace leapquant {
namespace {

struct alignas(64) Block {
  std::byte bytes[64];
};

std::vector<Block> memory_of(int64_t bytes) {
  return std::vector<Block>(static_cast<size_t>(bytes / 64 + 1));
}

// A layer with two slots behind the C API.
class Layer {
 public:
  Layer(const leapquant_shape& shape, const char* format_text) : shape_(shape) {
    leapquant_format format = LEAPQUANT_INIT(leapquant_format);
    RC_ASSERT(leapquant_format_from_string(format_text, &format) == LEAPQUANT_OK);
    RC_ASSERT(leapquant_layout_create(&shape, &format, 1, nullptr, LEAPQUANT_CPU, &layout_) ==
              LEAPQUANT_OK);
    leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
    RC_ASSERT(leapquant_bytes_per_slot(layout_, &sizes) == LEAPQUANT_OK);
    states_ = memory_of(2 * sizes.state_bytes);
    windows_ = memory_of(2 * sizes.window_bytes);
    base_.resize(static_cast<size_t>(2 * shape.num_v_heads));
    health_.resize(base_.size());
    pool.num_state_slots = pool.num_window_slots = 2;
    pool.states = states_.data();
    pool.state_stride_bytes = sizes.state_bytes;
    pool.windows = windows_.data();
    pool.window_stride_bytes = sizes.window_bytes;
    pool.base = base_.data();
    pool.health = health_.data();
    workspace_ = memory_of(static_cast<int64_t>(leapquant_workspace_bytes(layout_, 1, 1)));
    launch_.workspace = workspace_.data();
    launch_.workspace_bytes = workspace_.size() * sizeof(Block);
    const int32_t slots[] = {0, 1};
    const int32_t zeros[] = {0, 0};
    RC_ASSERT(leapquant_reset(layout_, &pool, 2, slots, nullptr, zeros, &launch_) == LEAPQUANT_OK);
  }
  ~Layer() { leapquant_layout_destroy(layout_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // One token made of its number alone, so that both slots see the same sequence.
  std::vector<float> decode(int32_t slot, int32_t position) {
    const auto wave = [position](size_t count, float step) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = 0.5f * std::sin(step * static_cast<float>(i + 1) + static_cast<float>(position));
      }
      return data;
    };
    const auto k_size = static_cast<size_t>(shape_.num_k_heads * shape_.head_k_dim);
    const auto v_size = static_cast<size_t>(shape_.num_v_heads * shape_.head_v_dim);
    const std::vector<float> q = wave(k_size, 1.7f);
    const std::vector<float> k = wave(k_size, 2.9f);
    const std::vector<float> v = wave(v_size, 0.9f);
    const std::vector<float> g(static_cast<size_t>(shape_.num_v_heads * shape_.head_k_dim), -0.05f);
    std::vector<float> o(v_size);
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    int32_t status = -1;
    args.batch = args.tokens = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.inputs.struct_size = sizeof(args.inputs);
    args.inputs.q.data = q.data();
    args.inputs.k.data = k.data();
    args.inputs.v.data = v.data();
    args.inputs.log_decay.data = g.data();
    args.inputs.qk_l2norm = 1;
    args.output.data = o.data();
    args.status = &status;
    RC_ASSERT(leapquant_decode(layout_, &pool, &args, &launch_) == LEAPQUANT_OK);
    return o;
  }

  std::vector<std::byte> save(int32_t slot, int32_t position) {
    size_t bytes = 0;
    RC_ASSERT(leapquant_saved_bytes(layout_, &pool, slot, slot, position, &bytes) == LEAPQUANT_OK);
    std::vector<std::byte> blob(bytes);
    size_t written = 0;
    RC_ASSERT(leapquant_save(layout_, &pool, slot, slot, position, 77, blob.data(), bytes,
                             &written) == LEAPQUANT_OK);
    RC_ASSERT(written == bytes);
    return blob;
  }

  leapquant_status load(int32_t slot, const std::vector<std::byte>& blob, int32_t* position) {
    return leapquant_load(layout_, &pool, slot, slot, 77, blob.data(), blob.size(), position);
  }

  std::vector<std::byte> all_bytes() const {
    std::vector<std::byte> bytes;
    const auto add = [&bytes](const auto& data) {
      const auto* begin = reinterpret_cast<const std::byte*>(data.data());
      bytes.insert(bytes.end(), begin, begin + data.size() * sizeof(data[0]));
    };
    add(states_);
    add(windows_);
    add(base_);
    add(health_);
    return bytes;
  }

  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);

 private:
  leapquant_shape shape_;
  leapquant_layout* layout_ = nullptr;
  std::vector<Block> states_, windows_, workspace_;
  std::vector<int32_t> base_;
  std::vector<leapquant_health> health_;
  leapquant_launch launch_ = LEAPQUANT_INIT(leapquant_launch);
};

leapquant_shape any_shape() {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = *rc::gen::inRange(1, 3);
  shape.num_v_heads = shape.num_k_heads * *rc::gen::inRange(1, 4);
  shape.head_k_dim = 4 * *rc::gen::inRange(1, 10);
  shape.head_v_dim = 4 * *rc::gen::inRange(1, 10);
  shape.decay = *rc::gen::element<int32_t>(LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR);
  shape.delta_rule = *rc::gen::inRange(0, 2);
  return shape;
}

const char* any_format() {
  return *rc::gen::element("int8", "int6", "int4+", "int8+:stagger=1:decay=fp16", "3h:r=1",
                           "int4-compact:window=5", "bf16", "fp32:window=3");
}

RC_GTEST_PROP(SavedStateProperty, LoadedSlotsGoOnAlike, ()) {
  Layer layer(any_shape(), any_format());
  const int32_t fill = *rc::gen::inRange(0, 40);
  for (int32_t t = 0; t < fill; ++t) layer.decode(0, t);
  const std::vector<std::byte> blob = layer.save(0, fill);
  int32_t position = -1;
  RC_ASSERT(layer.load(1, blob, &position) == LEAPQUANT_OK);
  RC_ASSERT(position == fill);
  RC_ASSERT(layer.save(1, fill) == blob);
  for (int32_t t = fill; t < fill + 20; ++t) RC_ASSERT(layer.decode(0, t) == layer.decode(1, t));
}

RC_GTEST_PROP(SavedStateProperty, AnyChangedByteIsRefused, ()) {
  Layer layer(any_shape(), any_format());
  const int32_t fill = *rc::gen::inRange(0, 20);
  for (int32_t t = 0; t < fill; ++t) layer.decode(0, t);
  std::vector<std::byte> blob = layer.save(0, fill);
  const std::vector<std::byte> before = layer.all_bytes();
  const auto place =
      static_cast<size_t>(*rc::gen::inRange<int64_t>(0, static_cast<int64_t>(blob.size())));
  blob[place] ^= static_cast<std::byte>(1 << *rc::gen::inRange(0, 8));
  int32_t position = -1;
  RC_ASSERT(layer.load(1, blob, &position) != LEAPQUANT_OK);
  RC_ASSERT(position == -1);
  RC_ASSERT(layer.all_bytes() == before);
}

}  // namespace
}  // namespace leapquant
