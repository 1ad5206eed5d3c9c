// SPDX-License-Identifier: Apache-2.0
//
// Heads whose states have an odd structure, and how their folds are judged: by the decoded state,
// its error against the FP64 rebuild of the same bytes, beside the reference's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "conformance/session.h"
#include "cuda/fold_errors.h"

namespace leapquant::cuda_test {

inline std::vector<float> edge_state(const std::string& kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> m(size_t{128} * 128, 0.0f);
  const int rank = kind == "rank_1" ? 1 : kind == "rank_2" ? 2 : 0;
  for (int r = 0; r < rank; ++r) {
    std::vector<float> a(128), b(128);
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    for (size_t e = 0; e < m.size(); ++e) m[e] += a[e / 128] * b[e % 128];
  }
  if (rank > 0 || kind == "zero") return m;
  for (float& x : m) x = normal(random);
  for (size_t e = 0; e < m.size(); ++e) {
    if (kind == "small") m[e] *= 1e-4f;
    if (kind == "big") m[e] *= 3e2f;
    if (kind == "hot_row" && e / 128 == 5) m[e] *= 100.0f;
    if (kind == "tiny_rows" && e / 128 == 7) m[e] *= 1e-30f;
    if (kind == "tiny_rows" && e / 128 == 9) m[e] *= 1e-6f;
    if (kind == "huge") m[e] *= 1e5f;
    if (kind == "enormous") m[e] *= 1e30f;
  }
  return m;
}

// Feeds sixteen tokens from position `start` on, `step` a call, then one that folds; the fold of
// every head is as good as the reference's: 1.05 of its error, or nearly exact, that is within 1e-3
// of the mean magnitude an entry. Outputs stay finite.
inline void expect_good_fold(conformance::Session* session, const conformance::Tokens& tokens,
                             int32_t start, const std::string& what, int32_t step = 1) {
  for (int32_t t = start; t < start + 16; t += step) {
    for (float x : session->decode_one(0, t, tokens, t, step)) {
      ASSERT_TRUE(std::isfinite(x)) << what;
    }
    ASSERT_EQ(session->status()[0], LEAPQUANT_OK) << what;
  }
  conformance::PoolMemory before = session->memory();
  for (float x : session->decode_one(0, start + 16, tokens, start + 16, 1)) {
    ASSERT_TRUE(std::isfinite(x)) << what;
  }
  for (int32_t h = 0; h < session->layout().shape.num_v_heads; ++h) {
    ASSERT_EQ(session->memory().base(0)[h], start + 16) << what;
    const FoldErrors errors = fold_errors(session, &before, h);
    EXPECT_TRUE(errors.own <= 1.05 * errors.reference ||
                errors.own <= 1e-3 * errors.mean_entry * 128.0)
        << what << ", head " << h << ": " << errors.own / errors.reference;
    const leapquant_health& reported = session->memory().health(0)[h];
    EXPECT_EQ(reported.flags, errors.health.flags) << what << ", head " << h;
    EXPECT_NEAR(reported.compensator_energy, errors.health.compensator_energy, 2e-3) << what;
  }
}

// First the structure alone, with tokens that write nothing, then one window of records on it;
// `step` tokens a call, as in all of these.
inline void fold_edge_state(const conformance::TestBackend& backend, const leapquant_shape& shape,
                            const std::string& format, const std::string& kind, int32_t step = 1) {
  SCOPED_TRACE(format + ", " + kind);
  conformance::Session session(backend, conformance::make_test_layout(shape, format), 1);
  session.import_state(0, 0, edge_state(kind, 8301));
  conformance::Tokens tokens = conformance::random_tokens(shape, 33, 8302);
  std::fill(tokens.beta.begin(), tokens.beta.begin() + 16, 0.0f);
  const float size = kind == "small" ? 1e-4f : kind == "big" ? 3e2f : 1.0f;
  for (float& x : tokens.v) x *= size;
  expect_good_fold(&session, tokens, 0, "structure alone", step);
  expect_good_fold(&session, tokens, 16, "with records", step);
}

// The boundary decays by `g` within the window, to nothing; in the window after it stays gone.
inline void fold_decayed_boundary(const conformance::TestBackend& backend,
                                  const leapquant_shape& shape, const std::string& format, float g,
                                  int32_t step = 1) {
  SCOPED_TRACE(format + ", " + std::to_string(g));
  conformance::Session session(backend, conformance::make_test_layout(shape, format), 1);
  session.import_state(0, 0, edge_state("big", 8303));
  conformance::Tokens tokens = conformance::random_tokens(shape, 33, 8304);
  const size_t width = tokens.log_decay.size() / 33;
  std::fill_n(tokens.log_decay.begin() + static_cast<int64_t>(5 * width), width, g);
  expect_good_fold(&session, tokens, 0, "decayed at token 5", step);
  expect_good_fold(&session, tokens, 16, "the window after", step);
}

// Vector decays: channels that vanish at once, slowly, and never.
inline void fold_vanishing_channels(const conformance::TestBackend& backend,
                                    const leapquant_shape& shape, const std::string& format,
                                    int32_t step = 1) {
  SCOPED_TRACE(format);
  conformance::Session session(backend, conformance::make_test_layout(shape, format), 1);
  session.import_state(0, 0, edge_state("big", 8305));
  conformance::Tokens tokens = conformance::random_tokens(shape, 33, 8306);
  for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
    const size_t channel = i % 128;
    tokens.log_decay[i] = channel < 32   ? -std::numeric_limits<float>::infinity()
                          : channel < 64 ? -90.0f
                          : channel < 96 ? 0.0f
                                         : -1.3f;
  }
  expect_good_fold(&session, tokens, 0, "first window", step);
  expect_good_fold(&session, tokens, 16, "second window", step);
}

}  // namespace leapquant::cuda_test
