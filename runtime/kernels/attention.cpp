// SPDX-License-Identifier: Apache-2.0
//
// attention.h: the scores are products like any other (products.h); softmax and weighted sum are
// here, through Highway. Running maximum and sum per row as in online softmax (Milakov and
// Gimelshein, arXiv 1805.02867).
#include "runtime/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/attention.cpp"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace leapquant::runtime::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Vector = hn::Vec<FloatTag>;

HWY_INLINE Vector load_value(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE Vector load_value(const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const hn::Rebind<std::uint32_t, FloatTag> words;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, from))));
}

// scores[0..count) become exp(score - new maximum), the rest of the block zero. Returns the sum of
// the weights; *maximum is raised, *factor receives exp(old maximum - new maximum).
float weigh(float* scores, std::int64_t count, float* maximum, float* factor) {
  const FloatTag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  std::fill(scores + count, scores + kAttentionBlock, -std::numeric_limits<float>::infinity());
  Vector largest = hn::Set(tag, *maximum);
  for (std::int64_t t = 0; t < kAttentionBlock; t += lanes) {
    largest = hn::Max(largest, hn::Load(tag, scores + t));
  }
  const float raised = hn::GetLane(hn::MaxOfLanes(tag, largest));
  // The first block has no old maximum, and its sums are zero whatever the factor is.
  *factor = *maximum > -std::numeric_limits<float>::max() ? std::exp(*maximum - raised) : 0.0f;
  *maximum = raised;
  const Vector shift = hn::Set(tag, raised);
  Vector sum = hn::Zero(tag);
  for (std::int64_t t = 0; t < kAttentionBlock; t += lanes) {
    const Vector weight = hn::Exp(tag, hn::Sub(hn::Load(tag, scores + t), shift));
    hn::Store(weight, tag, scores + t);
    sum = hn::Add(sum, weight);
  }
  // Exp of minus infinity is not promised to be zero.
  std::fill(scores + count, scores + kAttentionBlock, 0.0f);
  return hn::GetLane(hn::SumOfLanes(tag, sum));
}

// outputs[d] = outputs[d] * factor + sum over t < count of weights[t] * values[t, d] for kVectors
// vectors of d, the sum over t on its own first.
template <int kVectors, class Element>
HWY_INLINE void accumulate(const float* weights, float factor, std::int64_t count,
                           const Element* values, std::int64_t head_dim, float* outputs) {
  const FloatTag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  Vector sums[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = hn::Zero(tag);
  for (std::int64_t t = 0; t < count; ++t) {
    const Vector weight = hn::Set(tag, weights[t]);
    const Element* row = values + t * head_dim;
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = hn::MulAdd(weight, load_value(row + i * lanes), sums[i]);
    }
  }
  const Vector old = hn::Set(tag, factor);
  for (int i = 0; i < kVectors; ++i) {
    hn::StoreU(hn::MulAdd(hn::LoadU(tag, outputs + i * lanes), old, sums[i]), tag,
               outputs + i * lanes);
  }
}

HWY_INLINE float wide(float value) { return value; }
HWY_INLINE float wide(std::uint16_t value) {
  return hwy::HWY_NAMESPACE::GetLane(hn::BitCast(
      FloatTag(), hn::Set(hn::RebindToUnsigned<FloatTag>(), std::uint32_t{value} << 16)));
}

template <class Element>
void accumulate_row(const float* weights, float factor, std::int64_t count, const Element* values,
                    std::int64_t head_dim, float* outputs) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(FloatTag()));
  std::int64_t d = 0;
  for (; d + 8 * lanes <= head_dim; d += 8 * lanes) {
    accumulate<8>(weights, factor, count, values + d, head_dim, outputs + d);
  }
  for (; d + lanes <= head_dim; d += lanes) {
    accumulate<1>(weights, factor, count, values + d, head_dim, outputs + d);
  }
  for (; d < head_dim; ++d) {
    float sum = 0;
    for (std::int64_t t = 0; t < count; ++t) sum += weights[t] * wide(values[t * head_dim + d]);
    outputs[d] = outputs[d] * factor + sum;
  }
}

void weigh_and_accumulate(float* scores, std::int64_t count, const void* values, bool bf16,
                          std::int64_t head_dim, float* maximum, float* total, float* outputs) {
  float factor = 0;
  const float sum = weigh(scores, count, maximum, &factor);
  *total = *total * factor + sum;
  if (bf16) {
    accumulate_row(scores, factor, count, static_cast<const std::uint16_t*>(values), head_dim,
                   outputs);
  } else {
    accumulate_row(scores, factor, count, static_cast<const float*>(values), head_dim, outputs);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace leapquant::runtime::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace leapquant::runtime::kernels {

HWY_EXPORT(weigh_and_accumulate);

std::int64_t attention_scratch(std::int64_t) { return kAttentionRows * kAttentionBlock; }

void attend(const AttentionHead& head, const float* queries, std::int64_t rows,
            const std::int64_t* visible, float* outputs, float* scratch) {
  float maxima[kAttentionRows];
  float totals[kAttentionRows];
  std::fill(maxima, maxima + rows, -std::numeric_limits<float>::infinity());
  std::fill(totals, totals + rows, 0.0f);
  std::fill(outputs, outputs + rows * head.head_dim, 0.0f);
  const auto weigh_row = HWY_DYNAMIC_DISPATCH(weigh_and_accumulate);
  const std::int64_t longest = visible[rows - 1];
  std::int64_t first_row = 0;
  for (std::int64_t begin = 0; begin < longest; begin += kAttentionBlock) {
    while (visible[first_row] <= begin) ++first_row;
    const std::int64_t block = begin / kAttentionBlock;
    const std::int64_t tokens = std::min(kAttentionBlock, longest - begin);
    multiply_rows(queries + first_row * head.head_dim, head.head_dim, rows - first_row,
                  head.key_blocks[block], head.type, head.head_dim, 0, tokens,
                  scratch + first_row * kAttentionBlock, kAttentionBlock);
    for (std::int64_t r = first_row; r < rows; ++r) {
      weigh_row(scratch + r * kAttentionBlock, std::min(kAttentionBlock, visible[r] - begin),
                head.value_blocks[block], head.type == WeightType::kBf16, head.head_dim, &maxima[r],
                &totals[r], outputs + r * head.head_dim);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const float inverse = 1.0f / totals[r];
    for (std::int64_t d = 0; d < head.head_dim; ++d) outputs[r * head.head_dim + d] *= inverse;
  }
}

}  // namespace leapquant::runtime::kernels
#endif
