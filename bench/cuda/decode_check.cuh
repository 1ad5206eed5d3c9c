// SPDX-License-Identifier: Apache-2.0
//
// Decode and fold step by step against the FP64 reference. Every step starts from the device's own
// bytes, so that only this step's error counts: outputs, records, bases, statuses and the decoded
// state of what was folded.
#pragma once

#include "decode_case.cuh"

namespace leapquant::bench {

// One case: every step starts from the device's own bytes.
inline bool check_case(const Case& c, bool stagger, int pairs, bool overlaps) {
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
  int folds = 0, bad_status = 0, bad_bits = 0;
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
    // Now and then the same call under other splits first: the bits must not change.
    std::vector<std::byte> first_states, first_windows;
    std::vector<float> first_output;
    if (step % 6 == 2) {
      const auto old_states = states.get();
      const auto old_windows = windows.get();
      const auto old_base = base.get();
      const auto old_health = health.get();
      for (int other = 1; other <= 2; other *= 2) {
        call.checked = 0;
        if (other == 1) REQUIRE(cuda::launch_check_128(&call, vector, nullptr));
        REQUIRE(cuda::launch_fold_128(call, vector, other == 2 ? 3 : 48, other != 2, nullptr));
        REQUIRE(cuda::launch_decode_128(call, vector, other, other == 2 ? 16 : 5, true, other == 2,
                                        nullptr));
        REQUIRE(cudaDeviceSynchronize());
        const auto new_states = states.get();
        const auto new_windows = windows.get();
        const auto new_output = output.get();
        if (other == 1) {
          first_states = new_states;
          first_windows = new_windows;
          first_output = new_output;
        }
        if (new_states != first_states || new_windows != first_windows ||
            std::memcmp(new_output.data(), first_output.data(), 4 * new_output.size()) != 0) {
          ++bad_bits;
        }
        states.put(old_states);
        windows.put(old_windows);
        base.put(old_base);
        health.put(old_health);
      }
    }
    call.checked = 0;
    if (pairs == 1) REQUIRE(cuda::launch_check_128(&call, vector, nullptr));
    REQUIRE(cuda::launch_fold_128(call, vector, 132, false, nullptr));
    REQUIRE(cuda::launch_decode_128(call, vector, pairs, 7, overlaps, false, nullptr));
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
    double row_largest = 0.0;
    for (size_t i = 0; i + 1 < host.windows.size(); i += 2) {
      uint16_t x, y;
      if (static_cast<int64_t>(i) % layout.window.bytes % 256 == 0) {  // rows of 128 entries
        row_largest = 0.0;
        for (size_t j = i; j < std::min(i + 256, host.windows.size()); j += 2) {
          std::memcpy(&y, &oracle.windows[j], 2);
          const double entry = std::fabs(fp16_to_float(y));
          if (std::isfinite(entry)) row_largest = std::max(row_largest, entry);
        }
      }
      std::memcpy(&x, &host.windows[i], 2);
      std::memcpy(&y, &oracle.windows[i], 2);
      if (x == y || static_cast<int64_t>(i) % layout.window.bytes >= layout.window.log_decays) {
        continue;
      }
      // What a record's small entries are left of was as large as its largest: FP32 rounding of
      // that counts. And an earlier record of the same call that rounds the other way, 2^-11 of it,
      // moves what later ones leave: of a difference of numbers near one.
      const double least = (T > 1 ? 0.1 : 1e-3) * std::max(1.0, row_largest);
      const double d =
          std::fabs(fp16_to_float(x) - fp16_to_float(y)) / (least + std::fabs(fp16_to_float(y)));
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
  const bool good = worst_output < 1e-4 && worst_record < 2e-3 && bad_status == 0 &&
                    bad_bits == 0 && mean < 1.01 && worst_ratio < 1.05;
  std::printf(
      "%-4s %-22s pairs %d%s: output %.2e record %.2e folds %d ratio %.4f worst %.4f "
      "status faults %d, splits that differ %d\n",
      good ? "ok" : "BAD", c.name, pairs, stagger ? " staggered" : "", worst_output, worst_record,
      folds, mean, worst_ratio, bad_status, bad_bits);
  std::fflush(stdout);
  return good;
}

inline int check() {
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
    const int pairs = 1 + index % 2;
    good = check_case(c, index % 2 == 0, pairs, index % 2 == 1) && good;
    ++index;
  }
  good = check_case(cases[0], true, 2, true) && good;
  return good ? 0 : 1;
}

}  // namespace leapquant::bench
