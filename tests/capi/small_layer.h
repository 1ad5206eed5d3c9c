// SPDX-License-Identifier: Apache-2.0
//
// A small layer with pools of its own and made-up activations, for tests that go through the C API.
// An activation depends on (seed, position, index) only, so the same token can be fed again, alone
// or in a batch, into any slot.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "leapquant/leapquant.h"

namespace leapquant_test {

// A number in (-1, 1) from a 64-bit mix.
inline float made_up(uint64_t seed, uint64_t position, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + position * 0xbf58476d1ce4e5b9ull +
               index * 0x94d049bb133111ebull + 0x2545f4914f6cdd1dull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) /
         static_cast<float>(1 << 23);
}

struct Buffer {
  explicit Buffer(size_t size)
      : bytes(size),
        data(static_cast<std::byte*>(::operator new(size + 64, std::align_val_t{64}))) {
    std::memset(data, 0xa5, bytes + 64);  // a slot's contents are never trusted
  }
  ~Buffer() { ::operator delete(data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  size_t bytes;
  std::byte* data;
};

// Activations of `batch` sequences of `tokens` tokens: sequence i has seed seeds[i] and starts at
// positions[i].
struct Activations {
  std::vector<float> q, k, v, log_decay, beta;
  Activations(const leapquant_shape& s, const std::vector<uint64_t>& seeds,
              const std::vector<int32_t>& positions, int32_t tokens) {
    for (size_t i = 0; i < seeds.size(); ++i) {
      for (int32_t t = 0; t < tokens; ++t) {
        const uint64_t p = static_cast<uint64_t>(int64_t{positions[i]} + t);
        fill(&q, s.num_k_heads * s.head_k_dim, seeds[i], p, 1000);
        fill(&k, s.num_k_heads * s.head_k_dim, seeds[i], p, 2000);
        fill(&v, s.num_v_heads * s.head_v_dim, seeds[i], p, 3000);
        for (int32_t h = 0; h < s.num_v_heads; ++h) {
          const uint64_t at = static_cast<uint64_t>(h);
          log_decay.push_back(-0.1f - 0.09f * made_up(seeds[i], p, 4000 + at));
          beta.push_back(0.5f + 0.4f * made_up(seeds[i], p, 5000 + at));
        }
      }
    }
  }

 private:
  static void fill(std::vector<float>* to, int32_t count, uint64_t seed, uint64_t p, uint64_t at) {
    for (int32_t i = 0; i < count; ++i)
      to->push_back(made_up(seed, p, at + static_cast<uint64_t>(i)));
  }
};

inline leapquant_shape small_shape() {
  leapquant_shape s = LEAPQUANT_INIT(leapquant_shape);
  s.num_k_heads = 2;
  s.num_v_heads = 4;
  s.head_k_dim = 8;
  s.head_v_dim = 12;
  s.decay = LEAPQUANT_DECAY_SCALAR;
  s.delta_rule = 1;
  s.max_tokens = 4;
  return s;
}

class SmallLayer {
 public:
  explicit SmallLayer(const std::string& format = "int8", leapquant_shape given = small_shape(),
                      int32_t num_states = 6, int32_t num_windows = 4)
      : shape(given) {
    leapquant_format formats[8];
    int32_t count = 0;
    std::vector<uint8_t> heads(static_cast<size_t>(shape.num_v_heads));
    EXPECT_EQ(leapquant_formats_from_string(format.c_str(), 0, shape.num_v_heads, formats, 8,
                                            &count, heads.data()),
              LEAPQUANT_OK)
        << leapquant_last_error();
    EXPECT_EQ(leapquant_layout_create(&shape, formats, count, heads.data(), LEAPQUANT_CPU, &layout),
              LEAPQUANT_OK)
        << leapquant_last_error();
    EXPECT_EQ(leapquant_bytes_per_slot(layout, &sizes), LEAPQUANT_OK);
    states.reset(new Buffer(static_cast<size_t>(num_states * sizes.state_bytes)));
    windows.reset(new Buffer(static_cast<size_t>(num_windows * sizes.window_bytes)));
    base.assign(static_cast<size_t>(num_states * shape.num_v_heads), -77);
    health.resize(base.size());
    pool.num_state_slots = num_states;
    pool.num_window_slots = num_windows;
    pool.states = states->data;
    pool.state_stride_bytes = sizes.state_bytes;
    pool.windows = windows->data;
    pool.window_stride_bytes = sizes.window_bytes;
    pool.base = base.data();
    pool.health = health.data();
    workspace.reset(new Buffer(leapquant_workspace_bytes(layout, 1, 16)));
    launch.workspace = workspace->data;
    launch.workspace_bytes = workspace->bytes;
  }
  ~SmallLayer() { leapquant_layout_destroy(layout); }
  SmallLayer(const SmallLayer&) = delete;
  SmallLayer& operator=(const SmallLayer&) = delete;

  leapquant_status reset(std::vector<int32_t> slots, int32_t position = 0) {
    const std::vector<int32_t> positions(slots.size(), position);
    std::vector<int32_t> rings = slots;
    for (int32_t& ring : rings) ring = ring < pool.num_window_slots ? ring : -1;
    return leapquant_reset(layout, &pool, static_cast<int32_t>(slots.size()), slots.data(),
                           rings.data(), positions.data(), &launch);
  }

  // Arguments of a decode whose arrays live in this object until the next call.
  leapquant_decode_args decode_args(std::vector<int32_t> slots, std::vector<int32_t> at,
                                    int32_t tokens = 1, std::vector<uint64_t> seeds = {}) {
    call_slots = std::move(slots);
    call_positions = std::move(at);
    if (seeds.empty()) seeds.assign(call_slots.size(), 7);
    input.reset(new Activations(shape, seeds, call_positions, tokens));
    output.assign(
        call_slots.size() * static_cast<size_t>(tokens * shape.num_v_heads * shape.head_v_dim),
        -1.0f);
    status.assign(call_slots.size(), -1);
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = static_cast<int32_t>(call_slots.size());
    args.tokens = tokens;
    args.state_slots = call_slots.data();
    args.positions = call_positions.data();
    args.inputs = inputs();
    args.output.data = output.data();
    args.status = status.data();
    return args;
  }

  // The made-up activations as C inputs; q and k are normalised by the library.
  leapquant_inputs inputs() const {
    leapquant_inputs c = LEAPQUANT_INIT(leapquant_inputs);
    c.q.data = input->q.data();
    c.k.data = input->k.data();
    c.v.data = input->v.data();
    if (shape.decay == LEAPQUANT_DECAY_SCALAR) c.log_decay.data = input->log_decay.data();
    c.beta.data = input->beta.data();
    c.qk_l2norm = 1;
    return c;
  }

  leapquant_status run(const leapquant_decode_args& args) {
    return leapquant_decode(layout, &pool, &args, &launch);
  }

  // Feeds tokens first .. first + count - 1 of a seed into slot, one call each; all outputs.
  std::vector<float> feed(int32_t slot, int32_t first, int32_t count, uint64_t seed = 7) {
    std::vector<float> all;
    for (int32_t p = first; p < first + count; ++p) {
      const leapquant_decode_args args = decode_args({slot}, {p}, 1, {seed});
      EXPECT_EQ(run(args), LEAPQUANT_OK) << leapquant_last_error();
      all.insert(all.end(), output.begin(), output.end());
    }
    return all;
  }

  std::vector<std::byte> save(int32_t slot, int32_t position, uint64_t fingerprint = 42) {
    size_t bytes = 0;
    EXPECT_EQ(leapquant_saved_bytes(layout, &pool, slot, ring_of(slot), position, &bytes),
              LEAPQUANT_OK)
        << leapquant_last_error();
    std::vector<std::byte> blob(bytes);
    size_t written = 0;
    EXPECT_EQ(leapquant_save(layout, &pool, slot, ring_of(slot), position, fingerprint, blob.data(),
                             blob.size(), &written),
              LEAPQUANT_OK)
        << leapquant_last_error();
    EXPECT_EQ(written, bytes);
    return blob;
  }
  leapquant_status load(int32_t slot, const std::vector<std::byte>& blob, int32_t* position,
                        uint64_t fingerprint = 42) {
    return leapquant_load(layout, &pool, slot, ring_of(slot), fingerprint, blob.data(), blob.size(),
                          position);
  }
  int32_t ring_of(int32_t slot) const { return slot < pool.num_window_slots ? slot : -1; }

  // Every byte that operations may change.
  std::vector<std::byte> snapshot() const {
    std::vector<std::byte> all(states->data, states->data + states->bytes);
    all.insert(all.end(), windows->data, windows->data + windows->bytes);
    const auto* b = reinterpret_cast<const std::byte*>(base.data());
    all.insert(all.end(), b, b + base.size() * sizeof(int32_t));
    const auto* h = reinterpret_cast<const std::byte*>(health.data());
    all.insert(all.end(), h, h + health.size() * sizeof(leapquant_health));
    return all;
  }

  leapquant_shape shape;
  leapquant_layout* layout = nullptr;
  leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  std::unique_ptr<Buffer> states, windows, workspace;
  std::vector<int32_t> base;
  std::vector<leapquant_health> health;
  std::vector<int32_t> call_slots, call_positions, status;
  std::vector<float> output;
  std::unique_ptr<Activations> input;
};

// The call fails with `status`, and its sentence has `part` in it.
#define EXPECT_REFUSED(call, expected, part)                                     \
  do {                                                                           \
    EXPECT_EQ(static_cast<int>(call), static_cast<int>(expected));               \
    EXPECT_NE(std::string(leapquant_last_error()).find(part), std::string::npos) \
        << "the sentence is: " << leapquant_last_error();                        \
  } while (false)

}  // namespace leapquant_test
