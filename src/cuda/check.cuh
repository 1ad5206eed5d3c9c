// SPDX-License-Identifier: Apache-2.0
//
// Faults of one sequence of a call but for its inputs: slots, positions against bases, repeated
// slots, checkpoints. A block of kBlockThreads has a sequence. No kernel here.
#pragma once

#include "cuda/block.cuh"

namespace leapquant::cuda {

__device__ inline int32_t tokens_of(const Call& call, int32_t tokens, int32_t i) {
  if (tokens < 0) return call.token_offsets[i + 1] - call.token_offsets[i];
  return tokens > 0 && call.num_tokens != nullptr ? call.num_tokens[i] : tokens;
}

// What is wrong whatever the pool holds.
__device__ inline int32_t slot_fault(const Call& call, int32_t i, int32_t tokens, int32_t most) {
  const int32_t slot = call.state_slots[i];
  if (slot >= call.num_state_slots) return LEAPQUANT_SLOT_OUT_OF_RANGE;
  if (call.per_step == 0) {
    const int32_t window = window_slot_of(call, i);
    if (window >= call.num_window_slots) return LEAPQUANT_SLOT_OUT_OF_RANGE;
    if (window < 0 && call.needs_window != 0 && tokens > 0) return LEAPQUANT_SLOT_OUT_OF_RANGE;
  }
  if (call.destination_slots != nullptr) {
    const int32_t to = call.destination_slots[i];
    if (to < 0 || to >= call.num_state_slots) return LEAPQUANT_SLOT_OUT_OF_RANGE;
  }
  const int32_t position = call.positions[i];
  if (tokens < 0 || tokens > most || position < 0 || position > 0x7fffffff - tokens) {
    return LEAPQUANT_INVALID_ARGUMENT;
  }
  if (call.token_offsets != nullptr && i == 0 && call.token_offsets[0] != 0) {
    return LEAPQUANT_INVALID_ARGUMENT;
  }
  return LEAPQUANT_OK;
}

// What the threads of a block find, in the order in which it is told.
inline constexpr uint32_t kBadCheckpoint = 1;
inline constexpr uint32_t kCheckpointOutOfRange = 2;
inline constexpr uint32_t kRepeated = 4;
inline constexpr uint32_t kBelowBase = 8;
inline constexpr uint32_t kPastWindow = 16;

__device__ inline int32_t status_of_findings(uint32_t found) {
  if ((found & kBadCheckpoint) != 0) return LEAPQUANT_INVALID_ARGUMENT;
  if ((found & kCheckpointOutOfRange) != 0) return LEAPQUANT_SLOT_OUT_OF_RANGE;
  if ((found & kRepeated) != 0) return LEAPQUANT_SLOT_REPEATED;
  if ((found & kBelowBase) != 0) return LEAPQUANT_POSITION_BELOW_BASE;
  return found != 0 ? LEAPQUANT_POSITION_PAST_WINDOW : LEAPQUANT_OK;
}

// A checkpoint's slot is a live sequence's or an earlier checkpoint's.
__device__ inline bool checkpoint_repeats(const Call& call, int32_t checkpoint) {
  const int32_t slot = call.checkpoints[checkpoint].state_slot;
  bool found = false;
  for (int32_t i = 0; i < call.batch; ++i) found = found || call.state_slots[i] == slot;
  for (int32_t c = 0; c < checkpoint; ++c) found = found || call.checkpoints[c].state_slot == slot;
  return found;
}

// Checkpoints of a sequence lie within it, in order, in slots of the pool that are theirs alone.
__device__ inline uint32_t checkpoint_faults(const Call& call, int32_t i, int32_t end,
                                             int32_t thread) {
  uint32_t found = 0;
  for (int32_t c = thread; c < call.num_checkpoints; c += kBlockThreads) {
    const leapquant_checkpoint& at = call.checkpoints[c];
    if (at.sequence != i) continue;
    const bool follows =
        c == 0 || call.checkpoints[c - 1].sequence < i ||
        (call.checkpoints[c - 1].sequence == i && call.checkpoints[c - 1].position < at.position);
    if (!follows || at.position <= call.positions[i] || at.position > end) found |= kBadCheckpoint;
    if (at.state_slot < 0 || at.state_slot >= call.num_state_slots) {
      found |= kCheckpointOutOfRange;
    } else if (checkpoint_repeats(call, c)) {
      found |= kRepeated;
    }
  }
  return found;
}

// A padding row has no state that a checkpoint could take.
__device__ inline uint32_t padding_faults(const Call& call, int32_t i, int32_t thread) {
  uint32_t found = 0;
  for (int32_t c = thread; c < call.num_checkpoints; c += kBlockThreads) {
    if (call.checkpoints[c].sequence == i) found |= kBadCheckpoint;
  }
  return found;
}

// An earlier live row writes the same slot, or another row reads the slot that a fold writes.
__device__ inline bool repeats(const Call& call, int32_t i, int32_t thread) {
  const int32_t* states =
      call.destination_slots != nullptr ? call.destination_slots : call.state_slots;
  const bool windows = call.per_step == 0 && call.window_slots != nullptr;
  bool found = false;
  for (int32_t other = thread; other < i; other += kBlockThreads) {
    if (call.state_slots[other] < 0) continue;
    found = found || states[other] == states[i];
    found = found || (windows && call.destination_slots == nullptr && call.window_slots[i] >= 0 &&
                      call.window_slots[other] == call.window_slots[i]);
  }
  if (call.destination_slots == nullptr) return found;
  for (int32_t other = thread; other < call.batch; other += kBlockThreads) {
    found = found || (other != i && call.state_slots[other] == states[i]);
  }
  return found;
}

// What is wrong with sequence i but for its inputs; by the whole block, all threads get it. `seen`
// is a word of shared memory. `call_tokens`: of a decode, 0: none, -1: those of token_offsets
// (prefill).
__device__ inline int32_t sequence_fault(const Call& call, int32_t i, int32_t call_tokens,
                                         int32_t* seen) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t slot = call.state_slots[i];
  const int32_t tokens = slot < 0 ? 0 : tokens_of(call, call_tokens, i);
  const int32_t most = call_tokens < 0 ? 0x7fffffff : call_tokens;
  const int32_t fault = slot < 0 ? LEAPQUANT_OK : slot_fault(call, i, tokens, most);
  __syncthreads();
  if (thread == 0) *seen = 0;
  __syncthreads();
  uint32_t found = 0;
  if (slot < 0) {
    if (call_tokens < 0) found = padding_faults(call, i, thread);
  } else if (fault == LEAPQUANT_OK) {
    if (call.writes_slots != 0 && repeats(call, i, thread)) found |= kRepeated;
    if (call_tokens < 0) found |= checkpoint_faults(call, i, call.positions[i] + tokens, thread);
    if (call.reads_records != 0 && (call_tokens == 0 || tokens > 0)) {
      const bool none = call.per_step != 0 || window_slot_of(call, i) < 0;
      const int32_t own = call.group > 1 && call_tokens > 0 && !none ? tokens : 0;
      const int64_t room = none ? 0 : call.ring_tokens - own;
      for (int32_t h = thread; h < call.v_heads; h += kBlockThreads) {
        const int64_t distance = int64_t{call.positions[i]} - call.base[head_index(call, slot, h)];
        if (distance < 0) found |= kBelowBase;
        if (distance > room) found |= kPastWindow;
      }
    }
  }
  if (found != 0) atomicOr(seen, static_cast<int32_t>(found));
  __syncthreads();
  return fault != LEAPQUANT_OK ? fault : status_of_findings(static_cast<uint32_t>(*seen));
}

}  // namespace leapquant::cuda
