// SPDX-License-Identifier: Apache-2.0
//
// Folds. Codes of two correct folds may differ, since the rounding of the compensators amplifies
// last bits; so the decoded states are compared with the FP64 rebuild of the same stored bytes, and
// the backend's error with the reference's.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/session.h"
#include "core/pool.h"
#include "reference/codec.h"
#include "reference/fold.h"

namespace leapquant::conformance {
namespace {

LEAPQUANT_ON_EVERY_BACKEND(Fold);

constexpr const char* kQuantised[] = {"int8",  "int6",  "int4",        "int8+",
                                      "int6+", "int4+", "int4-compact"};

// Errors |decoded - rebuilt| of one forced fold of one head: the backend's and the reference's, and
// the rebuilt state's mean magnitude.
struct Comparison {
  double backend_error = 0.0;
  double reference_error = 0.0;
  double mean_magnitude = 0.0;
  int64_t entries = 0;

  // The reference is nearly exact: only an absolute comparison makes sense there. Norms are over
  // all entries, so the mean magnitude is spread over as many.
  bool nearly_exact() const {
    return backend_error <= 1e-3 * mean_magnitude * std::sqrt(static_cast<double>(entries));
  }
  double ratio() const { return backend_error / reference_error; }
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference = a;
  for (size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

// Folds slot 0 at `position` on the backend and, from the same bytes, on the reference.
std::vector<Comparison> compare_fold(Session* session, int32_t position, bool cold = false) {
  const Layout& layout = session->layout();
  PoolMemory before = session->memory();
  session->fold(0, position);
  EXPECT_EQ(session->status()[0], LEAPQUANT_OK);
  const leapquant_pool old_pool = before.pool();
  std::vector<Comparison> result;
  for (int32_t h = 0; h < layout.shape.num_v_heads; ++h) {
    const BoundaryLayout& head = layout.head(h);
    const std::vector<double> rebuilt = reference::rebuild(layout, old_pool, 0, 0, h, position);
    std::byte* boundary = boundary_state(layout, old_pool, 0, h);
    reference::encode_state(head, rebuilt.data(), cold, boundary, nullptr);
    Comparison c;
    c.reference_error = distance(reference::decode_boundary(head, boundary), rebuilt);
    c.backend_error = distance(session->state(0, h, position), rebuilt);
    for (double x : rebuilt) c.mean_magnitude += std::fabs(x);
    c.entries = static_cast<int64_t>(rebuilt.size());
    c.mean_magnitude /= static_cast<double>(c.entries);
    result.push_back(c);
  }
  return result;
}

// At most 1.01 of the reference's error as a geometric mean over at least 64 folds per head, 1.05
// for a single one, or nearly exact.
void expect_folds_as_good(const TestBackend& backend, const leapquant_shape& shape,
                          const std::string& format, Kind kind, uint32_t seed) {
  constexpr int32_t kFolds = 66;
  const auto heads = static_cast<size_t>(shape.num_v_heads);
  Session session(backend, make_test_layout(shape, format), 1);
  session.reset(0);
  const Tokens tokens = random_tokens(shape, kFolds * 2, seed, kind);
  std::vector<double> log_sum(heads, 0.0);
  std::vector<int32_t> counted(heads, 0);
  for (int32_t f = 0; f < kFolds; ++f) {
    session.decode_one(0, 2 * f, tokens, 2 * f, 2);
    const std::vector<Comparison> folds = compare_fold(&session, 2 * f + 2);
    for (size_t h = 0; h < heads; ++h) {
      if (folds[h].nearly_exact()) continue;
      EXPECT_LE(folds[h].ratio(), 1.05) << format << ", head " << h << ", fold " << f;
      log_sum[h] += std::log(folds[h].ratio());
      ++counted[h];
    }
  }
  for (size_t h = 0; h < heads; ++h) {
    if (counted[h] == 0) continue;
    EXPECT_LE(std::exp(log_sum[h] / counted[h]), 1.01) << format << ", head " << h;
  }
}

TEST_P(Fold, DecodedStatesAreAsGoodAsTheReferences) {
  for (const char* format : kQuantised) {
    expect_folds_as_good(backend(), make_shape(1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR), format,
                         Kind::kOutliers, 31);
    expect_folds_as_good(backend(), make_shape(1, 1, 60, 100, LEAPQUANT_DECAY_VECTOR), format,
                         Kind::kPlain, 32);
  }
}

// A matrix with structure of a given kind, [heads, K, V].
std::vector<float> edge_state(const std::string& kind, int32_t k_dim, int32_t v_dim,
                              uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto entries = static_cast<size_t>(k_dim * v_dim);
  std::vector<float> m(entries, 0.0f);
  const int rank = kind == "rank_1" ? 1 : kind == "rank_2" ? 2 : 0;
  for (int r = 0; r < rank; ++r) {
    std::vector<float> a(static_cast<size_t>(k_dim)), b(static_cast<size_t>(v_dim));
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    for (size_t e = 0; e < entries; ++e) {
      m[e] += a[e / static_cast<size_t>(v_dim)] * b[e % static_cast<size_t>(v_dim)];
    }
  }
  if (rank > 0 || kind == "zero") return m;
  for (float& x : m) x = normal(random);
  for (size_t e = 0; e < entries; ++e) {
    if (kind == "small") m[e] *= 1e-4f;
    if (kind == "big") m[e] *= 3e2f;
    if (kind == "hot_row" && e / static_cast<size_t>(v_dim) == 5) m[e] *= 100.0f;
    if (kind == "huge") m[e] *= 1e5f;
    if (kind == "enormous") m[e] *= 1e30f;
  }
  return m;
}

// Edge heads of method.md, C7 and C8: imported (a cold fold), then folded again with records.
TEST_P(Fold, EdgeHeads) {
  const leapquant_shape shape = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_SCALAR);
  for (const char* format : kQuantised) {
    for (const char* kind : {"rank_1", "rank_2", "zero", "small", "big", "hot_row", "huge"}) {
      const Layout layout = make_test_layout(shape, format);
      Session session(backend(), layout, 1);
      const std::vector<float> matrix = edge_state(kind, 64, 64, 33);
      session.import_state(0, 0, matrix);
      ASSERT_EQ(session.status()[0], LEAPQUANT_OK);

      const std::vector<double> exact(matrix.begin(), matrix.end());
      std::vector<std::byte> boundary(static_cast<size_t>(layout.state_bytes), std::byte{0});
      leapquant_health health = {};
      reference::encode_state(layout.head(0), exact.data(), true, boundary.data(), &health);
      Comparison c;
      c.reference_error =
          distance(reference::decode_boundary(layout.head(0), boundary.data()), exact);
      c.backend_error = distance(session.state(0, 0, 0), exact);
      for (double x : exact) c.mean_magnitude += std::fabs(x) / 4096.0;
      c.entries = 4096;
      EXPECT_TRUE(c.nearly_exact() || c.ratio() <= 1.05) << format << " " << kind << " imported";
      const leapquant_health& reported = *session.memory().health(0);
      EXPECT_EQ(reported.flags, health.flags) << format << " " << kind;
      EXPECT_NEAR(reported.compensator_energy, health.compensator_energy, 1e-3)
          << format << " " << kind;
      if (!c.nearly_exact()) {
        EXPECT_NEAR(reported.fold_error, health.fold_error, 0.06 * health.fold_error)
            << format << " " << kind;
        EXPECT_NEAR(reported.residual_max, health.residual_max, 0.1 * health.residual_max)
            << format << " " << kind;
      }

      const Tokens tokens = random_tokens(shape, 2, 34);
      session.decode_one(0, 0, tokens, 0, 2);
      const Comparison again = compare_fold(&session, 2)[0];
      EXPECT_TRUE(again.nearly_exact() || again.ratio() <= 1.05)
          << format << " " << kind << " folded: " << again.ratio();
    }
  }
}

// Beyond what FP16 parts can hold: nothing becomes infinite or NaN, the flags say what saturated.
TEST_P(Fold, EnormousStatesStayFiniteAndAreFlagged) {
  const leapquant_shape shape = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_SCALAR);
  for (const char* format : kQuantised) {
    Session session(backend(), make_test_layout(shape, format), 1);
    session.import_state(0, 0, edge_state("enormous", 64, 64, 35));
    for (double x : session.state(0, 0, 0)) ASSERT_TRUE(std::isfinite(x)) << format;
    EXPECT_NE(session.memory().health(0)->flags & LEAPQUANT_HEALTH_COMPENSATOR_SATURATED, 0u)
        << format;
    const Tokens tokens = random_tokens(shape, 18, 36);
    const Outputs o = session.decode_steps(0, 0, tokens, 0, 18);
    for (float x : o) ASSERT_TRUE(std::isfinite(x)) << format;
    EXPECT_NE(session.memory().health(0)->flags & LEAPQUANT_HEALTH_RECORD_SATURATED, 0u) << format;
  }
}

// Boundary decayed to nothing, and channels that never decay, through a fold.
TEST_P(Fold, DecaysToNothingAndNotAtAll) {
  const leapquant_shape shape = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_VECTOR);
  for (const char* format : {"int8", "int8+", "int4+"}) {
    Session session(backend(), make_test_layout(shape, format), 1);
    session.import_state(0, 0, edge_state("big", 64, 64, 37));
    Tokens tokens = random_tokens(shape, 8, 38);
    for (size_t i = 0; i < tokens.log_decay.size(); ++i) {
      const size_t channel = i % 64;
      tokens.log_decay[i] = channel < 16 ? -INFINITY : channel < 32 ? -90.0f : 0.0f;
    }
    session.decode_one(0, 0, tokens, 0, 8);
    const Comparison c = compare_fold(&session, 8)[0];
    EXPECT_TRUE(c.nearly_exact() || c.ratio() <= 1.05) << format << ": " << c.ratio();
  }
}

// r >= rank(S): the residual is rounding noise. A state of two tokens has rank two.
TEST_P(Fold, CompensatorsHoldAStateOfLowRank) {
  const leapquant_shape shape = make_shape(1, 1, 64, 64, LEAPQUANT_DECAY_SCALAR);
  Session session(backend(), make_test_layout(shape, "int8"), 1);
  session.import_state(0, 0, edge_state("rank_2", 64, 64, 39));
  // FP16 parts: 2^-11 of each entry, so at most (2 x 2^-11)^2, about 1e-6, of the energy is left.
  EXPECT_GE(session.memory().health(0)->compensator_energy, 1.0f - 2e-6f);
  EXPECT_LE(session.memory().health(0)->fold_error, 1e-5f);
}

// The plain states: BF16 rounds to nearest even, FP32 keeps every bit.
TEST_P(Fold, PlainStatesAreRoundedOnce) {
  const leapquant_shape shape = make_shape(1, 1, 32, 32, LEAPQUANT_DECAY_SCALAR);
  const std::vector<float> m = edge_state("big", 32, 32, 40);
  for (const char* format : {"bf16", "fp32"}) {
    const Layout layout = make_test_layout(shape, format);
    Session session(backend(), layout, 1);
    session.import_state(0, 0, m);
    std::vector<std::byte> expected(static_cast<size_t>(layout.state_bytes), std::byte{0});
    const std::vector<double> exact(m.begin(), m.end());
    reference::encode_state(layout.head(0), exact.data(), true, expected.data(), nullptr);
    EXPECT_EQ(session.memory().state_bytes(0), expected) << format;
  }
}

// Folding into another slot leaves the source as it is; folding nothing copies the bytes.
TEST_P(Fold, IntoAnotherSlot) {
  const leapquant_shape shape = make_shape(1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR);
  Session session(backend(), make_test_layout(shape, "int8+"), 3);
  session.reset(0);
  const Tokens tokens = random_tokens(shape, 30, 41);
  session.decode_steps(0, 0, tokens, 0, 23);
  const std::vector<std::byte> source = session.memory().slot_bytes(0);
  session.fold(0, 21, 1);
  EXPECT_EQ(session.memory().slot_bytes(0), source);
  EXPECT_EQ(session.memory().base(1)[0], 21);
  session.fold(1, 21, 2);
  EXPECT_EQ(session.memory().state_bytes(2), session.memory().state_bytes(1));
  session.fold(0, 21);
  EXPECT_EQ(session.memory().state_bytes(0), session.memory().state_bytes(1));
}

}  // namespace
}  // namespace leapquant::conformance
