/* SPDX-License-Identifier: Apache-2.0
 *
 * The C header before anything else, in C99 with every warning on.
 */
#include "leapquant/leapquant.h"
/* Twice is once. */
#include "leapquant/leapquant.h"

uint32_t header_alone_c(void);
uint32_t header_alone_c(void) { return leapquant_version_number(); }
