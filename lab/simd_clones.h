// SPDX-License-Identifier: Apache-2.0
//
// One macro for plain loops that the compiler should build for several instruction sets and choose
// from at load time. The lab's loops are measuring tools, not kernels of the product: those are in
// the library.
#ifndef LEAPQUANT_LAB_SIMD_CLONES_H_
#define LEAPQUANT_LAB_SIMD_CLONES_H_

// Sanitizers instrument the resolvers, which run before the sanitizers are ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LEAPQUANT_LAB_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define LEAPQUANT_LAB_CLONES
#endif

#endif  // LEAPQUANT_LAB_SIMD_CLONES_H_
