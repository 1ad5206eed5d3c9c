// SPDX-License-Identifier: Apache-2.0
//
// Export, import, copy and reset on the CPU.
#include <limits>

#include "cpu/backend.h"
#include "reference/backend.h"
#include "unit/cpu/prefill_bed.h"

namespace leapquant::cpu_bed {
namespace {

const Backend& cpu() { return cpu::cpu_backend(); }

// K != V, so that a transposition shows.
leapquant_shape oblong() { return shape_of(1, 2, 32, 20, LEAPQUANT_DECAY_SCALAR, 1, 1); }

std::vector<float> random_states(const Layout& layout, uint32_t seed) {
  std::mt19937 random(seed);
  return normal(&random,
                static_cast<size_t>(layout.shape.num_v_heads * layout.shape.head_k_dim *
                                    layout.shape.head_v_dim),
                1.0f);
}

TEST(Transfer, BothOrdersCarryTheSameState) {
  const Layout layout = layout_of(oblong(), format_of(32, LEAPQUANT_WINDOWED));
  const std::vector<float> kv = random_states(layout, 1);
  Bed bed(cpu(), layout, 2);
  bed.import(0, 17, kv);
  EXPECT_EQ(bed.state(0, 17), kv);  // FP32 keeps every bit
  const std::vector<float> vk = bed.state(0, 17, LEAPQUANT_VK);
  for (size_t h = 0; h < 2; ++h) {
    for (size_t i = 0; i < 32; ++i) {
      for (size_t j = 0; j < 20; ++j) {
        ASSERT_EQ(vk[h * 640 + j * 32 + i], kv[h * 640 + i * 20 + j]);
      }
    }
  }
  bed.import(1, 17, vk, LEAPQUANT_VK);
  EXPECT_EQ(bed.bytes(1), bed.bytes(0));
}

TEST(Transfer, Bf16MatricesWithGaps) {
  const Layout layout = layout_of(oblong(), format_of(16, LEAPQUANT_WINDOWED));
  Bed bed(cpu(), layout, 3);
  bed.import(1, 4, random_states(layout, 2));
  const std::vector<float> expected = bed.state(1, 4);  // BF16 numbers
  constexpr int64_t kHeadStride = 1280 + 64;
  constexpr int64_t kSequenceStride = 2 * kHeadStride + 32;
  std::vector<uint16_t> matrices(2 * kSequenceStride / 2, 0x1234);
  const int32_t slots[] = {1, -1};
  const int32_t positions[] = {4, 0};
  int32_t status[] = {-1, -1};
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 2;
  args.state_slots = slots;
  args.positions = positions;
  args.matrices = matrices.data();
  args.type = LEAPQUANT_BF16;
  args.sequence_stride_bytes = kSequenceStride;
  args.head_stride_bytes = kHeadStride;
  args.status = status;
  ASSERT_EQ(cpu().export_states(layout, bed.pool(), args, bed.launch()), LEAPQUANT_OK);
  size_t gaps = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const size_t byte = 2 * i % kSequenceStride;
    const size_t entry = byte % kHeadStride / 2;
    if (byte >= 2 * kHeadStride || entry >= 640) {
      EXPECT_EQ(matrices[i], 0x1234);  // gaps are not touched
      ++gaps;
    } else if (2 * i >= kSequenceStride) {
      ASSERT_EQ(matrices[i], 0);  // padding rows are zero
    } else {
      float value;
      const uint32_t bits = uint32_t{matrices[i]} << 16;
      std::memcpy(&value, &bits, 4);
      ASSERT_EQ(value, expected[byte / kHeadStride * 640 + entry]);
    }
  }
  EXPECT_EQ(gaps, 2u * (2 * 32 + 16));
  const int32_t back[] = {2, -1};
  args.state_slots = back;
  ASSERT_EQ(cpu().import_states(layout, bed.pool(), args, bed.launch()), LEAPQUANT_OK);
  EXPECT_EQ(bed.state(2, 4), expected);
}

TEST(Transfer, ANonFiniteMatrixChangesNothing) {
  const Layout layout = layout_of(oblong(), format_of(8, LEAPQUANT_WINDOWED));
  Bed bed(cpu(), layout, 1);
  const std::vector<std::byte> before = bed.bytes(0);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -INFINITY}) {
    std::vector<float> states = random_states(layout, 3);
    states.back() = bad;  // the last head: the first one must not have been written by then
    bed.import(0, 9, states);
    EXPECT_EQ(bed.status[0], LEAPQUANT_NON_FINITE_INPUT);
    EXPECT_EQ(bed.bytes(0), before);
  }
}

TEST(Transfer, PositionsOutsideTheWindowAreFaults) {
  const Layout layout = layout_of(oblong(), format_of(8, LEAPQUANT_WINDOWED));
  Bed bed(cpu(), layout, 1);
  bed.import(0, 100, random_states(layout, 4));
  for (const float x : bed.state(0, 99)) ASSERT_EQ(x, 0.0f);
  EXPECT_EQ(bed.status[0], LEAPQUANT_POSITION_BELOW_BASE);
  bed.state(0, 100 + layout.window.ring_tokens + 1);
  EXPECT_EQ(bed.status[0], LEAPQUANT_POSITION_PAST_WINDOW);
}

// Import is a cold fold: the reference and the CPU decode to nearly the same matrix.
TEST(Transfer, ImportQuantisesAsTheReferenceDoes) {
  for (const int32_t bits : {8, 6, 4}) {
    const Layout layout = layout_of(shape_of(1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR, 1, 1),
                                    format_of(bits, LEAPQUANT_WINDOWED));
    const std::vector<float> states = random_states(layout, 5);
    Bed bed(cpu(), layout, 1);
    Bed oracle(reference::backend(), layout, 1);
    bed.import(0, 0, states);
    oracle.import(0, 0, states);
    const auto error = [&](const std::vector<float>& decoded) {
      double sum = 0.0;
      for (size_t i = 0; i < states.size(); ++i) {
        sum += std::pow(double{decoded[i]} - states[i], 2);
      }
      return std::sqrt(sum);
    };
    // FP16 rounding of the compensators may turn on last bits: 5 % for a single fold.
    EXPECT_LE(error(bed.state(0, 0)), 1.05 * error(oracle.state(0, 0))) << bits;
    EXPECT_GT(error(bed.state(0, 0)), 0.0) << bits;
  }
}

TEST(Transfer, ACopyIsTheSlotAndLeavesItsSource) {
  const Layout layout = layout_of(oblong(), format_of(8, LEAPQUANT_WINDOWED));
  Bed bed(cpu(), layout, 3);
  bed.import(0, 12, random_states(layout, 6));
  const std::vector<std::byte> source = bed.bytes(0);
  const std::vector<std::byte> other = bed.bytes(1);
  bed.copy(0, 2);
  EXPECT_EQ(bed.bytes(2), source);
  EXPECT_EQ(bed.bytes(0), source);
  EXPECT_EQ(bed.bytes(1), other);
}

TEST(Transfer, ResetIsTheEncodedZeroState) {
  for (const int32_t bits : {32, 16, 8, 6, 4, 3}) {
    const Layout layout = layout_of(oblong(), format_of(bits, LEAPQUANT_WINDOWED));
    Bed bed(cpu(), layout, 1);
    Bed oracle(reference::backend(), layout, 1);
    bed.import(0, 3, random_states(layout, 7));
    health_of(layout, bed.pool(), 0, 1)->flags = LEAPQUANT_HEALTH_RECORD_SATURATED;
    bed.reset(0, 40);
    oracle.reset(0, 40);
    EXPECT_EQ(bed.bytes(0), oracle.bytes(0)) << bits;
    for (const float x : bed.state(0, 40)) ASSERT_EQ(x, 0.0f) << bits;
  }
}

}  // namespace
}  // namespace leapquant::cpu_bed
