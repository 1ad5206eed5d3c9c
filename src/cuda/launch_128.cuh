// SPDX-License-Identifier: Apache-2.0
//
// What launches of the kernels for heads of 128 x 128 have in common: host code only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace leapquant::cuda {

// Lets a kernel have `bytes` of dynamic shared memory. All kernels of a call want the same split of
// a multiprocessor's memory: it changes only when the multiprocessor is empty, and checks, folds
// and decode should run beside each other.
template <typename... Parameters>
cudaError_t share_memory_128(void (*kernel)(Parameters...), int32_t bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// A launch that may begin when all blocks of the one before it in the stream allow or end it.
inline cudaLaunchAttribute begins_early_128() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Clusters of so many blocks.
inline cudaLaunchAttribute clusters_of_128(int32_t blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

}  // namespace leapquant::cuda
