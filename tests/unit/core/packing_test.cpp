// SPDX-License-Identifier: Apache-2.0
//
// Packing: every code survives, for short last groups too; the bytes are those that docs/FORMAT.md
// draws.
#include "core/packing.h"

#include <gtest/gtest.h>

#include <vector>

namespace leapquant {
namespace {

// E6: round trips of all codes, at every place of a group, for counts that fill groups or do not.
TEST(Packing, AllCodesAtAllPlaces) {
  for (int32_t bits : {8, 6, 4, 3}) {
    const int32_t low = -(1 << (bits - 1));
    const int32_t high = (1 << (bits - 1)) - 1;
    for (int32_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 60, 100, 128, 256}) {
      const int32_t bytes = packed_bytes(count, bits);
      for (int32_t shift = 0; shift <= high - low; ++shift) {
        std::vector<int8_t> codes;
        for (int32_t i = 0; i < count; ++i) {
          codes.push_back(static_cast<int8_t>(low + (i + shift) % (high - low + 1)));
        }
        std::vector<uint8_t> packed(static_cast<size_t>(bytes) + 1, 0xa5);
        pack_codes(codes.data(), count, bits, packed.data());
        ASSERT_EQ(packed.back(), 0xa5) << "wrote past the end";
        std::vector<int8_t> back(static_cast<size_t>(count) + 1, 99);
        unpack_codes(packed.data(), count, bits, back.data());
        ASSERT_EQ(back.back(), 99) << "wrote past the end";
        back.pop_back();
        ASSERT_EQ(back, codes) << bits << " bits, " << count << " codes";
      }
    }
  }
}

TEST(Packing, BytesOfEveryWidth) {
  EXPECT_EQ(packed_bytes(128, 8), 128);
  EXPECT_EQ(packed_bytes(128, 6), 96);
  EXPECT_EQ(packed_bytes(128, 4), 64);
  EXPECT_EQ(packed_bytes(128, 3), 48);
  EXPECT_EQ(packed_bytes(100, 6), 75);
  EXPECT_EQ(packed_bytes(100, 3), 39);
  EXPECT_EQ(packed_bytes(60, 6), 45);
  EXPECT_EQ(packed_bytes(4, 3), 3);
}

// Pinned bytes: what stands in docs/FORMAT.md.
TEST(Packing, BytesArePinned) {
  const auto pack = [](std::vector<int8_t> codes, int32_t bits) {
    const auto count = static_cast<int32_t>(codes.size());
    std::vector<uint8_t> packed(static_cast<size_t>(packed_bytes(count, bits)));
    pack_codes(codes.data(), count, bits, packed.data());
    return packed;
  };
  EXPECT_EQ(pack({-127, 0, 127}, 8), (std::vector<uint8_t>{0x81, 0x00, 0x7f}));
  EXPECT_EQ(pack({-8, 7}, 4), (std::vector<uint8_t>{0xf0}));  // low nibble: the even index
  EXPECT_EQ(pack({1}, 4), (std::vector<uint8_t>{0x89}));      // filled with code 0
  // 1 | 2 << 6 | 3 << 12 | 63 << 18 with 32 added to each code.
  EXPECT_EQ(pack({-31, -30, -29, 31}, 6), (std::vector<uint8_t>{0x81, 0x30, 0xfc}));
  EXPECT_EQ(pack({-31}, 6), (std::vector<uint8_t>{0x01, 0x08, 0x82}));
  // 0..7 in octal digits from the lowest: 0x FAC688.
  EXPECT_EQ(pack({-4, -3, -2, -1, 0, 1, 2, 3}, 3), (std::vector<uint8_t>{0x88, 0xc6, 0xfa}));
}

}  // namespace
}  // namespace leapquant
