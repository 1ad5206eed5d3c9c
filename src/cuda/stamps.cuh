// SPDX-License-Identifier: Apache-2.0
//
// When the kernels of a large call of heads of 128 x 128 are where. Only in builds with
// LEAPQUANT_STAMPS, of which bench/cuda/timeline.cu is one; in all others a stamp is nothing.
#pragma once

#include <cstdint>

#include "cuda/ptx.cuh"

namespace leapquant::cuda {

enum class Stamp : int32_t {
  kCheckBegins,
  kCheckEnds,
  kFoldsBegin,  // behind the check
  kListed,      // a team knows its heads
  // Of a team's turn at a head.
  kArrived,   // its records and state
  kPrepared,  // factors, scales, weights
  kRebuilt,   // the state in registers
  kCopied,    // normalised, and in shared memory as FP16
  kFitted,    // compensators are stored, the residual is left
  kEncoded,
  kFolded,  // sent
  kDecodeBegins,
  kDecodeEnds,  // of a pair of warps
  // Of a pair's turn at a head of one token: the warp that reads codes,
  kCodesTurn,
  kCodesInputs,    // its inputs are there
  kCodesPrepared,  // and widened, their lengths known
  kCodesThere,
  kCodesRead,
  kCodesMet,     // the other warp has the weights of rows
  kCodesSummed,  // value sides of rows
  kCodesLeft,    // neither reads the head's rows any more
  kCodesDone,
  // and that of rows.
  kRowsTurn,
  kRowsInputs,
  kRowsThere,
  kRowsWeighed,
  kRowsMet,
  kRowsSummed,
  kRowsLeft,
  kRowsDone,
  kCount
};

inline constexpr int32_t kStampTeams = 2048;  // of one kernel; what others do is not noted
inline constexpr int32_t kStampTurns = 16;

struct StampTime {
  uint64_t nanoseconds;  // of the device
  uint64_t cycles;       // of the multiprocessor; 0: never stamped
};

// Where a stamp lies in an array of kStampsOfCall.
inline constexpr int32_t kStampsOfCall =
    static_cast<int32_t>(Stamp::kCount) * kStampTeams * kStampTurns;
__host__ __device__ constexpr int32_t place_of(Stamp what, int32_t team, int32_t turn) {
  return (static_cast<int32_t>(what) * kStampTeams + team) * kStampTurns + turn;
}

// By threads of a team, a block or the threads of one threadIdx.y, of which `thread` is one.
template <typename Call>
__device__ __forceinline__ void stamp([[maybe_unused]] const Call& call,
                                      [[maybe_unused]] Stamp what,
                                      [[maybe_unused]] int32_t turn = 0,
                                      [[maybe_unused]] uint32_t thread = 0) {
#ifdef LEAPQUANT_STAMPS
  const auto team = static_cast<int32_t>(blockIdx.x * blockDim.y + threadIdx.y);
  if (threadIdx.x != thread || call.stamps == nullptr) return;
  if (team >= kStampTeams || turn >= kStampTurns) return;
  call.stamps[place_of(what, team, turn)] = {global_nanoseconds(),
                                             static_cast<uint64_t>(clock64())};
#endif
}

}  // namespace leapquant::cuda
