// SPDX-License-Identifier: Apache-2.0
//
// Launches of the decode of heads of 128 x 128. The kernel itself is decode_kernel_128.cuh.
#include <algorithm>

#include "cuda/decode_128.cuh"
#include "cuda/decode_kernel_128.cuh"
#include "cuda/decode_pairs_128.cuh"
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

// One token of large batches in the common call: pairs that fill a multiprocessor as one block.
constexpr bool is_pooled(int pairs, bool plain, bool many) { return pairs == 1 && plain && !many; }

template <bool kVector, int kPairs, bool kPlain, bool kMany>
auto kernel_of(const Call128& call) {
  using Kernel = void (*)(Call128, Shares);
  if constexpr (kPairs == 1 && kPlain) {
    return with_known(known_128(call.classes[0]), [](auto known) -> Kernel {
      constexpr Known128 kOwn = decodes_apart(kVector, kMany, known()) ? known() : Known128::kAny;
      if constexpr (is_pooled(kPairs, kPlain, kMany)) {
        return decode_pairs_kernel<kVector, kOwn>;
      } else {
        return decode_kernel<kVector, kPairs, kPlain, kMany, kOwn>;
      }
    });
  } else {
    return Kernel{decode_kernel<kVector, kPairs, kPlain, kMany, Known128::kAny>};
  }
}

// Pairs of a block that fills a multiprocessor of the current device; 0: not even one fits.
template <bool kVector>
cudaError_t pairs_of_block(const Call128& call, int32_t* pairs) {
  *pairs = 0;
  int device = 0;
  int room = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) {
    return error;
  }
  while (*pairs < kMostPairs && bytes_of_block<kVector>(call, *pairs + 1) <= room) ++*pairs;
  return cudaSuccess;
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

Shares shares_of(const Call128& call, int64_t blocks) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  return {static_cast<int32_t>(total / blocks), static_cast<int32_t>(total % blocks)};
}

// wanted: pairs of all blocks. Whole rounds of these where a block's list bounds its share.
template <bool kVector, bool kMany>
cudaError_t launch_pooled(const Call128& call, int32_t wanted, bool overlaps, cudaStream_t stream) {
  int32_t pairs = 0;
  if (const cudaError_t error = pairs_of_block<kVector>(call, &pairs)) return error;
  pairs = std::max(1, std::min(pairs, wanted));
  const int64_t total = int64_t{call.batch} * call.v_heads;
  const int64_t each = std::min<int64_t>((wanted + pairs - 1) / pairs, total);
  const int64_t most = each * most_heads_of_block(call.v_heads);  // of a round
  const int64_t blocks = each * ((total + most - 1) / most);
  const auto kernel = kernel_of<kVector, 1, true, kMany>(call);
  const int32_t bytes = bytes_of_block<kVector>(call, pairs);
  if (const cudaError_t error = share_memory_128(kernel, bytes)) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(64, static_cast<unsigned>(pairs));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = begins_early_128();
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, call, shares_of(call, blocks));
}

template <bool kVector, int kPairs, bool kPlain, bool kMany>
cudaError_t launch(const Call128& call, int32_t wanted, bool overlaps, bool shares,
                   cudaStream_t stream) {
  // The bitmap of deferred heads bounds a block's share.
  constexpr int64_t kMost = 32 * (kDeferredWords - 1);
  const int64_t total = int64_t{call.batch} * call.v_heads;
  const auto blocks = static_cast<int32_t>(
      std::max<int64_t>(std::min<int64_t>(wanted, total), (total + kMost - 1) / kMost));
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
  return cudaLaunchKernelEx(&config, kernel, call, shares_of(call, blocks));
}

}  // namespace

cudaError_t decode_128_resident_blocks(const Call128& call, bool vector, int32_t pairs,
                                       int32_t* blocks) {
  *blocks = 0;
  return with_kinds(call, vector, pairs,
                    [&]<bool kVector, int kPairs, bool kPlain, bool kMany>() -> cudaError_t {
                      if constexpr (is_pooled(kPairs, kPlain, kMany)) {
                        return pairs_of_block<kVector>(call, blocks);
                      } else {
                        const int32_t bytes = plan_for<kVector, kPairs, kPlain, kMany>(call).bytes;
                        const auto kernel = kernel_of<kVector, kPairs, kPlain, kMany>(call);
                        if (const cudaError_t error = share_memory_128(kernel, bytes)) return error;
                        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                            blocks, kernel, 64 * kPairs, static_cast<size_t>(bytes));
                      }
                    });
}

cudaError_t launch_decode_128(const Call128& call, bool vector, int32_t pairs, int32_t blocks,
                              bool overlaps, bool shares, cudaStream_t stream) {
  if (call.batch == 0 || call.v_heads == 0) return cudaSuccess;
  return with_kinds(call, vector, pairs, [&]<bool kVector, int kPairs, bool kPlain, bool kMany>() {
    if constexpr (is_pooled(kPairs, kPlain, kMany)) {
      return launch_pooled<kVector, kMany>(call, blocks, overlaps, stream);
    } else {
      return launch<kVector, kPairs, kPlain, kMany>(call, blocks, overlaps, shares, stream);
    }
  });
}

}  // namespace leapquant::cuda
