// SPDX-License-Identifier: Apache-2.0
//
// The KV cache: growth keeps what was written, packing and unpacking give the same rows.
#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/error.h"

namespace leapquant::runtime {
namespace {

constexpr std::int32_t kLayers = 2;
constexpr std::int32_t kHeads = 3;
constexpr std::int32_t kDim = 4;

// A value that names its place.
float mark(std::int32_t layer, std::int32_t part, std::int32_t head, std::int64_t token,
           std::int32_t d) {
  return static_cast<float>((((layer * 2 + part) * kHeads + head) * 1000 + token) * kDim + d);
}

float* row(KvCache& cache, std::int32_t layer, std::int32_t part, std::int32_t head,
           std::int64_t token) {
  const std::int64_t block = token / kKvBlockTokens;
  std::byte* start = part == 0 ? cache.keys(layer, head, block) : cache.values(layer, head, block);
  return reinterpret_cast<float*>(start) + token % kKvBlockTokens * kDim;
}

template <typename Function>
void for_each(std::int64_t first, std::int64_t last, Function function) {
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int32_t part = 0; part < 2; ++part) {
      for (std::int32_t head = 0; head < kHeads; ++head) {
        for (std::int64_t token = first; token < last; ++token) {
          for (std::int32_t d = 0; d < kDim; ++d) function(layer, part, head, token, d);
        }
      }
    }
  }
}

TEST(KvCache, GrowsPacksAndUnpacks) {
  const KvShape shape{kLayers, kHeads, kDim, KvType::kFp32};
  KvCache cache(shape);
  std::int64_t written = 0;
  for (const std::int64_t tokens : {1, 100, 128, 129, 300}) {
    cache.grow(tokens);
    EXPECT_EQ(cache.num_tokens(), tokens);
    for_each(written, tokens, [&](auto layer, auto part, auto head, auto token, auto d) {
      row(cache, layer, part, head, token)[d] = mark(layer, part, head, token, d);
    });
    written = tokens;
  }
  EXPECT_EQ(cache.num_blocks(), 3);
  EXPECT_EQ(cache.allocated_bytes(), 3 * kKvBlockTokens * shape.bytes_per_token());

  const std::vector<std::byte> packed = cache.pack();
  ASSERT_EQ(packed.size(), static_cast<std::size_t>(300 * shape.bytes_per_token()));
  // Packed order: layer, keys then values, head, token, dim.
  std::vector<float> values(packed.size() / sizeof(float));
  std::memcpy(values.data(), packed.data(), packed.size());
  std::size_t at = 0;
  for_each(0, 300, [&](auto layer, auto part, auto head, auto token, auto d) {
    ASSERT_EQ(values[at++], mark(layer, part, head, token, d));
  });

  KvCache other(shape);
  other.unpack(packed, 300);
  for_each(0, 300, [&](auto layer, auto part, auto head, auto token, auto d) {
    ASSERT_EQ(row(other, layer, part, head, token)[d], mark(layer, part, head, token, d));
  });
  EXPECT_THROW(other.unpack(packed, 299), Error);
}

TEST(KvCache, Bf16TakesHalf) {
  const KvShape fp32{kLayers, kHeads, kDim, KvType::kFp32};
  const KvShape bf16{kLayers, kHeads, kDim, KvType::kBf16};
  EXPECT_EQ(fp32.bytes_per_token(), 2 * bf16.bytes_per_token());
  EXPECT_EQ(fp32.bytes_per_token(), 2 * kLayers * kHeads * kDim * 4);
}

}  // namespace
}  // namespace leapquant::runtime
