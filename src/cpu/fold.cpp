// SPDX-License-Identifier: Apache-2.0
//
// Rebuilding a state and folding it. Suffix sums of log decays run from the newest token backwards:
// no difference of sums, no division by a decay, no exponent above zero.
#include "cpu/fold.h"

#include <algorithm>
#include <cstring>

#include "core/numeric.h"
#include "core/position.h"
#include "cpu/backend_faults.h"
#include "cpu/inputs.h"
#include "cpu/simd.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fold.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// left [records][padded(K)] = keys times the decay of the later tokens, right [records][padded(V)]
// = corrections; factor [padded(K)] = decay of all tokens base..position-1.
void expand_records(const Layout& layout, int32_t v_head, const WindowView& window, int32_t base,
                    int32_t position, float* left, float* right, float* factor) {
  const FloatTag d;
  const int32_t k_dim = layout.shape.head_k_dim;
  const int32_t v_dim = layout.shape.head_v_dim;
  const int32_t key_stride = padded(k_dim);
  const int32_t stride = padded(v_dim);
  const int32_t steps = layout.shape.sub_steps;
  alignas(64) float later[256] = {0};
  for (int32_t i = 0; i < key_stride; i += kLanes) hn::Store(hn::Set(d, 1.0f), d, factor + i);
  for (int32_t token = position - 1; token >= base; --token) {
    const int64_t ring = token % layout.window.ring_tokens;
    for (int32_t j = 0; j < steps; ++j) {
      const int64_t record = ring * steps + j;
      const int64_t row = static_cast<int64_t>(token - base) * steps + j;
      alignas(64) uint16_t spare[256];
      const uint16_t* key = padded_row(window.keys + record * k_dim, k_dim, spare);
      for (int32_t i = 0; i < key_stride; i += kLanes) {
        hn::Store(hn::Mul(load_fp16(key + i), hn::Load(d, factor + i)), d,
                  left + row * key_stride + i);
      }
      const uint16_t* u = padded_row(window.corrections + record * v_dim, v_dim, spare);
      for (int32_t i = 0; i < stride; i += kLanes) {
        hn::Store(load_fp16(u + i), d, right + row * stride + i);
      }
    }
    if (layout.shape.decay == LEAPQUANT_DECAY_NONE) continue;
    if (layout.shape.decay == LEAPQUANT_DECAY_VECTOR) {
      alignas(64) float g[256];
      stored_vector_decay(layout, window, token, g);
      for (int32_t i = 0; i < key_stride; i += kLanes) {
        const auto sum = hn::Add(hn::Load(d, later + i), hn::Load(d, g + i));
        hn::Store(sum, d, later + i);
        hn::Store(decay_factor(sum), d, factor + i);
      }
      continue;
    }
    later[0] += stored_scalar_decay(layout, window, v_head, token);
    const auto decay = decay_factor(hn::Set(d, later[0]));
    for (int32_t i = 0; i < key_stride; i += kLanes) hn::Store(decay, d, factor + i);
  }
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::cpu {
namespace {

HWY_EXPORT(expand_records);

// Scratch of a rebuild: factors, then the state of fold_head, then the encoder's.
struct FoldScratch {
  float* factor;  // [padded(K)]
  float* left;    // [rank + records][padded(K)]
  float* right;   // [rank + records][padded(V)]
  float* state;   // [K][padded(V)]
  float* encode;

  FoldScratch(const Layout& layout, int32_t rank, std::byte* scratch) {
    const int64_t k = padded(layout.shape.head_k_dim);
    const int64_t v = padded(layout.shape.head_v_dim);
    const int64_t rows = rank + layout.window.records;
    factor = reinterpret_cast<float*>(scratch);
    left = factor + k;
    right = left + rows * k;
    state = right + rows * v;
    encode = state + layout.shape.head_k_dim * v;
  }
};

void rebuild_padded(const Layout& layout, int32_t v_head, const std::byte* boundary,
                    const WindowView& window, int32_t base, int32_t position,
                    const FoldScratch& scratch, float* state) {
  const BoundaryLayout& head = layout.head(v_head);
  const int32_t records = (position - base) * layout.shape.sub_steps;
  const float* factor = nullptr;
  if (records > 0) {
    LEAPQUANT_CPU_DISPATCH(expand_records)
    (layout, v_head, window, base, position,
     scratch.left + static_cast<int64_t>(head.rank) * padded(head.k_dim),
     scratch.right + static_cast<int64_t>(head.rank) * padded(head.v_dim), scratch.factor);
    factor = scratch.factor;
  }
  compose_state(head, boundary, factor, records, scratch.left, scratch.right, state);
}

int32_t destination_of(const leapquant_fold_args& args, int32_t sequence) {
  return args.destination_slots == nullptr ? args.state_slots[sequence]
                                           : args.destination_slots[sequence];
}

// One task folds one head of one sequence.
struct FoldCall {
  const Layout& layout;
  const leapquant_pool& pool;
  const leapquant_fold_args& args;
  const leapquant_launch& launch;

  void run(int32_t task, int32_t worker) const {
    const int32_t heads = layout.shape.num_v_heads;
    const int32_t sequence = task / heads;
    const int32_t v_head = task % heads;
    if (args.status[sequence] != LEAPQUANT_OK || args.state_slots[sequence] < 0) return;
    const int32_t to = destination_of(args, sequence);
    if (to < 0) return;
    const int32_t slot = args.state_slots[sequence];
    const int32_t position = args.positions[sequence];
    const int32_t base = base_of(layout, pool, slot, v_head);
    const std::byte* boundary = boundary_state(layout, pool, slot, v_head);
    std::byte* target = boundary_state(layout, pool, to, v_head);
    leapquant_health* health = health_of(layout, pool, to, v_head);
    if (to != slot && health != nullptr) *health = *health_of(layout, pool, slot, v_head);
    if (base == position) {
      if (to != slot) {
        std::memcpy(target, boundary, static_cast<size_t>(layout.head(v_head).bytes));
      }
    } else {
      const int32_t window_slot =
          window_slot_of(pool, args.state_slots, args.window_slots, sequence);
      fold_head(layout, v_head, boundary, window_view(layout, pool, window_slot, v_head), base,
                position, target, health,
                worker_scratch(launch, fold_scratch_bytes(layout), worker));
    }
    base_of(layout, pool, to, v_head) = position;
  }
};

}  // namespace

size_t fold_scratch_bytes(const Layout& layout) {
  int32_t rank = 0;
  size_t encode = 0;
  for (const BoundaryLayout& head : layout.classes) {
    rank = std::max(rank, head.rank);
    encode = std::max(encode, encode_scratch_bytes(head));
  }
  const FoldScratch end(layout, rank, nullptr);
  return static_cast<size_t>(reinterpret_cast<uintptr_t>(end.encode)) + encode;
}

void rebuild_state(const Layout& layout, int32_t v_head, const std::byte* boundary,
                   const WindowView& window, int32_t base, int32_t position, float* state,
                   std::byte* scratch_memory) {
  const FoldScratch scratch(layout, layout.head(v_head).rank, scratch_memory);
  const int32_t v_dim = layout.shape.head_v_dim;
  const int32_t stride = padded(v_dim);
  if (stride == v_dim) {
    rebuild_padded(layout, v_head, boundary, window, base, position, scratch, state);
    return;
  }
  rebuild_padded(layout, v_head, boundary, window, base, position, scratch, scratch.state);
  for (int32_t i = 0; i < layout.shape.head_k_dim; ++i) {
    std::memcpy(state + static_cast<int64_t>(i) * v_dim,
                scratch.state + static_cast<int64_t>(i) * stride,
                static_cast<size_t>(v_dim) * sizeof(float));
  }
}

void fold_head(const Layout& layout, int32_t v_head, const std::byte* boundary,
               const WindowView& window, int32_t base, int32_t position, std::byte* destination,
               leapquant_health* health, std::byte* scratch_memory) {
  const BoundaryLayout& head = layout.head(v_head);
  const FoldScratch scratch(layout, head.rank, scratch_memory);
  rebuild_padded(layout, v_head, boundary, window, base, position, scratch, scratch.state);
  encode_padded(head, FitKind::kFormat, boundary, scratch.state, destination, health,
                scratch.encode);
}

Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_fold_args& args,
            const leapquant_launch& launch) {
  for (int32_t i = 0; i < args.batch; ++i) {
    args.status[i] = LEAPQUANT_OK;
    if (args.state_slots[i] < 0 || destination_of(args, i) < 0) continue;
    const int32_t window_slot = window_slot_of(pool, args.state_slots, args.window_slots, i);
    args.status[i] =
        position_fault(layout, pool, args.state_slots[i], window_slot, args.positions[i], 0);
  }
  const FoldCall call{layout, pool, args, launch};
  run_tasks(
      launch, args.batch * layout.shape.num_v_heads,
      [](void* argument, int32_t task, int32_t worker) {
        static_cast<const FoldCall*>(argument)->run(task, worker);
      },
      const_cast<FoldCall*>(&call));
  return LEAPQUANT_OK;
}

}  // namespace leapquant::cpu
#endif  // HWY_ONCE
