// SPDX-License-Identifier: Apache-2.0
//
// A layout and its pools for the check and the timing of the kernels for heads of 128 x 128: on the
// host in canonical order, on the device in its own.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/layout.h"
#include "core/numeric.h"
#include "core/packing.h"
#include "core/pool.h"
#include "core/position.h"
#include "cuda/decode_128.cuh"
#include "cuda/payload_order.cuh"
#include "cuda/small_128.cuh"
#include "reference/backend.h"
#include "reference/codec.h"
#include "reference/decode.h"
#include "reference/fold.h"

namespace leapquant::bench {

inline void require(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "decode_128:%d: %s: %s\n", line, what, cudaGetErrorString(error));
  std::exit(1);
}
#define REQUIRE(call) require((call), #call, __LINE__)

template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count = 0;
  explicit DeviceArray(size_t n) : count(n) { REQUIRE(cudaMalloc(&data, n * sizeof(T) + 16)); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) { put(from); }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  void put(const std::vector<T>& from) {
    REQUIRE(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> to(count);
    REQUIRE(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
};

struct Case {
  const char* name;
  const char* format;
  int decay;
  int k_heads, v_heads, tokens;
  int type;         // of q, k, v and the output
  int raw_gates;    // leapquant_gate
  int half_decays;  // FP16 log decays in the records
  double decay_rate;
};

inline Layout layout_of(const Case& c, bool stagger) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = c.k_heads;
  shape.num_v_heads = c.v_heads;
  shape.head_k_dim = shape.head_v_dim = 128;
  shape.decay = c.decay;
  shape.delta_rule = 1;
  shape.max_tokens = c.tokens;
  std::vector<leapquant_format> formats;
  std::vector<uint8_t> head_format(static_cast<size_t>(c.v_heads));
  std::string text = c.format;
  Sentence sentence;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    leapquant_format f = LEAPQUANT_INIT(leapquant_format);
    if (parse_format(text.substr(at, comma - at).c_str(), &f, &sentence) != LEAPQUANT_OK) {
      std::fprintf(stderr, "bad format %s\n", c.format);
      std::exit(1);
    }
    f.stagger = stagger;
    if (c.half_decays) f.log_decay_type = LEAPQUANT_FP16;
    formats.push_back(f);
    at = comma + 1;
  }
  for (size_t h = 0; h < head_format.size(); ++h) {
    head_format[h] = static_cast<uint8_t>(h % formats.size());
  }
  Layout layout;
  if (make_layout(shape, formats.data(), static_cast<int32_t>(formats.size()), head_format.data(),
                  &layout, &sentence) != LEAPQUANT_OK) {
    std::fprintf(stderr, "no layout for %s\n", c.name);
    std::exit(1);
  }
  if (cuda::accepts_decode_128(layout, &sentence) != LEAPQUANT_OK) {
    std::fprintf(stderr, "not accepted: %s\n", c.name);
    std::exit(1);
  }
  return layout;
}

// Reorders the payloads of `slots` slots; to_device: canonical to device order, else back.
inline void reorder(const Layout& layout, std::vector<std::byte>* states, int slots,
                    bool to_device) {
  for (int s = 0; s < slots; ++s) {
    for (int h = 0; h < layout.shape.num_v_heads; ++h) {
      const BoundaryLayout& b = layout.head(h);
      auto* payload = reinterpret_cast<uint8_t*>(states->data()) + s * layout.state_bytes +
                      layout.head_offset[static_cast<size_t>(h)];
      const cuda::PayloadOrder device = {b.format.payload_bits, 128, 128, b.row_bytes};
      std::vector<int8_t> codes(128 * 128);
      std::vector<int8_t> row(128);
      for (int k = 0; k < 128; ++k) {
        if (to_device)
          unpack_codes(payload + k * b.row_bytes, 128, b.format.payload_bits, row.data());
        for (int v = 0; v < 128; ++v) {
          codes[static_cast<size_t>(k * 128 + v)] =
              to_device ? row[static_cast<size_t>(v)]
                        : static_cast<int8_t>(cuda::load_code(device, payload, k, v));
        }
      }
      for (int k = 0; k < 128; ++k) {
        if (!to_device) {
          pack_codes(codes.data() + k * 128, 128, b.format.payload_bits, payload + k * b.row_bytes);
          continue;
        }
        for (int g = 0; g < device.groups_per_key(); ++g) {
          int32_t group[4];
          for (int p = 0; p < 4; ++p) {
            group[p] = codes[static_cast<size_t>(k * 128 + device.group_value(g, p))];
          }
          cuda::store_group(device, payload, k, g, group);
        }
      }
    }
  }
}

struct HostPool {
  std::vector<std::byte> states, windows;
  std::vector<int32_t> base;
  std::vector<leapquant_health> health;
  leapquant_pool view = LEAPQUANT_INIT(leapquant_pool);
  HostPool(const Layout& layout, int slots)
      : states(static_cast<size_t>(layout.state_bytes * slots)),
        windows(static_cast<size_t>(layout.window.bytes * slots)),
        base(static_cast<size_t>(layout.shape.num_v_heads * slots)),
        health(base.size()) {
    view.num_state_slots = view.num_window_slots = slots;
    view.state_stride_bytes = layout.state_bytes;
    view.window_stride_bytes = layout.window.bytes;
    bind();
  }
  HostPool(const HostPool& other)
      : states(other.states),
        windows(other.windows),
        base(other.base),
        health(other.health),
        view(other.view) {
    bind();
  }
  void bind() {
    view.states = states.data();
    view.windows = windows.data();
    view.base = base.data();
    view.health = health.data();
  }
};

// A view of `slots` slots in device memory.
inline leapquant_pool pool_of(const Layout& layout, int slots, const DeviceArray<std::byte>& states,
                              const DeviceArray<std::byte>& windows,
                              const DeviceArray<int32_t>& base,
                              const DeviceArray<leapquant_health>& health) {
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  pool.num_state_slots = pool.num_window_slots = slots;
  pool.states = states.data;
  pool.windows = windows.data;
  pool.state_stride_bytes = layout.state_bytes;
  pool.window_stride_bytes = layout.window.bytes;
  pool.base = base.data;
  pool.health = health.data;
  return pool;
}

inline double difference(const double* a, const double* b, size_t n, double* norm) {
  double sum = 0.0;
  *norm = 0.0;
  for (size_t i = 0; i < n; ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    *norm += b[i] * b[i];
  }
  *norm = std::sqrt(*norm);
  return std::sqrt(sum);
}

inline std::vector<uint8_t> packed(const std::vector<float>& x, int type) {
  std::vector<uint8_t> bytes(x.size() * (type == LEAPQUANT_FP32 ? 4 : 2));
  for (size_t i = 0; i < x.size(); ++i) {
    if (type == LEAPQUANT_FP32) {
      std::memcpy(&bytes[4 * i], &x[i], 4);
    } else {
      const uint16_t h = type == LEAPQUANT_BF16 ? float_to_bf16(x[i]) : float_to_fp16(x[i]);
      std::memcpy(&bytes[2 * i], &h, 2);
    }
  }
  return bytes;
}

}  // namespace leapquant::bench
