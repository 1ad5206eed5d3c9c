// SPDX-License-Identifier: Apache-2.0
//
// What a leapquant_layout is behind the door: the layout of core and the backend that serves it.
#pragma once

#include "core/layout.h"
#include "core/operations.h"

struct leapquant_layout {
  leapquant::Layout layout;
  const leapquant::Backend* backend = nullptr;
  char name[64] = {0};  // "cpu/AVX2"
};
