// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel against softmax in FP64, over several blocks, with and without BF16 caches,
// and that a row's output does not depend on the rows beside it.
#include "runtime/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/kernels/rows.h"
#include "runtime/scratch.h"

namespace leapquant::runtime::kernels {
namespace {

struct Case {
  std::int64_t tokens;
  std::int64_t head_dim;
  std::vector<float> keys;  // [whole blocks, head_dim]
  std::vector<float> values;
  std::vector<std::uint16_t> keys_bf16;
  std::vector<std::uint16_t> values_bf16;
  std::vector<const void*> key_blocks;
  std::vector<const void*> value_blocks;
  AttentionHead head;

  Case(std::int64_t count, std::int64_t dim, bool bf16) : tokens(count), head_dim(dim) {
    const std::int64_t blocks = (count + kAttentionBlock - 1) / kAttentionBlock;
    const auto size = static_cast<std::size_t>(blocks * kAttentionBlock * dim);
    std::mt19937 engine(static_cast<unsigned>(count + dim));
    std::normal_distribution<float> normal;
    keys.resize(size);
    values.resize(size);
    for (float& key : keys) key = normal(engine);
    for (float& value : values) value = normal(engine);
    // Rows past the last token are never to be read: a NaN there would show.
    std::fill(keys.begin() + count * dim, keys.end(), NAN);
    std::fill(values.begin() + count * dim, values.end(), NAN);
    keys_bf16.resize(size);
    values_bf16.resize(size);
    narrow_to_bf16(keys.data(), static_cast<std::int64_t>(size), keys_bf16.data());
    narrow_to_bf16(values.data(), static_cast<std::int64_t>(size), values_bf16.data());
    if (bf16) {
      for (std::size_t i = 0; i < size; ++i) {
        widen_row(keys_bf16.data(), WeightType::kBf16, static_cast<std::int64_t>(i), 1, &keys[i]);
        widen_row(values_bf16.data(), WeightType::kBf16, static_cast<std::int64_t>(i), 1,
                  &values[i]);
      }
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t at = block * kAttentionBlock * dim;
      key_blocks.push_back(bf16 ? static_cast<const void*>(keys_bf16.data() + at)
                                : static_cast<const void*>(keys.data() + at));
      value_blocks.push_back(bf16 ? static_cast<const void*>(values_bf16.data() + at)
                                  : static_cast<const void*>(values.data() + at));
    }
    head = {key_blocks.data(), value_blocks.data(), bf16 ? WeightType::kBf16 : WeightType::kF32,
            dim};
  }

  std::vector<double> expected(const float* query, std::int64_t visible) const {
    std::vector<double> weights;
    double largest = -INFINITY;
    for (std::int64_t t = 0; t < visible; ++t) {
      double score = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        score += double{query[d]} * keys[static_cast<std::size_t>(t * head_dim + d)];
      }
      weights.push_back(score);
      largest = std::max(largest, score);
    }
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    std::vector<double> output(static_cast<std::size_t>(head_dim));
    for (std::int64_t t = 0; t < visible; ++t) {
      for (std::size_t d = 0; d < output.size(); ++d) {
        output[d] += weights[static_cast<std::size_t>(t)] / total *
                     values[static_cast<std::size_t>(t * head_dim) + d];
      }
    }
    return output;
  }
};

std::vector<float> random_queries(std::int64_t count) {
  std::mt19937 engine(77);
  std::normal_distribution<float> normal(0, 0.3f);
  std::vector<float> queries;
  for (std::int64_t i = 0; i < count; ++i) queries.push_back(normal(engine));
  return queries;
}

TEST(AttentionKernel, EqualsSoftmax) {
  for (const bool bf16 : {false, true}) {
    for (const std::int64_t head_dim : {20, 64, 128, 256}) {
      for (const std::int64_t tokens : {1, 2, 127, 128, 129, 400}) {
        const Case c(tokens, head_dim, bf16);
        const std::int64_t rows = std::min<std::int64_t>(tokens, 5);
        const std::vector<float> queries = random_queries(rows * head_dim);
        std::vector<std::int64_t> visible;
        for (std::int64_t r = 0; r < rows; ++r) visible.push_back(tokens - rows + 1 + r);
        std::vector<float> outputs(queries.size());
        Buffer scratch;
        attend(c.head, queries.data(), rows, visible.data(), outputs.data(),
               scratch.floats(attention_scratch(head_dim)));
        for (std::int64_t r = 0; r < rows; ++r) {
          const auto expected =
              c.expected(queries.data() + r * head_dim, visible[static_cast<std::size_t>(r)]);
          for (std::size_t d = 0; d < expected.size(); ++d) {
            // A score of size up to ~10 has an FP32 error of ~1e-5 at most, which is the relative
            // error of its weight; values are of size 1 and weights sum to 1.
            ASSERT_NEAR(outputs[static_cast<std::size_t>(r * head_dim) + d], expected[d], 3e-5)
                << tokens << " tokens, head_dim " << head_dim;
          }
        }
      }
    }
  }
}

TEST(AttentionKernel, RowsDoNotDependOnEachOther) {
  constexpr std::int64_t kDim = 64;
  const Case c(300, kDim, false);
  const std::vector<float> queries = random_queries(kAttentionRows * kDim);
  std::vector<std::int64_t> visible;
  for (std::int64_t r = 0; r < kAttentionRows; ++r) visible.push_back(120 + r * 12);
  std::vector<float> together(queries.size());
  Buffer buffer;
  float* scratch = buffer.floats(attention_scratch(kDim));
  attend(c.head, queries.data(), kAttentionRows, visible.data(), together.data(), scratch);
  for (std::int64_t r = 0; r < kAttentionRows; ++r) {
    std::vector<float> alone(kDim);
    attend(c.head, queries.data() + r * kDim, 1, &visible[static_cast<std::size_t>(r)],
           alone.data(), scratch);
    EXPECT_EQ(0, std::memcmp(alone.data(), together.data() + r * kDim, kDim * sizeof(float))) << r;
  }
}

TEST(AttentionKernel, SurvivesLargeScores) {
  constexpr std::int64_t kDim = 16;
  const Case c(200, kDim, false);
  std::vector<float> queries(kDim, 1000.0f);
  const std::int64_t visible = 200;
  std::vector<float> outputs(kDim);
  Buffer scratch;
  attend(c.head, queries.data(), 1, &visible, outputs.data(),
         scratch.floats(attention_scratch(kDim)));
  for (const float output : outputs) EXPECT_TRUE(std::isfinite(output));
}

}  // namespace
}  // namespace leapquant::runtime::kernels
