// SPDX-License-Identifier: Apache-2.0
//
// Error over time (cases B): what the window, the compensators and the smoothing each gain, and
// that errors stay bounded over 65,536 tokens. On the fastest backend only, since these runs are
// long.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/session.h"

namespace leapquant::conformance {
namespace {

// The exact recurrence of one delta-rule head with scalar decay, FP64.
class ExactHead {
 public:
  explicit ExactHead(const Tokens& tokens)
      : tokens_(tokens), dim_(static_cast<size_t>(tokens.shape.head_k_dim)), s_(dim_ * dim_, 0.0) {}

  void advance(size_t t) {
    const float* k = tokens_.k.data() + t * dim_;
    const float* v = tokens_.v.data() + t * dim_;
    const double a = std::exp(static_cast<double>(tokens_.log_decay[t]));
    std::vector<double> u(dim_, 0.0);
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t c = 0; c < dim_; ++c) {
        s_[i * dim_ + c] *= a;
        u[c] += s_[i * dim_ + c] * static_cast<double>(k[i]);
      }
    }
    for (size_t c = 0; c < dim_; ++c) {
      u[c] = static_cast<double>(tokens_.beta[t]) * (static_cast<double>(v[c]) - u[c]);
    }
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t c = 0; c < dim_; ++c) s_[i * dim_ + c] += static_cast<double>(k[i]) * u[c];
    }
  }
  const std::vector<double>& state() const { return s_; }

 private:
  const Tokens& tokens_;
  size_t dim_;
  std::vector<double> s_;
};

Tokens drift_tokens(int32_t dim, int32_t count, float g, uint32_t seed) {
  const leapquant_shape shape = make_shape(1, 1, dim, dim, LEAPQUANT_DECAY_SCALAR);
  Tokens tokens = random_tokens(shape, count, seed, Kind::kOutliers);
  for (float& x : tokens.log_decay) x = g;
  for (float& x : tokens.beta) x = 0.5f;
  return tokens;
}

// Mean relative state error over the last quarter of the tokens.
double late_error(const Tokens& tokens, const std::string& format) {
  Session session(best_cpu_backend(), make_test_layout(tokens.shape, format), 1);
  session.reset(0);
  ExactHead exact(tokens);
  double sum = 0.0;
  int32_t samples = 0;
  for (int32_t t = 0; t < tokens.count; ++t) {
    session.decode_one(0, t, tokens, t, 1);
    exact.advance(static_cast<size_t>(t));
    if (t >= tokens.count * 3 / 4 && t % 16 == 15) {
      sum += relative_error(session.state(0, 0, t + 1), exact.state());
      ++samples;
    }
  }
  return sum / samples;
}

// B1: 1,024 tokens, two value channels x20, keys with a common mean. The toy model of the case has
// per step : window about 4, window : compensators about 3 at every decay, and no gain or loss from
// smoothing; asked here with a factor-2 margin.
TEST(Drift, WindowAndCompensatorsEachReduceTheError) {
  const ForcedTarget forced(best_cpu_backend());
  for (float g : {-1e-4f, -1e-2f, -1e-1f}) {
    const Tokens tokens = drift_tokens(128, 1024, g, 121);
    const double per_step = late_error(tokens, "8:smooth=none:step");
    const double window = late_error(tokens, "8:smooth=none");
    const double compensators = late_error(tokens, "8:smooth=none:r=4");
    const double complete = late_error(tokens, "int8");
    EXPECT_GE(per_step, 2.0 * window) << g;
    EXPECT_GE(window, 1.5 * compensators) << g;
    EXPECT_LE(complete, 1.3 * compensators) << g;
    RecordProperty("per_step", std::to_string(per_step));
    RecordProperty("complete", std::to_string(complete));
  }
}

// B1 at 4 bits, and the formats with more, smaller compensators.
TEST(Drift, FourBitsNeedTheirCompensators) {
  const ForcedTarget forced(best_cpu_backend());
  const Tokens tokens = drift_tokens(128, 512, -1e-2f, 122);
  const double window = late_error(tokens, "4:smooth=none");
  const double paper = late_error(tokens, "int4");
  const double plus = late_error(tokens, "int4+");
  EXPECT_GE(window, 1.6 * paper);
  EXPECT_GE(paper, 1.5 * plus);
}

// B1 with outliers in key rows, where smoothing has something to do.
TEST(Drift, SmoothingHelpsWithOutlierRows) {
  const ForcedTarget forced(best_cpu_backend());
  Tokens tokens = drift_tokens(128, 512, -1e-2f, 123);
  for (size_t t = 0; t < 512; ++t) {
    float* k = tokens.k.data() + t * 128;
    k[5] *= 30.0f;
    k[90] *= 30.0f;
    float sum = 0.0f;
    for (size_t i = 0; i < 128; ++i) sum += k[i] * k[i];
    for (size_t i = 0; i < 128; ++i) k[i] /= std::sqrt(sum);
  }
  EXPECT_GE(late_error(tokens, "8:smooth=none"), 1.2 * late_error(tokens, "8:smooth=fp32"));
}

// B2: 65,536 tokens. At g = -1e-2 errors do not grow between 16k and 64k; at -1e-4 they stay
// bounded; an FP32 state per step stays below 1e-5.
TEST(Drift, ErrorsStayBoundedFor65536Tokens) {
  const ForcedTarget forced(best_cpu_backend());
  constexpr int32_t kBlock = 4096;  // tokens, repeated
  for (float g : {-1e-4f, -1e-2f}) {
    const Tokens block = drift_tokens(32, kBlock, g, 124);
    const char* formats[] = {"int8", "int4+", "fp32:step"};
    std::vector<double> early(3, 0.0), late(3, 0.0);
    ExactHead exact(block);
    std::vector<Session> sessions;
    for (const char* format : formats) {
      sessions.emplace_back(best_cpu_backend(), make_test_layout(block.shape, format), 1);
      sessions.back().reset(0);
    }
    for (int32_t t = 0; t < 65536; ++t) {
      const int32_t token = t % kBlock;
      exact.advance(static_cast<size_t>(token));
      for (size_t f = 0; f < 3; ++f) sessions[f].decode_one(0, t, block, token, 1);
      if (t % 256 != 255) continue;
      for (size_t f = 0; f < 3; ++f) {
        const double error = relative_error(sessions[f].state(0, 0, t + 1), exact.state());
        if (t >= 12288 && t < 16384) early[f] += error / 16;
        if (t >= 61440) late[f] += error / 16;
      }
    }
    EXPECT_LE(late[2], 1e-5) << g;
    for (size_t f = 0; f < 2; ++f) {
      EXPECT_LE(late[f], 0.2) << formats[f] << " " << g;
      EXPECT_LE(late[f], (g == -1e-2f ? 1.5 : 3.0) * early[f]) << formats[f] << " " << g;
    }
  }
}

}  // namespace
}  // namespace leapquant::conformance
