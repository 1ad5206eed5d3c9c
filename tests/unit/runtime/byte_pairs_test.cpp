// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one piece against the plain definition: merge the pair of lowest rank, the
// leftmost of them, until none is left.
#include "runtime/byte_pairs.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace leapquant::runtime {
namespace {

std::array<std::int32_t, 256> identity() {
  std::array<std::int32_t, 256> tokens{};
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<std::int32_t> encode(const BytePairEncoder& encoder, std::string_view text) {
  std::vector<std::int32_t> ids;
  encoder.encode(text, ids);
  return ids;
}

std::vector<std::int32_t> by_definition(std::span<const BytePairMerge> merges,
                                        std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    bool merged = false;
    for (const BytePairMerge& merge : merges) {
      for (std::size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
        ids[i] = merge.result;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
    if (!merged) return ids;
  }
}

TEST(BytePairEncoder, WithoutMergesGivesBytes) {
  const BytePairEncoder encoder(identity(), {});
  EXPECT_EQ(encode(encoder, std::string_view("a\0\xff", 3)),
            (std::vector<std::int32_t>{97, 0, 255}));
  EXPECT_TRUE(encode(encoder, "").empty());
}

TEST(BytePairEncoder, LowestRankFirstThenLeftmost) {
  const std::vector<BytePairMerge> merges{{'b', 'c', 300}, {'a', 'b', 301}, {301, 'c', 302}};
  const BytePairEncoder encoder(identity(), merges);
  EXPECT_EQ(encode(encoder, "abc"), (std::vector<std::int32_t>{'a', 300}));
  EXPECT_EQ(encode(encoder, "ab"), (std::vector<std::int32_t>{301}));
  const std::vector<BytePairMerge> doubled{{'a', 'a', 300}, {300, 300, 301}};
  const BytePairEncoder runs(identity(), doubled);
  EXPECT_EQ(encode(runs, "aaa"), (std::vector<std::int32_t>{300, 'a'}));
  EXPECT_EQ(encode(runs, "aaaaa"), (std::vector<std::int32_t>{301, 'a'}));
}

TEST(BytePairEncoder, AppendsToWhatIsThere) {
  const BytePairEncoder encoder(identity(), {});
  std::vector<std::int32_t> ids{7};
  encoder.encode("a", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{7, 97}));
}

TEST(BytePairEncoder, AgreesWithTheDefinitionOnRandomMerges) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    // Few letters make long chains of merges; results may repeat, as different pairs can spell the
    // same token.
    std::vector<std::int32_t> known{'a', 'b', 'c'};
    std::vector<BytePairMerge> merges;
    std::int32_t next = 256;
    for (int i = 0; i < 12; ++i) {
      const auto pick = [&] { return known[random() % known.size()]; };
      const BytePairMerge merge{pick(), pick(), next};
      const bool repeated = std::any_of(merges.begin(), merges.end(), [&](const BytePairMerge& m) {
        return m.left == merge.left && m.right == merge.right;
      });
      if (repeated) continue;
      merges.push_back(merge);
      known.push_back(next++);
    }
    const BytePairEncoder encoder(identity(), merges);
    std::string text;
    for (unsigned i = random() % 60; i > 0; --i) text += static_cast<char>('a' + random() % 3);
    ASSERT_EQ(encode(encoder, text), by_definition(merges, text)) << text;
  }
}

}  // namespace
}  // namespace leapquant::runtime
