// SPDX-License-Identifier: Apache-2.0
//
// Every family of layers in its native form: token by token on an FP64 state, written from the
// families' own formulas and not from the general form, together with the same tokens as this
// library takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/tokens.h"

namespace leapquant::conformance {

struct Family {
  std::string name;
  Tokens tokens;
  std::vector<float> constant_log_decay;  // RetNet: shape.constant_log_decay points here
  std::vector<double> outputs;            // [count, HV, V], native
  std::vector<double> state;              // [HV, K, V] after the last token, native

  // tokens.shape with its pointer set; call on the object that stays.
  leapquant_shape shape() const;
};

// Names for make_family.
const std::vector<std::string>& family_names();

// `count` random tokens with K x V heads.
Family make_family(const std::string& name, int32_t k_dim, int32_t v_dim, int32_t count,
                   uint32_t seed);

}  // namespace leapquant::conformance
