// SPDX-License-Identifier: Apache-2.0
//
// One slot of a pool as save and load see it: in host memory with the codes in canonical order. A
// slot of the host is seen where it lies, one of a device in a copy.
#pragma once

#include <memory>
#include <new>

#include "capi/call.h"
#include "core/pool.h"

namespace leapquant::capi {

struct SlotView {
  const Layout* layout = nullptr;
  leapquant_pool pool = {};  // of the host
  int32_t state = 0;
  int32_t window = -1;      // < 0: none
  int32_t named_state = 0;  // the caller's indices, for sentences
  int32_t named_window = -1;
  int32_t base(int32_t v_head) const { return base_of(*layout, pool, state, v_head); }

  // Of a device's slot only.
  const DeviceMemory* memory = nullptr;
  leapquant_pool device_pool = {};
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete(bytes, std::align_val_t{64}, std::nothrow);
    }
  };
  std::unique_ptr<std::byte, Free> copy;
};

// Checks pool and slots. With `contents`, a device's slot is copied out (the caller has waited for
// what wrote it); its bases always are.
Status open_slot(const leapquant_layout* layout, const leapquant_pool* pool, int32_t state_slot,
                 int32_t window_slot, bool contents, SlotView* slot);

// Puts what was written into the view into a device's slot; nothing to do on the host. On failure
// the slot's contents are undefined.
Status close_slot(const SlotView& slot);

}  // namespace leapquant::capi
