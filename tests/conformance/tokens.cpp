// SPDX-License-Identifier: Apache-2.0
//
// Slicing is by whole tokens: every array's first axis is the token.
#include "conformance/tokens.h"

#include <cmath>
#include <limits>

namespace leapquant::conformance {
namespace {

// Calls use(array, floats per token) for each array of a token that is present in `like`.
template <typename Use>
void for_each_array(const Tokens& like, const Use& use) {
  const size_t n = static_cast<size_t>(like.shape.sub_steps);
  const size_t hk = static_cast<size_t>(like.shape.num_k_heads);
  const size_t hv = static_cast<size_t>(like.shape.num_v_heads);
  const size_t k_dim = static_cast<size_t>(like.shape.head_k_dim);
  const size_t v_dim = static_cast<size_t>(like.shape.head_v_dim);
  use(&Tokens::q, hk * k_dim);
  use(&Tokens::k, n * hk * k_dim);
  use(&Tokens::v, n * hv * v_dim);
  if (!like.read_key.empty()) use(&Tokens::read_key, n * hk * k_dim);
  if (!like.log_decay.empty()) use(&Tokens::log_decay, static_cast<size_t>(like.decay_width()));
  if (!like.beta.empty()) use(&Tokens::beta, n * hv);
}

// The same kind of tokens, none of them yet.
Tokens without_tokens(const Tokens& like) {
  Tokens result;
  result.shape = like.shape;
  result.options = like.options;
  result.a_log = like.a_log;
  result.dt_bias = like.dt_bias;
  result.bonus = like.bonus;
  result.skip = like.skip;
  return result;
}

}  // namespace

int32_t Tokens::decay_width() const {
  if (shape.decay == LEAPQUANT_DECAY_SCALAR) return shape.num_v_heads;
  if (shape.decay == LEAPQUANT_DECAY_VECTOR) return shape.num_v_heads * shape.head_k_dim;
  return 0;
}

leapquant_inputs Tokens::inputs() const {
  leapquant_inputs inputs = options;
  const auto tensor = [](const std::vector<float>& data) {
    leapquant_tensor t = {};
    t.data = data.empty() ? nullptr : data.data();
    t.type = LEAPQUANT_FP32;
    return t;
  };
  inputs.q = tensor(q);
  inputs.k = tensor(k);
  inputs.v = tensor(v);
  inputs.read_key = tensor(read_key);
  inputs.log_decay = tensor(log_decay);
  inputs.beta = tensor(beta);
  inputs.a_log = a_log.empty() ? nullptr : a_log.data();
  inputs.dt_bias = dt_bias.empty() ? nullptr : dt_bias.data();
  inputs.bonus = bonus.empty() ? nullptr : bonus.data();
  inputs.skip = skip.empty() ? nullptr : skip.data();
  return inputs;
}

Tokens slice(const Tokens& tokens, int32_t first, int32_t count) {
  Tokens result = without_tokens(tokens);
  result.count = count;
  for_each_array(tokens, [&](auto array, size_t width) {
    const auto begin = (tokens.*array).begin() + static_cast<int64_t>(width) * first;
    (result.*array).assign(begin, begin + static_cast<int64_t>(width) * count);
  });
  return result;
}

void append(Tokens* to, const Tokens& from) {
  if (to->count == 0) {
    *to = from;
    return;
  }
  for_each_array(from, [&](auto array, size_t) {
    (to->*array).insert((to->*array).end(), (from.*array).begin(), (from.*array).end());
  });
  to->count += from.count;
}

void append_poison(Tokens* to, const Tokens& like, int32_t count) {
  if (count == 0) return;
  if (to->count == 0) *to = without_tokens(like);
  for_each_array(like, [&](auto array, size_t width) {
    (to->*array)
        .resize((to->*array).size() + width * static_cast<size_t>(count),
                std::numeric_limits<float>::quiet_NaN());
  });
  to->count += count;
}

leapquant_shape make_shape(int32_t num_k_heads, int32_t num_v_heads, int32_t k_dim, int32_t v_dim,
                           leapquant_decay decay, bool delta_rule, int32_t sub_steps,
                           int32_t max_tokens) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = num_k_heads;
  shape.num_v_heads = num_v_heads;
  shape.head_k_dim = k_dim;
  shape.head_v_dim = v_dim;
  shape.decay = decay;
  shape.delta_rule = delta_rule ? 1 : 0;
  shape.sub_steps = sub_steps;
  shape.max_tokens = max_tokens;
  return shape;
}

Tokens random_tokens(const leapquant_shape& shape, int32_t count, uint32_t seed, Kind kind) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  Tokens tokens;
  tokens.shape = shape;
  tokens.count = count;
  const auto draw = [&](size_t size, auto&& value) {
    std::vector<float> data(size);
    for (float& x : data) x = value();
    return data;
  };
  const auto total = static_cast<size_t>(count);
  const auto n = static_cast<size_t>(shape.sub_steps);
  const auto hk = static_cast<size_t>(shape.num_k_heads);
  const auto hv = static_cast<size_t>(shape.num_v_heads);
  const auto k_dim = static_cast<size_t>(shape.head_k_dim);
  const auto v_dim = static_cast<size_t>(shape.head_v_dim);

  tokens.q = draw(total * hk * k_dim, [&] { return normal(random); });
  const float mean = kind == Kind::kOutliers ? 1.0f : 0.0f;
  tokens.k = draw(total * n * hk * k_dim, [&] { return mean + normal(random); });
  for (size_t row = 0; row < tokens.k.size(); row += k_dim) {
    float sum = 0.0f;
    for (size_t i = 0; i < k_dim; ++i) sum += tokens.k[row + i] * tokens.k[row + i];
    for (size_t i = 0; i < k_dim; ++i) tokens.k[row + i] /= std::sqrt(sum);
  }
  tokens.v = draw(total * n * hv * v_dim, [&] { return normal(random); });
  if (kind == Kind::kOutliers) {
    for (size_t row = 0; row < tokens.v.size(); row += v_dim) {
      tokens.v[row + 1] *= 20.0f;
      tokens.v[row + v_dim / 2] *= 20.0f;
    }
  }
  const float strong[] = {0.0f,   -3.0f,     -5.5f,  -27.63f, -90.0f, -1000.0f, -1e-3f, 0.0f,
                          -0.01f, -INFINITY, -1e-6f, 0.0f,    -0.1f,  -0.02f,   0.0f,   -0.3f};
  tokens.log_decay = draw(total * static_cast<size_t>(tokens.decay_width()), [&] {
    if (kind == Kind::kSlow) return -1e-4f;
    if (kind == Kind::kStrong) return strong[random() % 16];
    return -0.1f * uniform(random);
  });
  tokens.beta = draw(total * n * hv, [&] { return uniform(random); });
  return tokens;
}

}  // namespace leapquant::conformance
