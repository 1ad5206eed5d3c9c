// SPDX-License-Identifier: Apache-2.0
//
// The common call, compiled by itself, against the same call by the kernels of all calls, which
// decode_check.cuh judges: the same bits in states, windows, outputs and statuses, with padding,
// faults and sequences at different positions, with one pair of warps a head and with two.
#pragma once

#include "decode_case.cuh"

namespace leapquant::bench {

inline bool check_plain(const char* state, bool stagger, int k_heads, int decay, int tokens) {
  const int hv = 32;
  const int batch = 12;
  const Case c = {state, state, decay, k_heads, hv, tokens, LEAPQUANT_BF16, 0, 0, 0.05};
  const bool vector = decay == LEAPQUANT_DECAY_VECTOR;
  const size_t T = static_cast<size_t>(tokens);
  const Layout layout = layout_of(c, stagger);
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  const size_t slots = batch;
  std::vector<std::byte> bytes(static_cast<size_t>(layout.state_bytes) * slots);
  DeviceArray<std::byte> states(bytes);
  DeviceArray<std::byte> windows(static_cast<size_t>(layout.window.bytes) * slots);
  REQUIRE(cudaMemset(states.data, 0, states.count));
  REQUIRE(cudaMemset(windows.data, 0, windows.count));
  DeviceArray<int32_t> base(std::vector<int32_t>(slots * hv, 0));
  DeviceArray<leapquant_health> health(base.count);
  REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));
  std::vector<int32_t> rows(slots), at(slots), counts(slots, tokens);
  for (int i = 0; i < batch; ++i) rows[static_cast<size_t>(i)] = (i * 37) % batch;
  for (int i = 0; i < batch; ++i) at[static_cast<size_t>(i)] = 0;
  rows[5] = -1;
  DeviceArray<int32_t> device_rows(rows), device_at(at), status(slots), device_counts(counts);
  const leapquant_pool pool = pool_of(layout, batch, states, windows, base, health);
  DeviceArray<uint16_t> output(slots * T * hv * 128);
  int differ = 0, faulty = 0, served = 0;
  double size = 0.0;
  for (int step = 0; step < 40; ++step) {
    const auto draw = [&](size_t n, float scale) {
      std::vector<float> x(n);
      for (float& v : x) v = scale * normal(random);
      return x;
    };
    auto v = draw(slots * T * hv * 128, 1.0f);
    if (step % 7 == 3) v[static_cast<size_t>((step % batch) * tokens * hv * 128 + 99)] = NAN;
    std::vector<float> g = draw(slots * T * hv * (vector ? 128 : 1), 0.05f),
                       b(slots * T * hv, 0.5f);
    for (float& x : g) x = -std::fabs(x);
    DeviceArray<uint8_t> q(packed(draw(slots * T * k_heads * 128, 1.0f), LEAPQUANT_BF16));
    DeviceArray<uint8_t> k(packed(draw(slots * T * k_heads * 128, 1.0f), LEAPQUANT_BF16));
    DeviceArray<uint8_t> dv(packed(v, LEAPQUANT_BF16)), dg(packed(g, LEAPQUANT_FP32)),
        db(packed(b, LEAPQUANT_FP32));
    device_at.put(at);
    for (int i = 0; i < batch; ++i) {  // fewer tokens than the call has
      counts[static_cast<size_t>(i)] = 1 + (step + i) % tokens;
    }
    device_counts.put(counts);
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = batch;
    args.tokens = tokens;
    args.inputs.q = {q.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.k = {k.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.v = {dv.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.log_decay = {dg.data, LEAPQUANT_FP32, 0, 0, 0, 0};
    args.inputs.beta = {db.data, LEAPQUANT_FP32, 0, 0, 0, 0};
    args.inputs.qk_l2norm = 1;
    args.inputs.q_scale = 0.0883883f;
    args.output.data = output.data;
    args.output.type = LEAPQUANT_BF16;
    args.status = status.data;
    args.state_slots = device_rows.data;
    args.positions = device_at.data;
    args.num_tokens = device_counts.data;
    cuda::Call128 call;
    if (!cuda::make_call_128(layout, pool, args, &call)) std::exit(1);
    served += call.plain;
    const auto old_states = states.get();
    const auto old_windows = windows.get();
    const auto old_base = base.get();
    const auto run = [&](int32_t plain, int32_t pairs) {
      call.plain = plain;
      REQUIRE(cudaMemset(output.data, 0xff, output.count * 2));
      REQUIRE(cudaMemset(status.data, 0xff, status.count * 4));
      if (pairs == 0) {  // one launch
        REQUIRE(cuda::launch_small_128(call, nullptr));
        REQUIRE(cudaDeviceSynchronize());
        return;
      }
      const bool shares = step % 2 != 0;  // four blocks the check of a sequence
      call.checked = 0;
      if (pairs == 1) REQUIRE(cuda::launch_check_128(&call, vector, nullptr));
      REQUIRE(cuda::launch_fold_128(call, vector, 132, false, nullptr));
      REQUIRE(cuda::launch_decode_128(call, vector, pairs, shares ? 4 * batch : 29, true, shares,
                                      nullptr));
      REQUIRE(cudaDeviceSynchronize());
    };
    run(0, 1 + step / 2 % 2);
    const auto all_states = states.get();
    const auto all_windows = windows.get();
    const auto all_base = base.get();
    const auto all_output = output.get();
    const auto all_status = status.get();
    for (const int32_t pairs : {0, 1, 2}) {
      if (pairs == 0 && (tokens > 1 || vector)) continue;
      states.put(old_states);
      windows.put(old_windows);
      base.put(old_base);
      run(1, pairs);
      if (states.get() != all_states || windows.get() != all_windows || base.get() != all_base ||
          output.get() != all_output || status.get() != all_status) {
        ++differ;
      }
    }
    for (const uint16_t x : all_output) size += std::fabs(bf16_to_float(x));
    for (int i = 0; i < batch; ++i) {
      const bool good = all_status[static_cast<size_t>(i)] == LEAPQUANT_OK;
      if (!good) ++faulty;
      if (good && (step > 20 || (i + step) % 3 != 0))
        at[static_cast<size_t>(i)] += counts[static_cast<size_t>(i)];
    }
  }
  const bool good = differ == 0 && served == 40 && faulty >= 5 && std::isfinite(size) && size > 0.0;
  std::printf("%-4s plain %s%s%s T %d, %d key heads: steps that differ %d, faults %d, size %.3e\n",
              good ? "ok" : "BAD", state, vector ? " vector" : "", stagger ? " staggered" : "",
              tokens, k_heads, differ, faulty, size);
  std::fflush(stdout);
  return good;
}

}  // namespace leapquant::bench
