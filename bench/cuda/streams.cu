// SPDX-License-Identifier: Apache-2.0
//
// How fast the bytes of a large decode call move on their own, without arithmetic: copies of what a
// head has, piece by piece, and its stores, on all multiprocessors and on some; beside them
// ordinary loads of the same states. What a decode kernel could reach (docs/KERNELS.md). Usage:
// streams [FORMAT [BATCH]]; default: int8 512
#include "companion.cuh"
#include "decode_sets.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;
using cuda::Call128;
using cuda::HeadFormat128;

enum Piece : uint32_t {
  kWhole = 1,    // the boundary state by one copy
  kCodes = 2,    // of the residual
  kTail = 4,     // scales, smoothing and compensators, a copy each
  kRecords = 8,  // keys and corrections of kRecordsOfHead
  kInputs = 16,  // q, k and v
  kOutput = 32,  // stored
  kRecord = 64   // stored: key and correction
};
constexpr uint32_t kReads = kCodes | kTail | kRecords | kInputs;
constexpr uint32_t kRecordsOfHead = 8;  // as many as the mean over a window's phases
constexpr int32_t kBlocks = 7;          // of a multiprocessor, as int8's decode has them
constexpr int32_t kSharedBytes = 31 * 1024;
constexpr int32_t kThreads = 64;

struct Share {
  int32_t heads, longer;  // the first `longer` blocks have one head more
};

// One head on its way at a time. Records and outputs are overwritten with finite numbers.
__global__ void __launch_bounds__(kThreads)
    move_heads(const __grid_constant__ Call128 call, uint32_t pieces, Share share) {
  extern __shared__ __align__(128) char shared[];
  __shared__ alignas(8) uint64_t barrier_word;
  const uint32_t barrier = cuda::shared_address(&barrier_word);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) {
    cuda::barrier_init(barrier, 1);
    cuda::fence_async_proxy();
  }
  __syncthreads();
  const HeadFormat128& format = call.classes[0];
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t first = block * share.heads + min(block, share.longer);
  const int32_t count = share.heads + (block < share.longer ? 1 : 0);
  const uint32_t to = cuda::shared_address(shared);
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) {
    const int32_t sequence = (first + i) / call.v_heads;
    const int32_t v_head = first + i - sequence * call.v_heads;
    const int64_t slot = call.state_slots[sequence];
    const char* state = call.states + slot * call.state_stride + int64_t{v_head} * format.bytes;
    char* window = call.windows + slot * call.window_stride;
    char* keys = window + v_head * call.key_head_stride;
    char* corrections = window + call.corrections + v_head * call.correction_head_stride;
    if (thread == 0) {
      const auto copy = [&](const char* from, uint32_t at, uint32_t bytes) {
        cuda::bulk_copy(to + at, from, bytes, barrier);
      };
      const auto codes = static_cast<uint32_t>(format.value_scale);
      const auto smoothing = static_cast<uint32_t>(format.smoothing_at);
      const auto rest = static_cast<uint32_t>(format.fp16_keys);
      const auto all = static_cast<uint32_t>(format.bytes);
      cuda::barrier_expect(barrier, (pieces & kWhole ? all : 0u) + (pieces & kCodes ? codes : 0u) +
                                        (pieces & kTail ? all - codes : 0u) +
                                        (pieces & kRecords ? 512u * kRecordsOfHead : 0u) +
                                        (pieces & kInputs ? 768u : 0u));
      if (pieces & kWhole) copy(state, 0, all);
      if (pieces & kCodes) copy(state, 0, codes);
      if (pieces & kTail) {
        copy(state + codes, codes, smoothing - codes);
        copy(state + smoothing, smoothing, rest - smoothing);
        if (all > rest) copy(state + rest, rest, all - rest);
      }
      if (pieces & kRecords) {
        copy(keys, all, 256 * kRecordsOfHead);
        copy(corrections, all + 256 * kRecordsOfHead, 256 * kRecordsOfHead);
      }
      if (pieces & kInputs) {
        const uint32_t at = all + 512 * kRecordsOfHead;
        copy(cuda::device_128::row_of(call.q, sequence, 0, v_head / call.group), at, 256);
        copy(cuda::device_128::row_of(call.k, sequence, 0, v_head / call.group), at + 256, 256);
        copy(cuda::device_128::row_of(call.v, sequence, 0, v_head), at + 512, 256);
      }
    }
    cuda::barrier_wait(barrier, static_cast<uint32_t>(i) & 1u);
    constexpr uint32_t kOnes = 0x3c003c00u;  // FP16
    if (pieces & kOutput) {
      const char* output = cuda::device_128::row_of(call.output, sequence, 0, v_head);
      reinterpret_cast<uint32_t*>(const_cast<char*>(output))[thread] = kOnes;
    }
    if (pieces & kRecord) {
      const int32_t row = 64 * (call.positions[sequence] % call.ring_tokens) + thread;
      reinterpret_cast<uint32_t*>(keys)[row] = kOnes;
      reinterpret_cast<uint32_t*>(corrections)[row] = kOnes;
    }
    __syncthreads();
  }
}

// Contiguous memory by loads of 16 bytes, eight on their way.
__global__ void __launch_bounds__(256) load_all(const uint4* from, int64_t words, uint32_t* sink) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t seen = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i + 7 * step < words;
       i += 8 * step) {
    uint4 x[8];
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) x[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) seen ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  if (seen == 0x12345u) *sink = seen;
}

// Microseconds of launch(set), of a graph that goes through all sets.
template <typename Launch>
double time_launches(int32_t sets, cudaStream_t stream, const Launch& launch) {
  const cudaGraphExec_t graph = graph_of(stream, [&] {
    for (int32_t set = 0; set < sets; ++set) {
      launch(set);
      REQUIRE(cudaGetLastError());
    }
  });
  return time_phases({graph}, sets, 9, stream).mean;
}

void print(const char* name, double microseconds, double bytes) {
  std::printf("  %-34s %7.1f us %6.0f GB/s\n", name, microseconds, bytes / microseconds * 1e-3);
}

}  // namespace

int main(int argc, char** argv) {
  const char* format = argc > 1 ? argv[1] : "int8";
  const int batch = argc > 2 ? std::atoi(argv[2]) : 512;
  if (argc > 3 || batch < 32 || batch > 16384) {
    std::fprintf(stderr, "usage: streams [FORMAT [BATCH, 32 to 16384]]\n");
    return 2;
  }
  const Case c = {format, format, LEAPQUANT_DECAY_SCALAR, 32, 32, 1, LEAPQUANT_BF16, 0, 0, 0.05};
  DecodeSets decode(c, true, batch, 8);
  const HeadFormat128 of = decode.call(0, 0).classes[0];
  if (of.bytes + 512 * static_cast<int32_t>(kRecordsOfHead) + 768 > kSharedBytes) {
    std::fprintf(stderr, "streams: a head of %s does not fit %d bytes\n", format, kSharedBytes);
    return 1;
  }
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  REQUIRE(
      cudaFuncSetAttribute(move_heads, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  REQUIRE(cudaFuncSetAttribute(move_heads, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  struct {
    const char* name;
    uint32_t pieces;
  } const rows[] = {{"states, a copy each", kWhole},
                    {"codes", kCodes},
                    {"states, four copies each", kCodes | kTail},
                    {"and records", kCodes | kTail | kRecords},
                    {"and inputs: all that is read", kReads},
                    {"all that is read, outputs stored", kReads | kOutput},
                    {"all that is read, records stored", kReads | kRecord},
                    {"all", kReads | kOutput | kRecord}};
  std::printf("%s, batch %d; copy %.0f GB/s\n", format, batch, copy_bandwidth());
  const int64_t states = decode.layout.state_bytes * batch;
  const int32_t heads = 32 * batch;
  DeviceArray<uint32_t> sink(1);
  for (const int held : {0, 64}) {
    const Beside beside(held == 0 ? Work::kNone : Work::kOccupy, held);
    const int free = 132 - held;
    std::printf("on %d multiprocessors\n", free);
    print("states by loads",
          time_launches(decode.sets, stream,
                        [&](int32_t set) {
                          const std::byte* from = decode.states.data + set * states;
                          load_all<<<free * 8, 256, 0, stream>>>(
                              reinterpret_cast<const uint4*>(from), states / 16, sink.data);
                        }),
          static_cast<double>(states));
    for (const auto& row : rows) {
      const double bytes = (row.pieces & kWhole ? of.bytes : 0) +
                           (row.pieces & kCodes ? of.value_scale : 0) +
                           (row.pieces & kTail ? of.bytes - of.value_scale : 0) +
                           (row.pieces & kRecords ? 512.0 * kRecordsOfHead : 0.0) +
                           (row.pieces & kInputs ? 768 : 0) + (row.pieces & kOutput ? 256 : 0) +
                           (row.pieces & kRecord ? 512 : 0);
      const int32_t blocks = free * kBlocks;
      const Share share = {heads / blocks, heads % blocks};
      print(row.name,
            time_launches(
                decode.sets, stream,
                [&](int32_t set) {
                  move_heads<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, stream>>>(
                      decode.call(0, set), row.pieces, share);
                }),
            heads * bytes);
    }
  }
  REQUIRE(cudaStreamDestroy(stream));
  return 0;
}
