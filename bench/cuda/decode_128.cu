// SPDX-License-Identifier: Apache-2.0
//
// The specialised decode and fold for heads of 128 x 128: first checked step by step against the
// FP64 reference on the same stored bytes, then timed. Usage: decode_128 check | time ROWS.JSONL.
// Timing: one CUDA graph per phase of the window over all slot sets (together past the L2), all
// phases in turn; medians; bytes and the share of the copy bandwidth of the same run.
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
#include "reference/backend.h"
#include "reference/codec.h"
#include "reference/decode.h"
#include "reference/fold.h"

namespace {

using namespace leapquant;

void require(cudaError_t error, const char* what, int line) {
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

Layout layout_of(const Case& c, bool stagger) {
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
void reorder(const Layout& layout, std::vector<std::byte>* states, int slots, bool to_device) {
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

double difference(const double* a, const double* b, size_t n, double* norm) {
  double sum = 0.0;
  *norm = 0.0;
  for (size_t i = 0; i < n; ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    *norm += b[i] * b[i];
  }
  *norm = std::sqrt(*norm);
  return std::sqrt(sum);
}

std::vector<uint8_t> packed(const std::vector<float>& x, int type) {
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

// One case: every step starts from the device's own bytes.
bool check_case(const Case& c, bool stagger, int warps, bool overlaps) {
  const Layout layout = layout_of(c, stagger);
  const int batch = 4;
  const int slots = 5;
  const int hv = c.v_heads;
  const int hk = c.k_heads;
  const bool vector = c.decay == LEAPQUANT_DECAY_VECTOR;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;

  // Start: low rank plus noise, imported cold. Slot 0 row 2 is padding later.
  HostPool host(layout, slots);
  std::vector<float> matrices(static_cast<size_t>(slots) * hv * 128 * 128);
  for (int s = 0; s < slots * hv; ++s) {
    const float size = s % 5 == 4 ? 1e-4f : s % 5 == 3 ? 300.0f : 1.0f;
    const int rank = s % 3 == 2 ? 1 : 6;
    std::vector<float> rows(128), columns(128);
    float* m = &matrices[static_cast<size_t>(s) * 128 * 128];
    for (int r = 0; r < rank; ++r) {
      for (float& x : rows) x = normal(random);
      for (float& x : columns) x = normal(random);
      for (int i = 0; i < 128; ++i) {
        for (int j = 0; j < 128; ++j) {
          m[i * 128 + j] += size * rows[static_cast<size_t>(i)] * columns[static_cast<size_t>(j)] /
                            static_cast<float>(1 + r * r);
        }
      }
    }
    for (int i = 0; i < 128 * 128 && rank > 1; ++i) m[i] += size * 0.02f * normal(random);
  }
  std::vector<int32_t> all_slots(slots), positions(slots, 3), statuses(slots);
  for (int i = 0; i < slots; ++i) all_slots[static_cast<size_t>(i)] = i;
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  leapquant_transfer_args incoming = LEAPQUANT_INIT(leapquant_transfer_args);
  incoming.batch = slots;
  incoming.state_slots = all_slots.data();
  incoming.positions = positions.data();
  incoming.matrices = matrices.data();
  incoming.status = statuses.data();
  reference::backend().import_states(layout, host.view, incoming, launch);
  std::fill(host.windows.begin(), host.windows.end(), std::byte{0x7f});  // NaN: never to be read

  std::vector<std::byte> device_states = host.states;
  reorder(layout, &device_states, slots, true);
  DeviceArray<std::byte> states(device_states), windows(host.windows);
  DeviceArray<int32_t> base(host.base), status(static_cast<size_t>(batch));
  DeviceArray<leapquant_health> health(host.health);
  leapquant_pool pool = host.view;
  pool.states = states.data;
  pool.windows = windows.data;
  pool.base = base.data;
  pool.health = health.data;

  const std::vector<int32_t> row_slots = {3, 0, -1, 1};
  DeviceArray<int32_t> device_slots(row_slots);
  std::vector<int32_t> at = {3, 3, 3, 3};
  double worst_output = 0.0, worst_record = 0.0, log_ratio = 0.0, worst_ratio = 0.0;
  int folds = 0, bad_status = 0;
  const int steps = c.tokens == 1 ? 36 : 14;
  std::vector<float> a_log(static_cast<size_t>(hv), -1.0f),
      dt_bias(static_cast<size_t>(vector ? hv * 128 : hv), 0.1f);
  DeviceArray<float> device_a(a_log), device_dt(dt_bias);
  for (int step = 0; step < steps; ++step) {
    const int T = c.tokens;
    const auto fill = [&](size_t n, auto draw) {
      std::vector<float> x(n);
      for (float& v : x) v = draw();
      return x;
    };
    const size_t rows = static_cast<size_t>(batch * T);
    std::vector<float> q = fill(rows * hk * 128, [&] { return normal(random); });
    std::vector<float> k = fill(rows * hk * 128, [&] { return normal(random); });
    std::vector<float> v = fill(rows * hv * 128, [&] { return normal(random); });
    std::vector<float> g = fill(rows * hv * (vector ? 128 : 1), [&] {
      if (c.raw_gates) return normal(random);
      const float x = static_cast<float>(c.decay_rate) * std::log(uniform(random) + 1e-3f) - 1e-4f;
      return std::min(x, 0.0f);
    });
    if (!c.raw_gates && step == 9) g[1] = -INFINITY;
    std::vector<float> beta = fill(rows * hv, [&] { return uniform(random); });
    const bool faulty = step == 5;
    if (faulty) v[static_cast<size_t>((1 * T) * hv * 128 + 77)] = NAN;  // row 1
    const auto qb = packed(q, c.type), kb = packed(k, c.type), vb = packed(v, c.type);
    const int gate_type = c.type == LEAPQUANT_BF16 && vector ? LEAPQUANT_BF16 : LEAPQUANT_FP32;
    const auto gb = packed(g, gate_type), bb = packed(beta, LEAPQUANT_FP32);
    std::vector<int32_t> counts(batch, T);
    if (T > 1) counts[3] = 1 + step % T;

    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = batch;
    args.tokens = T;
    args.inputs.q = {qb.data(), c.type, 0, 0, 0, 0};
    args.inputs.k = {kb.data(), c.type, 0, 0, 0, 0};
    args.inputs.v = {vb.data(), c.type, 0, 0, 0, 0};
    args.inputs.log_decay = {gb.data(), gate_type, 0, 0, 0, 0};
    args.inputs.beta = {bb.data(), LEAPQUANT_FP32, 0, 0, 0, 0};
    args.inputs.gate = c.raw_gates;
    args.inputs.a_log = a_log.data();
    args.inputs.dt_bias = dt_bias.data();
    args.inputs.lower_bound = -5.0f;
    args.inputs.beta_kind = c.raw_gates ? LEAPQUANT_BETA_SIGMOID : LEAPQUANT_BETA_READY;
    args.inputs.qk_l2norm = 1;
    args.inputs.q_scale = 0.0883883f;
    leapquant_decode_args device = args;
    DeviceArray<uint8_t> dq(qb), dk(kb), dv(vb), dg(gb), db(bb);
    DeviceArray<float> output(rows * hv * 128);
    REQUIRE(cudaMemset(output.data, 0xff, output.count * 4));
    DeviceArray<int32_t> device_at(at), device_counts(counts);
    device.inputs.q.data = dq.data;
    device.inputs.k.data = dk.data;
    device.inputs.v.data = dv.data;
    device.inputs.log_decay.data = dg.data;
    device.inputs.beta.data = db.data;
    device.inputs.a_log = device_a.data;
    device.inputs.dt_bias = device_dt.data;
    device.state_slots = device_slots.data;
    device.positions = device_at.data;
    device.num_tokens = device_counts.data;
    device.output.data = output.data;
    device.output.type = LEAPQUANT_FP32;
    device.status = status.data;
    cuda::Call128 call;
    if (!cuda::make_call_128(layout, pool, device, &call)) {
      std::printf("  call refused\n");
      return false;
    }
    REQUIRE(cuda::launch_fold_128(call, vector, 132, nullptr));
    REQUIRE(cuda::launch_decode_128(call, vector, warps, 7, overlaps, nullptr));
    REQUIRE(cudaDeviceSynchronize());

    // The oracle: old records, new boundary states.
    HostPool before = host;
    host.states = states.get();
    reorder(layout, &host.states, slots, false);
    host.windows = windows.get();
    host.base = base.get();
    host.health = health.get();
    host.bind();
    const std::vector<int32_t> got_status = status.get();
    HostPool oracle = before;
    oracle.states = host.states;
    oracle.base = host.base;
    oracle.bind();
    leapquant_decode_args on_host = args;
    on_host.state_slots = row_slots.data();
    on_host.positions = at.data();
    on_host.num_tokens = counts.data();
    std::vector<int32_t> want_status(batch);
    on_host.status = want_status.data();
    std::vector<double> want(output.count);
    reference::decode_fp64(layout, oracle.view, on_host, want.data());
    const std::vector<float> got_single = output.get();
    const std::vector<double> got(got_single.begin(), got_single.end());
    for (size_t r = 0; r < static_cast<size_t>(batch); ++r) {
      if (got_status[r] != want_status[r]) ++bad_status;
    }
    for (size_t r = 0; r < rows * static_cast<size_t>(hv); ++r) {
      double norm;
      const double d = difference(&got[r * 128], &want[r * 128], 128, &norm);
      const double relative = norm > 0.0 ? d / norm : d;
      worst_output = std::isfinite(relative) ? std::max(worst_output, relative) : 1e9;
    }
    for (size_t i = 0; i + 3 < host.windows.size() && layout.window.decay_bytes != 0; i += 4) {
      if (static_cast<int64_t>(i) % layout.window.bytes < layout.window.log_decays) continue;
      for (int part = 0; part < 4 / layout.window.decay_bytes; ++part) {
        uint32_t x = 0, y = 0;
        const size_t place = i + static_cast<size_t>(2 * part);
        std::memcpy(&x, &host.windows[place], static_cast<size_t>(layout.window.decay_bytes));
        std::memcpy(&y, &oracle.windows[place], static_cast<size_t>(layout.window.decay_bytes));
        if (x == y) continue;
        const bool half = layout.window.decay_bytes == 2;
        const float a = half ? fp16_to_float(static_cast<uint16_t>(x)) : std::bit_cast<float>(x);
        const float b = half ? fp16_to_float(static_cast<uint16_t>(y)) : std::bit_cast<float>(y);
        const double d = std::fabs(a - b) / (1e-3 + std::fabs(b));
        worst_record = std::isfinite(d) ? std::max(worst_record, d) : 1e9;
      }
    }
    for (size_t i = 0; i + 1 < host.windows.size(); i += 2) {
      uint16_t x, y;
      std::memcpy(&x, &host.windows[i], 2);
      std::memcpy(&y, &oracle.windows[i], 2);
      if (x == y || static_cast<int64_t>(i) % layout.window.bytes >= layout.window.log_decays) {
        continue;
      }
      const double d =
          std::fabs(fp16_to_float(x) - fp16_to_float(y)) / (1e-3 + std::fabs(fp16_to_float(y)));
      worst_record = std::isfinite(d) ? std::max(worst_record, d) : 1e9;
    }
    for (size_t r = 0; r < row_slots.size(); ++r) {
      if (row_slots[r] < 0) continue;
      for (int h = 0; h < hv; ++h) {
        const int32_t was = base_of(layout, before.view, row_slots[r], h);
        const int32_t now = base_of(layout, host.view, row_slots[r], h);
        int32_t expect = last_boundary(at[r], layout.head_boundary[static_cast<size_t>(h)],
                                       layout.window_tokens);
        expect = std::max(expect, was);
        if (want_status[r] != LEAPQUANT_OK) expect = was;
        if (now != expect) ++bad_status;
        if (now == was) continue;
        const std::vector<double> exact =
            reference::rebuild(layout, before.view, row_slots[r], row_slots[r], h, now);
        HostPool folded = before;
        reference::fold_head(layout, folded.view, row_slots[r], row_slots[r], row_slots[r], h, now);
        const BoundaryLayout& b = layout.head(h);
        const auto mine =
            reference::decode_boundary(b, boundary_state(layout, host.view, row_slots[r], h));
        const auto theirs =
            reference::decode_boundary(b, boundary_state(layout, folded.view, row_slots[r], h));
        double norm;
        const double a = difference(mine.data(), exact.data(), exact.size(), &norm);
        const double o = difference(theirs.data(), exact.data(), exact.size(), &norm);
        // Nearly exact folds (rank-one heads) are judged by the state's size.
        if (a <= 1e-3 * norm && o <= 1e-4 * norm) continue;
        ++folds;
        const double ratio = a / o;
        log_ratio += std::log(ratio);
        worst_ratio = std::max(worst_ratio, ratio);
      }
    }
    for (size_t r = 0; r < at.size(); ++r) {
      if (want_status[r] == LEAPQUANT_OK) at[r] += T > 1 ? std::max(1, counts[r] - step % 2) : 1;
    }
  }
  const double mean = folds > 0 ? std::exp(log_ratio / folds) : 1.0;
  const bool good = worst_output < 1e-4 && worst_record < 2e-3 && bad_status == 0 && mean < 1.01 &&
                    worst_ratio < 1.05;
  std::printf(
      "%-4s %-22s warps %d%s: output %.2e record %.2e folds %d ratio %.4f worst %.4f "
      "status faults %d\n",
      good ? "ok" : "BAD", c.name, warps, stagger ? " staggered" : "", worst_output, worst_record,
      folds, mean, worst_ratio, bad_status);
  return good;
}

int check() {
  const int S = LEAPQUANT_DECAY_SCALAR, V = LEAPQUANT_DECAY_VECTOR;
  const int B = LEAPQUANT_BF16, H = LEAPQUANT_FP16, F = LEAPQUANT_FP32;
  const Case cases[] = {
      {"gdn int8", "int8", S, 4, 4, 1, B, 0, 0, 0.05},
      {"gdn int8 fp32 grouped", "int8", S, 2, 4, 1, F, 0, 0, 0.05},
      {"gdn int6 raw", "int6", S, 4, 4, 1, H, 1, 0, 0.05},
      {"gdn int4", "int4", S, 4, 4, 1, B, 0, 0, 0.3},
      {"gdn int8+", "int8+", S, 4, 4, 1, B, 0, 0, 0.05},
      {"gdn int6+", "int6+", S, 4, 4, 1, B, 0, 0, 0.05},
      {"gdn int4+ int4-compact", "int4+,int4-compact", S, 4, 4, 1, B, 0, 0, 0.05},
      {"kda int8", "int8", V, 4, 4, 1, B, 0, 0, 0.05},
      {"kda int8 half decays", "int8", V, 2, 4, 1, F, 0, 1, 1.0},
      {"kda int6 raw", "int6", V, 4, 4, 1, F, 2, 0, 0.05},
      {"gdn int8 T 4", "int8", S, 2, 4, 4, B, 0, 0, 0.05},
      {"kda int8 T 3", "int8", V, 4, 4, 3, B, 0, 0, 0.05},
  };
  bool good = true;
  int index = 0;
  for (const Case& c : cases) {
    const int warps = index % 3 == 0 ? 1 : index % 3 == 1 ? 2 : 4;
    good = check_case(c, index % 2 == 0, warps, index % 2 == 1) && good;
    ++index;
  }
  good = check_case(cases[0], true, 4, true) && good;
  return good ? 0 : 1;
}

// ---- Timing ----

__global__ void advance(int32_t* positions, int32_t count, int32_t by) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) positions[i] += by;
}

// Copies slot 0 of a pool to all slots: the same bytes everywhere, real codes.
__global__ void spread(uint4* states, int64_t slot_words, int64_t words) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (i >= slot_words) states[i] = states[i % slot_words];
  }
}

double copy_bandwidth() {
  const size_t bytes = size_t{2} << 30;
  DeviceArray<uint8_t> from(bytes), to(bytes);
  REQUIRE(cudaMemset(from.data, 0x5a, bytes));
  cudaEvent_t a, b;
  REQUIRE(cudaEventCreate(&a));
  REQUIRE(cudaEventCreate(&b));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    REQUIRE(cudaEventRecord(a));
    REQUIRE(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice));
    REQUIRE(cudaEventRecord(b));
    REQUIRE(cudaEventSynchronize(b));
    float ms;
    REQUIRE(cudaEventElapsedTime(&ms, a, b));
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return 2.0 * static_cast<double>(bytes) / (times[4] * 1e-3) / 1e9;
}

// Blocks of the fold per multiprocessor, for experiments.
int fold_blocks() {
  const char* text = std::getenv("FOLD_BLOCKS");
  return text != nullptr ? std::atoi(text) : 2;
}

struct Row {
  const char* state;
  int decay, half_decays, batch, tokens;
  bool stagger;
  int warps, per_processor;  // 0: the library's own choice
  bool overlaps, folds;      // folds = false: decode alone, boundaries ignored (for analysis)
};

double time_row(const Row& row, double copy, std::FILE* out) {
  const Case c = {row.state,      row.state, row.decay,       32,  32, row.tokens,
                  LEAPQUANT_BF16, 0,         row.half_decays, 0.05};
  const Layout layout = layout_of(c, row.stagger);
  const bool vector = row.decay == LEAPQUANT_DECAY_VECTOR;
  const int hv = 32;
  const int64_t set_bytes = (layout.state_bytes + layout.window.bytes) * row.batch;
  const int sets = static_cast<int>(std::clamp<int64_t>((int64_t{240} << 20) / set_bytes, 1, 256));
  const int slots = sets * row.batch;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;

  // One head is encoded on the host; all heads of all slots are copies of its bytes.
  Case one = c;
  one.k_heads = one.v_heads = 1;
  const Layout head_layout = layout_of(one, row.stagger);
  HostPool seed(head_layout, 1);
  std::vector<float> matrix(128 * 128);
  for (float& x : matrix) x = 0.1f * normal(random);
  std::vector<int32_t> zero = {0}, status(1);
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  leapquant_transfer_args incoming = LEAPQUANT_INIT(leapquant_transfer_args);
  incoming.batch = 1;
  incoming.state_slots = zero.data();
  incoming.positions = zero.data();
  incoming.matrices = matrix.data();
  incoming.status = status.data();
  reference::backend().import_states(head_layout, seed.view, incoming, launch);
  reorder(head_layout, &seed.states, 1, true);
  DeviceArray<std::byte> states(static_cast<size_t>(layout.state_bytes) * slots);
  DeviceArray<std::byte> windows(static_cast<size_t>(layout.window.bytes) * slots);
  REQUIRE(cudaMemset(windows.data, 0, windows.count));
  REQUIRE(cudaMemcpy(states.data, seed.states.data(), seed.states.size(), cudaMemcpyHostToDevice));
  spread<<<1024, 256>>>(reinterpret_cast<uint4*>(states.data), head_layout.state_bytes / 16,
                        layout.state_bytes / 16 * slots);
  DeviceArray<int32_t> base(static_cast<size_t>(slots) * hv);
  REQUIRE(cudaMemset(base.data, 0, base.count * 4));
  DeviceArray<leapquant_health> health(base.count);
  REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));

  const size_t rows = static_cast<size_t>(row.batch) * row.tokens;
  const auto draw = [&](size_t n, float scale, float shift) {
    std::vector<float> x(n);
    for (float& v : x) v = scale * normal(random) + shift;
    return packed(x, LEAPQUANT_BF16);
  };
  std::vector<float> g(rows * hv * (vector ? 128 : 1)), beta(rows * hv, 0.5f);
  for (float& x : g) x = -std::fabs(0.05f * normal(random));
  DeviceArray<uint8_t> q(draw(rows * hv * 128, 1.0f, 0.0f)), k(draw(rows * hv * 128, 1.0f, 0.0f)),
      v(draw(rows * hv * 128, 1.0f, 0.0f)),
      decay(packed(g, vector ? LEAPQUANT_BF16 : LEAPQUANT_FP32)),
      step(packed(beta, LEAPQUANT_FP32)), output(rows * hv * 128 * 2);
  std::vector<int32_t> slot_list(static_cast<size_t>(slots));
  for (int i = 0; i < slots; ++i) slot_list[static_cast<size_t>(i)] = i;
  DeviceArray<int32_t> device_slots(slot_list), device_status(static_cast<size_t>(row.batch));
  const int phases = 16 / row.tokens;
  std::vector<int32_t> at(static_cast<size_t>(phases * row.batch));
  for (int p = 0; p < phases; ++p) {
    for (int i = 0; i < row.batch; ++i) {
      at[static_cast<size_t>(p * row.batch + i)] = p * row.tokens;
    }
  }
  DeviceArray<int32_t> positions(at);

  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  pool.num_state_slots = pool.num_window_slots = slots;
  pool.states = states.data;
  pool.windows = windows.data;
  pool.state_stride_bytes = layout.state_bytes;
  pool.window_stride_bytes = layout.window.bytes;
  pool.base = base.data;
  pool.health = health.data;
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = row.batch;
  args.tokens = row.tokens;
  args.inputs.q = {q.data, LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.k = {k.data, LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.v = {v.data, LEAPQUANT_BF16, 0, 0, 0, 0};
  args.inputs.log_decay = {decay.data, vector ? LEAPQUANT_BF16 : LEAPQUANT_FP32, 0, 0, 0, 0};
  args.inputs.beta = {step.data, LEAPQUANT_FP32, 0, 0, 0, 0};
  args.inputs.qk_l2norm = 1;
  args.inputs.q_scale = 0.0883883f;
  args.output.data = output.data;
  args.output.type = LEAPQUANT_BF16;
  args.status = device_status.data;

  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  std::vector<cudaGraphExec_t> graphs;
  for (int p = 0; p < phases; ++p) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int s = 0; s < sets; ++s) {
      args.state_slots = device_slots.data + s * row.batch;
      args.positions = positions.data + p * row.batch;
      cuda::Call128 call;
      if (!cuda::make_call_128(layout, pool, args, &call)) std::exit(1);
      if (row.warps == 0) {
        REQUIRE(cuda::decode_128(layout, call, stream));
      } else {
        if (row.folds) REQUIRE(cuda::launch_fold_128(call, vector, 132 * fold_blocks(), stream));
        if (row.per_processor == 0) continue;  // folds alone
        REQUIRE(cuda::launch_decode_128(call, vector, row.warps, 132 * row.per_processor,
                                        row.overlaps && row.folds, stream));
      }
    }
    if (row.folds) {
      advance<<<(row.batch + 255) / 256, 256, 0, stream>>>(positions.data + p * row.batch,
                                                           row.batch, 16);
    }
    cudaGraph_t graph;
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE(cudaGraphDestroy(graph));
    graphs.push_back(exec);
  }
  const int repeats = row.batch >= 512 ? 7 : 9;
  std::vector<cudaEvent_t> events(static_cast<size_t>(phases) + 1);
  for (auto& e : events) REQUIRE(cudaEventCreate(&e));
  std::vector<std::vector<float>> times(static_cast<size_t>(phases));
  for (int r = 0; r < repeats + 2; ++r) {
    for (int p = 0; p < phases; ++p) {
      REQUIRE(cudaEventRecord(events[static_cast<size_t>(p)], stream));
      REQUIRE(cudaGraphLaunch(graphs[static_cast<size_t>(p)], stream));
    }
    REQUIRE(cudaEventRecord(events.back(), stream));
    REQUIRE(cudaStreamSynchronize(stream));
    for (int p = 0; p < phases && r >= 2; ++p) {
      float ms;
      REQUIRE(cudaEventElapsedTime(&ms, events[static_cast<size_t>(p)],
                                   events[static_cast<size_t>(p) + 1]));
      times[static_cast<size_t>(p)].push_back(ms * 1e3f / static_cast<float>(sets));
    }
  }
  double mean = 0.0, fastest = 1e30, slowest = 0.0;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    const double median = t[t.size() / 2];
    mean += median / phases;
    fastest = std::min(fastest, median);
    slowest = std::max(slowest, median);
  }
  int faults = 0;
  for (const int32_t s : device_status.get()) faults += s != LEAPQUANT_OK;
  if (faults != 0) std::printf("  %d faulty sequences\n", faults);
  const double record = 512.0 + layout.window.decay_count * layout.window.decay_bytes;
  const double head = static_cast<double>(layout.state_bytes) / hv;
  const double bytes = row.batch * hv *
                       (head * (1.0 + row.tokens / 16.0) + 8.5 * record +
                        row.tokens * (record + 4 * 256.0 + (vector ? 256.0 : 4.0) + 4.0));
  const double rate = bytes / (mean * 1e-6) / 1e9;
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"family\":\"%s\",\"state\":\"%s\",\"rank\":%d,\"window\":16,\"heads\":32,"
                "\"batch\":%d,\"tokens\":%d,\"schedule\":\"%s\",\"us\":%.2f,\"bytes\":%.0f,"
                "\"gb_per_s\":%.0f,\"copy_share\":%.3f,\"peer\":false,\"slowest_us\":%.2f,"
                "\"fastest_us\":%.2f,\"decays\":\"%s\",\"variant\":\"%d/%d%s%s\"}",
                vector ? "kda" : "gdn", row.state, layout.classes[0].rank, row.batch, row.tokens,
                row.stagger ? "staggered" : "aligned", mean, bytes, rate, rate / copy, slowest,
                fastest, row.half_decays ? "fp16" : "fp32", row.warps, row.per_processor,
                row.overlaps ? "" : " serial", row.folds ? "" : " nofold");
  std::printf("%s\n", line);
  std::fflush(stdout);
  if (out != nullptr) std::fprintf(out, "%s\n", line);
  for (auto& graph : graphs) REQUIRE(cudaGraphExecDestroy(graph));
  for (auto& e : events) REQUIRE(cudaEventDestroy(e));
  REQUIRE(cudaStreamDestroy(stream));
  return mean;
}

int time_all(const char* path, const char* which) {
  std::FILE* out = path != nullptr ? std::fopen(path, "w") : nullptr;
  const double copy = copy_bandwidth();
  std::printf("copy %.0f GB/s\n", copy);
  const int S = LEAPQUANT_DECAY_SCALAR, V = LEAPQUANT_DECAY_VECTOR;
  std::vector<Row> rows;
  const std::string w = which;
  if (w == "shape" || w == "all") {
    rows = {
        {"int8", S, 0, 512, 1, false, 1, 7, false, false},
        {"int8", S, 0, 512, 1, false, 2, 7, false, false},
        {"int8", S, 0, 512, 1, false, 4, 3, false, false},
        {"int8", S, 0, 512, 1, true, 2, 0, false, true},
        {"int8", S, 0, 512, 1, true, 2, 7, false, true},
    };
  }
  if (w == "table" || w == "all") {
    for (const char* state : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact"}) {
      rows.push_back({state, S, 0, 512, 1, true, 0, 0, true, true});
    }
    rows.push_back({"int8", V, 1, 512, 1, true, 0, 0, true, true});
    rows.push_back({"int8", V, 0, 512, 1, true, 0, 0, true, true});
    for (int batch : {64, 256, 1024}) {
      rows.push_back({"int8", S, 0, batch, 1, true, 0, 0, true, true});
    }
    for (int batch : {1, 8}) rows.push_back({"int8", S, 0, batch, 1, false, 0, 0, true, true});
    rows.push_back({"int8:r=8", S, 0, 512, 1, true, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 512, 1, false, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 128, 1, true, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 128, 4, true, 0, 0, true, true});
  }
  for (const Row& row : rows) time_row(row, copy, out);
  if (out != nullptr) std::fclose(out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "check") == 0) return check();
  if (argc >= 3 && std::strcmp(argv[1], "time") == 0) {
    return time_all(argv[2], argc >= 4 ? argv[3] : "all");
  }
  std::fprintf(stderr, "usage: decode_128 check | time ROWS.JSONL [shape | table | all]\n");
  return 2;
}
