// SPDX-License-Identifier: Apache-2.0
//
// Highway's set-up, the same in every file of this folder: include it before any Highway header. A
// table of HWY_EXPORT then has the same targets everywhere, which targets.h counts on.
#pragma once

// Every target of the architecture, the portable one too (it is also the oracle of the others).
#define HWY_COMPILE_ALL_ATTAINABLE

// Highway leaves its portable 128-bit target out before GCC 12.3 for a fault in the vectorisation
// of high multiplications (GCC 106322), an operation that this folder does not use.
#define HWY_BROKEN_EMU128 0

// Left out to keep the library small: machines without SSE4 take the portable target, and vectors
// without a compile-time size cannot stand in arrays. Sanitizers see the same source in one narrow
// and one wide target as in all, in half the time of building.
#if defined(__x86_64__) && defined(__SANITIZE_ADDRESS__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#elif defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#elif defined(__aarch64__)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
