// SPDX-License-Identifier: Apache-2.0
//
// Launch of the decode of small batches in one grid; which calls it serves. The kernel itself is
// small_kernel_128.cuh.
#include "cuda/small_128.cuh"

#include "cuda/small_kernel_128.cuh"

namespace leapquant::cuda {

bool small_128_serves(const Call128& call, bool vector, int32_t processors, int32_t room) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  return call.plain != 0 && !vector && call.tokens == 1 && total <= 2 * processors &&
         small_128::places_of(call).bytes <= room;
}

cudaError_t launch_small_128(const Call128& call, cudaStream_t stream) {
  if (call.batch == 0 || call.v_heads == 0) return cudaSuccess;
  const auto kernel = small_128::small_kernel;
  const small_128::Places places = small_128::places_of(call);
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, places.bytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.v_heads), static_cast<unsigned>(call.batch));
  config.blockDim = dim3(small_128::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(places.bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Call128 checked = call;
  checked.checked = 1;  // by the block itself, before its fold
  return cudaLaunchKernelEx(&config, kernel, checked, places);
}

}  // namespace leapquant::cuda
