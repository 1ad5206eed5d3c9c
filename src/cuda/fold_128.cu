// SPDX-License-Identifier: Apache-2.0
//
// Launches of the folds of heads of 128 x 128 that are due in a decode call. The kernel itself is
// fold_kernel_128.cuh.
#include <algorithm>

#include "cuda/fold_kernel_128.cuh"
#include "cuda/fold_known_128.cuh"
#include "cuda/launch_128.cuh"

namespace leapquant::cuda {
namespace {

using namespace folding_128;

FoldKernel kernel_of(const Call128& call, bool vector) {
  if (FoldKernel known = known_fold_kernel(call, vector)) return known;
  if (call.plain) {  // of one format
    return with_fits_of_one(fits_of(call), [&](auto fits) -> FoldKernel {
      return vector ? fold_kernel<true, true, fits(), Known128::kAny>
                    : fold_kernel<false, true, fits(), Known128::kAny>;
    });
  }
  return with_fits(fits_of(call), [&](auto fits) -> FoldKernel {
    return vector ? fold_kernel<true, false, fits(), Known128::kAny>
                  : fold_kernel<false, false, fits(), Known128::kAny>;
  });
}

// A launch but for the grid.
struct Launch {
  FoldKernel kernel;
  cudaLaunchConfig_t config;
  cudaLaunchAttribute attribute;
};

// group: blocks of a cluster. Two teams a block, one where shared memory has no room for two.
cudaError_t prepare(const Call128& call, bool vector, int32_t group, Launch* launch) {
  *launch = {};
  launch->kernel = kernel_of(call, vector);
  int device = 0;
  int room = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  const int32_t bytes = team_bytes(plan_for(call, vector));
  const int32_t teams = kMostTeams * bytes <= room ? kMostTeams : 1;
  launch->config.gridDim = dim3(static_cast<unsigned>(group));
  launch->config.blockDim = dim3(kThreads, static_cast<unsigned>(teams));
  launch->config.dynamicSmemBytes = static_cast<size_t>(teams * bytes);
  error = share_memory_128(launch->kernel, teams * bytes);
  if (error != cudaSuccess) return error;
  launch->config.attrs = &launch->attribute;
  if (group == 1) {
    launch->attribute = begins_early_128();
    launch->config.numAttrs = call.checked != 0 ? 1 : 0;  // starts while the check ends
    return cudaSuccess;
  }
  // Not while the check ends: the device makes clusters up of what is free, and would leave half of
  // a pair of multiprocessors here and there to decode.
  launch->attribute = clusters_of_128(group);
  launch->config.numAttrs = 1;
  return cudaFuncSetAttribute(launch->kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

}  // namespace

cudaError_t groups_that_fold_128(const Call128& call, bool vector, int32_t* groups) {
  *groups = 0;
  Launch launch;
  if (cudaError_t e = prepare(call, vector, kFoldGroup128, &launch)) return e;
  if (launch.config.blockDim.y < kMostTeams) return cudaSuccess;  // others would fit beside it
  if (cudaOccupancyMaxActiveClusters(groups, launch.kernel, &launch.config) != cudaSuccess) {
    cudaGetLastError();  // the device has no clusters of this size; other faults show at the launch
    *groups = 0;
  }
  return cudaSuccess;
}

cudaError_t launch_fold_128(const Call128& call, bool vector, int32_t blocks, bool groups,
                            cudaStream_t stream) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  if (total == 0) return cudaSuccess;
  Launch launch;
  if (cudaError_t e = prepare(call, vector, groups ? kFoldGroup128 : 1, &launch)) return e;
  launch.config.gridDim =
      dim3(static_cast<unsigned>(groups ? blocks : std::min<int64_t>(blocks, total)));
  launch.config.stream = stream;
  return cudaLaunchKernelEx(&launch.config, launch.kernel, call, plan_for(call, vector));
}

}  // namespace leapquant::cuda
