// SPDX-License-Identifier: Apache-2.0
//
// The fixed table of start vectors of the compensator fit: a constant of the format family, the
// same on every backend, close to Gaussian, made of integers only so that no library function
// decides a bit. docs/FORMAT.md repeats the rule.
#pragma once

#include <cstdint>

namespace leapquant {

// Entry of start vector `column` (0..31) at value index `row` (0..255): the sum of the sixteen
// nibbles of a 64-bit mix of (column, row), centred: integers -120..120, mean 0, variance 340.
constexpr float start_vector(int32_t column, int32_t row) {
  uint64_t x = (static_cast<uint64_t>(column) << 32) | static_cast<uint64_t>(row);
  x += 0x9e3779b97f4a7c15ull;  // splitmix64 (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  int32_t sum = 0;
  for (int32_t i = 0; i < 16; ++i) sum += static_cast<int32_t>((x >> (4 * i)) & 15u);
  return static_cast<float>(sum - 120);
}

}  // namespace leapquant
