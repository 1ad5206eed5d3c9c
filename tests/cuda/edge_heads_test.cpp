// SPDX-License-Identifier: Apache-2.0
//
// Folds of states with an odd structure (cases C7, C8): ranks one and two, zero, small and large
// ones, one hot row, a boundary that decayed to nothing and channels that never decay. On heads of
// 128 x 128, where the special kernels fold inside a decode, and judged by the decoded state: its
// error against the FP64 rebuild of the same bytes, beside the reference's.
#include <limits>

#include "cuda/fold_errors.h"
#include "cuda/heads_128.h"

namespace leapquant::cuda_test {
namespace {

using conformance::make_test_layout;
using conformance::random_tokens;
using conformance::Session;
using conformance::Tokens;

LEAPQUANT_ON_DEVICE_BACKENDS(EdgeHeads128, "int8");

constexpr const char* kFormats[] = {"int8",  "int6",  "int4",        "int8+",
                                    "int6+", "int4+", "int4-compact"};

std::vector<float> edge_state(const std::string& kind, uint32_t seed) {
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
void expect_good_fold(Session* session, const Tokens& tokens, int32_t start,
                      const std::string& what, int32_t step = 1) {
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

// First the structure alone, with tokens that write nothing, then one window of records on it.
TEST_P(EdgeHeads128, FoldAsTheReference) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : kFormats) {
      for (const char* kind :
           {"rank_1", "rank_2", "zero", "small", "big", "hot_row", "tiny_rows"}) {
        SCOPED_TRACE(std::string(format) + ", " + kind);
        Session session(backend(), make_test_layout(shape, format), 1);
        session.import_state(0, 0, edge_state(kind, 8301));
        Tokens tokens = random_tokens(shape, 33, 8302);
        std::fill(tokens.beta.begin(), tokens.beta.begin() + 16, 0.0f);
        const float size = std::string(kind) == "small" ? 1e-4f
                           : std::string(kind) == "big" ? 3e2f
                                                        : 1.0f;
        for (float& x : tokens.v) x *= size;
        expect_good_fold(&session, tokens, 0, "structure alone");
        expect_good_fold(&session, tokens, 16, "with records");
      }
    }
  }
}

// The boundary decays to nothing within the window, and in the window after it stays gone.
TEST_P(EdgeHeads128, BoundaryDecayedToNothing) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : kFormats) {
      for (float g : {-90.0f, -std::numeric_limits<float>::infinity()}) {
        SCOPED_TRACE(std::string(format) + ", " + std::to_string(g));
        Session session(backend(), make_test_layout(shape, format), 1);
        session.import_state(0, 0, edge_state("big", 8303));
        Tokens tokens = random_tokens(shape, 33, 8304);
        const size_t width = tokens.log_decay.size() / 33;
        std::fill_n(tokens.log_decay.begin() + static_cast<int64_t>(5 * width), width, g);
        expect_good_fold(&session, tokens, 0, "decayed at token 5");
        expect_good_fold(&session, tokens, 16, "the window after");
      }
    }
  }
}

// Vector decays: channels that vanish at once, slowly, and never.
TEST_P(EdgeHeads128, ChannelsThatVanishAndChannelsThatStay) {
  for (const char* format : kFormats) {
    SCOPED_TRACE(format);
    const leapquant_shape shape = kda_128(1);
    Session session(backend(), make_test_layout(shape, format), 1);
    session.import_state(0, 0, edge_state("big", 8305));
    Tokens tokens = random_tokens(shape, 33, 8306);
    for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
      const size_t channel = i % 128;
      tokens.log_decay[i] = channel < 32   ? -std::numeric_limits<float>::infinity()
                            : channel < 64 ? -90.0f
                            : channel < 96 ? 0.0f
                                           : -1.3f;
    }
    expect_good_fold(&session, tokens, 0, "first window");
    expect_good_fold(&session, tokens, 16, "second window");
  }
}

// Few calls, a fold: what the slowest sanitizer runs (sanitize.sh).
TEST_P(EdgeHeads128, FoldsAfterTwoCalls) {
  for (const leapquant_shape& shape : {gdn_128(1, 1), kda_128(1)}) {
    for (const char* format : {"int8", "int4+"}) {
      Session session(backend(), make_test_layout(shape, format), 1);
      session.import_state(0, 0, edge_state("big", 8309));
      expect_good_fold(&session, random_tokens(shape, 17, 8310), 0, format, 8);
    }
  }
}

// C8: beyond what FP16 parts hold nothing becomes infinite, and the flags say what saturated.
TEST_P(EdgeHeads128, EnormousStatesStayFiniteAndAreFlagged) {
  for (const char* format : kFormats) {
    for (const char* kind : {"huge", "enormous"}) {
      Session session(backend(), make_test_layout(gdn_128(1, 1), format), 1);
      session.import_state(0, 0, edge_state(kind, 8307));
      const Tokens tokens = random_tokens(gdn_128(1, 1), 34, 8308);
      for (float x : session.decode_steps(0, 0, tokens, 0, 34)) {
        ASSERT_TRUE(std::isfinite(x)) << format << " " << kind;
      }
      for (double x : session.state(0, 0, 32))
        ASSERT_TRUE(std::isfinite(x)) << format << " " << kind;
      if (std::string(kind) == "huge") continue;
      const uint32_t expected = static_cast<uint32_t>(LEAPQUANT_HEALTH_COMPENSATOR_SATURATED) |
                                static_cast<uint32_t>(LEAPQUANT_HEALTH_RECORD_SATURATED);
      EXPECT_EQ(session.memory().health(0)->flags & expected, expected) << format;
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
