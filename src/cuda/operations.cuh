// SPDX-License-Identifier: Apache-2.0
//
// Host entry points of the general kernels: each checks its sequences in a launch of its own, then
// serves them. All launches go into the stream; nothing waits.
#pragma once

#include "cuda/call.cuh"

namespace leapquant::cuda {

// Finds the faults of every sequence and writes call.status. `tokens`: of a decode, 0: none, -1:
// those of token_offsets (prefill).
cudaError_t launch_checks(const Call& call, int32_t tokens, cudaStream_t stream);
// The same in two launches of their own: all but the inputs, then the inputs of a prefill. beside:
// while the launch before it, which triggers dependents, may still be at work; it is done when
// the check is.
cudaError_t launch_sequence_checks(const Call& call, int32_t tokens, cudaStream_t stream);
cudaError_t launch_prefill_input_checks(const Call& call, bool beside, cudaStream_t stream);
// Matrices to import that are not finite fault their sequence.
cudaError_t launch_matrix_check(const Call& call, cudaStream_t stream);

// Fills what the layout and the struct do not say, then launches. The call's sequence arrays and
// tensors are filled by the caller.
cudaError_t decode_general(const Layout& layout, Call* call, cudaStream_t stream);
cudaError_t prefill_general(const Layout& layout, Call* call, cudaStream_t stream);
cudaError_t fold_general(const Layout& layout, Call* call, cudaStream_t stream);
cudaError_t export_general(const Layout& layout, Call* call, cudaStream_t stream);
cudaError_t import_general(const Layout& layout, Call* call, cudaStream_t stream);
cudaError_t reset_general(const Layout& layout, Call* call, cudaStream_t stream);

// Raw copies between slots; the slots lie in device memory, call.status tells the rows left alone.
struct CopySlots {
  const int32_t* source_states;
  const int32_t* source_windows;
  const int32_t* destination_states;
  const int32_t* destination_windows;
  int64_t state_bytes, window_bytes;
};
cudaError_t copy_general(const Call& call, const CopySlots& slots, cudaStream_t stream);
cudaError_t clear_windows(const Call& call, int64_t window_bytes, cudaStream_t stream);

// Whether the current device has code of this library: the error of asking for it.
cudaError_t find_kernels();

// Lets a kernel use the call's shared memory.
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, const Call& call) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              call.scratch.shared_bytes);
}

}  // namespace leapquant::cuda
