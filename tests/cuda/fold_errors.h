// SPDX-License-Identifier: Apache-2.0
//
// One fold of a head inside a decode call, judged by the decoded state: its distance to the FP64
// rebuild of the bytes before the call, beside that of the reference's encoding of the same.
#pragma once

#include <cmath>
#include <vector>

#include "conformance/session.h"
#include "core/pool.h"
#include "reference/codec.h"
#include "reference/fold.h"

namespace leapquant::cuda_test {

struct FoldErrors {
  double own = 0.0;
  double reference = 0.0;
  double norm = 0.0;        // of the exact state
  double mean_entry = 0.0;  // mean magnitude of its entries
  leapquant_health health;  // what the reference reports
};

// The fold of head `v_head` of slot 0 at its base of now; `before`: the pool before the call, whose
// boundary state becomes the reference's.
inline FoldErrors fold_errors(conformance::Session* session, conformance::PoolMemory* before,
                              int32_t v_head) {
  const Layout& layout = session->layout();
  const BoundaryLayout& head = layout.head(v_head);
  const leapquant_pool old_pool = before->pool();
  const int32_t base = session->memory().base(0)[v_head];
  const std::vector<double> exact = reference::rebuild(layout, old_pool, 0, 0, v_head, base);
  std::byte* boundary = boundary_state(layout, old_pool, 0, v_head);
  FoldErrors errors;
  errors.health = before->health(0)[v_head];
  reference::encode_state(head, exact.data(), false, boundary, &errors.health);
  const auto distance = [&](std::vector<double> state) {
    for (size_t i = 0; i < exact.size(); ++i) state[i] -= exact[i];
    return conformance::norm(state);
  };
  errors.own = distance(session->state(0, v_head, base));
  errors.reference = distance(reference::decode_boundary(head, boundary));
  errors.norm = conformance::norm(exact);
  for (double x : exact) errors.mean_entry += std::fabs(x) / static_cast<double>(exact.size());
  return errors;
}

}  // namespace leapquant::cuda_test
