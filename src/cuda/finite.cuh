// SPDX-License-Identifier: Apache-2.0
//
// Whether numbers are finite, several at once as they lie in a tensor.
#pragma once

#include <cstdint>

#include "core/sentence.h"

namespace leapquant::cuda {

// Bits that show a non-finite 16-bit pair or 32-bit word: (word & mask) + one carries into `sign`.
struct FiniteTest {
  uint32_t mask, one, sign;
};
__device__ __forceinline__ FiniteTest finite_test(int32_t type) {
  if (type == LEAPQUANT_BF16) return {0x7f807f80u, 0x00800080u, 0x80008000u};
  if (type == LEAPQUANT_FP16) return {0x7c007c00u, 0x04000400u, 0x80008000u};
  return {0x7f800000u, 0x00800000u, 0x80000000u};
}

// Not zero when 16 bytes hold a number that is not finite.
__device__ __forceinline__ uint32_t seen_in(const FiniteTest& test, const uint4& raw) {
  return (((raw.x & test.mask) + test.one) | ((raw.y & test.mask) + test.one) |
          ((raw.z & test.mask) + test.one) | ((raw.w & test.mask) + test.one)) &
         test.sign;
}

}  // namespace leapquant::cuda
