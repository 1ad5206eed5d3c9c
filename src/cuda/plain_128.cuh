// SPDX-License-Identifier: Apache-2.0
//
// Decode of plain BF16 and FP32 states of heads of 128 x 128, windowed and per step: which layouts
// and calls it serves, where the parts of a block's shared memory lie, and the launches. What a
// call needs beyond this goes to the general kernels.
#pragma once

#include "core/sentence.h"
#include "cuda/call.cuh"

namespace leapquant::cuda {

// OK when these kernels serve this layout; else UNSUPPORTED with the reason.
Status accepts_plain_128(const Layout& layout, Sentence* why_not);
// True when they serve this call of such a layout: no read keys, no output hooks.
bool serves_plain_128(const Call& call);
// Checks the sequences, then decodes. Tensors and sequence arrays are filled by the caller.
cudaError_t decode_plain_128(const Layout& layout, Call* call, cudaStream_t stream);
// Writes call.status of every sequence; lets the launch after it begin at once.
cudaError_t launch_plain_checks_128(const Call& call, cudaStream_t stream);

inline constexpr int32_t kPlainThreads = 128;  // a block has a head, a thread a channel
inline constexpr int32_t kPlainRecords = 32;   // a lane holds one record's log decay

// Byte offsets into a block's shared memory.
struct PlainPlan {
  int32_t state;        // [128][128] of the format
  int32_t corrections;  // [ring][128] FP16
  int32_t left;         // vector decays: [ring][128] FP32, keys times the decay of later tokens
  int32_t scaled;       // vector decays: [128] pairs of reads times the boundary state's decay
  int32_t reads;        // [128] pairs: read key and query, each times the token's own decay
  int32_t update;       // per step: [128] pairs: decay and write key
  int32_t sums;         // [2][2][128] what the reads find, two parts of the rows
  int32_t u;            // [128] corrections of the token
  int32_t weights;      // [2][kPlainRecords]
  int32_t small;        // two barriers; sums of the warps
  int32_t bytes;
};

constexpr PlainPlan plain_plan(int32_t bits, bool vector, bool per_step, int32_t ring) {
  PlainPlan plan = {};
  int32_t at = 0;
  const auto take = [&at](int32_t bytes) {
    const int32_t start = at;
    at += bytes;
    return start;
  };
  plan.state = take(128 * 128 * bits / 8);
  plan.corrections = take(per_step ? 0 : 256 * ring);
  plan.left = take(!per_step && vector ? 512 * ring : 0);
  plan.scaled = take(!per_step && vector ? 1024 : 0);
  plan.reads = take(1024);
  plan.update = take(per_step ? 1024 : 0);
  plan.sums = take(bits == 16 ? 2048 : 1024);
  plan.u = take(512);
  plan.weights = take(per_step ? 0 : 8 * kPlainRecords);
  plan.small = take(160);
  plan.bytes = at;
  return plan;
}

}  // namespace leapquant::cuda
