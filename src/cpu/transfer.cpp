// SPDX-License-Identifier: Apache-2.0
//
// Export rebuilds and rounds once; import is a cold fold of the given matrix. Plain loops: these
// run once per state, and the codec and the rebuild they call are the vectorised parts.
#include "cpu/transfer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/numeric.h"
#include "core/pool.h"
#include "cpu/backend_faults.h"
#include "cpu/codec.h"
#include "cpu/fold.h"

namespace leapquant::cpu {
namespace {

struct Call {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_transfer_args& args;
  const leapquant_launch& launch;
};

size_t matrix_bytes(const Layout& layout) {
  const size_t count =
      static_cast<size_t>(layout.shape.head_k_dim) * static_cast<size_t>(layout.shape.head_v_dim);
  return (count * sizeof(float) + 63) / 64 * 64;
}

// A worker's scratch: one plain matrix, then what rebuilding and encoding need.
struct MatrixScratch {
  float* state;
  std::byte* rest;
};

MatrixScratch matrix_scratch(const Layout& layout, const leapquant_launch& launch, int32_t worker) {
  std::byte* start = worker_scratch(launch, transfer_worker_bytes(layout), worker);
  return {reinterpret_cast<float*>(start), start + matrix_bytes(layout)};
}

std::byte* caller_matrix(const Call& call, int32_t sequence, int32_t v_head) {
  const leapquant_shape& shape = call.layout.shape;
  const int64_t size = call.args.type == LEAPQUANT_FP32 ? 4 : 2;
  const int64_t head = call.args.head_stride_bytes != 0
                           ? call.args.head_stride_bytes
                           : int64_t{shape.head_k_dim} * shape.head_v_dim * size;
  const int64_t whole = call.args.sequence_stride_bytes != 0 ? call.args.sequence_stride_bytes
                                                             : head * shape.num_v_heads;
  return static_cast<std::byte*>(call.args.matrices) + sequence * whole + v_head * head;
}

// Index of entry (row, column) of S in the caller's matrix is row * row_step + column *
// column_step.
struct Steps {
  int64_t row;
  int64_t column;
};

Steps steps_of(const Call& call) {
  if (call.args.order == LEAPQUANT_KV) return {call.layout.shape.head_v_dim, 1};
  return {1, call.layout.shape.head_k_dim};
}

template <class Visit>
void for_each_entry(const Call& call, const Visit& visit) {
  const leapquant_shape& shape = call.layout.shape;
  const Steps steps = steps_of(call);
  for (int64_t i = 0; i < shape.head_k_dim; ++i) {
    for (int64_t j = 0; j < shape.head_v_dim; ++j) {
      visit(i * shape.head_v_dim + j, i * steps.row + j * steps.column);
    }
  }
}

// A null state writes zeros.
void write_matrix(const Call& call, const float* state, std::byte* matrix) {
  if (call.args.type == LEAPQUANT_FP32) {
    for_each_entry(call, [&](int64_t from, int64_t to) {
      const float value = state == nullptr ? 0.0f : state[from];
      std::memcpy(matrix + 4 * to, &value, 4);
    });
  } else {
    for_each_entry(call, [&](int64_t from, int64_t to) {
      const uint16_t value = state == nullptr ? uint16_t{0} : float_to_bf16(state[from]);
      std::memcpy(matrix + 2 * to, &value, 2);
    });
  }
}

void read_matrix(const Call& call, const std::byte* matrix, float* state) {
  if (call.args.type == LEAPQUANT_FP32) {
    for_each_entry(
        call, [&](int64_t to, int64_t from) { std::memcpy(&state[to], matrix + 4 * from, 4); });
  } else {
    for_each_entry(call, [&](int64_t to, int64_t from) {
      uint16_t value;
      std::memcpy(&value, matrix + 2 * from, 2);
      state[to] = bf16_to_float(value);
    });
  }
}

void export_head(void* argument, int32_t task, int32_t worker) {
  const Call& call = *static_cast<const Call*>(argument);
  const int32_t sequence = task / call.layout.shape.num_v_heads;
  const int32_t v_head = task % call.layout.shape.num_v_heads;
  const int32_t slot = call.args.state_slots[sequence];
  std::byte* matrix = caller_matrix(call, sequence, v_head);
  if (slot < 0 || call.args.status[sequence] != LEAPQUANT_OK) {
    write_matrix(call, nullptr, matrix);
    return;
  }
  const MatrixScratch scratch = matrix_scratch(call.layout, call.launch, worker);
  const int32_t window_slot =
      window_slot_of(call.pool, call.args.state_slots, call.args.window_slots, sequence);
  const WindowView window =
      window_slot < 0 ? WindowView{} : window_view(call.layout, call.pool, window_slot, v_head);
  rebuild_state(call.layout, v_head, boundary_state(call.layout, call.pool, slot, v_head), window,
                base_of(call.layout, call.pool, slot, v_head), call.args.positions[sequence],
                scratch.state, scratch.rest);
  write_matrix(call, scratch.state, matrix);
}

void check_matrices(void* argument, int32_t sequence, int32_t) {
  const Call& call = *static_cast<const Call*>(argument);
  call.args.status[sequence] = LEAPQUANT_OK;
  if (call.args.state_slots[sequence] < 0) return;
  for (int32_t h = 0; h < call.layout.shape.num_v_heads; ++h) {
    const std::byte* matrix = caller_matrix(call, sequence, h);
    const int64_t count = int64_t{call.layout.shape.head_k_dim} * call.layout.shape.head_v_dim;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      if (call.args.type == LEAPQUANT_FP32) {
        float value;
        std::memcpy(&value, matrix + 4 * i, 4);
        finite &= std::isfinite(value);
      } else {
        uint16_t value;
        std::memcpy(&value, matrix + 2 * i, 2);
        finite &= std::isfinite(bf16_to_float(value));
      }
    }
    if (!finite) call.args.status[sequence] = LEAPQUANT_NON_FINITE_INPUT;
  }
}

void import_head(void* argument, int32_t task, int32_t worker) {
  const Call& call = *static_cast<const Call*>(argument);
  const int32_t sequence = task / call.layout.shape.num_v_heads;
  const int32_t v_head = task % call.layout.shape.num_v_heads;
  const int32_t slot = call.args.state_slots[sequence];
  if (slot < 0 || call.args.status[sequence] != LEAPQUANT_OK) return;
  const MatrixScratch scratch = matrix_scratch(call.layout, call.launch, worker);
  read_matrix(call, caller_matrix(call, sequence, v_head), scratch.state);
  leapquant_health* health = health_of(call.layout, call.pool, slot, v_head);
  if (health != nullptr) *health = {};
  encode_boundary(call.layout.head(v_head), FitKind::kCold, nullptr, scratch.state,
                  boundary_state(call.layout, call.pool, slot, v_head), health,
                  reinterpret_cast<float*>(scratch.rest));
  base_of(call.layout, call.pool, slot, v_head) = call.args.positions[sequence];
}

}  // namespace

size_t transfer_worker_bytes(const Layout& layout) {
  size_t rest = fold_scratch_bytes(layout);
  for (const BoundaryLayout& head : layout.classes)
    rest = std::max(rest, encode_scratch_bytes(head));
  return matrix_bytes(layout) + (rest + 63) / 64 * 64;
}

Status export_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch) {
  Call call = {layout, pool, args, launch};
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    if (args.state_slots[i] < 0) continue;
    args.status[i] = position_fault(layout, pool, args.state_slots[i],
                                    window_slot_of(pool, args.state_slots, args.window_slots, i),
                                    args.positions[i], 0);
  }
  run_tasks(launch, args.batch * layout.shape.num_v_heads, export_head, &call);
  return LEAPQUANT_OK;
}

Status import_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch) {
  Call call = {layout, pool, args, launch};
  run_tasks(launch, args.batch, check_matrices, &call);
  run_tasks(launch, args.batch * layout.shape.num_v_heads, import_head, &call);
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
