// SPDX-License-Identifier: Apache-2.0
//
// One prefill call of heads of 128 x 128 on the device, and the same recurrence token by token in
// FP64, also on the device: what prefill.cu checks and times.
#pragma once

#include "cuda/backend.h"
#include "cuda/numbers.cuh"
#include "decode_case.cuh"

namespace leapquant::bench {

struct PrefillCase {
  const char* name;
  const char* format;
  int decay;
  int k_heads, v_heads;
  std::vector<int> lengths;
  int type;      // of q, k, v
  float rate;    // largest decay of a token
  float common;  // what all keys share, against random parts of 1
  bool delta = true;
  bool bf16_gates = false;
};

// `count` numbers, which repeat after some 2^18: drawing a hundred million takes the host too long.
inline std::vector<uint8_t> drawn(size_t count, int type, uint64_t seed,
                                  float (*shape)(float, float), float parameter) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(std::min(count, (size_t{1} << 18) + 128));
  for (float& value : x) value = shape(normal(random), parameter);
  std::vector<uint8_t> bytes = packed(x, type);
  const size_t period = bytes.size();
  bytes.resize(count * (type == LEAPQUANT_FP32 ? 4 : 2));
  for (size_t i = period; i < bytes.size(); ++i) bytes[i] = bytes[i - period];
  return bytes;
}

inline Layout prefill_layout(const PrefillCase& c) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = c.k_heads;
  shape.num_v_heads = c.v_heads;
  shape.head_k_dim = shape.head_v_dim = 128;
  shape.decay = c.decay;
  shape.delta_rule = c.delta ? 1 : 0;
  shape.max_tokens = 1;
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  Sentence sentence;
  Layout layout;
  if (parse_format(c.format, &format, &sentence) != LEAPQUANT_OK ||
      make_layout(shape, &format, 1, nullptr, &layout, &sentence) != LEAPQUANT_OK) {
    std::fprintf(stderr, "no layout for %s\n", c.name);
    std::exit(1);
  }
  return layout;
}

// A layer, its slots and tokens, from zero states.
struct PrefillRun {
  const PrefillCase c;
  const Layout layout;
  const int batch;
  std::vector<int32_t> offsets;
  const size_t tokens;
  const int gate_type;
  DeviceArray<std::byte> states, windows, workspace;
  DeviceArray<int32_t> base, status, slots, zeros, offset_list;
  DeviceArray<leapquant_health> health;
  DeviceArray<uint8_t> q, k, v, gates;
  DeviceArray<float> beta;
  DeviceArray<uint8_t> output;
  leapquant_pool pool;
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);

  static std::vector<int32_t> offsets_of(const std::vector<int>& lengths) {
    std::vector<int32_t> result = {0};
    for (const int length : lengths) result.push_back(result.back() + length);
    return result;
  }
  static std::vector<int32_t> first_slots(int count) {
    std::vector<int32_t> result;
    for (int i = 0; i < count; ++i) result.push_back(i);
    return result;
  }
  static std::vector<float> steps_of(size_t count) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform;
    std::vector<float> steps(count);
    for (float& x : steps) x = uniform(random);
    return steps;
  }
  size_t rows(int heads) const { return tokens * static_cast<size_t>(heads); }

  PrefillRun(const PrefillCase& given, int output_type)
      : c(given),
        layout(prefill_layout(given)),
        batch(static_cast<int>(given.lengths.size())),
        offsets(offsets_of(given.lengths)),
        tokens(static_cast<size_t>(offsets.back())),
        gate_type(given.bf16_gates ? LEAPQUANT_BF16 : LEAPQUANT_FP32),
        states(static_cast<size_t>(layout.state_bytes * batch)),
        windows(static_cast<size_t>(layout.window.bytes * batch)),
        workspace(cuda::general_backend().workspace_per_worker(layout) + 64 +
                  static_cast<size_t>(batch) *
                      cuda::general_backend().workspace_per_sequence(layout)),
        base(static_cast<size_t>(batch * given.v_heads)),
        status(static_cast<size_t>(batch)),
        slots(first_slots(batch)),
        zeros(std::vector<int32_t>(static_cast<size_t>(batch), 0)),
        offset_list(offsets),
        health(base.count),
        q(drawn(
            rows(given.k_heads) * 128, given.type, 1,
            [](float x, float common) { return common + x; }, 0.0f)),
        k(drawn(
            rows(given.k_heads) * 128, given.type, 2,
            [](float x, float common) { return common + x; }, given.common)),
        v(drawn(
            rows(given.v_heads) * 128, given.type, 3,
            [](float x, float common) { return common + x; }, 0.0f)),
        gates(drawn(
            rows(given.v_heads) * (given.decay == LEAPQUANT_DECAY_VECTOR ? 128 : 1), gate_type, 4,
            [](float x, float rate) { return -rate * (0.5f + 0.5f * std::erf(x)); }, given.rate)),
        beta(steps_of(rows(given.v_heads))),
        output(rows(given.v_heads) * 128 * (output_type == LEAPQUANT_FP32 ? 4 : 2)),
        pool(pool_of(layout, batch, states, windows, base, health)) {
    REQUIRE(cudaMemset(windows.data, 0, windows.count));
    REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));
    REQUIRE(cudaMemset(output.data, 0xff, output.count));
    REQUIRE(cudaMemset(states.data, 0, states.count));
    reset(nullptr);
    launch.workspace = workspace.data;
    launch.workspace_bytes = workspace.count;
    args.batch = batch;
    args.state_slots = slots.data;
    args.positions = zeros.data;
    args.token_offsets = offset_list.data;
    args.inputs.q = {q.data, c.type, 0, 0, 0, 0};
    args.inputs.k = {k.data, c.type, 0, 0, 0, 0};
    args.inputs.v = {v.data, c.type, 0, 0, 0, 0};
    if (c.decay != LEAPQUANT_DECAY_NONE)
      args.inputs.log_decay = {gates.data, gate_type, 0, 0, 0, 0};
    args.inputs.beta = {beta.data, LEAPQUANT_FP32, 0, 0, 0, 0};
    args.inputs.qk_l2norm = 1;
    args.inputs.q_scale = 0.0883883f;
    args.output.data = output.data;
    args.output.type = output_type;
    args.status = status.data;
    REQUIRE(cudaDeviceSynchronize());
  }
  // Bases to zero: the slots' states then stand for the start.
  void reset(cudaStream_t stream) {
    REQUIRE(cudaMemsetAsync(base.data, 0, base.count * 4, stream));
  }
  void prefill(cudaStream_t stream) {
    launch.stream = stream;
    if (cuda::general_backend().prefill(layout, pool, args, launch) != LEAPQUANT_OK) {
      std::fprintf(stderr, "prefill refused: %s\n", c.name);
      std::exit(1);
    }
  }
  int faults() const {
    int count = 0;
    for (const int32_t s : status.get()) count += s != LEAPQUANT_OK;
    return count;
  }
};

// ---- The recurrence in FP64 ----

struct ExactCall {
  const char *q, *k, *v, *gates;
  const float* beta;
  const int32_t* offsets;
  double* outputs;  // [token][head][128]
  double* states;   // [sequence][head][128][128]
  int type, gate_type, decay, k_heads, v_heads, delta;
};

__device__ inline double exact_number(const char* data, int type, size_t i) {
  if (type == LEAPQUANT_FP32) return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
  const uint16_t half = reinterpret_cast<const uint16_t*>(data)[i];
  return static_cast<double>(type == LEAPQUANT_BF16 ? cuda::bf16_value(half)
                                                    : cuda::fp16_value(half));
}

// A block has a head of a sequence, a thread a column of its state in shared memory.
__global__ void exact_kernel(const ExactCall call) {
  extern __shared__ double state[];
  __shared__ double key[128], query[128], decay[128];
  const size_t j = threadIdx.x;
  const auto v_heads = static_cast<size_t>(call.v_heads);
  const auto k_heads = static_cast<size_t>(call.k_heads);
  const size_t head = blockIdx.x;
  const size_t k_head = head / (v_heads / k_heads);
  for (size_t i = 0; i < 128; ++i) state[i * 128 + j] = 0.0;
  for (auto t = static_cast<size_t>(call.offsets[blockIdx.y]);
       t < static_cast<size_t>(call.offsets[blockIdx.y + 1]); ++t) {
    __syncthreads();
    key[j] = exact_number(call.k, call.type, (t * k_heads + k_head) * 128 + j);
    query[j] = exact_number(call.q, call.type, (t * k_heads + k_head) * 128 + j);
    const size_t row = t * v_heads + head;
    const bool vector = call.decay == LEAPQUANT_DECAY_VECTOR;
    decay[j] = call.decay == LEAPQUANT_DECAY_NONE
                   ? 1.0
                   : exp(exact_number(call.gates, call.gate_type, vector ? row * 128 + j : row));
    __syncthreads();
    double kk = 1e-6;
    double qq = 1e-6;
    double found = 0.0;
    for (size_t i = 0; i < 128; ++i) {
      kk += key[i] * key[i];
      qq += query[i] * query[i];
      state[i * 128 + j] *= decay[i];
      found += key[i] * state[i * 128 + j];
    }
    const double k_root = sqrt(kk);
    const double value = exact_number(call.v, call.type, row * 128 + j);
    const double u =
        static_cast<double>(call.beta[row]) * (call.delta != 0 ? value - found / k_root : value);
    double out = 0.0;
    for (size_t i = 0; i < 128; ++i) {
      state[i * 128 + j] += key[i] / k_root * u;
      out += query[i] * state[i * 128 + j];
    }
    call.outputs[row * 128 + j] = out / sqrt(qq) * static_cast<double>(0.0883883f);
  }
  double* end = call.states + (blockIdx.y * v_heads + head) * 128 * 128;
  for (size_t i = 0; i < 128; ++i) end[i * 128 + j] = state[i * 128 + j];
}

inline void run_exact(const PrefillRun& run, DeviceArray<double>* outputs,
                      DeviceArray<double>* states) {
  const ExactCall call = {reinterpret_cast<const char*>(run.q.data),
                          reinterpret_cast<const char*>(run.k.data),
                          reinterpret_cast<const char*>(run.v.data),
                          reinterpret_cast<const char*>(run.gates.data),
                          run.beta.data,
                          run.offset_list.data,
                          outputs->data,
                          states->data,
                          run.c.type,
                          run.gate_type,
                          run.c.decay,
                          run.c.k_heads,
                          run.c.v_heads,
                          run.c.delta ? 1 : 0};
  constexpr int kBytes = 128 * 128 * 8;
  REQUIRE(cudaFuncSetAttribute(exact_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>(run.c.v_heads), static_cast<unsigned>(run.batch));
  exact_kernel<<<grid, 128, kBytes>>>(call);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaDeviceSynchronize());
}

}  // namespace leapquant::bench
