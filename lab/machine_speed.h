// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do at best with memory and with multiply-adds, measured with plain loops:
// the floors that benchmarks are compared with. It knows nothing of states.
#ifndef LEAPQUANT_LAB_MACHINE_SPEED_H_
#define LEAPQUANT_LAB_MACHINE_SPEED_H_

#include <cstdint>
#include <memory>
#include <span>

#include "leapquant/leapquant.h"

namespace leapquant::lab {

// Size of the last-level cache in bytes, as the system tells; 32 MiB where it does not.
std::int64_t last_level_cache_bytes();
// Bytes of memory that can be taken without pushing others out, as the system tells; 0: unknown.
std::int64_t available_memory_bytes();

// All rates are of one pass over the buffers, spread over the runner's workers in pieces.
class MachineSpeed {
 public:
  // Two buffers of `bytes` each, touched; runner must outlive this.
  MachineSpeed(std::int64_t bytes, const leapquant_runner* runner);

  // Bytes per second, of the best of several loops each. Reading: every byte summed up, with and
  // without prefetches. Copying: read and written bytes both count; memcpy, a plain loop and
  // stores past the caches. Scaling: x *= c in place, read and written bytes both count; without
  // prefetches and with two distances.
  double read_rate();
  double copy_rate();
  double scale_rate();
  // Fused multiply-adds per second on FP32 (multiply and add where the machine has no fused one),
  // with independent accumulators in registers.
  double multiply_add_rate();

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  std::int64_t floats_;
  const leapquant_runner* runner_;
  std::unique_ptr<float, Free> a_;
  std::unique_ptr<float, Free> b_;
};

// Seconds that one pass of reading all these pieces takes on the calling thread.
double read_seconds(std::span<const std::span<const std::byte>> pieces);

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_MACHINE_SPEED_H_
