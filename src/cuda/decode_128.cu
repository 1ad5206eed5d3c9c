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
Plan plan_for(const Call128& call) {
  return plan_of(call.boundary_bytes, call.capacity, kVector ? call.decay_bytes : 0,
                 call.weight_rows, kPairs, drafts_together(kVector, kPairs, kPlain, kMany));
}

// What `use` returns for the kinds of a call as template arguments.
template <typename Use>
cudaError_t with_kinds(const Call128& call, bool vector, int32_t pairs, const Use& use) {
  const auto with = [&]<bool kVector, bool kPlain, bool kMany>() {
    return pairs == 1 ? use.template operator()<kVector, 1, kPlain, kMany>()
                      : use.template operator()<kVector, 2, kPlain, kMany>();
  };
  const auto of = [&]<bool kVector>() {
    if (call.plain == 0) return with.template operator()<kVector, false, true>();
    if (call.tokens > 1) return with.template operator()<kVector, true, true>();
    return with.template operator()<kVector, true, false>();
  };
  return vector ? of.template operator()<true>() : of.template operator()<false>();
}

template <bool kVector, int kPairs, bool kPlain, bool kMany>
cudaError_t launch(const Call128& call, int32_t blocks, bool overlaps, bool shares,
                   cudaStream_t stream) {
  const int32_t cluster = kPairs > 1 && shares ? blocks_together(call, blocks) : 1;
  const Plan plan = plan_for<kVector, kPairs, kPlain, kMany>(call);
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

cudaError_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t pairs,
                                       int32_t* blocks) {
  *blocks = 0;
  return with_kinds(call, vector, pairs,
                    [&]<bool kVector, int kPairs, bool kPlain, bool kMany>() -> cudaError_t {
                      const int32_t bytes = plan_for<kVector, kPairs, kPlain, kMany>(call).bytes;
                      const auto kernel = kernel_of<kVector, kPairs, kPlain, kMany>(call);
                      if (const cudaError_t error = share_memory_128(kernel, bytes)) return error;
                      return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                          blocks, kernel, 64 * kPairs, static_cast<size_t>(bytes));
                    });
}

cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t pairs, int32_t blocks,
                              bool overlaps, bool shares, cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  // The bitmap of deferred heads bounds a block's share.
  const int64_t most = 32 * (kDeferredWords - 1);
  const int64_t least = (total + most - 1) / most;
  const int32_t grid = static_cast<int32_t>(std::max(std::min<int64_t>(blocks, total), least));
  return with_kinds(call, vector, pairs, [&]<bool kVector, int kPairs, bool kPlain, bool kMany>() {
    return launch<kVector, kPairs, kPlain, kMany>(call, grid, overlaps, shares, stream);
  });
}

}  // namespace leapquant::cuda
