// SPDX-License-Identifier: Apache-2.0
//
// The C++ header before anything else: it includes what it needs, and it needs no exceptions.
#include "leapquant/leapquant.hpp"
// Twice is once.
#include "leapquant/leapquant.h"
#include "leapquant/leapquant.hpp"

int header_alone_cpp() { return leapquant::Threads::create(1).ok() ? 1 : 0; }
