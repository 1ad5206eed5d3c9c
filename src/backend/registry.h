// SPDX-License-Identifier: Apache-2.0
//
// Chooses who serves a layout. The only place that knows more than one backend. There is no switch
// from outside: the same layout on the same machine always gets the same backend.
#pragma once

#include <cstddef>

#include "core/operations.h"

namespace leapquant {

// First backend of the built-in list, most special first, that serves `device` and accepts
// `layout`. Failures: DEVICE_UNAVAILABLE when nothing built in serves the device or the device is
// not there; UNSUPPORTED with the reason of every backend asked. *chosen is set only on success.
Status choose_backend(const Layout& layout, leapquant_device device, const Backend** chosen,
                      Sentence* sentence);

// The built-in list, of all devices; *count receives its length. For tests.
const Backend* const* built_in_backends(size_t* count);

// The same over a given list.
Status choose_backend_from(const Backend* const* backends, size_t count, const Layout& layout,
                           leapquant_device device, const Backend** chosen, Sentence* sentence);

}  // namespace leapquant
