// SPDX-License-Identifier: Apache-2.0
//
// The decode kernel for plain states of heads of 128 x 128: a block of 128 threads has a head, a
// thread one channel of its keys and values. The state arrives by one bulk copy and is read from
// shared memory; folds and per-step updates round it there and send it back by another.
#include "cuda/plain_head_128.cuh"
#include "cuda/state.cuh"
#include "cuda/token.cuh"

namespace leapquant::cuda {
namespace {

__device__ __forceinline__ float number_of(uint32_t raw, int32_t type) {
  if (type == LEAPQUANT_BF16) return bf16_value(static_cast<uint16_t>(raw));
  if (type == LEAPQUANT_FP16) return fp16_value(static_cast<uint16_t>(raw));
  return __uint_as_float(raw);
}

__device__ __forceinline__ uint32_t raw_number(const char* row, int32_t type, int32_t index) {
  const bool half = type != LEAPQUANT_FP32;
  return load_word_or_half(row + (half ? 2 : 4) * index, half);
}

// Last boundary of a head at or below `position`; serves_plain_128 keeps it in 32 bits.
__device__ __forceinline__ int32_t boundary_at(const Call& call, int32_t v_head, int32_t position) {
  const uint32_t window = static_cast<uint32_t>(call.window);
  const uint32_t k_head = static_cast<uint32_t>(call.first_k_head + v_head / call.group);
  const uint32_t offset =
      call.stagger != 0 ? k_head * window / static_cast<uint32_t>(call.total_k_heads) : 0u;
  const uint32_t beyond = static_cast<uint32_t>(position) + window - offset;
  return position - static_cast<int32_t>(beyond % window);
}

// A thread's numbers of a token as they lie, all loads in flight together.
struct RawToken {
  uint32_t q, k, v, beta, gate;
};

template <int kBits, bool kVector, bool kPerStep>
struct Decode {
  const Call& call;
  char* shared;
  PlainPlan plan;
  PlainState<kBits> state;
  int32_t thread, sequence, v_head, slot, window_slot, position, tokens;
  int32_t base = 0;
  Window window = {};
  char* boundary = nullptr;
  uint32_t flags = 0;
  Loss loss;

  __device__ __forceinline__ Decode(const Call& c, char* memory, int32_t item_sequence,
                                    int32_t item_head)
      : call(c),
        shared(memory),
        plan(plain_plan(kBits, kVector, kPerStep, c.ring_tokens)),
        thread(static_cast<int32_t>(threadIdx.x)),
        sequence(item_sequence),
        v_head(item_head) {
    state.state = memory + plan.state;
    state.warp = thread >> 5;
    state.lane = thread & 31;
  }

  template <typename T>
  __device__ __forceinline__ T* at(int32_t offset) const {
    return reinterpret_cast<T*>(shared + offset);
  }
  __device__ __forceinline__ uint32_t barrier(int32_t index) const {
    return shared_address(shared + plan.small) + 8u * static_cast<uint32_t>(index);
  }
  __device__ __forceinline__ float* warp_sums() const { return at<float>(plan.small + 16); }

  __device__ __forceinline__ RawToken load_raw(int32_t token) const {
    const Inputs& in = call.inputs;
    const int32_t k_head = v_head / call.group;
    RawToken raw = {};
    raw.q = raw_number(row_of(in.q, sequence, token, 0, k_head), in.q.type, thread);
    raw.k = raw_number(row_of(in.k, sequence, token, 0, k_head), in.k.type, thread);
    raw.v = raw_number(row_of(in.v, sequence, token, 0, v_head), in.v.type, thread);
    if (in.beta.data != nullptr) {
      raw.beta = raw_number(row_of(in.beta, sequence, token, 0, v_head), in.beta.type, 0);
    }
    if (in.log_decay.data != nullptr) {
      raw.gate = raw_number(row_of(in.log_decay, sequence, token, 0, v_head), in.log_decay.type,
                            kVector ? thread : 0);
    }
    return raw;
  }

  __device__ __forceinline__ float log_decay_of(const RawToken& raw) const {
    if (call.decay == LEAPQUANT_DECAY_NONE) return 0.0f;
    if (call.decay == LEAPQUANT_DECAY_CONSTANT) return call.head_decay[v_head - call.first_head];
    const float x = number_of(raw.gate, call.inputs.log_decay.type);
    return gate_of(call.inputs, x, v_head, kVector ? int64_t{v_head} * 128 + thread : v_head);
  }

  __device__ __forceinline__ float beta_of(const RawToken& raw) const {
    const Inputs& in = call.inputs;
    if (in.beta.data == nullptr) return 1.0f;
    const float x = number_of(raw.beta, in.beta.type);
    return in.sigmoid_beta != 0 ? in.beta_scale * sigmoid(x) : x;
  }

  // Ring index of the token `back` tokens before `end`.
  __device__ __forceinline__ int32_t ring_before(int32_t end_ring, int32_t back) const {
    const int32_t index = end_ring - back;
    return index < 0 ? index + call.ring_tokens : index;
  }

  __device__ __forceinline__ const __half* correction_row(int32_t ring) const {
    return at<__half>(plan.corrections) + ring * 128;
  }

  // ---- Records ----

  // Scalar decays: lane m of each warp gets the decay of the tokens after record m, *whole that of
  // all of them. Suffix sums run from the newest record: no exponent above zero.
  __device__ __forceinline__ float scalar_factor(int32_t from, int32_t records,
                                                 float* whole) const {
    const int32_t lane = state.lane;
    float g = 0.0f;
    if (lane < records) {
      g = record_log_decay(call, window, v_head, (from + lane) % call.ring_tokens, 0);
    }
    float later = __shfl_down_sync(kAllLanes, g, 1);
    if (lane == 31) later = 0.0f;
#pragma unroll
    for (int32_t step = 1; step < 32; step <<= 1) {
      const float more = __shfl_down_sync(kAllLanes, later, step);
      if (lane + step < 32) later += more;
    }
    *whole = expf(__shfl_sync(kAllLanes, later, 0) + __shfl_sync(kAllLanes, g, 0));
    return expf(later);
  }

  // Vector decays: each thread its channel. Fills `left`; returns the decay of all the tokens.
  __device__ __forceinline__ float fill_left(int32_t from, int32_t records) const {
    float* left = at<float>(plan.left) + thread;
    const int32_t end = (from + records) % call.ring_tokens;
    float later = 0.0f;
#pragma unroll 1
    for (int32_t done = 0; done < records; done += 8) {
      uint16_t keys[8];
      float g[8];
#pragma unroll
      for (int32_t c = 0; c < 8; ++c) {
        const int32_t back = min(done + c + 1, records);
        const int32_t ring = ring_before(end, back);
        keys[c] = window.keys[ring * 128 + thread];
        g[c] = record_log_decay(call, window, v_head, ring, thread);
      }
#pragma unroll
      for (int32_t c = 0; c < 8; ++c) {
        const int32_t m = records - 1 - done - c;
        if (m < 0) break;
        left[m * 128] = fp16_value(keys[c]) * exp2_fast(later * 1.4426950408889634f);
        later += g[c];
      }
    }
    return exp2_fast(later * 1.4426950408889634f);
  }

  // Products of the records' keys with both reads, times what is left of them, into `weights`. A
  // warp has every fourth record.
  __device__ __forceinline__ void weigh_records(int32_t from, int32_t records, float factor) const {
    const int32_t lane = state.lane;
    const float4 first = at<const float4>(plan.reads)[2 * lane];
    const float4 second = at<const float4>(plan.reads)[2 * lane + 1];
    const int32_t start = from % call.ring_tokens;
    float* weights = at<float>(plan.weights);
#pragma unroll 4
    for (int32_t m = state.warp; m < records; m += 4) {
      float x[4];
      if constexpr (kVector) {
        const float4 left = at<const float4>(plan.left)[m * 32 + lane];
        x[0] = left.x, x[1] = left.y, x[2] = left.z, x[3] = left.w;
      } else {
        int32_t ring = start + m;
        if (ring >= call.ring_tokens) ring -= call.ring_tokens;
        const uint2 raw = reinterpret_cast<const uint2*>(window.keys + ring * 128)[lane];
        x[0] = fp16_value(static_cast<uint16_t>(raw.x));
        x[1] = fp16_value(static_cast<uint16_t>(raw.x >> 16));
        x[2] = fp16_value(static_cast<uint16_t>(raw.y));
        x[3] = fp16_value(static_cast<uint16_t>(raw.y >> 16));
      }
      float b = x[0] * first.x;
      float q = x[0] * first.y;
      b = fmaf(x[1], first.z, b);
      q = fmaf(x[1], first.w, q);
      b = fmaf(x[2], second.x, b);
      q = fmaf(x[2], second.y, q);
      b = fmaf(x[3], second.z, b);
      q = fmaf(x[3], second.w, q);
      b = sum_of_warp(b);
      q = sum_of_warp(q);
      const float scale = kVector ? 1.0f : __shfl_sync(kAllLanes, factor, m);
      if (lane == 0) {
        weights[m] = b * scale;
        weights[kPlainRecords + m] = q * scale;
      }
    }
  }

  __device__ __forceinline__ void fold(int32_t due, bool counts) {
    const int32_t records = due - base;
    const int32_t start = base % call.ring_tokens;
    float whole = 1.0f;
    float factor = 0.0f;
    float* decays = at<float>(plan.scaled);
    if constexpr (kVector) {
      decays[thread] = fill_left(base, records);
      __syncthreads();
    } else {
      factor = scalar_factor(base, records, &whole);
    }
    const auto ring_of = [&](int32_t m) {
      const int32_t ring = start + m;
      return ring >= call.ring_tokens ? ring - call.ring_tokens : ring;
    };
    const auto left = [&](int32_t m, int32_t row, float (*x)[4]) {
      if constexpr (kVector) {
        const float4 four = *reinterpret_cast<const float4*>(at<float>(plan.left) + m * 128 + row);
        (*x)[0] = four.x, (*x)[1] = four.y, (*x)[2] = four.z, (*x)[3] = four.w;
      } else {
        const float scale = __shfl_sync(kAllLanes, factor, m);
        const uint2 raw = *reinterpret_cast<const uint2*>(window.keys + ring_of(m) * 128 + row);
        (*x)[0] = fp16_value(static_cast<uint16_t>(raw.x)) * scale;
        (*x)[1] = fp16_value(static_cast<uint16_t>(raw.x >> 16)) * scale;
        (*x)[2] = fp16_value(static_cast<uint16_t>(raw.y)) * scale;
        (*x)[3] = fp16_value(static_cast<uint16_t>(raw.y >> 16)) * scale;
      }
    };
    const auto u = [&](int32_t m, int32_t column, float (*x)[PlainState<kBits>::kPer]) {
      const __half2* row = reinterpret_cast<const __half2*>(correction_row(ring_of(m)) + column);
#pragma unroll
      for (int32_t c = 0; c < PlainState<kBits>::kPer / 2; ++c) {
        const float2 pair = __half22float2(row[c]);
        (*x)[2 * c] = pair.x;
        (*x)[2 * c + 1] = pair.y;
      }
    };
    const auto decay = [&](int32_t row) { return kVector ? decays[row] : whole; };
    state.fold(records, left, u, decay, counts, &flags, &loss);
  }

  // ---- A token ----

  // Appends the token's records; correction `half` is in shared memory too.
  __device__ __forceinline__ void append(int32_t ring, float k, float u, float g) {
    bool saturated = false;
    const uint16_t half = to_fp16_saturated(u, &saturated);
    window.keys[ring * 128 + thread] = to_fp16_saturated(k, &saturated);
    window.corrections[ring * 128 + thread] = half;
    at<uint16_t>(plan.corrections)[ring * 128 + thread] = half;
    if (thread < call.decay_count) {
      const int32_t index = ring * call.decay_count + thread;
      if (call.decay_bytes == 4) {
        reinterpret_cast<float*>(window.log_decays)[index] = g;
      } else {  // a finite decay below the FP16 range stays a finite, very small one
        reinterpret_cast<uint16_t*>(window.log_decays)[index] =
            is_finite(g) ? to_fp16(fmaxf(g, -65504.0f)) : uint16_t{0xfc00};
      }
    }
    if (saturated) flags |= LEAPQUANT_HEALTH_RECORD_SATURATED;
  }

  template <typename Wait>
  __device__ __forceinline__ void token(int32_t t, const RawToken& raw, bool counts,
                                        const Wait& wait_for_state) {
    const Inputs& in = call.inputs;
    float q = number_of(raw.q, in.q.type);
    float k = number_of(raw.k, in.k.type);
    const float g = log_decay_of(raw);
    const int32_t records = kPerStep ? 0 : position + t - base;
    float whole = 1.0f;
    float factor = 0.0f;
    if constexpr (!kPerStep) {
      if constexpr (kVector) {
        whole = fill_left(base, records);
      } else {
        factor = scalar_factor(base, records, &whole);
      }
    }
    if (in.l2norm != 0) {
      const float qq = sum_of_warp(q * q);
      const float kk = sum_of_warp(k * k);
      float* sums = warp_sums();
      if (state.lane == 0) {
        sums[state.warp] = qq;
        sums[4 + state.warp] = kk;
      }
      __syncthreads();
      q = q / sqrtf(((sums[0] + sums[1]) + (sums[2] + sums[3])) + in.l2norm_eps);
      k = k / sqrtf(((sums[4] + sums[5]) + (sums[6] + sums[7])) + in.l2norm_eps);
    }
    q *= in.q_scale;
    const float own = decay_factor(g);
    at<float2>(plan.reads)[thread] = make_float2(own * k, own * q);
    if constexpr (kPerStep) at<float2>(plan.update)[thread] = make_float2(own, k);
    if constexpr (kVector && !kPerStep) {
      at<float2>(plan.scaled)[thread] = make_float2(whole * own * k, whole * own * q);
    }
    const float kq = sum_of_warp(k * q);
    if (state.lane == 0) warp_sums()[8 + state.warp] = kq;
    __syncthreads();
    if constexpr (!kPerStep) weigh_records(base, records, factor);
    wait_for_state();
    const bool scaled = kVector && !kPerStep;
    state.read(at<const float2>(scaled ? plan.scaled : plan.reads), at<float>(plan.sums));
    __syncthreads();
    const float* sums = at<const float>(plan.sums);
    float b_sum = sums[thread];
    float q_sum = sums[128 + thread];
    if constexpr (PlainState<kBits>::kParts == 2) {
      b_sum += sums[256 + thread];
      q_sum += sums[384 + thread];
    }
    if constexpr (!kPerStep) {
      if (!kVector) b_sum *= whole, q_sum *= whole;
      const float* weights = at<const float>(plan.weights);
      int32_t ring = base % call.ring_tokens;
#pragma unroll 4
      for (int32_t m = 0; m < records; ++m) {
        const float x = __half2float(correction_row(ring)[thread]);
        b_sum = fmaf(weights[m], x, b_sum);
        q_sum = fmaf(weights[kPlainRecords + m], x, q_sum);
        ring = ring + 1 == call.ring_tokens ? 0 : ring + 1;
      }
    }
    float value = number_of(raw.v, in.v.type);
    if (call.delta_rule != 0) value -= b_sum;
    const float u = beta_of(raw) * value;
    const float* products = warp_sums() + 8;
    const float dot = (products[0] + products[1]) + (products[2] + products[3]);
    store_output(call, sequence, t, v_head, thread, fmaf(dot, u, q_sum));
    if constexpr (kPerStep) {
      at<float>(plan.u)[thread] = u;
      __syncthreads();
      state.advance(at<const float2>(plan.update), at<const float>(plan.u), counts, &flags, &loss);
    } else {
      append((position + t) % call.ring_tokens, k, u, g);
    }
  }

  // Sends the state back; all threads have put it into shared memory.
  __device__ __forceinline__ void store_state() const {
    fence_async_proxy();
    __syncthreads();
    if (thread == 0) {
      bulk_store(boundary, shared_address(state.state), static_cast<uint32_t>(2048 * kBits));
    }
  }

  // Figures of the last fold, as the general kernels tell them, and all flags.
  __device__ __forceinline__ void tell_health(leapquant_health* health, bool folded) {
    double* sums = at<double>(plan.small + 80);
    if (folded) {
      const double unit = __longlong_as_double(int64_t{1023 + 2 * loss.exponent} << 52);
      double energy = static_cast<double>(loss.energy) * unit;
      double lost = static_cast<double>(loss.lost) * unit;
#pragma unroll
      for (int32_t step = 16; step >= 1; step >>= 1) {
        energy += __shfl_xor_sync(kAllLanes, energy, step);
        lost += __shfl_xor_sync(kAllLanes, lost, step);
      }
      if (state.lane == 0) {
        sums[state.warp] = energy;
        sums[4 + state.warp] = lost;
      }
    }
    uint32_t all = 0;
#pragma unroll
    for (uint32_t bit = 1; bit <= 2; bit <<= 1) {
      if (__syncthreads_or((flags & bit) != 0) != 0) all |= bit;
    }
    if (thread != 0) return;
    if (folded) {
      const double energy = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      const double lost = (sums[4] + sums[5]) + (sums[6] + sums[7]);
      health->residual_max = 0.0f;
      health->compensator_energy = 0.0f;
      health->fold_error = energy > 0.0 ? static_cast<float>(sqrt(lost / energy)) : 0.0f;
    }
    if (all != 0) health->flags |= all;
  }

  __device__ __forceinline__ void zero_outputs(int32_t first) const {
    for (int32_t t = first; t < call.tokens; ++t) {
      store_output(call, sequence, t, v_head, thread, 0.0f);
    }
  }

  __device__ __forceinline__ void run() {
    slot = __ldg(call.state_slots + sequence);
    position = __ldg(call.positions + sequence);
    tokens = call.num_tokens != nullptr ? __ldg(call.num_tokens + sequence) : call.tokens;
    window_slot = window_slot_of(call, sequence);
    RawToken raw = load_raw(0);
    if (thread == 0) {
      barrier_init(barrier(0), 1);
      barrier_init(barrier(1), 1);
      fence_async_proxy();
    }
    // Copies start before the check of this call is done; nothing is written until then.
    const bool fits = slot >= 0 && slot < call.num_state_slots && tokens > 0 &&
                      (kPerStep || (window_slot >= 0 && window_slot < call.num_window_slots));
    bool records_fit = false;
    if (fits) {
      boundary = boundary_of(call, slot, v_head);
      if (thread == 0) {
        barrier_expect(barrier(0), 2048 * kBits);
        bulk_copy(shared_address(state.state), boundary, 2048 * kBits, barrier(0));
      }
      if constexpr (!kPerStep) {
        window = window_of(call, window_slot, v_head);
        base = call.base[head_index(call, slot, v_head)];
        const int64_t records = int64_t{position} - base;
        records_fit = base >= 0 && records > 0 && records <= call.ring_tokens;
        if (records_fit && thread == 0) {
          const int32_t start = base % call.ring_tokens;
          const int32_t count = static_cast<int32_t>(records);
          const int32_t ahead = min(count, call.ring_tokens - start);
          const uint32_t target = shared_address(shared + plan.corrections);
          barrier_expect(barrier(1), static_cast<uint32_t>(256 * count));
          bulk_copy(target + 256u * static_cast<uint32_t>(start), window.corrections + 128 * start,
                    static_cast<uint32_t>(256 * ahead), barrier(1));
          if (count > ahead) {
            bulk_copy(target, window.corrections, static_cast<uint32_t>(256 * (count - ahead)),
                      barrier(1));
          }
        }
      }
    }
    __syncthreads();  // barriers are there
    wait_for_previous_grid();
    const bool alive = slot >= 0 && tokens > 0 &&
                       *const_cast<const volatile int32_t*>(call.status + sequence) == LEAPQUANT_OK;
    if (!alive) {
      if (fits) barrier_wait(barrier(0), 0);
      if (records_fit) barrier_wait(barrier(1), 0);
      zero_outputs(0);
      return;
    }
    const int64_t head = head_index(call, slot, v_head);
    const bool counts = call.health != nullptr;
    const int32_t due = kPerStep ? 0 : boundary_at(call, v_head, position);
    const bool folds = kPerStep || due > base;
    if (!kPerStep && folds) {
      barrier_wait(barrier(0), 0);
      if (records_fit) barrier_wait(barrier(1), 0);
      fold(due, counts);
      base = due;
      if (thread == 0) call.base[head] = due;
      store_state();
    }
    const bool waits = kPerStep || !folds;
    for (int32_t t = 0; t < tokens; ++t) {
      if (t > 0) {
        __syncthreads();  // records of the token before, and shared memory to write again
        raw = load_raw(t);
      }
      token(t, raw, counts && t + 1 == tokens, [&] {
        if (t > 0 || !waits) return;
        barrier_wait(barrier(0), 0);
        if (records_fit) barrier_wait(barrier(1), 0);
      });
    }
    if constexpr (kPerStep) {
      if (thread == 0) call.base[head] = position + tokens;
      store_state();
    }
    if (counts) tell_health(call.health + head, folds);
    zero_outputs(tokens);
    if (folds && thread == 0) bulk_stores_wait();
  }
};

template <int kBits, bool kVector, bool kPerStep>
__global__ void __launch_bounds__(kPlainThreads, kBits == 16 ? 5 : 3)
    plain_decode_kernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) char shared[];
  const int32_t sequence = static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(call.num_heads));
  const int32_t head =
      static_cast<int32_t>(blockIdx.x - static_cast<unsigned>(sequence * call.num_heads));
  Decode<kBits, kVector, kPerStep>(call, shared, sequence, call.first_head + head).run();
}

template <int kBits, bool kVector, bool kPerStep>
cudaError_t launch(const Call& call, cudaStream_t stream) {
  const int32_t bytes = plain_plan(kBits, kVector, kPerStep, call.ring_tokens).bytes;
  const auto kernel = plain_decode_kernel<kBits, kVector, kPerStep>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(int64_t{call.batch} * call.num_heads));
  config.blockDim = dim3(kPlainThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace

Status accepts_plain_128(const Layout& layout, Sentence* why_not) {
  const leapquant_shape& shape = layout.shape;
  const Status no = LEAPQUANT_UNSUPPORTED;
  if (shape.head_k_dim != 128 || shape.head_v_dim != 128 || shape.sub_steps != 1) {
    return why_not->say(no, "cuda/plain-128: only heads of 128 x 128 with one write per token");
  }
  if (layout.window.ring_tokens > kPlainRecords) {
    return why_not->say(no, "cuda/plain-128: rings of %d tokens, at most %d are served",
                        layout.window.ring_tokens, kPlainRecords);
  }
  for (const BoundaryLayout& b : layout.classes) {
    const int32_t bits = b.format.payload_bits;
    if (b.quantised() || bits != layout.classes[0].format.payload_bits) {
      return why_not->say(no, "cuda/plain-128: payload_bits is %d, served are layers of 16 or 32",
                          bits);
    }
  }
  return LEAPQUANT_OK;
}

bool serves_plain_128(const Call& call) {
  const Inputs& in = call.inputs;
  return in.read_key.data == nullptr && in.read_before_update == 0 && in.bonus == nullptr &&
         in.skip == nullptr && int64_t{call.batch} * call.v_heads <= 0x7fffffff &&
         int64_t{call.total_k_heads} * kPlainRecords <= 0x7fffffff;
}

cudaError_t decode_plain_128(const Layout& layout, Call* call, cudaStream_t stream) {
  if (const cudaError_t error = launch_plain_checks_128(*call, stream)) return error;
  const bool half = layout.classes[0].format.payload_bits == 16;
  const bool vector = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
  return for_head_ranges(layout, call, [&](const Call& part) {
    const auto with = [&]<int kBits, bool kVector>() {
      return part.per_step != 0 ? launch<kBits, kVector, true>(part, stream)
                                : launch<kBits, kVector, false>(part, stream);
    };
    if (half) {
      return vector ? with.template operator()<16, true>() : with.template operator()<16, false>();
    }
    return vector ? with.template operator()<32, true>() : with.template operator()<32, false>();
  });
}

}  // namespace leapquant::cuda
