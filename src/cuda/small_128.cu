// SPDX-License-Identifier: Apache-2.0
//
// Launch of the decode of small batches in one grid; which calls it serves. The kernel itself is
// small_kernel_128.cuh.
#include "cuda/small_128.cuh"

#include <algorithm>

#include "cuda/launch_128.cuh"
#include "cuda/small_kernel_128.cuh"

namespace leapquant::cuda {

bool small_128_serves(const Call128& call, bool vector, int32_t processors, int32_t shared,
                      int32_t room) {
  if (call.plain == 0 || vector || call.tokens != 1) return false;
  // A block reserves 1 KiB more than it asks for. Up to twice the heads that the device holds at
  // once: with more, blocks of many heads are as fast (measured for `int8`).
  const int32_t bytes = small_128::places_of(call).bytes;
  const int64_t resident = std::min(2, shared / ((bytes + 1024 + 127) & ~127));
  return bytes <= room && int64_t{call.batch} * call.v_heads <= 2 * resident * processors;
}

cudaError_t launch_small_128(const Call128& call, cudaStream_t stream) {
  if (call.batch == 0 || call.v_heads == 0) return cudaSuccess;
  const auto kernel = small_128::with_kinds(
      call, [](auto fits, auto known) -> void (*)(Call128, small_128::Places) {
        return small_128::small_kernel<fits(), known()>;
      });
  const small_128::Places places = small_128::places_of(call);
  if (const cudaError_t error = share_memory_128(kernel, places.bytes)) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.v_heads), static_cast<unsigned>(call.batch));
  config.blockDim = dim3(small_128::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(places.bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = begins_early_128();
  config.attrs = &attribute;
  config.numAttrs = 1;
  Call128 checked = call;
  checked.checked = 1;  // by the block itself, before its fold
  return cudaLaunchKernelEx(&config, kernel, checked, places);
}

}  // namespace leapquant::cuda
