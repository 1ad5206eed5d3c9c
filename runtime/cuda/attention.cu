// SPDX-License-Identifier: Apache-2.0
//
// The way of a pass through attention. A warp reads eight keys at a time, a row of the cache being
// spread over its lanes, and turns 32 partial sums per lane into one score per lane by halving
// exchanges (31 shuffles for 32 scores). What limits it: bytes of the cache in decode, shared
// reads of the same keys through the L2 in prefill.
#include "runtime/cuda/attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/cuda/elements.cuh"

namespace leapquant::runtime::cuda {
namespace {

constexpr int kQueries = kQueriesPerChunk;
constexpr int kKeys = 8;  // of a warp at a time
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kKeysPerTurn = kKeys * kWarps;
static_assert(kKeys * kQueries == 32, "one score per lane");
constexpr float kNone = -INFINITY;
constexpr std::int32_t kMostSplits = 64;

__global__ void angles_kernel(PassTables tables, const double* frequencies, std::int32_t half,
                              float* cosines, float* sines) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t segment = tables.row_segments[row];
  const double position = tables.positions[segment] + row - tables.first_rows[segment];
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < half;
       i += static_cast<std::int32_t>(blockDim.x)) {
    double sine;
    double cosine;
    sincos(position * frequencies[i], &sine, &cosine);
    cosines[std::int64_t{row} * half + i] = static_cast<float>(cosine);
    sines[std::int64_t{row} * half + i] = static_cast<float>(sine);
  }
}

template <typename Kv>
__device__ Kv* kv_row(const Attention& a, const KvPlace& place, std::int32_t part,
                      std::int32_t kv_head, std::int64_t token) {
  const std::int64_t plane =
      (std::int64_t{a.full_layer} * 2 + part) * a.shape.num_kv_heads + kv_head;
  return static_cast<Kv*>(place.data) + (plane * place.capacity + token) * a.shape.head_dim;
}

// A warp per head of a row: queries first, then keys, then values.
template <typename T, typename Kv>
__global__ void __launch_bounds__(kThreads) prepare_kernel(Attention a, PassTables tables) {
  extern __shared__ float shared[];
  const AttentionShape& shape = a.shape;
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t index =
      static_cast<std::int32_t>(blockIdx.y) * kWarps + static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t segment = tables.row_segments[row];
  const std::int32_t slot = tables.slots[segment];
  const std::int32_t token = row - tables.first_rows[segment];
  if (slot < 0 || token >= tables.tokens[segment]) return;
  if (index >= shape.num_heads + 2 * shape.num_kv_heads) return;

  const bool is_query = index < shape.num_heads;
  const bool is_value = index >= shape.num_heads + shape.num_kv_heads;
  const T* from = static_cast<const T*>(a.projected) + row * shape.row +
                  (is_query ? std::int64_t{index} * shape.query_stride
                            : std::int64_t{shape.num_heads} * shape.query_stride +
                                  std::int64_t{index - shape.num_heads} * shape.head_dim);
  const std::int64_t at = tables.positions[segment] + token;
  if (is_value) {
    Kv* to = kv_row<Kv>(a, a.kv[slot], 1, index - shape.num_heads - shape.num_kv_heads, at);
    for (std::int32_t i = lane; i < shape.head_dim; i += 32) narrow(to_float(from[i]), &to[i]);
    return;
  }
  float* values = shared + threadIdx.x / 32 * shape.head_dim;
  float squares = 0.0f;
  for (std::int32_t i = lane; i < shape.head_dim; i += 32) {
    values[i] = to_float(from[i]);
    squares += values[i] * values[i];
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(shape.head_dim) + shape.eps);
  const float* factor = is_query ? a.q_norm : a.k_norm;
  for (std::int32_t i = lane; i < shape.head_dim; i += 32) values[i] *= scale * factor[i];
  __syncwarp();
  const float* cosines = a.cosines + std::int64_t{row} * shape.rotary_half;
  const float* sines = a.sines + std::int64_t{row} * shape.rotary_half;
  for (std::int32_t i = lane; i < shape.rotary_half; i += 32) {
    const float first = values[i];
    const float second = values[i + shape.rotary_half];
    values[i] = first * cosines[i] - second * sines[i];
    values[i + shape.rotary_half] = second * cosines[i] + first * sines[i];
  }
  __syncwarp();
  if (is_query) {
    // exp(x) is exp2(x log2 e).
    const float to_exp2 = 1.4426950408889634f * rsqrtf(static_cast<float>(shape.head_dim));
    float* to = a.queries + (std::int64_t{row} * shape.num_heads + index) * shape.head_dim;
    for (std::int32_t i = lane; i < shape.head_dim; i += 32) to[i] = values[i] * to_exp2;
  } else {
    Kv* to = kv_row<Kv>(a, a.kv[slot], 0, index - shape.num_heads, at);
    for (std::int32_t i = lane; i < shape.head_dim; i += 32) narrow(values[i], &to[i]);
  }
}

// Value i of every lane is summed over the lanes and left in lane i.
template <int kHalf = 16>
__device__ float scatter_sums(float (&values)[32], std::int32_t lane) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? values[i] : values[i + kHalf];
    const float kept = upper ? values[i + kHalf] : values[i];
    values[i] = kept + __shfl_xor_sync(kWholeWarp, sent, kHalf);
  }
  if constexpr (kHalf > 1) return scatter_sums<kHalf / 2>(values, lane);
  return values[0];
}

// kRun: elements of a row per lane.
template <typename Kv, int kRun>
__global__ void __launch_bounds__(kThreads) attend_kernel(Attention a, PassTables tables) {
  constexpr std::int32_t kHeadDim = 32 * kRun;
  __shared__ float parts[kWarps][kQueries][2];
  __shared__ float sums[kWarps][kQueries][kHeadDim];
  const AttentionShape& shape = a.shape;
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const auto kv_head = static_cast<std::int32_t>(blockIdx.y);
  const auto split = static_cast<std::int32_t>(blockIdx.z);
  const std::int32_t segment = tables.chunk_segments[chunk];
  const std::int32_t slot = tables.slots[segment];
  if (slot < 0) return;
  const std::int32_t group = shape.group;
  const std::int32_t first_query = tables.chunk_queries[chunk];
  const std::int32_t num_queries = min(kQueries, tables.tokens[segment] * group - first_query);
  if (num_queries <= 0) return;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t position = tables.positions[segment];

  float queries[kQueries][kRun];
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    if (q < num_queries) {
      const std::int32_t token = (first_query + q) / group;
      const std::int32_t head = kv_head * group + (first_query + q) % group;
      const std::int64_t row = tables.first_rows[segment] + token;
      load(a.queries + (row * shape.num_heads + head) * kHeadDim + lane * kRun, queries[q]);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) queries[q][i] = 0.0f;
    }
  }
  // Lane i scores key i / 4 for query i % 4.
  const std::int32_t own_query = min(lane % kQueries, num_queries - 1);
  const std::int32_t own_visible = position + (first_query + own_query) / group + 1;
  const std::int32_t visible = position + (first_query + num_queries - 1) / group + 1;
  const std::int32_t turns = (visible + kKeysPerTurn - 1) / kKeysPerTurn;
  const std::int32_t turns_per_split = (turns + a.splits - 1) / a.splits;
  const std::int32_t begin = split * turns_per_split * kKeysPerTurn;
  const std::int32_t end = min(visible, begin + turns_per_split * kKeysPerTurn);

  const Kv* keys = kv_row<Kv>(a, a.kv[slot], 0, kv_head, 0) + lane * kRun;
  const Kv* values = kv_row<Kv>(a, a.kv[slot], 1, kv_head, 0) + lane * kRun;
  float largest = kNone;
  float total = 0.0f;  // this lane's share
  float weighted[kQueries][kRun] = {};
  for (std::int32_t first = begin + warp * kKeys; first < end; first += kKeysPerTurn) {
    float scores[32];
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      float k[kRun];
      // Keys past the end are masked below; the last one stands in for them.
      load(keys + std::int64_t{min(first + key, end - 1)} * kHeadDim, k);
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kRun; ++i) sum += queries[q][i] * k[i];
        scores[key * kQueries + q] = sum;
      }
    }
    float score = scatter_sums(scores, lane);
    if (first + lane / kQueries >= min(own_visible, end)) score = kNone;
    float top = fmaxf(score, largest);
#pragma unroll
    for (int step = kQueries; step < 32; step *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, step));
    }
    // No key of this query so far: everything below is zero.
    const float shift = top == kNone ? 0.0f : top;
    const float shrink = exp2f(largest - shift);
    const float weight = exp2f(score - shift);
    total = total * shrink + weight;
    largest = top;
    if (__any_sync(kWholeWarp, shrink != 1.0f)) {
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        const float by = __shfl_sync(kWholeWarp, shrink, q);
#pragma unroll
        for (int i = 0; i < kRun; ++i) weighted[q][i] *= by;
      }
    }
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      float v[kRun];
      load(values + std::int64_t{min(first + key, end - 1)} * kHeadDim, v);
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        const float by = __shfl_sync(kWholeWarp, weight, key * kQueries + q);
#pragma unroll
        for (int i = 0; i < kRun; ++i) weighted[q][i] += by * v[i];
      }
    }
  }
#pragma unroll
  for (int step = kQueries; step < 32; step *= 2) {
    total += __shfl_xor_sync(kWholeWarp, total, step);
  }
  if (lane < kQueries) {
    parts[warp][lane][0] = largest;
    parts[warp][lane][1] = total;
  }
#pragma unroll
  for (int q = 0; q < kQueries; ++q) store(weighted[q], &sums[warp][q][lane * kRun]);
  __syncthreads();

  const std::int64_t part = (std::int64_t{chunk} * shape.num_kv_heads + kv_head) * a.splits + split;
  float* to = a.parts + part * shape.part_floats;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < kQueries * kHeadDim;
       i += kThreads) {
    const std::int32_t q = i / kHeadDim;
    float top = kNone;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, parts[w][q][0]);
    const float shift = top == kNone ? 0.0f : top;
    float joined = 0.0f;
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float by = exp2f(parts[w][q][0] - shift);
      joined += by * sums[w][q][i % kHeadDim];
      all += by * parts[w][q][1];
    }
    to[2 * kQueries + i] = joined;
    if (i % kHeadDim == 0) {
      to[2 * q] = top;
      to[2 * q + 1] = all;
    }
  }
}

// Joins the splits of a chunk and multiplies by the gate. A block per chunk, key-value head and
// query; threads stride over the elements.
template <typename T>
__global__ void __launch_bounds__(kThreads) join_kernel(Attention a, PassTables tables) {
  __shared__ float weights[kMostSplits];
  const AttentionShape& shape = a.shape;
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const auto kv_head = static_cast<std::int32_t>(blockIdx.y);
  const auto q = static_cast<std::int32_t>(blockIdx.z);
  const std::int32_t segment = tables.chunk_segments[chunk];
  if (tables.slots[segment] < 0) return;
  const std::int32_t query = tables.chunk_queries[chunk] + q;
  if (query >= tables.tokens[segment] * shape.group) return;
  const float* parts =
      a.parts + (std::int64_t{chunk} * shape.num_kv_heads + kv_head) * a.splits * shape.part_floats;
  float top = kNone;
  for (std::int32_t s = 0; s < a.splits; ++s) {
    top = fmaxf(top, parts[s * shape.part_floats + 2 * q]);
  }
  for (std::int32_t s = static_cast<std::int32_t>(threadIdx.x); s < a.splits; s += kThreads) {
    weights[s] = exp2f(parts[s * shape.part_floats + 2 * q] - top);
  }
  __syncthreads();
  float all = 0.0f;
#pragma unroll 8
  for (std::int32_t s = 0; s < a.splits; ++s) {
    all += weights[s] * parts[s * shape.part_floats + 2 * q + 1];
  }
  const std::int64_t row = tables.first_rows[segment] + query / shape.group;
  const std::int64_t head = kv_head * shape.group + query % shape.group;
  const T* gate = static_cast<const T*>(a.projected) + row * shape.row + head * shape.query_stride +
                  shape.head_dim;
  T* y = static_cast<T*>(a.y) + (row * shape.num_heads + head) * shape.head_dim;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < shape.head_dim; i += kThreads) {
    const float* part = parts + 2 * kQueries + q * shape.head_dim + i;
    float joined = 0.0f;
#pragma unroll 8
    for (std::int32_t s = 0; s < a.splits; ++s) joined += weights[s] * part[s * shape.part_floats];
    joined /= all;
    narrow(shape.gated ? joined * sigmoid(to_float(gate[i])) : joined, &y[i]);
  }
}

template <typename Kv>
void launch_attend(cudaStream_t stream, const Attention& a, const PassTables& tables,
                   const PassSize& size) {
  const dim3 grid(static_cast<unsigned>(size.chunks), static_cast<unsigned>(a.shape.num_kv_heads),
                  static_cast<unsigned>(a.splits));
  switch (a.shape.head_dim) {
    case 32:
      attend_kernel<Kv, 1><<<grid, kThreads, 0, stream>>>(a, tables);
      break;
    case 64:
      attend_kernel<Kv, 2><<<grid, kThreads, 0, stream>>>(a, tables);
      break;
    case 128:
      attend_kernel<Kv, 4><<<grid, kThreads, 0, stream>>>(a, tables);
      break;
    default:
      attend_kernel<Kv, 8><<<grid, kThreads, 0, stream>>>(a, tables);
  }
  check_launch();
}

}  // namespace

bool attention_takes(std::int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256;
}

AttentionShape attention_shape(std::int32_t num_heads, std::int32_t num_kv_heads,
                               std::int32_t head_dim, std::int32_t rotary_half, bool gated,
                               float eps) {
  AttentionShape shape{num_heads, num_kv_heads, head_dim, rotary_half, gated, eps, 0, 0, 0, 0};
  shape.group = num_heads / num_kv_heads;
  shape.query_stride = (gated ? 2 : 1) * head_dim;
  shape.row =
      std::int64_t{num_heads} * shape.query_stride + std::int64_t{2} * num_kv_heads * head_dim;
  shape.part_floats = kQueries * (2 + std::int64_t{head_dim});
  return shape;
}

std::int32_t attention_splits(const AttentionShape& shape, const PassSize& size,
                              std::int32_t multiprocessors) {
  const std::int64_t blocks = std::int64_t{size.chunks} * shape.num_kv_heads;
  const std::int64_t wanted = std::int64_t{kAttentionBlocksPerMultiprocessor} * multiprocessors;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(
      (wanted + blocks - 1) / std::max<std::int64_t>(blocks, 1), 1, kMostSplits));
}

std::int64_t attention_parts_floats(const AttentionShape& shape, const PassSize& size,
                                    std::int32_t splits) {
  return std::int64_t{size.chunks} * shape.num_kv_heads * splits * shape.part_floats;
}

void rotary_angles(cudaStream_t stream, const PassTables& tables, const PassSize& size,
                   const double* frequencies, std::int32_t half, float* cosines, float* sines) {
  if (size.rows == 0) return;
  angles_kernel<<<static_cast<unsigned>(size.rows), 32, 0, stream>>>(tables, frequencies, half,
                                                                     cosines, sines);
  check_launch();
}

void attend(cudaStream_t stream, const Attention& a, const PassTables& tables, const PassSize& size,
            Element element) {
  if (size.rows == 0) return;
  const std::int32_t warps = a.shape.num_heads + 2 * a.shape.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(size.rows),
                  static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  const auto shared = static_cast<std::size_t>(kWarps * a.shape.head_dim) * sizeof(float);
  by_element(element, [&]<typename T>(T*) {
    by_element(a.kv_type, [&]<typename Kv>(Kv*) {
      prepare_kernel<T, Kv><<<grid, kThreads, shared, stream>>>(a, tables);
    });
  });
  check_launch();
  const dim3 joins(static_cast<unsigned>(size.chunks), static_cast<unsigned>(a.shape.num_kv_heads),
                   kQueries);
  by_element(a.kv_type, [&]<typename Kv>(Kv*) { launch_attend<Kv>(stream, a, tables, size); });
  by_element(element,
             [&]<typename T>(T*) { join_kernel<T><<<joins, kThreads, 0, stream>>>(a, tables); });
  check_launch();
}

}  // namespace leapquant::runtime::cuda
