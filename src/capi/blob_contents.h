// SPDX-License-Identifier: Apache-2.0
//
// Contents that a sound fold can write: finite scales and compensators, codes in range, records
// that are finite and decays that do not grow. What passes here cannot put a NaN into a slot.
#pragma once

#include "capi/blob.h"

namespace leapquant::capi {

// OK or CORRUPT, for a blob whose sizes and checksums are sound.
Status check_contents(const SavedBlob& blob, Sentence* sentence);

}  // namespace leapquant::capi
