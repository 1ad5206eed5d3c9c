// SPDX-License-Identifier: Apache-2.0
//
// The log8 table. Constants are decimal expansions of 2^(i/8) and 2^((2i-1)/16), rounded to FP32
// once by the compiler, then scaled by exact powers of two: the same on every machine.
#include "core/numeric.h"

namespace leapquant {
namespace {

constexpr double kEighth[8] = {1.0,
                               1.0905077326652577,
                               1.1892071150027210,
                               1.2968395546510096,
                               1.4142135623730951,
                               1.5422108254079408,
                               1.6817928305074290,
                               1.8340080864093424};
// 2^((2 i - 1) / 16): half a step below kEighth[i].
constexpr double kMidpoint[8] = {0.9576032806985737, 1.0442737824274138, 1.1387886347566916,
                                 1.2418578120734840, 1.3542555469368927, 1.4768261459394993,
                                 1.6104903319492543, 1.7562521603732995};

constexpr double power_of_two(int exponent) {
  double result = 1.0;
  for (int i = 0; i < exponent; ++i) result *= 2.0;
  for (int i = 0; i > exponent; --i) result *= 0.5;
  return result;
}

constexpr Log8Table make_table() {
  Log8Table table{};
  for (int n = 0; n < 256; ++n) {
    const int octave = n / 8 - 16;
    table.value[n] = static_cast<float>(kEighth[n % 8] * power_of_two(octave));
    table.threshold[n] = static_cast<float>(kMidpoint[n % 8] * power_of_two(octave));
  }
  table.threshold[0] = 0.0f;
  return table;
}

constexpr Log8Table kTable = make_table();

}  // namespace

const Log8Table& log8_table() { return kTable; }

uint8_t float_to_log8(float value) {
  int low = 0;
  int high = 255;
  while (low < high) {  // largest n with threshold[n] <= value
    const int middle = (low + high + 1) / 2;
    if (kTable.threshold[middle] <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return static_cast<uint8_t>(low);
}

}  // namespace leapquant
