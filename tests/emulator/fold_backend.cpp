// SPDX-License-Identifier: Apache-2.0
//
// The fold kernel, compiled for the host and launched on emulated multiprocessors.
#include "emulator/fold_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "emulator/device_code.h"
#include "emulator/machine.h"
#include "emulator/payload_order.h"
#include "reference/backend.h"

// After device_code.h.
#include "cuda/fold_kernel_128.cuh"

namespace leapquant::cuda::folding_128 {
// The kernel's dynamic shared memory: all that a block of compute capability 9.0 may have.
alignas(128) char all_shared[227 * 1024];
}  // namespace leapquant::cuda::folding_128

namespace leapquant::emulator {
namespace {

using cuda::Call128;
namespace folding = cuda::folding_128;

Status say(const std::string& sentence) {
  std::fprintf(stderr, "emulated fold: %s\n", sentence.c_str());
  return LEAPQUANT_INTERNAL;
}

// What a fold may write, with codes in the device's order.
struct Copies {
  std::vector<std::byte> states;
  std::vector<int32_t> base;
  std::vector<leapquant_health> health;

  Copies(const Layout& layout, const leapquant_pool& pool) {
    const auto* from = static_cast<const std::byte*>(pool.states);
    const int64_t all = (pool.num_state_slots - 1) * pool.state_stride_bytes + layout.state_bytes;
    const auto heads = int64_t{pool.num_state_slots} * layout.shape.num_v_heads;
    states.assign(from, from + all);
    base.assign(pool.base, pool.base + heads);
    health.assign(pool.health, pool.health + heads);
    reorder(layout, pool.state_stride_bytes, &states, memory_of_cuda().from_canonical);
  }
  leapquant_pool pool_like(const leapquant_pool& pool) {
    leapquant_pool own = pool;
    own.states = states.data();
    own.base = base.data();
    own.health = health.data();
    return own;
  }
  bool same_as(const Copies& other) const {
    return states == other.states && base == other.base &&
           std::memcmp(health.data(), other.health.data(), health.size() * sizeof(health[0])) == 0;
  }
};

// As src/cuda/fold_128.cu launches it.
template <bool kVector, bool kPlain>
std::string launch(const Call128& call, uint32_t blocks, const Setting& setting) {
  const folding::Plan plan = folding::plan_for(call, kVector);
  const auto bytes = static_cast<uint32_t>(folding::team_bytes(plan));
  const uint32_t teams = folding::kMostTeams * bytes <= sizeof(folding::all_shared) ? 2 : 1;
  return run(blocks, {folding::kThreads, teams}, folding::all_shared, teams * bytes, setting, [&] {
    if constexpr (kPlain) {
      folding::with_kinds_of_one<kVector>(call, [&](auto fits, auto known) {
        folding::fold_kernel<kVector, kPlain, fits(), known()>(call, plan);
      });
    } else {
      folding::with_fits(folding::fits_of(call), [&](auto fits) {
        folding::fold_kernel<kVector, kPlain, fits(), cuda::Known128::kAny>(call, plan);
      });
    }
  });
}
std::string launch(const Call128& call, bool vector, uint32_t blocks, const Setting& setting) {
  if (vector) {
    return call.plain ? launch<true, true>(call, blocks, setting)
                      : launch<true, false>(call, blocks, setting);
  }
  return call.plain ? launch<false, true>(call, blocks, setting)
                    : launch<false, false>(call, blocks, setting);
}

Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
            uint32_t blocks, const Setting& setting) {
  Call128 call;
  if (!cuda::make_call_128(layout, pool, args, &call)) return say("the call is not served");
  const std::string failure =
      launch(call, layout.shape.decay == LEAPQUANT_DECAY_VECTOR, blocks, setting);
  return failure.empty() ? LEAPQUANT_OK : say(failure);
}

// Packed FP32 rows in BF16: a fold asks of them no more than whether they are finite.
std::vector<uint16_t> narrowed(leapquant_tensor* tensor, int64_t count) {
  const auto* from = static_cast<const float*>(tensor->data);
  std::vector<uint16_t> to;
  for (int64_t i = 0; i < count; ++i) to.push_back(float_to_bf16(from[i]));
  tensor->data = to.data();
  tensor->type = LEAPQUANT_BF16;
  return to;
}

Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch& with) {
  const leapquant_inputs& in = args.inputs;
  if (in.q.type != LEAPQUANT_FP32 || in.q.token_stride_bytes != 0) {
    return say("the call has no packed FP32 inputs");
  }
  Copies first(layout, pool);
  if (Status s = fold(layout, first.pool_like(pool), args, 1, {0, 0xff})) return s;

  if (std::equal(first.base.begin(), first.base.end(), pool.base)) {  // nothing was due
    return reference::backend().decode(layout, pool, args, with);
  }
  leapquant_decode_args narrow = args;
  const int64_t rows = int64_t{args.batch} * args.tokens * 128;
  const auto q = narrowed(&narrow.inputs.q, rows * layout.shape.num_k_heads);
  const auto k = narrowed(&narrow.inputs.k, rows * layout.shape.num_k_heads);
  const auto v = narrowed(&narrow.inputs.v, rows * layout.shape.num_v_heads);
  narrow.output.type = LEAPQUANT_BF16;
  Copies second(layout, pool);
  if (Status s = fold(layout, second.pool_like(pool), narrow, 3, {8401, 0x35})) return s;
  if (!first.same_as(second))
    return say("bits hang on the order of threads, the launch, or what was there before");

  reorder(layout, pool.state_stride_bytes, &first.states, memory_of_cuda().to_canonical);
  std::memcpy(pool.states, first.states.data(), first.states.size());
  std::memcpy(pool.base, first.base.data(), first.base.size() * sizeof(int32_t));
  std::memcpy(pool.health, first.health.data(), first.health.size() * sizeof(leapquant_health));
  return reference::backend().decode(layout, pool, args, with);
}

}  // namespace

const conformance::TestBackend& fold_backend() {
  static const Backend table = [] {
    Backend own = reference::backend();
    own.name = "emulated";
    own.target = [] { return "emulated fold"; };
    own.accepts = cuda::accepts_decode_128;
    own.decode = decode;
    return own;
  }();
  static const conformance::TestBackend backend = {"emulated", &table, ""};
  return backend;
}

}  // namespace leapquant::emulator
