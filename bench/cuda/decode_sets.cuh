// SPDX-License-Identifier: Apache-2.0
//
// Sets of slots that timed decode calls go through: together past the second cache level, all heads
// from one encoded one, tokens of a window's calls.
#pragma once

#include "timing.cuh"
#include "tokens.cuh"

namespace leapquant::bench {

// Copies slot 0 of a pool to all slots: the same bytes everywhere, real codes.
__global__ void spread(uint4* states, int64_t slot_words, int64_t words) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (i >= slot_words) states[i] = states[i % slot_words];
  }
}

struct DecodeSets {
  Layout layout;
  bool vector;
  int v_heads, batch, tokens, phases;  // a phase's call decodes the next `tokens` of each sequence
  int sets;                            // of `batch` slots
  PhaseTokens inputs;
  DeviceArray<std::byte> states, windows;
  DeviceArray<int32_t> base;
  DeviceArray<leapquant_health> health;
  DeviceArray<__nv_bfloat16> output;
  DeviceArray<int32_t> slots, status;
  DeviceArray<int32_t> positions;  // [phases][batch], of the phase's next call
  leapquant_pool pool;
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);

  DecodeSets(const Case& c, bool stagger, int sequences, int most_sets)
      : layout(layout_of(c, stagger)),
        vector(c.decay == LEAPQUANT_DECAY_VECTOR),
        v_heads(c.v_heads),
        batch(sequences),
        tokens(c.tokens),
        phases(16 / c.tokens),
        sets(sets_of((layout.state_bytes + layout.window.bytes) * batch, most_sets)),
        inputs(phases, int64_t{batch} * tokens, c.k_heads, v_heads, vector),
        states(static_cast<size_t>(layout.state_bytes) * slots_in_all()),
        windows(static_cast<size_t>(layout.window.bytes) * slots_in_all()),
        base(slots_in_all() * static_cast<size_t>(v_heads)),
        health(base.count),
        output(static_cast<size_t>(batch) * tokens * v_heads * 128),
        slots(counted(slots_in_all())),
        status(static_cast<size_t>(batch)),
        positions(first_positions()),
        pool(pool_of(layout, sets * batch, states, windows, base, health)) {
    REQUIRE(cudaMemset(windows.data, 0, windows.count));
    REQUIRE(cudaMemset(base.data, 0, base.count * sizeof(int32_t)));
    REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));
    encode_states(c, stagger);
    args.batch = batch;
    args.tokens = tokens;
    args.inputs.qk_l2norm = 1;
    args.inputs.q_scale = 0.0883883f;
    args.output.data = output.data;
    args.output.type = LEAPQUANT_BF16;
    args.status = status.data;
  }

  // The call of a phase for a set.
  cuda::Call128 call(int phase, int set) {
    inputs.bind(phase, &args.inputs);
    args.state_slots = slots.data + set * batch;
    args.positions = positions.data + phase * batch;
    cuda::Call128 made;
    if (!cuda::make_call_128(layout, pool, args, &made)) {
      std::fprintf(stderr, "the kernels for 128 x 128 heads do not serve this call\n");
      std::exit(1);
    }
    return made;
  }
  // Moves a phase's positions on by a window.
  void advance_positions(int phase, cudaStream_t stream) {
    advance<<<(batch + 255) / 256, 256, 0, stream>>>(positions.data + phase * batch, batch, 16);
    REQUIRE(cudaGetLastError());
  }
  // Counts what must not be there: sequences that the last call or one more of every set finds
  // faulty, outputs of these that are not finite, heads that a fold ever met such entries in.
  int64_t count_wrong(cudaStream_t stream) {
    DeviceArray<unsigned long long> count(1);
    REQUIRE(cudaMemset(count.data, 0, sizeof(unsigned long long)));
    int64_t wrong = faulty();
    for (int set = 0; set < sets; ++set) {
      REQUIRE(cuda::decode_128(layout, call(0, set), stream));
      count_not_finite<<<256, 256, 0, stream>>>(output.data, static_cast<int64_t>(output.count),
                                                count.data);
      REQUIRE(cudaStreamSynchronize(stream));
      wrong += faulty();
    }
    for (const leapquant_health& head : health.get()) {
      wrong += (head.flags & LEAPQUANT_HEALTH_NON_FINITE) != 0;
    }
    return wrong + static_cast<int64_t>(count.get()[0]);
  }
  // What a call must move at least, folds shared out over the window.
  double bytes() const {
    const double record = 512.0 + layout.window.decay_count * layout.window.decay_bytes;
    const double head = static_cast<double>(layout.state_bytes) / v_heads;
    return batch * v_heads *
           (head * (1.0 + tokens / 16.0) + 8.5 * record +
            tokens * (record + 4 * 256.0 + (vector ? 256.0 : 4.0) + 4.0));
  }

 private:
  int64_t faulty() const {
    int64_t count = 0;
    for (const int32_t one : status.get()) count += one != LEAPQUANT_OK;
    return count;
  }
  size_t slots_in_all() const { return static_cast<size_t>(sets) * static_cast<size_t>(batch); }
  static std::vector<int32_t> counted(size_t count) {
    std::vector<int32_t> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<int32_t>(i);
    return numbers;
  }
  std::vector<int32_t> first_positions() const {
    std::vector<int32_t> at;
    for (int p = 0; p < phases; ++p) at.insert(at.end(), static_cast<size_t>(batch), p * tokens);
    return at;
  }
  // One head is encoded on the host; all heads of all slots are copies of its bytes.
  void encode_states(Case c, bool stagger) {
    c.k_heads = c.v_heads = 1;
    const Layout head = layout_of(c, stagger);
    HostPool seed(head, 1);
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> matrix(128 * 128);
    for (float& x : matrix) x = 0.1f * normal(random);
    std::vector<int32_t> zero = {0}, one_status(1);
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    leapquant_transfer_args incoming = LEAPQUANT_INIT(leapquant_transfer_args);
    incoming.batch = 1;
    incoming.state_slots = zero.data();
    incoming.positions = zero.data();
    incoming.matrices = matrix.data();
    incoming.status = one_status.data();
    reference::backend().import_states(head, seed.view, incoming, launch);
    reorder(head, &seed.states, 1, true);
    REQUIRE(
        cudaMemcpy(states.data, seed.states.data(), seed.states.size(), cudaMemcpyHostToDevice));
    spread<<<1024, 256>>>(reinterpret_cast<uint4*>(states.data), head.state_bytes / 16,
                          layout.state_bytes / 16 * static_cast<int64_t>(slots_in_all()));
    REQUIRE(cudaDeviceSynchronize());
  }
};

}  // namespace leapquant::bench
