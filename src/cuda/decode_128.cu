// SPDX-License-Identifier: Apache-2.0
//
// Launches of the decode of heads of 128 x 128. The kernel itself is decode_kernel_128.cuh.
#include <algorithm>

#include "cuda/decode_128.cuh"
#include "cuda/decode_kernel_128.cuh"
#include "cuda/launch_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace decoding_128;

// Blocks of a cluster: up to eight that have equal parts of the same sequence. 1 where blocks have
// whole sequences or uneven parts.
int32_t blocks_together(const Call128& call, int32_t blocks) {
  if (blocks % call.batch != 0) return 1;
  const int32_t parts = blocks / call.batch;
  if (call.v_heads % parts != 0) return 1;
  return parts % 8 == 0 ? 8 : parts % 4 == 0 ? 4 : parts % 2 == 0 ? 2 : 1;
}

// Formats that have kernels of their own: common calls of one format, large batches.
constexpr bool decodes_apart(bool vector, bool many, Known128 known) {
  if (vector && many) return false;
  return known == Known128::kInt8 || (!vector && !many);
}

template <bool kVector, int kPairs, bool kPlain, bool kMany>
auto kernel_of(const Call128& call) {
  using Kernel = void (*)(Call128, Shares);
  if constexpr (kPairs == 1 && kPlain) {
    return with_known(known_128(call.classes[0]), [](auto known) -> Kernel {
      constexpr Known128 kOwn = decodes_apart(kVector, kMany, known()) ? known() : Known128::kAny;
      return decode_kernel<kVector, kPairs, kPlain, kMany, kOwn>;
    });
  }
  return Kernel{decode_kernel<kVector, kPairs, kPlain, kMany, Known128::kAny>};
}

template <bool kVector, int kPairs, bool kPlain, bool kMany>
cudaError_t launch(const Call128& call, int32_t blocks, bool overlaps, bool shares,
                   cudaStream_t stream) {
  const int32_t cluster = kPairs > 1 && shares ? blocks_together(call, blocks) : 1;
  const Plan plan =
      plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0, call.weight_rows,
              kPairs, drafts_together(kVector, kPairs, kPlain, kMany));
  const auto kernel = kernel_of<kVector, kPairs, kPlain, kMany>(call);
  if (const cudaError_t error = share_memory_128(kernel, plan.bytes)) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(64 * kPairs);
  config.dynamicSmemBytes = static_cast<size_t>(plan.bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (cluster > 1) attributes[count++] = clusters_of_128(cluster);
  if (overlaps) attributes[count++] = begins_early_128();
  config.attrs = attributes;
  config.numAttrs = count;
  const int32_t total = call.batch * call.v_heads;
  return cudaLaunchKernelEx(&config, kernel, call, Shares{total / blocks, total % blocks});
}

}  // namespace

int32_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t pairs) {
  const bool plain = call.plain != 0;
  return resident_blocks(vector, pairs, plain, !plain || call.tokens > 1);
}

int32_t decode_128_shared_bytes(const Call128& call, bool vector, int32_t pairs) {
  return plan_of(call.boundary_bytes, call.capacity, vector ? call.decay_bytes : 0,
                 call.weight_rows, pairs,
                 drafts_together(vector, pairs, call.plain != 0, call.tokens > 1))
      .bytes;
}

cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t pairs, int32_t blocks,
                              bool overlaps, bool shares, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  // The bitmap of deferred heads bounds a block's share.
  const int64_t most = 32 * (kDeferredWords - 1);
  const int64_t least = (total + most - 1) / most;
  const int32_t grid = static_cast<int32_t>(std::max(std::min<int64_t>(blocks, total), least));
  const bool plain = call.plain != 0;
  const auto with = [&]<bool kVector, bool kPlain, bool kMany>() {
    if (pairs == 1) return launch<kVector, 1, kPlain, kMany>(call, grid, overlaps, shares, stream);
    return launch<kVector, 2, kPlain, kMany>(call, grid, overlaps, shares, stream);
  };
  const auto of = [&]<bool kVector>() {
    if (!plain) return with.template operator()<kVector, false, true>();
    if (call.tokens > 1) return with.template operator()<kVector, true, true>();
    return with.template operator()<kVector, true, false>();
  };
  return vector ? of.template operator()<true>() : of.template operator()<false>();
}

}  // namespace leapquant::cuda
