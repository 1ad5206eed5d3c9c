// SPDX-License-Identifier: Apache-2.0
//
// Boundaries and ring indices against a brute-force simulation that keeps every record apart.
#include "core/position.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace leapquant {
namespace {

TEST(Position, OffsetsSpreadTheHeads) {
  EXPECT_EQ(boundary_offset(3, 8, 16, false), 0);
  for (int32_t window : {1, 2, 5, 16, 64}) {
    for (int32_t total : {1, 3, 16, 48}) {
      for (int32_t k = 0; k < total; ++k) {
        const int32_t offset = boundary_offset(k, total, window, true);
        EXPECT_EQ(offset, k * window / total);
        EXPECT_GE(offset, 0);
        EXPECT_LT(offset, window);
      }
    }
  }
}

TEST(Position, LastBoundaryBySearch) {
  for (int32_t window : {1, 2, 5, 16, 64}) {
    for (int32_t offset = 0; offset < window; ++offset) {
      for (int32_t position = 0; position < 200; ++position) {
        int32_t t = position;
        while (((t - offset) % window + window) % window != 0) --t;
        ASSERT_EQ(last_boundary(position, offset, window), t)
            << window << " " << offset << " " << position;
      }
    }
  }
  EXPECT_LT(last_boundary(2, 3, 16), 0);
  EXPECT_EQ(last_boundary(2147483647, 0, 16), 2147483632);
}

// A ring of R entries where entry t mod R remembers which token it holds. Random drafts,
// acceptances and rollbacks down to the base: whenever a head folds or reads, each record it needs
// must be there. Heads of a key head work one after another, in any order: one may write the newest
// records before the other has folded the oldest.
TEST(Position, RingHoldsWhatIsNeeded) {
  std::mt19937 random(7);
  const auto draw = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  for (int32_t window : {1, 2, 3, 16, 64}) {
    for (int32_t max_tokens : {1, 2, 4, 8}) {
      for (int32_t heads : {1, 3}) {
        const int32_t ring = ring_tokens(window, max_tokens, heads > 1);
        std::vector<int32_t> holds(static_cast<size_t>(ring), -1);
        const int32_t offset = draw(0, window - 1);
        int32_t base = 0;
        int32_t position = 0;
        for (int32_t call = 0; call < 400; ++call) {
          const int32_t tokens = draw(1, max_tokens);
          const int32_t boundary = std::max(base, last_boundary(position, offset, window));
          for (int32_t head = 0; head < heads; ++head) {
            for (int32_t t = base; t < position; ++t) {  // folds and reads
              ASSERT_EQ(holds[static_cast<size_t>(t % ring)], t)
                  << window << " " << max_tokens << " " << heads << ", head " << head;
            }
            for (int32_t t = position; t < position + tokens; ++t) {
              holds[static_cast<size_t>(t % ring)] = t;
            }
          }
          base = boundary;
          const int32_t written = position + tokens;
          position = draw(0, 3) == 0 ? draw(base, written) : written;
        }
      }
    }
  }
}

}  // namespace
}  // namespace leapquant
