// SPDX-License-Identifier: Apache-2.0
//
// A long replay: the output error of a device's backend against the exact recurrence is that of the
// CPU backend, within 5 %. Both quantise the same states with the same algorithm; only which of two
// nearly equal fits wins differs, and that averages out over the folds.
#include <cmath>

#include "conformance/session.h"
#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

using conformance::Session;
using conformance::TestBackend;

// Sum of squared differences over sum of squares of the tokens from `from` on.
double error_of(const conformance::Outputs& o, const conformance::Outputs& exact, size_t from) {
  double error = 0.0;
  double total = 0.0;
  for (size_t i = from; i < o.size(); ++i) {
    error += std::pow(static_cast<double>(o[i]) - static_cast<double>(exact[i]), 2.0);
    total += std::pow(static_cast<double>(exact[i]), 2.0);
  }
  return error / total;
}

TEST(Replay, ErrorIsThatOfTheCpu) {
  constexpr int32_t kTokens = 4096;
  constexpr int32_t kHeads = 4;
  for (const int32_t dim : {64, 128}) {
    const leapquant_shape shape =
        conformance::make_shape(2, kHeads, dim, dim, LEAPQUANT_DECAY_SCALAR);
    const Tokens tokens =
        conformance::random_tokens(shape, kTokens, 7501, conformance::Kind::kPlain);
    const auto run = [&](const TestBackend& backend, const std::string& format) {
      const conformance::ForcedTarget forced(backend);
      Session session(backend, conformance::make_test_layout(shape, format), 1);
      session.reset(0);
      return session.decode_steps(0, 0, tokens, 0, kTokens, 8);
    };
    // FP32 per step differs from FP64 by about 1e-6, far below the errors that are compared.
    const conformance::Outputs exact = run(conformance::best_cpu_backend(), "fp32:step");
    for (const char* format : {"int8", "int4+"}) {
      const double cpu = error_of(run(conformance::best_cpu_backend(), format), exact, 0);
      const Layout layout = conformance::make_test_layout(shape, std::string(format));
      for (const TestBackend& backend : conformance::device_backends(layout)) {
        const double own = error_of(run(backend, format), exact, 0);
        std::printf("%s, %s, %d: error %.4e, CPU %.4e, ratio %.4f\n", backend.name.c_str(), format,
                    dim, own, cpu, own / cpu);
        EXPECT_LE(own, 1.05 * cpu) << backend.name << ", " << format << ", " << dim;
      }
    }
  }
}

}  // namespace
}  // namespace leapquant::cuda_test
