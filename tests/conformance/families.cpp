// SPDX-License-Identifier: Apache-2.0
//
// Formulas as the families' public code states them; see docs/FORMAT.md for the map to the general
// form. S is [K, V].
#include "conformance/families.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace leapquant::conformance {
namespace {

using Vector = std::vector<double>;

double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

struct Matrix {
  size_t k_dim, v_dim;
  Vector s;
  Matrix(size_t k, size_t v) : k_dim(k), v_dim(v), s(k * v, 0.0) {}

  void decay(double a) {
    for (double& x : s) x *= a;
  }
  void decay_rows(const Vector& a) {
    for (size_t i = 0; i < k_dim; ++i) {
      for (size_t c = 0; c < v_dim; ++c) s[i * v_dim + c] *= a[i];
    }
  }
  void add_outer(const Vector& k, const Vector& v) {
    for (size_t i = 0; i < k_dim; ++i) {
      for (size_t c = 0; c < v_dim; ++c) s[i * v_dim + c] += k[i] * v[c];
    }
  }
  Vector read(const Vector& x) const {
    Vector y(v_dim, 0.0);
    for (size_t i = 0; i < k_dim; ++i) {
      for (size_t c = 0; c < v_dim; ++c) y[c] += s[i * v_dim + c] * x[i];
    }
    return y;
  }
  // u = beta (v - S^T k); S += k u^T.
  void delta(const Vector& k, const Vector& v, double beta) {
    const Vector old = read(k);
    Vector u(v_dim);
    for (size_t c = 0; c < v_dim; ++c) u[c] = beta * (v[c] - old[c]);
    add_outer(k, u);
  }
};

Vector scaled(Vector x, double factor) {
  for (double& e : x) e *= factor;
  return x;
}

Vector times(const Vector& a, const Vector& b) {
  Vector result = a;
  for (size_t i = 0; i < a.size(); ++i) result[i] *= b[i];
  return result;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector l2norm(Vector x) {
  const double root = std::sqrt(dot(x, x) + 1e-6);
  return scaled(std::move(x), 1.0 / root);
}

// Access to one token of one value head.
struct View {
  const Tokens& tokens;
  size_t t, h;

  size_t size_of(int32_t x) const { return static_cast<size_t>(x); }
  size_t k_head() const { return h / size_of(tokens.shape.num_v_heads / tokens.shape.num_k_heads); }
  size_t n() const { return size_of(tokens.shape.sub_steps); }
  static Vector row(const std::vector<float>& data, size_t index, size_t width) {
    const auto begin = data.begin() + static_cast<int64_t>(index * width);
    return Vector(begin, begin + static_cast<int64_t>(width));
  }
  Vector q() const {
    return row(tokens.q, t * size_of(tokens.shape.num_k_heads) + k_head(),
               size_of(tokens.shape.head_k_dim));
  }
  Vector key(const std::vector<float>& data, size_t j) const {
    return row(data, (t * n() + j) * size_of(tokens.shape.num_k_heads) + k_head(),
               size_of(tokens.shape.head_k_dim));
  }
  Vector k(size_t j = 0) const { return key(tokens.k, j); }
  Vector v(size_t j = 0) const {
    return row(tokens.v, (t * n() + j) * size_of(tokens.shape.num_v_heads) + h,
               size_of(tokens.shape.head_v_dim));
  }
  double scalar(const std::vector<float>& data, size_t j = 0, size_t sub_steps = 1) const {
    return data[(t * sub_steps + j) * size_of(tokens.shape.num_v_heads) + h];
  }
  double beta(size_t j = 0) const { return scalar(tokens.beta, j, n()); }
  Vector gate() const {  // [K] raw
    return row(tokens.log_decay, t * size_of(tokens.shape.num_v_heads) + h,
               size_of(tokens.shape.head_k_dim));
  }
  Vector bias() const { return row(tokens.dt_bias, h, size_of(tokens.shape.head_k_dim)); }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(tokens.shape.head_k_dim)); }
};

Vector exp_of(const Vector& g) {
  Vector a = g;
  for (double& x : a) x = std::exp(x);
  return a;
}

// Advances S by one token of one head and returns the output.
using Native = std::function<Vector(const View&, Matrix*)>;

struct Draw {
  std::mt19937 random;
  explicit Draw(uint32_t seed) : random(seed) {}
  std::vector<float> uniform(size_t count, float low, float high) {
    std::uniform_real_distribution<float> distribution(low, high);
    std::vector<float> data(count);
    for (float& x : data) x = distribution(random);
    return data;
  }
  std::vector<float> normal(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> data(count);
    for (float& x : data) x = distribution(random);
    return data;
  }
};

void scale_queries(Tokens* tokens) {
  tokens->options.q_scale = 1.0f / std::sqrt(static_cast<float>(tokens->shape.head_k_dim));
}

// The factor that the call applies is the FP32 rounding of K^-1/2; the native form uses the same.
double query_scale(const View& token) { return token.tokens.options.q_scale; }

// Raw inputs of GDN-like layers: unnormalised q and k, sigmoid step sizes, softplus gates with
// parameters drawn as the models initialise them.
void use_raw_inputs(Tokens* tokens, Draw* draw) {
  const auto hv = static_cast<size_t>(tokens->shape.num_v_heads);
  const bool vector = tokens->shape.decay == LEAPQUANT_DECAY_VECTOR;
  tokens->q = draw->normal(tokens->q.size(), 3.0f);
  tokens->k = draw->normal(tokens->k.size(), 0.2f);
  tokens->options.qk_l2norm = 1;
  tokens->beta = draw->normal(tokens->beta.size(), 1.5f);
  tokens->options.beta_kind = LEAPQUANT_BETA_SIGMOID;
  tokens->options.gate = LEAPQUANT_GATE_SOFTPLUS;
  tokens->log_decay = draw->normal(tokens->log_decay.size());
  tokens->a_log = draw->uniform(hv, 0.0f, 2.7f);
  tokens->dt_bias =
      draw->uniform(vector ? hv * static_cast<size_t>(tokens->shape.head_k_dim) : hv, -7.0f, -2.2f);
  scale_queries(tokens);
}

struct Setup {
  const char* name;
  leapquant_decay decay;
  bool delta_rule;
  int32_t sub_steps;
  // Alters plain random tokens to the family's, and gives its native form.
  std::function<Native(Tokens*, Draw*)> prepare;
};

Native plain_writes(Tokens* tokens, Draw*) {
  scale_queries(tokens);
  tokens->beta.clear();
  return [](const View& token, Matrix* s) {
    if (!token.tokens.log_decay.empty()) s->decay_rows(exp_of(token.gate()));
    s->add_outer(token.k(), token.v());
    return scaled(s->read(token.q()), query_scale(token));
  };
}

Native mamba2(Tokens* tokens, Draw* draw) {
  const auto hv = static_cast<size_t>(tokens->shape.num_v_heads);
  tokens->options.gate = LEAPQUANT_GATE_SOFTPLUS;
  tokens->log_decay = draw->normal(tokens->log_decay.size());  // dt_raw
  tokens->a_log = draw->uniform(hv, 0.0f, 2.7f);
  tokens->dt_bias = draw->uniform(hv, -7.0f, -2.2f);
  tokens->skip = draw->normal(hv);
  // The step size dt reaches the call as an FP32 beta; the native form takes the same number.
  for (size_t i = 0; i < tokens->beta.size(); ++i) {
    tokens->beta[i] = static_cast<float>(
        softplus(static_cast<double>(tokens->log_decay[i]) + tokens->dt_bias[i % hv]));
  }
  return [](const View& token, Matrix* s) {
    const double dt = softplus(token.scalar(token.tokens.log_decay) +
                               static_cast<double>(token.tokens.dt_bias[token.h]));
    const double a = -std::exp(static_cast<double>(token.tokens.a_log[token.h]));
    s->decay(std::exp(dt * a));
    s->add_outer(token.k(), scaled(token.v(), token.beta()));
    Vector y = s->read(token.q());
    for (size_t c = 0; c < y.size(); ++c) {
      y[c] += static_cast<double>(token.tokens.skip[token.h]) * token.v()[c];
    }
    return y;
  };
}

Native rwkv6(Tokens* tokens, Draw* draw) {
  tokens->beta.clear();
  tokens->options.read_before_update = 1;
  const auto rows = static_cast<size_t>(tokens->shape.num_v_heads * tokens->shape.head_k_dim);
  tokens->bonus = draw->normal(rows);
  tokens->log_decay = draw->normal(tokens->log_decay.size(), 1.5f);
  for (float& x : tokens->log_decay) x = -std::exp(x - 2.0f);
  return [](const View& token, Matrix* s) {
    const Vector bonus = View::row(token.tokens.bonus, token.h, s->k_dim);
    Vector o = s->read(token.q());
    const double weight = dot(token.q(), times(bonus, token.k()));
    for (size_t c = 0; c < o.size(); ++c) o[c] += weight * token.v()[c];
    s->decay_rows(exp_of(token.gate()));
    s->add_outer(token.k(), token.v());
    return o;
  };
}

Native hgrn2(Tokens* tokens, Draw* draw) {
  tokens->beta.clear();
  scale_queries(tokens);
  tokens->log_decay = draw->normal(tokens->log_decay.size());
  for (float& x : tokens->log_decay) x = std::log(sigmoid(x));
  for (size_t i = 0; i < tokens->k.size(); ++i) {  // one value head per key head: k = 1 - f
    tokens->k[i] = -std::expm1(tokens->log_decay[i]);
  }
  return [](const View& token, Matrix* s) {
    s->decay_rows(exp_of(token.gate()));
    s->add_outer(token.k(), token.v());
    return scaled(s->read(token.q()), query_scale(token));
  };
}

Native delta_net(Tokens* tokens, Draw*) {
  scale_queries(tokens);
  return [](const View& token, Matrix* s) {
    s->delta(token.k(), token.v(), token.beta());
    return scaled(s->read(token.q()), query_scale(token));
  };
}

Native gated_delta_net(Tokens* tokens, Draw* draw) {
  use_raw_inputs(tokens, draw);
  return [](const View& token, Matrix* s) {
    const double rate = std::exp(static_cast<double>(token.tokens.a_log[token.h]));
    const double x =
        token.scalar(token.tokens.log_decay) + static_cast<double>(token.tokens.dt_bias[token.h]);
    s->decay(std::exp(-rate * softplus(x)));
    s->delta(l2norm(token.k()), token.v(), sigmoid(token.beta()));
    return scaled(s->read(l2norm(token.q())), query_scale(token));
  };
}

Native kda(Tokens* tokens, Draw* draw, bool bounded) {
  use_raw_inputs(tokens, draw);
  if (bounded) {
    tokens->options.gate = LEAPQUANT_GATE_BOUNDED;
    tokens->options.lower_bound = -5.0f;
    for (float& x : tokens->a_log) x *= 0.2f;
  }
  return [bounded](const View& token, Matrix* s) {
    const double rate = std::exp(static_cast<double>(token.tokens.a_log[token.h]));
    Vector g = token.gate();
    const Vector bias = token.bias();
    for (size_t i = 0; i < g.size(); ++i) {
      const double x = g[i] + bias[i];
      g[i] = bounded ? -5.0 * sigmoid(rate * x) : -rate * softplus(x);
    }
    s->decay_rows(exp_of(g));
    s->delta(l2norm(token.k()), token.v(), sigmoid(token.beta()));
    return scaled(s->read(l2norm(token.q())), query_scale(token));
  };
}

Native delta_product(Tokens* tokens, Draw*) {
  scale_queries(tokens);
  tokens->options.beta_kind = LEAPQUANT_BETA_SIGMOID;
  tokens->options.beta_scale = 2.0f;
  return [](const View& token, Matrix* s) {
    s->decay(std::exp(token.scalar(token.tokens.log_decay)));
    for (size_t j = 0; j < token.n(); ++j) {
      s->delta(token.k(j), token.v(j), 2.0 * sigmoid(token.beta(j)));
    }
    return scaled(s->read(token.q()), query_scale(token));
  };
}

// k_0 = a . kk with read key kk and value 0; k_1 = k with read key 0 and value v.
Native rwkv7(Tokens* tokens, Draw* draw) {
  tokens->beta.clear();
  tokens->options.gate = LEAPQUANT_GATE_BOUNDED;
  tokens->options.lower_bound = -0.6065306597f;
  tokens->log_decay = draw->normal(tokens->log_decay.size());
  tokens->a_log.assign(static_cast<size_t>(tokens->shape.num_v_heads), 0.0f);
  const std::vector<float> a = draw->uniform(tokens->k.size(), 0.0f, 1.0f);
  tokens->read_key = tokens->k;
  const auto k_row = static_cast<size_t>(tokens->shape.num_k_heads * tokens->shape.head_k_dim);
  const auto v_row = static_cast<size_t>(tokens->shape.num_v_heads * tokens->shape.head_v_dim);
  for (size_t i = 0; i < tokens->k.size(); ++i) {
    const bool erase = i / k_row % 2 == 0;
    if (erase) {
      tokens->k[i] *= a[i];
    } else {
      tokens->read_key[i] = 0.0f;
    }
  }
  for (size_t i = 0; i < tokens->v.size(); ++i) {
    if (i / v_row % 2 == 0) tokens->v[i] = 0.0f;
  }
  return [](const View& token, Matrix* s) {
    const Vector kk = token.key(token.tokens.read_key, 0);
    const Vector erased = s->read(kk);
    Vector w = token.gate();
    for (double& x : w) {
      x = std::exp(static_cast<double>(token.tokens.options.lower_bound) * sigmoid(x));
    }
    s->decay_rows(w);
    s->add_outer(scaled(token.k(0), -1.0), erased);
    s->add_outer(token.k(1), token.v(1));
    return s->read(token.q());
  };
}

const std::vector<Setup>& setups() {
  static const std::vector<Setup> list = {
      {"linear_attention", LEAPQUANT_DECAY_NONE, false, 1, plain_writes},
      {"retnet", LEAPQUANT_DECAY_CONSTANT, false, 1,
       [](Tokens* tokens, Draw*) -> Native {
         tokens->beta.clear();
         scale_queries(tokens);
         return [](const View& token, Matrix* s) {
           const float g = std::log(1.0f - std::exp2(-5.0f - static_cast<float>(token.h)));
           s->decay(std::exp(static_cast<double>(g)));
           s->add_outer(token.k(), token.v());
           return scaled(s->read(token.q()), query_scale(token));
         };
       }},
      {"mamba2", LEAPQUANT_DECAY_SCALAR, false, 1, mamba2},
      {"gla", LEAPQUANT_DECAY_VECTOR, false, 1, plain_writes},
      {"rwkv6", LEAPQUANT_DECAY_VECTOR, false, 1, rwkv6},
      {"hgrn2", LEAPQUANT_DECAY_VECTOR, false, 1, hgrn2},
      {"delta_net", LEAPQUANT_DECAY_NONE, true, 1, delta_net},
      {"gated_delta_net", LEAPQUANT_DECAY_SCALAR, true, 1, gated_delta_net},
      {"kda_softplus", LEAPQUANT_DECAY_VECTOR, true, 1,
       [](Tokens* t, Draw* d) { return kda(t, d, false); }},
      {"kda_bounded", LEAPQUANT_DECAY_VECTOR, true, 1,
       [](Tokens* t, Draw* d) { return kda(t, d, true); }},
      {"delta_product_1", LEAPQUANT_DECAY_SCALAR, true, 1, delta_product},
      {"delta_product_2", LEAPQUANT_DECAY_SCALAR, true, 2, delta_product},
      {"delta_product_3", LEAPQUANT_DECAY_SCALAR, true, 3, delta_product},
      {"rwkv7", LEAPQUANT_DECAY_VECTOR, true, 2, rwkv7},
  };
  return list;
}

}  // namespace

leapquant_shape Family::shape() const {
  leapquant_shape result = tokens.shape;
  if (!constant_log_decay.empty()) result.constant_log_decay = constant_log_decay.data();
  return result;
}

const std::vector<std::string>& family_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Setup& setup : setups()) list.emplace_back(setup.name);
    return list;
  }();
  return names;
}

Family make_family(const std::string& name, int32_t k_dim, int32_t v_dim, int32_t count,
                   uint32_t seed) {
  for (const Setup& setup : setups()) {
    if (name != setup.name) continue;
    // Key heads are shared where the family's own layers share them: delta rules and Mamba2.
    const bool shares = setup.delta_rule || name == "mamba2";
    const leapquant_shape shape =
        make_shape(2, shares ? 4 : 2, k_dim, v_dim, setup.decay, setup.delta_rule, setup.sub_steps);
    Family family;
    family.name = name;
    family.tokens = random_tokens(shape, count, seed);
    if (setup.decay == LEAPQUANT_DECAY_CONSTANT) {
      for (int32_t h = 0; h < shape.num_v_heads; ++h) {
        family.constant_log_decay.push_back(
            std::log(1.0f - std::exp2(-5.0f - static_cast<float>(h))));
      }
    }
    Draw draw(seed + 1);
    const Native native = setup.prepare(&family.tokens, &draw);

    const auto heads = static_cast<size_t>(shape.num_v_heads);
    const auto v_size = static_cast<size_t>(v_dim);
    family.outputs.resize(static_cast<size_t>(count) * heads * v_size);
    for (size_t h = 0; h < heads; ++h) {
      Matrix s(static_cast<size_t>(k_dim), v_size);
      for (size_t t = 0; t < static_cast<size_t>(count); ++t) {
        const Vector o = native({family.tokens, t, h}, &s);
        std::copy(o.begin(), o.end(),
                  family.outputs.begin() + static_cast<int64_t>((t * heads + h) * v_size));
      }
      family.state.insert(family.state.end(), s.s.begin(), s.s.end());
    }
    return family;
  }
  std::fprintf(stderr, "no family is called %s\n", name.c_str());
  std::abort();
}

}  // namespace leapquant::conformance
