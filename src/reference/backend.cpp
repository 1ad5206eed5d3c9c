// SPDX-License-Identifier: Apache-2.0
//
// The table of the reference's operations.
#include "reference/backend.h"

#include "reference/decode.h"
#include "reference/fold.h"
#include "reference/prefill.h"
#include "reference/transfer.h"

namespace leapquant::reference {

const Backend& backend() {
  static const Backend table = {
      .name = "reference",
      .device = LEAPQUANT_CPU,
      .target = [] { return "FP64"; },
      .accepts = [](const Layout&, Sentence*) { return LEAPQUANT_OK; },
      .workspace_per_worker = [](const Layout&) { return size_t{0}; },
      .workspace_per_sequence = [](const Layout&) { return size_t{0}; },
      .decode = decode,
      .prefill = prefill,
      .fold = fold,
      .export_states = export_states,
      .import_states = import_states,
      .copy = copy,
      .reset = reset,
  };
  return table;
}

}  // namespace leapquant::reference
