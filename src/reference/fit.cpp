// SPDX-License-Identifier: Apache-2.0
//
// Start vectors, rounds, order of the columns, least-squares key sides. Blocks of vectors are
// stored one vector after another: block[r] has K or V entries.
#include "reference/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/start_vectors.h"
#include "reference/codec.h"

namespace leapquant::reference {
namespace {

using Vector = std::vector<double>;
using Block = std::vector<Vector>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

bool is_zero(const Vector& vector) {
  return std::all_of(vector.begin(), vector.end(), [](double x) { return x == 0.0; });
}

// The state scaled by a power of two so that its largest magnitude lies in [1, 2).
struct ScaledState {
  Vector entries;  // [K, V]
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int exponent = 0;  // state = entries * 2^exponent
  bool zero = true;

  ScaledState(const BoundaryLayout& layout, const double* state)
      : entries(state, state + static_cast<int64_t>(layout.k_dim) * layout.v_dim),
        k_dim(layout.k_dim),
        v_dim(layout.v_dim) {
    double largest = 0.0;
    for (double x : entries) largest = std::max(largest, std::fabs(x));
    if (largest == 0.0) return;
    zero = false;
    exponent = std::ilogb(largest);
    for (double& x : entries) x = std::ldexp(x, -exponent);
  }

  // S v for every vector of the block: entries [K].
  Block times(const Block& block) const {
    Block result;
    for (const Vector& v : block) {
      Vector sum(static_cast<size_t>(k_dim), 0.0);
      for (int32_t i = 0; i < k_dim; ++i) {
        const double* row = entries.data() + static_cast<int64_t>(i) * v_dim;
        for (int32_t j = 0; j < v_dim; ++j) {
          sum[static_cast<size_t>(i)] += row[j] * v[static_cast<size_t>(j)];
        }
      }
      result.push_back(std::move(sum));
    }
    return result;
  }

  // S^T k for every vector of the block: entries [V].
  Block transposed_times(const Block& block) const {
    Block result;
    for (const Vector& k : block) {
      Vector sum(static_cast<size_t>(v_dim), 0.0);
      for (int32_t i = 0; i < k_dim; ++i) {
        const double* row = entries.data() + static_cast<int64_t>(i) * v_dim;
        for (int32_t j = 0; j < v_dim; ++j) {
          sum[static_cast<size_t>(j)] += row[j] * k[static_cast<size_t>(i)];
        }
      }
      result.push_back(std::move(sum));
    }
    return result;
  }
};

// Modified Gram-Schmidt, every projection done twice. A column that depends on the earlier ones
// (its norm falls below 1e-6 of what it was) or is zero becomes zero: a dead column.
void orthonormalise(Block* block) {
  for (size_t c = 0; c < block->size(); ++c) {
    Vector& column = (*block)[c];
    const double before = std::sqrt(dot(column, column));
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t other = 0; other < c; ++other) {
        const Vector& direction = (*block)[other];
        const double share = dot(direction, column);
        for (size_t i = 0; i < column.size(); ++i) column[i] -= share * direction[i];
      }
    }
    const double norm = std::sqrt(dot(column, column));
    const bool dead = before == 0.0 || norm < 1e-6 * before;
    for (double& x : column) x = dead ? 0.0 : x / norm;
  }
}

Vector table_column(int32_t column, int32_t v_dim) {
  Vector vector(static_cast<size_t>(v_dim));
  for (int32_t j = 0; j < v_dim; ++j) vector[static_cast<size_t>(j)] = start_vector(column, j);
  return vector;
}

// Start block, and the verdict whether this is a cold fit: asked for, or nothing stored yet.
Block start_block(const BoundaryLayout& layout, const std::byte* boundary, bool* cold) {
  Block stored;
  bool any_alive = false;
  for (int32_t r = 0; r < layout.rank; ++r) {
    Vector value(static_cast<size_t>(layout.v_dim));
    decode_vector(layout, Side::kValue, r, boundary, value.data());
    any_alive = any_alive || !is_zero(value);
    stored.push_back(std::move(value));
  }
  *cold = *cold || !any_alive;
  const bool warm = !*cold && layout.format.fit_start != LEAPQUANT_FIT_FIXED;
  for (int32_t r = 0; r < layout.rank; ++r) {
    Vector& column = stored[static_cast<size_t>(r)];
    if (!warm || is_zero(column)) column = table_column(r, layout.v_dim);
  }
  return stored;
}

int32_t rounds_of(const BoundaryLayout& layout, bool mixed, bool cold) {
  if (cold) return 3;
  if (layout.format.fit_rounds > 0) return layout.format.fit_rounds;
  return mixed ? 1 : 2;
}

// Columns by falling |S v|, equal ones in their old order.
Block sort_by_strength(const ScaledState& state, const Block& values) {
  const Block keys = state.times(values);
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dot(keys[a], keys[a]) > dot(keys[b], keys[b]);
  });
  Block sorted;
  for (size_t index : order) sorted.push_back(values[index]);
  return sorted;
}

// K~ = S U (U^T U + 1e-7 I)^-1: the key sides that fit the rounded value sides best. One Cholesky
// factorisation L L^T of the small matrix, then two triangular solves for all keys at once.
Block least_squares_keys(const ScaledState& state, const Block& values) {
  const size_t rank = values.size();
  std::vector<Vector> lower(rank, Vector(rank, 0.0));
  for (size_t i = 0; i < rank; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = dot(values[i], values[j]) + (i == j ? 1e-7 : 0.0);
      for (size_t l = 0; l < j; ++l) sum -= lower[i][l] * lower[j][l];
      lower[i][j] = i == j ? std::sqrt(sum) : sum / lower[j][j];
    }
  }
  Block keys = state.times(values);
  for (size_t i = 0; i < rank; ++i) {  // L y = b
    for (size_t j = 0; j < i; ++j) {
      for (size_t e = 0; e < keys[i].size(); ++e) keys[i][e] -= lower[i][j] * keys[j][e];
    }
    for (double& x : keys[i]) x /= lower[i][i];
  }
  for (size_t i = rank; i-- > 0;) {  // L^T x = y
    for (size_t j = i + 1; j < rank; ++j) {
      for (size_t e = 0; e < keys[i].size(); ++e) keys[i][e] -= lower[j][i] * keys[j][e];
    }
    for (double& x : keys[i]) x /= lower[i][i];
  }
  return keys;
}

uint32_t write_block(const BoundaryLayout& layout, Side side, const Block& block,
                     std::byte* boundary) {
  uint32_t flags = 0;
  for (size_t r = 0; r < block.size(); ++r) {
    flags |= encode_vector(layout, side, static_cast<int32_t>(r), block[r].data(), boundary);
  }
  return flags;
}

void unscale(int exponent, Block* block) {
  for (Vector& vector : *block) {
    for (double& x : vector) x = std::ldexp(x, exponent);
  }
}

}  // namespace

uint32_t fit_compensators(const BoundaryLayout& layout, const double* state, bool cold,
                          std::byte* boundary) {
  if (layout.rank == 0) return 0;
  const ScaledState scaled(layout, state);
  if (scaled.zero) {
    const auto rank = static_cast<size_t>(layout.rank);
    const Block no_keys(rank, Vector(static_cast<size_t>(layout.k_dim), 0.0));
    const Block no_values(rank, Vector(static_cast<size_t>(layout.v_dim), 0.0));
    return write_block(layout, Side::kKey, no_keys, boundary) |
           write_block(layout, Side::kValue, no_values, boundary);
  }

  const bool mixed = layout.format.num_int8 + layout.format.num_int4 > 0;
  Block values = start_block(layout, boundary, &cold);
  for (int32_t round = 0; round < rounds_of(layout, mixed, cold); ++round) {
    Block keys = scaled.times(values);
    if (!mixed) orthonormalise(&keys);
    values = scaled.transposed_times(keys);
    orthonormalise(&values);
  }
  if (mixed && cold) values = sort_by_strength(scaled, values);

  uint32_t flags = 0;
  Block keys;
  if (mixed) {
    flags |= write_block(layout, Side::kValue, values, boundary);
    for (int32_t r = 0; r < layout.rank; ++r) {
      decode_vector(layout, Side::kValue, r, boundary, values[static_cast<size_t>(r)].data());
    }
    keys = least_squares_keys(scaled, values);
  } else {
    flags |= write_block(layout, Side::kValue, values, boundary);
    keys = scaled.times(values);
  }
  unscale(scaled.exponent, &keys);
  return flags | write_block(layout, Side::kKey, keys, boundary);
}

}  // namespace leapquant::reference
