// SPDX-License-Identifier: Apache-2.0
//
// Forced folds, export, import and reset on the general kernels: a block per value head. Each of
// them is a rebuild, an encoding, or both.
#include "cuda/codec.cuh"
#include "cuda/operations.cuh"

namespace leapquant::cuda {
namespace {

// What a block does with a head.
enum class Work { kFold, kExport, kImport, kReset };

struct Head {
  int32_t sequence, v_head, slot, position;
};

__device__ leapquant_health* health_at(const Call& call, int32_t slot, int32_t v_head) {
  return call.health != nullptr ? call.health + head_index(call, slot, v_head) : nullptr;
}

__device__ void rebuild(const Call& call, const Block& block, const Head& head) {
  const int32_t window_slot = window_slot_of(call, head.sequence);
  const Window window = window_slot < 0 ? Window{} : window_of(call, window_slot, head.v_head);
  rebuild_state(call, block, format_of(call, head.v_head),
                boundary_of(call, head.slot, head.v_head), window, head.v_head,
                call.base[head_index(call, head.slot, head.v_head)], head.position);
}

__device__ void fold_head(const Call& call, const Block& block, const Head& head) {
  const HeadFormat& f = format_of(call, head.v_head);
  const int32_t to =
      call.destination_slots != nullptr ? call.destination_slots[head.sequence] : head.slot;
  const char* source = boundary_of(call, head.slot, head.v_head);
  char* target = boundary_of(call, to, head.v_head);
  const int32_t base = call.base[head_index(call, head.slot, head.v_head)];
  leapquant_health* health = health_at(call, to, head.v_head);
  if (to != head.slot && health != nullptr && block.thread == 0) {
    *health = *health_at(call, head.slot, head.v_head);
  }
  if (base == head.position) {
    for (int32_t i = block.thread; i < f.bytes / 16 && to != head.slot; i += kBlockThreads) {
      reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(source)[i];
    }
  } else {
    rebuild(call, block, head);
    encode_state(block, f, source, target, health);
  }
  __syncthreads();
  if (block.thread == 0) call.base[head_index(call, to, head.v_head)] = head.position;
}

// Visits (entry of the state, entry of the caller's matrix), the latter one after another.
template <typename Visit>
__device__ void for_each_entry(const Call& call, const Block& block, const Visit& visit) {
  const int32_t entries = block.k_dim * block.v_dim;
  for (int32_t e = block.thread; e < entries; e += kBlockThreads) {
    if (call.transposed == 0) {
      visit(e, e);
    } else {
      const int32_t j = e / block.k_dim;
      visit((e - j * block.k_dim) * block.v_dim + j, e);
    }
  }
}

__device__ char* matrix_of(const Call& call, const Head& head) {
  return call.matrices + head.sequence * call.matrix_sequence + head.v_head * call.matrix_head;
}

// The records of the fold that is left out are the exported state's too.
__device__ void export_head(const Call& call, const Block& block, const Head& head, bool alive) {
  if (alive) rebuild(call, block, head);
  char* matrix = matrix_of(call, head);
  for_each_entry(call, block, [&](int32_t from, int32_t to) {
    store_number(matrix, call.matrix_type, to, alive ? block.state[from] : 0.0f);
  });
}

// A state from outside, or the zero state, as a first fold.
__device__ void encode_fresh(const Call& call, const Block& block, const Head& head) {
  leapquant_health* health = health_at(call, head.slot, head.v_head);
  if (health != nullptr && block.thread == 0) *health = leapquant_health{};
  encode_state(block, format_of(call, head.v_head), nullptr,
               boundary_of(call, head.slot, head.v_head), health);
  if (block.thread == 0) {
    call.base[head_index(call, head.slot, head.v_head)] = head.position;
  }
}

__global__ void __launch_bounds__(kBlockThreads, 2)
    state_kernel(const __grid_constant__ Call call, Work work) {
  extern __shared__ __align__(64) char shared[];
  const Block block(call, shared);
  const int64_t items = int64_t{call.batch} * call.num_heads;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    Head head;
    head.sequence = static_cast<int32_t>(index / call.num_heads);
    head.v_head =
        call.first_head + static_cast<int32_t>(index - int64_t{head.sequence} * call.num_heads);
    head.slot = call.state_slots[head.sequence];
    head.position = call.positions[head.sequence];
    const bool alive = head.slot >= 0 && call.status[head.sequence] == LEAPQUANT_OK;
    if (work == Work::kExport) {
      export_head(call, block, head, alive);
    } else if (alive && work == Work::kFold) {
      fold_head(call, block, head);
    } else if (alive) {
      const char* matrix = work == Work::kImport ? matrix_of(call, head) : nullptr;
      for_each_entry(call, block, [&](int32_t to, int32_t from) {
        block.state[to] = matrix != nullptr ? load_number(matrix, call.matrix_type, from) : 0.0f;
      });
      encode_fresh(call, block, head);
    }
    __syncthreads();
  }
}

cudaError_t launch(const Layout& layout, Call* call, Work work, cudaStream_t stream) {
  const auto kernel = state_kernel;
  if (const cudaError_t error = allow_shared(kernel, *call)) return error;
  return for_head_ranges(layout, call, [&](const Call& part) {
    kernel<<<grid_of(part), kBlockThreads, static_cast<size_t>(part.scratch.shared_bytes),
             stream>>>(part, work);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t fold_general(const Layout& layout, Call* call, cudaStream_t stream) {
  if (const cudaError_t error = launch_checks(*call, 0, stream)) return error;
  return launch(layout, call, Work::kFold, stream);
}

cudaError_t export_general(const Layout& layout, Call* call, cudaStream_t stream) {
  call->writes_slots = 0;
  if (const cudaError_t error = launch_checks(*call, 0, stream)) return error;
  return launch(layout, call, Work::kExport, stream);
}

cudaError_t import_general(const Layout& layout, Call* call, cudaStream_t stream) {
  call->reads_records = 0;
  if (const cudaError_t error = launch_checks(*call, 0, stream)) return error;
  if (const cudaError_t error = launch_matrix_check(*call, stream)) return error;
  return launch(layout, call, Work::kImport, stream);
}

cudaError_t reset_general(const Layout& layout, Call* call, cudaStream_t stream) {
  call->reads_records = 0;
  if (const cudaError_t error = launch_checks(*call, 0, stream)) return error;
  return launch(layout, call, Work::kReset, stream);
}

}  // namespace leapquant::cuda
